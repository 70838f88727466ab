# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gemma 2's and 3's config.json, both ways."""

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.hf.base import Options
from gpt_jax.hf.layout import family_of, fields_of
from gpt_jax.hf.llama import GEMMA2, GEMMA3_TEXT
from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.spec import UsageError
from tests.support import tiny

CONFIG = {
  'vocab_size': 23,
  'hidden_size': 18,
  'num_attention_heads': 6,
  'num_key_value_heads': 2,
  'head_dim': 8,
  'intermediate_size': 29,
  'num_hidden_layers': 7,
  'sliding_window': 5,
}
# As published for google/gemma-2-9b, but for what are the defaults.
GEMMA2_9B = {
  'vocab_size': 256_000,
  'hidden_size': 3584,
  'hidden_act': 'gelu_pytorch_tanh',
  'intermediate_size': 14_336,
  'num_hidden_layers': 42,
  'num_attention_heads': 16,
  'num_key_value_heads': 8,
  'head_dim': 256,
  'cache_implementation': 'hybrid',
}
# As published for google/gemma-3-1b-pt. Its 26 layers are no whole number of
# periods of six.
GEMMA3_1B = {
  'vocab_size': 262_144,
  'hidden_size': 1152,
  'intermediate_size': 6912,
  'num_hidden_layers': 26,
  'num_attention_heads': 4,
  'num_key_value_heads': 1,
  'head_dim': 256,
  'max_position_embeddings': 32_768,
  'rope_local_base_freq': 10_000,
  'rope_theta': 1_000_000,
  'rope_scaling': None,
  'sliding_window': 512,
  'sliding_window_pattern': 6,
  'attn_logit_softcapping': None,
  'final_logit_softcapping': None,
}


def fields(family, **options):
  return family.fields(Options(CONFIG | options))


def test_defaults_of_gemma2():
  found = fields(GEMMA2)
  # Six windows and full layers in turn, then another window.
  window = 'local(window=5)'
  assert found['attention'] == f'{f"{window}, full, " * 3}{window}'
  assert fields(GEMMA2, num_hidden_layers=6)['attention'] == f'{window}, full'
  assert found['attention_scale'] == 'rsqrt(size=256, softcap=50.0)'
  assert found['block'] == 'sandwich'
  assert found['norm'] == 'rmsnorm(epsilon=1e-06, plus_one=True)'
  assert found['input'] == "tokens(scale='sqrt')"
  assert found['output'] == 'tied(softcap=30.0)'
  assert found['ffn'] == 'geglu_tanh'
  assert found['position'] == 'rope(theta=10000.0)'
  bare = {**CONFIG}
  del bare['head_dim'], bare['sliding_window']
  found = GEMMA2.fields(Options(bare))
  assert found['head_size'] == 256
  assert found['attention'].startswith('local(window=4096), full')


def test_defaults_of_gemma3():
  found = fields(GEMMA3_TEXT)
  window = 'local(window=5)'
  assert found['attention'] == f'{f"{window}, " * 5}full, {window}'
  assert found['attention_scale'] == 'rsqrt(size=256)'
  assert found['block'] == "sandwich(qk_norm='per_head')"
  assert found['output'] == 'tied'
  assert found['position'] == 'rope(theta=1000000.0, local_theta=10000.0)'
  assert found['context_length'] == 131_072


def test_bounds_and_scales():
  found = fields(GEMMA2, query_pre_attn_scalar=8, attn_logit_softcapping=None)
  assert found['attention_scale'] == 'rsqrt'
  assert fields(GEMMA2, final_logit_softcapping=None)['output'] == 'tied'
  for family in (GEMMA2, GEMMA3_TEXT):
    found = fields(family, final_logit_softcapping=7, tie_word_embeddings=False)
    assert found['output'] == 'untied(softcap=7)'
    assert fields(family, hidden_activation='silu')['ffn'] == 'swiglu'


def test_the_two_spellings_of_both_bases():
  scaling = {'rope_type': 'linear', 'factor': 8.0}
  expected = (
    "rope(theta=5000.0, scaling='linear(factor=8.0)', local_theta=70.0)"
  )
  older = {
    'rope_theta': 5000.0,
    'rope_local_base_freq': 70.0,
    'rope_scaling': scaling,
  }
  newer = {
    'full_attention': {'rope_theta': 5000.0, **scaling},
    'sliding_attention': {'rope_theta': 70.0, 'rope_type': 'default'},
  }
  assert fields(GEMMA3_TEXT, **older)['position'] == expected
  assert fields(GEMMA3_TEXT, rope_parameters=newer)['position'] == expected


