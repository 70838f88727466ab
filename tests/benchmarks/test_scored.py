# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What evaluation scores in a benchmark, and what decoding multiplies."""

import json
import pathlib

import pytest

from configs import benchmark, t5
from gpt_jax.__main__ import main
from gpt_jax.benchmarks import decode, score
from gpt_jax.core import config as config_lib
from tests.support import tiny

CONTEXT = 83


def config():
  changes = {'model.context_length': CONTEXT}
  return config_lib.resolve(tiny.config(**tiny.MESHABLE | changes))


def test_passages_are_as_long_as_lambadas():
  rows = score.passages(997, 101, CONTEXT)
  lengths = [row.length for row in rows]
  assert min(lengths) >= 24 and max(lengths) == CONTEXT
  assert 65 < sum(lengths) / len(lengths) < 75
  assert {row.num_scored for row in rows} == {1, 2, 3, 4}
  assert max(row.ids.max() for row in rows) == 100


def test_passages_are_scored():
  found = score.measure(config(), 11)
  assert found['passages'] == 11
  assert found['tokens'] == sum(row.length for row in score.passages(11, 48, CONTEXT))
  rate = found['ours']['passages_per_second']
  assert rate == pytest.approx(11 / found['ours']['seconds'])
  assert f'{rate:,.2f} passages/s' in score.report(found)


def test_sides_take_turns_until_they_have_worked_as_long():
  turns = []

  class Side:
    def __init__(self, name, step, total):
      self.name, self.step, self.total = name, step, total
      self.last = {'seconds': 0}

    def tell(self, line):
      turns.append(self.name)

    def answer(self):
      self.last['seconds'] += self.step
      if self.last['seconds'] >= self.total:
        self.last['log_probs'] = []

  sides = [Side('a', 5, 10), Side('b', 7, 28)]
  score._catch_up(sides, 13)
  assert ''.join(turns) == 'abab'
  score._catch_up(sides, 13)
  assert ''.join(turns) == 'abab'
  score._catch_up(sides, float('inf'))
  assert ''.join(turns) == 'ababbb'


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
    *tiny.flags(model=dict(num_layers=1, d_model=24, num_heads=3, vocab_size=97)),
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
