# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Imports become workdirs that other commands use, and come back."""

import json
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

from configs import base
from gpt_jax import __main__, hf
from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints import checkpointer
from gpt_jax.core.files.document import Document
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.training import parts
from gpt_jax.evaluation import score
from gpt_jax.hf import vocabulary
from gpt_jax.hf_tokenizers import special_files
from gpt_jax.opening import importing
from gpt_jax.opening import models as trained_lib
from gpt_jax.tuning import exporting
from tests.support import checkpoints, tiny
from tests.support.cases import slow
from tests.support.decoding import generate
from tests.support.golden_io import ROOT, config, tensors

TOKENIZERS = pathlib.Path(__file__).parents[1] / 'hf_tokenizers/golden'


def test_the_written_config_is_complete(tmp_path):
  importing.from_hf(str(ROOT / 'gpt2_lm'), str(tmp_path))
  written = config_lib.from_json((tmp_path / 'config.json').read_text())
  fields = config_lib.flatten(base.get_config())
  assert {*config_lib.flatten(written)} == {*fields}
  assert config_lib.resolve(written) == written


@pytest.mark.parametrize('name', ['gpt2_lm', 'gpt_neox_lm'])
def test_there_and_back(tmp_path, name):
  workdir, out = str(tmp_path / 'w'), tmp_path / 'out'
  importing.from_hf(str(ROOT / name), workdir)
  exporting.to_hf(workdir, str(out))
  before, after = tensors(ROOT / name), tensors(out)
  assert {*before} == {*after}
  for tensor, value in before.items():
    np.testing.assert_array_equal(after[tensor], value, tensor)
  assert config(out) == config(ROOT / name)
  with pytest.raises(UsageError, match='holds a run'):
    importing.from_hf(str(ROOT / name), workdir)
  with pytest.raises(UsageError, match='holds a model'):
    exporting.to_hf(workdir, str(out))


# Encoders, and the objectives that they become.
ENCODERS = {
  'bert_pretraining': "masked(pair='next')",
  'albert_pretraining': "masked(pair='order')",
  'roberta_mlm': 'masked()',
  # As bert-base-uncased and roberta-base are: heads that the class lacks.
  'bert_mlm': 'masked(pooler=True)',
}


def encoder(folder, name='bert_mlm', left_out='cls.seq_relationship.'):
  """A fixture; with other names than those, the BERT with a vocabulary."""
  if name != 'bert_mlm':
    return ROOT / name
  source = ROOT / 'bert_pretraining'
  values = config(source) | {'architectures': ['BertForMaskedLM']}
  values['vocab_size'] = 1000
  kept = {
    n: np.resize(x, (1000, *x.shape[1:])) if len(x) == 112 else x
    for n, x in tensors(source).items()
    if not n.startswith(left_out)
  }
  folder.mkdir()
  (folder / 'config.json').write_text(json.dumps(values))
  save_file(kept, folder / 'model.safetensors', metadata={'format': 'pt'})
  pieces = TOKENIZERS / 'wordpiece/vocab_uncased.txt'
  shutil.copy(pieces, folder / 'vocab.txt')
  return folder


@pytest.mark.parametrize(
  'name',
  ['bert_mlm', 'albert_pretraining', *(slow(name) for name in ('bert_pretraining', 'roberta_mlm'))],
)
def test_encoders_there_and_back(tmp_path, name):
  workdir, out = str(tmp_path / 'w'), tmp_path / 'out'
  source = encoder(tmp_path / 'hf', name)
  importing.from_hf(str(source), workdir)
  built, state = trained_lib.load_state(workdir)
  assert built.config.objective.name == ENCODERS[name]
  config_lib.check_objective(built.config)
  _, params = hf.load(str(source))
  assert {*state.params.get('heads', {})} == {*params.get('heads', {})}
  exporting.to_hf(workdir, str(out))
  before, after = tensors(source), tensors(out)
  # Of the two names of the output's bias all exports have both.
  more = {n for n in after if n.endswith('decoder.bias')}
  assert {*before} | more == {*after}
  for tensor, value in before.items():
    np.testing.assert_array_equal(after[tensor], value, tensor)
  assert config(out) == config(source)
  if name == 'bert_mlm':
    made = tokenizers.Tokenizer.from_file(str(out / 'tokenizer.json'))
    tokens = made.encode('It is a [MASK].').tokens
    assert tokens == ['[CLS]', 'it', 'is', 'a', '[MASK]', '.', '[SEP]']
    roles = json.loads((out / 'tokenizer_config.json').read_text())
    assert (roles['mask_token'], roles['pad_token']) == ('[MASK]', '[PAD]')


