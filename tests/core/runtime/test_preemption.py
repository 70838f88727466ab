# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run that is told to stop again and again ends as if it never was."""

import importlib.abc
import subprocess
import sys

import pytest

from gpt_jax import __main__
from gpt_jax.commands import train
from gpt_jax.core.checkpoints.checkpointer import Checkpointer as Checkpoints
from gpt_jax.core.runtime import preemption
from gpt_jax.core.runtime.preemption import Preempted
from gpt_jax.core.training import loop as saves
from gpt_jax.core.training import metrics
from gpt_jax.opening import models as trained_lib
from tests.support import tiny, whole_runs
from tests.support.cases import slow

STEPS = 17


def config(data, **changes):
  return tiny.config(
    **{
      **tiny.MESHABLE,
      'model.vocab_size': 264,
      'model.num_layers': 1,
      'model.d_ff': 40,
      'model.context_length': 63,
      'data.source': "text('configs/*.py')",
      'data.holdout': 'tail(fraction=0.1)',
      'data.store': str(data),
      'tokenizer.name': 'bytes',
      'schedule.num_steps': STEPS,
      'schedule.name': 'constant(peak=1e-3)',
      'checkpoint.every_steps': 6,
      'eval.every_steps': 5,
      'eval.num_batches': 6,
      'eval.rows': 8,
      'log.every_steps': 3,
      'log.sample_prompt': '',
      **changes,
    }
  )


# How many boundaries a start meets before it is told to stop, and the steps
# that are then saved. There are six batches in an evaluation.
EVERY_KIND = {
  # In step 5's evaluation; at once in its repetition; after step 8; in step
  # 10's; in step 17's, the last.
  'counts': (7, 1, 6 + 3, 2 + 3, 6 + 5 + 6 + 2 + 3, 100),
  'saved': [5, 5, 8, 10, 17],
}
# Between two lines of metrics.jsonl.
ONCE = {'counts': (4, 100), 'saved': [4]}


@pytest.mark.parametrize(
  'stops, ffn',
  [
    slow(ONCE, 'relu', id='once'),
    # With experts, whose figures are means over the steps between two lines.
    pytest.param(
      EVERY_KIND,
      'switch(num_experts=2)',
      id='every kind',
      marks=[pytest.mark.slow, pytest.mark.long],
    ),
  ],
)
def test_stopped_at_boundaries(tmp_path, monkeypatch, stops, ffn):
  whole, stopped, data = (tmp_path / n for n in ('whole', 'stopped', 'data'))
  train.train(config(data, **{'model.ffn': ffn}), str(whole))
  lines = whole_runs.logged(whole)
  evaluations = [m['step'] for m in lines if metrics.HELD_OUT in m]
  assert evaluations == [5, 10, 15, 17]

  saved = []
  for count in stops['counts']:
    left = [count]

    def reached(left=left):
      left[0] -= 1
      return left[0] <= 0

    monkeypatch.setattr(preemption, 'reached', reached)
    try:
      train.train(config(data, **{'model.ffn': ffn}), str(stopped))
      break
    except Preempted:
      saved.append(int(trained_lib.load(str(stopped)).state.step))
  assert saved == stops['saved']
  assert whole_runs.logged(stopped) == lines
  whole_runs.same_state(whole, stopped)


SIGNALLED = """
import os, signal, sys, threading, time
from gpt_jax.core.runtime import log, preemption, watchdog
log.started_as('finetune')
watchdog.enter(sys.argv[1])
with preemption.listening():
  preemption.before_step(8)
  os.kill(os.getpid(), signal.SIGINT)
  time.sleep(0.3)
  print(preemption.reached(), flush=True)
  os.kill(os.getpid(), getattr(signal, sys.argv[2]))
  time.sleep(0.3)
"""

STOPPING = (
  'gpt-jax finetune: stopping: finishing step 8, then saving; Ctrl-C again ends now, without saving'
)


