# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks of one's own tables: the four forms of GPT-1 (figure 1), and pairs."""

import re

from gpt_jax.finetuning.tasks import Task


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
  'target': target,
}
