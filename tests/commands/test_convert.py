# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Imports become workdirs that other commands use, and come back."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

from configs import base
from gpt_jax import __main__, hf
from gpt_jax import config as config_lib
from gpt_jax.checkpoints import checkpointer
from gpt_jax.commands import convert
from gpt_jax.data.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.decoding import sample
from gpt_jax.evaluation import score
from gpt_jax.hf import vocabulary
from gpt_jax.spec import UsageError
from gpt_jax.training import parts
from gpt_jax.training import trained as trained_lib
from tests.support import tiny
from tests.support.golden_io import ROOT, config, tensors

TOKENIZERS = pathlib.Path(__file__).parents[1] / 'data/tokenizers/golden'


def test_the_written_config_is_complete(tmp_path):
  convert.from_hf(str(ROOT / 'gpt2_lm'), str(tmp_path))
  written = config_lib.from_json((tmp_path / 'config.json').read_text())
  fields = config_lib.flatten(base.get_config())
  assert {*config_lib.flatten(written)} == {*fields}
  assert config_lib.resolve(written) == written


@pytest.mark.parametrize('name', ['gpt2_lm', 'gpt_neox_lm'])
def test_there_and_back(tmp_path, name):
  workdir, out = str(tmp_path / 'w'), tmp_path / 'out'
  convert.from_hf(str(ROOT / name), workdir)
  convert.to_hf(workdir, str(out))
  before, after = tensors(ROOT / name), tensors(out)
  assert {*before} == {*after}
  for tensor, value in before.items():
    np.testing.assert_array_equal(after[tensor], value, tensor)
  assert config(out) == config(ROOT / name)
  if config(out).get('is_encoder_decoder'):
    with pytest.raises(UsageError, match='holds a model that'):
      trained_lib.load(workdir)
  with pytest.raises(UsageError, match='holds a run'):
    convert.from_hf(str(ROOT / name), workdir)
  with pytest.raises(UsageError, match='holds a model'):
    convert.to_hf(workdir, str(out))


def test_heads_have_no_place_in_a_workdir(tmp_path):
  with pytest.raises(UsageError, match='is a GPT2ForSequenceClassification'):
    convert.from_hf(str(ROOT / 'gpt2_cls'), str(tmp_path))


def checkpoint_with_vocabulary(folder):
  """GPT-2 of the tiny fixture, with 112 tokens: letters and a merge."""
  (folder / 'model.safetensors').write_bytes(
    (ROOT / 'gpt2_lm' / 'model.safetensors').read_bytes()
  )
  (folder / 'config.json').write_text(json.dumps(config(ROOT / 'gpt2_lm')))
  tokens = [chr(i) for i in range(33, 127)] + ['Ġ', 'ab', '<|endoftext|>']
  known = {token: i for i, token in enumerate(tokens)}
  (folder / 'vocab.json').write_text(json.dumps(known))
  (folder / 'merges.txt').write_text('#version: 0.2\na b\n')


@pytest.mark.slow
def test_vocabulary_files_become_the_tokenizer(tmp_path, capsys):
  checkpoint_with_vocabulary(tmp_path)
  workdir = str(tmp_path / 'w')
  argv = ['convert', f'--from_hf={tmp_path}', f'--workdir={workdir}']
  assert __main__.main(argv) == 0
  trained = trained_lib.load(workdir)
  ids = trained.tokenizer.encode('abc d')
  assert ids.tolist() == [95, 66, 94, 67]
  argv = ['generate', f'--workdir={workdir}', '--prompt=abc', '--max_tokens=3']
  capsys.readouterr()
  assert __main__.main([*argv, '--temperature=0']) == 0
  new = sample.generate(
    *hf.load(str(ROOT / 'gpt2_lm')),
    [[95, 66]],
    max_tokens=3,
    sampler=sample.Sampler(0),
    seed=0,
    stop_ids=(trained.tokenizer.eos_id,),
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
  checkpoint_with_vocabulary(source)
  known = json.loads((source / 'vocab.json').read_text())
  made = tokenizers.Tokenizer(tokenizers.models.BPE(known, [('a', 'b')]))
  for name in ('vocab.json', 'merges.txt'):
    (source / name).unlink()
  path = source / 'tokenizer.json'
  made.save(str(path))
  # Nothing says which token ends a document: an import without a tokenizer.
  assert vocabulary.read(str(source), 'gpt2') is None
  assert 'does not say which token ends a document' in caplog.text
  made.add_special_tokens(['<|endoftext|>'])
  made.save(str(path))
  convert.from_hf(str(source), str(workdir))
  loaded = tokenizer_lib.load(str(workdir / 'tokenizer'))
  assert loaded.eos_id == 96
  assert loaded.encode('abc').tolist() == [95, 66]
  convert.to_hf(str(workdir), str(out))
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
  convert.from_hf(str(source), str(workdir))
  trained = trained_lib.load(str(workdir))
  assert trained.tokenizer.special.prompt([5]) == [283, 5]
  row = score.row(trained.tokenizer, score.Request('a', 'b', ''), 7)
  assert row is not None
  assert row.ids.tolist()[:2] == [283, *trained.tokenizer.encode('a')]
  convert.to_hf(str(workdir), str(out))
  for file in (TOKENIZERS / 'llama3').iterdir():
    assert (out / file.name).read_bytes() == file.read_bytes()


def test_without_a_vocabulary_it_is_said(tmp_path, caplog):
  convert.from_hf(str(ROOT / 'gptj_lm'), str(tmp_path))
  assert 'neither vocab.json and merges.txt nor' in caplog.text
  with pytest.raises(UsageError, match='there is no saved tokenizer'):
    trained_lib.load(str(tmp_path))


@pytest.mark.slow
def test_a_model_trained_here(tmp_path):
  workdir, out = tmp_path / 'w', tmp_path / 'out'
  sizes = {'vocab_size': 257, 'd_model': 24, 'num_heads': 3, 'head_size': 8}
  sizes |= {'num_kv_heads': 3}
  config_here = tiny.config(**{f'model.{n}': x for n, x in sizes.items()})
  built = parts.build(config_lib.resolve(config_here))
  state = parts.init_state(built)
  saver = checkpointer.Checkpointer(str(workdir))
  saver.save(state)
  saver.close()
  (workdir / 'config.json').write_text(config_lib.to_json(built.config))
  tokenizer_lib.build('bytes', []).save(str(workdir / 'tokenizer'))
  convert.to_hf(str(workdir), str(out))
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
  with pytest.raises(UsageError, match='no model of Hugging Face') as error:
    hf.save(str(tmp_path), model, tiny.params(model))
  assert "activation_function='bilinear': is not supp" in str(error.value)


def test_one_direction_at_a_time():
  for argv in ([], ['--from_hf=a', '--to_hf=b']):
    assert __main__.main(['convert', '--workdir=w', *argv]) == 2
