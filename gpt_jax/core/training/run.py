# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A training run: its parts, data and workdir; opening and rewinding it."""

import functools
import math
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
from jax.sharding import Mesh

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.checkpoints.checkpointer import Checkpointer, rewind_target
from gpt_jax.core.config import Config
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.optim.spikes import WINDOW
from gpt_jax.core.optim.train_state import TrainState, with_frozen
from gpt_jax.core.rows import row_makers, row_order
from gpt_jax.core.rows.batch_rows import BatchRows, RowsOfStep, Skips
from gpt_jax.core.runtime import hosts, watchdog
from gpt_jax.core.runtime.log import given, log
from gpt_jax.core.spec import Table
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.tokens import eval_sets, manifest, prepare
from gpt_jax.core.tokens.store import TokenStore
from gpt_jax.core.training import device_check, fitting, metrics, origins, report, store_data
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training import past as past_lib
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.core.training.compiled import Compiled
from gpt_jax.core.training.held_out import HeldOut
from gpt_jax.core.training.metrics import HELD_OUT
from gpt_jax.core.training.parts import Parts
from gpt_jax.core.training.past import History, RunInput, Spike
from gpt_jax.core.training.store_data import StoreData

# Epochs above which a start warns. Up to 4 are about as good as new text, and
# more are worth less and less (Muennighoff et al., 2023: Scaling
# Data-Constrained Language Models).
_MANY = 10.0


# What a batch has beside what its rows are made into: see `store_data.More`.
STORED = Table({}, 'teacher')
# Further tiers of checkpoints: `checkpoint.local_every_steps` asks for one.
TIERS = Table({}, 'tier')


class Data(Protocol):
  """A run's training data: rows in an order given by the seed and the step."""

  @property
  def rows_per_epoch(self) -> int:
    """Rows in one epoch, counted in rows of the first length."""
    ...

  def batches(
    self, parts: Parts, start: int, rows: RowsOfStep, state: Callable[[], TrainState]
  ) -> Generator[row_order.Batch]:
    """Yields this host's share of each batch, from step `start` on.

    It ends early if SIGTERM comes while a batch is made.

    Args:
      parts: has the last step and the sharding.
      start: the first step, counted from 0.
      rows: step -> the rows of its batch.
      state: the state before the batch's step, for data that the model
        generates; valid until the batch is yielded.
    """
    ...

  def epochs(self, rows: BatchRows) -> dict[str, float]:
    """Passes over the data before these rows of the run: `epochs`, ...

    Data that the model generates adds its own metrics.
    """
    ...

  def row_numbers(self, rows: BatchRows) -> list[int]:
    """The numbers, in the data, of rows of the run."""
    ...


class Evaluation(Protocol):
  """A run's evaluation, compiled once."""

  def __call__(self, params: Any, stop: Callable[[], bool] = ...) -> dict[str, Any] | None:
    """Returns `eval/...`, or None if `stop()` became true."""
    ...

  def summary(self, values: dict[str, Any]) -> str:
    """A line for people."""
    ...


class Past(NamedTuple):
  """What the loop needs from the steps already done."""

  losses: list[float]  # the last that were logged, oldest first
  skipped: list[int]  # steps whose update was skipped
  held_out: list[tuple[int, float]]  # step and criterion
  # Router metrics of each step since the last log line: see `Meter`.
  unlogged: list[dict[str, Any]]

  def evaluated(self, step: int) -> bool:
    """Whether the step was evaluated."""
    return any(measured == step for measured, _ in self.held_out)


def gave_up(held_out: list[tuple[int, float]], patience: int) -> bool:
  """Whether none of the last `patience` evaluations is a new best; 0: never."""
  if not patience or len(held_out) <= patience:
    return False
  values = [value for _, value in held_out]
  return min(values[-patience:]) >= min(values[:-patience])


