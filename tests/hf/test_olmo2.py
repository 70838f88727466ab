# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""OLMo 2's config.json, both ways."""

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.hf.base import Options
from gpt_jax.hf.layout import fields_of
from gpt_jax.hf.llama import OLMO2
from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.spec import UsageError
from tests.support import tiny

CONFIG = {
  'vocab_size': 23,
  'hidden_size': 48,
  'num_attention_heads': 6,
  'intermediate_size': 29,
  'num_hidden_layers': 5,
}
# As published for allenai/OLMo-2-1124-7B.
PUBLISHED = {
  'vocab_size': 100_352,
  'hidden_size': 4096,
  'intermediate_size': 11_008,
  'num_hidden_layers': 32,
  'num_attention_heads': 32,
  'num_key_value_heads': 32,
  'max_position_embeddings': 4096,
  'rms_norm_eps': 1e-6,
  'rope_theta': 500_000,
  'rope_scaling': None,
}


def fields(**options):
  return OLMO2.fields(Options(CONFIG | options))


def test_defaults():
  found = fields()
  assert found['block'] == "reordered(qk_norm='all_heads')"
  assert found['norm'] == 'rmsnorm(epsilon=1e-05)'
  assert found['num_kv_heads'] == 6
  assert found['head_size'] == 8
  assert found['output'] == 'untied'
  assert found['context_length'] == 2048
  assert fields(attention_bias=True)['bias'] == 'where(qkv=True, out=True)'
  assert fields(tie_word_embeddings=True)['output'] == 'tied'


@pytest.mark.parametrize(
  'options, message',
  [
    ({'hidden_act': 'relu2'}, "hidden_act='relu2': is not supported"),
    ({'attention_bias': 'yes'}, "attention_bias='yes': must be true or false"),
    ({'num_key_value_heads': 4}, 'num_key_value_heads=4: must divide'),
    ({'rope_scaling': {'rope_type': 'longrope'}}, "rope_type='longrope'"),
  ],
)
def test_what_is_not_supported_is_named(options, message):
  with pytest.raises(UsageError, match=f'config.json: {message}') as e:
    fields(**options)
  assert '\n' not in str(e.value)


def test_the_published_parameters():
  """7,298,617,344, as transformers counts them on its meta device."""
  model = Transformer(**fields_of(OLMO2, 'lm', PUBLISHED))
  shapes = jax.tree.leaves(parameter_shapes(model))
  assert sum(x.size for x in shapes) == 7_298_617_344


@pytest.mark.parametrize('bias', ['none', 'where(qkv=True, out=True)'])
def test_our_own_models_come_back(bias, tmp_path):
  model = tiny.model(
    head_size=8,
    position='rope',
    ffn='swiglu',
    bias=bias,
    norm='rmsnorm',
    output='tied',
    block="reordered(qk_norm='all_heads')",
  )
  params = tiny.params(model)
  hf.save(str(tmp_path), model, params)
  again, params_again = hf.load(str(tmp_path))
  assert again.family.model_type == 'olmo2'
  jax.tree.map(np.testing.assert_array_equal, params_again, params)
