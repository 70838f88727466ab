# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""LLaMA's and Mistral's config.json, both ways; what is not supported."""

import math

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.hf.base import Options
from gpt_jax.hf.layout import fields_of
from gpt_jax.hf.llama import LLAMA, MISTRAL
from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.spec import UsageError
from tests.support import tiny

CONFIG = {
  'vocab_size': 23,
  'hidden_size': 34,
  'num_attention_heads': 6,
  'head_dim': 4,
  'intermediate_size': 29,
  'num_hidden_layers': 3,
  'max_position_embeddings': 128,
}
MODEL = {
  'vocab_size': 23,
  'd_model': 34,
  'num_heads': 6,
  'num_kv_heads': 2,
  'head_size': 4,
  'd_ff': 29,
  'num_layers': 3,
  'context_length': 128,
  'ffn': 'swiglu',
  'norm': 'rmsnorm',
  'position': 'rope',
  'bias': 'none',
  'output': 'untied',
}


def fields(family=LLAMA, **options):
  return family.fields(Options(CONFIG | options))


def position(**options):
  return fields(**options)['position']


def both_spellings(theta, **scaling):
  """The position that both say; they must agree."""
  legacy = position(rope_theta=theta, rope_scaling=scaling or None)
  new = {'rope_type': 'default', **scaling, 'rope_theta': theta}
  assert position(rope_parameters=new) == legacy
  if scaling:  # before 4.43 the key was `type`
    old = {'type' if k == 'rope_type' else k: v for k, v in scaling.items()}
    assert position(rope_theta=theta, rope_scaling=old) == legacy
  return legacy


def test_defaults():
  found = fields()
  assert found['num_kv_heads'] == 6
  assert found['position'] == 'rope(theta=10000.0)'
  assert found['bias'] == 'none'
  assert found['output'] == 'untied'
  assert found['norm'] == 'rmsnorm(epsilon=1e-06)'
  # Null is as good as nothing.
  nulls = {'head_dim': None, 'num_key_value_heads': None, 'rope_scaling': None}
  assert fields(hidden_size=24, **nulls) == fields(hidden_size=24, head_dim=4)


@pytest.mark.parametrize(
  'attention, ffn, bias',
  [
    (False, False, 'none'),
    (True, False, 'where(qkv=True, out=True)'),
    (False, True, 'where(ffn=True)'),
    (True, True, 'all'),
  ],
)
def test_biases(attention, ffn, bias):
  found = fields(attention_bias=attention, mlp_bias=ffn)
  assert found['bias'] == bias
  written = LLAMA.options(tiny.model(**MODEL | {'bias': bias}))
  assert written['attention_bias'] == attention
  assert written['mlp_bias'] == ffn


@pytest.mark.parametrize(
  'name, ours',
  [
    ('silu', 'swiglu'),
    ('gelu', 'geglu'),
    ('gelu_pytorch_tanh', 'geglu_tanh'),
    ('relu', 'reglu'),
  ],
)
def test_activations(name, ours):
  assert fields(hidden_act=name)['ffn'] == ours


def test_rope_scalings():
  assert both_spellings(500.0) == 'rope(theta=500.0)'
  assert both_spellings(1e4, rope_type='linear', factor=2.5) == (
    "rope(theta=10000.0, scaling='linear(factor=2.5)')"
  )
  llama3 = {
    'rope_type': 'llama3',
    'factor': 8.0,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 64,
  }
  assert both_spellings(5e5, **llama3) == (
    "rope(theta=500000.0, scaling='llama3(factor=8.0, original_context=64, "
    "low_freq_factor=1.0, high_freq_factor=4.0)')"
  )


def yarn(**options):
  found = both_spellings(1e4, rope_type='yarn', **options)
  call = found.removeprefix("rope(theta=10000.0, scaling='yarn(")
  return call.removesuffix(")')")


def test_the_published_parameters():
  """LLaMA 3.1 8B: 8,030,261,248, as transformers counts on its meta device."""
  published = {
    'vocab_size': 128_256,
    'hidden_size': 4096,
    'intermediate_size': 14_336,
    'num_hidden_layers': 32,
    'num_attention_heads': 32,
    'num_key_value_heads': 8,
    'max_position_embeddings': 131_072,
    'rms_norm_eps': 1e-5,
    'rope_theta': 500_000.0,
    'rope_scaling': {
      'factor': 8.0,
      'high_freq_factor': 4.0,
      'low_freq_factor': 1.0,
      'original_max_position_embeddings': 8192,
      'rope_type': 'llama3',
    },
    'tie_word_embeddings': False,
  }
  model = Transformer(**fields_of(LLAMA, 'lm', published))
  shapes = jax.tree.leaves(parameter_shapes(model))
  assert sum(x.size for x in shapes) == 8_030_261_248


def test_yarn():
  betas = 'beta_fast=32.0, beta_slow=1.0'
  given = {'factor': 4.0, 'original_max_position_embeddings': 32}
  start = 'factor=4.0, original_context=32, '
  assert yarn(**given) == start + betas
  # The factor may be left to the ratio of the two lengths.
  assert yarn(original_max_position_embeddings=32, factor=None) == start + betas
  # Without the original length it is the whole one.
  assert yarn(factor=4.0) == 'factor=4.0, original_context=128, ' + betas
  assert yarn(**given, beta_fast=16, beta_slow=2) == (
    start + 'beta_fast=16, beta_slow=2'
  )
  assert yarn(**given, attention_factor=1.5) == (
    start + betas + ', attention_factor=1.5'
  )
  assert yarn(**given, truncate=False) == start + betas + ', truncate=False'
  # One of DeepSeek's two factors alone does nothing.
  assert yarn(**given, mscale=0.7) == start + betas
  ratio = (0.1 * 0.7 * math.log(4) + 1) / (0.1 * 1.3 * math.log(4) + 1)
  assert yarn(**given, mscale=0.7, mscale_all_dim=1.3) == (
    start + betas + f', attention_factor={ratio}'
  )


