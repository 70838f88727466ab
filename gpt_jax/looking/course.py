# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Takes steps of a run again, from a checkpoint, and compares them with its log.

The rows and the random keys of a step follow from the seed and the step, so the
same program on the same state gives the same bits. The program is the same on as
many devices in the same mesh, and with `batch.exact_over` on any. Otherwise only
rounding differs, which the comparison shows.
"""

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.config import Config
from gpt_jax.core.files import files
from gpt_jax.core.files.progress import bar
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.rows.batch_rows import Skip, Skips
from gpt_jax.core.runtime import watchdog
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import fitting, metrics
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.core.training.compiled import Compiled, compile_train_step
from gpt_jax.core.training.parts import Parts, abstract_state
from gpt_jax.core.training.past import known_skips
from gpt_jax.core.training.run import Run

# What is compared with the log, of each step that it has.
FIGURES = ('loss', 'grad_norm')


class Compared(NamedTuple):
  """A logged number, and the same of the step that was taken again."""

  step: int
  name: str
  logged: float
  again: float

  @property
  def same(self) -> bool:
    """Whether they agree to the last digit."""
    return self.logged == self.again or (math.isnan(self.logged) and math.isnan(self.again))


class Batch(NamedTuple):
  """The batch of a step."""

  step: int
  shape: Shape
  arrays: dict[str, jax.Array]  # [rows, ...] by name, on the devices


class Taken(NamedTuple):
  """A step that was taken.

  Both states are in the memory of the host: with what a program needs, two may
  be too much for the devices.

  Attributes:
    before: the state before it, NumPy.
    batch: that it read.
    after: the state after it, NumPy.
    out: its metrics: see `step.train_step`.
  """

  before: TrainState
  batch: Batch
  after: TrainState
  out: dict[str, Any]


class Course:
  """A run that is taken again, step by step.

  Attributes:
    run: read only.
    start: the step of the checkpoint from which it is taken; 0: from the start.
    done: steps that are done.
    state: after them, on the devices or NumPy.
    compared: with the log, so far.
  """

  def __init__(self, run: Run, state: TrainState, logged: Mapping[int, Mapping[str, float]]):
    """Starts from `state`; `logged` has numbers by step and name."""
    self.run, self.compared = run, list[Compared]()
    self._logged = logged
    self._programs: dict[Shape, Compiled] = {}
    self._begin(state)

  @classmethod
  def open(cls, workdir: str, step: int, *, rewound: bool = False) -> Self:
    """Opens a run at its nearest checkpoint before a step.

    Args:
      workdir: of a run of `train`.
      step: counted from 1.
      rewound: takes the step as it was before a rewind left out its rows.

    Raises:
      UsageError: the run is another kind of run, or has no such step.
    """
    config = _config(workdir, step)
    over = [s for s in known_skips(workdir).skips if s.step < step <= s.spike]
    if rewound and not over:
      raise UsageError(f'--rewound: no rewind of the run went back over step {step}; leave it out')
    # Later checkpoints are of the steps that were taken instead.
    most = min(step - 1, over[0].step) if rewound else step - 1
    run, state = Run.open(config, workdir, read_only=True, at_most=most)
    if rewound:
      kept = [s for s in run.history.skips.skips if s.step < over[0].step]
      run.history.skips = Skips((*kept,))
    return cls(run, state, _logged(workdir, step, over, rewound=rewound))

  def __enter__(self) -> Self:
    """Closes the batches at the end."""
    return self

  def __exit__(self, *_: Any) -> None:
    """Stops reading ahead."""
    self._batches.close()

  def _begin(self, state: TrainState) -> None:
    self.state, self.start = state, int(state.step)
    self.done = self.start
    self._ahead: Batch | None = None
    self._batches = self.run.batches(self.start, lambda: self.state)

  @property
  def parts(self) -> Parts:
    """The run's parts."""
    return self.run.parts

  def program(self, shape: Shape) -> Compiled:
    """The run's own training step for batches of a shape."""
    if shape not in self._programs:
      with watchdog.during('compile'):
        self._programs[shape] = compile_train_step(self.parts, shape)
    return self._programs[shape]

  def next_batch(self) -> Batch:
    """The batch of the next step, which `advance` and `take` read."""
    if self._ahead is None:
      shape = self.parts.ramp.shape(self.done)
      arrays = self.parts.put(next(self._batches), shape.rows)
      self._ahead = Batch(self.done + 1, shape, arrays)
    return self._ahead

  def advance(self, done: int) -> None:
    """Takes steps until `done` are done."""
    first = self.done
    with bar('steps') as report:
      while self.done < done:
        self.step()
        report(f'from step {first} on', self.done - first, done - first)

  def take(self) -> Taken:
    """Takes the next step, and keeps the states before and after it."""
    before, batch = jax.device_get(self.state), self.next_batch()
    out = self.step()
    self.state = jax.device_get(self.state)
    return Taken(before, batch, self.state, out)

  def go_back(self, done: int) -> None:
    """Goes back to the newest checkpoint of at most `done` steps, or to the start."""
    checkpointer = Checkpointer(self.run.workdir, read_only=True)
    state = checkpointer.restore(abstract_state(self.parts), at_most=done)
    checkpointer.close()
    self._batches.close()
    self._begin(self.run.first() if state is None else state)

  def compare(self) -> None:
    """Goes on to the next step in the log, if none was compared yet."""
    later = [step for step in self._logged if step > self.done]
    if not self.compared and later:
      self.advance(min(later))

  def step(self) -> dict[str, Any]:
    """Takes the next step; returns its metrics."""
    batch, self._ahead = self.next_batch(), None
    self.state, out = called(self.parts, self.program(batch.shape), self.state, batch)
    watchdog.enter('step')
    self.done = batch.step
    for name, logged in self._logged.get(batch.step, {}).items():
      self.compared.append(Compared(batch.step, name, logged, float(out[name])))
    return out


