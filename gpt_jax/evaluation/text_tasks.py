# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks measured by the texts that a model writes: pairs, and GLUE as T5 does.

A task of GLUE is scored by greedy generation. An answer that is none of the
choices is wrong, and counts as T5's released code has it: as a class of its
own; where F1 is measured as the other one of two classes; for STS-B, where it
is no number of 0 to 5, as -1. `invalid` counts them.
"""

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from gpt_jax.data import glue, label_metrics, lines, text_to_text
from gpt_jax.data.tasks import Task as Table
from gpt_jax.decoding.beam import PENALTIES, Beam
from gpt_jax.evaluation import figures, text_metrics
from gpt_jax.evaluation.figures import Figures
from gpt_jax.evaluation.files import TFDS
from gpt_jax.evaluation.making import Make
from gpt_jax.evaluation.task import Task
from gpt_jax.evaluation.written import Example, Written
from gpt_jax.ranges import Real, Whole
from gpt_jax.spec import UsageError


def seq2seq(
  path: str,
  reference: str,
  metrics: str = 'bleu, chrf',
  prefix: str = '',
  first: Whole = 0,
  max_tokens: Whole = 0,
  beam: Whole = 0,
  length_penalty: Real | None = None,
  penalty: str = 'length',
  early_stopping: bool | None = None,
  no_repeat_ngram: Whole | None = None,
  min_tokens: Whole | None = None,
) -> Make:
  """Texts for the lines of a file, against the lines of another.

  Args:
    path: of the sources, a line each, as is or compressed.
    reference: of as many lines.
    metrics: comma list of `text_metrics.METRICS`.
    prefix: put before each source, as T5's 'translate English to German: '.
    first: so many lines are measured; 0: all.
    max_tokens: written for a line at most; 0: 50 more than it has.
    beam: hypotheses that a beam search follows; 0: each token is the most
      probable one.
    length_penalty: see `decoding.beam.Beam`.
    penalty: likewise.
    early_stopping: likewise.
    no_repeat_ngram: likewise.
    min_tokens: likewise.
  """
  if penalty not in PENALTIES:
    raise UsageError(
      f'seq2seq: penalty={penalty!r}: unknown; one of ' + ', '.join(PENALTIES)
    )
  how = length_penalty, penalty, early_stopping, no_repeat_ngram, min_tokens
  searched = Beam(beam, *how) if beam else None
  names = [name.strip() for name in metrics.split(',')]
  text_metrics.check('seq2seq: metrics', names)

  def make(folder: str) -> Task:
    def examples() -> list[Example]:
      found = [_lines(folder, name) for name in (path, reference)]
      if len(found[0]) != len(found[1]):
        raise UsageError(
          f'{path} has {len(found[0])} lines and {reference} {len(found[1])}: '
          'line i of one must be that of the other; mend the files'
        )
      if not found[0]:
        raise UsageError(f'{path}: holds no line; name another file')
      pairs = [
        Example(where, prefix + source, target)
        for (where, source), (_, target) in zip(*found, strict=True)
      ]
      return pairs[: first or None]

    def measured(examples: Sequence[Example], texts: Sequence[str]) -> Figures:
      found = text_metrics.measure(names, texts, [e.target for e in examples])
      for name, signature in text_metrics.signatures(names).items():
        found[f'{name}_signature'] = signature
      return found

    return Written(examples, measured, max_tokens=max_tokens, beam=searched)

  return make


def with_files(
  tasks: str | None, source: str, reference: str, beam: Beam | None
) -> str:
  """The tasks of `evaluate`, with that of its files.

  Args:
    tasks: `--tasks`; None: it is not given.
    source: `--source`, or ''.
    reference: `--reference`, or ''.
    beam: how the texts of the source are searched for.

  Raises:
    UsageError: one file is given without the other.
  """
  if bool(source) != bool(reference):
    raise UsageError('--source and --reference go together; give both')
  if not source:
    return 'validation' if tasks is None else tasks
  # Unlike those of tasks these paths begin here.
  paths = [os.path.abspath(path) for path in (source, reference)]
  call = f'seq2seq({paths[0]!r}, {paths[1]!r}'
  if beam is not None:
    fields = beam._asdict()
    call += f', beam={fields.pop("size")}'
    for name, value in fields.items():
      if value != getattr(Beam(0), name):
        call += f', {name}={value!r}'
  call += ')'
  return f'{tasks}, {call}' if tasks else call


def of_glue(name: str) -> Callable[..., Make]:
  """A task of `text_to_text.FORMATS`."""

  def task(folder: str = glue.FOLDERS[name], split: str = 'dev') -> Make:
    # `folder` stands below the folder of all tasks, or below its glue/.
    def make(base: str) -> Task:
      def table() -> Table:
        if base == TFDS:
          return text_to_text.load(name, '')
        places = [os.path.join(base, x, folder) for x in ('', 'glue')]
        there = [place for place in places if os.path.isdir(place)]
        return text_to_text.load(name, (there or places)[0])

      def examples() -> list[Example]:
        pairs = text_to_text.pairs(name, table(), split)
        return [Example(*pair) for pair in pairs]

      if targets := text_to_text.FORMATS[name].targets:
        measured = functools.partial(_classes, name)
      else:
        measured = functools.partial(_scores, name)
        targets = tuple(f'{x / 5:.1f}' for x in range(26))
      return Written(examples, measured, targets)

    return make

  return task


def _classes(
  name: str, examples: Sequence[Example], texts: Sequence[str]
) -> Figures:
  """Accuracy, the task's own metrics, and the commonest answer's accuracy."""
  labels = np.array([e.label for e in examples])
  said = _said(name, texts)
  invalid = said == text_to_text.NOTHING
  found = figures.mean('accuracy', (said == labels).tolist())
  for metric in glue.TASKS[name]().metrics:
    if metric != 'accuracy':
      # F1 knows two classes alone.
      given = np.where(invalid, 1 - labels, said) if metric == 'f1' else said
      found[metric] = label_metrics.OF_CLASSES[metric](labels, given)
  (_, commonest), *_ = Counter(labels.tolist()).most_common(1)
  share = commonest / len(labels)
  return {**found, 'majority': share, 'invalid': int(invalid.sum())}


def _scores(
  name: str, examples: Sequence[Example], texts: Sequence[str]
) -> Figures:
  """The task's correlations with the similarities before rounding."""
  labels = np.array([e.label for e in examples])
  said = _said(name, texts)
  found: Figures = {
    metric: measure(labels, said)
    for metric, measure in label_metrics.OF_SCORES.items()
  }
  return {**found, 'invalid': int((said == text_to_text.NOTHING).sum())}


def _said(name: str, texts: Sequence[str]) -> np.ndarray:
  """What the texts say, [N]."""
  found = [text_to_text.label_of(name, text) for text in texts]
  return np.array([text_to_text.NOTHING if x is None else x for x in found])


def _lines(folder: str, path: str) -> list[tuple[str, str]]:
  """'file:line' and text of each line, blank ones too."""
  path = os.path.join('' if folder == TFDS else folder, path)
  return [*lines.texts(path)]


TASKS: dict[str, Callable[..., Make]] = {
  'seq2seq': seq2seq,
  **{name: of_glue(name) for name in text_to_text.FORMATS},
}
