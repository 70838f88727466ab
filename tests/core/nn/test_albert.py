# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shared layers and narrow embeddings have the parameters of ALBERT's paper.

Those of bodies count the pooler, a dense layer; those with heads also what
predicts masked tokens and the order of sentences, as in transformers. Its
ablations are in tests/core/config/test_configs.py.
"""

import math

import jax
import pytest

from configs import base
from gpt_jax.core.nn.transformer import make_model, parameter_shapes

HEADS = "tied(bias=True, transform='gelu')"
slow = pytest.mark.slow


def count(num_layers, width, d_embed, share, output='tied'):
  fields = {
    **base.get_config().model,
    'vocab_size': 30_000,
    'context_length': 512,
    'num_layers': num_layers,
    'd_model': width,
    'num_heads': width // 64,
    'num_kv_heads': width // 64,
    'head_size': 64,
    'd_ff': 4 * width,
    'input': f'tokens(token_types=2, norm=True, d_embed={d_embed})',
    'attention': 'bidirectional',
    'ffn': 'gelu',
    'block': 'post',
    'share': share,
    'output': output,
  }
  tree = jax.tree.leaves(parameter_shapes(make_model(**fields)))
  pooler = width * width + width
  pair = 2 * width + 2 if output == HEADS else 0
  return sum(math.prod(x.shape) for x in tree) + pooler + pair


@pytest.mark.parametrize(
  'num_layers, width, body, with_heads',
  [
    (12, 768, 11_683_584, 11_813_810),
    pytest.param(24, 1024, 17_683_968, 17_847_474, marks=slow),
    pytest.param(24, 2048, 58_724_864, 59_021_490, marks=slow),
    (12, 4096, 222_595_584, 223_158_450),
  ],
)
def test_sizes(num_layers, width, body, with_heads):
  assert count(num_layers, width, 128, 'all') == body
  assert count(num_layers, width, 128, 'all', HEADS) == with_heads


@slow
@pytest.mark.parametrize(
  'num_layers, width, parameters',
  [(12, 768, 109_081_344), (24, 1024, 334_607_360), (24, 2048, 1_275_291_648)],
)
def test_the_berts_it_is_compared_with(num_layers, width, parameters):
  """Embeddings as wide as the model have no layer after them."""
  assert count(num_layers, width, 0, 'none') == parameters
