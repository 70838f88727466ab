# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whole runs of UniLM: a BERT with both heads, and one that learns to write."""

import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

from gpt_jax.__main__ import main
from tests.support import tiny, whole_runs
from tests.support.golden_io import config
from tests.test_docs import ROOT


@pytest.mark.slow
def test_a_run_goes_on_where_a_bert_does(tmp_path, capsys):
  """Exported as a BERT with both heads, imported again, and filled in."""
  changes = {'schedule__num_steps': 1}
  workdir = whole_runs.trained('unilm', tmp_path / 'run', **changes).workdir
  out, back = tmp_path / 'out', tmp_path / 'back'
  assert main(['convert', f'--workdir={workdir}', f'--to_hf={out}']) == 0
  assert config(out)['type_vocab_size'] == 2
  assert main(['convert', f'--from_hf={out}', f'--workdir={back}']) == 0
  found = []
  for folder in (workdir, back):
    capsys.readouterr()
    text = '--text=The [MASK] sat.'
    assert main(['fill', f'--workdir={folder}', text]) == 0
    found.append(capsys.readouterr().out)
  assert found[0] == found[1] and found[0]
  # Its bidirectional rows learned of next sentences.
  flags = [f'--workdir={workdir}', '--pairs=next', '--json']
  assert main(['evaluate', *flags]) == 0
  measured = json.loads(capsys.readouterr().out)
  assert measured['eval/validation/pairs_next_loss'] > 0


def write(name, count, seed):
  """Letters to copy (c) and to write backwards (r), in two files."""
  rng, lines = random.Random(seed), {'in': '', 'out': ''}
  for _ in range(count):
    letters = rng.choices('abdefgh', k=rng.randrange(2, 6))
    kind = rng.choice('cr')
    written = letters if kind == 'c' else letters[::-1]
    lines['in'] += ' '.join([kind, *letters]) + '\n'
    lines['out'] += ' '.join(written) + '\n'
  for side, text in lines.items():
    pathlib.Path(f'{name}.{side}').write_text(text)


@pytest.mark.long
@pytest.mark.slow
def test_letters_are_copied_and_written_backwards(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  write('train', 8000, seed=1)
  write('test', 64, seed=2)
  settings = tiny.flags(
    model=dict(num_layers=2, d_model=48, num_heads=3, d_ff=96)
    | dict(vocab_size=23, context_length=32),
    tokenizer=dict(name='wordpiece(vocab_size=23)'),
    data=dict(source="parallel_text('train.in', 'train.out')")
    | dict(rows="parallel(start='cls')", sentences='none', holdout='none'),
    objective=dict(name='unified_target(0.7)'),
    batch=dict(length='stages(32)', size=64, micro_rows=0),
    schedule=dict(num_steps=300, name='cosine(peak=1e-2, warmup=50)'),
    checkpoint=dict(every_steps=300),
    eval=dict(every_steps=0),
  )
  # With one device, and compiled to run fast.
  command = [sys.executable, '-m', 'gpt_jax', 'train']
  subprocess.run(
    [*command, '--config=configs/unilm.py:cpu', '--workdir=W', *settings],
    env={**os.environ, 'PYTHONPATH': str(ROOT), 'XLA_FLAGS': ''},
    check=True,
  )
  capsys.readouterr()
  task = "seq2seq('test.in', 'test.out', metrics='exact_match')"
  asked = ['evaluate', '--workdir=W', '--tasks_dir=.', f'--tasks={task}']
  assert main([*asked, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  (right,) = (x for name, x in found.items() if name.endswith('exact_match'))
  assert right >= 0.9, found
