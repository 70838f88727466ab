# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL beyond its recorded checkpoints: options, exports, files."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from gpt_jax import hf
from gpt_jax.nn.caches import init_memories
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError
from tests.support import tiny
from tests.support.golden_io import ROOT, config, tensors

DIV, LM = ROOT / 'transfo_xl_div', ROOT / 'transfo_xl_lm'
# Ours: no prime width, for pairs of sine and cosine.
OURS = {
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


def ours(cutoffs, d_embed, div_val, own=(), **changes):
  fields = {
    **OURS,
    'input': f'adaptive({cutoffs}, {d_embed}, {div_val}, "sqrt")',
    'output': f'adaptive({own})',
    **changes,
  }
  return tiny.model(**fields)


def write(folder, source, changes=(), extra=()):
  (folder / 'config.json').write_text(
    json.dumps({**config(source), **dict(changes)})
  )
  save_file({**tensors(source), **dict(extra)}, folder / 'model.safetensors')
  return str(folder)


@pytest.mark.parametrize(
  'name, value',
  [
    ('adaptive', False),
    ('attn_type', 1),
    ('pre_lnorm', True),
    ('untie_r', False),
    ('tie_word_embeddings', False),
    ('same_length', 'yes'),
    ('mem_len', 0),
    ('clamp_len', 1.5),
    ('cutoffs', 40),
    ('cutoffs', [80, 40]),
    ('tie_projs', [True]),
    ('architectures', ['TransfoXLForSequenceClassification']),
  ],
)
def test_options_are_refused_by_name(tmp_path, name, value):
  with pytest.raises(UsageError, match=name):
    hf.load(write(tmp_path, DIV, {name: value}))


def test_options_as_fields(tmp_path):
  changes = {'same_length': False, 'mem_len': 0, 'clamp_len': -1}
  model, params = hf.load(write(tmp_path, LM, changes))
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
def test_our_own_models_come_back(tmp_path, model):
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
  hidden = model.apply(
    {'params': params}, ids, caches=init_memories(model, 2)
  ).hidden_BLD
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
  np.testing.assert_allclose(
    np.sort(found), np.sort([0, 0, *losses]), rtol=1e-4, atol=1e-4
  )


def test_what_it_cannot_express(tmp_path):
  for changes, message in (
    ({'block': 'pre'}, 'model.block'),
    ({'ffn': 'gelu'}, 'model.ffn'),
    ({'attention': 'local(window=3)'}, 'model.attention'),
  ):
    model = ours((5,), 13, 2, **changes)
    with pytest.raises(UsageError, match=f'transfo-xl cannot: {message}'):
      hf.save(str(tmp_path), model, tiny.params(model))


@pytest.mark.parametrize(
  'position, said',
  [
    ('transformer_xl(memory=3, segment=5)', 'segment=5;'),
    ("transformer_xl(memory=3, biases='shared')", "biases='shared';"),
    ('learned_by_layer', 'learned_by_layer;'),
  ],
)
def test_what_no_export_writes(tmp_path, position, said):
  """Refused by name, before all families are asked."""
  model = ours((5,), 13, 2, position=position)
  with pytest.raises(UsageError) as refused:
    hf.save(str(tmp_path), model, {})
  assert f'no export writes {said}' in str(refused.value)
  assert len(str(refused.value)) < 200 and '\n' not in str(refused.value)
  assert not [*tmp_path.iterdir()]


def test_the_body_alone(tmp_path):
  """Its names have no prefix, and it scores nothing."""
  body = {
    name.removeprefix('transformer.'): x
    for name, x in tensors(DIV).items()
    if not name.startswith('crit.')
  }
  save_file(body, tmp_path / 'model.safetensors')
  options = {**config(DIV), 'architectures': ['TransfoXLModel']}
  (tmp_path / 'config.json').write_text(json.dumps(options))
  model, params = hf.load(str(tmp_path))
  ids = tiny.tokens(2, 5)
  out = hf.forward(model, params, input_ids=ids)
  whole = hf.forward(*hf.load(str(DIV)), input_ids=ids)
  assert {*out} == {'hidden_states', 'last_hidden_state', 'mems'}
  for name, x in out.items():
    np.testing.assert_array_equal(x, whole[name])
  hf.save(str(tmp_path / 'out'), model, params)
  after = tensors(tmp_path / 'out')
  assert {*after} == {*body}
  for name, x in body.items():
    np.testing.assert_array_equal(after[name], x)
  with pytest.raises(UsageError, match='no head'):
    hf.forward(model, params, input_ids=ids, labels=ids)


def test_tied_copies_as_published(tmp_path):
  """The first releases' files repeat what is tied; an export does, too."""
  first = tensors(DIV)
  copies = {
    f'crit.out_layers.{i}.weight': first[
      f'transformer.word_emb.emb_layers.{i}.weight'
    ]
    for i in range(3)
  } | {
    f'crit.out_projs.{i}': first[f'transformer.word_emb.emb_projs.{i}']
    for i in (1, 2)
  }
  model, params = hf.load(write(tmp_path, DIV, (), copies))
  assert isinstance(model, Transformer)
  hf.save(str(tmp_path / 'out'), model, params)
  assert {*tensors(tmp_path / 'out')} == {*first, *copies}


def test_other_frequencies_are_refused(tmp_path):
  name = 'transformer.pos_emb.inv_freq'
  other = {name: tensors(LM)[name] * 2}
  with pytest.raises(UsageError, match='other frequencies'):
    hf.load(write(tmp_path, LM, (), other))


def test_inputs_are_refused_by_name():
  model, params = hf.load(str(LM))
  ids = tiny.tokens(2, 5)
  for name in ('attention_mask', 'position_ids', 'token_type_ids'):
    with pytest.raises(UsageError, match=f'{name}: transfo-xl takes none'):
      hf.forward(model, params, input_ids=ids, **{name: ids})
  with pytest.raises(UsageError, match=r'mems: must be \(2, 8, 2, 32\)'):
    hf.forward(model, params, input_ids=ids, mems=np.zeros((2, 7, 2, 32)))
  gpt2 = hf.load(str(ROOT / 'gpt2_lm'))
  with pytest.raises(UsageError, match='only Transformer-XL and XLNet take'):
    hf.forward(*gpt2, input_ids=ids, mems=ids)
