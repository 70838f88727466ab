# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A teacher and its student from the command line."""

import pathlib
import shutil

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.__main__ import main
from gpt_jax.training import models as trained_lib
from tests.support import whole_runs
from tests.support.golden_io import ROOT, config

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
TEXT = 'The cat sat on the mat. A dog ran to the old red house.\n\n'
FLAGS = [
  '--config.data.holdout=tail(fraction=0.1)',
  '--config.tokenizer.name=wordpiece(vocab_size=80)',
  '--config.model.vocab_size=96',
  '--config.model.d_model=32',
  '--config.model.num_heads=4',
  '--config.model.context_length=24',
  '--config.batch.size=16',
  '--config.batch.micro_rows=1',
  '--config.batch.length=stages(24)',
  '--config.optim.name=adamw',
  '--config.schedule.name=constant(peak=1e-3)',
  '--config.eval.every_steps=0',
  '--config.eval.rows=8',
]


def distilled(folder, *more, workdir='w'):
  """Trains `configs/distilbert.py:cpu` on a teacher's text."""
  return main(
    [
      'train',
      f'--config={CONFIGS}/distilbert.py:cpu',
      *FLAGS,
      '--config.model.num_layers=2',
      '--config.schedule.num_steps=4',
      '--config.checkpoint.every_steps=2',
      '--config.optim.ema=ema(decay=0.9)',
      f"--config.data.source=text('{folder}/*.txt')",
      f'--config.data.store={folder}/store',
      f'--config.objective.teacher={folder}/bert',
      f'--workdir={folder}/{workdir}',
      *more,
    ]
  )


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A BERT of four layers, one step old, and its student."""
  folder = tmp_path_factory.mktemp('teacher')
  for i in range(20):
    (folder / f'{i}.txt').write_text(TEXT * 5 + f'Number {i}. And so on.\n')
  with pytest.MonkeyPatch.context() as patch:
    whole_runs.known_peak(patch)
    bert = [
      'train',
      f'--config={CONFIGS}/bert.py:cpu',
      *FLAGS,
      '--config.model.num_layers=4',
      '--config.schedule.num_steps=1',
      f"--config.data.source=text('{folder}/*.txt')",
      f'--config.data.store={folder}/store',
      f'--workdir={folder}/bert',
    ]
    assert main(bert) == 0
    assert distilled(folder) == 0
  return folder


@pytest.mark.long
@pytest.mark.slow
def test_the_teacher_stays_and_is_kept_once(folder):
  parts, state = trained_lib.load_state(str(folder / 'w'))
  _, before = trained_lib.load_state(str(folder / 'bert'))
  # Its section is what it is, and not what the config had.
  assert parts.config.models.teacher.num_layers == 4
  expected = {n: x for n, x in before.params.items() if n != 'heads'}
  jax.tree.map(
    np.testing.assert_array_equal, state.params['parts']['teacher'], expected
  )
  names = {
    jax.tree_util.keystr(path)
    for path, _ in jax.tree_util.tree_leaves_with_path(
      (state.opt_state, state.ema)
    )
  }
  assert names and not any('teacher' in name for name in names)


@pytest.mark.slow
def test_a_resume_ends_in_the_same_bits_without_the_folder(folder, monkeypatch):
  whole_runs.known_peak(monkeypatch)
  shutil.copytree(folder / 'w', folder / 'again')
  shutil.rmtree(folder / 'again/checkpoints/4')
  shutil.move(folder / 'bert', folder / 'away')
  try:
    assert distilled(folder, workdir='again') == 0
  finally:
    shutil.move(folder / 'away', folder / 'bert')
  whole_runs.same_state(folder / 'w', folder / 'again', step=4)


@pytest.mark.slow
def test_both_are_exported(folder):
  given = ['convert', f'--workdir={folder}/w']
  assert main([*given, f'--to_hf={folder}/student']) == 0
  assert main([*given, f'--to_hf={folder}/teacher', '--part=teacher']) == 0
  assert config(folder / 'student')['architectures'] == [
    'DistilBertForMaskedLM'
  ]
  assert config(folder / 'teacher')['architectures'] == ['BertForMaskedLM']
  _, state = trained_lib.load_state(str(folder / 'w'))
  _, student = hf.load(str(folder / 'student'))
  jax.tree.map(np.testing.assert_array_equal, student, dict(state.ema))
  _, teacher = hf.load(str(folder / 'teacher'))
  jax.tree.map(
    np.testing.assert_array_equal, teacher, state.params['parts']['teacher']
  )


@pytest.mark.slow
def test_another_vocabulary_is_refused(folder, capsys):
  store = '--config.data.store=' + str(folder / 'other')
  name = '--config.tokenizer.name=wordpiece(vocab_size=60)'
  assert distilled(folder, store, name, workdir='refused') == 2
  err = capsys.readouterr().err
  assert 'its tokenizer, wordpiece(vocab_size=80), is not the run' in err
  assert not (folder / 'refused/config.json').exists()


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ([], 'objective.teacher is empty: objective.name='),
    (
      ['--config.objective.teacher=none'],
      "objective.teacher='none': is no model",
    ),
    (
      ['--config.objective.teacher=/no/such'],
      'objective.teacher=/no/such: holds no config.json; give a workdir',
    ),
    (
      [f'--config.objective.teacher={ROOT}/electra_disc'],
      'electra_disc: has neither tokenizer.json nor',
    ),
    (
      ['--config.objective.name=masked', '--config.objective.teacher=x'],
      'has no teacher; leave it out',
    ),
  ],
)
def test_what_is_no_teacher_is_one_line(flags, message, tmp_path, capsys):
  argv = [
    'train',
    f'--config={CONFIGS}/distilbert.py:cpu',
    f'--workdir={tmp_path}/w',
    *flags,
  ]
  assert main(argv) == 2
  err = capsys.readouterr().err.strip().splitlines()
  assert len(err) == 1 and message in err[0]
  assert not (tmp_path / 'w').exists()
