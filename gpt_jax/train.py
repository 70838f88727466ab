# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Pre-trains a model, and goes on where a run stopped.

  gpt-jax train --config configs/smoke.py --workdir workdirs/smoke
  gpt-jax train --config configs/gpt2.py:medium --config.batch.rows=64 \
    --workdir W

Prepares the data when the token store is missing. The same command again
resumes from the newest checkpoint and ends with the very weights of a run that
was never stopped. W then holds config.json, metrics.jsonl, checkpoints/,
tokenizer/, data/, loss.png, samples.txt and tensorboard/.
"""

import contextlib
import math
import os
import shutil
import time
from typing import Any

import jax
from absl import flags

from gpt_jax import (
  command,
  distributed,
  evaluate,
  flops,
  generate,
  plot,
  plot_routers,
  routers,
)
from gpt_jax import config as config_lib
from gpt_jax import run as run_lib
from gpt_jax.checkpoint import Checkpointer
from gpt_jax.command import log
from gpt_jax.config import Config
from gpt_jax.data import pipeline, prepare
from gpt_jax.data.store import TokenStore
from gpt_jax.data.tokenizer import Tokenizer
from gpt_jax.metrics import Metrics, Progress, write_atomically
from gpt_jax.run import Run
from gpt_jax.spec import UsageError
from gpt_jax.state import TrainState


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  command.define_config(values)
  command.define_workdir(values, 'Folder of the run; made when missing.')
  flags.DEFINE_bool(
    'distributed',
    False,
    'Several hosts: give it on each. Cloud TPU hosts find each other; others '
    'set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.',
    flag_values=values,
  )


def main(args: command.Args) -> None:
  """Runs the command."""
  command.required(args, 'config', 'workdir')
  if args.distributed:
    distributed.initialize()
  train(args.config, args.workdir)


def train(config: Config, workdir: str) -> None:
  """Trains to the last step of the schedule; see the module's docstring."""
  config = config_lib.resolve(config)
  check_same_run(config, workdir)
  run_lib.check_devices(config)
  with untouched_if_refused(workdir):
    store = distributed.first_process_first(
      lambda: prepare.ensure(config, run_lib.data_folder(config, workdir)),
      'gpt_jax_data',
    )
    tokenizer = store.tokenizer()
    config = config_lib.set_vocab_size(
      config, tokenizer.vocab_size, config.tokenizer.name
    )
    check_prompt(config, tokenizer)
    epoch = pipeline.rows_per_epoch(store, config.model.context_length)
    run = run_lib.build(config)
    checkpointer = Checkpointer(workdir, keep=config.checkpoint.keep)
    state = checkpointer.restore(run_lib.abstract_state(run))
  log.info(
    '%s tokens, %.2f epochs of %d rows; mesh %s; batches of %d rows, %d at a '
    'time',
    f'{len(store):,}',
    config.schedule.num_steps * config.batch.rows / epoch,
    epoch,
    dict(run.mesh.shape),
    config.batch.rows,
    config.batch.micro_rows,
  )
  if jax.process_index() == 0:
    start_workdir(config, workdir, tokenizer)
  if state is None:
    state = run_lib.init_state(run)
  elif int(state.step) < config.schedule.num_steps:
    log.info('resuming after step %d', int(state.step))
  else:
    log.info('this run is complete: %d steps are done', int(state.step))
  state = fit(run, state, store, workdir, checkpointer)
  checkpointer.close()
  if jax.process_index() == 0:
    log.info('drew %s', plot.loss_curves([workdir]))
    if path := plot_routers.router_curves(workdir):
      log.info('drew %s', path)
  sample(run, state, tokenizer, workdir)


@contextlib.contextmanager
def untouched_if_refused(workdir: str):
  """Removes what was made in `workdir` if the input turns out to be bad."""
  before = set(os.listdir(workdir)) if os.path.isdir(workdir) else None
  try:
    yield
  except UsageError:
    if before is None:
      shutil.rmtree(workdir, ignore_errors=True)
    else:
      for name in set(os.listdir(workdir)) - before:
        shutil.rmtree(os.path.join(workdir, name), ignore_errors=True)
    raise


