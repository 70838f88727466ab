# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Children's Book Test (Hill et al., 2015), as GPT-2 is evaluated on it.

Twenty sentences of a book, then one with a blank; ten words to choose from. "We
compute the probability of each choice and the rest of the sentence conditioned
on this choice" (Radford et al., 2019, section 3.2); a detokenizer removes the
artefacts of the Penn Treebank's tokens. GPT-2 reports on the validation set,
since a book of the test set is in its training text.
"""

from collections.abc import Iterator
from typing import Literal

from gpt_jax.core.files import lines
from gpt_jax.core.files.records import Record
from gpt_jax.core.spec import UsageError
from gpt_jax.tasks.detokenize import detokenize
from gpt_jax.tasks.files import Files, PublishedSplit, label, text, texts
from gpt_jax.tasks.prompts import Prompt, Prompted, of_records

_BLANK = 'XXXXX'
_SENTENCES = 21  # the last has the blank


def cbt(path: str = 'valid', kind: Literal['CN', 'NE', 'V', 'P'] = 'CN') -> Prompted:
  """The Children's Book Test: which of ten words was left out.

  Args:
    path: valid, test, or a file.
    kind: of word: common nouns, named entities, verbs or prepositions.
  """
  files = Files(
    folder='',
    home='unpack CBTest.tgz from https://research.fb.com/downloads/babi there',
    splits={
      split: PublishedSplit(
        (
          f'cbt/cbtest_{kind}_{split}_{count}ex.txt',
          f'CBTest/data/cbtest_{kind}_{split}_{count}ex.txt',
        )
      )
      for split, count in {'valid': 2000, 'test': 2500}.items()
    },
    readers={'.txt': _questions},
  )
  return of_records(files, path, '', _prompt)


def _prompt(record: Record) -> Iterator[Prompt]:
  story = detokenize('ptb', text(record, 'story')).text
  if story.count(_BLANK) != 1:
    raise UsageError(
      f'{record.where}: the story has {story.count(_BLANK)} blanks {_BLANK}; '
      'give it one, in its last sentence'
    )
  before, _, after = story.partition(_BLANK)
  choices = texts(record.where, 'choices', record['choices'])
  # The space before the blank belongs to the choice.
  context = before.removesuffix(' ')
  yield Prompt(
    record.where,
    context,
    tuple(f'{before[len(context) :]}{choice}{after}' for choice in choices),
    label(record.where, record['answer'], choices),
  )


def _questions(path: str) -> Iterator[Record]:
  """The questions of a file, 21 numbered lines each, with blank ones between.

  The last has the sentence, the answer, nothing, and the choices, separated by
  tabs; choices by `|`.
  """
  story: list[str] = []
  where = path
  for where, line in lines.texts(path):
    if not story and not line.strip():
      continue
    number, _, sentence = line.partition(' ')
    due = len(story) + 1
    if number != str(due):
      raise UsageError(
        f'{where}: begins with {number!r:.20}, and line {due} of a question is '
        'due; fetch the file again'
      )
    if due < _SENTENCES:
      story.append(sentence)
      continue
    fields = sentence.split('\t')
    if len(fields) < 4 or fields[0].split().count(_BLANK) != 1:
      raise UsageError(
        f'{where}: is not a sentence with one {_BLANK}, its answer and '
        'choices, separated by tabs; fetch the file again'
      )
    yield Record(
      where,
      {
        'story': ' '.join([*story, fields[0]]),
        'answer': fields[1],
        'choices': fields[3].split('|'),
      },
    )
    story = []
  if story:
    raise UsageError(
      f'{where}: ends within a question, of which {len(story)} of {_SENTENCES} '
      'lines are there; fetch the file again'
    )
