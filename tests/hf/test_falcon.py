# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Falcon's options and its fused matrices, both ways."""

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.hf.base import Options
from gpt_jax.hf.gpt import FALCON
from gpt_jax.spec import UsageError
from tests.support import tiny

CONFIG = {
  'vocab_size': 23,
  'hidden_size': 24,
  'num_attention_heads': 6,
  'num_hidden_layers': 3,
}
ALIBI = "alibi(scale='rsqrt', dtype='bfloat16')"
MODEL = {
  'd_model': 24,
  'head_size': 4,
  'd_ff': 29,
  'position': 'rope',
  'ffn': 'gelu',
  'bias': 'none',
}


def fields(**options):
  return FALCON.fields(Options(CONFIG | options))


def test_defaults_are_those_of_7b():
  assert fields() == {
    'vocab_size': 23,
    'context_length': 2048,
    'num_layers': 3,
    'd_model': 24,
    'num_heads': 6,
    'num_kv_heads': 1,
    'd_ff': 96,
    'position': 'rope(theta=10000.0)',
    'ffn': 'gelu',
    'norm': 'layernorm(epsilon=1e-05)',
    'block': 'parallel(num_norms=1)',
    'bias': 'none',
    'output': 'tied',
    'dropout': 'rates(residual=0.0, attention=0.0)',
  }


@pytest.mark.parametrize(
  'options, expected',
  [
    # 7B's file gives a number of key/value heads, which is not used.
    ({'num_kv_heads': 6}, (1, 'parallel(num_norms=1)')),
    ({'multi_query': False}, (6, 'parallel(num_norms=1)')),
    # RW.
    ({'multi_query': False, 'parallel_attn': False}, (6, 'pre')),
    ({'parallel_attn': False, 'num_ln_in_parallel_attn': 2}, (1, 'pre')),
    # 40B, and 11B with one norm.
    (
      {'new_decoder_architecture': True, 'num_kv_heads': 2},
      (2, 'parallel(num_norms=2)'),
    ),
    (
      {
        'new_decoder_architecture': True,
        'num_kv_heads': 3,
        'num_ln_in_parallel_attn': 1,
      },
      (3, 'parallel(num_norms=1)'),
    ),
    ({'new_decoder_architecture': True}, (6, 'parallel(num_norms=2)')),
  ],
)
def test_architectures(options, expected):
  found = fields(**options)
  assert (found['num_kv_heads'], found['block']) == expected


def test_alibi_needs_no_rotary_options():
  ignored = {'rope_scaling': {'type': 'dynamic', 'factor': 2.0}}
  assert fields(alibi=True, **ignored)['position'] == ALIBI
  with pytest.raises(UsageError, match="type='dynamic'"):
    fields(alibi=False, **ignored)


@pytest.mark.parametrize(
  'options, message',
  [
    (
      {'new_decoder_architecture': True, 'parallel_attn': False},
      'parallel_attn=False: is not supported with new_decoder',
    ),
    (
      {'num_ln_in_parallel_attn': 2},
      'num_ln_in_parallel_attn=2: .* new_decoder_architecture=False',
    ),
    (
      {'new_decoder_architecture': True, 'num_ln_in_parallel_attn': 3},
      'num_ln_in_parallel_attn=3: .* new_decoder_architecture=True',
    ),
    ({'multi_query': False, 'num_kv_heads': 2}, 'num_kv_heads=2: .* must be 6'),
    (
      {'new_decoder_architecture': True, 'num_kv_heads': 4},
      'num_kv_heads=4: must divide',
    ),
    ({'activation': 'swiglu'}, "activation='swiglu': is not supported"),
    ({'hidden_size': 25}, 'num_attention_heads=6: .* hidden_size=25'),
    (
      {'apply_residual_connection_post_layernorm': True},
      'apply_residual_connection_post_layernorm=True',
    ),
  ],
)
def test_what_is_not_supported_is_named(options, message):
  with pytest.raises(UsageError, match=f'config.json: {message}'):
    fields(**options)


@pytest.mark.parametrize(
  'kv_heads, order',
  [
    # 7B: all queries, then the key and the value.
    (1, 'q0 q1 q2 q3 q4 q5 k0 v0'),
    # 40B: for each key its queries, the key, the value.
    (2, 'q0 q1 q2 k0 v0 q3 q4 q5 k1 v1'),
    # RW: for each head.
    (6, 'q0 k0 v0 q1 k1 v1 q2 k2 v2 q3 k3 v3 q4 k4 v4 q5 k5 v5'),
  ],
)
def test_fused_heads(kv_heads, order):
  model = tiny.model(**MODEL | {'num_kv_heads': kv_heads, 'block': 'parallel'})
  (fused,) = [
    t for t in FALCON.tensors(model) if t.names[0].endswith('value.weight')
  ]
  # Each entry says where it belongs: which of three, head, feature, input.
  parts = [
    np.array(
      [
        [1000 * i + 100 * (c // 4) + 10 * (c % 4) + row for c in range(4 * n)]
        for row in range(5)
      ]
    )
    for i, n in enumerate((6, kv_heads, kv_heads))
  ]
  joined = fused.join(parts)
  starts = [1000 * 'qkv'.index(h[0]) + 100 * int(h[1]) for h in order.split()]
  expected = [
    [start + 10 * feature + row for row in range(5)]
    for start in starts
    for feature in range(4)
  ]
  np.testing.assert_array_equal(joined, expected)
  for found, part in zip(fused.split(joined), parts, strict=True):
    np.testing.assert_array_equal(found, part)


@pytest.mark.parametrize(
  'position, bias, output', [('rope', 'none', 'tied'), (ALIBI, 'all', 'untied')]
)
@pytest.mark.parametrize(
  'kv_heads, block',
  [
    (1, 'parallel'),
    (1, 'pre'),
    (6, 'parallel'),
    (6, 'pre'),
    (2, 'parallel'),
    (2, 'parallel(num_norms=2)'),
    (6, 'parallel(num_norms=2)'),
    (1, 'parallel(num_norms=2)'),
  ],
)
def test_our_own_models_come_back(
  position, kv_heads, block, bias, output, tmp_path
):
  changes = {
    'position': position,
    'num_kv_heads': kv_heads,
    'block': block,
    'bias': bias,
    'output': output,
  }
  model = tiny.model(**MODEL | changes)
  params = tiny.params(model)
  hf.save(str(tmp_path), model, params)
  again, params_again = hf.load(str(tmp_path))
  assert again.position.split('(')[0] == position.split('(')[0]
  assert again.num_kv_heads == kv_heads
  jax.tree.map(np.testing.assert_array_equal, params_again, params)


def test_sequential_blocks_of_groups_cannot_be_expressed(tmp_path):
  model = tiny.model(**MODEL | {'num_kv_heads': 2, 'block': 'pre'})
  with pytest.raises(UsageError, match=r'falcon cannot: .*parallel_attn=False'):
    hf.save(str(tmp_path), model, tiny.params(model))


def test_alibi_counts_the_tokens_that_are_seen():
  mask = np.array([[0, 0, 1, 1, 1], [1, 1, 0, 1, 0]], bool)
  model = tiny.model(**MODEL | {'position': ALIBI})
  found = FALCON.positions(model, None, mask, None)
  np.testing.assert_array_equal(found, [[0, 0, 0, 1, 2], [0, 1, 1, 2, 2]])
  assert FALCON.positions(tiny.model(**MODEL), None, mask, None) is None