def called(
  parts: Parts, program: Compiled, state: TrainState, batch: Batch
) -> tuple[TrainState, dict[str, Any]]:
  """Calls a training step on a state, which is gone if it was on the devices.

  Returns:
    The new state, on the devices, and the metrics, NumPy.
  """
  placed = jax.device_put(state, parts.shardings)
  new, out = program.call(placed, batch.arrays, *parts.average_start())
  return new, jax.device_get(out)


def _config(workdir: str, step: int) -> Config:
  """The run's config, with its former mesh if the devices are as many."""
  config = workdir_lib.read_config(workdir)
  if config.get('finetune') is not None:
    raise UsageError(
      f'--workdir={workdir}: is a fine-tuned run, and only steps of train are taken again; '
      'give one of the same model'
    )
  if config_lib.outer(config):
    raise UsageError(
      f'--workdir={workdir}: its replicas train apart (optim.outer={config.optim.outer!r}), '
      'and a step has no state of its own to look into; give another run'
    )
  last = config.schedule.num_steps
  if not 1 <= step <= last:
    raise UsageError(f'--step={step}: the steps of this run are 1 to {last}; give one of them')
  former, here = fitting.before(workdir), jax.device_count()
  assert former is not None
  mesh, devices = dict(former.mesh), math.prod(former.mesh.values())
  if devices != here and -1 not in mesh.values():
    mesh = fitting.UNSET
    if not config.batch.exact_over:
      log.warning(
        'the run had %d devices, and here are %d: rounding differs; with batch.exact_over the bits '
        'would be the same',
        devices,
        here,
      )
  config = config_lib.unlocked(config)
  config.mesh.update({axis: mesh[axis] for axis in sharding.AXES})
  config.batch.micro_rows = former.micro_rows
  return config.lock()


def _logged(
  workdir: str, step: int, over: Sequence[Skip], *, rewound: bool
) -> dict[int, dict[str, float]]:
  """The numbers of `FIGURES` that the run logged, by step.

  Args:
    workdir: of the run.
    step: that is looked into.
    over: the rewinds that went back over it.
    rewound: whether the steps are those that a rewind gave up, whose lines are
      gone from metrics.jsonl.
  """
  figures = {}
  for line in metrics.read(workdir) if not rewound else ():
    if 'event' not in line and all(name in line for name in FIGURES):
      figures[line['step']] = {name: line[name] for name in FIGURES}
  # Of a step that a rewind went back over, it is of the first time.
  if rewound or not over:
    with contextlib.suppress(FileNotFoundError):
      path = os.path.join(workdir, 'spikes', f'{step}.json')
      spike = files.read_json(path, remedy='restore it from a copy', needs=FIGURES)
      figures[step] = {name: float(spike[name]) for name in FIGURES}
  return figures