def fit(
  run: Run,
  state: TrainState,
  store: TokenStore,
  workdir: str,
  checkpointer: Checkpointer,
) -> TrainState:
  """The training loop, from the state's step to the last."""
  config = run.config
  done, last = int(state.step), config.schedule.num_steps
  if done >= last:
    return state
  train_step = run_lib.compile_train_step(run)
  log.info('compiled the training step in %.1f s', train_step.seconds)
  batches = pipeline.batches(
    store,
    length=config.model.context_length,
    seed=config.seed,
    start=done,
    stop=last,
    rows=lambda step: (step * config.batch.rows, config.batch.rows),
    host_rows=run.host_rows,
    corrupt=run.objective.corrupt,
  )
  split = store.validation()
  evaluation = evaluate.HeldOut(run, split) if split else None
  active = jax.process_index() == 0
  metrics = Metrics(workdir, step=done, active=active)
  meter = Meter(run, state.params)
  with Progress(total=last, done=done, active=active) as progress:
    for step, batch in enumerate(meter.waiting(batches), start=done + 1):
      batch = run.put(batch, config.batch.rows)
      state, out = train_step.call(state, batch)
      meter.add(out)
      if step == done + 1:
        jax.block_until_ready(out)
        seconds = command.seconds_since_start()
        log.info('first step done %.1f s after the start', seconds)
        metrics.write(step, event='first_step', seconds=seconds)
      if step % config.log.every_steps == 0 or step == last:
        values = meter.read(step)
        metrics.write(step, **values)
        progress.show(step, summary(values))
        if dead := routers.dead_experts(values):
          log.warning('step %d: %s', step, dead)
      progress.advance(step)
      if evaluation and should(step, config.eval.every_steps, last):
        values = evaluation(state.params)
        metrics.write(step, **values)
        log.info('step %d: %s', step, evaluate.summary(values))
        meter.restart()
      if should(step, config.checkpoint.every_steps, last):
        checkpointer.save(state)
        meter.restart()
  metrics.close()
  return state


def should(step: int, every: int, last: int) -> bool:
  """True every `every` steps (0: never) and after the last."""
  return step == last or (every > 0 and step % every == 0)


class Meter:
  """Turns the outputs of steps into the metrics of a log line."""

  def __init__(self, run: Run, params: Any):
    """Measures the peak where it is not known."""
    self._run = run
    self._flops = flops.per_token(run.config, params)
    peak, source = flops.peak(run.mesh.devices.flat[0])
    self._peak = peak * run.mesh.size
    log.info('%s; peak %.3g FLOP/s (%s)', flops.FORMULA, self._peak, source)
    self._outputs = []
    self.restart()

  def restart(self) -> None:
    """Starts the clock again: what was done meanwhile is not training."""
    self._start, self._wait, self._steps = time.perf_counter(), 0.0, 0

  def waiting(self, batches):
    """Passes batches on, and counts the time spent waiting for them."""
    while True:
      start = time.perf_counter()
      batch = next(batches, None)
      self._wait += time.perf_counter() - start
      if batch is None:
        return
      yield batch

  def add(self, output: dict[str, jax.Array]) -> None:
    """Keeps the outputs of one step; does not wait for them."""
    self._outputs.append(output)
    self._steps += 1

  def read(self, step: int) -> dict[str, Any]:
    """The metrics of step `step`, and speeds since the last call.

    Raises:
      RuntimeError: a loss since then is not finite.
    """
    outputs, self._outputs = jax.device_get(self._outputs), []
    first = step - len(outputs) + 1
    for i, output in enumerate(outputs):
      if not math.isfinite(output['loss']):
        raise RuntimeError(
          f'the loss of step {first + i} is {output["loss"]}; the last '
          'checkpoint is from before; lower the learning rate, or look at '
          'the rows of this step'
        )
    config = self._run.config
    batch_tokens = config.batch.rows * config.model.context_length
    seconds = time.perf_counter() - self._start
    rate = self._steps * batch_tokens / seconds
    values = {
      'tokens': step * batch_tokens,
      'loss': float(outputs[-1]['loss']),
      'grad_norm': float(outputs[-1]['grad_norm']),
      'learning_rate': float(self._run.schedule(step - 1)),
      'batch_rows': config.batch.rows,
      'tokens_per_second': rate,
      'data_wait_seconds': self._wait / max(self._steps, 1),
      'step_seconds': seconds / max(self._steps, 1),
      'mfu': flops.mfu(rate, self._flops, self._peak),
      **routers.metrics(config, outputs),
    }
    self.restart()
    return values


