# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BERT and its descendants: older files, other classes, own options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core.spec import UsageError
from gpt_jax.hf.base import Options
from gpt_jax.hf.bert import ALBERT, ELECTRA, ROBERTA
from gpt_jax.papers.bigbird import bigbird
from tests.support import checkpoints
from tests.support.golden_io import ROOT, case, config, tensors

PRETRAINING = ROOT / 'bert_pretraining'
ROBERTA_MLM = ROOT / 'roberta_mlm'
RANDOM = ROOT / 'big_bird_sparse_random'


def as_published():
  """The tensors as Google's files have them."""
  weights = tensors(PRETRAINING)
  words = weights['bert.embeddings.word_embeddings.weight']
  weights['cls.predictions.decoder.weight'] = words.copy()
  weights['cls.predictions.decoder.bias'] = weights['cls.predictions.bias'].copy()
  for name in [n for n in weights if 'LayerNorm' in n]:
    old = name.replace('LayerNorm.weight', 'LayerNorm.gamma')
    old = old.replace('LayerNorm.bias', 'LayerNorm.beta')
    weights[old] = weights.pop(name)
  return weights


def test_older_files(tmp_path):
  weights = as_published()
  ids = np.arange(40)[None]
  buffer = {'bert.embeddings.position_ids': ids}
  folder = checkpoints.write(tmp_path / 'in', config(PRETRAINING), weights | buffer)
  model, params = hf.load(folder)
  golden = case(PRETRAINING, 'main')
  out = hf.forward(model, params, **golden.inputs)
  assert golden.max_error('prediction_logits', out['prediction_logits']) < 1e-4

  hf.save(str(tmp_path / 'out'), model, params)
  checkpoints.assert_tensors(tmp_path / 'out', weights)


@pytest.mark.parametrize('name', ['cls.predictions.decoder.weight', 'cls.predictions.decoder.bias'])
def test_copies_that_differ_are_refused(tmp_path, name):
  weights = as_published()
  weights[name][3] += 1
  folder = checkpoints.write(tmp_path / 'in', config(PRETRAINING), weights)
  with pytest.raises(UsageError, match=rf'and {name} are tied.*but differ'):
    hf.load(folder)


@pytest.mark.parametrize(
  'name, head',
  [
    ('bert_pretraining', 'cls.predictions'),
    ('albert_pretraining', 'predictions'),
    ('roberta_mlm', 'lm_head'),
  ],
)
@pytest.mark.parametrize('spelling', ['bias', 'decoder.bias'])
def test_exports_have_both_spellings_of_the_bias(tmp_path, name, head, spelling):
  weights = tensors(ROOT / name)
  bias = weights.pop(f'{head}.bias')
  folder = checkpoints.write(
    tmp_path / 'in', config(ROOT / name), weights | {f'{head}.{spelling}': bias}
  )
  hf.save(str(tmp_path / 'out'), *hf.load(folder))
  found = tensors(tmp_path / 'out')
  for other in ('bias', 'decoder.bias'):
    np.testing.assert_array_equal(found[f'{head}.{other}'], bias)


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
  weights = {name: x for name, x in tensors(PRETRAINING).items() if not name.startswith(left_out)}
  values = config(PRETRAINING) | {'architectures': ['BertForMaskedLM']}
  model, params = hf.load(checkpoints.write(tmp_path / 'in', values, weights))
  assert model.origin.kind == kind
  hf.save(str(tmp_path / 'out'), model, params)
  found = tensors(tmp_path / 'out')
  assert {*found} == {*weights, 'cls.predictions.decoder.bias'}
  for name, value in weights.items():
    np.testing.assert_array_equal(found[name], value, name)
  assert config(tmp_path / 'out') == values


