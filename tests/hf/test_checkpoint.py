# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files: names, shards, formats, and what is damaged or missing."""

import json
import os
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from gpt_jax import hf
from gpt_jax.core.spec import UsageError
from tests.support import checkpoints
from tests.support.golden_io import ROOT, case, config, tensors

GPT2 = ROOT / 'gpt2_lm'


def assert_computes_the_same(folder, of=GPT2):
  golden = case(of, 'nomask')
  model, params = hf.load(folder)
  out = hf.forward(model, params, **golden.inputs)
  assert golden.max_error('logits', out['logits']) < 1e-4


@pytest.mark.parametrize(
  'name, prefix',
  [('gpt2_lm', 'transformer.'), ('openai_gpt_lm', 'transformer.'), ('gpt_neo_lm', 'transformer.')],
)
def test_published_names_without_the_prefix(tmp_path, name, prefix):
  weights = {n.removeprefix(prefix): x for n, x in tensors(ROOT / name).items()}
  kind = 'attn.attention' if name == 'gpt_neo_lm' else 'attn'
  mask = np.tril(np.ones((1, 1, 40, 40), np.float32))
  masks = {f'h.{i}.{kind}.bias': mask for i in range(2)}
  values = config(ROOT / name)
  folder = checkpoints.write(tmp_path / 'in', values, weights | masks)
  assert_computes_the_same(folder, ROOT / name)
  hf.save(str(tmp_path / 'out'), *hf.load(folder))
  checkpoints.assert_tensors(tmp_path / 'out', weights)


def test_tied_copies_are_given_back_if_they_are_equal(tmp_path):
  weights = tensors(GPT2)
  weights['lm_head.weight'] = weights['transformer.wte.weight'].copy()
  folder = checkpoints.write(tmp_path / 'in', config(GPT2), weights)
  assert_computes_the_same(folder)
  hf.save(str(tmp_path / 'out'), *hf.load(folder))
  checkpoints.assert_tensors(tmp_path / 'out', weights)

  weights['lm_head.weight'][3, 5] += 1
  folder = checkpoints.write(tmp_path / 'in', config(GPT2), weights)
  with pytest.raises(UsageError, match=r'wte\.weight and lm_head\.weight are'):
    hf.load(folder)


def test_files_with_an_index(tmp_path):
  weights = tensors(GPT2)
  names = sorted(weights)
  halves = {'a.safetensors': names[::2], 'b.safetensors': names[1::2]}
  where = {n: file for file, part in halves.items() for n in part}
  for file, part in halves.items():
    save_file({n: weights[n] for n in part}, tmp_path / file)
  (tmp_path / 'config.json').write_text(json.dumps(config(GPT2)))
  index = tmp_path / 'model.safetensors.index.json'
  index.write_text(json.dumps({'metadata': {}, 'weight_map': where}))
  assert_computes_the_same(str(tmp_path))

  save_file({}, tmp_path / 'b.safetensors')
  with pytest.raises(UsageError, match=r'into b\.safetensors, which lacks it'):
    hf.load(str(tmp_path))
  (tmp_path / 'b.safetensors').unlink()
  with pytest.raises(UsageError, match=r'b\.safetensors'):
    hf.load(str(tmp_path))


def sharded(folder, shard):
  """A checkpoint of one file of tensors, which its index calls `shard`."""
  weights = tensors(GPT2)
  (folder / 'config.json').write_text(json.dumps(config(GPT2)))
  index = {'weight_map': dict.fromkeys(weights, shard)}
  (folder / 'model.safetensors.index.json').write_text(json.dumps(index))
  return weights


@pytest.mark.parametrize(
  'shard',
  [
    '../a.safetensors',
    '/a.safetensors',
    'x/../../a.safetensors',
    '..',
    '',
    '..\\a.safetensors',
    'a.safetensors\0',
    3,
    None,
  ],
  ids=repr,
)
def test_an_index_names_files_of_its_folder(tmp_path, shard):
  folder = tmp_path / 'in'
  folder.mkdir()
  weights = sharded(folder, shard)
  save_file(weights, tmp_path / 'a.safetensors')
  with pytest.raises(UsageError, match=r'index\.json: names the file'):
    hf.load(str(folder))


