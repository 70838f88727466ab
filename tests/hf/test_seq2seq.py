# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Encoder-decoders: options, old files, gradients, and Switch's experts.

Experts that are all the same are a dense layer, so that a dense checkpoint in
disguise must compute what was recorded of it.
"""

import importlib
import importlib.util

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from gpt_jax import hf
from gpt_jax.core.spec import UsageError
from gpt_jax.hf.base import ffns
from gpt_jax.hf.seq2seq import SWITCH_TRANSFORMERS
from tests.support import checkpoints, tiny
from tests.support.checkpoints import fields
from tests.support.golden_io import ROOT, case, config, meta, tensors

V10 = ROOT / 't5_v10'
INSTALLED = all(map(importlib.util.find_spec, ('transformers', 'torch')))
BART, MBART, MARIAN = (ROOT / f'{n}_lm' for n in ('bart', 'mbart', 'marian'))
SCALED = "tied(scale='rsqrt')"


@pytest.mark.parametrize(
  'options, output',
  [
    ({}, SCALED),
    ({'tie_word_embeddings': True}, SCALED),
    ({'tie_word_embeddings': True, 'scale_decoder_outputs': True}, SCALED),
    ({'tie_word_embeddings': False}, 'untied'),
    ({'tie_word_embeddings': True, 'scale_decoder_outputs': False}, 'untied'),
    ({'tie_word_embeddings': False, 'scale_decoder_outputs': False}, 'untied'),
  ],
)
def test_versions_of_t5_in_both_spellings(options, output):
  assert fields('t5', **options)['output'] == output


@pytest.mark.parametrize(
  'proj, ffn, activation',
  [
    ('relu', 'relu', 'relu'),
    ('gelu', 'gelu', 'gelu'),
    ('gated-gelu', 'geglu_tanh', 'gelu_new'),
    ('gated-silu', 'swiglu', 'silu'),
    ('gated-gelu_pytorch_tanh', 'geglu_tanh', 'gelu_pytorch_tanh'),
    ('swish', 'silu', 'swish'),
  ],
)
def test_feed_forward_layers_of_t5(proj, ffn, activation):
  derived = {'dense_act_fn': activation, 'is_gated_act': proj.startswith('gated')}
  assert fields('t5', feed_forward_proj=proj)['ffn'] == ffn
  assert fields('t5', feed_forward_proj=proj, **derived)['ffn'] == ffn


def test_defaults_of_t5():
  found = fields('t5')
  assert found['num_layers'] == found['num_encoder_layers'] == 3
  assert found['position'] == 't5_bias(num_buckets=32, max_distance=128)'
  assert found['context_length'] == 512
  assert fields('t5', num_decoder_layers=2)['num_layers'] == 2


def test_older_files_of_t5(tmp_path):
  weights = tensors(V10)
  shared = weights['shared.weight']
  for name in ('encoder.embed_tokens', 'decoder.embed_tokens', 'lm_head'):
    weights[f'{name}.weight'] = shared.copy()
  never_used = 'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight'
  buffer = {never_used: np.ones((8, 4), np.float32)}
  values = config(V10)
  for name in ('dense_act_fn', 'is_gated_act', 'scale_decoder_outputs'):
    del values[name]
  model, params = hf.load(checkpoints.write(tmp_path / 'in', values, weights | buffer))
  golden = case(V10, 'main')
  out = hf.forward(model, params, **golden.inputs)
  assert golden.max_error('logits', out['logits']) < 1e-4
  hf.save(str(tmp_path / 'out'), model, params)
  found = load_file(tmp_path / 'out' / 'model.safetensors')
  assert {*found} == {*weights}
  assert config(tmp_path / 'out') == values

  weights['decoder.embed_tokens.weight'][1] += 1
  folder = checkpoints.write(tmp_path / 'in', values, weights)
  with pytest.raises(UsageError, match=r'shared\.weight and decoder\.embed_'):
    hf.load(folder)


def test_the_decoder_of_t5_reads_the_labels_shifted_right():
  """Behind the start token, and with padding where nothing counts."""
  model, params = hf.load(str(V10))
  inputs = {**case(V10, 'main').inputs}
  del inputs['decoder_input_ids']
  labels = inputs['labels']
  assert (labels == -100).any()
  shifted = np.zeros_like(labels)
  shifted[:, 1:] = np.where(labels == -100, 0, labels)[:, :-1]
  one = hf.forward(model, params, **inputs)
  two = hf.forward(model, params, **inputs, decoder_input_ids=shifted)
  jax.tree.map(np.testing.assert_array_equal, one, two)


def test_older_files_of_bart(tmp_path):
  """Tables are repeated; the bias is missing, or zero as in BART itself."""
  weights = tensors(BART)
  shared = weights['model.shared.weight']
  for name in ('model.encoder.embed_tokens', 'model.decoder.embed_tokens'):
    weights[f'{name}.weight'] = shared.copy()
  weights['lm_head.weight'] = shared.copy()
  values = config(BART) | {'normalize_before': False, 'extra_pos_embeddings': 2}
  bias = weights['final_logits_bias']
  weights['final_logits_bias'] = np.zeros_like(bias)
  model, params = hf.load(checkpoints.write(tmp_path / 'in', values, weights))
  assert model.output == 'tied'
  assert 'head_bias' not in params
  golden = case(BART, 'decmask')
  logits = hf.forward(model, params, **golden.inputs)['logits']
  assert golden.max_error('logits', logits + bias[None]) < 1e-4
  hf.save(str(tmp_path / 'out'), model, params)
  checkpoints.assert_tensors(tmp_path / 'out', weights)
  assert config(tmp_path / 'out') == values

  del weights['final_logits_bias']
  again, _ = hf.load(checkpoints.write(tmp_path / 'without', values, weights))
  assert again == model
  weights['lm_head.weight'][1] += 1
  folder = checkpoints.write(tmp_path / 'in', values, weights)
  with pytest.raises(UsageError, match=r'shared\.weight and lm_head\.weight'):
    hf.load(folder)


@pytest.mark.skipif(not INSTALLED, reason="needs torch: pip install '.[hf]'")
def test_t5_1_1_with_tied_tables(tmp_path):
  """As transformers 5 writes it: tied, and outputs without a scale."""
  transformers = importlib.import_module('transformers')
  torch = importlib.import_module('torch')
  sizes = {'vocab_size': 31, 'd_model': 24, 'd_kv': 7, 'd_ff': 17}
  theirs = transformers.T5ForConditionalGeneration(
    transformers.T5Config(
      **sizes,
      **{'num_layers': 2, 'num_heads': 3, 'decoder_start_token_id': 0},
      **{'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False},
    )
  ).eval()
  values = theirs.config.to_dict()
  assert values['tie_word_embeddings'] and not values['scale_decoder_outputs']
  tied = ('lm_head', 'embed_tokens')
  weights = {
    n: x.numpy() for n, x in theirs.state_dict().items() if not any(name in n for name in tied)
  }
  folder = checkpoints.write(tmp_path / 'in', values, weights)
  model, params = hf.load(folder)
  inputs = {'input_ids': np.arange(3, 14)[None], 'decoder_input_ids': np.arange(5, 12)[None]}
  with torch.no_grad():
    expected = theirs(**{n: torch.tensor(x) for n, x in inputs.items()}).logits
  found = hf.forward(model, params, **inputs)['logits']
  np.testing.assert_allclose(found, expected.numpy(), atol=2e-5)
  checkpoints.assert_round_trip(tmp_path / 'out', model, params, weights)
  plain = checkpoints.plain(model)
  checkpoints.assert_round_trip(tmp_path / 'own', plain, params, weights)
  assert not config(tmp_path / 'own')['scale_decoder_outputs']
  # Without that option the table is missing.
  values['tie_word_embeddings'] = False
  folder = checkpoints.write(tmp_path / 'in', values, weights)
  with pytest.raises(UsageError, match=r'lm_head.weight is missing'):
    hf.load(folder)


@pytest.mark.skipif(not INSTALLED, reason="needs torch: pip install '.[hf]'")
def test_marian_of_an_odd_width(tmp_path):
  """Its last sine has no cosine, as in transformers."""
  transformers = importlib.import_module('transformers')
  torch = importlib.import_module('torch')
  sizes = {
    f'{stack}_{name}': size
    for stack in ('encoder', 'decoder')
    for name, size in (('layers', 1), ('attention_heads', 3), ('ffn_dim', 17))
  }
  theirs = transformers.MarianMTModel(
    transformers.MarianConfig(
      **sizes,
      **{'d_model': 33, 'vocab_size': 23, 'max_position_embeddings': 19},
      **{'pad_token_id': 22, 'decoder_start_token_id': 22, 'init_std': 0.3},
    )
  ).eval()
  computed = ('lm_head', 'embed_tokens', 'embed_positions')
  weights = {
    n: x.numpy() for n, x in theirs.state_dict().items() if not any(name in n for name in computed)
  }
  folder = checkpoints.write(tmp_path / 'in', theirs.config.to_dict(), weights)
  model, params = hf.load(folder)
  inputs = {'input_ids': np.arange(1, 15)[None], 'decoder_input_ids': np.arange(3, 16)[None]}
  with torch.no_grad():
    expected = theirs(**{n: torch.tensor(x) for n, x in inputs.items()}).logits
  found = hf.forward(model, params, **inputs)['logits']
  np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
  checkpoints.assert_round_trip(tmp_path / 'out', model, params, weights)


def test_marians_sines_may_be_in_the_file(tmp_path):
  weights = tensors(MARIAN)
  for stack in ('encoder', 'decoder'):
    name = f'model.{stack}.embed_positions.weight'
    weights[name] = np.ones((40, 32), np.float32)
  model, _ = hf.load(checkpoints.write(tmp_path / 'in', config(MARIAN), weights))
  assert model == hf.load(str(MARIAN))[0]


def test_the_decoder_of_bart_reads_the_labels_shifted_right():
  """MBART's starts with the last token of what it is to say."""
  for folder in (BART, MBART):
    model, params = hf.load(str(folder))
    golden = case(folder, 'main')
    inputs = {**golden.inputs}
    del inputs['decoder_input_ids']
    out = hf.forward(model, params, **inputs)
    assert golden.max_error('logits', out['logits']) < 1e-4