class Run(NamedTuple):
  """A run, its folder and its data.

  Attributes:
    parts: model, objective, optimizer and the mesh.
    workdir: its folder.
    data: the training rows.
    checkpointer: saves and restores states.
    history: the part of its past that decides how it continues.
    first: makes the initial state.
    evaluation: makes the evaluation; None: there is none.
    criterion: the metric by which states are compared: lower is better, or
      higher with a leading '-'.
    patience: the run ends early after this many evaluations without a new
      best; 0: never.
    shown: metrics that log lines show beside the loss.
    programs: training steps that are compiled already.
  """

  parts: Parts
  workdir: str
  data: Data
  checkpointer: Checkpointer
  history: History
  first: Callable[[], TrainState]
  evaluation: Callable[[Parts], Evaluation] | None = None
  criterion: str = HELD_OUT
  patience: int = 0
  shown: tuple[str, ...] = ()
  programs: Mapping[Shape, Compiled] = MappingProxyType({})

  @classmethod
  def open(
    cls,
    config: Config,
    workdir: str,
    evaluation: Callable[..., Evaluation] | None = None,
    *,
    read_only: bool = False,
    at_most: int | None = None,
  ) -> tuple['Run', TrainState]:
    """Opens a pre-training run; returns its newest state, or the initial one.

    Writes the token store if it is missing.

    Args:
      config: resolved.
      workdir: the run's folder; made if it is missing.
      evaluation: makes the evaluation from (parts, sets=, tokenizer=); None:
        only the loss on the held-out sets.
      read_only: writes nothing, and does not evaluate.
      at_most: with `read_only`, the last acceptable step; None: any.

    Returns:
      The run, and its state, on the devices.

    Raises:
      UsageError: the config is not the one that the folder was begun with, the
        texts cannot be read, or the run does not fit the devices.
    """
    folder = store_data.data_folder(config, workdir)
    if read_only:
      mesh = device_check.check_devices(config)
      store = store_data.open_store(config, workdir)
      store = store.ordered(config.data.source, config.data.rows)
      return _opened(config, mesh, workdir, store, evaluation, read_only=True, at_most=at_most)
    workdir_lib.check_same_run(config, workdir)
    origins.check(config, workdir)
    config, mesh = check_before(config, workdir)
    workdir_lib.check_store_folder(config)
    if not manifest.exists(folder):
      workdir_lib.check_tokenizer(config)
    with workdir_lib.untouched_if_refused(workdir, folder):
      with watchdog.during('prepare'):
        store = hosts.first_process_first(lambda: prepare.ensure(config, folder), 'prepare')
      return _opened(config, mesh, workdir, store, evaluation, read_only=False)

  def judged(self, values: dict[str, Any]) -> float | None:
    """The criterion from metrics, negated if higher is better; None: absent.

    A value that is not finite counts as the worst.
    """
    value = values.get(self.criterion.lstrip('-'))
    if value is None:
      return None
    if not math.isfinite(value):
      return math.inf
    return -value if self.criterion.startswith('-') else value

  @property
  def active(self) -> bool:
    """Whether this process logs and writes files."""
    return jax.process_index() == 0

  def open_metrics(self, done: int, **start: float) -> metrics.Metrics:
    """Opens the metrics at step `done`; `start` goes into the start event.

    That event also has the mesh and the rows at a time (see `fitting.before`),
    and what the user gave (see `_record`).
    """
    config = self.parts.config
    length = config_lib.row_tokens(config)
    opened = ()
    if self.active:
      opened = report.open_trackers(config, self.workdir, done)
    return metrics.Metrics(
      self.workdir,
      step=done,
      active=self.active,
      keep=self.history.add,
      trackers=opened,
      context_length=length,
      rows_per_epoch=self.data.rows_per_epoch,
      jax=jax.__version__,
      device=jax.devices()[0].device_kind,
      devices=jax.device_count(),
      processes=jax.process_count(),
      slices=sharding.num_slices(jax.devices()),
      mesh=dict(self.parts.mesh.shape),
      micro_rows=config.batch.micro_rows,
      parameters=sum(x.size for x in jax.tree.leaves(self.parts.objective.shapes)),
      **_record(config),
      **start,
    )

  def unskipped_rows(self, step: int) -> BatchRows:
    """The rows of a step, counted from 0, if no rows were left out."""
    return config_lib.order(self.parts.ramp)(step)

  def past(self, done: int) -> Past:
    """The past at step `done`; a collective: every process must call it."""
    lines = self.history.lines(done)
    logged = [m['loss'] for m in lines if 'loss' in m]
    unlogged = [m['routers'] for m in lines if m.get('event') == 'unlogged' and m['step'] == done]
    past: dict[str, Any] = dict(
      losses=[x for x in logged if math.isfinite(x)][-WINDOW:],
      skipped=[m['step'] for m in lines if m.get('event') == 'skipped'],
      held_out=[(m['step'], value) for m in lines if (value := self.judged(m)) is not None],
      unlogged=unlogged[-1] if unlogged else [],
    )
    return Past(**hosts.broadcast_from_host0(past))

  def rows(self) -> RowsOfStep:
    """Step, counted from 0 -> its rows, without those left out."""
    return self.history.skips.shifted(self.unskipped_rows)

  def batches(self, done: int, state: Callable[[], TrainState]) -> Generator[row_order.Batch]:
    """The batches after step `done`, to the last: see `Data.batches`.

    Args:
      done: number of steps taken.
      state: returns the newest state; only data that the model generates asks
        for it.

    Returns:
      A generator of this host's rows of each batch, NumPy arrays [rows, ...] by
      name, for `Parts.put`. Close it to stop reading ahead.

    Raises:
      UsageError: the token store is damaged.
    """
    return self.data.batches(self.parts, done, self.rows(), state)

  def rewind(self, spike: Spike) -> TrainState:
    """Rewinds to before a spike if the policy says so, as PaLM did.

    The rows to leave out are saved before any checkpoint is deleted: a run
    killed at any moment finishes the rewind when it starts again. Every process
    calls it after the same step.

    Returns:
      The state to continue from; the data order differs from there on.

    Raises:
      Spike: the policy is to stop, or its limit of rewinds is reached.
    """
    policy, skipped = self.parts.spike_policy, self.history.skips
    file = self.write_spike(spike.step, spike.output)
    self.checkpointer.wait()
    limit = policy.at_most or math.inf
    if policy.action != 'rewind' or len(skipped.skips) >= limit:
      raise Spike(
        f'{spike}; its rows: gpt-jax inspect --spike {file}; the checkpoints '
        'are from before; lower the learning rate, or go on with '
        '--config.optim.on_spike=skip, or rewind',
        step=spike.step,
        output=spike.output,
      ) from spike
    step = rewind_target(
      self.checkpointer.steps(),
      spike=spike.step,
      before=policy.before,
      every=self.parts.config.checkpoint.every_steps,
    )
    new = skipped.add(self.unskipped_rows, step=step, spike=spike.step, batches=policy.batches)
    log.warning(
      '%s: going back to step %d, and leaving out %d rows from there; rows of the spike: %s',
      spike,
      step,
      new.skips[-1].rows,
      file,
    )
    self._write_skips(new)
    self.finish_rewind()
    return self.go_back(at_most=step)

  def go_back(self, *, at_most: int | None = None) -> TrainState:
    """The state and the history of the newest checkpoint, or of the start.

    Args:
      at_most: the last acceptable step; None: any.
    """
    state = self.restored(at_most=at_most)
    self.history.restart(self.checkpointer.restored)
    return self.first() if state is None else state

  def restored(
    self, *, at_most: int | None = None, start: TrainState | None = None
  ) -> TrainState | None:
    """The newest sound checkpoint; None: there is none.

    Args:
      at_most: the last acceptable step; None: any.
      start: the initial state if it is known already. What checkpoints leave
        out is taken from it.
    """
    abstract = parts_lib.abstract_state(self.parts)
    state = self.checkpointer.restore(abstract, at_most=at_most)
    unsaved = self.parts.objective.unsaved
    if state is None or not unsaved:
      return state
    whole = (start or self.first()).params
    return state._replace(params=with_frozen(state.params, whole, unsaved))

  def finish_rewind(self) -> None:
    """Deletes checkpoints after the last rewind's step, if it is pending."""
    skipped = self.history.skips
    if skipped.pending:
      self.checkpointer.forget_after(skipped.skips[-1].step)
      self._write_skips(skipped._replace(pending=False))

  def _write_skips(self, skips: Skips) -> None:
    if self.active:
      past_lib.write_skips(self.workdir, skips)
    hosts.broadcast_from_host0(None)  # all processes wait until it is written
    self.history.skips = skips

  def write_spike(self, step: int, output: dict[str, Any]) -> str:
    """Writes WORKDIR/spikes/STEP.json on the first process; returns its path.

    It holds the step (counted from 1), loss and gradient norms, and the step's
    rows: their numbers in the run's order and in the data.
    """
    figures = {name: output[name] for name in past_lib.FIGURES}
    about = {'learning_rate': float(self.parts.schedule(step - 1)), **jax.tree.map(float, figures)}
    return self.write_step(f'spikes/{step}.json', step, about)

  def write_step(self, name: str, step: int, about: dict[str, Any]) -> str:
    """Writes WORKDIR/NAME on the first process; returns its path.

    Args:
      step: counted from 1; its rows are written too.
      about: what else is known of the step.
    """
    path = os.path.join(self.workdir, name)
    if self.active:
      # Step 0 is the initial state, which had no rows.
      rows = self._rows_of(step) if step else {}
      os.makedirs(os.path.dirname(path), exist_ok=True)
      text = metrics.to_json({'step': step, **about, **rows}, indent=2)
      write_atomically(path, text + '\n')
    return path

  def _rows_of(self, step: int) -> dict[str, Any]:
    """The rows of a step: their numbers in the run's order and in the data."""
    rows = self.rows()(step - 1)
    return {
      'first_row': rows.offset,
      'num_rows': rows.count,
      'row_tokens': rows.length,
      'first_index': rows.index,
      'store_rows': self.data.row_numbers(rows),
    }