@pytest.mark.parametrize(
  'phase, second, out, code, said',
  [
    ('step', 'SIGTERM', 'True\n', 0, [STOPPING]),
    ('step', 'SIGINT', 'True\n', 130, [STOPPING, 'gpt-jax finetune: interrupted']),
    (
      'compile',
      'SIGTERM',
      '',
      75,
      [
        'gpt-jax finetune: preempted in phase compile, with nothing new to '
        'save; start again to continue'
      ],
    ),
  ],
)
def test_signals(phase, second, out, code, said):
  """Ctrl-C once is as SIGTERM, twice ends at once; both say so."""
  done = subprocess.run(
    [sys.executable, '-c', SIGNALLED, phase, second], capture_output=True, text=True
  )
  assert (done.stdout, done.returncode) == (out, code)
  assert done.stderr.splitlines() == said


ANNOUNCED = """
import os, signal, sys, time
from gpt_jax.core.runtime import log, preemption
log.started_as('prepare')
with preemption.announcing():
  try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(9)
  except KeyboardInterrupt:
    time.sleep(0.3)
    if sys.argv[1] == 'twice':
      os.kill(os.getpid(), signal.SIGINT)
      time.sleep(9)
    print('unwound', flush=True)
"""


@pytest.mark.parametrize(
  'times, out, code, said',
  [('once', 'unwound\n', 0, []), ('twice', '', 130, ['gpt-jax prepare: interrupted'])],
)
def test_an_interrupt_is_announced(times, out, code, said):
  """While the work that it ends is still unwound."""
  done = subprocess.run([sys.executable, '-c', ANNOUNCED, times], capture_output=True, text=True)
  assert (done.stdout, done.returncode) == (out, code)
  first, *others = done.stderr.splitlines()
  assert first == (
    'gpt-jax prepare: stopping: what is done is kept, and the same command '
    'goes on from there; Ctrl-C again ends now'
  )
  assert others == said


ENDED = """
import ctypes, os, signal, sys, threading
from gpt_jax.core.runtime import log, preemption
log.started_as('plan')
number = getattr(signal, sys.argv[1])
# As a shell leaves SIGINT to what it starts in the background.
if sys.argv[2] == 'ignored':
  signal.signal(number, signal.SIG_IGN)
with preemption.ending():
  # As libtpu does.
  if sys.argv[2] == 'replaced':
    signal.signal(number, lambda *_: print('the stack', flush=True))
  threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
  left = ctypes.CDLL(None).sleep(2)
print('slept')
"""


@pytest.mark.parametrize(
  'name, handler, out, code, said',
  [
    ('SIGTERM', 'replaced', '', 143, ['gpt-jax plan: ended by SIGTERM']),
    ('SIGTERM', '', '', 143, ['gpt-jax plan: ended by SIGTERM']),
    ('SIGINT', 'replaced', '', 130, ['gpt-jax plan: interrupted']),
    ('SIGINT', 'ignored', 'slept\n', 0, []),
  ],
)
def test_a_signal_ends_what_is_in_another_language(name, handler, out, code, said):
  done = subprocess.run(
    [sys.executable, '-c', ENDED, name, handler], capture_output=True, text=True
  )
  assert (done.stdout, done.returncode) == (out, code)
  assert done.stderr.splitlines() == said


MASKS = """
import importlib, pathlib, signal, sys
from gpt_jax.__main__ import main

def load(name):
  for task in pathlib.Path('/proc/self/task').iterdir():
    for line in (task / 'status').read_text().splitlines():
      if line.startswith('SigBlk'):
        print(int(line.split()[1], 16) >> signal.SIGTERM - 1 & 1)
  sys.exit(0)

importlib.import_module = load
main(['plan'])
"""