@pytest.mark.parametrize('dtype', [np.float32, jnp.bfloat16])
def test_tensors_that_nothing_reads_come_back(tmp_path, dtype):
  """DeBERTa's absolute positions, for its mask decoder."""
  folder = ROOT / 'deberta_emd'
  weights = {n: x.astype(dtype) for n, x in tensors(folder).items()}
  source = checkpoints.write(tmp_path / 'hf', config(folder), weights)
  importing.from_hf(source, str(tmp_path / 'w'))
  exporting.to_hf(str(tmp_path / 'w'), str(tmp_path / 'out'), 10_000)
  again = hf.checkpoint.TensorReader(str(tmp_path / 'out'))
  assert again.names == {*weights}
  for name, value in weights.items():
    np.testing.assert_array_equal(again.read(name, stored=True), value, name)
    assert again.read(name, stored=True).dtype == dtype


def test_heads_have_no_place_in_a_workdir(tmp_path):
  with pytest.raises(UsageError, match='is a GPT2ForSequenceClassification'):
    importing.from_hf(str(ROOT / 'gpt2_cls'), str(tmp_path))


@pytest.mark.long
@pytest.mark.slow
def test_vocabulary_files_become_the_tokenizer(tmp_path, capsys):
  checkpoints.with_vocabulary(tmp_path)
  workdir = str(tmp_path / 'w')
  argv = ['convert', f'--from_hf={tmp_path}', f'--workdir={workdir}']
  assert __main__.main(argv) == 0
  trained = trained_lib.load(workdir)
  ids = trained.tokenizer.encode('abc d')
  assert ids.tolist() == [95, 66, 94, 67]
  argv = ['generate', f'--workdir={workdir}', '--prompt=abc', '--max_tokens=3']
  capsys.readouterr()
  assert __main__.main([*argv, '--temperature=0']) == 0
  new = generate(
    *hf.load(str(ROOT / 'gpt2_lm')),
    [[95, 66]],
    max_tokens=3,
    seed=0,
    stop_ids=(trained.tokenizer.eos_id,),
    # The model has rows without a token.
    never_V=np.arange(112) > trained.tokenizer.eos_id,
  )
  expected = trained.tokenizer.decode([95, 66, *new[0]])
  assert capsys.readouterr().out == expected + '\n'

  # The same tokenizer prepares the text that `evaluate` reads.
  text = tmp_path / 'text.txt'
  text.write_text('some words, and others\n' * 500)
  name = trained.parts.config.tokenizer.name
  argv = ['prepare', f'--config={base.__file__}', f'--out={workdir}/data']
  argv += [f'--config.tokenizer.name={name}']
  argv += [f'--config.data.source=text({str(text)!r})']
  assert __main__.main([*argv, '--config.data.holdout=tail(fraction=0.1)']) == 0
  capsys.readouterr()
  assert __main__.main(['evaluate', f'--workdir={workdir}', '--json']) == 0
  assert 'eval/validation/loss' in json.loads(capsys.readouterr().out)

  argv = ['convert', f'--to_hf={tmp_path / "out"}', f'--workdir={workdir}']
  assert __main__.main(argv) == 0
  for file in ('vocab.json', 'merges.txt', 'config.json'):
    before, after = tmp_path / file, tmp_path / 'out' / file
    if file == 'config.json':
      assert config(tmp_path) == config(tmp_path / 'out')
    else:
      assert before.read_bytes() == after.read_bytes()


