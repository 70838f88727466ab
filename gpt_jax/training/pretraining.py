# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Opens a pre-training run: its data, model, checkpoints and first state."""

import functools
from collections.abc import Callable

import jax

from gpt_jax import config as config_lib
from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.config import Config
from gpt_jax.data import eval_sets, manifest, prepare
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import hosts, phases
from gpt_jax.runtime.log import log
from gpt_jax.training import rewind, trackers
from gpt_jax.training import run as run_lib
from gpt_jax.training import workdir as workdir_lib
from gpt_jax.training.held_out import HeldOut
from gpt_jax.training.history import History
from gpt_jax.training.job import Evaluation, Job
from gpt_jax.training.store_data import StoreData


def start(
  config: Config,
  workdir: str,
  evaluation: Callable[..., Evaluation] | None = None,
) -> tuple[Job, TrainState]:
  """Opens data, model and checkpoints; gives the newest state, or the first.

  Args:
    config: resolved.
    workdir: of the run.
    evaluation: makes what measures the run from (run, sets=, tokenizer=);
      empty: the loss on the held-out sets alone.

  Raises:
    UsageError: the config does not fit the devices, the data or the workdir.
  """
  workdir_lib.check_same_run(config, workdir)
  run_lib.check_devices(config)
  trackers.check(config)
  folder = run_lib.data_folder(config, workdir)
  if not manifest.exists(folder):
    workdir_lib.check_tokenizer(config)
  with workdir_lib.untouched_if_refused(workdir, folder):
    with phases.during('prepare'):
      store = hosts.first_process_first(
        lambda: prepare.ensure(config, folder), 'prepare'
      )
    tokenizer = store.tokenizer()
    config = config_lib.set_vocab_size(
      config, tokenizer.vocab_size, config.tokenizer.name
    )
    workdir_lib.check_prompt(config, tokenizer)
    length = config.model.context_length
    data = StoreData(store, length=length, seed=config.seed)
    sets = eval_sets.held_out(config, store)
    run = run_lib.build(config)
    history = History(workdir, store=store.manifest.fingerprint)
    checkpointer = Checkpointer(
      workdir,
      keep=config.checkpoint.keep,
      every_steps=config.checkpoint.every_steps,
      keep_every_steps=config.checkpoint.keep_every_steps,
      keep_best=config.checkpoint.keep_best,
      record=history.record,
    )
    job = Job(run, workdir, data, checkpointer, history)
    if sets:
      job = job._replace(
        evaluation=functools.partial(evaluation, sets=sets, tokenizer=tokenizer)
        if evaluation
        else functools.partial(HeldOut, sets=sets),
        # The split of the corpus comes first, where there is one.
        criterion=f'eval/{next(iter(sets))}/loss',
      )
    rewind.finish(job)
    state = checkpointer.restore(run_lib.abstract_state(run))
    history.restart(checkpointer.restored)
    if state is None:
      state = run_lib.init_state(run)
  micro_rows = config.batch.micro_rows
  log.info(
    '%s tokens, %.2f epochs of %d rows; mesh %s; batches of %s rows, %s',
    f'{len(store):,}',
    run.ramp.offset(config.schedule.num_steps) / data.rows_per_epoch,
    data.rows_per_epoch,
    dict(run.mesh.shape),
    ', '.join(
      f'{s.rows} (from step {s.start + 1})' if s.start else f'{s.rows}'
      for s in run.ramp.stages
    ),
    f'{micro_rows} at a time' if micro_rows else 'all at once',
  )
  if jax.process_index() == 0:
    workdir_lib.start(config, workdir, tokenizer)
  if checkpointer.restored is None:
    return job, state
  if int(state.step) < config.schedule.num_steps:
    log.info('resuming after step %d', int(state.step))
  else:
    log.info('this run is complete: %d steps are done', int(state.step))
  return job, state
