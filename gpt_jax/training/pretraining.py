# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Opens a pre-training run: its data, model, checkpoints and first state."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from gpt_jax import config as config_lib
from gpt_jax.config import Config
from gpt_jax.optim.train_state import TrainState
from gpt_jax.rows import row_makers
from gpt_jax.rows.teacher_outputs import TeacherOutputs
from gpt_jax.runtime import hosts, phases
from gpt_jax.runtime.log import log
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.tokens import eval_sets, manifest, prepare
from gpt_jax.tokens.store import TokenStore
from gpt_jax.training import (
  device_check,
  metrics,
  models,
  opening,
  store_data,
  teaching,
)
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import workdir as workdir_lib
from gpt_jax.training.held_out import HeldOut
from gpt_jax.training.parts import Parts
from gpt_jax.training.store_data import StoreData
from gpt_jax.training.training_run import Evaluation, TrainingRun


def start(
  config: Config,
  workdir: str,
  evaluation: Callable[..., Evaluation] | None = None,
) -> tuple[TrainingRun, TrainState]:
  """Opens data, model and checkpoints; gives the newest state, or the first.

  Args:
    config: resolved.
    workdir: of the run.
    evaluation: makes what measures the run from (parts, sets=, tokenizer=);
      empty: the loss on the held-out sets alone.
  """
  workdir_lib.check_same_run(config, workdir)
  models.check_teacher(config)
  models.check_start(config, workdir)
  device_check.check_devices(config)
  metrics.check(config)
  if note := config_lib.warm_up_note(config):
    log.warning('%s', note)
  workdir_lib.check_store_folder(config)
  folder = store_data.data_folder(config, workdir)
  if not manifest.exists(folder):
    workdir_lib.check_tokenizer(config)
  with workdir_lib.untouched_if_refused(workdir, folder):
    with phases.during('prepare'):
      store = hosts.first_process_first(
        lambda: prepare.ensure(config, folder), 'prepare'
      )
    tokenizer = store.tokenizer()
    config = config_lib.set_vocab_size(
      config,
      tokenizer.vocab_size,
      config.tokenizer.name,
      tokenizer_lib.own_of_sources(tokenizer),
    )
    workdir_lib.warn_of_spare_rows(config, tokenizer)
    workdir_lib.check_prompt(config, tokenizer)
    outputs = teaching.opened(config, store)
    data = open_data(config, store, outputs)
    sets = eval_sets.held_out(config, store)
    for held_out in sets.values():  # what has no such rows is refused now
      row_makers.load(held_out.store, config.model.context_length)
    parts = parts_lib.build(config, tokenizer=tokenizer)
    return opening.open_run(
      parts,
      workdir,
      data,
      tokenizer=tokenizer,
      first=lambda: models.first_state(parts, tokenizer),
      about=_about(parts, len(store), data),
      store=store.manifest.fingerprint,
      teacher=outputs.contents.fingerprint if outputs else '',
      **_measured(sets, tokenizer, evaluation),
    )


def open_data(
  config: Config, store: TokenStore, outputs: TeacherOutputs | None
) -> StoreData:
  """The rows that a run takes from a store, in their order.

  Args:
    config: resolved.
    store: open.
    outputs: of a teacher, that the run reads; None: it reads none.
  """
  lengths = [s.length for s in config_lib.ramp(config).stages]
  return StoreData(
    store,
    lengths=lengths,
    seed=config.seed,
    more=outputs.batch if outputs else None,
  )


def _measured(
  sets: Mapping[str, eval_sets.EvalSet],
  tokenizer: Tokenizer,
  evaluation: Callable[..., Evaluation] | None,
) -> dict[str, Any]:
  """What measures a run with some held-out sets."""
  if not sets:
    return {}
  if evaluation:
    made = functools.partial(evaluation, sets=sets, tokenizer=tokenizer)
  else:
    made = functools.partial(HeldOut, sets=sets)
  # The split of the corpus comes first, where there is one.
  return {'evaluation': made, 'criterion': f'eval/{next(iter(sets))}/loss'}


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
  return (
    f'{num_tokens:,} tokens, {epochs:.2f} epochs of {data.rows_per_epoch} '
    f'rows; mesh {dict(parts.mesh.shape)}; batches of {rows} rows, '
    + (
      f'at most {micro_rows} at a time on a device'
      if micro_rows
      else 'all at once'
    )
  )