def test_gradients(tmp_path):
  """Of the loss, each tensor's norm is what transformers found."""
  model, params = hf.load(str(BART))
  inputs = case(BART, 'main').inputs

  def loss(params):
    return hf.forward(model, params, **inputs)['loss']

  gradients = jax.tree.map(np.asarray, jax.jit(jax.grad(loss))(params))
  hf.save(str(tmp_path), model, gradients)
  found = {n: np.linalg.norm(x.ravel()) for n, x in tensors(tmp_path).items()}
  expected = meta(BART)['loss_grad_norm']
  assert {*found} - {*expected} == {'final_logits_bias'}
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_one_expert_of_switch_is_t5(tmp_path):
  """All layers of the encoder, every second of the decoder."""
  values = config(V10) | {'model_type': 'switch_transformers'}
  values |= {'architectures': ['SwitchTransformersForConditionalGeneration']}
  values |= {'num_experts': 1, 'expert_capacity': 64}
  layers = values['num_layers'], values['num_decoder_layers']
  values |= {'num_sparse_encoder_layers': layers[0]}
  values |= {'num_sparse_decoder_layers': layers[1] // 2}
  mlp, expert = r'\1.mlp', r'\1.mlp.experts.expert_0'
  weights = checkpoints.renamed(
    tensors(V10),
    (r'(encoder.*)\.DenseReluDense', expert),
    (r'(decoder\.block\.\d*[13579]\..*)\.DenseReluDense', expert),
    (r'(decoder.*)\.DenseReluDense', mlp),
  )
  router = np.ones((1, values['d_model']), np.float32)
  for name in [n for n in weights if n.endswith('expert_0.wi.weight')]:
    name = name.replace('experts.expert_0.wi', 'router.classifier')
    weights[name] = router
  model, params = hf.load(checkpoints.write(tmp_path / 'in', values, weights))
  golden = case(V10, 'main')
  out = hf.forward(model, params, **golden.inputs, output_router_logits=True)
  for name in ('logits', 'encoder_last_hidden_state'):
    assert golden.max_error(name, out[name]) < 1e-4
  assert golden.max_error('loss', out['lm_loss']) < 1e-4
  # HF has no losses of a stack that is sparse throughout.
  assert out['encoder_z_loss'] == out['encoder_aux_loss'] == 0
  assert out['decoder_aux_loss'] == 1
  assert out['encoder_router_logits'].shape[0] == layers[0]
  assert out['decoder_router_logits'].shape[0] == layers[1] // 2
  checkpoints.assert_round_trip(tmp_path / 'out', model, params, weights)

  values['num_sparse_encoder_layers'] = layers[1] // 2
  with pytest.raises(UsageError, match=r'0\.layer\.1\.mlp\.wi\.weight is miss'):
    hf.load(checkpoints.write(tmp_path / 'in', values, weights))


def switch(**options):
  return tiny.model(**fields('switch_transformers', **options))


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


def test_defaults_of_switch():
  model = switch(num_layers=3)
  assert model.num_layers == 12
  assert switch(num_layers=3, num_decoder_layers=None).num_layers == 3
  of_experts = ffns(model, 'encoder')[0].kwargs
  assert (of_experts['num_experts'], of_experts['capacity']) == (8, 64)


@pytest.mark.slow
def test_routers_with_a_bias(tmp_path):
  """Logits = x W + b: those of the first router grow by just its bias."""
  values, weights = config(ROOT / 'switch_lm'), tensors(ROOT / 'switch_lm')
  ids = tiny.tokens(2, 5, vocab_size=values['vocab_size'])

  def routed(folder, values, weights):
    model, params = hf.load(checkpoints.write(tmp_path / folder, values, weights))
    out = hf.forward(model, params, input_ids=ids, labels=ids, output_router_logits=True)
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
  checkpoints.assert_round_trip(tmp_path / 'out', model, params, weights | biases)
  assert config(tmp_path / 'out')['router_bias'] is True


def test_input_tables_without_ties(tmp_path):
  """HF 5 has three of them then; we have one."""
  values = config(ROOT / 'switch_lm') | {'tie_word_embeddings': False}
  weights = tensors(ROOT / 'switch_lm')
  table = weights['shared.weight']
  weights['lm_head.weight'] = table + 1
  model, params = hf.load(checkpoints.write(tmp_path / 'in', values, weights))
  names = [f'{stack}.embed_tokens.weight' for stack in ('encoder', 'decoder')]
  weights |= {name: table.copy() for name in names}
  checkpoints.assert_round_trip(tmp_path / 'out', model, params, weights)
  weights[names[1]][3, 5] += 1
  with pytest.raises(UsageError, match='tie_word_embeddings=False is supp'):
    hf.load(checkpoints.write(tmp_path / 'in', values, weights))
