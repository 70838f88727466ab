# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tests of whole runs do, and the laws that each run obeys."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.costs import chips
from gpt_jax.training import models


def known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
  """Leaves out measuring the CPU: it takes a second and changes no bit."""
  monkeypatch.setattr(
    chips, 'peak_of_device', lambda device: (1e12, 'a figure')
  )


def logged(workdir: pathlib.Path, key: str) -> list:
  """The values of one key in metrics.jsonl."""
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [m[key] for m in map(json.loads, lines) if key in m]


def resumed(
  first: pathlib.Path, second: pathlib.Path, flags: list[str], *, step: int
):
  """The last state of a run, which a copy without its last checkpoint repeats.

  Args:
    first: the workdir of a run of `step` steps.
    second: the copy's.
    flags: of `train`.
    step: of the last checkpoint.
  """
  shutil.copytree(first, second)
  shutil.rmtree(second / f'checkpoints/{step}')
  assert main(['train', *flags, f'--workdir={second}']) == 0
  return same_state(first, second, step=step)


def same_state(*workdirs: pathlib.Path, step: int):
  """The last state of two runs, which is the same to the last bit."""
  states = [models.load_state(str(w))[1] for w in workdirs]
  assert int(states[0].step) == step
  jax.tree.map(np.testing.assert_array_equal, *states)
  return states[0]
