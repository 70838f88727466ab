# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The way that README gives to a reader is the way that a run takes."""

import pathlib
import re

from gpt_jax.__main__ import main
from tests.support import house

ROOT = pathlib.Path(__file__).parents[1]


def hops():
  """The files from a config to the gradient, and those of the model."""
  page = (ROOT / 'README.md').read_text(encoding='utf-8')
  section = page.partition('## Where to read first')[2].partition('\nThen: ')[0]
  assert section
  # What is in brackets is another model's.
  return set(
    re.findall(r'`(gpt_jax/[\w/]+\.py)`', re.sub(r'\(.*?\)', '', section, flags=re.DOTALL))
  )


def test_a_run_enters_every_file_of_the_way(tmp_path):
  with house.entered() as files:
    code = main(
      [
        'train',
        f'--config={ROOT}/configs/smoke.py',
        f"--config.data.source=text('{ROOT}/configs/g*.py')",
        '--config.tokenizer.name=bytes',
        '--config.model.num_layers=2',
        '--config.model.d_model=16',
        '--config.model.num_heads=2',
        '--config.model.context_length=13',
        '--config.batch.micro_rows=1',
        '--config.schedule.num_steps=2',
        '--config.schedule.name=constant(peak=1e-2)',
        '--config.log.sample_prompt=',
        '--config.data.holdout=tail(fraction=0.1)',
        f'--workdir={tmp_path / "w"}',
      ]
    )
  assert code == 0
  way = hops()
  assert len(way) >= 9
  assert way <= files
