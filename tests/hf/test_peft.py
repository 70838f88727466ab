# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Adapters in PEFT's format: a recorded one, and exports that come back."""

import importlib
import importlib.util
import json
import shutil

import jax
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

from gpt_jax import hf
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.hf import peft, vocabulary
from gpt_jax.opening import importing
from gpt_jax.tuning.objectives.lora import Lora
from tests.support import checkpoints, golden_io, tiny
from tests.support.golden_io import ROOT

FOLDER = ROOT / 'gpt2_lora'
INSTALLED = all(map(importlib.util.find_spec, ('peft', 'torch')))


def adapter(folder, **options):
  """A copy of the recorded adapter, with other options."""
  shutil.copytree(FOLDER / 'adapter', folder)
  path = folder / 'adapter_config.json'
  config = json.loads(path.read_text())
  config['base_model_name_or_path'] = str(FOLDER)
  path.write_text(json.dumps(config | options))
  return str(folder)


def test_a_recorded_adapter_is_merged(tmp_path):
  case = golden_io.case(FOLDER, 'adapter')
  model, params = hf.load(adapter(tmp_path / 'a'))
  given = {n: case.inputs[n] for n in ('input_ids', 'attention_mask')}
  logits = hf.forward(model, params, **given)['logits']
  assert case.max_error('merged_logits', logits) < 1e-5


def test_a_recorded_adapter_comes_back(tmp_path):
  """Its A is that of query, key and value, so the rank stays 4."""
  known = load_file(FOLDER / 'adapter/adapter_model.safetensors')
  name = 'base_model.model.transformer.h.{}.attn.c_attn.lora_{}.weight'
  a, b = (np.stack([known[name.format(i, x)].T for i in range(2)]) for x in 'AB')
  block = {
    part: {'kernel_A': a, 'kernel_B': x}
    for part, x in zip(('query', 'key', 'value'), np.split(b, 3, axis=-1), strict=True)
  }
  tree = {'decoder': {'periods': {'block_0': {'attention': block}}}}
  model, out = hf.load(str(FOLDER))[0], tmp_path / 'out'
  more = {'alpha': 8.0, 'rslora': False, 'base': 'b'}
  hf.save_adapter(str(out), model, tree, None, **more)
  found = load_file(out / 'adapter_model.safetensors')
  assert {*found} == {*known}
  jax.tree.map(np.testing.assert_array_equal, found, known)
  config = json.loads((out / 'adapter_config.json').read_text())
  recorded = json.loads((FOLDER / 'adapter/adapter_config.json').read_text())
  recorded['base_model_name_or_path'] = 'b'
  assert all(recorded[name] == x for name, x in config.items())


def test_which_way_a_weight_lies_follows_from_the_base(tmp_path):
  """PEFT corrects `fan_in_fan_out`, too."""
  one = hf.load(adapter(tmp_path / 'a', fan_in_fan_out=True))[1]
  two = hf.load(adapter(tmp_path / 'b', fan_in_fan_out=False))[1]
  jax.tree.map(np.testing.assert_array_equal, one, two)


def test_an_adapter_of_the_class_without_a_head(tmp_path):
  """GPT2Model's names lack the prefix of GPT2LMHeadModel's."""
  expected = hf.load(adapter(tmp_path / 'a'))[1]
  folder = adapter(tmp_path / 'b')
  path = tmp_path / 'b/adapter_model.safetensors'
  tensors = load_file(path)
  save_file({n.replace('.transformer.h', '.h'): x for n, x in tensors.items()}, path)
  jax.tree.map(np.testing.assert_array_equal, hf.load(folder)[1], expected)


def test_kernels_that_peft_does_not_adapt_are_refused(tmp_path):
  with pytest.raises(UsageError, match='PEFT has no adapter of this kernel in x'):
    exported('xlnet_lm', 'query, value', False, tmp_path)


