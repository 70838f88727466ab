# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""LLaMA and its descendants: options both ways, and Mixtral's experts."""

import math
import re

import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core.spec import UsageError
from gpt_jax.hf.base import Options
from gpt_jax.hf.llama import GEMMA2, LLAMA
from tests.support import checkpoints, tiny
from tests.support.checkpoints import fields
from tests.support.golden_io import ROOT, case, config, tensors

MISTRAL = ROOT / 'mistral_lm'
# For Mixtral.
DECODER = {
  'num_layers': 2,
  'norm': 'rmsnorm',
  'bias': 'none',
  'position': 'rope',
  'head_size': 6,
  'output': 'untied',
}
MIXTURE = "switch(num_experts=3, expert='swiglu', top_k=2{})"


def position(**options):
  return fields('llama', **options)['position']


def both_spellings(theta, **scaling):
  """The position that both say; they must agree."""
  legacy = position(rope_theta=theta, rope_scaling=scaling or None)
  new = {'rope_type': 'default', **scaling, 'rope_theta': theta}
  assert position(rope_parameters=new) == legacy
  if scaling:  # before 4.43 the key was `type`
    old = {'type' if k == 'rope_type' else k: v for k, v in scaling.items()}
    assert position(rope_theta=theta, rope_scaling=old) == legacy
  return legacy


def test_defaults_of_llama():
  found = fields('llama')
  assert found['num_kv_heads'] == 6
  assert found['position'] == 'rope(theta=10000.0)'
  assert found['bias'] == 'none'
  assert found['output'] == 'untied'
  assert found['norm'] == 'rmsnorm(epsilon=1e-06)'
  # Null is as good as nothing.
  nulls = {'head_dim': None, 'num_key_value_heads': None, 'rope_scaling': None}
  assert fields('llama', hidden_size=24, **nulls) == fields('llama', hidden_size=24, head_dim=4)


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
  found = fields('llama', attention_bias=attention, mlp_bias=ffn)
  assert found['bias'] == bias
  written = LLAMA.options(tiny.model(ffn='swiglu', norm='rmsnorm', position='rope', bias=bias))
  assert written['attention_bias'] == attention
  assert written['mlp_bias'] == ffn


@pytest.mark.parametrize(
  'name, ours',
  [('silu', 'swiglu'), ('gelu', 'geglu'), ('gelu_pytorch_tanh', 'geglu_tanh'), ('relu', 'reglu')],
)
def test_activations(name, ours):
  assert fields('llama', hidden_act=name)['ffn'] == ours


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


def test_yarn():
  betas = 'beta_fast=32.0, beta_slow=1.0'
  given = {'factor': 4.0, 'original_max_position_embeddings': 32}
  start = 'factor=4.0, original_context=32, '
  assert yarn(**given) == start + betas
  # The factor may be left to the ratio of the two lengths.
  assert yarn(original_max_position_embeddings=32, factor=None) == start + betas
  # Without the original length it is the whole one.
  assert yarn(factor=4.0) == 'factor=4.0, original_context=128, ' + betas
  assert yarn(**given, beta_fast=16, beta_slow=2) == (start + 'beta_fast=16, beta_slow=2')
  assert yarn(**given, attention_factor=1.5) == (start + betas + ', attention_factor=1.5')
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


def test_mistral_windows():
  kept = {'num_key_value_heads': None}
  found = fields('mistral', sliding_window=7, **kept)
  assert found['attention'] == 'local(window=7)'
  assert found['num_kv_heads'] == 6
  assert fields('mistral', sliding_window=None, **kept)['attention'] == 'full'
  # What transformers takes if the option is not there at all.
  absent = fields('mistral', num_attention_heads=16)
  assert absent['attention'] == 'local(window=4096)'
  assert absent['num_kv_heads'] == 8
  with pytest.raises(UsageError, match='the default, 8, must divide num_att'):
    fields('mistral')
  agreeing = ['sliding_attention'] * 3
  found = fields('mistral', sliding_window=7, layer_types=agreeing, **kept)
  assert found['attention'] == 'local(window=7)'
  for wrong in ([*agreeing[1:], 'full_attention'], ['full_attention'] * 3):
    with pytest.raises(UsageError, match=r'layer_types=.*sliding_window=7'):
      fields('mistral', sliding_window=7, layer_types=wrong, **kept)