def test_the_body_with_its_pooler(tmp_path):
  weights = {
    n.removeprefix('bert.'): x for n, x in tensors(PRETRAINING).items() if n.startswith('bert.')
  }
  values = config(PRETRAINING) | {'architectures': ['BertModel']}
  model, params = hf.load(checkpoints.write(tmp_path / 'in', values, weights))
  golden = case(PRETRAINING, 'nomask')
  out = hf.forward(model, params, **golden.inputs)
  assert {*out} == {'hidden_states', 'last_hidden_state', 'pooler_output'}
  assert golden.max_error('pooler_output', out['pooler_output']) < 1e-4
  with pytest.raises(UsageError, match='labels: this checkpoint has no head'):
    hf.forward(model, params, **golden.inputs, labels=golden.inputs)
  hf.save(str(tmp_path / 'out'), model, params)
  assert {*tensors(tmp_path / 'out')} == {*weights}


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


def test_positions_count_the_tokens_that_are_no_padding():
  """cumsum(id != pad) + pad in the table's rows; 1 is padding."""
  model, params = hf.load(str(ROBERTA_MLM))
  # The shape of the recorded call, whose program is compiled already.
  ids = np.full((3, 18), 1)
  ids[:2, :5] = [5, 7, 1, 11, 13], [1, 1, 17, 19, 23]
  rows = np.full((3, 18), 1)
  rows[:2, :5] = [2, 3, 1, 4, 5], [1, 1, 2, 3, 4]
  # The mask hides what it hides, and moves nothing.
  mask = np.ones((3, 18), np.int32)
  mask[:, 4] = 0
  inputs = {'input_ids': ids, 'attention_mask': mask}
  counted = hf.forward(model, params, **inputs)
  given = hf.forward(model, params, **inputs, position_ids=rows)
  np.testing.assert_array_equal(counted['logits'], given['logits'])
  given = hf.forward(model, params, **inputs, position_ids=rows + 1)
  assert np.abs(counted['logits'] - given['logits'])[0, 0].max() > 1e-2


def test_fields_of_roberta():
  values = config(ROBERTA_MLM) | {'hidden_act': 'gelu_new'}
  fields = ROBERTA.fields(Options(values))
  # The head's activation is the exact one, whatever the layers have.
  assert fields['ffn'] == 'gelu_tanh'
  assert fields['output'] == "tied(bias=True, transform='gelu')"
  # Two rows of the table are before the first token's.
  assert fields['context_length'] == values['max_position_embeddings'] - 2
  for bad in (-1, True, 'one'):
    with pytest.raises(UsageError, match=r'pad_token_id=.*whole number from 0'):
      ROBERTA.fields(Options(values | {'pad_token_id': bad}))
  with pytest.raises(UsageError, match='max_position_embeddings=2: has no'):
    ROBERTA.fields(Options(values | {'max_position_embeddings': 2}))


def test_fields_of_alberts_groups_and_inner_layers():
  fields = ALBERT.fields(Options(config(ROOT / 'albert_groups')))
  # Four layers, each of two inner ones; the first two layers are a group.
  assert fields['num_layers'] == 8
  assert fields['share'] == 'all(groups=2, inner=2)'
  odd = config(ROOT / 'albert_groups') | {'num_hidden_layers': 5}
  with pytest.raises(UsageError, match='num_hidden_groups=2: does not divide'):
    ALBERT.fields(Options(odd))


def test_what_transformers_leaves_out_of_alberts_config():
  """The defaults of `AlbertConfig`."""
  options = config(ROOT / 'albert_cls')
  for name in ('hidden_act', *(f'{x}_dropout_prob' for x in ('hidden', 'attention_probs'))):
    del options[name]
  fields = ALBERT.fields(Options(options))
  assert fields['ffn'] == 'gelu_tanh'
  assert fields['output'] == "tied(bias=True, transform='gelu_tanh')"
  rates = 'rates(embedding=0.0, residual=0.0, attention=0.0)'
  assert fields['dropout'] == rates


def test_fields_of_electra():
  options = config(ROOT / 'electra_gen')
  fields = ELECTRA.fields(Options(options))
  assert fields['input'] == 'tokens(token_types=2, norm=True, d_embed=24)'
  # Its head has GELU whatever the layers have.
  fields = ELECTRA.fields(Options(options | {'hidden_act': 'relu'}))
  assert fields['ffn'] == 'relu'
  assert fields['output'] == "tied(bias=True, transform='gelu')"


