# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks measured by the texts that a model generates.

GLUE is text to text, as in T5, with greedy generation. An answer that is none
of the choices is wrong, and counts as in T5's released code: as a class of its
own; for F1, as the other one of two classes; for STS-B as -1 if it is no
number, and here also outside 0 to 5. `invalid` counts such answers.
"""

import functools
import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from gpt_jax.core.files import lines
from gpt_jax.core.files.progress import Report
from gpt_jax.core.ranges import OneOf, Real, Whole
from gpt_jax.core.spec import UsageError
from gpt_jax.decoding.settings import PENALTIES, BeamSettings
from gpt_jax.evaluation import figures, questions
from gpt_jax.evaluation.figures import Figures, Make, MeasuredTask, Setting
from gpt_jax.evaluation.score import Journal, Scorer
from gpt_jax.tasks import glue
from gpt_jax.tasks.files import TFDS
from gpt_jax.tasks.metrics import METRICS, signatures
from gpt_jax.tasks.task import TextPair

log = logging.getLogger('gpt_jax')

# Examples that the log shows.
_SHOWN = 3


class Generated(NamedTuple):
  """A task of source texts, for each of which a model generates a text."""

  examples: Callable[[], Sequence[TextPair]]  # reads the examples, at least one
  # Computes results from examples and generated texts.
  figures: Callable[[Sequence[TextPair], Sequence[str]], Figures]
  # All answers that may be right, which limit the length; (): any text may be
  # right.
  targets: tuple[str, ...] = ()
  # The most tokens of a text if there are no `targets`; 0: see
  # `Scorer.source_request`.
  max_tokens: int = 0
  beam: BeamSettings | None = None  # how to search for a text; None: greedy
  takes_shots = False
  takes_sources = True

  def texts(self) -> list[tuple[str, str]]:
    """Each source with its target, for overlap checks."""
    return [(e.where, f'{e.source}\n{e.target}') for e in self.examples()]

  def check(self, shots: int) -> None:
    """See `figures.MeasuredTask`."""
    assert not shots
    self.examples()

  def measure(self, scorer: Scorer, setting: Setting, journal: Journal, report: Report) -> Figures:
    """See `MeasuredTask`; `cut` counts sources that lost their last tokens."""
    examples = self.examples()[: setting.limit]
    most = self.max_tokens
    if self.targets:
      encode = scorer.tokenizer.encode
      most = 1 + max(len(encode(text)) for text in self.targets)
    started = time.perf_counter()
    sources = [e.source for e in examples]
    texts, cut, new = scorer.texts(sources, most, journal, report, self.beam)
    seconds = time.perf_counter() - started
    if new:
      log.info('wrote %d texts in %.1f s, %.1f texts/s', new, seconds, new / seconds)
    for example, text in itertools.islice(zip(examples, texts, strict=True), _SHOWN):
      log.info('%s', example.where)
      log.info('  source:    %.200s', example.source)
      log.info('  written:   %.200s', text)
      log.info('  reference: %.200s', example.target)
    if setting.outputs:
      figures.write_outputs(
        setting.outputs,
        (
          {
            'where': example.where,
            'source': example.source,
            'text': text,
            'reference': example.target,
          }
          for example, text in zip(examples, texts, strict=True)
        ),
      )
      log.info('wrote %s', setting.outputs)

    def measured(numbers: Sequence[int]) -> Figures:
      return self.figures([examples[n] for n in numbers], [texts[n] for n in numbers])

    everything = range(len(examples))
    return {
      **measured(everything),
      'examples': len(examples),
      'cut': cut,
      **figures.clean(everything, setting.seen, measured),
    }


def seq2seq(
  path: str,
  reference: str,
  metrics: str = 'bleu, chrf',
  prefix: str = '',
  first: Whole = 0,
  max_tokens: Whole = 0,
  beam: Whole = 0,
  length_penalty: Real | None = None,
  penalty: Annotated[str, OneOf((*PENALTIES,))] = 'length',
  early_stopping: bool | None = None,
  no_repeat_ngram: Whole | None = None,
  min_tokens: Whole | None = None,
) -> Make:
  """Texts generated for the lines of a file, against the lines of another.

  The last five arguments are those of `decoding.beam.Beam`.

  Args:
    path: of the sources, one a line, maybe compressed.
    reference: file with as many lines.
    metrics: comma list of `METRICS['texts']`.
    prefix: put before each source, as T5's 'translate English to German: '.
    first: measure this many lines; 0: all.
    max_tokens: the most tokens of a text; 0: 50 more than the source has.
    beam: hypotheses of a beam search; 0: greedy.
  """
  how = length_penalty, penalty, early_stopping, no_repeat_ngram, min_tokens
  searched = BeamSettings(beam, *how) if beam else None
  names = [name.strip() for name in metrics.split(',')]
  for name in names:
    if name not in METRICS['texts']:
      raise UsageError(
        f'seq2seq: metrics={name!r}: no such metric; one or several of '
        + ', '.join(METRICS['texts'])
      )

  def make(folder: str) -> MeasuredTask:
    def examples() -> list[TextPair]:
      found = [_lines(folder, name) for name in (path, reference)]
      if len(found[0]) != len(found[1]):
        raise UsageError(
          f'{path} has {len(found[0])} lines and {reference} {len(found[1])}: '
          'line i of one must be that of the other; mend the files'
        )
      if not found[0]:
        raise UsageError(f'{path}: holds no line; name another file')
      pairs = [
        TextPair(where, prefix + source, target)
        for (where, source), (_, target) in zip(*found, strict=True)
      ]
      return pairs[: first or None]

    def measured(examples: Sequence[TextPair], texts: Sequence[str]) -> Figures:
      references, found = [e.target for e in examples], {}
      for name in names:
        for key, x in METRICS['texts'][name](texts, references).items():
          each = isinstance(x, list)
          found |= figures.mean(key, x) if each else {key: x}
      for name, signature in signatures(names).items():
        found[f'{name}_signature'] = signature
      return found

    return Generated(examples, measured, max_tokens=max_tokens, beam=searched)

  return make


def with_files(tasks: str | None, source: str, reference: str, beam: BeamSettings | None) -> str:
  """The tasks of `evaluate`, including the one of --source and --reference.

  Args:
    tasks: `--tasks`; None if it is not given.
    beam: how to search for the texts of --source.
  """
  if bool(source) != bool(reference):
    raise UsageError('--source and --reference go together; give both')
  if not source:
    return 'validation' if tasks is None else tasks
  # Relative to the current folder, unlike the paths of tasks.
  paths = [os.path.abspath(path) for path in (source, reference)]
  call = f'seq2seq({paths[0]!r}, {paths[1]!r}'
  if beam is not None:
    fields = beam._asdict()
    call += f', beam={fields.pop("size")}'
    for name, value in fields.items():
      if value != getattr(BeamSettings(0), name):
        call += f', {name}={value!r}'
  call += ')'
  return f'{tasks}, {call}' if tasks else call


def of_glue(name: str) -> Callable[..., Make]:
  """A task of `GLUE`."""

  def task(folder: str = glue.GLUE[name].folder, split: str = 'dev') -> Make:
    # `folder` stands below the folder of all tasks, or below its glue/.
    def make(base: str) -> MeasuredTask:
      def examples() -> list[TextPair]:
        return [*glue.pairs(name, glue.find(name, base, folder), split)]

      if targets := glue.GLUE[name].targets:
        measured = functools.partial(_classes, name)
      else:
        measured = functools.partial(_scores, name)
        targets = tuple(f'{x / 5:.1f}' for x in range(26))
      return Generated(examples, measured, targets)

    return make

  return task


def _classes(name: str, examples: Sequence[TextPair], texts: Sequence[str]) -> Figures:
  """Accuracy, the task's metrics, and the accuracy of the commonest label."""
  labels = np.array([e.label for e in examples])
  said = _said(name, texts)
  invalid = said == glue.NOTHING
  found = figures.mean('accuracy', (said == labels).tolist())
  for metric in glue.GLUE[name].task.metrics:
    if metric != 'accuracy':
      # F1 takes two classes alone.
      given = np.where(invalid, 1 - labels, said) if metric == 'f1' else said
      found[metric] = METRICS['classification'][metric](labels, given)
  (_, commonest), *_ = Counter(labels.tolist()).most_common(1)
  share = commonest / len(labels)
  return {**found, 'majority': share, 'invalid': int(invalid.sum())}


def _scores(name: str, examples: Sequence[TextPair], texts: Sequence[str]) -> Figures:
  """The task's correlations with the similarities before rounding."""
  labels = np.array([e.label for e in examples])
  said = _said(name, texts)
  found: Figures = {
    metric: measure(labels, said) for metric, measure in METRICS['regression'].items()
  }
  return {**found, 'invalid': int((said == glue.NOTHING).sum())}


def _said(name: str, texts: Sequence[str]) -> np.ndarray:
  """The labels that texts name, [N]."""
  found = [glue.label_of(name, text) for text in texts]
  return np.array([glue.NOTHING if x is None else x for x in found])


def _lines(folder: str, path: str) -> list[tuple[str, str]]:
  """'file:line' and text of each line, including blank ones."""
  path = os.path.join('' if folder == TFDS else folder, path)
  return [*lines.texts(path)]


TASKS: dict[str, Callable[..., Make]] = {
  'qa': questions.qa,
  'gsm8k': questions.gsm8k,
  'seq2seq': seq2seq,
  **{name: of_glue(name) for name in glue.GLUE},
}