def _record(config: Config) -> dict[str, Any]:
  """The command, and the fields that it gave and that were filled in since."""
  if (invocation := given()) is None:
    return {}
  fields = config_lib.flatten(config)
  filled = [
    name
    for name, value in fields.items()
    if name not in invocation.fields or invocation.fields[name] != value
  ]
  return {
    'command': invocation.command,
    'overrides': invocation.overrides,
    'filled': filled if invocation.fields else [],
  }


def check_before(config: Config, workdir: str) -> tuple[Config, Mesh]:
  """Checks the devices and the trackers before anything is written.

  Returns:
    The config with its mesh (see `fitting.with_mesh`), and the mesh, for
    `parts.build`.
  """
  config = fitting.with_mesh(config, workdir)
  mesh = device_check.check_devices(config)
  report.check_trackers(config)
  if config.checkpoint.local_every_steps:
    TIERS['local'].check_folder(config.checkpoint.local_dir)
  if note := config_lib.warm_up_note(config):
    log.warning('%s', note)
  return config, mesh


def resume_or_start(
  parts: Parts,
  workdir: str,
  data: Data,
  *,
  tokenizer: Tokenizer,
  first: Callable[[], TrainState],
  about: str,
  warnings: Sequence[str] = (),
  store: str = '',
  inputs: Sequence[RunInput] = (),
  start: TrainState | None = None,
  **measured: Any,
) -> tuple[Run, TrainState]:
  """Opens the checkpoints and the workdir; returns the newest state.

  Args:
    tokenizer: copied into the workdir.
    first: makes the initial state of a new run.
    about: a line for people on what is trained.
    warnings: lines on what the steps to come may do to it.
    store: fingerprint of the token store; empty: the run has none.
    inputs: what the run reads beside it.
    start: the initial state if it is known already. What checkpoints leave out
      is taken from it.
    **measured: `evaluation`, `criterion`, `patience` and `shown` of `Run`.
  """
  config = parts.config
  history = History(workdir, store=store, inputs=inputs)
  local = None
  if config.checkpoint.local_every_steps:
    local = TIERS['local'](workdir, config.checkpoint.local_dir)
  checkpointer = Checkpointer(
    workdir,
    keep=config.checkpoint.keep,
    every_steps=config.checkpoint.every_steps,
    keep_every_steps=config.checkpoint.keep_every_steps,
    keep_best=config.checkpoint.keep_best,
    record=history.record,
    unsaved=parts.objective.unsaved,
    local=local,
  )
  run = Run(parts, workdir, data, checkpointer, history, first, **measured)
  run.finish_rewind()
  newest = run.restored(start=start)
  history.restart(checkpointer.restored)
  done = 0 if newest is None else int(newest.step)
  over = done >= config.schedule.num_steps
  if run.patience:
    over = over or gave_up(run.past(done).held_out, run.patience)
  log.info('%s', about)
  for warning in () if over else warnings:
    log.warning('%s', warning)
  # Before anything is written, as it may not fit.
  with watchdog.during('compile'):
    shapes = [] if over else parts.shapes(done)
    parts, programs = fitting.fitted(parts, shapes, workdir)
  run, config = run._replace(parts=parts, programs=programs), parts.config
  state = (start or first()) if newest is None else newest
  if run.active:
    workdir_lib.start(config, workdir, tokenizer)
  if newest is None:
    return run, state
  if done < config.schedule.num_steps:
    log.info('resuming after step %d', done)
  else:
    log.info('this run is complete: %d steps are done', done)
  return run, state


