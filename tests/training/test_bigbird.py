# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BigBird, shrunk by overrides, from the command line."""

import pathlib

import pytest

from gpt_jax.__main__ import main
from tests.support import whole_runs

CONFIG = pathlib.Path(__file__).parents[2] / 'configs/bigbird.py'
TEXT = 'The cat sat on the mat. A dog ran to the old red house.\n\n'
FIELDS = {
  'tokenizer.name': 'wordpiece(vocab_size=80)',
  'data.holdout': 'tail(fraction=0.1)',
  'model.attention': 'bigbird(block=4, random=2, extra=3)',
  'model.num_layers': 2,
  'model.d_model': 16,
  'model.num_heads': 2,
  'model.vocab_size': 96,
  'model.context_length': 48,
  'model.dropout': 'rates(attention=0.1)',
  'model.loop': 'scan',
  'batch.size': 8,
  'batch.micro_rows': 8,
  'optim.name': 'adamw',
  'schedule.num_steps': 4,
  'schedule.name': 'constant(peak=1e-2)',
  'checkpoint.every_steps': 2,
  'eval.every_steps': 2,
  'eval.rows': 8,
  'log.every_steps': 1,
}


@pytest.mark.long
@pytest.mark.slow
def test_a_resume_draws_the_same_blocks(tmp_path, monkeypatch):
  """And so ends with the bits of a run that was never stopped."""
  whole_runs.known_peak(monkeypatch)
  for i in range(20):
    (tmp_path / f'{i}.txt').write_text(TEXT * 9 + f'Number {i}. And so on.\n')
  fields = {**FIELDS, 'data.source': f"text('{tmp_path}/*.txt')"}
  flags = [f'--config={CONFIG}:cpu']
  flags += [f'--config.{name}={value}' for name, value in fields.items()]
  first, second = tmp_path / 'a', tmp_path / 'b'
  assert main(['train', *flags, f'--workdir={first}']) == 0
  whole_runs.resumed(first, second, flags, step=4)
  key = 'eval/validation/loss'
  assert (
    whole_runs.logged(first, key)[-1:] == (whole_runs.logged(second, key)[-1:])
  )
