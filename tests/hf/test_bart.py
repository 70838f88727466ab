# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BART, mBART and Marian: old files, gradients, and what is refused."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpt_jax import hf
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError
from tests.support.golden_io import ROOT, case, config, meta, tensors

BART, MBART, MARIAN = (ROOT / f'{n}_lm' for n in ('bart', 'mbart', 'marian'))
CLASSES = ROOT / 'bart_cls'


def write(folder, values, weights):
  folder.mkdir(exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(values))
  save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})
  return str(folder)


def our_own(model):
  """As if it had been trained here."""
  fields = {n: getattr(model, n) for n in Transformer.__dataclass_fields__}
  return Transformer(**{**fields, 'parent': None, 'name': None})


def test_older_files(tmp_path):
  """Tables are repeated; the bias is missing, or zero as in BART itself."""
  weights = tensors(BART)
  shared = weights['model.shared.weight']
  for name in ('model.encoder.embed_tokens', 'model.decoder.embed_tokens'):
    weights[f'{name}.weight'] = shared.copy()
  weights['lm_head.weight'] = shared.copy()
  values = config(BART) | {'normalize_before': False, 'extra_pos_embeddings': 2}
  bias = weights['final_logits_bias']
  weights['final_logits_bias'] = np.zeros_like(bias)
  model, params = hf.load(write(tmp_path / 'in', values, weights))
  assert model.output == 'tied'
  assert 'head_bias' not in params
  golden = case(BART, 'decmask')
  logits = hf.forward(model, params, **golden.inputs)['logits']
  assert golden.max_error('logits', logits + bias[None]) < 1e-4
  hf.save(str(tmp_path / 'out'), model, params)
  found = load_file(tmp_path / 'out' / 'model.safetensors')
  assert {*found} == {*weights}
  for name, value in weights.items():
    np.testing.assert_array_equal(found[name], value, name, strict=True)
  assert config(tmp_path / 'out') == values

  del weights['final_logits_bias']
  again, _ = hf.load(write(tmp_path / 'without', values, weights))
  assert again == model
  weights['lm_head.weight'][1] += 1
  folder = write(tmp_path / 'in', values, weights)
  with pytest.raises(UsageError, match=r'shared\.weight and lm_head\.weight'):
    hf.load(folder)


def test_marians_sines_may_be_in_the_file(tmp_path):
  weights = tensors(MARIAN)
  for stack in ('encoder', 'decoder'):
    name = f'model.{stack}.embed_positions.weight'
    weights[name] = np.ones((40, 32), np.float32)
  model, _ = hf.load(write(tmp_path / 'in', config(MARIAN), weights))
  assert model == hf.load(str(MARIAN))[0]


@pytest.mark.parametrize('folder', [BART, MBART, MARIAN], ids=lambda f: f.name)
def test_models_of_our_own(folder, tmp_path):
  """Each goes to its own family, without a bias with zeros for one."""
  model, params = hf.load(str(folder))
  model = our_own(model).clone(output='tied')
  del params['head_bias']
  hf.save(str(tmp_path), model, params)
  assert config(tmp_path)['model_type'] == meta(folder)['model_type']
  expected = tensors(folder)
  expected['final_logits_bias'] = np.zeros((1, 112), np.float32)
  found = tensors(tmp_path)
  assert {*found} == {*expected}
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, name, strict=True)
  assert our_own(hf.load(str(tmp_path))[0]) == model


def test_sines_side_by_side_are_no_marian(tmp_path):
  model, params = hf.load(str(MARIAN))
  model = our_own(model).clone(position='sinusoidal')
  with pytest.raises(UsageError, match=r'marian cannot: model\.position='):
    hf.save(str(tmp_path), model, params)


def test_the_decoder_reads_the_labels_shifted_right():
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

  gradients = jax.tree.map(np.asarray, jax.grad(loss)(params))
  hf.save(str(tmp_path), model, gradients)
  found = {n: np.linalg.norm(x.ravel()) for n, x in tensors(tmp_path).items()}
  expected = meta(BART)['loss_grad_norm']
  assert {*found} - {*expected} == {'final_logits_bias'}
  for name, value in expected.items():
    np.testing.assert_allclose(
      found[name], value, rtol=1e-3, atol=1e-6, err_msg=name
    )


@pytest.mark.parametrize(
  'folder, option, value',
  [
    (BART, 'normalize_before', True),
    (BART, 'add_final_layer_norm', True),
    (BART, 'normalize_embedding', False),
    (BART, 'static_position_embeddings', True),
    (BART, 'encoder_attention_heads', 5),
    (BART, 'decoder_attention_heads', 0),
    (BART, 'tie_word_embeddings', False),
    (BART, 'is_encoder_decoder', False),
    (BART, 'is_decoder', True),
    (BART, 'activation_function', 'mish'),
    (BART, 'architectures', ['BartForCausalLM']),
    (MBART, 'normalize_before', False),
    (MARIAN, 'share_encoder_decoder_embeddings', False),
    (MARIAN, 'decoder_vocab_size', 113),
    (MARIAN, 'static_position_embeddings', False),
  ],
)
def test_unsupported_options_are_named(tmp_path, folder, option, value):
  values = config(folder) | {option: value}
  made = write(tmp_path / 'in', values, tensors(folder))
  with pytest.raises(UsageError) as error:
    hf.load(made)
  assert f'{option}={value!r}' in str(error.value)


def test_a_row_without_an_end_has_no_class():
  model, params = hf.load(str(CLASSES))
  ids = np.full((1, 3), 5, np.int32)
  with pytest.raises(UsageError, match='no eos_token_id=2 in a row'):
    hf.forward(model, params, input_ids=ids)