def test_defaults_of_qwen3():
  found = fields('qwen3')
  assert found['block'] == "pre(qk_norm='per_head')"
  assert found['attention'] == 'full'
  assert found['bias'] == 'none'
  assert found['output'] == 'untied'
  assert found['context_length'] == 32_768
  assert fields('qwen3', head_dim=None)['head_size'] == 128
  assert fields('qwen3', attention_bias=True)['bias'] == 'where(qkv=True, out=True)'
  assert fields('qwen3', tie_word_embeddings=True)['output'] == 'tied'


def test_windows_of_qwen3():
  window, sliding = 'local(window=7)', 'sliding_attention'
  given = {'use_sliding_window': True, 'sliding_window': 7}
  found = fields('qwen3', **given, max_window_layers=3)['attention']
  assert found == ', '.join(['full'] * 3 + [window] * 2)
  assert fields('qwen3', **given, max_window_layers=0)['attention'] == window
  # The default of 28 layers is more than there are.
  assert fields('qwen3', **given)['attention'] == 'full'
  # Without the switch the size does nothing.
  off = fields('qwen3', sliding_window=7, max_window_layers=0)
  assert off['attention'] == 'full'
  kinds = [sliding, 'full_attention', sliding, sliding, sliding]
  named = fields('qwen3', **given, layer_types=kinds)['attention']
  assert named == ', '.join([window, 'full', *[window] * 3])


def test_defaults_of_olmo2():
  found = fields('olmo2')
  assert found['block'] == "reordered(qk_norm='all_heads')"
  assert found['norm'] == 'rmsnorm(epsilon=1e-05)'
  assert found['num_kv_heads'] == 6
  assert found['head_size'] == 8
  assert found['output'] == 'untied'
  assert found['context_length'] == 2048
  assert fields('olmo2', attention_bias=True)['bias'] == 'where(qkv=True, out=True)'
  assert fields('olmo2', tie_word_embeddings=True)['output'] == 'tied'


def test_defaults_of_gemma2():
  found = fields('gemma2')
  # Six windows and full layers in turn, then another window.
  window = 'local(window=5)'
  assert found['attention'] == f'{f"{window}, full, " * 3}{window}'
  assert fields('gemma2', num_hidden_layers=6)['attention'] == f'{window}, full'
  assert found['attention_scale'] == 'rsqrt(size=256, softcap=50.0)'
  assert found['block'] == 'sandwich'
  assert found['norm'] == 'rmsnorm(epsilon=1e-06, plus_one=True)'
  assert found['input'] == "tokens(scale='sqrt')"
  assert found['output'] == 'tied(softcap=30.0)'
  assert found['ffn'] == 'geglu_tanh'
  assert found['position'] == 'rope(theta=10000.0)'
  bare = {**checkpoints.REQUIRED['gemma2']}
  del bare['head_dim'], bare['sliding_window']
  found = GEMMA2.fields(Options(bare))
  assert found['head_size'] == 256
  assert found['attention'].startswith('local(window=4096), full')


def test_defaults_of_gemma3():
  found = fields('gemma3_text')
  window = 'local(window=5)'
  assert found['attention'] == f'{f"{window}, " * 5}full, {window}'
  assert found['attention_scale'] == 'rsqrt(size=256)'
  assert found['block'] == "sandwich(qk_norm='per_head')"
  assert found['output'] == 'tied'
  assert found['position'] == 'rope(theta=1000000.0, local_theta=10000.0)'
  assert found['context_length'] == 131_072


