# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL and XLNet beyond their recorded outputs."""

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.spec import UsageError
from gpt_jax.hf import transformer_xl
from gpt_jax.hf.base import Options
from gpt_jax.papers.transformer_xl.transformer_xl import init_memories
from tests.support import checkpoints, tiny
from tests.support.golden_io import ROOT, case, config, tensors

DIV, XLNET_LM = ROOT / 'transfo_xl_div', ROOT / 'xlnet_lm'
# Ours: no prime width, for pairs of sine and cosine.
TRANSFO_XL = {
  'context_length': 11,
  'num_layers': 3,
  'd_model': 22,
  'head_size': 7,
  'num_heads': 3,
  'num_kv_heads': 3,
  'position': 'transformer_xl(memory=5, clamp=3)',
  'attention': 'local(window=5)',
  'bias': 'where(ffn=True)',
  'ffn': 'relu',
  'block': 'post',
}
XLNET = {
  'attention': 'bidirectional',
  'bias': 'where(ffn=True)',
  'block': 'post',
  'd_model': 22,
  'ffn': 'relu',
  'input': 'tokens(queries=True)',
  'norm': 'layernorm(epsilon=1e-12)',
  'num_heads': 3,
  'num_kv_heads': 3,
  'output': 'tied(bias=True)',
  'position': 'xlnet(memory=5, clamp=3)',
}


def ours(cutoffs, d_embed, div_val, own=(), **changes):
  fields = {
    **TRANSFO_XL,
    'input': f'adaptive({cutoffs}, {d_embed}, {div_val}, "sqrt")',
    'output': f'adaptive({own})',
    **changes,
  }
  return tiny.model(**fields)


def test_options_as_fields(tmp_path):
  changes = {'same_length': False, 'mem_len': 0, 'clamp_len': -1}
  model, params = hf.load(checkpoints.changed(tmp_path, 'transfo_xl_lm', **changes))
  assert model.attention == 'full'
  assert model.position == 'transformer_xl(memory=0, clamp=0)'
  ids = tiny.tokens(2, 5)
  out = hf.forward(model, params, input_ids=ids)
  assert {*out} == {'hidden_states', 'last_hidden_state', 'log_probs'}
  with pytest.raises(UsageError, match='keeps none'):
    hf.forward(model, params, input_ids=ids, mems=np.zeros((2, 0, 2, 32)))


@pytest.mark.slow
@pytest.mark.parametrize(
  'model',
  [
    ours((5, 12), 13, 2),
    ours((5, 12), 13, 2, (0, 2)),
    ours((5,), 13, 1),
    ours((5, 12), 13, 1, (1,)),
    ours((5,), 22, 1),
    ours((), 13, 2, attention='full'),
  ],
  ids=lambda m: f'{m.input}-{m.output}',
)
def test_transformer_xl_comes_back(tmp_path, model):
  params = tiny.params(model)
  hf.save(str(tmp_path), model, params)
  assert config(tmp_path)['model_type'] == 'transfo-xl'
  again, params_again = hf.load(str(tmp_path))
  jax.tree.map(np.testing.assert_array_equal, params_again, params)
  for field in ('num_layers', 'attention', 'ffn', 'context_length'):
    assert getattr(again, field) == getattr(model, field)
  ids, labels = tiny.tokens(2, 7), tiny.tokens(2, 7, seed=1)
  labels[0, 2:4] = -100
  out = hf.forward(again, params_again, input_ids=ids)
  hidden = model.apply({'params': params}, ids, init_memories(model, 2)).hidden_BLD
  expected = model.apply({'params': params}, hidden, method='logits')
  np.testing.assert_allclose(out['log_probs'], expected, rtol=1e-4, atol=1e-4)
  # Losses are those of the labels that count, then zeros.
  out = hf.forward(again, params_again, input_ids=ids, labels=labels)
  index = np.maximum(labels[:, 1:, None], 0)
  losses = -np.take_along_axis(np.asarray(expected)[:, :-1], index, axis=-1)
  losses = losses[..., 0][labels[:, 1:] != -100]
  np.testing.assert_allclose(out['loss'], losses.mean(), rtol=1e-4)
  found = np.asarray(out['losses']).reshape(-1)
  if '(),' not in model.input:
    assert not np.any(found[-2:])
  np.testing.assert_allclose(np.sort(found), np.sort([0, 0, *losses]), rtol=1e-4, atol=1e-4)