def test_big_birds_random_blocks_as_drawn_in_training(monkeypatch):
  """With those that transformers drew in the place of ours.

  Theirs count from the row's first block, ours from the one after it.
  """
  golden = case(RANDOM, 'main')
  drawn = golden.outputs.pop('rand_attn')

  def recorded(blocks, layer, num_heads, number):
    assert (blocks.random, num_heads, number) == (2, 2, 9)
    return jnp.asarray(drawn)[layer] - 1

  monkeypatch.setattr(bigbird, 'random_blocks', recorded)
  model, params = hf.load(str(RANDOM))
  # transformers evaluates with the first block in their place.
  assert model.attention == "bigbird(block=4, random=2, draw='first')"
  model = model.clone(attention='bigbird(block=4, random=2, seed=99)')
  out = hf.forward(model, params, **golden.inputs)
  errors = {n: golden.max_error(n, out[n]) for n in golden.outputs}
  assert max(errors.values()) < 1e-4, errors


def test_big_bird_keeps_its_seed(tmp_path):
  """What transformers has no word for goes out and comes back."""
  model, params = hf.load(str(RANDOM))
  del params['heads']
  ours = 'bigbird(block=4, random=2, seed=7)'
  hf.save(str(tmp_path / 'out'), checkpoints.plain(model, attention=ours), params)
  again, params_again = hf.load(str(tmp_path / 'out'))
  written = config(tmp_path / 'out')
  assert written['architectures'] == ['BigBirdForMaskedLM']
  assert written['random_blocks_seed'] == 7
  assert again.attention == ours
  jax.tree.map(np.testing.assert_array_equal, params_again, params)
  for other in ('bigbird(block=4, window=5)', 'bigbird(block=4, extra=8)'):
    changed = {**params, 'extra_tokens': {'embedding': np.zeros((8, 32))}}
    with pytest.raises(UsageError, match=r'nearest is big_bird, but for model\.attention='):
      hf.save(str(tmp_path / 'no'), checkpoints.plain(model, attention=other), changed)


@pytest.mark.parametrize('name, head', [('TokenClassification', 3), ('MultipleChoice', 1)])
def test_big_birds_other_classes_have_the_pooler_too(tmp_path, name, head):
  """As transformers 5.23 writes them; the tokens' one does not read it."""
  weights = {n: x for n, x in tensors(RANDOM).items() if n.startswith('bert.')}
  rng = np.random.default_rng(0)
  weights['classifier.weight'] = np.float32(rng.normal(size=(head, 32)))
  weights['classifier.bias'] = np.float32(rng.normal(size=head))
  values = config(RANDOM) | {
    'architectures': [f'BigBirdFor{name}'],
    'id2label': {'0': 'a', '1': 'b', '2': 'c'},
  }
  folder = checkpoints.write(tmp_path / 'in', values, weights)
  model, params = hf.load(folder)
  hf.save(str(tmp_path / 'out'), model, params)
  checkpoints.assert_tensors(tmp_path / 'out', weights)
  if head == 3:
    ids = case(RANDOM, 'nomask').inputs['input_ids']
    out = hf.forward(model, params, input_ids=ids)
    kernel = weights['classifier.weight'].T
    logits = out['last_hidden_state'] @ kernel + weights['classifier.bias'][None, None]
    np.testing.assert_allclose(out['logits'], logits, rtol=1e-4, atol=1e-4)


def test_big_birds_defaults():
  """Those of transformers' own config."""
  found = checkpoints.fields('big_bird')
  assert found['attention'] == "bigbird(block=64, random=3, draw='first')"
  assert (found['ffn'], found['context_length']) == ('gelu_tanh', 4096)
  assert found['norm'] == 'layernorm(epsilon=1e-12)'
  full = checkpoints.fields('big_bird', attention_type='original_full')
  assert full['attention'] == 'bidirectional'
