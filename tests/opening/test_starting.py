# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run that starts from another's parameters, and one that trains a part."""

import importlib
import json

import jax
import numpy as np
import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.training import origins
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.device_check import mesh_of
from gpt_jax.opening import models, starting
from tests.support import tiny
from tests.support.golden_io import ROOT, case

GLOVE = ROOT / 'glove'
BYTES = tokenizer_lib.build('bytes', [])
CHARACTERS = tokenizer_lib.build('characters', [])
SIZES = {
  **{'model.d_model': 8, 'model.num_heads': 2, 'model.head_size': 5},
  **{'model.num_kv_heads': 2, 'model.num_layers': 3, 'model.d_ff': 13},
  **{'model.vocab_size': BYTES.vocab_size, 'model.context_length': 17},
  'optim.name': 'sgd',
}


def build(**fields):
  config = tiny.config(**SIZES | {'seed': 7} | fields)
  config = config_lib.resolve(config)
  return parts_lib.build(config, mesh_of(config, jax.devices()[:1]))


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run whose average is not what was trained last."""
  folder = tmp_path_factory.mktemp('before')
  parts = build(**{'optim.ema': 'ema(decay=0.9)', 'seed': 1})
  state = parts_lib.initial_state(parts)
  state = state._replace(ema=tiny.random_like(state.ema, seed=3))
  saver = Checkpointer(str(folder), keep=1)
  saver.save(state)
  saver.close()
  (folder / 'config.json').write_text(config_lib.to_json(parts.config))
  BYTES.save(str(folder / 'tokenizer'))
  return folder, jax.device_get(state.ema)


def flat(tree):
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}


@pytest.mark.slow
def test_what_is_named_is_drawn_and_the_rest_taken(workdir):
  folder, before = workdir
  names = 'positions/*, decoder/periods/2/block_0/ffn/*'
  fields = {'model.context_length': 19, 'optim.drawn': names}
  parts = build(**fields, **{'optim.start': str(folder)})
  found = flat(origins.first_state(parts, BYTES).params)
  drawn = flat(parts_lib.initial_state(parts).params)
  for name, given in flat(before).items():
    if 'positions' in name:
      np.testing.assert_array_equal(found[name], drawn[name])
    elif 'ffn' in name and 'decoder' in name and 'norm' not in name:
      np.testing.assert_array_equal(found[name][:2], given[:2])
      np.testing.assert_array_equal(found[name][2], drawn[name][2])
    else:
      np.testing.assert_array_equal(found[name], given)


@pytest.mark.parametrize(
  ('fields', 'why'),
  [
    ({'model.context_length': 19}, 'has positions/embedding as'),
    ({'model.output': 'untied'}, 'lacks head/embedding'),
    ({'optim.drawn': 'positon/*'}, "no parameter is called 'positon"),
  ],
)
def test_what_does_not_fit_is_refused(workdir, fields, why):
  parts = build(**fields, **{'optim.start': str(workdir[0])})
  with pytest.raises(UsageError, match=why):
    origins.first_state(parts, BYTES)


@pytest.mark.parametrize(
  ('fields', 'why'),
  [
    ({'model.context_length': 19}, 'has positions/embedding as'),
    (
      {'model.d_ff': 14, 'model.vocab_size': None},
      r'ffn/\w+/bias as \(3, 13\), not as \(3, 14\) and \d others; take its '
      'model, as --config=configs/continue.py:.* does, or name',
    ),
    ({'optim.drawn': 'positon/*'}, "no parameter is called 'positon"),
  ],
)
def test_what_does_not_fit_is_refused_before_there_is_text(tmp_path, workdir, fields, why):
  fields |= {'optim.start': str(workdir[0])}
  config = config_lib.resolve(tiny.config(**SIZES | fields))
  with pytest.raises(UsageError, match=why):
    origins.check(config, str(tmp_path))
  origins.check(config, str(workdir[0]))  # a run that goes on


@pytest.mark.parametrize(
  'fields',
  [
    {'model.vocab_size': None},
    {'model.context_length': 19, 'optim.drawn': 'positions/*'},
    # Whose size is that of the tokenizer.
    {'model.vocab_size': None, 'optim.drawn': 'embed/*', 'tokenizer.name': 'characters'},
  ],
)
def test_what_fits_is_taken(tmp_path, workdir, fields):
  fields |= {'optim.start': str(workdir[0])}
  config = config_lib.resolve(tiny.config(**SIZES | fields))
  origins.check(config, str(tmp_path))


def test_the_config_of_continued_training(tmp_path, workdir):
  folder = str(workdir[0])
  found = importlib.import_module('configs.continue').get_config(folder)
  assert found.optim.start == folder
  assert found.tokenizer.name == f'saved({folder!r})'
  resolved = config_lib.resolve(found)
  before = models.read_config(folder)
  # These are of the computation; the others make the model.
  of_computation = ('dtype', 'attention_backend', 'loop', 'remat', 'dropout')
  for name, value in before.model.items():
    if name not in of_computation:
      assert resolved.model[name] == value, name
  assert resolved.objective.name == before.objective.name
  origins.check(resolved, str(tmp_path))


@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    ('llama_gqa', {}),
    ('bert_pretraining', {'objective.name': "masked(pair='next')", 'data.rows': "pairs('next')"}),
    ('t5_v11', {'objective.name': "seq2seq(start='pad')", 'data.rows': 'parallel'}),
  ],
)
def test_what_an_import_predicts_further(name, expected):
  source = models.Pretrained(name, tokenizer_name='bytes', folder=str(ROOT / name))
  found = starting.pretraining(source, 'configs/continue.py')
  sentences = found.pop('data.sentences', 'terminal')
  assert found == {'tokenizer.name': 'bytes', **expected}
  assert sentences == 'terminal'


def test_what_lost_the_head_of_its_pre_training_is_refused():
  source = models.Pretrained('bert', folder=str(ROOT / 'bert_cls'))
  with pytest.raises(UsageError, match=r'is a BertForSequenceClass.*finetune'):
    starting.pretraining(source, 'configs/continue.py')


def test_another_vocabulary_needs_a_table_of_its_own(workdir):
  fields = {'optim.start': str(workdir[0]), 'model.output': 'untied'}
  fields |= {'model.context_length': 19, 'optim.drawn': 'embed/*'}
  with pytest.raises(UsageError, match='is not the run'):
    origins.first_state(build(**fields), CHARACTERS)
  fields['optim.drawn'] = 'embed/*, head/*'
  with pytest.raises(UsageError, match='has positions/embedding as'):
    origins.first_state(build(**fields), CHARACTERS)


def test_nothing_is_looked_for_where_a_run_goes_on(tmp_path, workdir):
  config = build(**{'optim.start': str(tmp_path / 'gone')}).config
  with pytest.raises(UsageError, match='holds no config'):
    origins.check(config, str(tmp_path))
  origins.check(config, str(workdir[0]))
  with pytest.raises(UsageError, match='all parameters are'):
    origins.check(build(**{'optim.drawn': 'embed/*'}).config, str(tmp_path))


def test_no_update_reaches_what_is_not_named():
  parts = build(**{'optim.trained': 'decoder/periods/1/*, final_norm/bias'})
  shapes = parts_lib.abstract_state(parts).params
  ones = jax.tree.map(lambda x: np.ones(x.shape, np.float32), shapes)
  for name, update in flat(jax.jit(parts.rates.scaled)(ones, 0)).items():
    if 'final_norm' in name and 'bias' in name:
      assert update.all(), name
    elif 'decoder' in name:
      assert update[1].all() and not update[[0, 2]].any(), name
    else:
      assert not update.any(), name
  with pytest.raises(UsageError, match='final_norm/bais'):
    build(**{'optim.trained': 'final_norm/bais'})


def test_a_table_starts_with_the_vectors_of_its_words():
  file, size = str(GLOVE / 'glove.txt'), 5
  made = tokenizer_lib.build(f'words_file({file!r}, {size}, vocab_size=11)', [])
  fields = {'optim.vectors': file, 'tokenizer.name': 'words'}
  # Rows past the last word are drawn, as is the end of document.
  fields |= {'model.d_model': size, 'model.num_heads': 1}
  fields |= {'model.num_kv_heads': 1, 'model.vocab_size': 13}
  parts = build(**fields)
  found = flat(origins.first_state(parts, made).params)
  drawn = flat(parts_lib.initial_state(parts).params)
  name = "['embed']['embedding']"
  golden = case(GLOVE, 'main').outputs['vectors']
  words = json.loads((GLOVE / 'words.json').read_text())
  for i, row in enumerate(found.pop(name)):
    known = made.listed[i] in words if i < 11 else False
    assert known == (1 <= i < 11)
    given = golden[words.index(made.listed[i])] if known else drawn[name][i]
    np.testing.assert_array_equal(row, given)
  for name, x in found.items():
    np.testing.assert_array_equal(x, drawn[name])
  with pytest.raises(UsageError, match=r'of tokenizer.name=.* are not words'):
    origins.first_state(build(**fields | {'model.vocab_size': 257}), BYTES)


@pytest.mark.parametrize(
  ('fields', 'why'),
  [
    ({'optim.start': 'W'}, "optim.start='W' gives the table"),
    ({'tokenizer.name': 'bytes'}, "tokenizer.name='bytes' are not words"),
    ({'model.input': 'adaptive(cutoffs=(9,), d_embed=3)'}, 'several tables'),
    ({'optim.vectors': 'none.txt'}, "optim.vectors='none.txt': no such file"),
  ],
)
def test_vectors_that_have_no_place_are_refused(tmp_path, fields, why):
  given = {'optim.vectors': 'glove.txt', 'tokenizer.name': 'words', **fields}
  config = config_lib.resolve(tiny.config(**SIZES | given))
  with pytest.raises(UsageError, match=why):
    origins.check(config, str(tmp_path))
