# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The history that decides how a run continues, and its loss spikes.

The history is the token store, the rows left out after spikes, the logged
losses that a spike is measured against, the skipped updates and the
evaluations. A checkpoint holds it, under the same checksum as the list of its
arrays, and a resumed run reads it from there; skips.json, which records a later
rewind, has to agree. metrics.jsonl is a view for people and tools. If it is
lost, a resumed run may choose another mesh (`fitting.before`) and repeats an
evaluation, and the rows and the optimizer's steps are the same.

What the same bits take: the rows and the random keys of a step follow from the
seed and the step, the rest is in the checkpoint, and the compiled step is the
same: same config, JAX, kind and number of devices, mesh and rows at a time.

The device itself skips an update that is not finite, see `training.step`.
Before it logs or saves, the host checks all steps since the last log line, and
follows the policy `optim.on_spike`, see `optim.spikes`.
"""

import json
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.checkpoints import restore
from gpt_jax.core.checkpoints.restore import Restored
from gpt_jax.core.files import files
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.optim.spikes import WINDOW, SpikePolicy, is_spike
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.rows.batch_rows import Skip, Skips
from gpt_jax.core.runtime import hosts
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import metrics

# Holds the rows that a run leaves out: see `read_skips`.
SKIPS = 'skips.json'
# The metrics of a spike's step that its file holds.
FIGURES = ('loss', 'grad_norm', 'grad_norms')
# The steps over which skipped updates are counted.
_SPAN = 1000
# Kept from metrics.jsonl beside logged losses and evaluations.
_EVENTS = ('skipped', 'unlogged')


class RunInput(NamedTuple):
  """What a run reads beside its token store, the same at each start.

  Attributes:
    name: in the checkpoints' records.
    had: what a checkpoint had instead, for errors: `was taught by {}, and
      objective.teacher is`.
  """

  name: str
  fingerprint: str
  had: str


class History:
  """The history of a run, in the memory of each process."""

  def __init__(self, workdir: str, *, store: str = '', inputs: Sequence[RunInput] = ()):
    """Reads skips.json; call `restart` once a checkpoint is restored.

    Args:
      store: fingerprint of the token store; empty: the run has none.
      inputs: what else the run reads.
    """
    self._workdir, self._store, self._inputs = workdir, store, inputs
    self._lines: list[dict[str, Any]] = []
    of_file = hosts.broadcast_from_host0(_plain(read_skips(workdir)))
    self.skips = _of_plain(of_file)

  def restart(self, restored: Restored | None) -> None:
    """Adopts the history of a restored checkpoint; None: starts empty."""
    self._lines = []
    if restored is None:
      return
    check_store(self._workdir, restored, self._store)
    record = restored.record
    for name, fingerprint, had in self._inputs:
      before = record.get(name, '')
      if before != fingerprint:
        raise UsageError(
          f'--workdir={self._workdir}: its checkpoint of step {restored.step} '
          f'{had.format(before[:16])} {fingerprint[:16]}; give the former, or '
          'another --workdir'
        )
    saved = _of_entries(record['skips'])
    self.skips = _agreed(self._workdir, restored.step, self.skips, saved)
    if jax.process_index() == 0 and self.skips != read_skips(self._workdir):
      write_skips(self._workdir, self.skips)
    for line in metrics.as_numbers(record['lines']):
      self.add(line)
    self._check_log(restored.step)
    self._add_evaluation(restored.step)

  def add(self, line: dict[str, Any]) -> None:
    """Adds a line of metrics.jsonl, if how the run continues depends on it."""
    event = line.get('event')
    if event is not None and event not in _EVENTS:
      return
    entry = {
      name: value
      for name, value in line.items()
      if name in ('step', 'loss', 'event', 'routers') or name.startswith('eval/')
    }
    if len(entry) > 1:
      self._lines.append(entry)

  def lines(self, done: int) -> list[dict[str, Any]]:
    """The lines of the steps up to `done`, oldest first."""
    return [line for line in self._lines if line['step'] <= done]

  def record(self, step: int) -> dict[str, Any]:
    """The history to save with the checkpoint of `step`, as plain JSON."""
    lines = [line for line in self._lines if line['step'] <= step]
    losses = [i for i, line in enumerate(lines) if 'loss' in line]
    old = losses[-WINDOW] if len(losses) > WINDOW else 0
    entries = []
    for i, line in enumerate(lines):
      if i < old:
        line = {name: x for name, x in line.items() if name != 'loss'}
      if line.get('event') == 'unlogged' and line['step'] < step:
        continue
      if len(line) > 1:
        entries.append(metrics.as_texts(line))
    return {
      'store': self._store,
      'skips': _entries(self.skips),
      'lines': entries,
      **{one.name: one.fingerprint for one in self._inputs},
    }

  def _add_evaluation(self, step: int) -> None:
    """Adds an evaluation that was caught up on after the checkpoint's save.

    If metrics.jsonl is lost, it is repeated: it depends on the checkpoint only.
    """
    recorded = any(m['step'] == step and _is_evaluation(m) for m in self._lines)
    for line in metrics.read(self._workdir):
      if line['step'] == step and _is_evaluation(line) and not recorded:
        self.add(line)

  def _check_log(self, step: int) -> None:
    """Warns if metrics.jsonl lacks lines logged up to a checkpoint."""
    if jax.process_index() != 0:
      return
    lines = metrics.read(self._workdir)
    have = {(line['step'], name) for line in lines for name in line}
    lost = [
      line['step'] for line in self._lines if not {(line['step'], name) for name in line} <= have
    ]
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
        os.path.join(self._workdir, 'metrics.jsonl'),
        problem,
        step,
      )


# skips.json: the rows that a run leaves out after spikes.
#
# It is written before a rewind deletes anything: a run killed at any moment
# finishes the rewind when it starts again. Copied into another workdir before
# its run starts, the file gives that run the same batches.


def read_skips(workdir: str) -> Skips:
  """Reads WORKDIR/skips.json; empty if there is none."""
  path = os.path.join(workdir, SKIPS)
  try:
    with open(path, encoding='utf-8') as f:
      entries = json.load(f)
    if entries.pop('sha256') != files.digest(entries):
      raise ValueError('the checksum differs')
    return _of_plain(entries)
  except FileNotFoundError:
    return Skips()
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise UsageError(
      f'{path}: is damaged or was changed ({type(e).__name__}); restore it '
      'from a copy, or remove it: checkpoints list the rows skipped before '
      'them, and rewinds after the last one are repeated'
    ) from e


def write_skips(workdir: str, skips: Skips) -> None:
  """Writes WORKDIR/skips.json, with a checksum."""
  write_atomically(os.path.join(workdir, SKIPS), files.sealed(_plain(skips)))


def known_skips(workdir: str) -> Skips:
  """The rows that a run leaves out, checked against its newest checkpoint."""
  skips, newest = read_skips(workdir), restore.newest(workdir)
  # A pending rewind will delete the newest checkpoint.
  if newest is None or newest.record is None or skips.pending:
    return skips
  saved = _of_entries(newest.record['skips'])
  return _agreed(workdir, newest.step, skips, saved)


def check_store(workdir: str, restored: Restored | None, store: str) -> None:
  """Refuses a token store other than the one the checkpoint was trained on."""
  if restored is None:
    return
  its = f'--workdir={workdir}: its checkpoint of step {restored.step}'
  if restored.record is None:
    raise UsageError(
      f'{its} holds no record of the run, so it is an import or of an older '
      'version; give another --workdir'
    )
  if (saved := restored.record['store']) != store:
    raise UsageError(
      f'{its} was trained on the token store {saved[:12]}, and this one is '
      f'{store[:12]}: other tokens, or in another order; point '
      '--config.data.store to the former, or give another --workdir'
    )


def _agreed(workdir: str, step: int, of_file: Skips, saved: Skips) -> Skips:
  """The rows left out, from skips.json and the checkpoint of `step`.

  A rewind after the save adds an entry at that step or later; earlier entries
  must be equal. A missing file is written again: rewinds since the save follow
  from the data, and will repeat.
  """
  path = os.path.join(workdir, SKIPS)
  if not os.path.exists(path):
    return saved

  def until(skips: Skips) -> list[Skip]:
    return [skip for skip in skips.skips if skip.step < step]

  if until(of_file) != until(saved):
    raise UsageError(
      f'{path}: its skipped rows are not those of the checkpoint of step '
      f'{step}; remove the file (the checkpoint has its own list), or '
      'restore it from a copy'
    )
  return of_file


def _of_entries(entries: list[dict[str, int]]) -> Skips:
  return Skips(tuple(Skip(**entry) for entry in entries))


def _entries(skips: Skips) -> list[dict[str, int]]:
  return [skip._asdict() for skip in skips.skips]


def _plain(skips: Skips) -> dict[str, Any]:
  return {'skips': _entries(skips), 'pending': skips.pending}


def _of_plain(fields: dict[str, Any]) -> Skips:
  return _of_entries(fields['skips'])._replace(pending=fields['pending'])


def _is_evaluation(line: dict[str, Any]) -> bool:
  return any(name.startswith('eval/') for name in line)


# Spikes: detection.


class Spike(RuntimeError):
  """A step after which the run may not simply continue."""

  def __init__(self, why: str, *, step: int, output: dict[str, Any]):
    """`output` is the step's metrics; `why` a line for people."""
    super().__init__(why)
    self.step, self.output = step, output


