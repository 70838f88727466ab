# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trackers at work: TensorBoard and Weights & Biases get a run's metrics.

Only process 0 opens them. None of them is needed by the run: one that fails
once training has begun is dropped with a warning.
"""

import importlib
import os
import uuid
from collections.abc import Mapping
from typing import Any

import jax
from tensorboardX import SummaryWriter

from gpt_jax import config as config_lib
from gpt_jax.config import Config, log_trackers
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError, install
from gpt_jax.training.metrics import Tracker, write_atomically


def check(config: Config) -> None:
  """Looks whether the trackers can be opened; quick, and opens none.

  Raises:
    UsageError: a package or an account is missing.
  """
  if jax.process_index() != 0:
    return
  for tracker in log_trackers.load(config.log.trackers):
    if isinstance(tracker, log_trackers.WandB):
      _check_wandb(tracker)


def open_all(config: Config, workdir: str, step: int) -> list[Tracker]:
  """Opens the trackers of `log.trackers`; `step` steps are done."""
  opened: list[Tracker] = []
  for tracker in log_trackers.load(config.log.trackers):
    if isinstance(tracker, log_trackers.WandB):
      opened.append(WandB(tracker, config, workdir))
    else:
      opened.append(TensorBoard(workdir, step))
  return opened


class TensorBoard:
  """Writes event files; those of later steps are hidden on opening."""

  def __init__(self, workdir: str, step: int):
    """Opens a file; `step` steps are done."""
    self._board: Any = SummaryWriter(
      os.path.join(workdir, 'tensorboard'), purge_step=step + 1
    )

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds the numbers of a step."""
    for name, value in values.items():
      if self._works():
        self._board.add_scalar(name, value, step)

  def close(self) -> None:
    """Waits until all is written."""
    if self._works():
      self._board.close()

  def _works(self) -> bool:
    """False once its thread died of a full disk: its queue would block."""
    if self._board is None:
      return False
    if not self._board.file_writer.event_writer._worker.is_alive():
      log.warning('TensorBoard events cannot be written; metrics.jsonl has all')
      self._board = None
      return False
    return True


class WandB:
  """Logs to one run of Weights & Biases, whose id is kept in the workdir.

  wandb's own step only grows, and it drops what comes with a smaller one. A
  resumed or rewound run goes back, so our step is a metric, on whose axis the
  others are drawn.
  """

  def __init__(self, tracker: log_trackers.WandB, config: Config, workdir: str):
    """Starts the run, or goes on with it."""
    wandb = importlib.import_module('wandb')
    self._run: Any = None
    try:
      self._run = wandb.init(
        project=tracker.project,
        entity=tracker.entity or None,
        name=tracker.name or os.path.basename(os.path.abspath(workdir)),
        id=_run_id(workdir),
        resume='allow',
        mode=tracker.mode or None,
        dir=workdir,
        config=config_lib.unlocked(config).to_dict(),
        allow_val_change=True,
        # The log of the run stays ours, and the code where it is.
        settings=wandb.Settings(console='off', silent=True, save_code=False),
      )
      self._run.define_metric('step')
      self._run.define_metric('*', step_metric='step')
    except wandb.errors.Error as e:
      self._fail(e)
    else:
      log.info('wandb: run %s in %s', self._run.id, self._run.url or workdir)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds the numbers of a step."""
    if self._run and values:
      try:
        self._run.log({'step': step, **values})
      # Its service may die in ways that it does not declare.
      except Exception as e:
        self._fail(e)

  def close(self) -> None:
    """Waits until all is written, or uploaded."""
    if self._run:
      try:
        self._run.finish()
      except Exception as e:
        self._fail(e)

  def _fail(self, error: Exception):
    log.warning('wandb cannot be written (%s); metrics.jsonl has all', error)
    self._run = None


def _check_wandb(tracker: log_trackers.WandB):
  try:
    wandb = importlib.import_module('wandb')
  except ImportError as e:
    raise UsageError(
      f'{log_trackers.FIELD}: wandb(...) needs the package wandb; run '
      + install('wandb')
    ) from e
  mode = tracker.mode or os.environ.get('WANDB_MODE') or 'online'
  if mode == 'online' and not wandb.login(prompt=False):
    raise UsageError(
      f'{log_trackers.FIELD}: wandb(...) has no API key; run wandb login, set '
      "WANDB_API_KEY, or give mode='offline'"
    )


def _run_id(workdir: str) -> str:
  """The id of the workdir's run, made once."""
  path = os.path.join(workdir, 'wandb', 'run_id')
  try:
    with open(path, encoding='utf-8') as f:
      return f.read().strip()
  except FileNotFoundError:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    made = uuid.uuid4().hex[:8]
    write_atomically(path, made + '\n')
    return made
