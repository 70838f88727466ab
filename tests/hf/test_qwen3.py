# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Qwen3's config.json, both ways, with the windows of its layers."""

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.hf.base import Options
from gpt_jax.hf.layout import fields_of
from gpt_jax.hf.llama import QWEN3
from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.spec import UsageError
from tests.support import tiny

CONFIG = {
  'vocab_size': 23,
  'hidden_size': 17,
  'num_attention_heads': 6,
  'num_key_value_heads': 2,
  'head_dim': 8,
  'intermediate_size': 29,
  'num_hidden_layers': 5,
}
MODEL = {
  'num_layers': 2,
  'head_size': 8,
  'position': 'rope',
  'ffn': 'swiglu',
  'bias': 'none',
  'norm': 'rmsnorm',
  'output': 'untied',
  'block': "pre(qk_norm='per_head')",
}
# As published for Qwen/Qwen3-8B.
PUBLISHED = {
  'vocab_size': 151_936,
  'hidden_size': 4096,
  'intermediate_size': 12_288,
  'num_hidden_layers': 36,
  'num_attention_heads': 32,
  'num_key_value_heads': 8,
  'head_dim': 128,
  'max_position_embeddings': 40_960,
  'max_window_layers': 36,
  'use_sliding_window': False,
  'sliding_window': None,
  'rope_theta': 1_000_000,
  'rope_scaling': None,
  'tie_word_embeddings': False,
}


def fields(**options):
  return QWEN3.fields(Options(CONFIG | options))


def test_defaults():
  found = fields()
  assert found['block'] == "pre(qk_norm='per_head')"
  assert found['attention'] == 'full'
  assert found['bias'] == 'none'
  assert found['output'] == 'untied'
  assert found['context_length'] == 32_768
  bare = {n: v for n, v in CONFIG.items() if n != 'head_dim'}
  assert QWEN3.fields(Options(bare))['head_size'] == 128
  assert fields(attention_bias=True)['bias'] == 'where(qkv=True, out=True)'
  assert fields(tie_word_embeddings=True)['output'] == 'tied'


def test_windows():
  window, sliding = 'local(window=7)', 'sliding_attention'
  given = {'use_sliding_window': True, 'sliding_window': 7}
  found = fields(**given, max_window_layers=3)['attention']
  assert found == ', '.join(['full'] * 3 + [window] * 2)
  assert fields(**given, max_window_layers=0)['attention'] == window
  # The default of 28 layers is more than there are.
  assert fields(**given)['attention'] == 'full'
  # Without the switch the size does nothing.
  off = fields(sliding_window=7, max_window_layers=0)
  assert off['attention'] == 'full'
  kinds = [sliding, 'full_attention', sliding, sliding, sliding]
  named = fields(**given, layer_types=kinds)['attention']
  assert named == ', '.join([window, 'full', *[window] * 3])


@pytest.mark.parametrize(
  'options, message',
  [
    ({'hidden_act': 'relu2'}, "hidden_act='relu2': is not supported"),
    ({'attention_bias': 1}, 'attention_bias=1: must be true or false'),
    ({'tie_word_embeddings': 'no'}, "tie_word_embeddings='no': must be true"),
    ({'use_sliding_window': 7}, 'use_sliding_window=7: must be true or false'),
    (
      {'layer_types': ['sliding_attention'] * 5},
      "layer_types=.*'sliding_attention' is not supported without sliding_win",
    ),
    (
      {'layer_types': ['linear_attention'] * 5},
      "layer_types=.*'linear_attention' is not supported$",
    ),
    ({'layer_types': ['full_attention']}, 'must be a list of 5 names'),
    ({'layer_types': 'full_attention'}, 'must be a list of 5 names'),
    ({'rope_scaling': {'type': 'dynamic'}}, "type='dynamic': is not supported"),
  ],
)
def test_what_is_not_supported_is_named(options, message):
  with pytest.raises(UsageError, match=f'config.json: .*{message}') as e:
    fields(**options)
  assert '\n' not in str(e.value)


def test_the_published_parameters():
  """8,190,735,360, as transformers counts them on its meta device."""
  model = Transformer(**fields_of(QWEN3, 'lm', PUBLISHED))
  shapes = jax.tree.leaves(parameter_shapes(model))
  assert sum(x.size for x in shapes) == 8_190_735_360


@pytest.mark.parametrize(
  'changes, family',
  [
    ({}, 'qwen3'),
    ({'attention': 'full, local(window=5)'}, 'qwen3'),
    ({'block': 'pre'}, 'llama'),
  ],
)
def test_our_own_models_come_back(changes, family, tmp_path):
  model = tiny.model(**MODEL | changes)
  params = tiny.params(model)
  hf.save(str(tmp_path), model, params)
  again, params_again = hf.load(str(tmp_path))
  assert again.family.model_type == family
  jax.tree.map(np.testing.assert_array_equal, params_again, params)


@pytest.mark.parametrize(
  'changes, field',
  [
    ({'attention': 'local(window=3), local(window=5)'}, 'attention'),
    ({'attention_scale': 'rsqrt(softcap=3)'}, 'attention_scale'),
    ({'block': "pre(qk_norm='all_heads')"}, 'block'),
    ({'norm': 'rmsnorm(plus_one=True)'}, 'norm'),
    ({'output': 'untied(softcap=3)'}, 'output'),
    ({'position': 'rope(local_theta=70)'}, 'position'),
  ],
)
def test_what_no_family_has_is_refused(changes, field, tmp_path):
  model = tiny.model(**MODEL | changes)
  with pytest.raises(UsageError, match=rf'qwen3 cannot: .*model\.{field}='):
    hf.save(str(tmp_path), model, tiny.params(model))
