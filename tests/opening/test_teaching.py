# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A decoder in a folder of Hugging Face teaches: at hand, and from disk."""

import pathlib
import shutil

import pytest

from gpt_jax.__main__ import main
from gpt_jax.opening import models as trained_lib
from gpt_jax.papers.distilbert import teacher_outputs
from tests.support import tiny
from tests.support.golden_io import config

pytestmark = pytest.mark.slow

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
TEXT = 'The cat sat on the mat. A dog ran to the old red house.\n\n'
FLAGS = [
  *tiny.flags(
    data=dict(holdout='tail(fraction=0.1)'),
    batch=dict(size=8, length='stages(24)'),
    schedule=dict(name='constant(peak=1e-3)'),
    eval=dict(every_steps=0, rows=8),
    log=dict(sample_prompt=''),
  )
]
TEACHER = [
  *tiny.flags(
    tokenizer=dict(name='byte_bpe(vocab_size=270)'),
    model=dict(vocab_size=270, num_layers=3, d_model=16, num_heads=2, context_length=24),
    schedule=dict(num_steps=1),
  )
]
STORED = "--config.objective.name=distilled(text='causal', cosine=0.0, top_k=5{})"


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A teacher as `teacher`, and what it said of `store` as `said`."""
  folder = tmp_path_factory.mktemp('teaching')
  (folder / 'a.txt').write_text((TEXT * 5 + 'And so on.\n\n') * 8)
  source = f"--config.data.source=text('{folder}/*.txt')"
  made = ['train', f'--config={CONFIGS}/gpt2.py:small', source, *FLAGS]
  assert main([*made, *TEACHER, f'--workdir={folder}/run']) == 0
  given = [f'--workdir={folder}/run', f'--to_hf={folder}/teacher']
  assert main(['convert', *given]) == 0
  return folder


def flags(folder):
  return [
    f'--config={CONFIGS}/distil.py:{folder}/teacher',
    *FLAGS,
    f"--config.data.source=text('{folder}/*.txt')",
    f'--config.data.store={folder}/store',
    '--config.schedule.num_steps=2',
  ]


def test_one_config_makes_a_smaller_one(folder):
  assert main(['train', *flags(folder), f'--workdir={folder}/half']) == 0
  out = folder / 'student'
  assert main(['convert', f'--workdir={folder}/half', f'--to_hf={out}']) == 0
  found, before = config(out), config(folder / 'teacher')
  assert found.pop('n_layer') == 2 and before.pop('n_layer') == 3
  assert found == before
  parts, state = trained_lib.load_state(str(folder / 'half'))
  assert parts.config.objective.name == ("distilled(text='causal', layers=(0, 2))")
  assert {*state.params['parts']} == {'teacher'}


def test_a_student_of_outputs(folder, capsys):
  given = flags(folder)
  taught = ['teach', *given, f'--teacher={folder}/teacher']
  out = f'--out={folder}/said'
  assert main([*taught, STORED.format(''), out]) == 0
  contents = teacher_outputs.read(str(folder / 'said'))
  assert contents is not None
  said = capsys.readouterr().out
  rows = contents.rows.num_rows
  assert f'{rows} rows of 24 places with 5 tokens each' in said
  # A second time nothing is left to do; for other rows it is refused.
  assert main([*taught, STORED.format(''), out]) == 0
  assert main([*taught, STORED.format(', temperature=1.0'), out]) == 2
  capsys.readouterr()

  def train(name, more=''):
    learns = f'--config.objective.teacher={folder}/said'
    workdir = f'--workdir={folder}/{name}'
    return main(['train', *given, STORED.format(more), learns, workdir])

  assert train('w') == 0
  _, state = trained_lib.load_state(str(folder / 'w'))
  assert int(state.step) == 2 and 'parts' not in state.params
  capsys.readouterr()
  assert train('refused', ', temperature=1.0') == 2
  error = capsys.readouterr().err.strip()
  assert 'written for temperature=2.0, and this run has 1.0' in error
  assert not (folder / 'refused').exists()
  # A run that goes on notices another teacher's outputs.
  shutil.rmtree(folder / 'said')
  other = f'--teacher={folder}/half'
  assert main([*taught[:-1], STORED.format(''), out, other]) == 0
  assert train('w') == 2
  assert 'was taught by the outputs' in capsys.readouterr().err
