# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""XLNet beyond its recorded outputs: options, own models, what it writes."""

import json
import shutil

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.spec import UsageError
from tests.support import tiny
from tests.support.golden_io import ROOT, case, config

LM, CLS = ROOT / 'xlnet_lm', ROOT / 'xlnet_cls'
OURS = {
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


def test_fields():
  model, _ = hf.load(str(LM))
  assert model.position == 'xlnet(memory=8, clamp=0)'
  assert model.attention == 'bidirectional'
  causal, _ = hf.load(str(ROOT / 'xlnet_uni'))
  assert causal.position == 'xlnet(memory=8, clamp=6)'
  assert causal.attention == 'full' and causal.ffn == 'relu'


@pytest.mark.parametrize(
  'name, value',
  [
    ('bi_data', True),
    ('same_length', True),
    ('reuse_len', 4),
    ('attn_type', 'tri'),
    ('summary_type', 'first'),
    ('summary_activation', None),
  ],
)
def test_options_that_are_not_computed_are_refused(name, value, tmp_path):
  shutil.copy(CLS / 'model.safetensors', tmp_path)
  changed = json.dumps({**config(CLS), name: value})
  (tmp_path / 'config.json').write_text(changed)
  if value is None:  # HF's own default
    assert hf.load(str(tmp_path))
    return
  with pytest.raises(UsageError, match=f'config.json: {name}='):
    hf.load(str(tmp_path))


@pytest.mark.parametrize(
  'kind, name',
  [
    ('lm', 'XLNetLMHeadModel'),
    ('last_choice', 'XLNetForMultipleChoice'),
    ('body', 'XLNetModel'),
  ],
)
def test_our_own_model_goes_out_and_comes_back(kind, name, tmp_path):
  model = tiny.model(**OURS)
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
  with pytest.raises(UsageError, match='position='):
    hf.save(
      str(tmp_path), model.clone(position='xlnet(memory=5)', bias='all'), {}
    )


def test_inputs_that_are_not_known_are_refused():
  model, params = hf.load(str(LM))
  ids = np.ones((2, 3), int)
  for given, message in (
    ({'position_ids': ids}, 'position_ids: xlnet takes none'),
    ({'mems': np.zeros((2, 8, 3, 32))}, 'mems: must be'),
    ({'target_mapping': np.ones((2, 1, 3))}, 'a single 1'),
    ({'start_positions': ids[:, 0]}, 'no head for it'),
  ):
    with pytest.raises(UsageError, match=message):
      hf.forward(model, params, input_ids=ids, **given)
  other, params = hf.load(str(ROOT / 'bert_cls'))
  with pytest.raises(UsageError, match='perm_mask: only XLNet'):
    hf.forward(other, params, input_ids=ids, perm_mask=ids)


@pytest.mark.slow
def test_what_it_writes():
  """A token after the last is asked for; it sees both ways what is there.

  All steps at once: a row for each, of which the rest is hidden.
  """
  model, params = hf.load(str(LM))
  golden = case(LM, 'gen')
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
  np.testing.assert_array_equal(
    best.reshape(len(written), -1), written[:, first:]
  )
