# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BERT's older files, its other classes, and what is refused."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpt_jax import hf
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError
from tests.support.golden_io import ROOT, case, config, tensors

PRETRAINING = ROOT / 'bert_pretraining'
BIASES = ('cls.predictions.bias', 'cls.predictions.decoder.bias')


def write(folder, values, weights):
  folder.mkdir(exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(values))
  save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})
  return str(folder)


def as_published():
  """The tensors as Google's files have them."""
  weights = tensors(PRETRAINING)
  words = weights['bert.embeddings.word_embeddings.weight']
  weights['cls.predictions.decoder.weight'] = words.copy()
  weights['cls.predictions.decoder.bias'] = weights[BIASES[0]].copy()
  for name in [n for n in weights if 'LayerNorm' in n]:
    old = name.replace('LayerNorm.weight', 'LayerNorm.gamma')
    old = old.replace('LayerNorm.bias', 'LayerNorm.beta')
    weights[old] = weights.pop(name)
  return weights


def test_older_files(tmp_path):
  weights = as_published()
  ids = np.arange(40)[None]
  buffer = {'bert.embeddings.position_ids': ids}
  folder = write(tmp_path / 'in', config(PRETRAINING), weights | buffer)
  model, params = hf.load(folder)
  golden = case(PRETRAINING, 'main')
  out = hf.forward(model, params, **golden.inputs)
  assert golden.max_error('prediction_logits', out['prediction_logits']) < 1e-4

  hf.save(str(tmp_path / 'out'), model, params)
  found = load_file(tmp_path / 'out' / 'model.safetensors')
  assert {*found} == {*weights}
  for name, value in weights.items():
    np.testing.assert_array_equal(found[name], value, name, strict=True)


@pytest.mark.parametrize(
  'name', ['cls.predictions.decoder.weight', 'cls.predictions.decoder.bias']
)
def test_copies_that_differ_are_refused(tmp_path, name):
  weights = as_published()
  weights[name][3] += 1
  folder = write(tmp_path / 'in', config(PRETRAINING), weights)
  with pytest.raises(UsageError, match=rf'and {name} are tied.*but differ'):
    hf.load(folder)


@pytest.mark.parametrize('spelling', BIASES)
def test_exports_have_both_spellings_of_the_bias(tmp_path, spelling):
  weights = tensors(PRETRAINING)
  bias = weights.pop(BIASES[0])
  folder = write(
    tmp_path / 'in', config(PRETRAINING), weights | {spelling: bias}
  )
  hf.save(str(tmp_path / 'out'), *hf.load(folder))
  found = load_file(tmp_path / 'out' / 'model.safetensors')
  for name in BIASES:
    np.testing.assert_array_equal(found[name], bias)


@pytest.mark.parametrize(
  'left_out, kind',
  [
    ((), 'pretraining'),
    (('cls.seq_relationship.',), 'pooled_lm'),
    (('cls.seq_relationship.', 'bert.pooler.'), 'lm'),
  ],
)
def test_a_masked_lm_may_bring_the_other_heads(tmp_path, left_out, kind):
  """So it is in bert-base-uncased and in roberta-base."""
  weights = {
    name: x
    for name, x in tensors(PRETRAINING).items()
    if not name.startswith(left_out)
  }
  values = config(PRETRAINING) | {'architectures': ['BertForMaskedLM']}
  model, params = hf.load(write(tmp_path / 'in', values, weights))
  assert model.origin.kind == kind
  hf.save(str(tmp_path / 'out'), model, params)
  found = tensors(tmp_path / 'out')
  assert {*found} == {*weights, BIASES[1]}
  for name, value in weights.items():
    np.testing.assert_array_equal(found[name], value, name)
  assert config(tmp_path / 'out') == values


def test_a_model_of_our_own_is_a_masked_language_model(tmp_path):
  model, params = hf.load(str(PRETRAINING))
  fields = {n: getattr(model, n) for n in hf.transformer_fields()}
  plain = Transformer(**fields)
  del params['heads']
  hf.save(str(tmp_path), plain, params)
  assert config(tmp_path)['architectures'] == ['BertForMaskedLM']
  again, params_again = hf.load(str(tmp_path))
  jax.tree.map(np.testing.assert_array_equal, params_again, params)
  golden = case(PRETRAINING, 'main')
  inputs = {**golden.inputs}
  del inputs['next_sentence_label']
  out = hf.forward(again, params_again, **inputs)
  assert golden.max_error('prediction_logits', out['logits']) < 1e-4
  assert golden.max_error('mlm_loss', out['loss']) < 1e-4


def test_the_body_with_its_pooler(tmp_path):
  weights = {
    n.removeprefix('bert.'): x
    for n, x in tensors(PRETRAINING).items()
    if n.startswith('bert.')
  }
  values = config(PRETRAINING) | {'architectures': ['BertModel']}
  model, params = hf.load(write(tmp_path / 'in', values, weights))
  golden = case(PRETRAINING, 'nomask')
  out = hf.forward(model, params, **golden.inputs)
  assert {*out} == {'hidden_states', 'last_hidden_state', 'pooler_output'}
  assert golden.max_error('pooler_output', out['pooler_output']) < 1e-4
  with pytest.raises(UsageError, match='labels: this checkpoint has no head'):
    hf.forward(model, params, **golden.inputs, labels=golden.inputs)
  hf.save(str(tmp_path / 'out'), model, params)
  assert {*tensors(tmp_path / 'out')} == {*weights}


def test_every_wrong_tensor_is_listed(tmp_path):
  weights = tensors(PRETRAINING)
  del weights['bert.pooler.dense.bias']
  weights['cls.seq_relationship.weight'] = np.zeros((3, 32), np.float32)
  weights['bert.pooler.scale'] = np.zeros(3, np.float32)
  with pytest.raises(UsageError) as error:
    hf.load(write(tmp_path / 'in', config(PRETRAINING), weights))
  for text in (
    'bert.pooler.dense.bias is missing',
    'cls.seq_relationship.weight is (3, 32), not (2, 32)',
    'bert.pooler.scale is not of this model',
  ):
    assert text in str(error.value)


@pytest.mark.parametrize(
  'option, value',
  [
    ('is_decoder', True),
    ('is_encoder_decoder', True),
    ('position_embedding_type', 'relative_key'),
    ('tie_word_embeddings', False),
    ('hidden_act', 'mish'),
    ('type_vocab_size', 0),
    ('architectures', ['BertForNextSentencePrediction']),
  ],
)
def test_unsupported_options_are_named(tmp_path, option, value):
  values = config(PRETRAINING) | {option: value}
  folder = write(tmp_path / 'in', values, tensors(PRETRAINING))
  with pytest.raises(UsageError) as error:
    hf.load(folder)
  assert f'{option}={value!r}' in str(error.value)


def test_answers_that_were_cut_off_count_nothing():
  model, params = hf.load(str(ROOT / 'bert_qa'))
  inputs = {**case(ROOT / 'bert_qa', 'main').inputs}
  whole = hf.forward(model, params, **inputs)
  start, end = inputs['start_positions'], inputs['end_positions']
  time = inputs['input_ids'].shape[1]
  inputs['start_positions'] = np.concatenate([[time], start[1:]])
  found = hf.forward(model, params, **inputs)['loss']

  def loss(name, index, rows):
    logits = np.float64(whole[name])
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.mean([log_probs[b, index[b]] for b in rows])

  expected = loss('start_logits', start, (1, 2))
  expected += loss('end_logits', end, (0, 1, 2))
  np.testing.assert_allclose(found, expected / 2, rtol=1e-5)
