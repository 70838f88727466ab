# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`benchmark --what products`: what decoding multiplies, and nothing else."""

import json
import pathlib

import pytest

from configs import benchmark, t5
from gpt_jax.__main__ import main
from gpt_jax.benchmarks import decode
from gpt_jax.core import config as config_lib

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'


def _kernels(size):
  return decode.kernels(config_lib.resolve(benchmark.get_config(size)))


def test_smollm2():
  """30 layers of 576, nine heads that share three, SwiGLU of 1,536."""
  assert _kernels('smollm2-135m') == {
    (192, 576): 60,
    (576, 576): 60,
    (1536, 576): 60,
    (576, 1536): 30,
    (49152, 576): 1,
  }


def test_no_parameter_is_left_out():
  """GPT-2 small at a vocabulary of 50,257 (Radford et al., 2019)."""
  shapes = _kernels('gpt2')
  found = sum(count * F * D for (F, D), count in shapes.items())
  biases = 12 * (4 * 768 + 3072 + 768)
  norms = (2 * 12 + 1) * 2 * 768
  assert found + biases + norms == 124_439_808 - 1024 * 768


def test_an_encoders_output_is_multiplied_once():
  """T5 v1.0 small: six layers, width 512, d_ff 2,048 (Raffel et al., 2019)."""
  config = t5.get_config('small')
  found = decode.kernels(config_lib.resolve(config))
  # Self-attention has four kernels, and cross-attention two for each token.
  ffn = {(2048, 512): 6, (512, 2048): 6}
  assert found == {(32_128, 512): 1, (512, 512): 6 * 6, **ffn}


def test_rates(capsys):
  flags = [
    f'--config={CONFIGS}/benchmark.py:gpt2',
    '--config.model.num_layers=1',
    '--config.model.d_model=24',
    '--config.model.num_heads=3',
    '--config.model.vocab_size=97',
    '--what=products',
    '--batches=1,3',
    '--steps=1',
  ]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(decode, '_MOST', 2)
    assert main(['benchmark', *flags, '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(['benchmark', *flags]) == 0
  assert '1 of [24, 97]: ' in capsys.readouterr().out
  assert [batch['rows'] for batch in found['batches']] == [1, 3]
  for batch in found['batches']:
    assert batch['seconds'] > 0
    for x in batch['products']:
      size = 4 * x['features'] * x['d']
      assert x['bytes_per_second'] * x['seconds'] == pytest.approx(size)
      ratio = x['flops_per_second'] / x['bytes_per_second']
      assert ratio == pytest.approx(batch['rows'] / 2)