def test_the_body_of_transformer_xl_alone(tmp_path):
  """Its names have no prefix, and it scores nothing."""
  body = {
    name.removeprefix('transformer.'): x
    for name, x in tensors(DIV).items()
    if not name.startswith('crit.')
  }
  options = {**config(DIV), 'architectures': ['TransfoXLModel']}
  model, params = hf.load(checkpoints.write(tmp_path / 'in', options, body))
  ids = tiny.tokens(2, 5)
  out = hf.forward(model, params, input_ids=ids)
  whole = hf.forward(*hf.load(str(DIV)), input_ids=ids)
  assert {*out} == {'hidden_states', 'last_hidden_state', 'mems'}
  for name, x in out.items():
    np.testing.assert_array_equal(x, whole[name])
  checkpoints.assert_round_trip(tmp_path / 'out', model, params, body)
  with pytest.raises(UsageError, match='no head'):
    hf.forward(model, params, input_ids=ids, labels=ids)


def test_tied_copies_as_published(tmp_path):
  """The first releases' files repeat what is tied; an export does, too."""
  first = tensors(DIV)
  copies = {
    f'crit.out_layers.{i}.weight': first[f'transformer.word_emb.emb_layers.{i}.weight']
    for i in range(3)
  } | {f'crit.out_projs.{i}': first[f'transformer.word_emb.emb_projs.{i}'] for i in (1, 2)}
  model, params = hf.load(checkpoints.write(tmp_path / 'in', config(DIV), first | copies))
  assert isinstance(model, Transformer)
  hf.save(str(tmp_path / 'out'), model, params)
  assert {*tensors(tmp_path / 'out')} == {*first, *copies}


def test_other_frequencies_are_refused(tmp_path):
  name = 'transformer.pos_emb.inv_freq'
  weights = tensors(ROOT / 'transfo_xl_lm')
  weights[name] = weights[name] * 2
  values = config(ROOT / 'transfo_xl_lm')
  with pytest.raises(UsageError, match='other frequencies'):
    hf.load(checkpoints.write(tmp_path / 'in', values, weights))


def test_fields_of_xlnet():
  model, _ = hf.load(str(XLNET_LM))
  assert model.position == 'xlnet(memory=8, clamp=0)'
  assert model.attention == 'bidirectional'
  causal, _ = hf.load(str(ROOT / 'xlnet_uni'))
  assert causal.position == 'xlnet(memory=8, clamp=6)'
  assert causal.attention == 'full' and causal.ffn == 'relu'


@pytest.mark.parametrize(
  'kind, name',
  [('lm', 'XLNetLMHeadModel'), ('last_choice', 'XLNetForMultipleChoice'), ('body', 'XLNetModel')],
)
def test_xlnet_comes_back(kind, name, tmp_path):
  model = tiny.model(**XLNET)
  params = dict(tiny.params(model))
  if kind == 'last_choice':
    params['heads'] = {
      'pooler': {'kernel': np.ones((22, 22)), 'bias': np.ones(22)},
      'classifier': {'kernel': np.ones((22, 1)), 'bias': np.ones(1)},
    }
  hf.save(str(tmp_path), model, params, kind=kind)
  assert config(tmp_path)['architectures'] == [name]
  assert config(tmp_path)['mem_len'] == 5
  again, read = hf.load(str(tmp_path))
  assert again.context_length == model.context_length
  if kind != 'lm':
    params.pop('head_bias')
  jax.tree.map(np.testing.assert_array_equal, read, params)
  with pytest.raises(UsageError, match=r'nearest is xlnet, but for model\.bias'):
    hf.save(str(tmp_path), model.clone(position='xlnet(memory=5)', bias='all'), {})


@pytest.mark.slow
def test_what_xlnet_writes():
  """A token after the last is asked for; it sees both ways what is there.

  All steps at once: a row for each, of which the rest is hidden.
  """
  model, params = hf.load(str(XLNET_LM))
  golden = case(XLNET_LM, 'gen')
  ids, written = golden.inputs['input_ids'], golden.outputs['sequences']
  first, last = ids.shape[1], written.shape[1]
  lengths = np.arange(first, last)
  rows = np.repeat(written, len(lengths), axis=0)
  at = np.tile(lengths, len(written))
  places = np.arange(last)[None]
  hidden = np.repeat((places >= at[:, None])[:, None], last, axis=1)
  out = hf.forward(
    model,
    params,
    input_ids=rows,
    perm_mask=np.float32(hidden),
    target_mapping=np.float32(places == at[:, None])[:, None],
    use_mems=False,
  )
  best = np.argmax(np.asarray(out['logits']), axis=-1)
  np.testing.assert_array_equal(best.reshape(len(written), -1), written[:, first:])


@pytest.mark.parametrize('options, memory', [({}, 512), ({'mem_len': None}, 0)])
def test_xlnets_memory_if_its_config_does_not_say(options, memory):
  given = config(ROOT / 'xlnet_lm')
  del given['mem_len']
  fields = transformer_xl.XLNET.fields(Options(given | options))
  assert fields['position'].startswith(f'xlnet(memory={memory},')