def _opened(
  config: Config,
  mesh: Mesh,
  workdir: str,
  store: TokenStore,
  evaluation: Callable[..., Evaluation] | None,
  *,
  read_only: bool,
  at_most: int | None = None,
) -> tuple[Run, TrainState]:
  """Opens a run whose token store is open: see `Run.open`."""
  tokenizer, fingerprint = store.tokenizer(), store.manifest.fingerprint
  config = config_lib.set_vocab_size(
    config, tokenizer.vocab_size, config.tokenizer.name, tokenizer.source_vocab_size
  )
  if not read_only:
    workdir_lib.warn_of_spare_rows(config, tokenizer)
    workdir_lib.check_prompt(config, tokenizer)
    chosen = fitting.with_mesh(config, workdir)
    if chosen is not config:
      config, mesh = chosen, device_check.check_devices(chosen)
  more = None
  if objectives.needs(config.objective.name).stored:
    more = STORED['objective.teacher'](config, store)
  data = StoreData(
    store, lengths=[s.length for s in config_lib.ramp(config).stages], seed=config.seed, more=more
  )
  sets = {} if read_only else eval_sets.held_out(config, store)
  for held_out in sets.values():  # refuses sets without such rows now
    row_makers.load(held_out.store, config.model.context_length)
  parts = parts_lib.build(config, mesh, tokenizer=tokenizer)
  fitting.check_state(parts)

  def first() -> TrainState:
    return origins.first_state(parts, tokenizer)

  if read_only:
    checkpointer = Checkpointer(workdir, read_only=True)
    state = checkpointer.restore(parts_lib.abstract_state(parts), at_most=at_most)
    past_lib.check_store(workdir, checkpointer.restored, fingerprint)
    checkpointer.close()
    history = History(workdir, store=fingerprint)
    history.skips = past_lib.known_skips(workdir)
    run = Run(parts, workdir, data, checkpointer, history, first)
    return run, first() if state is None else state
  measured: dict[str, Any] = {}
  if sets:
    evaluate: Any = functools.partial(HeldOut, sets=sets)
    if evaluation:
      evaluate = functools.partial(evaluation, sets=sets, tokenizer=tokenizer)
    measured = {
      'evaluation': evaluate,
      # The corpus's own held-out split comes first, if there is one.
      'criterion': f'eval/{next(iter(sets))}/loss',
    }
  return resume_or_start(
    parts,
    workdir,
    data,
    tokenizer=tokenizer,
    first=first,
    about=_about(parts, len(store), data),
    warnings=[*_too_little_text(parts, data, held_out=bool(sets))],
    store=fingerprint,
    inputs=[more.read] if more else (),
    **measured,
  )


