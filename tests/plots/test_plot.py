# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The smoothed curve, and the picture of a run that is told to stop."""

import json
import logging
import threading
import time

import numpy as np
import pytest

from gpt_jax.plots import runs
from gpt_jax.runtime import preemption
from gpt_jax.runtime.preemption import Preempted


def test_centred_mean_is_of_the_same_number_on_both_sides():
  values = [3.0, 5.0, 11.0, 2.0, 7.0, 13.0, 1.0]
  expected = [
    *(3.0, np.mean(values[:3]), np.mean(values[:5]), np.mean(values[1:6])),
    *(np.mean(values[2:]), np.mean(values[4:]), 1.0),
  ]
  np.testing.assert_allclose(runs.centred_mean(values, 2), expected)


def test_centred_mean_does_not_lag():
  line = 9 - 0.37 * np.arange(23)
  np.testing.assert_allclose(runs.centred_mean(line.tolist(), 5), line)


@pytest.fixture
def stopped(tmp_path, monkeypatch, caplog):
  """Stops a run with these losses some seconds ago; returns its log."""
  monkeypatch.setattr(logging.getLogger('gpt_jax'), 'propagate', True)
  monkeypatch.setattr(preemption._State, 'asked', True)

  def stop(losses, *, seconds_ago):
    lines = [
      {'step': i, 'tokens': i * 7, 'loss': loss}
      for i, loss in enumerate(losses, start=1)
    ]
    text = ''.join(json.dumps(line) + '\n' for line in lines)
    (tmp_path / 'metrics.jsonl').write_text(text)
    asked_at = time.monotonic() - seconds_ago
    monkeypatch.setattr(preemption._State, 'asked_at', asked_at)
    with (
      caplog.at_level(logging.INFO, logger='gpt_jax'),
      pytest.raises(Preempted, match='all is saved'),
      runs.drawn_when_stopped(str(tmp_path), 1e6),
    ):
      preemption.check()
    return caplog.messages

  return stop


def test_a_stopped_run_is_drawn(stopped, tmp_path):
  path = tmp_path / 'loss.png'
  assert stopped([3.0, 2.0], seconds_ago=5e5) == [f'drew {path}']
  assert path.read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize(
  ('losses', 'seconds_ago'), [([], 0), ([3.0, 2.0], 1e6 + 1)]
)
def test_nothing_is_drawn_without_losses_or_time(
  stopped, tmp_path, losses, seconds_ago
):
  assert stopped(losses, seconds_ago=seconds_ago) == []
  assert not (tmp_path / 'loss.png').exists()


def test_a_failing_picture_does_not_change_the_end(stopped, tmp_path):
  (tmp_path / 'loss.png').mkdir()
  (said,) = stopped([3.0, 2.0], seconds_ago=0)
  assert said.startswith('loss.png is not drawn: ')


def test_a_slow_picture_is_not_waited_for(stopped, tmp_path, monkeypatch):
  going_on = threading.Event()
  monkeypatch.setattr(runs, 'loss_figure', lambda *_: going_on.wait(600))
  (said,) = stopped([3.0, 2.0], seconds_ago=1e6 - 0.2)
  going_on.set()
  assert said == 'loss.png is not drawn: the grace period is too short'
