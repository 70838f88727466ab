# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How near written texts come to reference texts: BLEU, chrF, ROUGE, EM, F1.

BLEU (Papineni et al., 2002) and chrF (Popovic, 2015) are sacreBLEU's (Post,
2018), of the whole corpus, 0 to 100: BLEU cased with the tokenizer 13a, as WMT
reports it, and its signature says so. ROUGE (Lin, 2004) is the mean F of
Google's rouge-score, without stemming; rougeL is of whole texts. Exact match
and F1 are SQuAD's: see `data.answers`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from gpt_jax.data import answers
from gpt_jax.evaluation import figures
from gpt_jax.evaluation.figures import Figures
from gpt_jax.spec import UsageError

# From written texts, and as many references.
TextMetric = Callable[[Sequence[str], Sequence[str]], Figures]


def check(field: str, names: Sequence[str]) -> None:
  """Checks that all names are of `METRICS`, and that there is one.

  Raises:
    UsageError: one is not.
  """
  for name in names or ['']:
    if name not in METRICS:
      raise UsageError(
        f'{field}={name!r}: no such metric; one or several of '
        + ', '.join(METRICS)
      )


def measure(
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
    found |= figures.mean(name, [score[name].fmeasure for score in scores])
  return found


def _mean(
  name: str,
  one: Callable[[str, Sequence[str]], float],
  texts: Sequence[str],
  references: Sequence[str],
) -> Figures:
  pairs = zip(texts, references, strict=True)
  return figures.mean(name, [one(text, [right]) for text, right in pairs])


_CORPUS: dict[str, Callable[[], BLEU | CHRF]] = {'bleu': BLEU, 'chrf': CHRF}

METRICS: dict[str, TextMetric] = {
  **{name: functools.partial(_corpus, name) for name in _CORPUS},
  'rouge': _rouge,
  'exact_match': functools.partial(_mean, 'exact_match', answers.exact_match),
  'f1': functools.partial(_mean, 'f1', answers.f1),
}