@pytest.mark.parametrize(
  'family, options, message',
  [
    (GEMMA2, {'hidden_activation': 'relu2'}, "hidden_activation='relu2'"),
    (GEMMA2, {'use_bidirectional_attention': True}, 'only False'),
    (GEMMA2, {'sliding_window': None}, 'supported without sliding_window'),
    (GEMMA2, {'final_logit_softcapping': 0}, 'must be above 0'),
    (GEMMA2, {'attn_logit_softcapping': True}, 'must be a number'),
    (GEMMA2, {'query_pre_attn_scalar': 'x'}, 'must be a number'),
    (GEMMA2, {'layer_types': ['full_attention']}, 'a list of 7 names'),
    (
      GEMMA2,
      {'rope_parameters': {'full_attention': {}}},
      'for each kind of layer',
    ),
    (GEMMA3_TEXT, {'use_bidirectional_attention': True}, 'only False'),
    (GEMMA3_TEXT, {'attn_logit_softcapping': 50.0}, 'only None'),
    (GEMMA3_TEXT, {'rope_parameters': {'rope_theta': 1e4}}, 'for each kind'),
    (
      GEMMA3_TEXT,
      {'rope_parameters': {'chunked_attention': {}}},
      'chunked_attention is no kind of layer',
    ),
    (
      GEMMA3_TEXT,
      {
        'rope_parameters': {
          'sliding_attention': {'rope_type': 'linear', 'factor': 8.0}
        }
      },
      "rope_type='linear': is not supported, only 'default'",
    ),
    (GEMMA3_TEXT, {'rope_scaling': 'linear'}, 'must be an object'),
    (
      GEMMA3_TEXT,
      {'partial_rotary_factor': 0.5},
      'partial_rotary_factor=0.5: is not supported',
    ),
  ],
)
def test_what_is_not_supported_is_named(family, options, message):
  with pytest.raises(UsageError, match=f'config.json: .*{message}') as e:
    fields(family, **options)
  assert '\n' not in str(e.value)


def test_images_are_refused():
  """Gemma 3's other checkpoints hold a vision tower."""
  with pytest.raises(UsageError, match="model_type='gemma3': is not supported"):
    family_of({'model_type': 'gemma3', 'text_config': {}})


@pytest.mark.parametrize(
  'family, config, parameters',
  [
    (GEMMA2, GEMMA2_9B, 9_241_705_984),
    pytest.param(GEMMA3_TEXT, GEMMA3_1B, 999_885_952, marks=pytest.mark.slow),
  ],
)
def test_the_published_parameters(family, config, parameters):
  """As transformers counts them on its meta device."""
  model = Transformer(**fields_of(family, 'lm', config))
  shapes = jax.tree.leaves(parameter_shapes(model))
  assert sum(x.size for x in shapes) == parameters


GEMMA = {
  'num_layers': 2,
  'head_size': 8,
  'input': "tokens(scale='sqrt')",
  'attention': 'local(window=5), full',
  'position': 'rope',
  'ffn': 'geglu_tanh',
  'norm': 'rmsnorm(plus_one=True)',
  'block': 'sandwich',
  'bias': 'none',
}


@pytest.mark.parametrize(
  'changes, expected',
  [
    ({'attention_scale': 'rsqrt(size=3, softcap=2)'}, 'gemma2'),
    ({'output': 'untied(softcap=3)', 'attention': 'full'}, 'gemma2'),
    (
      {
        'block': "sandwich(qk_norm='per_head')",
        'position': "rope(scaling='linear(3)', local_theta=70)",
        'output': 'tied(softcap=3)',
      },
      'gemma3_text',
    ),
  ],
)
def test_our_own_models_come_back(changes, expected, tmp_path):
  model = tiny.model(**GEMMA | changes)
  params = tiny.params(model)
  hf.save(str(tmp_path), model, params)
  again, params_again = hf.load(str(tmp_path))
  assert again.family.model_type == expected
  jax.tree.map(np.testing.assert_array_equal, params_again, params)