def _about(parts: Parts, num_tokens: int, data: StoreData) -> str:
  """A line for people."""
  last = config_lib.order(parts.ramp)(parts.config.schedule.num_steps)
  epochs = data.epochs(last)['epochs']
  several = len({s.length for s in parts.ramp.stages}) > 1
  rows = ', '.join(
    f'{s.rows}'
    + (f' x {s.length} tokens' if several else '')
    + (f' (from step {s.start + 1})' if s.start else '')
    for s in parts.ramp.stages
  )
  micro_rows = parts.config.batch.micro_rows
  mesh = [f'{name}={n}' for name, n in parts.mesh.shape.items() if n > 1]
  return (
    f'{num_tokens:,} tokens, {epochs:.2f} epochs of {data.rows_per_epoch} '
    + 'rows; '
    + f'mesh {", ".join(mesh)}; ' * bool(mesh)
    + f'batches of {rows} rows, '
    + (
      f'at most {micro_rows} at a time on a device'
      if micro_rows
      else 'as many at a time as fit'
      if micro_rows is None
      else 'all at once'
    )
  )


def _too_little_text(parts: Parts, data: StoreData, *, held_out: bool) -> Iterator[str]:
  """Warnings about a corpus that is small for the run."""
  last = config_lib.order(parts.ramp)(parts.config.schedule.num_steps)
  often = [
    f'{name.removeprefix("epochs/") if "/" in name else "its corpus"} {times:,.0f} times'
    for name, times in data.epochs(last).items()
    if times > _MANY
  ]
  if often:
    shown = 'the held-out loss will show'
    if not held_out:
      shown = 'no held-out loss will show (data.holdout)'
    yield (
      f'the run reads {", ".join(often)} over all its steps: expect '
      f'over-fitting, which {shown}; give more text, or lower '
      'schedule.num_steps'
    )
  largest = max(parts.ramp.stages, key=lambda s: s.rows * s.length)
  one = BatchRows(0, 0, largest.length, largest.rows)
  epochs = data.epochs(one)['epochs']
  if epochs > 1:
    yield (
      f'batch.size={parts.config.batch.size!r}: a batch of {largest.rows:,} '
      f'rows is more than the corpus, which has '
      f'{round(largest.rows / epochs):,}, so that each step reads rows '
      'repeatedly; lower it, or give more text'
    )