def summary(values: dict[str, Any]) -> str:
  """A log line for people."""
  return (
    f'loss {values["loss"]:.3f} | {values["tokens_per_second"]:,.0f} tokens/s'
    f' | MFU {values["mfu"]:.0%}'
  )


def check_same_run(config: Config, workdir: str) -> None:
  """Refuses a workdir that holds a run of another config.

  Raises:
    UsageError: names the fields that differ.
  """
  try:
    with open(os.path.join(workdir, 'config.json'), encoding='utf-8') as f:
      old = config_lib.from_json(f.read())
  except FileNotFoundError:
    return
  new = config_lib.unlocked(config)
  if new.model.vocab_size is None:
    new.model.vocab_size = old.model.vocab_size
  changed = config_lib.differences(old, new)
  if changed:
    raise UsageError(
      f'--workdir={workdir}: holds a run of another config ('
      + '; '.join(changed)
      + '); give the same values, or another --workdir'
    )


def check_prompt(config: Config, tokenizer: Tokenizer) -> None:
  """Checks before training that the sample after it can be drawn.

  Raises:
    UsageError: the prompt is too long, or has unknown characters.
  """
  prompt, context = config.log.sample_prompt, config.model.context_length
  if not prompt:
    return
  try:
    num_tokens = len(tokenizer.encode(prompt))
  except UsageError as e:
    raise UsageError(f'log.sample_prompt={prompt!r}: {e}') from e
  if num_tokens + config.log.sample_tokens > context:
    raise UsageError(
      f'log.sample_prompt={prompt!r}: its {num_tokens} tokens and '
      f'log.sample_tokens={config.log.sample_tokens} do not fit the context '
      f'of {context}; lower log.sample_tokens, or empty log.sample_prompt'
    )


def start_workdir(config: Config, workdir: str, tokenizer: Tokenizer) -> None:
  """Writes the config, and a copy of the tokenizer, once."""
  os.makedirs(workdir, exist_ok=True)
  folder = os.path.join(workdir, 'tokenizer')
  if not os.path.exists(folder):
    shutil.rmtree(folder + '.tmp', ignore_errors=True)
    tokenizer.save(folder + '.tmp')
    os.replace(folder + '.tmp', folder)
  path = os.path.join(workdir, 'config.json')
  write_atomically(path, config_lib.to_json(config))


def sample(
  run: Run, state: TrainState, tokenizer: Tokenizer, workdir: str
) -> None:
  """Continues `log.sample_prompt`, into samples.txt and onto the log."""
  config = run.config
  if not config.log.sample_prompt or not config.log.sample_tokens:
    return
  if jax.process_count() > 1:
    log.info('no sample is drawn where several hosts hold the parameters')
    return
  text = generate.continue_prompt(
    run_lib.Trained(run, state, tokenizer),
    config.log.sample_prompt,
    max_tokens=config.log.sample_tokens,
    temperature=0.8,
    top_k=50,
    seed=config.seed,
  )[0]
  write_atomically(os.path.join(workdir, 'samples.txt'), text + '\n')
  print(text)
