# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Held-out text by an encoder, and pairs of texts of either kind."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.opening import models as trained_lib
from tests.support import tiny

pytestmark = pytest.mark.slow

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
FLAGS = [
  f'--config={CONFIGS}/bert.py:cpu',
  *tiny.flags(
    data=dict(holdout='tail(fraction=0.3)'),
    tokenizer=dict(name='wordpiece(vocab_size=47)'),
    model=dict(vocab_size=96, num_layers=1, d_model=32, num_heads=4, context_length=24),
    batch=dict(size=16, micro_rows=8, length='stages(24)'),
    schedule=dict(num_steps=6),
    checkpoint=dict(every_steps=6),
    eval=dict(every_steps=6, rows=8),
  ),
]


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A short run of BERT on next sentences."""
  folder, rng = tmp_path_factory.mktemp('pairs'), np.random.default_rng(0)
  words = np.array(['cat', 'dog', 'red', 'old', 'sat', 'ran', 'house'])
  for i in range(31):
    chosen = (' '.join(rng.choice(words, 5)) for _ in range(11))
    (folder / f'{i}.txt').write_text('. '.join(chosen) + '.\n')
  flags = [*FLAGS, f"--config.data.source=text('{folder}/*.txt')"]
  assert main(['train', *flags, f'--workdir={folder}/w']) == 0
  return folder / 'w'


def evaluated(capsys, workdir, *flags):
  capsys.readouterr()
  assert main(['evaluate', f'--workdir={workdir}', '--json', *flags]) == 0
  return json.loads(capsys.readouterr().out)


def test_either_kind_of_pairs_is_that_of_a_run_trained_so(workdir, tmp_path, capsys):
  found = evaluated(capsys, workdir, '--pairs=next,order')
  key = 'eval/validation/pair_{}'
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  logged = [m for m in map(json.loads, lines) if key.format('loss') in m][-1]
  # The same run with the other objective and rows in its config.
  other = tmp_path / 'w'
  shutil.copytree(workdir, other)
  assert tiny.change_config(other, "'next'", "'order'") == 2  # of the objective and of the rows
  of_order = evaluated(capsys, other)
  for measure in ('loss', 'accuracy'):
    told = key.format(measure)
    pairs = f'eval/validation/pairs_{{}}_{measure}'
    assert found[pairs.format('next')] == found[told] == logged[told]
    assert found[pairs.format('order')] == of_order[told]
  assert found[key.format('loss')] != of_order[key.format('loss')]


def test_a_model_without_scores_fails_in_a_line(workdir, capsys, monkeypatch):
  load = trained_lib.load

  def damaged(*args):
    trained = load(*args)
    params = jax.tree.map(lambda x: x * np.nan, trained.state.params)
    return trained._replace(state=trained.state._replace(params=params))

  monkeypatch.setattr(trained_lib, 'load', damaged)
  for flags in ([], ['--pairs=order'], ['--json']):
    capsys.readouterr()
    assert main(['evaluate', f'--workdir={workdir}', *flags]) == 1
    told = capsys.readouterr()
    assert not told.out and 'Traceback' not in told.err
    line = told.err.splitlines()[-1]
    assert line.startswith('gpt-jax evaluate: failed: eval/validation/')
    assert 'of the model is nan: its weights are damaged' in line


def test_bad_use_is_one_line(workdir, tmp_path, capsys):
  alone = tmp_path / 'w'
  shutil.copytree(workdir, alone)
  assert tiny.change_config(alone, ", pair='next'", '') == 1
  for folder, kind, error in (
    (workdir, 'both', '--pairs=both: unknown; one of next, order\n'),
    (workdir, 'unified', '--pairs=unified: unknown; one of next, order\n'),
    (alone, 'next', 'trained no head of pairs; give a run of masked(pair='),
  ):
    capsys.readouterr()
    flags = [f'--workdir={folder}', f'--pairs={kind}']
    assert main(['evaluate', *flags]) == 2
    err = capsys.readouterr().err
    assert error in err and err.count('\n') == 1
