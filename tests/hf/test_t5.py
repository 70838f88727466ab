# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""T5's versions and configs, old files, and what is refused."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpt_jax import hf
from gpt_jax.hf.base import Options
from gpt_jax.hf.seq2seq import T5
from gpt_jax.spec import UsageError
from tests.support.golden_io import ROOT, case, config, tensors

V10, V11, CLS = (ROOT / n for n in ('t5_v10', 't5_v11', 't5_cls'))
SCALED = "tied(scale='rsqrt')"


def write(folder, values, weights):
  folder.mkdir(exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(values))
  save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})
  return str(folder)


def fields(**options):
  sizes = {'vocab_size': 23, 'num_layers': 3, 'd_model': 17, 'num_heads': 5}
  sizes |= {'d_kv': 7, 'd_ff': 29}
  return T5.fields(Options(sizes | options))


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
def test_versions_in_both_spellings(options, output):
  assert fields(**options)['output'] == output


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
def test_feed_forward_layers(proj, ffn, activation):
  derived = {
    'dense_act_fn': activation,
    'is_gated_act': proj.startswith('gated'),
  }
  assert fields(feed_forward_proj=proj)['ffn'] == ffn
  assert fields(feed_forward_proj=proj, **derived)['ffn'] == ffn


def test_defaults():
  found = fields()
  assert found['num_layers'] == found['num_encoder_layers'] == 3
  assert found['position'] == 't5_bias(num_buckets=32, max_distance=128)'
  assert found['context_length'] == 512
  assert fields(num_decoder_layers=2)['num_layers'] == 2


def test_older_files(tmp_path):
  weights = tensors(V10)
  shared = weights['shared.weight']
  for name in ('encoder.embed_tokens', 'decoder.embed_tokens', 'lm_head'):
    weights[f'{name}.weight'] = shared.copy()
  never_used = (
    'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight'
  )
  buffer = {never_used: np.ones((8, 4), np.float32)}
  values = config(V10)
  for name in ('dense_act_fn', 'is_gated_act', 'scale_decoder_outputs'):
    del values[name]
  model, params = hf.load(write(tmp_path / 'in', values, weights | buffer))
  golden = case(V10, 'main')
  out = hf.forward(model, params, **golden.inputs)
  assert golden.max_error('logits', out['logits']) < 1e-4
  hf.save(str(tmp_path / 'out'), model, params)
  found = load_file(tmp_path / 'out' / 'model.safetensors')
  assert {*found} == {*weights}
  assert config(tmp_path / 'out') == values

  weights['decoder.embed_tokens.weight'][1] += 1
  folder = write(tmp_path / 'in', values, weights)
  with pytest.raises(UsageError, match=r'shared\.weight and decoder\.embed_'):
    hf.load(folder)


def test_the_decoder_reads_the_labels_shifted_right():
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


def test_inputs_that_are_refused():
  ids = np.ones((1, 3), np.int32)
  model, params = hf.load(str(V10))
  with pytest.raises(UsageError, match='decoder_input_ids or labels: are'):
    hf.forward(model, params, input_ids=ids)
  with pytest.raises(UsageError, match=r'position_ids.*takes none'):
    hf.forward(model, params, input_ids=ids, labels=ids, position_ids=ids)
  model, params = hf.load(str(CLS))
  with pytest.raises(UsageError, match='no eos_token_id=1 in a row'):
    hf.forward(model, params, input_ids=ids + 1)
  model, params = hf.load(str(ROOT / 'gpt2_lm'))
  with pytest.raises(UsageError, match=r'decoder_input_ids.*no encoder'):
    hf.forward(model, params, input_ids=ids, decoder_input_ids=ids)


def test_every_wrong_tensor_is_listed(tmp_path):
  weights = tensors(V11)
  del weights['lm_head.weight']
  del weights['decoder.block.1.layer.1.EncDecAttention.k.weight']
  weights['encoder.block.1.layer.1.DenseReluDense.wi_0.weight'] = np.zeros(
    (64, 31), np.float32
  )
  weights['encoder.block.2.layer.0.layer_norm.weight'] = np.zeros(
    32, np.float32
  )
  with pytest.raises(UsageError) as error:
    hf.load(write(tmp_path / 'in', config(V11), weights))
  for text in (
    'lm_head.weight is missing',
    'decoder.block.1.layer.1.EncDecAttention.k.weight is missing',
    'encoder.block.1.layer.1.DenseReluDense.wi_0.weight is (64, 31), not',
    'encoder.block.2.layer.0.layer_norm.weight is not of this model',
  ):
    assert text in str(error.value)


@pytest.mark.parametrize(
  'option, value',
  [
    ('is_encoder_decoder', False),
    ('is_decoder', True),
    ('feed_forward_proj', 'gated-mish'),
    ('dense_act_fn', 'gelu'),
    ('is_gated_act', True),
    ('d_kv', None),
    ('architectures', ['T5EncoderModel']),
  ],
)
def test_unsupported_options_are_named(tmp_path, option, value):
  folder = write(tmp_path / 'in', config(V10) | {option: value}, tensors(V10))
  with pytest.raises(UsageError) as error:
    hf.load(folder)
  assert f'{option}={value!r}' in str(error.value)


def test_scaled_but_not_tied_is_refused():
  with pytest.raises(UsageError, match='scale_decoder_outputs=True: contra'):
    fields(tie_word_embeddings=False, scale_decoder_outputs=True)
