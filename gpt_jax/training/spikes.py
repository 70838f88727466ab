# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spikes of a run: found, written down, shown.

The device leaves out an update that is not finite by itself, see `step.py`. The
host looks at all steps since the last log line before it logs or saves, and
acts by the policy `optim.on_spike`, see `optim.spikes`.
"""

import math
import os
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from gpt_jax.checkpoints import restore
from gpt_jax.checkpoints.checkpointer import rewind_target
from gpt_jax.files import files
from gpt_jax.optim.spikes import Policy, is_spike
from gpt_jax.optim.train_state import TrainState
from gpt_jax.rows import pipeline, taken
from gpt_jax.rows.taken import Taken
from gpt_jax.runtime import hosts
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.tokenizer import load as load_tokenizer
from gpt_jax.tokenizers.tokenizer import of_sources
from gpt_jax.training import metrics, store_data
from gpt_jax.training import models as trained_lib
from gpt_jax.training import parts as parts_lib
from gpt_jax.training.history import check_store, write_skips
from gpt_jax.training.parts import Parts
from gpt_jax.training.training_run import TrainingRun

# What the file of a spike holds of its step's metrics.
FIGURES = ('loss', 'grad_norm', 'grad_norms')
# The steps over which skipped updates are counted.
_SPAN = 1000


class Spike(RuntimeError):
  """A step after which the run cannot go on as it is."""

  def __init__(self, why: str, *, step: int, output: dict[str, Any]):
    """`output` is what the step gave; `why` a line for people."""
    super().__init__(why)
    self.step, self.output = step, output


class Guard:
  """Looks at the outputs of each step once."""

  def __init__(self, policy: Policy, losses: list[float], skipped: list[int]):
    """Continues from the logged losses and skipped steps of the past."""
    self._policy = policy
    self._losses, self._skipped = [*losses], [*skipped]

  def logged(self, loss: float) -> None:
    """A loss was logged: later jumps are measured from it too."""
    if math.isfinite(loss):
      self._losses.append(loss)

  def check(
    self, last: int, outputs: list[dict[str, Any]]
  ) -> list[tuple[int, dict[str, Any]]]:
    """Looks for spikes in the outputs of the steps up to `last`.

    Returns:
      Number and output of each step that was skipped.

    Raises:
      Spike: at the first that the policy does not skip.
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
    Spike: a finite gradient made a number infinite or NaN.
  """
  if not _all_finite(state):
    raise Spike(
      f'the state after step {step} is not finite', step=step, output=output
    )


@jax.jit
def _all_finite(state: TrainState) -> jax.Array:
  floats = [
    x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)
  ]
  return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in floats]))


def write(
  parts: Parts,
  data: Any,
  workdir: str,
  *,
  step: int,
  rows: Taken,
  output: dict[str, Any],
) -> str:
  """Writes WORKDIR/spikes/STEP.json on the first process; returns its path.

  It holds the step (counted from 1), loss and gradient norms, and its rows:
  which of the run's order, and which of the `data` (see `training_run.Data`).
  """
  path = os.path.join(workdir, 'spikes', f'{step}.json')
  if jax.process_index() == 0:
    found = {
      'step': step,
      'learning_rate': float(parts.schedule(step - 1)),
      **jax.tree.map(float, {name: output[name] for name in FIGURES}),
      'first_row': rows.offset,
      'num_rows': rows.count,
      'row_tokens': rows.length,
      'first_index': rows.index,
      'store_rows': data.row_numbers(rows),
    }
    os.makedirs(os.path.dirname(path), exist_ok=True)
    metrics.write_atomically(path, metrics.to_json(found, indent=2) + '\n')
  return path


def read(file: str) -> dict[str, Any]:
  """Reads what `write` wrote, and adds `texts`: each row, decoded."""
  workdir = os.path.dirname(os.path.dirname(os.path.abspath(file)))
  try:
    found = files.read_json(
      file,
      remedy='restore it from a copy; training does not need it',
      needs=('step', 'learning_rate', 'first_row', 'num_rows', *FIGURES),
    )
  except FileNotFoundError as e:
    raise UsageError(
      f'--spike={file}: {e.filename} is missing; give WORKDIR/spikes/STEP.json '
      'of a run'
    ) from e
  config = trained_lib.read_config(workdir)
  store = store_data.open_store(config, workdir)
  check_store(workdir, restore.newest(workdir), store.manifest.fingerprint)
  store = store.ordered(config.data.source, config.data.rows)
  tokenizer = load_tokenizer(os.path.join(workdir, 'tokenizer'))
  # Files of before there were rows of several lengths lack these two.
  length = found.get('row_tokens', config.model.context_length)
  source = pipeline.RowSource(store, length=length, seed=config.seed)
  index = found.get('first_index', found['first_row'])
  rows, _ = source.read(
    Taken(found['first_row'], found['num_rows'], length, index)
  )
  sides = [rows] if rows.source is None else [rows.source, rows]
  tokenizers = [of_sources(tokenizer), tokenizer]
  texts = [
    ' => '.join(
      made.decode(side.tokens[i][side.real[i]].tolist())
      for side, made in zip(sides, tokenizers[-len(sides) :], strict=True)
    )
    for i in range(len(rows.tokens))
  ]
  return {**found, 'texts': texts}


def show(found: dict[str, Any], console: Console, *, width: int = 400) -> None:
  """Prints what `read` returned; each row up to `width` characters."""
  console.print(
    f'step {found["step"]}: loss {found["loss"]}, gradient norm '
    f'{found["grad_norm"]}, learning rate {found["learning_rate"]:.4g}'
  )
  norms = Table('part of the model', 'gradient norm')
  for name, norm in found['grad_norms'].items():
    norms.add_row(name, str(norm))
  console.print(norms)
  rows = Table('row of the run', 'row of the store', 'text')
  for i, (number, text) in enumerate(
    zip(found['store_rows'], found['texts'], strict=True)
  ):
    rows.add_row(str(found['first_row'] + i), str(number), repr(text[:width]))
  console.print(rows, markup=False)


# PaLM's cure of a loss spike: go back, and leave out the rows around it.
#
# What is left out is kept in WORKDIR/skips.json (see `data.skips`), written
# before anything is given up: killed at any moment, a run finishes the rewind
# when it starts again.


def rewind(training: TrainingRun, spike: Spike) -> TrainState:
  """Goes back before a spike, where the policy says so.

  Every process calls it after the same step.

  Returns:
    The state to go on from; the data order is another one from there.

  Raises:
    Spike: the policy is to stop, or it has rewound often enough.
  """
  policy, parts = training.parts.spike_policy, training.parts
  known = training.history.skips
  file = write_spike(training, spike.step, spike.output)
  limit = policy.at_most or math.inf
  if policy.action != 'rewind' or len(known.skips) >= limit:
    training.checkpointer.wait()
    raise Spike(
      f'{spike}; its rows: gpt-jax inspect --spike {file}; the checkpoints are '
      'from before; lower the learning rate, or go on with '
      '--config.optim.on_spike=skip, or rewind',
      step=spike.step,
      output=spike.output,
    ) from spike
  training.checkpointer.wait()
  step = rewind_target(
    training.checkpointer.steps(),
    spike=spike.step,
    before=policy.before,
    every=parts.config.checkpoint.every_steps,
  )
  new = known.add(
    training.unskipped_rows, step=step, spike=spike.step, batches=policy.batches
  )
  log.warning(
    '%s: going back to step %d, and leaving out %d rows from there; rows of '
    'the spike: %s',
    *(spike, step, new.skips[-1].rows, file),
  )
  _write(training, new)
  finish(training)
  state = training.checkpointer.restore(
    parts_lib.abstract_state(parts), at_most=step
  )
  training.history.restart(training.checkpointer.restored)
  return parts_lib.initial_state(parts) if state is None else state


def finish(training: TrainingRun) -> None:
  """Gives up the states after the last rewind's step, if one is not done."""
  known = training.history.skips
  if known.pending:
    training.checkpointer.forget_after(known.skips[-1].step)
    _write(training, known._replace(pending=False))