def test_a_shard_may_be_a_link_as_in_a_cache(tmp_path):
  folder = tmp_path / 'snapshot'
  folder.mkdir()
  weights = sharded(folder, 'a.safetensors')
  (tmp_path / 'blobs').mkdir()
  save_file(weights, tmp_path / 'blobs/0')
  (folder / 'a.safetensors').symlink_to('../blobs/0')
  assert_computes_the_same(str(folder))


@pytest.mark.parametrize('index', [[], 'x', 3, None])
def test_an_index_without_a_map_is_refused(tmp_path, index):
  (tmp_path / 'config.json').write_text(json.dumps(config(GPT2)))
  text = json.dumps({'weight_map': index})
  (tmp_path / 'model.safetensors.index.json').write_text(text)
  with pytest.raises(UsageError, match='has no weight_map'):
    hf.load(str(tmp_path))


@pytest.mark.parametrize('dtype, stored', [(np.float16, 'F16'), (jax.numpy.bfloat16, 'BF16')])
def test_half_precision_comes_back_in_it(tmp_path, dtype, stored):
  weights = {n: x.astype(dtype) for n, x in tensors(GPT2).items()}
  folder = checkpoints.write(tmp_path / 'in', config(GPT2), weights)
  model, params = hf.load(folder)
  assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype(np.float32)}
  hf.save(str(tmp_path / 'out'), model, params)
  again, params_again = hf.load(str(tmp_path / 'out'))
  assert again.origin.dtype == stored
  jax.tree.map(np.testing.assert_array_equal, params, params_again)


@pytest.mark.parametrize(
  'dtype, value, why',
  [
    (np.float16, -65_600, 'above 65,504, which F16'),
    (jnp.bfloat16, 3.4e38, r'above 3.39e\+38, which BF16'),
    (np.float32, np.nan, 'NaN or infinite numbers'),
    (np.float16, np.inf, 'NaN or infinite numbers'),
  ],
)
def test_numbers_that_a_file_does_not_hold_are_refused(tmp_path, dtype, value, why):
  weights = {n: x.astype(dtype) for n, x in tensors(GPT2).items()}
  folder = checkpoints.write(tmp_path / 'in', config(GPT2), weights)
  model, params = hf.load(folder)
  params['embed']['embedding'][3, 5] = value
  with pytest.raises(UsageError, match=rf'wte.weight has .*{why}'):
    hf.save(str(tmp_path / 'out'), model, params)
  assert not [*(tmp_path / 'out').iterdir()]


def test_harmless_options_do_not_matter(tmp_path):
  folder = checkpoints.changed(
    tmp_path,
    'gpt2_lm',
    reorder_and_upcast_attn=True,
    torch_dtype='float16',
    use_cache=False,
    task_specific_params={'text-generation': {'max_length': 50}},
  )
  assert_computes_the_same(folder)


def test_pickles_are_refused_with_the_remedy(tmp_path):
  (tmp_path / 'config.json').write_text(json.dumps(config(GPT2)))
  with pytest.raises(UsageError, match=r'holds no model\.safetensors'):
    hf.load(str(tmp_path))
  (tmp_path / 'pytorch_model.bin').write_bytes(b'\x80')
  with pytest.raises(UsageError, match=r'pytorch_model\.bin.*save_pretrained'):
    hf.load(str(tmp_path))


def test_damaged_files_are_named(tmp_path):
  folder = tmp_path / 'gpt2_lm'
  with pytest.raises(UsageError, match=r'config\.json: is missing; name a f'):
    hf.load(str(folder))
  checkpoints.changed(tmp_path, 'gpt2_lm')
  data = (folder / 'model.safetensors').read_bytes()
  (folder / 'model.safetensors').write_bytes(data[:-100])
  with pytest.raises(UsageError, match=r'model\.safetensors: .*; copy'):
    hf.load(str(folder))
  for text in ('{', '[]', '[' * 100_000):
    (folder / 'config.json').write_text(text)
    with pytest.raises(UsageError, match=r'config\.json: is damaged, not .*JSON'):
      hf.load(str(folder))


