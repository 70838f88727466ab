# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every checkpoint in tests/golden computes what transformers recorded, and
comes back from an export to the last bit. A new folder there is a new test.
"""

import functools
import json
import shutil

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core.nn.transformer import Transformer, make_model
from gpt_jax.hf.layout import fields_of
from tests.support import memory
from tests.support.decoding import generate
from tests.support.golden_io import FOLDERS, case, cases, config, meta, tensors

TOLERANCE = 1e-4
# In files, but no parameters.
CONSTANTS = ['transformer.pos_emb.inv_freq']
# Exports have both spellings, as releases differ in which one they read.
SPELLINGS = {
  'cls.predictions.decoder.bias': 'cls.predictions.bias',
  'lm_head.decoder.bias': 'lm_head.bias',
  'predictions.decoder.bias': 'predictions.bias',
}
# That of the enhanced mask decoder, which HF leaves out as we do; but for
# `deberta_mlm_new`, whose input has it.
MASK_DECODER = 'deberta.embeddings.position_embeddings.weight'
# And they never say that an output table of its own is tied.
REWRITTEN = {'t5_v11_hf5config': {'tie_word_embeddings': False}}
# Our own models have no other heads; tests/hf/test_own_models.py has BERT
# without them.
LANGUAGE_MODELS = [
  f
  for f in FOLDERS
  if {'nomask', 'decmask'} & {*meta(f)['cases']}
  and not meta(f)['hf_class'].endswith('ForPreTraining')
]
LEGACY = [f for f in FOLDERS if (f / 'config_legacy.json').exists()]


def name(value):
  return getattr(value, 'name', value)


def of_kind(call):
  # ELECTRA's `pair` is of two models: see tests/papers/electra/test_electra.py.
  # XLNet sees both sides, and writes no text: see
  # tests/hf/test_transformer_xl.py. Random blocks are drawn in training: see
  # tests/hf/test_bert.py.
  return [
    (folder, c)
    for folder in FOLDERS
    for c in cases(folder, call)
    if c != 'pair'
    and (folder.name, c) != ('xlnet_lm', 'gen')
    and folder.name != 'big_bird_sparse_random'
  ]


# Heads that have the same paths through the code in BERT. For DeBERTa
# `deberta_v2_mlm` and the mask decoder of tests/papers/deberta/test_deberta.py
# cover them.
HEADS = (
  'albert_cls',
  'roberta_qa',
  'roberta_tok',
  'electra_qa',
  'electra_tok',
  'big_bird_full',
  'deberta_cls',
  'deberta_emd',
  'deberta_mlm',
  'deberta_mlm_new',
  'deberta_v2_unshared',
  'deberta_v3_cls',
  'deberta_v3_mlm',
)
# Whose masks, left padding, token types and memories are not left to the rest:
# plain, with a bias of distances, rotated, with windows, encoder-decoders with
# experts and without, recurrent.
IN_FULL = (
  'gpt2_lm',
  'falcon_alibi',
  'llama_gqa',
  'gemma3_lm',
  't5_v11',
  'switch_lm',
  'transfo_xl_lm',
)
# With an order and a memory; its other cases are of parts of these.
TWO_STREAMS = {('xlnet_lm', 'main'), ('xlnet_lm', 'perm_mems')}


def repeats(folder, case_name):
  """Whether others have the same paths through the code."""
  if folder.name in HEADS or folder.name.startswith('gen_beam'):
    return True
  if folder.name.startswith('xlnet'):
    return (folder.name, case_name) not in TWO_STREAMS
  kin = folder.name.startswith('bert_') and folder.name != 'bert_mask3d'
  return case_name != 'main' and not kin and folder.name not in IN_FULL


@pytest.fixture(autouse=True)
def few_programs():
  """Each model has its own, and they add up to gigabytes."""
  memory.bound()


@functools.cache
def loaded(folder):
  return hf.load(str(folder))


def expected_tensors(folder):
  out = tensors(folder)
  if folder.name == 'deberta_emd':
    del out[MASK_DECODER]
  # Their biases have one name.
  if meta(folder)['model_type'] in ('gptj', 'deberta', 'deberta-v2'):
    return out
  return out | {n: out[s] for n, s in SPELLINGS.items() if s in out}


def test_the_families_are_here():
  types = {meta(folder)['model_type'] for folder in FOLDERS}
  assert types >= {'openai-gpt', 'gpt2', 'gpt_neo', 'gptj', 'gpt_neox'}
  assert types >= {'llama', 'mistral', 'mixtral', 'falcon', 'bert', 't5'}
  assert types >= {'switch_transformers', 'transfo-xl', 'roberta', 'albert'}
  assert {'electra', 'distilbert', 'big_bird'} <= types
  assert types >= {'bart', 'mbart', 'marian', 'xlnet'}
  assert {'deberta', 'deberta-v2'} <= types
  assert types >= {'qwen3', 'olmo2', 'gemma2', 'gemma3_text'}


@pytest.mark.parametrize(
  'folder, case_name',
  [pytest.param(*x, marks=[pytest.mark.slow] * repeats(*x)) for x in of_kind('forward')],
  ids=name,
)
def test_forward(folder, case_name, record_property):
  model, params = loaded(folder)
  golden = case(folder, case_name)
  out = hf.forward(model, params, **golden.inputs, **golden.static)
  assert {*golden.outputs} <= {*out}
  errors = {n: golden.max_error(n, out[n]) for n in golden.outputs}
  record_property('errors', json.dumps(errors))
  assert max(errors.values()) < TOLERANCE, errors


def is_first(folder, case_name):
  """Of its family: padded on the left, where rows differ in their lengths."""
  family = meta(folder)['model_type']
  same = [x for x in of_kind('greedy') if meta(x[0])['model_type'] == family]
  padded = [x for x in same if 'leftpad' in x[1]]
  return (folder, case_name) == (padded or same)[0]


@pytest.mark.parametrize(
  'folder, case_name',
  [pytest.param(*x, marks=[pytest.mark.slow] * (not is_first(*x))) for x in of_kind('greedy')],
  ids=name,
)
def test_greedy_decoding(folder, case_name):
  model, params = loaded(folder)
  golden = case(folder, case_name)
  ids = golden.inputs['input_ids']
  mask = golden.inputs.get('attention_mask', np.ones_like(ids))
  # Ours pads on the right, where nothing is seen.
  rows = [row[kept == 1].tolist() for row, kept in zip(ids, mask, strict=True)]
  sources, width = None, ids.shape[1]
  if model.num_encoder_layers:
    sources, width = rows, 1
    rows = [[model.options.get('decoder_start_token_id')] for _ in rows]
  sequences = golden.outputs['sequences']
  if sources:
    np.testing.assert_array_equal(sequences[:, :1], rows)
  expected = sequences[:, width:]
  new = generate(model, params, rows, sources=sources, max_tokens=expected.shape[1], seed=0)
  np.testing.assert_array_equal(new, expected)


@pytest.mark.parametrize('folder', FOLDERS, ids=name)
def test_parameters(folder):
  model, params = loaded(folder)
  assert isinstance(model, Transformer)
  leaves = jax.tree.leaves(params)
  assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float32)}
  # Where HF has a buffer we have a parameter, and the other way round.
  bias = tensors(folder).get('final_logits_bias', np.zeros(0)).size
  waves = 2 * model.context_length * model.d_model
  waves *= meta(folder)['model_type'] == 'marian'
  counted = sum(leaf.size for leaf in leaves) - bias + waves
  assert counted == meta(folder)['num_parameters']


@pytest.mark.parametrize('folder', FOLDERS, ids=name)
def test_a_table_reads_what_it_writes(folder):
  model = hf.HeaderSource(str(folder)).model
  family, kind = model.family, model.origin.kind
  again = fields_of(family, kind, family.options(model), bias='bias=True' in model.output)
  assert again == {field: getattr(model, field) for field in again}


@pytest.mark.parametrize('folder', FOLDERS, ids=name)
def test_export_gives_back_the_import(folder, tmp_path):
  model, params = loaded(folder)
  hf.save(str(tmp_path), model, params)
  before, after = expected_tensors(folder), tensors(tmp_path)
  assert {*after} == {*before}
  for tensor, value in before.items():
    assert after[tensor].dtype == value.dtype, tensor
    np.testing.assert_array_equal(after[tensor], value, tensor, strict=True)
  rewritten = REWRITTEN.get(folder.name, {})
  assert config(tmp_path) == config(folder) | rewritten
  assert hf.load(str(tmp_path))[0].clone(origin=None) == model.clone(origin=None)


@pytest.mark.parametrize('folder', FOLDERS, ids=name)
def test_every_parameter_counts_in_the_export(folder, tmp_path):
  model, params = loaded(folder)
  hf.save(str(tmp_path), model, jax.tree.map(lambda x: x + 1, params))
  expected = expected_tensors(folder)
  for tensor, value in tensors(tmp_path).items():
    change = tensor not in CONSTANTS
    np.testing.assert_array_equal(value, expected[tensor] + change, tensor)


@pytest.mark.parametrize('folder', LEGACY, ids=name)
def test_config_as_published(folder, tmp_path):
  shutil.copy(folder / 'model.safetensors', tmp_path)
  shutil.copy(folder / 'config_legacy.json', tmp_path / 'config.json')
  model, _ = hf.load(str(tmp_path))
  expected, _ = loaded(folder)
  assert model.clone(origin=expected.origin) == expected


@pytest.mark.slow
@pytest.mark.parametrize('folder', LANGUAGE_MODELS, ids=name)
def test_config_written_by_us(folder, tmp_path):
  """As if the model had been trained here: without the original config."""
  model, params = loaded(folder)
  fields = {n: getattr(model, n) for n in Transformer.__dataclass_fields__}
  plain = make_model(**{**fields, 'parent': None, 'name': None})
  hf.save(str(tmp_path), plain, params)
  again, params_again = hf.load(str(tmp_path))
  which = 'decmask' if model.num_encoder_layers else 'nomask'
  inputs = case(folder, which).inputs
  np.testing.assert_array_equal(
    hf.forward(again, params_again, **inputs)['logits'],
    hf.forward(model, params, **inputs)['logits'],
  )
