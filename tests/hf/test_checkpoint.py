# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is accepted besides HF's newest files, and what is refused by name."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpt_jax import hf
from gpt_jax.hf.base import Options, choice
from gpt_jax.hf.gpt import GPT_NEOX, GPTJ
from gpt_jax.nn.build import CHOICES
from gpt_jax.spec import UsageError
from tests.support import tiny
from tests.support.golden_io import ROOT, case, config, tensors

GPT2 = ROOT / 'gpt2_lm'


def write(folder, values, weights):
  folder.mkdir(exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(values))
  save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})
  return str(folder)


def changed(tmp_path, name='gpt2_lm', **options):
  """A fixture with other options."""
  values = config(ROOT / name) | options
  return write(tmp_path / name, values, tensors(ROOT / name))


def assert_computes_the_same(folder, of=GPT2):
  golden = case(of, 'nomask')
  model, params = hf.load(folder)
  out = hf.forward(model, params, **golden.inputs)
  assert golden.max_error('logits', out['logits']) < 1e-4


def assert_same_tensors(folder, expected):
  found = load_file(f'{folder}/model.safetensors')
  assert {*found} == {*expected}
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, name, strict=True)


@pytest.mark.parametrize(
  'name, prefix',
  [
    ('gpt2_lm', 'transformer.'),
    ('openai_gpt_lm', 'transformer.'),
    ('gpt_neo_lm', 'transformer.'),
  ],
)
def test_published_names_without_the_prefix(tmp_path, name, prefix):
  weights = {n.removeprefix(prefix): x for n, x in tensors(ROOT / name).items()}
  kind = 'attn.attention' if name == 'gpt_neo_lm' else 'attn'
  mask = np.tril(np.ones((1, 1, 40, 40), np.float32))
  masks = {f'h.{i}.{kind}.bias': mask for i in range(2)}
  values = config(ROOT / name)
  folder = write(tmp_path / 'in', values, weights | masks)
  assert_computes_the_same(folder, ROOT / name)
  hf.save(str(tmp_path / 'out'), *hf.load(folder))
  assert_same_tensors(tmp_path / 'out', weights)


def test_tied_copies_are_given_back_if_they_are_equal(tmp_path):
  weights = tensors(GPT2)
  weights['lm_head.weight'] = weights['transformer.wte.weight'].copy()
  folder = write(tmp_path / 'in', config(GPT2), weights)
  assert_computes_the_same(folder)
  hf.save(str(tmp_path / 'out'), *hf.load(folder))
  assert_same_tensors(tmp_path / 'out', weights)

  weights['lm_head.weight'][3, 5] += 1
  folder = write(tmp_path / 'in', config(GPT2), weights)
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
    *('../a.safetensors', '/a.safetensors', 'x/../../a.safetensors', '..', ''),
    *('..\\a.safetensors', 'a.safetensors\0', 3, None),
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


@pytest.mark.parametrize(
  'dtype, stored', [(np.float16, 'F16'), (jax.numpy.bfloat16, 'BF16')]
)
def test_half_precision_comes_back_in_it(tmp_path, dtype, stored):
  weights = {n: x.astype(dtype) for n, x in tensors(GPT2).items()}
  folder = write(tmp_path / 'in', config(GPT2), weights)
  model, params = hf.load(folder)
  assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype(np.float32)}
  hf.save(str(tmp_path / 'out'), model, params)
  again, params_again = hf.load(str(tmp_path / 'out'))
  assert again.origin.dtype == stored
  jax.tree.map(np.testing.assert_array_equal, params, params_again)


def test_every_wrong_tensor_is_listed(tmp_path):
  weights = tensors(GPT2)
  del weights['transformer.h.1.ln_1.bias']
  del weights['transformer.wpe.weight']
  weights['transformer.h.2.attn.c_attn.weight'] = np.zeros((32, 97), np.float32)
  weights['transformer.h.3.ln_1.bias'] = np.zeros(32, np.float32)
  weights['transformer.ln_f.weight'] = np.zeros(32, np.int32)
  with pytest.raises(UsageError) as error:
    hf.load(write(tmp_path / 'in', config(GPT2), weights))
  for text in (
    'transformer.h.1.ln_1.bias is missing',
    'transformer.wpe.weight is missing',
    'transformer.h.2.attn.c_attn.weight is (32, 97), not (32, 96)',
    'transformer.h.3.ln_1.bias is not of this model',
    'transformer.ln_f.weight is of type I32',
  ):
    assert text in str(error.value)