def test_bounds_and_scales():
  found = fields('gemma2', query_pre_attn_scalar=8, attn_logit_softcapping=None)
  assert found['attention_scale'] == 'rsqrt'
  assert fields('gemma2', final_logit_softcapping=None)['output'] == 'tied'
  for family in ('gemma2', 'gemma3_text'):
    found = fields(family, final_logit_softcapping=7, tie_word_embeddings=False)
    assert found['output'] == 'untied(softcap=7)'
    assert fields(family, hidden_activation='silu')['ffn'] == 'swiglu'


def test_the_two_spellings_of_both_bases():
  scaling = {'rope_type': 'linear', 'factor': 8.0}
  expected = "rope(theta=5000.0, scaling='linear(factor=8.0)', local_theta=70.0)"
  older = {'rope_theta': 5000.0, 'rope_local_base_freq': 70.0, 'rope_scaling': scaling}
  newer = {
    'full_attention': {'rope_theta': 5000.0, **scaling},
    'sliding_attention': {'rope_theta': 70.0, 'rope_type': 'default'},
  }
  assert fields('gemma3_text', **older)['position'] == expected
  assert fields('gemma3_text', rope_parameters=newer)['position'] == expected


def test_twin_experts_of_mixtral_are_mistral(tmp_path):
  """Also with one expert per token, whose gate HF makes 1."""
  values = config(MISTRAL) | {'model_type': 'mixtral'}
  values |= {'architectures': ['MixtralForCausalLM']}
  values |= {'num_local_experts': 2, 'num_experts_per_tok': 1}
  weights = {}
  for i in range(2):
    moe = f'block_sparse_moe.experts.{i}'
    weights |= checkpoints.renamed(
      tensors(MISTRAL),
      (r'mlp\.gate_proj', f'{moe}.w1'),
      (r'mlp\.up_proj', f'{moe}.w3'),
      (r'mlp\.down_proj', f'{moe}.w2'),
    )
  router = np.sin(np.arange(2 * values['hidden_size'], dtype=np.float32))
  router = router.reshape(2, -1)
  for i in range(values['num_hidden_layers']):
    weights[f'model.layers.{i}.block_sparse_moe.gate.weight'] = router
  model, params = hf.load(checkpoints.write(tmp_path / 'in', values, weights))
  golden = case(MISTRAL, 'main')
  out = hf.forward(model, params, **golden.inputs)
  assert golden.max_error('logits', out['logits']) < 1e-4
  assert golden.max_error('loss', out['loss']) < 1e-4
  assert 'router_logits' not in out
  checkpoints.assert_round_trip(tmp_path / 'out', model, params, weights)


@pytest.mark.slow
def test_what_matters_in_training_only_is_no_obstacle(tmp_path):
  for_training = ', capacity_factor=1.0, jitter=0.2, z_loss=0.1, balance=0.3'
  model = tiny.model(**DECODER, ffn=MIXTURE.format(for_training))
  params = tiny.params(model)
  hf.save(str(tmp_path), model, params)
  assert config(tmp_path)['model_type'] == 'mixtral'
  inputs = {'input_ids': np.arange(12).reshape(2, 6)}
  one, two = (
    hf.forward(*m, **inputs, output_router_logits=True)
    for m in ((model, params), hf.load(str(tmp_path)))
  )
  assert one['router_logits'].shape == (2, 2, 6, 3)
  for name in ('logits', 'router_logits', 'aux_loss'):
    np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize(
  'ffn',
  [
    MIXTURE.format(', eval_capacity_factor=1.0'),
    MIXTURE.format(', renormalize=False'),
    MIXTURE.format(', capacity=2'),
    f'{MIXTURE.format("")}, swiglu',
    "switch(num_experts=3, expert='swiglu')",
  ],
)
def test_what_hugging_face_lacks_is_refused(tmp_path, ffn):
  model = tiny.model(**DECODER, ffn=ffn)
  with pytest.raises(UsageError, match='no Hugging Face model') as error:
    hf.save(str(tmp_path), model, {})
  assert re.search(r'nearest is mixtral, but for model\.ffn=.*?switch\(', str(error.value))