def log_events(training: TrainingRun, log: metrics.Metrics, done: int) -> None:
  """Writes an event for each rewind up to step `done` that has none yet."""
  lines = metrics.read(training.workdir)
  for skip in training.history.skips.skips:
    event = {'step': skip.step, 'event': 'rewind', 'spike_step': skip.spike}
    known = any(event.items() <= line.items() for line in lines)
    if skip.step <= done and not known:
      log.write(**event, rows_skipped=skip.rows)


def log_skipped(
  training: TrainingRun, log: metrics.Metrics, step: int, output: dict[str, Any]
) -> None:
  """Writes down a step whose update was left out."""
  file = write_spike(training, step, output)
  log.write(
    step, event='skipped', spike=os.path.relpath(file, training.workdir)
  )


def write_spike(
  training: TrainingRun, step: int, output: dict[str, Any]
) -> str:
  """Writes the file of a spike; returns its path."""
  rows = training.rows()(step - 1)
  return write(
    training.parts,
    training.data,
    training.workdir,
    step=step,
    rows=rows,
    output=output,
  )


def _write(training: TrainingRun, new: taken.Skips) -> None:
  if training.active:
    write_skips(training.workdir, new)
  hosts.broadcast_from_host0(None)  # no process goes on before it is written
  training.history.skips = new
