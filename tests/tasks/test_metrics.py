# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Metrics: recorded scores of the papers' own tools, and counted by hand; groups."""

import json

import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.tasks import metrics
from gpt_jax.tasks.metrics import METRICS
from gpt_jax.tasks.registry import TUNED
from gpt_jax.tasks.task import read
from tests.support.golden_io import ROOT


def test_as_squad_compares_them():
  pairs = json.loads((ROOT / 'metrics/answers.json').read_text())
  with np.load(ROOT / 'metrics/golden.npz') as recorded:
    exact, f1 = (recorded[f'squad/out/{n}'] for n in ('exact_match', 'f1_v2'))
  assert [metrics.normal(p['prediction']) for p in pairs] == [p['normalised'] for p in pairs]
  found = [(p['prediction'], p['answers']) for p in pairs]
  np.testing.assert_array_equal([metrics.exact_match(*x) for x in found], exact)
  np.testing.assert_allclose([metrics.words_f1(*x) for x in found], f1, atol=1e-7)


def recorded():
  """The texts, the references and what the libraries' own tools gave."""
  pairs = json.loads((ROOT / 'metrics/pairs.json').read_text())
  with np.load(ROOT / 'metrics/golden.npz') as arrays:
    golden = {name: arrays[name] for name in arrays.files}
  return *([p[k] for p in pairs] for k in ('hypothesis', 'reference')), golden


def test_as_recorded():
  texts, references, golden = recorded()
  found = {}
  for name in ('bleu', 'chrf', 'rouge'):
    found |= METRICS['texts'][name](texts, references)
  for name, of in (('bleu', 'bleu_13a'), ('chrf', 'chrf')):
    assert found[name] == pytest.approx(golden[f'{of}/out/corpus'], abs=1e-9)
  for name in ('rouge1', 'rouge2', 'rougeL'):
    each = golden[f'rouge/out/{name}'][:, 2]
    assert found[name] == pytest.approx(each, abs=1e-7)


def test_signatures_are_those_recorded():
  assert metrics.signatures(['rouge', 'bleu', 'chrf']) == {
    'bleu': 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0',
    'chrf': 'nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0',
  }


def test_bleu_by_hand():
  # 14 words each, 10 of them, 5 pairs, 2 triples and 1 quadruple in common:
  # (10/14 5/13 2/12 1/11)^(1/4) = 0.25400, and nothing for brevity.
  text = (
    '빛이 썩는 노인은 완벽한 어두운곳에서 잠든 사람과 비교할 때 강박증이 심해질 기회가 훨씬 높았다'
  )
  reference = (
    '빛이 썩는 사람은 완벽한 어둠에서 잠든 사람과 비교할 때 우울증이 심해질 가능성이 훨씬 높았다'
  )
  found = METRICS['texts']['bleu']([text], [reference])
  by_hand = (10 / 14 * 5 / 13 * 2 / 12 * 1 / 11) ** 0.25
  assert found['bleu'] == pytest.approx(100 * by_hand)
  assert found['bleu'] == pytest.approx(25.400, abs=5e-4)


def test_words_of_answers_as_squad_does():
  pairs = ['The cat!', 'a b', 'x'], ['cat', 'b c', 'y']
  # 'a' is an article: of 'b' against 'b c' F1 is 2 * 1 / (1 + 2).
  assert METRICS['texts']['exact_match'](*pairs) == {'exact_match': [1, 0, 0]}
  assert METRICS['texts']['f1'](*pairs)['f1'] == pytest.approx([1, 2 / 3, 0])


# Of q1 two right and three wrong, of q2 one and one; q3 has no right one, q4
# no wrong one.
TABLE = """question\tsentence\tlabel
q1\ta\tnot_entailment
q1\tb\tentailment
q2\tc\tentailment
q1\td\tnot_entailment
q3\te\tnot_entailment
q1\tf\tentailment
q2\tg\tnot_entailment
q4\th\tentailment
q1\ti\tnot_entailment
"""


def groups(folder, call):
  for split in ('train', 'dev', 'test'):
    (folder / f'{split}.tsv').write_text(TABLE)
  task = spec.build('finetune.task', call, TUNED)
  assert [*task.paths] == ['train', 'dev']  # a group is made by its labels
  return [(e.texts, e.label) for e in read(task, 'dev')]


def test_each_right_candidate_stands_among_wrong_ones(tmp_path):
  """In the table's order, so that the first is not always the right one."""
  assert groups(tmp_path, f"qnli_ranking('{tmp_path}')") == [
    (('q1', 'a', 'b'), 1),
    (('q1', 'b', 'd'), 0),
    (('q1', 'b', 'i'), 0),
    (('q1', 'a', 'f'), 1),
    (('q1', 'd', 'f'), 1),
    (('q1', 'f', 'i'), 0),
    (('q2', 'c', 'g'), 0),
  ]
  wide = f"qnli_ranking('{tmp_path}', candidates=3)"
  assert groups(tmp_path, wide) == [(('q1', 'a', 'b', 'd'), 1), (('q1', 'a', 'd', 'f'), 2)]
