# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`convert --check`: a workdir and a folder of Hugging Face on one text."""

import json
import shutil
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from gpt_jax import __main__, hf
from gpt_jax.core.spec import UsageError
from gpt_jax.evaluation import agreement
from gpt_jax.evaluation.agreement import Reference
from gpt_jax.opening import importing
from gpt_jax.opening import models as trained_lib
from tests.commands.test_convert import TOKENIZERS, encoder
from tests.support import checkpoints
from tests.support.golden_io import ROOT, config, tensors

TEXT = 'abc d ab'
IDS = [95, 66, 94, 67, 94, 95]


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  """A checkpoint with a vocabulary, and the workdir of its import."""
  folder = tmp_path_factory.mktemp('check')
  checkpoints.with_vocabulary(folder)
  importing.from_hf(str(folder), str(folder / 'w'))
  return folder, folder / 'w'


def checked(folders, text=TEXT, *more):
  folder, workdir = folders
  given = [f'--from_hf={folder}', f'--workdir={workdir}', f'--text={text}']
  return __main__.main(['convert', '--check', *given, *more])


def stand_in(monkeypatch, change=lambda x: x, ids=IDS):
  """In transformers' place, the folder as it is read without a workdir."""

  def run_reference(folder, text, run):
    model, params = hf.load(folder)
    out = hf.forward(model, params, input_ids=np.array([run]))
    return Reference(change(np.array(out['logits'][0])), ids, 'it has none')

  monkeypatch.setattr(agreement, 'library', lambda name: None)
  monkeypatch.setattr(agreement, 'run_reference', run_reference)


def test_equal_sides_are_told_so(folders, monkeypatch, capsys, tmp_path):
  stand_in(monkeypatch)
  assert checked(folders) == 0
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 1 + len(IDS) + 3
  assert "'ab' -> " in lines[1]
  assert lines[-2].endswith(f'at {len(IDS)} of {len(IDS)} positions')
  assert lines[-1] == 'token ids: the same'
  # A file of the same text.
  (tmp_path / 'text.txt').write_text(TEXT)
  assert checked(folders, tmp_path / 'text.txt') == 0
  assert capsys.readouterr().out.splitlines() == lines


def test_another_logit_is_found(folders, monkeypatch, capsys):
  def change(logits):
    logits[2, 41] += 0.5
    return logits

  stand_in(monkeypatch, change)
  assert checked(folders) == 1
  found = capsys.readouterr()
  assert 'at most 5.00e-01, at position 2 (tolerance 0.001)' in found.out
  assert 'failed: ' in found.err and 'differ in logits' in found.err
  assert found.err.count('Traceback') == 0
  assert checked(folders, TEXT, '--tolerance=0.6') == 0


def test_other_token_ids_are_found(folders, monkeypatch, capsys):
  stand_in(monkeypatch, ids=[1, *IDS])
  assert checked(folders) == 1
  assert f'{[1, *IDS]}, not {IDS}' in capsys.readouterr().out
  stand_in(monkeypatch, ids=None)
  assert checked(folders) == 0
  assert 'not compared (it has none)' in capsys.readouterr().out


@pytest.mark.slow
def test_a_masked_model_and_its_head_of_two_texts(tmp_path, monkeypatch, capsys):
  folder = encoder(tmp_path / 'hf', left_out='no tensor')
  importing.from_hf(str(folder), str(tmp_path / 'w'))
  seen, wrong = [], 0.0

  def run_reference(folder, text, run):
    seen.append(run)
    out = hf.forward(*hf.load(folder), input_ids=np.array([run]))
    pair = np.array(out['seq_relationship_logits'][0]) + wrong
    return Reference(np.array(out['prediction_logits'][0]), run, '', pair)

  monkeypatch.setattr(agreement, 'library', lambda name: None)
  monkeypatch.setattr(agreement, 'run_reference', run_reference)
  given = [f'--from_hf={folder}', f'--workdir={tmp_path / "w"}']
  argv = ['convert', '--check', *given, '--text=It is a [MASK].']
  assert __main__.main(argv) == 0
  pieces = (folder / 'vocab.txt').read_text().split('\n')
  row = ['[CLS]', 'it', 'is', 'a', '[MASK]', '.', '[SEP]']
  assert seen == [[pieces.index(piece) for piece in row]]
  assert 'most likely: the same at 7 of 7' in capsys.readouterr().out
  wrong = 0.5
  assert __main__.main(argv) == 1
  assert 'differ in logits of two texts' in capsys.readouterr().err