def test_a_tokenizer_json_alone_is_enough(tmp_path, caplog):
  source, workdir, out = tmp_path / 'hf', tmp_path / 'w', tmp_path / 'out'
  source.mkdir()
  checkpoints.with_vocabulary(source)
  known = json.loads((source / 'vocab.json').read_text())
  made = tokenizers.Tokenizer(tokenizers.models.BPE(known, [('a', 'b')]))
  # As the class of GPT-2's builds them.
  level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.pre_tokenizer = level
  made.decoder = tokenizers.decoders.ByteLevel()
  for name in ('vocab.json', 'merges.txt'):
    (source / name).unlink()
  path = source / 'tokenizer.json'
  made.save(str(path))
  # Nothing says which token ends a document: an import without a tokenizer.
  assert vocabulary.read(str(source), 'gpt2') is None
  assert 'does not say which token ends a document' in caplog.text
  made.add_special_tokens(['<|endoftext|>'])
  made.save(str(path))
  importing.from_hf(str(source), str(workdir))
  loaded = tokenizer_lib.load(str(workdir / 'tokenizer'))
  assert loaded.eos_id == 96
  assert loaded.encode('abc').tolist() == [95, 66]
  exporting.to_hf(str(workdir), str(out))
  assert (out / 'tokenizer.json').read_bytes() == path.read_bytes()


def test_all_that_a_tokenizer_says_comes_back(tmp_path):
  source, workdir, out = tmp_path / 'hf', tmp_path / 'w', tmp_path / 'out'
  shutil.copytree(TOKENIZERS / 'llama3', source)
  values = config(ROOT / 'gpt2_lm') | {'vocab_size': 293}
  weights = tensors(ROOT / 'gpt2_lm')
  name = 'transformer.wte.weight'
  weights[name] = np.resize(weights[name], (293, weights[name].shape[1]))
  (source / 'config.json').write_text(json.dumps(values))
  save_file(weights, source / 'model.safetensors', metadata={'format': 'pt'})
  importing.from_hf(str(source), str(workdir))
  trained = trained_lib.load(str(workdir))
  assert trained.tokenizer.special.prompt([5]) == [283, 5]
  row = score.row(trained.tokenizer, score.ScoreRequest('a', 'b', ''), 7)
  assert row is not None
  assert row.ids.tolist()[:2] == [283, *trained.tokenizer.encode('a')]
  exporting.to_hf(str(workdir), str(out))
  for file in (TOKENIZERS / 'llama3').iterdir():
    assert (out / file.name).read_bytes() == file.read_bytes()


