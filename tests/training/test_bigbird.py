# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BigBird, shrunk by overrides, from the command line."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.costs import flops
from gpt_jax.training import models as trained_lib

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
  monkeypatch.setattr(
    flops, 'peak_of_device', lambda device: (1e12, 'a figure')
  )
  for i in range(20):
    (tmp_path / f'{i}.txt').write_text(TEXT * 9 + f'Number {i}. And so on.\n')
  fields = {**FIELDS, 'data.source': f"text('{tmp_path}/*.txt')"}
  flags = [f'--config={CONFIG}:cpu']
  flags += [f'--config.{name}={value}' for name, value in fields.items()]
  first, second = tmp_path / 'a', tmp_path / 'b'
  assert main(['train', *flags, f'--workdir={first}']) == 0
  shutil.copytree(first, second)
  shutil.rmtree(second / 'checkpoints/4')
  assert main(['train', *flags, f'--workdir={second}']) == 0
  states = [trained_lib.load_state(str(w))[1] for w in (first, second)]
  assert int(states[0].step) == 4
  jax.tree.map(np.testing.assert_array_equal, *states)

  def losses(workdir):
    lines = (workdir / 'metrics.jsonl').read_text().splitlines()
    found = map(json.loads, lines)
    return [
      m['eval/validation/loss']
      for m in found
      if m.get('step') == 4 and 'eval/validation/loss' in m
    ]

  assert losses(first) == losses(second)[-1:]
