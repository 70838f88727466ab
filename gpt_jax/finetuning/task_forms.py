# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks of one's own tables: the four forms of GPT-1 (figure 1), pairs, two of
BERT's (figure 4), spans and tags, and ranking (see there).
"""

import re

from gpt_jax.data.tasks import Task
from gpt_jax.finetuning import spans as spans_lib
from gpt_jax.finetuning import tags as tags_lib
from gpt_jax.finetuning.ranking import ranking
from gpt_jax.ranges import Count


def classification(
  train: str,
  dev: str,
  test: str = '',
  text: str = 'text',
  label: str = 'label',
  labels: str = '',
  regression: bool = False,
  metrics: str = '',
  columns: str = '',
) -> Task:
  """One text: start, text, extract.

  Args:
    train: a table; see `records`.
    dev: another, which judges.
    test: another, which gets predictions; '': none.
    text: a column or a template.
    label: a column.
    labels: comma list of the classes; '': those of the train split.
    regression: the label is a score.
    metrics: comma list; '': accuracy, or pearson and spearman of scores.
    columns: comma list of the columns, of a table that does not name them.
  """
  return Task(
    form='classification',
    paths=_paths(train=train, dev=dev, test=test),
    texts=(text,),
    label=label,
    labels=_names(labels),
    regression=regression,
    metrics=_metrics(metrics, regression=regression),
    columns=_names(columns),
  )


def entailment(
  train: str,
  dev: str,
  test: str = '',
  premise: str = 'premise',
  hypothesis: str = 'hypothesis',
  label: str = 'label',
  labels: str = '',
  regression: bool = False,
  metrics: str = '',
  columns: str = '',
) -> Task:
  """Two texts: start, premise, delimiter, hypothesis, extract."""
  return Task(
    form='entailment',
    paths=_paths(train=train, dev=dev, test=test),
    texts=(premise, hypothesis),
    label=label,
    labels=_names(labels),
    regression=regression,
    metrics=_metrics(metrics, regression=regression),
    columns=_names(columns),
  )


def similarity(
  train: str,
  dev: str,
  test: str = '',
  first: str = 'sentence1',
  second: str = 'sentence2',
  label: str = 'label',
  labels: str = '',
  regression: bool = False,
  metrics: str = '',
  columns: str = '',
) -> Task:
  """Two texts without an order: both orders, their activations added."""
  return Task(
    form='similarity',
    paths=_paths(train=train, dev=dev, test=test),
    texts=(first, second),
    label=label,
    labels=_names(labels),
    regression=regression,
    metrics=_metrics(metrics, regression=regression),
    columns=_names(columns),
  )


def choice(
  train: str,
  dev: str,
  test: str = '',
  context: str = 'context',
  answers: str = 'answers',
  label: str = 'label',
  labels: str = '',
  metrics: str = '',
  columns: str = '',
) -> Task:
  """One of several answers: start, context, delimiter, answer, extract each.

  Args:
    train: a table; dev and test too.
    dev: judges.
    test: gets predictions.
    context: a template, or a comma list of columns that follow each other;
      where it is too long each is cut by itself.
    answers: a column with a list, or a comma list of columns or of templates
      without commas.
    label: a column; which answer is right: 0 is the first, unless `labels` says
      otherwise.
    labels: comma list of what the column calls the answers: 'A, B, C, D'.
    metrics: comma list.
    columns: as above.
  """
  return Task(
    form='choice',
    paths=_paths(train=train, dev=dev, test=test),
    # A template may hold commas.
    texts=(context,) if '{' in context else _names(context),
    label=label,
    labels=_names(labels),
    answers=_names(answers),
    metrics=_metrics(metrics),
    columns=_names(columns),
  )


def target(
  train: str,
  dev: str,
  test: str = '',
  prompt: str = '{prompt}',
  target: str = '{target}',
  metrics: str = 'exact_match',
  columns: str = '',
) -> Task:
  """Prompt and target, with the loss on the target alone.

  Args:
    train: a table; dev and test too.
    dev: judges.
    test: gets predictions.
    prompt: a template: '{en} =' (GPT-2, section 3.7); '{context} RESPONSE', or
      '{context} RESPONSE {response} {attribute}' (LaMDA, section 6).
    target: a template, with the space before it: ' {de}'.
    metrics: comma list.
    columns: as above.
  """
  return Task(
    form='target',
    paths=_paths(train=train, dev=dev, test=test),
    texts=(prompt, target),
    label='',
    metrics=_metrics(metrics),
    columns=_names(columns),
  )


def spans(
  train: str,
  dev: str,
  test: str = '',
  question: str = 'question',
  context: str = 'context',
  answers: str = 'answers',
  empty: bool = False,
  stride: Count = 128,
  max_question: Count = 64,
  max_answer: Count = 30,
  null_threshold: float = 0.0,
  metrics: str = 'f1, exact_match',
  columns: str = '',
) -> Task:
  """An answer that is a part of a text.

  Args:
    train: a table, or SQuAD's JSON; dev and test too.
    dev: judges.
    test: gets predictions.
    question: a column or a template.
    context: another, of the text.
    answers: a column with a list of objects with `text` and `answer_start`,
      the character where it begins; the first is learned, each is accepted.
    empty: whether there may be no answer, as in SQuAD 2.0: an empty list.
    stride: tokens from the beginning of a window to the next, where a text is
      longer than a row.
    max_question: tokens of a question, which is cut there.
    max_answer: tokens of an answer.
    null_threshold: how much more than the best span no answer must score.
    metrics: comma list; the first judges.
    columns: as above.
  """
  return Task(
    form='spans',
    paths=_paths(train=train, dev=dev, test=test),
    texts=(question, context),
    label=answers,
    metrics=_metrics(metrics),
    columns=_names(columns),
    example=spans_lib.example,
    options=spans_lib.Options(
      stride, max_question, max_answer, empty, null_threshold
    ),
  )


def tags(
  train: str,
  dev: str,
  test: str = '',
  words: str = 'words',
  tags: str = 'tags',
  labels: str = '',
  metrics: str = 'f1, accuracy',
) -> Task:
  """A tag for each word.

  Args:
    train: a .jsonl, or a .conll with a word a line, its tag in the last column
      and blank lines between sentences; dev and test too.
    dev: judges.
    test: gets predictions.
    words: a column with a list.
    tags: another; of a .conll also '1', '2', ...: the columns after the words.
    labels: comma list of the tags; '': those of the train split.
    metrics: comma list; f1 is that of entities, of tags B-... and I-....
  """
  return Task(
    form='tags',
    paths=_paths(train=train, dev=dev, test=test),
    texts=(words,),
    label=tags,
    labels=_names(labels),
    metrics=_metrics(metrics),
    example=tags_lib.example,
  )


def _paths(**tables: str) -> dict[str, str]:
  """The tables that are there, by split."""
  return {split: path for split, path in tables.items() if path}


def _metrics(text: str, *, regression: bool = False) -> tuple[str, ...]:
  """Those of a comma list, or what suits the labels."""
  default = ('pearson', 'spearman') if regression else ('accuracy',)
  return _names(text) or default


def _names(text: str) -> tuple[str, ...]:
  """The parts of a comma list."""
  return tuple(x.strip() for x in re.split(r',\s*', text) if x.strip())


FORMS = {
  'classification': classification,
  'entailment': entailment,
  'similarity': similarity,
  'choice': choice,
  'ranking': ranking,
  'target': target,
  'spans': spans,
  'tags': tags,
}
