# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Configs that cannot be ejected are refused by the field; rates and rows are the package's."""

import numpy as np
import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.ejecting import parts
from tests.support import ejected

GPT2 = 'configs/gpt2.py:small'
REFUSED = {
  'configs/gpt1.py:cpu': ('optim.name', {}),
  'configs/gopher.py:280b': ('optim.precision', {}),
  'configs/albert.py:base': ('model.share', {}),
  'configs/electra.py:small': ('models', {}),
  'configs/bigbird.py:base': ('objective.name', {}),
  'configs/deberta.py:base': ('data.rows', {}),
  'configs/smoke.py': ('model.vocab_size', {}),
  'rows': ('data.rows', {'data.rows': 'full_sentences', 'objective.name': 'masked'}),
  'alibi': ('model.num_heads', {'model.position': 'alibi'}),
  'slopes': ('model.position', {'model.position': "alibi(scale='rsqrt')"}),
  'pattern': ('model.attention', {'model.attention': 'local(window=7), full'}),
  'matmul': ('model.matmul', {'model.matmul': 'int8'}),
  'sandwich': ('model.block', {'model.block': 'sandwich'}),
  'norms': ('model.block', {'model.block': "pre(qk_norm='per_head')"}),
  'softcap': ('model.output', {'model.output': 'tied(softcap=30.0)'}),
  'ema': ('optim.ema', {'optim.ema': 'ema(decay=0.99)'}),
  'wsd': ('schedule.name', {'schedule.name': 'wsd(peak=1e-3, cooldown=100)'}),
  'zstd': ('data.compression', {'data.compression': 'zstd'}),
  'exact': ('batch.exact_over', {'batch.exact_over': 8}),
  'lion': ('optim.name', {'optim.name': 'lion'}),
}


@pytest.mark.parametrize('case', REFUSED)
def test_refused_by_the_field(case):
  field, changes = REFUSED[case]
  if case == 'rows':
    changes = {**changes, 'model.attention': 'bidirectional', 'data.sentences': 'terminal'}
  config = ejected.config_of(case if '/' in case else GPT2, **changes)
  with pytest.raises(UsageError, match=f'^{field}'):
    parts.of(config)


SCHEDULES = {
  'cosine(peak=3e-4, warmup=7, final=0.1)': 512,
  "cosine(peak=3e-4, warmup='9k_tokens', final=0.1, decay='40k_tokens')": 'ramp(0:3, 5k_tokens:8)',
  "cosine(peak=3e-4, warmup=7, final=0.1, decay='40k_tokens')": 'ramp(0:3, 5k_tokens:8)',
  'linear(peak=3e-4, warmup=7, final=0.0)': 4,
  'rsqrt(peak=1e-2, hold=13)': 'ramp(0:3, 11_steps:5, 17_steps:7)',
  'noam(d_model=768, warmup=11)': 4,
}


@pytest.mark.parametrize('name', SCHEDULES)
def test_rates_and_rows_are_the_packages(name):
  config = ejected.config_of(
    GPT2,
    **{
      'schedule.name': name,
      'schedule.num_steps': 61,
      'batch.size': SCHEDULES[name],
      'batch.micro_rows': 1,
      'model.context_length': 101,
    },
  )
  module = ejected.module_of(config)
  ramp, schedule = config_lib.ramp(config), config_lib.schedule(config)
  (rate,) = {'cosine', 'linear', 'inverse_sqrt', 'noam'} & vars(module).keys()
  (shape,) = {'even_batch', 'ramped_batch'} & vars(module).keys()
  for step in range(61):
    np.testing.assert_allclose(vars(module)[rate](step), schedule(step), rtol=2e-6)
    rows, length, before, tokens = vars(module)[shape](step)
    assert (before, rows, length, -(-tokens // length)) == ramp.batch(step)


def test_rows_at_once_divide_all_batches():
  given = {'batch.size': 'ramp(0:12, 5_steps:30)', 'model.context_length': 1024}
  assert parts.of(ejected.config_of(GPT2, **given)).constants['MICRO_ROWS'] == 6
  given['batch.micro_rows'] = 5
  assert parts.of(ejected.config_of(GPT2, **given)).constants['MICRO_ROWS'] == 3
  given['batch.micro_rows'] = 0
  assert parts.of(ejected.config_of(GPT2, **given)).constants['MICRO_ROWS'] == 6


def test_rows_at_once_are_whole_groups_of_experts():
  """Of 8 rows of 512 tokens in the encoder, and 64 of 114 in the decoder."""
  given = parts.of(ejected.config_of('configs/switch.py:t5-base-128')).constants
  assert (given['GROUP_SIZE'], given['DECODER_GROUP_SIZE']) == (8 * 512, 64 * 114)
  assert given['MICRO_ROWS'] == 64
