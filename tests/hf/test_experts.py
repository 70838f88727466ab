# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mixtral and Switch Transformers: their patterns, and what is refused.

Experts that are all the same are a dense layer, so that dense checkpoints in
disguise must compute what was recorded of them.
"""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpt_jax import hf
from gpt_jax.hf.base import Options, ffns
from gpt_jax.hf.seq2seq import SWITCH_TRANSFORMERS
from gpt_jax.spec import UsageError
from tests.support import tiny
from tests.support.golden_io import ROOT, case, config, tensors

MISTRAL, T5 = ROOT / 'mistral_lm', ROOT / 't5_v10'
DECODER = {'num_layers': 2, 'norm': 'rmsnorm', 'bias': 'none'}
DECODER |= {'position': 'rope', 'head_size': 6, 'output': 'untied'}
MIXTURE = "switch(num_experts=3, expert='swiglu', top_k=2{})"


def write(folder, values, weights):
  folder.mkdir(exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(values))
  save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})
  return str(folder)


def renamed(weights, *pairs):
  out = {}
  for name, value in weights.items():
    for old, new in pairs:
      name = re.sub(old, new, name)
    out[name] = value
  return out


def assert_round_trip(folder, model, params, weights):
  hf.save(str(folder), model, params)
  found = load_file(folder / 'model.safetensors')
  assert {*found} == {*weights}
  for name, value in weights.items():
    np.testing.assert_array_equal(found[name], value, name, strict=True)


def test_twin_experts_of_mixtral_are_mistral(tmp_path):
  """Also with one expert per token, whose gate HF makes 1."""
  values = config(MISTRAL) | {'model_type': 'mixtral'}
  values |= {'architectures': ['MixtralForCausalLM']}
  values |= {'num_local_experts': 2, 'num_experts_per_tok': 1}
  weights = {}
  for i in range(2):
    moe = f'block_sparse_moe.experts.{i}'
    weights |= renamed(
      tensors(MISTRAL),
      (r'mlp\.gate_proj', f'{moe}.w1'),
      (r'mlp\.up_proj', f'{moe}.w3'),
      (r'mlp\.down_proj', f'{moe}.w2'),
    )
  router = np.sin(np.arange(2 * values['hidden_size'], dtype=np.float32))
  router = router.reshape(2, -1)
  for i in range(values['num_hidden_layers']):
    weights[f'model.layers.{i}.block_sparse_moe.gate.weight'] = router
  model, params = hf.load(write(tmp_path / 'in', values, weights))
  golden = case(MISTRAL, 'main')
  out = hf.forward(model, params, **golden.inputs)
  assert golden.max_error('logits', out['logits']) < 1e-4
  assert golden.max_error('loss', out['loss']) < 1e-4
  assert 'router_logits' not in out
  assert_round_trip(tmp_path / 'out', model, params, weights)


@pytest.mark.slow
def test_one_expert_of_switch_is_t5(tmp_path):
  """All layers of the encoder, every second of the decoder."""
  values = config(T5) | {'model_type': 'switch_transformers'}
  values |= {'architectures': ['SwitchTransformersForConditionalGeneration']}
  values |= {'num_experts': 1, 'expert_capacity': 64}
  layers = values['num_layers'], values['num_decoder_layers']
  values |= {'num_sparse_encoder_layers': layers[0]}
  values |= {'num_sparse_decoder_layers': layers[1] // 2}
  mlp, expert = r'\1.mlp', r'\1.mlp.experts.expert_0'
  weights = renamed(
    tensors(T5),
    (r'(encoder.*)\.DenseReluDense', expert),
    (r'(decoder\.block\.\d*[13579]\..*)\.DenseReluDense', expert),
    (r'(decoder.*)\.DenseReluDense', mlp),
  )
  router = np.ones((1, values['d_model']), np.float32)
  for name in [n for n in weights if n.endswith('expert_0.wi.weight')]:
    name = name.replace('experts.expert_0.wi', 'router.classifier')
    weights[name] = router
  model, params = hf.load(write(tmp_path / 'in', values, weights))
  golden = case(T5, 'main')
  out = hf.forward(model, params, **golden.inputs, output_router_logits=True)
  for name in ('logits', 'encoder_last_hidden_state'):
    assert golden.max_error(name, out[name]) < 1e-4
  assert golden.max_error('loss', out['lm_loss']) < 1e-4
  # HF has no losses of a stack that is sparse throughout.
  assert out['encoder_z_loss'] == out['encoder_aux_loss'] == 0
  assert out['decoder_aux_loss'] == 1
  assert out['encoder_router_logits'].shape[0] == layers[0]
  assert out['decoder_router_logits'].shape[0] == layers[1] // 2
  assert_round_trip(tmp_path / 'out', model, params, weights)

  values['num_sparse_encoder_layers'] = layers[1] // 2
  with pytest.raises(UsageError, match=r'0\.layer\.1\.mlp\.wi\.weight is miss'):
    hf.load(write(tmp_path / 'in', values, weights))


SIZES = {'vocab_size': 23, 'd_model': 17, 'num_heads': 5, 'd_kv': 7}
SIZES |= {'d_ff': 29}


def switch(**options):
  fields = SWITCH_TRANSFORMERS.fields(Options(SIZES | options))
  return tiny.model(**fields)


@pytest.mark.parametrize(
  'num_layers, num_sparse, step, expected',
  [
    # As transformers 5.23 builds them.
    (4, 2, None, [1, 3]),
    (5, 2, None, [1, 3]),
    (7, 3, None, [1, 3, 5]),
    (3, 1, None, [1]),
    (3, 3, None, [0, 1, 2]),
    (1, 1, None, [0]),
    (3, 5, None, []),
    (4, 0, None, [1]),
    (4, 2, 0, []),
    (7, 2, 5, [1, 6]),
  ],
)
def test_layers_with_experts(num_layers, num_sparse, step, expected):
  options = {'num_layers': num_layers, 'num_decoder_layers': 2}
  options |= {'num_sparse_encoder_layers': num_sparse}
  options |= {'encoder_sparse_step': step, 'num_sparse_decoder_layers': 1}
  model = switch(**options)
  for stack, layers in (('encoder', expected), ('decoder', [1])):
    calls = ffns(model, stack)
    assert [i for i, c in enumerate(calls) if c.name == 'switch'] == layers
    assert calls[0].name in ('relu', 'switch')
  again = SWITCH_TRANSFORMERS.options(model)
  assert again['num_sparse_encoder_layers'] == len(expected)
  assert switch(**again) == model


def test_defaults():
  model = switch(num_layers=3)
  assert model.num_layers == 12
  assert switch(num_layers=3, num_decoder_layers=None).num_layers == 3
  of_experts = ffns(model, 'encoder')[0].kwargs
  assert (of_experts['num_experts'], of_experts['capacity']) == (8, 64)


@pytest.mark.parametrize(
  'name, option, value',
  [
    ('mixtral_lm', 'num_local_experts', 0),
    ('mixtral_lm', 'num_experts_per_tok', 5),
    ('mixtral_lm', 'router_jitter_noise', 1.0),
    ('mixtral_lm', 'router_aux_loss_coef', -0.1),
    ('mixtral_lm', 'sliding_window', 0),
    ('mixtral_lm', 'hidden_act', 'mish'),
    ('switch_lm', 'num_sparse_encoder_layers', -1),
    ('switch_lm', 'decoder_sparse_step', 1.5),
    ('switch_lm', 'expert_capacity', 0),
    ('switch_lm', 'router_dtype', 'bfloat16'),
    ('switch_lm', 'router_ignore_padding_tokens', True),
    ('switch_lm', 'router_type', 'experts_masked'),
    ('switch_lm', 'router_z_loss_coef', None),
    ('switch_lm', 'is_gated_act', True),
    ('switch_lm', 'feed_forward_proj', 'gated-gelu'),
    ('switch_lm', 'dense_act_fn', 'gated-gelu'),
  ],
)
def test_unsupported_options_are_named(tmp_path, name, option, value):
  if value is None:
    value = 'much'
  values = config(ROOT / name) | {option: value}
  folder = write(tmp_path / 'in', values, tensors(ROOT / name))
  with pytest.raises(UsageError) as error:
    hf.load(folder)
  assert f'{option}={value!r}' in str(error.value)


@pytest.mark.slow
def test_routers_with_a_bias(tmp_path):
  """Logits = x W + b: those of the first router grow by just its bias."""
  values, weights = config(ROOT / 'switch_lm'), tensors(ROOT / 'switch_lm')
  ids = tiny.tokens(2, 5, vocab_size=values['vocab_size'])

  def routed(folder, values, weights):
    model, params = hf.load(write(tmp_path / folder, values, weights))
    out = hf.forward(
      model, params, input_ids=ids, labels=ids, output_router_logits=True
    )
    return model, params, np.asarray(out['encoder_router_logits'])

  *_, plain = routed('plain', values, weights)
  biases, rng = {}, np.random.default_rng(0)
  for name in weights:
    if name.endswith('router.classifier.weight'):
      size = len(weights[name])
      bias = np.float32(rng.normal(size=size))
      biases[name.replace('weight', 'bias')] = bias
  with pytest.raises(UsageError, match=r'classifier\.bias'):
    routed('lost', values, weights | biases)
  values |= {'router_bias': True}
  with pytest.raises(UsageError, match=r'classifier\.bias'):
    routed('missing', values, weights)
  model, params, found = routed('in', values, weights | biases)
  first = min(name for name in biases if name.startswith('encoder'))
  np.testing.assert_allclose(found[0], plain[0] + biases[first], atol=1e-5)
  # Other experts are chosen, so that what follows is not the same.
  assert np.any(found[0].argmax(-1) != plain[0].argmax(-1))
  assert_round_trip(tmp_path / 'out', model, params, weights | biases)
  assert config(tmp_path / 'out')['router_bias'] is True


def test_input_tables_without_ties(tmp_path):
  """HF 5 has three of them then; we have one."""
  values = config(ROOT / 'switch_lm') | {'tie_word_embeddings': False}
  weights = tensors(ROOT / 'switch_lm')
  table = weights['shared.weight']
  weights['lm_head.weight'] = table + 1
  model, params = hf.load(write(tmp_path / 'in', values, weights))
  names = [f'{stack}.embed_tokens.weight' for stack in ('encoder', 'decoder')]
  weights |= {name: table.copy() for name in names}
  assert_round_trip(tmp_path / 'out', model, params, weights)
  weights[names[1]][3, 5] += 1
  with pytest.raises(UsageError, match='tie_word_embeddings=False is supp'):
    hf.load(write(tmp_path / 'in', values, weights))


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
  with pytest.raises(UsageError, match='no model of Hugging Face') as error:
    hf.save(str(tmp_path), model, {})
  assert re.search(r'mixtral cannot: model\.ffn=.*?switch\(', str(error.value))


def test_dense_models_have_no_routers():
  model, params = hf.load(str(ROOT / 'gpt2_lm'))
  ids = np.ones((1, 3), np.int32)
  with pytest.raises(UsageError, match='output_router_logits: this model has'):
    hf.forward(model, params, input_ids=ids, output_router_logits=True)