class SpikeGuard:
  """Checks the outputs of each step for spikes, once."""

  def __init__(self, policy: SpikePolicy, losses: list[float], skipped: list[int]):
    """Continues from the logged losses and the skipped steps so far."""
    self._policy = policy
    self._losses, self._skipped = [*losses], [*skipped]

  def logged(self, loss: float) -> None:
    """Adds a logged loss, against which later losses are measured too."""
    if math.isfinite(loss):
      self._losses.append(loss)

  def check(self, last: int, outputs: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Looks for spikes in the outputs of the steps up to `last`.

    Returns:
      Number and output of each skipped step.

    Raises:
      Spike: at the first spike that the policy does not skip.
    """
    skipped = []
    for step, output in enumerate(outputs, start=last - len(outputs) + 1):
      loss, norm = float(output['loss']), float(output['grad_norm'])
      if not is_spike(self._policy, loss, norm, self._losses):
        continue
      why = f'step {step} has loss {loss:.6g} and gradient norm {norm:.6g}'
      if self._policy.action != 'skip':
        raise Spike(why, step=step, output=output)
      self._skipped.append(step)
      recent = sum(s > step - _SPAN for s in self._skipped)
      if self._policy.at_most and recent > self._policy.at_most:
        why += f', and {recent} of {_SPAN} steps were skipped'
        raise Spike(why, step=step, output=output)
      skipped.append((step, output))
    return skipped


def check_state(step: int, state: TrainState, output: dict[str, Any]) -> None:
  """Checks a state before it is saved.

  Raises:
    Spike: some number became infinite or NaN though the gradient was finite.
  """
  if not _all_finite(state):
    raise Spike(f'the state after step {step} is not finite', step=step, output=output)


@jax.jit
def _all_finite(state: TrainState) -> jax.Array:
  floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
  return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in floats]))
