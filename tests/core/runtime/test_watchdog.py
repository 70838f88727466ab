# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A hung phase ends the process, and shows where it hung."""

import pathlib
import subprocess
import sys

import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.core.runtime import watchdog

ROOT = pathlib.Path(__file__).parents[3]

# The main thread sits in C, as it would in a compilation or a collective.
HUNG = """
import sys, threading
from gpt_jax.core.runtime import log, watchdog
log.started_as('finetune')
with watchdog.watching({'compile': 30.0, 'step': 0.2}, sys.argv[1]):
  watchdog.enter('compile')
  threading.Event().wait(0.5)
  watchdog.enter('step')
  for _ in range(20):
    threading.Event().wait(0.05)
    watchdog.enter('step')
  def stuck_in_a_collective():
    threading.Lock().acquire() and threading.Event().wait()
  stuck_in_a_collective()
"""


def test_a_hung_step_ends_with_its_stacks(tmp_path):
  file = tmp_path / 'w' / 'stacks_0.txt'
  done = subprocess.run(
    [sys.executable, '-c', HUNG, str(file)], cwd=ROOT, capture_output=True, text=True
  )
  assert done.returncode == 1
  # Not while it went on, nor by the deadline of another phase.
  assert done.stderr.splitlines()[-1] == (
    'gpt-jax finetune: failed: phase step has gone on for more than '
    f'watchdog.step_seconds=0.2; stacks in {file}'
  )
  for text in (done.stderr, file.read_text()):
    assert 'stuck_in_a_collective' in text
  assert file.read_text().startswith('phase step, after 0.2 seconds\n')


def test_every_deadline_of_the_config_is_that_of_a_phase():
  from configs import base

  found = watchdog.deadlines(config_lib.resolve(base.get_config()))
  assert {*found} == {'start', 'compile', 'step', 'evaluation', 'save'}
  assert all(seconds > 0 for seconds in found.values())


def test_a_phase_within_a_phase():
  before = watchdog.now().name
  with pytest.raises(ValueError), watchdog.during('save'):
    assert watchdog.now().name == 'save'
    raise ValueError
  assert watchdog.now().name == before


def test_without_deadlines_nothing_is_watched(tmp_path):
  with watchdog.watching({'step': 0.0}, str(tmp_path / 'x')):
    pass
  assert [*tmp_path.iterdir()] == []