def test_without_a_vocabulary_it_is_said(tmp_path, caplog):
  importing.from_hf(str(ROOT / 'gptj_lm'), str(tmp_path))
  assert 'neither vocab.json and merges.txt nor' in caplog.text
  with pytest.raises(UsageError, match='there is no saved tokenizer'):
    trained_lib.load(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize('pair', ['next', 'none'])
def test_an_encoder_trained_here(tmp_path, pair):
  """BERT with both heads, or RoBERTa; the tokenizer's ids are in the config."""
  workdir, out = tmp_path / 'w', tmp_path / 'out'
  pieces = TOKENIZERS / 'wordpiece/vocab_uncased.txt'
  made = tokenizer_lib.build(f'wordpiece_file({str(pieces)!r})', [])
  made.save(str(workdir / 'tokenizer'))
  bert, pad = pair == 'next', made.special.pad_id
  built, state = initial(
    workdir,
    {
      'model.vocab_size': made.vocab_size,
      'model.context_length': 23,
      'model.attention': 'bidirectional',
      'model.input': f'tokens(token_types={1 + bert}, norm=True)',
      'model.position': f'learned(offset={0 if bert else pad + 1})',
      'model.block': 'post',
      'model.ffn': 'gelu',
      'model.output': "tied(bias=True, transform='gelu')",
      'objective.name': f'masked(pair={pair!r})',
      'data.rows': f'pairs({pair!r})' if bert else 'full_sentences',
      'data.sentences': 'terminal',
    },
  )
  exporting.to_hf(str(workdir), str(out))
  found = config(out)
  assert found['model_type'] == ('bert' if bert else 'roberta')
  ids = [found[f'{role}_token_id'] for role in ('pad', 'bos', 'eos')]
  assert ids == [pad, made.special.cls_id, made.special.sep_id]
  model, params = hf.load(str(out))
  ids = np.arange(5, 11)[None]
  theirs = hf.forward(model, params, input_ids=ids)
  np.testing.assert_allclose(
    theirs['prediction_logits' if bert else 'logits'],
    hf.forward(built.model, state.params, input_ids=ids)['logits'],
    atol=1e-5,
    rtol=0,
  )
  for name, head in params.get('heads', {}).items():
    ours = state.params['heads'][name]
    np.testing.assert_array_equal(head['kernel'], ours['kernel'])
  assert bert == ('seq_relationship_logits' in theirs)


def initial(workdir, fields):
  """A workdir with the first state of a config."""
  sizes = {'d_model': 24, 'num_heads': 3, 'head_size': 8, 'num_kv_heads': 3}
  sizes = {f'model.{n}': x for n, x in sizes.items()}
  built = parts.build(config_lib.resolve(tiny.config(**sizes, **fields)))
  state = parts.initial_state(built)
  saver = checkpointer.Checkpointer(str(workdir))
  saver.save(state)
  saver.close()
  (workdir / 'config.json').write_text(config_lib.to_json(built.config))
  return built, state


def test_a_decoder_with_an_encoders_tokenizer(tmp_path, capsys):
  """Nothing stands around its prompts, and a document ends before the next."""
  workdir, out = tmp_path / 'w', tmp_path / 'out'
  files = [next(TOKENIZERS.glob(f'byte_bpe/{n}.*')) for n in ('vocab', 'merges')]
  call = f'byte_bpe_file({str(files[0])!r}, {str(files[1])!r})'
  made = tokenizer_lib.build(call, [])
  made.save(str(workdir / 'tokenizer'))
  initial(workdir, {'model.vocab_size': made.vocab_size})
  argv = ['convert', f'--workdir={workdir}', f'--to_hf={out}']
  assert __main__.main(argv) == 0
  found = config(out)
  eos = made.eos_id
  assert (found['bos_token_id'], found['eos_token_id']) == (eos, eos)
  library = tokenizers.Tokenizer.from_file(str(out / 'tokenizer.json'))
  assert library.encode('of it').ids == made.encode('of it').tolist()
  again = special_files.tokenizer(f'hf_tokenizer({str(out / "tokenizer.json")!r})', str(out))
  assert again.special.prompt([7]) == [7] and again.special.first_id == eos
  # What would be read otherwise is refused before anything is written.
  shutil.rmtree(workdir / 'tokenizer')
  call = "sides('bytes', source='characters')"
  documents = [Document('d', 'of it')]
  tokenizer_lib.build(call, documents).save(str(workdir / 'tokenizer'))
  argv[-1] = f'--to_hf={tmp_path / "out2"}'
  assert __main__.main(argv) == 2
  assert 'give --tokenizer=false to export the model alone' in capsys.readouterr().err
  assert not (tmp_path / 'out2').exists()
  assert __main__.main([*argv, '--tokenizer=false']) == 0
  assert not (tmp_path / 'out2/tokenizer.json').exists()


@pytest.mark.slow
def test_a_model_trained_here(tmp_path):
  workdir, out = tmp_path / 'w', tmp_path / 'out'
  built, state = initial(workdir, {'model.vocab_size': 257})
  tokenizer_lib.build('bytes', []).save(str(workdir / 'tokenizer'))
  exporting.to_hf(str(workdir), str(out))
  assert config(out)['model_type'] == 'gpt2'
  assert config(out)['eos_token_id'] == 256
  model, params = hf.load(str(out))
  ids = np.arange(6)[None]
  np.testing.assert_allclose(
    hf.forward(model, params, input_ids=ids)['logits'],
    hf.forward(built.model, state.params, input_ids=ids)['logits'],
    atol=1e-6,
    rtol=0,
  )


def test_a_model_that_hugging_face_lacks_says_why(tmp_path):
  model = tiny.model(ffn='bilinear')
  with pytest.raises(UsageError, match='no Hugging Face model') as error:
    hf.save(str(tmp_path), model, tiny.params(model))
  assert "activation_function='bilinear': is not supp" in str(error.value)


@pytest.mark.parametrize(
  'fields, family',
  [
    ({'d_model': 24}, 'gpt2'),
    (
      {
        **{'norm': 'rmsnorm', 'ffn': 'swiglu', 'bias': 'none', 'head_size': 8},
        **{'position': 'rope', 'block': 'parallel'},
      },
      'llama',
    ),
    ({'attention': 'bidirectional', 'block': 'post'}, 'bert'),
    ({'num_encoder_layers': 2, 'd_ff': 13}, '(t5|bart|marian)'),
  ],
)
def test_the_nearest_family_is_named(tmp_path, fields, family):
  """In so few characters that the line can be read."""
  model = tiny.model(**fields)
  why = rf'the nearest is {family}, but for '
  with pytest.raises(UsageError, match=why) as error:
    hf.save(str(tmp_path), model, {})
  assert len(str(error.value)) <= 400
