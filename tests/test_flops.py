# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""FLOPs, peaks and MFU. Parameter counts: see test_configs.py."""

import types

import jax
import pytest
import tiny

from gpt_jax import flops


@pytest.mark.parametrize(
  'kind, peak',
  [
    ('TPU v4', 275e12),
    ('TPU v5 lite', 197e12),  # not TPU v5, of which it is a longer name
    ('TPU v5', 459e12),
    ('TPU v5p', 459e12),
    ('TPU v6 lite', 918e12),
    ('NVIDIA H100 80GB HBM3', 989e12),
    ('NVIDIA A100-SXM4-40GB', 312e12),
  ],
)
def test_peak_of_known_devices(kind, peak):
  device = types.SimpleNamespace(device_kind=kind, platform='tpu')
  found, source = flops.peak(device)
  assert found == peak
  assert kind in source


def test_peak_of_a_cpu_is_measured(monkeypatch):
  """Eight virtual devices share what one product was measured at."""
  monkeypatch.setattr(flops, 'measure_matmul', lambda device, dtype: 0.5)
  found, source = flops.peak(jax.devices()[0])
  assert found == 2 * 2048**3 / 0.5 / 8
  assert 'measured' in source


def test_mfu():
  assert flops.mfu(1000.0, 6e9, 4 * 3e12) == pytest.approx(0.5)


@pytest.mark.parametrize('output', ['tied', 'untied'])
def test_matmul_parameters(output):
  """The output table counts once; looking up a token is not a product."""
  model = tiny.model(output=output)
  config = tiny.config(**{'model.output': output})
  D, H, G, K, F, V = (tiny.D, tiny.H, tiny.G, tiny.K, tiny.F, tiny.V)
  layer = D * H * K + 2 * D * G * K + H * K * D + 2 * D * F
  expected = 5 * layer + V * D
  assert flops.matmul_parameters(config, tiny.params(model)) == expected
  per_token = flops.per_token(config, tiny.params(model))
  assert per_token == 6 * expected + 12 * 5 * H * K * 13
  causal = flops.per_token_causal(config, tiny.params(model))
  assert causal == 6 * expected + 6 * 5 * H * K * 13


def test_parameter_table_of_real_and_abstract_parameters():
  model = tiny.model()
  real = flops.parameter_table(tiny.params(model))
  assert real['embed/embedding'] == (tiny.V, tiny.D)
  assert real['decoder/periods/block_0/ffn/in/kernel'] == (5, tiny.D, tiny.F)
  boxed = jax.eval_shape(model.init, jax.random.key(0), tiny.tokens(1, 1))[
    'params'
  ]
  assert flops.parameter_table(boxed) == real
