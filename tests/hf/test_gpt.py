# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Falcon's options and fused matrices; positions of GPT-NeoX and GPT-J."""

import numpy as np
import pytest

from gpt_jax.core.nn.choices import CHOICES
from gpt_jax.core.spec import UsageError
from gpt_jax.hf.base import Options, choice
from gpt_jax.hf.gpt import FALCON, GPT_NEOX, GPTJ
from tests.support import tiny
from tests.support.checkpoints import fields
from tests.support.golden_io import ROOT, config

ALIBI = "alibi(scale='rsqrt', dtype='bfloat16')"
FALCON_MODEL = {
  'd_model': 24,
  'head_size': 4,
  'd_ff': 29,
  'position': 'rope',
  'ffn': 'gelu',
  'bias': 'none',
}


def test_defaults_are_those_of_7b():
  assert fields('falcon') == {
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
    ({'new_decoder_architecture': True, 'num_kv_heads': 2}, (2, 'parallel(num_norms=2)')),
    (
      {'new_decoder_architecture': True, 'num_kv_heads': 3, 'num_ln_in_parallel_attn': 1},
      (3, 'parallel(num_norms=1)'),
    ),
    ({'new_decoder_architecture': True}, (6, 'parallel(num_norms=2)')),
  ],
)
def test_architectures(options, expected):
  found = fields('falcon', **options)
  assert (found['num_kv_heads'], found['block']) == expected


def test_alibi_needs_no_rotary_options():
  ignored = {'rope_scaling': {'type': 'dynamic', 'factor': 2.0}}
  assert fields('falcon', alibi=True, **ignored)['position'] == ALIBI
  with pytest.raises(UsageError, match="type='dynamic'"):
    fields('falcon', alibi=False, **ignored)


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
  model = tiny.model(**FALCON_MODEL | {'num_kv_heads': kv_heads, 'block': 'parallel'})
  (fused,) = [t for t in FALCON.tensors(model) if t.names[0].endswith('value.weight')]
  # Each entry says where it belongs: which of three, head, feature, input.
  parts = [
    np.array(
      [[1000 * i + 100 * (c // 4) + 10 * (c % 4) + row for c in range(4 * n)] for row in range(5)]
    )
    for i, n in enumerate((6, kv_heads, kv_heads))
  ]
  joined = fused.join(parts)
  starts = [1000 * 'qkv'.index(h[0]) + 100 * int(h[1]) for h in order.split()]
  expected = [
    [start + 10 * feature + row for row in range(5)] for start in starts for feature in range(4)
  ]
  np.testing.assert_array_equal(joined, expected)
  for found, part in zip(fused.split(joined), parts, strict=True):
    np.testing.assert_array_equal(found, part)


def test_alibi_counts_the_tokens_that_are_seen():
  mask = np.array([[0, 0, 1, 1, 1], [1, 1, 0, 1, 0]], bool)
  model = tiny.model(**FALCON_MODEL | {'position': ALIBI})
  found = FALCON.positions(model, None, mask, None)
  np.testing.assert_array_equal(found, [[0, 0, 0, 1, 2], [0, 1, 1, 2, 2]])
  assert FALCON.positions(tiny.model(**FALCON_MODEL), None, mask, None) is None


@pytest.mark.parametrize(
  'options',
  [
    # As in transformers 5, and before.
    {
      'rope_parameters': {
        'rope_type': 'linear',
        'factor': 2.5,
        'rope_theta': 300.0,
        'partial_rotary_factor': 0.5,
      }
    },
    {
      'rope_scaling': {'type': 'linear', 'factor': 2.5},
      'rotary_emb_base': 300.0,
      'rotary_pct': 0.5,
    },
  ],
)
def test_positions_of_gpt_neox_are_scaled(options):
  values = config(ROOT / 'gpt_neox_lm') | {'rope_parameters': None}
  fields = GPT_NEOX.fields(Options(values | options))
  expected = "rope(theta=300.0, fraction=0.5, scaling='linear(factor=2.5)')"
  assert fields['position'] == expected
  written = GPT_NEOX.options(tiny.model(**fields, head_size=8))
  for names in (('rope_parameters',), ('rope_scaling', 'rope_parameters')):
    kept = {n: written[n] for n in names}
    assert GPT_NEOX.fields(Options(values | kept))['position'] == expected


def test_gpt_neox_turns_pairs():
  values = config(ROOT / 'gpt_neox_lm') | {'rope_parameters': None}
  odd = values | {'hidden_size': 24, 'num_attention_heads': 2}
  with pytest.raises(UsageError, match=r'factor=0\.25 .* turns 3'):
    GPT_NEOX.fields(Options(odd))


def test_rotary_dim_survives_rounding():
  # In floating point 44 * (30 / 44) is less than 30.
  values = config(ROOT / 'gptj_lm') | {'n_embd': 88, 'rotary_dim': 30}
  fields = GPTJ.fields(Options(values)) | {'head_size': 44}
  model = tiny.model(**fields)
  assert GPTJ.options(model)['rotary_dim'] == 30
  position = CHOICES['position']['rope']
  rotate = position(**choice(model, 'position').kwargs).rotate
  x = np.ones((1, 2, 1, 44), np.float32)
  turned = np.asarray(rotate(x, np.arange(2)[None]))[0, 1, 0] != 1
  assert turned.nonzero()[0].max() == 29