@pytest.mark.parametrize(
  'name, option, value',
  [
    ('gpt2_lm', 'model_type', 'mamba'),
    ('gpt2_lm', 'architectures', ['GPT2ForTokenClassification']),
    ('gpt2_lm', 'activation_function', 'quick_gelu'),
    ('gpt2_lm', 'add_cross_attention', True),
    ('gpt2_lm', 'quantization_config', {'bits': 4}),
    ('gpt2_lm', 'n_layer', None),
    ('gpt2_lm', 'n_layer', '3'),
    ('gpt2_lm', 'scale_attn_weights', 1),
    ('gpt2_double', 'summary_type', 'last'),
    ('gpt2_cls', 'problem_type', 'ranking'),
    ('openai_gpt_lm', 'afn', 'gelu_new'),
    ('gpt_neo_lm', 'attention_types', [[['global', 'sparse'], 2]]),
    ('gpt_neo_lm', 'attention_types', [[['global', 'local'], 3]]),
    ('gptj_lm', 'rotary_dim', 18),
    ('gptj_lm', 'rotary_dim', None),
    ('gptj_lm', 'tie_word_embeddings', True),
    ('gpt_neox_lm', 'rope_scaling', [2.0]),
    ('gpt_neox_lm', 'hidden_act', 'gelu_10'),
  ],
)
def test_unsupported_options_are_named(tmp_path, name, option, value):
  folder = changed(tmp_path, name, **{option: value})
  with pytest.raises(UsageError) as error:
    hf.load(folder)
  assert f'{option}={value!r}' in str(error.value)
  assert folder in str(error.value)


def test_rope_type_is_named(tmp_path):
  rope = config(ROOT / 'gpt_neox_lm')['rope_parameters'] | {'rope_type': 'ntk'}
  with pytest.raises(UsageError, match="rope_type='ntk'"):
    hf.load(changed(tmp_path, 'gpt_neox_lm', rope_parameters=rope))


@pytest.mark.parametrize(
  'options',
  [
    # As in transformers 5, and before.
    {
      'rope_parameters': {
        'rope_type': 'linear',
        'factor': 2.5,
        'rope_theta': 300.0,
        'partial_rotary_factor': 0.5,
      }
    },
    {
      'rope_scaling': {'type': 'linear', 'factor': 2.5},
      'rotary_emb_base': 300.0,
      'rotary_pct': 0.5,
    },
  ],
)
def test_positions_of_gpt_neox_are_scaled(options):
  values = config(ROOT / 'gpt_neox_lm') | {'rope_parameters': None}
  fields = GPT_NEOX.fields(Options(values | options))
  expected = "rope(theta=300.0, fraction=0.5, scaling='linear(factor=2.5)')"
  assert fields['position'] == expected
  written = GPT_NEOX.options(tiny.model(**fields, head_size=8))
  for names in (('rope_parameters',), ('rope_scaling', 'rope_parameters')):
    kept = {n: written[n] for n in names}
    assert GPT_NEOX.fields(Options(values | kept))['position'] == expected


def test_gpt_neox_turns_pairs():
  values = config(ROOT / 'gpt_neox_lm') | {'rope_parameters': None}
  odd = values | {'hidden_size': 24, 'num_attention_heads': 2}
  with pytest.raises(UsageError, match=r'factor=0\.25 .* turns 3'):
    GPT_NEOX.fields(Options(odd))


def test_harmless_options_do_not_matter(tmp_path):
  folder = changed(
    tmp_path,
    reorder_and_upcast_attn=True,
    torch_dtype='float16',
    use_cache=False,
    task_specific_params={'text-generation': {'max_length': 50}},
  )
  assert_computes_the_same(folder)


def test_rotary_dim_survives_rounding():
  # In floating point 44 * (30 / 44) is less than 30.
  values = config(ROOT / 'gptj_lm') | {'n_embd': 88, 'rotary_dim': 30}
  fields = GPTJ.fields(Options(values)) | {'head_size': 44}
  model = tiny.model(**fields)
  assert GPTJ.options(model)['rotary_dim'] == 30
  position = CHOICES['position']['rope']
  rotate = position(**choice(model, 'position').kwargs).rotate
  x = np.ones((1, 2, 1, 44), np.float32)
  turned = np.asarray(rotate(x, np.arange(2)[None]))[0, 1, 0] != 1
  assert turned.nonzero()[0].max() == 29


def test_pickles_are_refused_with_the_remedy(tmp_path):
  (tmp_path / 'config.json').write_text(json.dumps(config(GPT2)))
  with pytest.raises(UsageError, match=r'holds no model\.safetensors'):
    hf.load(str(tmp_path))
  (tmp_path / 'pytorch_model.bin').write_bytes(b'\x80')
  with pytest.raises(UsageError, match=r'pytorch_model\.bin.*save_pretrained'):
    hf.load(str(tmp_path))