def test_bodies_without_a_head(tmp_path):
  weights = {
    n.removeprefix('gpt_neox.'): x
    for n, x in tensors(ROOT / 'gpt_neox_lm').items()
    if n != 'embed_out.weight'
  }
  values = config(ROOT / 'gpt_neox_lm') | {'architectures': ['GPTNeoXModel']}
  folder = checkpoints.write(tmp_path / 'in', values, weights)
  model, params = hf.load(folder)
  golden = case(ROOT / 'gpt_neox_lm', 'nomask')
  out = hf.forward(model, params, **golden.inputs)
  assert {*out} == {'hidden_states', 'last_hidden_state'}
  error = golden.max_error('last_hidden_state', out['last_hidden_state'])
  assert error < 1e-4
  with pytest.raises(UsageError, match='no head'):
    hf.forward(model, params, **golden.inputs, labels=golden.inputs)
  hf.save(str(tmp_path / 'out'), model, params)
  checkpoints.assert_tensors(tmp_path / 'out', weights)


def test_an_import_that_was_changed_gets_the_options_that_changed(tmp_path):
  model, params = hf.load(str(GPT2))
  params['embed']['embedding'] = params['embed']['embedding'][:101]
  model = model.clone(vocab_size=101)
  hf.save(str(tmp_path), model, params)
  assert config(tmp_path)['vocab_size'] == 101
  assert config(tmp_path)['architectures'] == ['GPT2LMHeadModel']
  with pytest.raises(UsageError, match=r"cannot express model\.bias='none'"):
    hf.save(str(tmp_path), model.clone(bias='none'), params)
  with pytest.raises(UsageError, match=r'roberta cannot express'):
    roberta = hf.load(str(ROOT / 'roberta_mlm'))
    hf.save(str(tmp_path), *roberta, options={'pad_token_id': 0})
  norm = 'layernorm(scale=False)'
  with pytest.raises(UsageError, match=r'cannot express model\.norm='):
    hf.save(str(tmp_path), model.clone(norm=norm), params)


def test_parameters_must_fit_the_model(tmp_path):
  model, params = hf.load(str(GPT2))
  del params['final_norm']['bias']
  params['more'] = np.zeros(3)
  with pytest.raises(UsageError) as error:
    hf.save(str(tmp_path / 'out'), model, params)
  assert 'final_norm/bias is missing; more is not of' in str(error.value)
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_a_tensor_with_no_numbers_is_named(tmp_path, value):
  weights = tensors(GPT2)
  name = 'transformer.h.1.mlp.c_fc.weight'
  weights[name] = weights[name].copy()
  weights[name][2, 3] = value
  folder = checkpoints.write(tmp_path / 'f', config(GPT2), weights)
  with pytest.raises(UsageError, match=f'{name} holds NaN or infinite'):
    hf.load(folder)


def test_a_table_that_is_not_read_warns(tmp_path, caplog):
  """Of published DeBERTas; its config says that no input has it."""
  weights, name = tensors(ROOT / 'deberta_v2_mlm'), 'deberta_v2_mlm'
  table = 'deberta.embeddings.position_embeddings.weight'
  values = config(ROOT / name)
  assert values['position_biased_input'] is False and table not in weights
  weights[table] = np.ones((5, 7), np.float32)
  hf.load(checkpoints.write(tmp_path / 'f', values, weights))
  (record,) = caplog.records
  assert record.levelname == 'WARNING' and table in record.getMessage()


@pytest.mark.parametrize(
  'name', ['config.json', 'model.safetensors', 'model.safetensors.index.json']
)
def test_what_is_no_file_is_not_opened(tmp_path, name):
  folder = tmp_path / 'in'
  shutil.copytree(GPT2, folder)
  (folder / name).unlink(missing_ok=True)
  os.mkfifo(folder / name)
  message = f'{re.escape(name)}: is a device, FIFO or socket, not a file; copy'
  with pytest.raises(UsageError, match=message):
    hf.load(str(folder))
