# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT-1's zero-shot heuristics (Radford et al., 2018, section 5, figure 2).

They use a language model for a task without fine-tuning. Over the checkpoints
of a run (`gpt-jax evaluate --steps all`) they show when pre-training learns
what the tasks need. Each has `relative`, figure 2's axis: 0 for chance, 1 for
the best result of another system in the paper's tables 3 and 4.
"""

import string
from collections.abc import Iterator
from typing import Literal

from gpt_jax.core.files.records import Record
from gpt_jax.tasks import glue
from gpt_jax.tasks import published as choices
from gpt_jax.tasks.files import label, text, texts
from gpt_jax.tasks.prompts import Prompt, Prompted, of_records
from gpt_jax.tasks.task import read

# RACE of middle and high school: BiAttention MRU, an ensemble of nine.
_BEST_RACE = {'middle': 0.602, 'high': 0.503}


def cola_zero_shot(folder: str = 'CoLA', split: Literal['dev', 'train'] = 'dev') -> Prompted:
  """CoLA: a sentence is acceptable if its tokens are probable on average.

  A threshold on the mean log-probability of the tokens decides. That of the
  first, third, ... example is fitted to the others, and vice versa, so that
  none is judged by a threshold that was fitted to it.
  """

  def examples(base: str) -> Iterator[Prompt]:
    for example in read(glue.find('cola', base, folder), split):
      sentence = example.texts[0].strip()
      yield Prompt(example.where, '', (sentence,), example.label, plain=sentence)

  return Prompted(examples, None, 'threshold', best=0.35)


def sst2_zero_shot(folder: str = 'SST-2', split: Literal['dev', 'train'] = 'dev') -> Prompted:
  """SST-2: the more probable of 'negative' and 'positive' after ' very'."""

  def examples(base: str) -> Iterator[Prompt]:
    for example in read(glue.find('sst2', base, folder), split):
      sentence = example.texts[0].strip()
      choice = ' negative', ' positive'
      yield Prompt(example.where, f'{sentence} very', choice, example.label, plain=sentence)

  return Prompted(examples, None, best=0.932)


def race_zero_shot(path: str = 'test', level: Literal['middle', 'high'] = 'middle') -> Prompted:
  """RACE: the answer with the highest mean log-probability of its tokens.

  It follows the article and the question, without words of a prompt. See
  `choices.race` for the arguments.
  """

  def read_one(record: Record) -> Iterator[Prompt]:
    article = text(record, 'article')
    for question in choices.questions(record):
      options = texts(record.where, 'options', question['options'])
      letters = string.ascii_uppercase[: len(options)]
      yield Prompt(
        record.where,
        f'{article}\n{text(question, "question")}',
        tuple(f' {option}' for option in options),
        label(record.where, question['answer'], letters),
      )

  found = of_records(choices.race_files(level), path, '', read_one)
  return found._replace(main='accuracy_per_token', best=_BEST_RACE[level])