def test_damaged_files_are_named(tmp_path):
  folder = tmp_path / 'gpt2_lm'
  with pytest.raises(UsageError, match=r'config\.json: No such file'):
    hf.load(str(folder))
  changed(tmp_path)
  data = (folder / 'model.safetensors').read_bytes()
  (folder / 'model.safetensors').write_bytes(data[:-100])
  with pytest.raises(UsageError, match=r'model\.safetensors: .*; copy'):
    hf.load(str(folder))
  (folder / 'config.json').write_text('{')
  with pytest.raises(UsageError, match=r'config\.json: is not JSON'):
    hf.load(str(folder))


def test_inputs_that_the_model_does_not_take(tmp_path):
  ids = np.ones((1, 3), np.int32)
  model, params = hf.load(str(ROOT / 'gpt_neox_lm'))
  with pytest.raises(UsageError, match='token_type_ids: gpt_neox takes none'):
    hf.forward(model, params, input_ids=ids, token_type_ids=ids)
  with pytest.raises(UsageError, match='no choice head'):
    hf.forward(model, params, input_ids=ids, mc_labels=ids[:, 0])


def test_bodies_without_a_head(tmp_path):
  weights = {
    n.removeprefix('gpt_neox.'): x
    for n, x in tensors(ROOT / 'gpt_neox_lm').items()
    if n != 'embed_out.weight'
  }
  values = config(ROOT / 'gpt_neox_lm') | {'architectures': ['GPTNeoXModel']}
  folder = write(tmp_path / 'in', values, weights)
  model, params = hf.load(folder)
  golden = case(ROOT / 'gpt_neox_lm', 'nomask')
  out = hf.forward(model, params, **golden.inputs)
  assert {*out} == {'hidden_states', 'last_hidden_state'}
  error = golden.max_error('last_hidden_state', out['last_hidden_state'])
  assert error < 1e-4
  with pytest.raises(UsageError, match='no head'):
    hf.forward(model, params, **golden.inputs, labels=golden.inputs)
  hf.save(str(tmp_path / 'out'), model, params)
  assert_same_tensors(tmp_path / 'out', weights)


def test_an_import_that_was_changed_gets_the_options_that_changed(tmp_path):
  model, params = hf.load(str(GPT2))
  params['embed']['embedding'] = params['embed']['embedding'][:101]
  model = model.clone(vocab_size=101)
  hf.save(str(tmp_path), model, params)
  assert config(tmp_path)['vocab_size'] == 101
  assert config(tmp_path)['architectures'] == ['GPT2LMHeadModel']
  with pytest.raises(UsageError, match=r"cannot express model\.bias='none'"):
    hf.save(str(tmp_path), model.clone(bias='none'), params)
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


@pytest.mark.parametrize('name', ['t5_v11', 'albert_groups', 'deberta_v2_mlm'])
def test_hostile_options_are_refused_at_once(tmp_path, name):
  """Each option with sizes and kinds that no file has: nothing is tried."""
  values, folder = config(ROOT / name), tmp_path / 'f'
  write(folder, values, tensors(ROOT / name))
  hostile = (10**9, 10**30, -1, 1.5, 'x', True, np.inf, [10**9], {})
  accepted = 0
  for option, before in values.items():
    if option in ('transformers_version', 'dtype'):
      continue
    for value in hostile:
      if value == before:
        continue
      (folder / 'config.json').write_text(json.dumps({**values, option: value}))
      try:
        hf.Source(str(folder))
        accepted += 1  # an option of training
      except UsageError as e:
        assert len(str(e)) < 20_000
  assert accepted < len(hostile) * len(values) * 0.7


@pytest.mark.parametrize(
  'option', ['num_layers', 'num_decoder_layers', 'vocab_size', 'd_ff', 'd_kv']
)
def test_a_size_beyond_the_files_is_named(tmp_path, option):
  folder = changed(tmp_path, 't5_v11', **{option: 10**9})
  with pytest.raises(UsageError, match=f'{option}=.* more than the files'):
    hf.load(folder)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_a_tensor_with_no_numbers_is_named(tmp_path, value):
  weights = tensors(GPT2)
  name = 'transformer.h.1.mlp.c_fc.weight'
  weights[name] = weights[name].copy()
  weights[name][2, 3] = value
  folder = write(tmp_path / 'f', config(GPT2), weights)
  with pytest.raises(UsageError, match=f'{name} holds NaN or infinite'):
    hf.load(folder)


def test_a_table_that_is_not_read_is_told(tmp_path, caplog):
  """Of published DeBERTas; its config says that no input has it."""
  weights, name = tensors(ROOT / 'deberta_v2_mlm'), 'deberta_v2_mlm'
  table = 'deberta.embeddings.position_embeddings.weight'
  values = config(ROOT / name)
  assert values['position_biased_input'] is False and table not in weights
  weights[table] = np.ones((5, 7), np.float32)
  hf.load(write(tmp_path / 'f', values, weights))
  (record,) = caplog.records
  assert record.levelname == 'WARNING' and table in record.getMessage()
