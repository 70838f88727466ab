# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What of a run's past decides how it goes on; saved with each checkpoint.

These are the token store, the rows left out after spikes, the logged losses
that a spike is measured from, the updates skipped and the evaluations. A
resumed run takes them from its checkpoint, under the same checksum as the list
of its arrays: metrics.jsonl is a view for people and tools, and skips.json,
the note of a rewind made since, has to agree.

Checkpoints of before hold no such record; for them both files are read.
"""

import os
from typing import Any

import jax

from gpt_jax.checkpoints import restore
from gpt_jax.checkpoints.restore import Restored
from gpt_jax.optim.spikes import WINDOW
from gpt_jax.rows import taken as skips_lib
from gpt_jax.rows.taken import Skips
from gpt_jax.runtime import hosts
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import metrics

# Of the lines of metrics.jsonl: a logged loss, an evaluation, and these events.
_EVENTS = ('skipped', 'unlogged')


class History:
  """The past of a run, in the memory of each of its processes."""

  def __init__(self, workdir: str, *, store: str = '', teacher: str = ''):
    """Reads skips.json; `restart` follows once a checkpoint is restored.

    Args:
      workdir: of the run.
      store: fingerprint of the token store; empty: the run has none.
      teacher: that of a teacher's outputs; empty: it reads none.
    """
    self._workdir, self._store, self._teacher = workdir, store, teacher
    self._lines: list[dict[str, Any]] = []
    text = skips_lib.to_json(skips_lib.read(workdir))
    self.skips = skips_lib.from_json(hosts.broadcast_from_host0(text))

  def restart(self, restored: Restored | None) -> None:
    """Takes over the past of a restored checkpoint; None: there is none."""
    self._lines = []
    if restored is None:
      return
    if restored.record is None:
      self._read_files(restored.step)
      self._check_log(restored.step)
      return
    check_store(self._workdir, restored, self._store)
    taught = restored.record.get('teacher', '')
    if taught != self._teacher:
      raise UsageError(
        f'--workdir={self._workdir}: its checkpoint of step {restored.step} '
        f"was taught by the outputs {taught[:12]}, and objective.teacher's are "
        f'{self._teacher[:12]}; give the former, or another --workdir'
      )
    saved = Skips(skips_lib.from_entries(restored.record['skips']))
    self.skips = _agreed(self._workdir, restored.step, self.skips, saved)
    if jax.process_index() == 0 and self.skips != skips_lib.read(self._workdir):
      write_skips(self._workdir, self.skips)
    for line in metrics.as_numbers(restored.record['lines']):
      self.add(line)
    self._check_log(restored.step)
    self._add_evaluation(restored.step)

  def add(self, line: dict[str, Any]) -> None:
    """Takes note of a line of metrics.jsonl, as far as it decides anything."""
    event = line.get('event')
    if event is not None and event not in _EVENTS:
      return
    kept = {
      name: value
      for name, value in line.items()
      if name in ('step', 'loss', 'event', 'routers')
      or name.startswith('eval/')
    }
    if len(kept) > 1:
      self._lines.append(kept)

  def lines(self, done: int) -> list[dict[str, Any]]:
    """The lines of the steps up to `done`, oldest first."""
    return [line for line in self._lines if line['step'] <= done]

  def record(self, step: int) -> dict[str, Any]:
    """What the checkpoint of `step` is to hold: plain JSON."""
    lines = [line for line in self._lines if line['step'] <= step]
    losses = [i for i, line in enumerate(lines) if 'loss' in line]
    old = losses[-WINDOW] if len(losses) > WINDOW else 0
    kept = []
    for i, line in enumerate(lines):
      if i < old:
        line = {name: x for name, x in line.items() if name != 'loss'}
      if line.get('event') == 'unlogged' and line['step'] < step:
        continue
      if len(line) > 1:
        kept.append(metrics.as_texts(line))
    return {
      'store': self._store,
      'skips': skips_lib.entries(self.skips),
      'lines': kept,
      # Records of other runs stay as they were.
      **({'teacher': self._teacher} if self._teacher else {}),
    }

  def _add_evaluation(self, step: int) -> None:
    """Adds an evaluation that was made up for after the checkpoint's save.

    It is a function of the checkpoint: where metrics.jsonl is lost it is made
    again.
    """
    known = any(m['step'] == step and _is_evaluation(m) for m in self._lines)
    for line in metrics.read(self._workdir):
      if line['step'] == step and _is_evaluation(line) and not known:
        self.add(line)

  def _check_log(self, step: int) -> None:
    """Warns where metrics.jsonl lacks what was logged up to a checkpoint."""
    if jax.process_index() != 0:
      return
    lines = metrics.read(self._workdir)
    have = {(line['step'], name) for line in lines for name in line}
    lost = [m['step'] for m in self._lines if not _pairs(m) <= have]
    problem = ''
    if not lines and step > 0:
      problem = 'is missing or empty'
    elif lost:
      problem = f'lacks lines of the steps {min(lost)} to {max(lost)}'
    if problem:
      log.warning(
        '%s: %s; the weights are those of the checkpoint of step %d all the '
        'same, but the curves will have a gap: if there is a copy of the file, '
        'stop, restore it, and give the same command again',
        *(os.path.join(self._workdir, 'metrics.jsonl'), problem, step),
      )

  def _read_files(self, step: int) -> None:
    """The past of a checkpoint that holds no record."""
    for line in metrics.read(self._workdir):
      if line['step'] > step:
        continue
      known = {(skip.step, skip.spike) for skip in self.skips.skips}
      rewound = line['step'], line.get('spike_step')
      if line.get('event') == 'rewind' and rewound not in known:
        raise UsageError(
          f'{os.path.join(self._workdir, skips_lib.FILE)}: lacks the rewind '
          f'to step {line["step"]} that metrics.jsonl has; restore it from a '
          'copy, or start again with another --workdir'
        )
      self.add(line)


def write_skips(workdir: str, skips: Skips) -> None:
  """Writes WORKDIR/skips.json."""
  path = os.path.join(workdir, skips_lib.FILE)
  metrics.write_atomically(path, skips_lib.to_json(skips))


def known_skips(workdir: str) -> Skips:
  """The rows that a run has left out, as its newest checkpoint confirms."""
  found, newest = skips_lib.read(workdir), restore.newest(workdir)
  if newest is None or newest.record is None:
    return found
  saved = Skips(skips_lib.from_entries(newest.record['skips']))
  if found.pending:
    return found  # its rewind gives up the newest checkpoint
  return _agreed(workdir, newest.step, found, saved)


def check_store(workdir: str, restored: Restored | None, store: str) -> None:
  """Refuses another token store than the checkpoint was trained on."""
  record = restored.record if restored else None
  if restored and record and record['store'] != store:
    raise UsageError(
      f'--workdir={workdir}: its checkpoint of step {restored.step} was '
      f'trained on the token store {record["store"][:12]}, and this one is '
      f'{store[:12]}: other tokens, or in another order; point '
      '--config.data.store to the former, or give another --workdir'
    )


def _agreed(workdir: str, step: int, found: Skips, saved: Skips) -> Skips:
  """The rows left out, by skips.json and by the checkpoint of `step`.

  A rewind after the save adds an entry at that step or later; what is before
  it has to be the same. A file that is missing is made again: rewinds since
  the save follow from the data, and will be repeated.
  """
  path = os.path.join(workdir, skips_lib.FILE)
  if not os.path.exists(path):
    return saved

  def until(skips: Skips) -> list[skips_lib.Skip]:
    return [skip for skip in skips.skips if skip.step < step]

  if until(found) != until(saved):
    raise UsageError(
      f'{path}: leaves out other rows than those that the checkpoint of step '
      f'{step} was trained without; remove the file (the checkpoint knows '
      'them), or restore it from a copy'
    )
  return found


def _pairs(line: dict[str, Any]) -> set[tuple[int, str]]:
  return {(line['step'], name) for name in line}


def _is_evaluation(line: dict[str, Any]) -> bool:
  return any(name.startswith('eval/') for name in line)