def test_the_older_spelling_counts_where_there_are_both():
  """As in transformers; the base in the same place goes first."""
  found = position(
    rope_theta=300.0,
    rope_scaling={'rope_type': 'linear', 'factor': 2.0},
    rope_parameters={'rope_type': 'linear', 'factor': 3.0, 'rope_theta': 500.0},
  )
  assert found == "rope(theta=300.0, scaling='linear(factor=2.0)')"
  found = position(rope_theta=300.0, rope_parameters={'rope_theta': 500.0})
  assert found == 'rope(theta=500.0)'


@pytest.mark.parametrize(
  'options, message',
  [
    (
      {'rope_scaling': {'type': 'dynamic', 'factor': 2.0}},
      "type='dynamic': is not supported; one of default, linear, llama3, yarn",
    ),
    (
      {'rope_parameters': {'rope_type': 'longrope'}},
      "rope_type='longrope': is not supported",
    ),
    ({'rope_scaling': {'rope_type': 'linear'}}, 'factor=None'),
    (
      {'rope_scaling': {'rope_type': 'llama3', 'factor': 2.0}},
      'low_freq_factor=None',
    ),
    (
      {'rope_scaling': {'type': 'yarn', 'factor': 2, 'attention_factor': 0}},
      'attention_factor=0: must be above 0',
    ),
    (
      {'rope_parameters': {'full_attention': {'rope_theta': 1e4}}},
      'rope_parameters=.*each kind of layer',
    ),
    ({'rope_parameters': 'yarn'}, "rope_parameters='yarn': must be an object"),
    ({'partial_rotary_factor': 0.5}, 'partial_rotary_factor=0.5'),
    (
      {'rope_parameters': {'partial_rotary_factor': 0.5}},
      'partial_rotary_factor=0.5',
    ),
    ({'hidden_act': 'relu2'}, "hidden_act='relu2': is not supported"),
    ({'head_dim': 5}, 'head_dim=5: 5 features do not form pairs'),
    ({'num_key_value_heads': 4}, 'num_key_value_heads=4: must divide'),
    ({'intermediate_size': None}, 'intermediate_size=None: must be a whole'),
    ({'mlp_bias': 'yes'}, "mlp_bias='yes': must be true or false"),
  ],
)
def test_what_is_not_supported_is_named(options, message):
  with pytest.raises(UsageError, match=f'config.json: {message}'):
    fields(**options)


def test_mistral_windows():
  kept = {'num_key_value_heads': None}
  found = fields(MISTRAL, sliding_window=7, **kept)
  assert found['attention'] == 'local(window=7)'
  assert found['num_kv_heads'] == 6
  assert fields(MISTRAL, sliding_window=None, **kept)['attention'] == 'full'
  # What transformers takes if the option is not there at all.
  absent = fields(MISTRAL, num_attention_heads=16)
  assert absent['attention'] == 'local(window=4096)'
  assert absent['num_kv_heads'] == 8
  agreeing = ['sliding_attention'] * 3
  found = fields(MISTRAL, sliding_window=7, layer_types=agreeing, **kept)
  assert found['attention'] == 'local(window=7)'
  for wrong in ([*agreeing[1:], 'full_attention'], ['full_attention'] * 3):
    with pytest.raises(UsageError, match=r'layer_types=.*sliding_window=7'):
      fields(MISTRAL, sliding_window=7, layer_types=wrong, **kept)


ROTATIONS = (
  'rope',
  'rope(theta=500.0)',
  "rope(scaling='linear(3)')",
  "rope(scaling='llama3(8, 64)')",
  "rope(scaling='yarn(4, 32)')",
  "rope(scaling='yarn(4, 32, truncate=False, attention_factor=1.5)')",
)


@pytest.mark.parametrize(
  'position, attention',
  [
    *((position, 'full') for position in ROTATIONS),
    ('rope', 'local(window=5)'),
    *(
      pytest.param(position, 'local(window=5)', marks=pytest.mark.slow)
      for position in ROTATIONS[1:]
    ),
  ],
)
def test_our_own_models_come_back(position, attention, tmp_path):
  model = tiny.model(**MODEL | {'position': position, 'attention': attention})
  params = tiny.params(model)
  hf.save(str(tmp_path), model, params)
  again, params_again = hf.load(str(tmp_path))
  expected = 'llama' if attention == 'full' else 'mistral'
  assert again.family.model_type == expected
  jax.tree.map(np.testing.assert_array_equal, params_again, params)
  ids = tiny.tokens(2, 11)
  np.testing.assert_allclose(
    hf.forward(again, params_again, input_ids=ids)['logits'],
    hf.forward(model, params, input_ids=ids)['logits'],
    rtol=1e-5,
    atol=1e-5,
  )
  # An older release reads the older spelling.
  config = again.options
  old = {n: config.get(n) for n in ('rope_theta', 'rope_scaling')}
  assert (
    LLAMA.fields(Options({**CONFIG, **old, 'num_key_value_heads': 2}))[
      'position'
    ]
    == again.position
  )


def test_a_layout_that_hugging_face_does_not_have(tmp_path):
  model = tiny.model(**MODEL | {'position': "rope(layout='interleaved')"})
  with pytest.raises(UsageError, match=r'llama cannot: model\.position'):
    hf.save(str(tmp_path), model, tiny.params(model))
