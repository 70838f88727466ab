# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Written texts against references: recorded scores, and counted by hand."""

import json
import math

import numpy as np
import pytest

from gpt_jax.evaluation import text_tasks
from gpt_jax.spec import UsageError
from tests.support.golden_io import ROOT


def recorded():
  """The texts, the references and what the libraries' own tools gave."""
  pairs = json.loads((ROOT / 'metrics/pairs.json').read_text())
  with np.load(ROOT / 'metrics/golden.npz') as arrays:
    golden = {name: arrays[name] for name in arrays.files}
  return *([p[k] for p in pairs] for k in ('hypothesis', 'reference')), golden


def test_as_recorded():
  texts, references, golden = recorded()
  found = text_tasks.measure_texts(['bleu', 'chrf', 'rouge'], texts, references)
  for name, of in (('bleu', 'bleu_13a'), ('chrf', 'chrf')):
    assert found[name] == pytest.approx(golden[f'{of}/out/corpus'], abs=1e-9)
  for name in ('rouge1', 'rouge2', 'rougeL'):
    each = golden[f'rouge/out/{name}'][:, 2]
    error = each.std(ddof=1) / math.sqrt(len(each))
    assert found[name] == pytest.approx(each.mean(), abs=1e-7)
    assert found[f'{name}_stderr'] == pytest.approx(error, abs=1e-7)


def test_signatures_are_those_recorded():
  assert text_tasks.signatures(['rouge', 'bleu', 'chrf']) == {
    'bleu': 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0',
    'chrf': 'nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0',
  }


def test_bleu_by_hand():
  # 14 words each, 10 of them, 5 pairs, 2 triples and 1 quadruple in common:
  # (10/14 5/13 2/12 1/11)^(1/4) = 0.25400, and nothing for brevity.
  text = (
    '빛이 썩는 노인은 완벽한 어두운곳에서 잠든 사람과 비교할 때 강박증이 '
    '심해질 기회가 훨씬 높았다'
  )
  reference = (
    '빛이 썩는 사람은 완벽한 어둠에서 잠든 사람과 비교할 때 우울증이 '
    '심해질 가능성이 훨씬 높았다'
  )
  found = text_tasks.measure_texts(['bleu'], [text], [reference])
  by_hand = (10 / 14 * 5 / 13 * 2 / 12 * 1 / 11) ** 0.25
  assert found['bleu'] == pytest.approx(100 * by_hand)
  assert found['bleu'] == pytest.approx(25.400, abs=5e-4)


def test_words_of_answers_as_squad_does():
  found = text_tasks.measure_texts(
    ['exact_match', 'f1'], ['The cat!', 'a b', 'x'], ['cat', 'b c', 'y']
  )
  # 'a' is an article: of 'b' against 'b c' F1 is 2 * 1 / (1 + 2).
  assert found['exact_match'] == pytest.approx(1 / 3)
  assert found['f1'] == pytest.approx((1 + 2 / 3) / 3)


@pytest.mark.parametrize('names', [['bleu', 'blue'], []])
def test_unknown_metric(names):
  with pytest.raises(UsageError, match='one or several of bleu, chrf, rouge'):
    text_tasks.check('metrics', names)