def exported(name, on, rslora, out):
  """Writes an adapter of random numbers; returns its model, merged."""
  model, params = hf.load(str(ROOT / name))
  lora = Lora(rank=3, alpha=7.0, on=on, rslora=rslora)
  plain = checkpoints.plain(model)
  objective = lora.objective(Causal().replaced(model=plain), model.vocab_size)
  shapes = tiny.shapes(objective)
  tree = tiny.random_like(shapes['adapters'], seed=3)
  heads = params.pop('heads', {})
  merged = lora.merged({'adapters': tree, 'parts': {'base': params}})
  hf.save_adapter(
    str(out), model, tree, heads, **{'alpha': 7.0, 'rslora': rslora, 'base': str(ROOT / name)}
  )
  return model, merged, heads


@pytest.mark.skipif(not INSTALLED, reason="needs torch: pip install '.[hf]'")
@pytest.mark.filterwarnings('ignore::FutureWarning')  # of transformers
@pytest.mark.parametrize(
  'name, on, auto',
  [
    ('gpt2_lm', 'query, value, ffn', 'AutoModelForCausalLM'),
    ('gpt_neox_lm', 'query, out', 'AutoModelForCausalLM'),
    ('llama_gqa', 'all', 'AutoModelForCausalLM'),
    ('bert_cls', 'all', 'AutoModelForSequenceClassification'),
    ('roberta_mlm', 'query, ffn', 'AutoModelForMaskedLM'),
    ('t5_v11', 'query, value', 'AutoModelForSeq2SeqLM'),
  ],
)
def test_peft_computes_the_same(name, on, auto, tmp_path):
  peft, torch, theirs = map(importlib.import_module, ('peft', 'torch', 'transformers'))
  model, merged, heads = exported(name, on, False, tmp_path)
  if heads:
    merged['heads'] = heads
  base = getattr(theirs, auto).from_pretrained(str(ROOT / name))
  loaded = peft.PeftModel.from_pretrained(base, str(tmp_path)).eval()
  given = {'input_ids': tiny.tokens(3, 11, vocab_size=model.vocab_size)}
  if model.num_encoder_layers:
    given['decoder_input_ids'] = given['input_ids'][:, :7]
  with torch.no_grad():
    expected = loaded(**{n: torch.from_numpy(np.int64(ids)) for n, ids in given.items()}).logits
    with loaded.disable_adapter():
      plain = loaded(**{n: torch.from_numpy(np.int64(ids)) for n, ids in given.items()}).logits
  assert (expected - plain).abs().max() > 1e-2
  ours = hf.forward(model, merged, **given)['logits']
  np.testing.assert_allclose(ours, expected.numpy(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
  'name, on',
  [
    ('gpt2_lm', 'query, value'),
    ('gpt2_lm', 'all'),
    ('gpt_neox_lm', 'value, ffn'),
    ('falcon_gqa', 'query, key, value, out'),
    ('llama_gqa', 'all'),
    ('bert_cls', 'all'),
    ('albert_groups', 'query, ffn'),
    ('t5_v11', 'query, value'),
  ],
)
@pytest.mark.parametrize('rslora', [False, True])
def test_an_export_is_the_merged_model(name, on, rslora, tmp_path):
  out = tmp_path / 'out'
  _, merged, heads = exported(name, on, rslora, out)
  if heads:  # PEFT holds these in full, which is not read
    path = out / 'adapter_model.safetensors'
    tensors = load_file(path)
    whole = {n: x for n, x in tensors.items() if 'lora_' not in n}
    known = golden_io.tensors(ROOT / name)
    for key, x in whole.items():
      np.testing.assert_array_equal(x, known[key.removeprefix('base_model.model.')])
    save_file({n: tensors[n] for n in {*tensors} - {*whole}}, path)
    path = out / 'adapter_config.json'
    config = json.loads(path.read_text())
    assert config['modules_to_save']
    assert config['task_type'] == ('SEQ_CLS' if name == 'bert_cls' else None)
    path.write_text(json.dumps(config | {'modules_to_save': None}))
  found = params_lib.flatten(hf.load(str(out))[1])
  for path, x in params_lib.flatten(merged).items():
    np.testing.assert_allclose(found[path], x, atol=2e-6, err_msg=path)


@pytest.mark.parametrize(
  'options, why',
  [
    ({'peft_type': 'IA3'}, "peft_type='IA3': is not supported, only 'LORA'"),
    ({'bias': 'all'}, "bias='all': is not supported"),
    ({'use_dora': True}, 'use_dora=True: only plain LoRA is read'),
    ({'modules_to_save': ['score']}, r"modules_to_save=\['score'\]: only pl"),
    ({'init_lora_weights': 'pissa'}, "init_lora_weights='pissa': is not sup"),
    ({'base_model_name_or_path': 'gpt2'}, "'gpt2': is not a folder here"),
    ({'lora_alpha': 'x'}, "lora_alpha='x': must be a number"),
    ({'alpha_pattern': {'(': 3}}, 'alpha_pattern=.*: cannot be read'),
    ({'alpha_pattern': {'c_attn': float('inf')}}, 'must be a finite number'),
    ({'alpha_pattern': {'c_attn': 10**400}}, 'a number that float32 holds'),
    ({'lora_alpha': float('nan')}, 'must be a finite number'),
    ({'r': 0}, r'attn.c_attn the rank 0, and its tensors have 4;'),
    ({'r': -4}, r'attn.c_attn the rank -4, and its tensors have 4;'),
    ({'rank_pattern': {'x(': 4}}, 'rank_pattern=.*: cannot be read'),
    ({'rank_pattern': {'(' * 9999: 4}}, 'rank_pattern=.*: cannot be read'),
    ({'rank_pattern': {'x': 'y'}}, "x='y': must be a number"),
    ({'r': 5}, r'attn.c_attn the rank 5, and its tensors have 4;'),
    ({'rank_pattern': {'c_attn': 2}}, 'attn.c_attn the rank 2, and its'),
    ({'base_model_name_or_path': str(ROOT / 'gpt_neo_lm')}, 'no such weight'),
  ],
)
def test_what_is_refused(options, why, tmp_path):
  with pytest.raises(UsageError, match=why):
    hf.load(adapter(tmp_path / 'a', **options))


@pytest.mark.parametrize('pattern', [r'(\w+\.?)+\d', '(.*a)*b', '(x?){99}y|((.*)*)*!', '(a|a|.)+#'])
def test_a_pattern_without_an_end_is_refused(pattern, monkeypatch):
  monkeypatch.setattr(peft, '_SECONDS', 0.5)
  options = peft._Options({'alpha_pattern': {pattern: 1}})
  module = 'transformer.' + 'a' * 60
  with pytest.raises(UsageError, match=r'take more than 0\.5 s'):
    peft._of_modules(options, 'alpha_pattern', 'lora_alpha', [module])


MODULES = [
  f'model.layers.{i}.{part}'
  for i in (0, 1, 11)
  for part in ('self_attn.q_proj', 'self_attn.k_proj', 'mlp.down_proj', 'q')
]


@pytest.mark.skipif(not INSTALLED, reason="needs torch: pip install '.[hf]'")
@pytest.mark.parametrize(
  'patterns',
  [
    ('q_proj', 'k_proj'),
    ('layers.1.self_attn.q_proj', 'q_proj', 'q'),
    ('^model.layers.1.mlp.down_proj$', 'mlp'),
    (r'layers\.(0|1)\..*', r'.*\.\d+\.mlp.*'),
    ('(q|k)_proj', r'layers\.1{1,2}\..*proj', 'x'),
    ('.*(?<!q)_proj', 'q_proj', 'Q'),
  ],
)
def test_patterns_fit_as_in_peft(patterns):
  other = importlib.import_module('peft.utils.other')
  numbers = {pattern: i for i, pattern in enumerate(patterns)}
  options = peft._Options({'alpha_pattern': numbers, 'lora_alpha': 9})
  expected = {m: numbers.get(other.get_pattern_key(numbers, m), 9) for m in MODULES}
  assert {*expected.values()} > {0}
  read = peft._of_modules(options, 'alpha_pattern', 'lora_alpha', MODULES)
  assert read == expected


def test_tensors_of_other_kinds_are_refused(tmp_path):
  folder = adapter(tmp_path / 'a')
  path = tmp_path / 'a/adapter_model.safetensors'
  tensors = load_file(path)
  first = sorted(tensors)[0]
  for change, why in (
    ({first: tensors[first][:, 1:]}, 'give the base that it was trained on'),
    ({first: tensors[first][1:]}, 'no two matrices of one rank'),
    (
      {n: x[:0] if 'lora_A' in n else x[:, :0] for n, x in tensors.items()},
      'no two matrices of one rank',
    ),
    ({n: x * 0 + 1e30 for n, x in tensors.items()}, 'float32 does not hold'),
    ({'base_model.model.x.lora_embedding_A': tensors[first]}, 'is neither'),
    ({first: None}, 'without its partner'),
    ({n: None for n in tensors}, 'adapts no module'),
    ({first: tensors[first] + np.float32('nan')}, 'A.weight holds NaN or inf'),
    ({first: np.int32(tensors[first])}, 'is of type I32; one of F32, F16'),
  ):
    changed = {n: np.ascontiguousarray(x) for n, x in (tensors | change).items() if x is not None}
    save_file(changed, path)
    with pytest.raises(UsageError, match=why):
      hf.load(folder)
  path.unlink()
  with pytest.raises(UsageError, match='copy the folder again'):
    hf.load(folder)


def with_tokenizer(folder, words):
  """Puts a tokenizer of words beside a model or an adapter."""
  names = ['<unk>', '<|endoftext|>', *words]
  library = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token='<unk>')
  )
  library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  library.add_special_tokens(['<|endoftext|>'])
  library.save(str(folder / 'tokenizer.json'))
  config = {'eos_token': '<|endoftext|>', 'tokenizer_class': 'PreTrainedTokenizerFast'}
  (folder / 'tokenizer_config.json').write_text(json.dumps(config))