@pytest.mark.slow
def test_an_encoder_decoder(tmp_path, monkeypatch, capsys):
  """The text is the source, and is written behind the decoder's start."""
  folder, source = tmp_path / 'hf', ROOT / 'bart_lm'
  folder.mkdir()
  vocabulary = TOKENIZERS / 'byte_bpe'
  values = config(source) | {'vocab_size': 700}
  weights = {
    name: np.resize(x, [700 if n == 112 else n for n in x.shape])
    for name, x in tensors(source).items()
  }
  (folder / 'config.json').write_text(json.dumps(values))
  save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})
  for name in ('vocab.json', 'merges.txt'):
    shutil.copy(vocabulary / name, folder)
  importing.from_hf(str(folder), str(tmp_path / 'w'))
  seen, wrong = [], 0.0

  def run_reference(folder, text, run, written):
    seen.append((run, written))
    out = hf.forward(
      *hf.load(folder), input_ids=np.array([run]), decoder_input_ids=np.array([written])
    )
    return Reference(np.array(out['logits'][0]) + wrong, run)

  monkeypatch.setattr(agreement, 'library', lambda name: None)
  monkeypatch.setattr(agreement, 'run_reference', run_reference)
  given = [f'--from_hf={folder}', f'--workdir={tmp_path / "w"}']
  argv = ['convert', '--check', *given, '--text=a b']
  assert __main__.main(argv) == 0
  ((source, written),) = seen
  assert (source[0], source[-1]) == (0, 2)  # <s> and </s>
  assert written == [2, *source[:-1]]
  assert 'the same at 4 of 4' in capsys.readouterr().out
  wrong = 0.5
  assert __main__.main(argv) == 1


def test_no_number_is_no_agreement():
  ours = np.zeros((3, 5), np.float32)
  theirs = ours.copy()
  theirs[1, 3] = np.nan
  found = agreement.compared(ours, theirs)
  assert found.differences.tolist() == [0, np.inf, 0]
  with pytest.raises(UsageError, match='these are two models'):
    agreement.compared(ours, theirs[:, :4])


def test_a_longer_text_is_cut(folders, monkeypatch, capsys):
  stand_in(monkeypatch)
  assert checked(folders, 'abc ' * 30) == 1  # of the ids, all are compared
  assert 'the first 40 of 90 tokens' in capsys.readouterr().out


def test_what_is_missing_is_told(folders, monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, 'torch', None)
  assert checked(folders) == 2
  error = capsys.readouterr().err
  assert 'needs torch, which is missing; run pip install' in error
  assert error.count('\n') == 1
  given = [f'--from_hf={folders[0]}', f'--workdir={folders[1]}']
  assert __main__.main(['convert', '--check', *given]) == 2
  assert '--text is missing' in capsys.readouterr().err
  assert __main__.main(['convert', *given, '--text=a']) == 2
  assert 'needs --check' in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings('default')  # those of torch
def test_transformers_agrees(folders, capsys):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  assert checked(folders, TEXT, '--tolerance=1e-4') == 0
  assert 'token ids: the same' in capsys.readouterr().out


@pytest.mark.parametrize(
  ('run', 'ids', 'said', 'code'),
  [
    ([2, 8, 9, 3], [2, 8, 9, 3], 'token ids: the same', True),
    ([2, 8, 9, 3], [8, 9], '[8, 9], not [2, 8, 9, 3]', False),
    # GPT-1's rows have tokens that fine-tuning adds to the table.
    ([700, 8, 9, 702], [8, 9], 'fine-tuning added tokens', True),
  ],
)
def test_a_fine_tuned_head_is_compared_by_its_own_row(
  folders, monkeypatch, capsys, run, ids, said, code
):
  """Of classes [1, K]: the row that it reads, not the text's ids alone."""
  logits = np.array([[0.5, -0.25, 2.0]], np.float32)
  restore = trained_lib.load_state

  def tuned(workdir):
    parts, state = restore(workdir)
    settings = parts.config.copy_and_resolve_references().unlock()
    settings.finetune = {'some': True}
    params = {**state.eval_params, 'heads': {}}
    state = state._replace(params=params)
    return parts._replace(config=settings), state

  monkeypatch.setattr(trained_lib, 'load_state', tuned)
  monkeypatch.setattr(agreement, 'head', lambda *args: logits)
  monkeypatch.setattr(agreement, 'library', lambda name: None)
  monkeypatch.setattr(
    agreement, 'run_reference', lambda folder, text, run: Reference(logits, ids, '')
  )
  folder, workdir = map(str, folders)
  how = {'sequence': lambda config, tokenizer, text: run}
  if code:
    agreement.check(workdir, folder, TEXT, 1e-3, **how)
  else:
    with pytest.raises(RuntimeError, match='differ in token ids'):
      agreement.check(workdir, folder, TEXT, 1e-3, **how)
  assert said in capsys.readouterr().out
