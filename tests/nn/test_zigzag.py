# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which device has which tokens of a row, and of which models."""

import numpy as np
import pytest

from configs import base
from gpt_jax import sharding
from gpt_jax.nn import layout
from gpt_jax.nn.build import zigzag, zigzag_places
from tests.support import tiny

RULES = sharding.parse_rules(base.get_config().mesh.rules)


def test_each_device_has_an_early_and_a_late_chunk():
  found = zigzag(12, 3)
  assert [*found] == [0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7]
  # Each query sees the keys up to its own: as many on each device.
  work = (found + 1).reshape(3, -1).sum(axis=1)
  assert [*work] == [26] * 3


@pytest.mark.parametrize(
  'changes, length',
  [
    ({'attention': 'local(window=3)'}, 8),
    ({'attention': 'bidirectional'}, 8),
    ({'attention_backend': 'ulysses'}, 8),
    ({'attention_backend': 'reference'}, 8),
    ({'num_encoder_layers': 1}, 8),
    ({'ffn': 'switch(num_experts=2)'}, 8),
    ({'dropout': 'rates(residual=0.1)'}, 8),
    ({}, 6),
  ],
)
def test_rows_in_order(changes, length):
  """Where all devices have as much to do, or drops go by the order."""
  with sharding.use(tiny.make_mesh(1, 1, 1, context=2), RULES):
    assert zigzag_places(tiny.model(**changes), length) is None


def test_rows_of_causal_models():
  model = tiny.model(attention='full, local(window=3)')
  assert zigzag_places(model, 8) is None  # on one device
  with sharding.use(tiny.make_mesh(1, 1, 2, context=2), RULES):
    np.testing.assert_array_equal(zigzag_places(model, 8), zigzag(8, 2))


@pytest.mark.parametrize(
  'changes, length, ordered',
  [
    ({}, 256, True),
    ({'position': 'alibi'}, 256, False),
    ({}, 200, False),
    ({'attention_backend': 'all_gather'}, 256, False),
    ({'num_heads': 3, 'num_kv_heads': 1}, 256, False),
  ],
)
def test_rows_that_splash_reads_stay_in_order(
  changes, length, ordered, monkeypatch
):
  fields = {'head_size': 64, 'context_length': 256, **changes}
  model = tiny.model(**fields)
  with sharding.use(tiny.make_mesh(1, 1, 1, context=2), RULES):
    assert zigzag_places(model, length) is not None
    monkeypatch.setattr(layout, 'platform', lambda: 'tpu')
    assert (zigzag_places(model, length) is None) == ordered
