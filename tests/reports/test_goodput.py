# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the wall time went: to the second, across restarts."""

import pytest

from gpt_jax.commands import plot
from gpt_jax.core.runtime import tables
from gpt_jax.core.training import metrics
from gpt_jax.core.training.metrics import Metrics
from gpt_jax.reports import goodput


class Clock:
  """Time that passes when told, and the start of each process."""

  def __init__(self, monkeypatch):
    """Replaces the clocks of metrics."""
    self.now = self.began = 1000.0
    monkeypatch.setattr(metrics, '_now', lambda: self.now)
    monkeypatch.setattr(metrics, 'seconds_since_start', lambda: self.now - self.began)


@pytest.fixture
def run(tmp_path, monkeypatch):
  """A run killed twice; saves at steps 4 and 8, and comes to step 10."""
  clock = Clock(monkeypatch)

  def train(done, until, *, start, compile):
    clock.began = clock.now
    clock.now += start
    log = Metrics(str(tmp_path), step=done, active=True, context_length=7, rows_per_epoch=40)
    clock.now += compile
    log.write(done, event='compiled', seconds=compile)
    for step in range(done + 1, until + 1):
      if step == done + 1:
        clock.now += 1.5
        log.write(step, event='first_step', seconds=0.0)
      clock.now += 3.0 + 0.5  # of which half a second is waiting for data
      tokens = step * 7 * 12
      if step % 2 == 0:
        values = {'loss': 1.0, 'tokens': tokens, 'data_wait_seconds': 0.5}
        log.write(step, **values)
      if step % 5 == 0:
        clock.now += 20
        log.write(step, eval_seconds=20.0)
      if step % 4 == 0:
        clock.now += 2
        log.write(step, event='saved', seconds=2.0)
    log.close()

  train(0, 6, start=11, compile=5)  # steps 5 and 6 are lost
  clock.now += 100
  train(4, 4, start=13, compile=7)  # killed before its first step
  clock.now += 200
  train(4, 10, start=17, compile=0.0)
  return tmp_path


def test_a_compilation_before_the_first_line_counts_once(run, monkeypatch):
  """As where the rows that fit are tried: its line comes after the start's."""
  before = goodput.account(metrics.read(str(run)))
  clock = Clock(monkeypatch)
  clock.now, clock.began = 2000.0, 1960.0
  log = Metrics(str(run), step=8, active=True, context_length=7, rows_per_epoch=40)
  log.write(8, event='compiled', seconds=23.0)
  clock.now += 2
  log.write(8, event='saved', seconds=2.0)
  log.close()
  after = goodput.account(metrics.read(str(run)))
  assert after.seconds['start'] == before.seconds['start'] + 40 - 23
  assert after.seconds['compile'] == before.seconds['compile'] + 23
  assert after.seconds['step'] == before.seconds['step'] - 2 * 3


def test_every_second_is_accounted_for(run):
  account = goodput.account(metrics.read(str(run)))
  assert account.seconds == pytest.approx(
    {
      'step': 10 * 3,
      'data_wait': 10 * 0.5,
      'start': 11 + 13 + 17,
      'compile': 5 + 7 + 2 * 1.5,
      'evaluation': 2 * 20,  # another, after the first step 5, was lost
      'save': 2 * 2,
      'lost': 2 * 3.5 + 20,
      'downtime': 100 + 200,
    }
  )
  assert account.starts == 3
  assert (account.steps, account.lost_steps) == (10, 2)
  assert account.tokens == 10 * 7 * 12
  assert account.rows == 120
  assert account.epochs == 3
  assert account.goodput == pytest.approx(30 / account.total)


def test_a_start_that_is_dropped_too_is_lost_time(run, monkeypatch):
  """As after the checkpoint of step 4 turned out to be damaged."""
  before = goodput.account(metrics.read(str(run)))
  clock = Clock(monkeypatch)
  clock.now = clock.began = metrics.read(str(run))[-1]['time'] + 50
  Metrics(str(run), step=2, active=True).close()
  after = goodput.account(metrics.read(str(run)))
  assert after.total == pytest.approx(before.total + 50)
  assert after.seconds['downtime'] == pytest.approx(50)
  assert after.seconds['step'] == pytest.approx(2 * 3)
  assert after.lost_steps == 8


def test_the_table_and_the_picture(run, capsys):
  path, account = goodput.wall_time(str(run))
  assert path == f'{run}/goodput.png'
  assert (run / 'goodput.png').read_bytes().startswith(b'\x89PNG')
  tables.console().print(plot.goodput_table(account))
  lines = capsys.readouterr().out.splitlines()
  rows = {line.split()[0]: line.split()[1:3] for line in lines}
  assert rows['step'] == ['30.0', f'{30 / account.total:.1%}']
  assert rows['total'] == [f'{account.total:,.1f}', '100%']
  assert rows['epochs'] == ['3.00']
