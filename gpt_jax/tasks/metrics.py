# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Metrics of tasks: `METRICS`, by the kind of task; higher is better."""

import collections
import functools
import itertools
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epy

from gpt_jax.core.spec import Table, UsageError
from gpt_jax.tasks.task import Task

with epy.lazy_imports():
  import scipy.stats
  import sklearn.metrics

# Neither is typed well enough for a type checker.
stats: Any = scipy.stats
sk: Any = sklearn.metrics

# Classes and scores: labels and predictions, each [N].


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
  """The fraction of correct predictions."""
  return float(sk.accuracy_score(labels, predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
  """F1 of class 1."""
  return float(sk.f1_score(labels, predictions, pos_label=1, zero_division=0))


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
  """The mean of the classes' F1."""
  found = sk.f1_score(labels, predictions, average='macro', zero_division=0)
  return float(found)


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Matthews' correlation coefficient of classes."""
  return float(sk.matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Pearson's correlation; 0 with a constant."""
  if _constant(labels, predictions):
    return 0.0
  return float(stats.pearsonr(labels, predictions)[0])


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Spearman's rank correlation; 0 with a constant."""
  if _constant(labels, predictions):
    return 0.0
  return float(stats.spearmanr(labels, predictions)[0])


def _constant(labels: np.ndarray, predictions: np.ndarray) -> bool:
  """Whether either is constant, so that the correlation is undefined."""
  return any(np.ptp(x) == 0 for x in (labels, predictions))


# Answers, compared as SQuAD's evaluation does (Rajpurkar et al., 2016).

_ARTICLES = re.compile(r'\b(a|an|the)\b')
_PUNCTUATION = str.maketrans('', '', string.punctuation)


def normal(text: str) -> str:
  """Normalises case and spaces, and removes punctuation and articles."""
  text = text.lower().translate(_PUNCTUATION)
  return ' '.join(_ARTICLES.sub(' ', text).split())


def exact_match(answer: str, answers: Sequence[str]) -> bool:
  """Whether an answer equals an accepted one, both normalised."""
  return normal(answer) in {normal(x) for x in answers}


def words_f1(answer: str, answers: Sequence[str]) -> float:
  """The best F1 between an answer's words and those of an accepted answer.

  Two empty answers agree, as in SQuAD 2.0; an empty and another one do not.
  """
  return max(_f1(normal(answer).split(), normal(x).split()) for x in answers)


def _f1(said: list[str], right: list[str]) -> float:
  if not said or not right:
    return float(said == right)
  common = collections.Counter(said) & collections.Counter(right)
  count = sum(common.values())
  return 2 * count / (len(said) + len(right))


def _over_questions(one: Callable[[str, Sequence[str]], float]) -> Any:
  """Averages a metric of one answer over all questions."""

  def mean(labels: Any, predictions: Any) -> float:
    pairs = zip(predictions, labels, strict=True)
    return float(np.mean([one(said, known) for said, known in pairs]))

  return mean


# Tags, by their names in each sentence.

OUTSIDE = 'O'  # the tag of words outside entities
_ENTITY = re.compile('O$|[BIES]-')


def entities(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
  """The entities of a sentence: type, first word, exclusive last word.

  Tags are IOB or BIOES, where E- ends an entity and S- is one of a single word.
  As in CoNLL's evaluation, any tag but O begins an entity, except an I- or E-
  that follows a B- or I- of its type.
  """
  kind, start, last = '', 0, OUTSIDE
  for i, tag in enumerate([*tags, OUTSIDE]):
    prefix, _, name = tag.partition('-')
    inside = prefix in ('I', 'E') and last in ('B', 'I') and name == kind
    if kind and not inside:
      yield kind, start, i
    if not inside:
      kind, start = name, i
    last = prefix


def entities_f1(labels: Sequence[list[str]], predictions: Sequence[list[str]]) -> float:
  """F1 of entities; one is correct if its type and words are."""
  right = said = there = 0
  for known, found in zip(labels, predictions, strict=True):
    a, b = {*entities(known)}, {*entities(found)}
    right, there, said = right + len(a & b), there + len(a), said + len(b)
  return 2 * right / (there + said) if there + said else 0.0


def _of_words(labels: Any, predictions: Any) -> float:
  flat = (np.array([*itertools.chain(*x)]) for x in (labels, predictions))
  return accuracy(*flat)


# Generated texts, each against one reference. A metric gives one number for the
# corpus, or one for each text.
#
# BLEU (Papineni et al., 2002) and chrF (Popovic, 2015) are sacreBLEU's (Post,
# 2018), over the whole corpus, 0 to 100: BLEU is cased with the tokenizer 13a,
# as WMT reports it and its signature states. ROUGE (Lin, 2004) is the F1 of
# Google's rouge-score, without stemming; rougeL is over whole texts.

_CORPUS = Table({'bleu': 'sacrebleu.metrics.bleu:BLEU', 'chrf': 'sacrebleu.metrics.chrf:CHRF'})


def signatures(names: Sequence[str]) -> dict[str, str]:
  """SacreBLEU's signatures: scores are comparable only if these agree."""
  out = {}
  for name in names:
    if name in _CORPUS:
      metric = _CORPUS[name]()
      metric.corpus_score([''], [['']])  # one reference a text
      out[name] = str(metric.get_signature())
  return out


def _corpus(name: str, texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
  return {name: _CORPUS[name]().corpus_score([*texts], [[*references]]).score}


def _rouge(texts: Sequence[str], references: Sequence[str]) -> dict[str, list[float]]:
  # It imports NLTK, which takes two seconds.
  from rouge_score import rouge_scorer

  names = ['rouge1', 'rouge2', 'rougeL']
  scorer: Any = rouge_scorer.RougeScorer(names, use_stemmer=False)
  scores = [
    scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)
  ]
  return {name: [score[name].fmeasure for score in scores] for name in names}


def _each(
  name: str,
  one: Callable[[str, Sequence[str]], float],
  texts: Sequence[str],
  references: Sequence[str],
) -> dict[str, list[float]]:
  pairs = zip(texts, references, strict=True)
  return {name: [one(text, [right]) for text, right in pairs]}


METRICS: Mapping[str, dict[str, Callable[[Any, Any], Any]]] = {
  'classification': {'accuracy': accuracy, 'f1': f1, 'macro_f1': macro_f1, 'matthews': matthews},
  'choice': {'accuracy': accuracy},
  'regression': {'pearson': pearson, 'spearman': spearman},
  'target': {'accuracy': accuracy, 'exact_match': accuracy},
  'spans': {'f1': _over_questions(words_f1), 'exact_match': _over_questions(exact_match)},
  'tags': {'f1': entities_f1, 'accuracy': _of_words},
  'texts': {
    'bleu': functools.partial(_corpus, 'bleu'),
    'chrf': functools.partial(_corpus, 'chrf'),
    'rouge': _rouge,
    'exact_match': functools.partial(_each, 'exact_match', exact_match),
    'f1': functools.partial(_each, 'f1', words_f1),
  },
}


def check(task: Task, call: str) -> None:
  """Checks that the metrics of a task, with named classes, fit its kind."""
  classes = len(task.labels)
  if again := {n for n in task.labels if task.labels.count(n) > 1}:
    raise UsageError(
      f'finetune.task={call!r}: labels names {min(again)!r} more than once; name each class once'
    )
  fit, what = [*METRICS[task.kind]], task.kind
  if task.kind == 'classification' and classes != 2:
    fit.remove('f1')
    what = f'{classes} classes'
  if task.kind == 'tags' and (odd := [t for t in task.labels if not _ENTITY.match(t)]):
    fit.remove('f1')
    what = f'tags as {odd[0]!r}, which are not O, B-..., I-..., E-... or S-...'
  of_tasks = (of for kind, of in METRICS.items() if kind != 'texts')
  known = dict.fromkeys(itertools.chain(*of_tasks))
  for name in task.metrics:
    if name not in known:
      raise UsageError(
        f'finetune.task={call!r}: metric {name!r}: unknown; one of ' + ', '.join(known)
      )
    if name not in fit:
      raise UsageError(
        f'finetune.task={call!r}: metric {name!r}: does not measure {what}; '
        'one of ' + ', '.join(fit)
      )