def test_an_adapters_own_tokenizer_comes_before_its_bases(tmp_path):
  """With the ids that config.json and generation_config.json of the base name.

  Trainers save it with the tokens that they add.
  """
  base = tmp_path / 'base'
  shutil.copytree(FOLDER, base)
  folder = tmp_path / 'a'
  adapter(folder, base_model_name_or_path=str(base))
  with_tokenizer(base, ['a', 'b'])

  def ids():
    read = vocabulary.of_checkpoint(str(folder), 'gpt2')
    return read[1].encode_batch(['b c'])[0].tolist()

  assert ids() == [3, 0]  # c is unknown
  with_tokenizer(folder, ['c', 'a', 'b'])
  assert ids() == [4, 2]
  importing.from_hf(str(folder), str(tmp_path / 'w'))
  saved = tokenizer.load(str(tmp_path / 'w/tokenizer'))
  assert saved.encode_batch(['b c'])[0].tolist() == [4, 2]
  base_ids = json.loads((base / 'config.json').read_text())
  kept = json.loads((tmp_path / 'w/tokenizer/special.json').read_text())
  assert kept['model_ids']['eos_token_id'] == base_ids['eos_token_id']


def test_a_token_of_an_adapters_tokenizer_without_a_row(tmp_path):
  """GPT-2's table of the fixture has 103 rows; the last word is token 103."""
  adapter(tmp_path / 'a')
  with_tokenizer(tmp_path / 'a', [f'w{i}' for i in range(102)])
  importing.from_hf(str(tmp_path / 'a'), str(tmp_path / 'w'))
  saved = tokenizer.load(str(tmp_path / 'w/tokenizer'))
  assert saved.encode_batch(['w100'])[0].tolist() == [102]
  with pytest.raises(UsageError, match='103'):
    saved.encode_batch(['w101'])