def test_one_thread_hears_the_signals_that_end_a_plan():
  """Those that libraries start as they are loaded would write a stack."""
  done = subprocess.run([sys.executable, '-c', MASKS], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  # The thread that waits for them does.
  assert done.stdout.split().count('0') <= 1 and '1' in done.stdout


class Checkpointer:
  """Saves for three seconds."""

  error = ''

  def __init__(self, now):
    """`now` is a list of the present time."""
    self._now, self._end = now, 0.0

  def save(self, state):
    """Takes half a second of the caller's time."""
    self._end = self._now[0] + 3
    self._now[0] += 0.5

  def saving(self):
    """Whether it is not done."""
    return self._now[0] < self._end


@pytest.mark.parametrize('grace, warned', [(2.0, True), (4.0, False)])
def test_a_save_longer_than_the_grace_is_warned_of(grace, warned, monkeypatch, caplog):
  now = [100.0]
  monkeypatch.setattr(saves.time, 'monotonic', lambda: now[0])
  saver = saves.Saver(Checkpointer(now), grace_seconds=grace)
  saver.save(None)
  saver.poll()
  assert not caplog.records
  now[0] += 2.5
  saver.poll()
  saver.poll()
  texts = [r.getMessage() for r in caplog.records]
  assert [t.startswith('a save took 3.0 s, longer than') for t in texts] == (
    [True] if warned else []
  )


@pytest.mark.parametrize(
  'minutes, expected', [(None, []), (0, [103, 106, 109, 169]), (0.1, [106, 166]), (0.2, [160])]
)
def test_a_save_is_overdue_after_minutes_and_once_the_last_is_done(minutes, expected, monkeypatch):
  """And while the store fails, from second 110 on, after a minute at the least."""
  now, found = [100.0], []
  monkeypatch.setattr(saves.time, 'monotonic', lambda: now[0])
  checkpointer = Checkpointer(now)
  saver = saves.Saver(checkpointer, grace_seconds=30, every_minutes=minutes)
  checkpointer.save(None)  # until second 103
  for second in range(101, 171):
    now[0], checkpointer.error = second, 'full' * (second >= 110)
    if saver.overdue():
      found.append(second)
      saver.save(None)
  assert found == expected


@pytest.mark.slow  # two runs; test_a_save_is_overdue... has the times
def test_saves_by_time_change_nothing(tmp_path):
  """They leave the regular checkpoints and the weights as they are."""
  whole, often, data = (tmp_path / n for n in ('whole', 'often', 'data'))
  train.train(config(data), str(whole))
  train.train(config(data, **{'checkpoint.every_minutes': 0, 'log.every_steps': 1}), str(often))
  saved = [m['step'] for m in metrics.read(str(often)) if m.get('event') == 'saved']
  assert {*saved} > {6, 12, STEPS}  # how many more depends on the machine
  whole_runs.same_state(whole, often)
  steps = [Checkpoints(str(x), read_only=True).steps() for x in (whole, often)]
  assert steps[0] == steps[1] == [6, 12, STEPS]


@pytest.mark.parametrize('most', [1, 13, 2999])
def test_polls_are_as_many_in_each_process(most, monkeypatch):
  """However many moments there are; JAX's count of them has to be the same."""
  answers = []

  def reached():
    answers.append(len(answers) >= 5)
    return answers[-1]

  monkeypatch.setattr(preemption, 'reached', reached)
  counts = set()
  for moments in (0, most // 3, most):
    answers.clear()
    polls = preemption.Polls(most)
    stopped = [polls() for _ in range(moments)]
    assert stopped == sorted(stopped)
    assert any(stopped) == any(answers)
    assert polls.finish() == any(answers)
    counts.add(len(answers))
  [count] = counts
  assert 1 <= count <= 1000


def test_an_interrupt_while_modules_are_imported(monkeypatch, capsys):
  """Ends in one line, as everywhere, and in no traceback."""

  class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
      if name == 'gpt_jax.commands.plan':
        raise KeyboardInterrupt

  monkeypatch.delitem(sys.modules, 'gpt_jax.commands.plan', raising=False)
  monkeypatch.setattr(sys, 'meta_path', [Interrupt(), *sys.meta_path])
  assert __main__.main(['plan']) == preemption.INTERRUPTED
  assert capsys.readouterr().err == 'gpt-jax: interrupted\n'
