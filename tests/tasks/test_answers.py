# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Answers compared, against what SQuAD's published evaluation gave."""

import json

import numpy as np

from gpt_jax.tasks import metrics
from tests.support.golden_io import ROOT


def test_as_squad_compares_them():
  pairs = json.loads((ROOT / 'metrics/answers.json').read_text())
  with np.load(ROOT / 'metrics/golden.npz') as recorded:
    exact, f1 = (recorded[f'squad/out/{n}'] for n in ('exact_match', 'f1_v2'))
  assert [metrics.normal(p['prediction']) for p in pairs] == [
    p['normalised'] for p in pairs
  ]
  found = [(p['prediction'], p['answers']) for p in pairs]
  np.testing.assert_array_equal([metrics.exact_match(*x) for x in found], exact)
  np.testing.assert_allclose(
    [metrics.words_f1(*x) for x in found], f1, atol=1e-7
  )
