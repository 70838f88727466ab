# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs `gpt-jax plan --json` for two slices that are not here.

  python tests/support/plan_for_tpu.py

Prints a JSON object a line. A process of its own, since libtpu reads its
settings once, and those of `conftest` are for the CPU's compiler.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2])]

from gpt_jax.__main__ import main  # noqa: E402

SIZES = [
  '--config=configs/gpt2.py:small',
  '--config.model.vocab_size=512',
  '--config.model.num_layers=4',
  '--config.model.d_model=128',
  '--config.model.num_heads=2',
  '--config.model.context_length=128',
  '--config.schedule.num_steps=10',
  '--config.schedule.name=constant(peak=1e-3)',
]
FITS = [
  '--topology=v5e:2x2',
  '--slices=2',
  '--config.model.context_length=256',
  '--config.batch.size=ramp(0:16, 6_steps:32)',
  '--config.batch.length=stages(128, 60%:256)',
]
# 2^24 tokens on one chip, each with 128 features, at once.
TOO_LARGE = [
  '--topology=v5e:1x1',
  '--config.batch.size=131072',
  '--config.batch.micro_rows=0',
  '--config.model.remat=full',
]


if __name__ == '__main__':
  code = main(['plan', '--json', *SIZES, *FITS])
  if code:
    sys.exit(code)
  sys.exit(main(['plan', '--json', *SIZES, *TOO_LARGE]))
