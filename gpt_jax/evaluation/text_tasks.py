# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks measured by the texts that a model writes: pairs, and GLUE as T5 does.

A task of GLUE is scored by greedy generation. An answer that is none of the
choices is wrong, and counts as T5's released code has it: as a class of its
own; where F1 is measured as the other one of two classes; for STS-B, where it
is no number of 0 to 5, as -1. `invalid` counts them.
"""

import functools
import itertools
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from gpt_jax.decoding.beam import PENALTIES, Beam
from gpt_jax.evaluation import results
from gpt_jax.evaluation.choices import Make
from gpt_jax.evaluation.files import TFDS
from gpt_jax.evaluation.journal import Journal
from gpt_jax.evaluation.results import Figures
from gpt_jax.evaluation.score import Scorer
from gpt_jax.evaluation.task import Setting, Task
from gpt_jax.files import lines
from gpt_jax.files.progress import Report
from gpt_jax.ranges import OneOf, Real, Whole
from gpt_jax.spec import UsageError
from gpt_jax.tasks import glue, metrics, text_to_text
from gpt_jax.tasks.metrics import OF_CLASSES, OF_SCORES
from gpt_jax.tasks.tasks import Task as Table
from gpt_jax.training.metrics import write_atomically

# Tasks of source texts, for each of which a model writes a text.


log = logging.getLogger('gpt_jax')

# Texts that the log shows.
_SHOWN = 3


class Example(NamedTuple):
  """What a model reads, and what it should write.

  Attributes:
    where: 'file:line'.
    source: read.
    target: to write.
    label: what the target says, where it is a label.
  """

  where: str
  source: str
  target: str
  label: Any = None


class Written(NamedTuple):
  """A task of examples for which a model writes.

  Attributes:
    examples: reads them, one or more.
    figures: computes results from examples and the texts written.
    targets: all that may be right, if nothing else may: a text that is longer
      need not be finished. (): anything may.
    max_tokens: of a text at most, where anything may be right; 0: see
      `Writer.asked`.
    beam: how to search for a text; None: each token is the most probable one.
  """

  examples: Callable[[], Sequence[Example]]
  figures: Callable[[Sequence[Example], Sequence[str]], Figures]
  targets: tuple[str, ...] = ()
  max_tokens: int = 0
  beam: Beam | None = None
  takes_shots = False
  takes_sources = True

  def texts(self) -> list[tuple[str, str]]:
    """Each source with its target, for overlap checks."""
    return [(e.where, f'{e.source}\n{e.target}') for e in self.examples()]

  def check(self, shots: int) -> None:
    """See `task.Task`."""
    assert not shots
    self.examples()

  def measure(
    self, scorer: Scorer, setting: Setting, journal: Journal, report: Report
  ) -> Figures:
    """See `task.Task`; `cut` counts sources that lost their last tokens."""
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
      log.info(
        'wrote %d texts in %.1f s, %.1f texts/s',
        *(new, seconds, new / seconds),
      )
    for example, text in itertools.islice(
      zip(examples, texts, strict=True), _SHOWN
    ):
      log.info(
        '%s\n  source:    %.200s\n  written:   %.200s\n  reference: %.200s',
        *(example.where, example.source, text, example.target),
      )
    if setting.outputs:
      _write(setting.outputs, examples, texts)

    def measured(numbers: Sequence[int]) -> Figures:
      return self.figures(
        [examples[n] for n in numbers], [texts[n] for n in numbers]
      )

    everything = range(len(examples))
    return {
      **measured(everything),
      'examples': len(examples),
      'cut': cut,
      **results.clean(everything, setting.seen, measured),
    }


def _write(path: str, examples: Sequence[Example], texts: Sequence[str]):
  """A JSON line for each example."""
  lines = [
    json.dumps(
      {
        'where': example.where,
        'source': example.source,
        'text': text,
        'reference': example.target,
      },
      ensure_ascii=False,
    )
    for example, text in zip(examples, texts, strict=True)
  ]
  os.makedirs(os.path.dirname(path), exist_ok=True)
  write_atomically(path, '\n'.join(lines) + '\n')
  log.info('wrote %s', path)


# How near written texts come to reference texts: BLEU, chrF, ROUGE, EM, F1.
#
# BLEU (Papineni et al., 2002) and chrF (Popovic, 2015) are sacreBLEU's (Post,
# 2018), of the whole corpus, 0 to 100: BLEU cased with the tokenizer 13a, as
# WMT reports it, and its signature says so. ROUGE (Lin, 2004) is the mean F of
# Google's rouge-score, without stemming; rougeL is of whole texts. Exact match
# and F1 are SQuAD's: see `data.answers`.


# From written texts, and as many references.
TextMetric = Callable[[Sequence[str], Sequence[str]], Figures]


def check(field: str, names: Sequence[str]) -> None:
  """Checks that all names are of `METRICS`, and that there is one."""
  for name in names or ['']:
    if name not in METRICS:
      raise UsageError(
        f'{field}={name!r}: no such metric; one or several of '
        + ', '.join(METRICS)
      )


def measure_texts(
  names: Sequence[str], texts: Sequence[str], references: Sequence[str]
) -> Figures:
  """Computes metrics of `METRICS` over a corpus.

  Args:
    names: of the metrics.
    texts: as written.
    references: one for each.

  Returns:
    Results by name; those that are means of texts have a standard error.
  """
  if len(texts) != len(references) or not texts:
    raise ValueError(f'{len(texts)} texts and {len(references)} references')
  found: Figures = {}
  for name in names:
    found |= METRICS[name](texts, references)
  return found


def signatures(names: Sequence[str]) -> dict[str, str]:
  """The signatures of sacreBLEU: what must agree for two scores to compare.

  They hold for one reference a text, which is what `measure` takes.
  """
  out = {}
  for name in names:
    if name in _CORPUS:
      metric = _CORPUS[name]()
      metric.corpus_score([''], [['']])  # which tells it the references
      out[name] = str(metric.get_signature())
  return out


def _corpus(
  name: str, texts: Sequence[str], references: Sequence[str]
) -> Figures:
  return {name: _CORPUS[name]().corpus_score([*texts], [[*references]]).score}


def _rouge(texts: Sequence[str], references: Sequence[str]) -> Figures:
  # It imports NLTK, which takes two seconds.
  from rouge_score import rouge_scorer

  names = ['rouge1', 'rouge2', 'rougeL']
  scorer: Any = rouge_scorer.RougeScorer(names, use_stemmer=False)
  scores = [
    scorer.score(reference, text)
    for text, reference in zip(texts, references, strict=True)
  ]
  found: Figures = {}
  for name in names:
    found |= results.mean(name, [score[name].fmeasure for score in scores])
  return found


def _mean(
  name: str,
  one: Callable[[str, Sequence[str]], float],
  texts: Sequence[str],
  references: Sequence[str],
) -> Figures:
  pairs = zip(texts, references, strict=True)
  return results.mean(name, [one(text, [right]) for text, right in pairs])


_CORPUS: dict[str, Callable[[], BLEU | CHRF]] = {'bleu': BLEU, 'chrf': CHRF}

METRICS: dict[str, TextMetric] = {
  **{name: functools.partial(_corpus, name) for name in _CORPUS},
  'rouge': _rouge,
  'exact_match': functools.partial(_mean, 'exact_match', metrics.exact_match),
  'f1': functools.partial(_mean, 'f1', metrics.words_f1),
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
  how = length_penalty, penalty, early_stopping, no_repeat_ngram, min_tokens
  searched = Beam(beam, *how) if beam else None
  names = [name.strip() for name in metrics.split(',')]
  check('seq2seq: metrics', names)

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
      found = measure_texts(names, texts, [e.target for e in examples])
      for name, signature in signatures(names).items():
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
  found = results.mean('accuracy', (said == labels).tolist())
  for metric in glue.TASKS[name]().metrics:
    if metric != 'accuracy':
      # F1 knows two classes alone.
      given = np.where(invalid, 1 - labels, said) if metric == 'f1' else said
      found[metric] = OF_CLASSES[metric](labels, given)
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
    metric: measure(labels, said) for metric, measure in OF_SCORES.items()
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
