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
import functools
import os
import time

import jax
from absl import flags

from gpt_jax import cli
from gpt_jax import config as config_lib
from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.commands import generate, plot
from gpt_jax.config import Config, loading
from gpt_jax.data import eval_sets, prepare
from gpt_jax.data.tokenizers.tokenizer import load as load_tokenizer
from gpt_jax.evaluation import in_loop
from gpt_jax.plots import routers as plot_routers
from gpt_jax.runtime import hosts, phases, preemption, watchdog
from gpt_jax.runtime.log import log, seconds_since_start
from gpt_jax.runtime.preemption import Preempted
from gpt_jax.training import metrics as metrics_lib
from gpt_jax.training import rewind, routers, spikes
from gpt_jax.training import run as run_lib
from gpt_jax.training import tools as tools_lib
from gpt_jax.training import workdir as workdir_lib
from gpt_jax.training.held_out import HeldOut
from gpt_jax.training.job import Job, Past, gave_up
from gpt_jax.training.meter import summary
from gpt_jax.training.metrics import Metrics, Progress, write_atomically
from gpt_jax.training.run import Run
from gpt_jax.training.state import TrainState
from gpt_jax.training.store_data import StoreData


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  loading.define(values)
  cli.define_workdir(values, 'Folder of the run; made when missing.')
  flags.DEFINE_bool(
    'distributed',
    False,
    'Several hosts: give it on each. Cloud TPU hosts find each other; others '
    'set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.',
    flag_values=values,
  )


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config', 'workdir')
  config = config_lib.resolve(args.config)
  if args.distributed:
    hosts.initialize(**config.hosts)
  with hosts.together():
    train(config, args.workdir)


def train(config: Config, workdir: str) -> None:
  """Trains to the last step of the schedule; see the module's docstring."""
  phases.enter('start')
  config = config_lib.resolve(config)
  stacks = os.path.join(workdir, f'stacks_{hosts.index()}.txt')
  with watchdog.watching(watchdog.deadlines(config), stacks):
    job, state = start(config, workdir)
    state = fit(job, state)
    phases.enter('end')
    preemption.check()
    if jax.process_index() == 0:
      log.info('drew %s', plot.loss_curves([workdir]))
      if path := plot_routers.router_curves(workdir):
        log.info('drew %s', path)
    sample(job.run, state, workdir)


def start(config: Config, workdir: str) -> tuple[Job, TrainState]:
  """Opens data, model and checkpoints; gives the newest state, or the first."""
  workdir_lib.check_same_run(config, workdir)
  run_lib.check_devices(config)
  with workdir_lib.untouched_if_refused(workdir):
    with phases.during('prepare'):
      store = hosts.first_process_first(
        lambda: prepare.ensure(config, run_lib.data_folder(config, workdir)),
        'prepare',
      )
    tokenizer = store.tokenizer()
    config = config_lib.set_vocab_size(
      config, tokenizer.vocab_size, config.tokenizer.name
    )
    workdir_lib.check_prompt(config, tokenizer)
    length = config.model.context_length
    data = StoreData(store, length=length, seed=config.seed)
    sets = eval_sets.held_out(config, store)
    tasks = in_loop.tasks(config)
    run = run_lib.build(config)
    checkpointer = Checkpointer(
      workdir,
      keep=config.checkpoint.keep,
      every_steps=config.checkpoint.every_steps,
      keep_every_steps=config.checkpoint.keep_every_steps,
      keep_best=config.checkpoint.keep_best,
    )
    job = Job(run, workdir, data, checkpointer)
    if sets:
      job = job._replace(
        evaluation=functools.partial(
          in_loop.HeldOutAndTasks,
          sets=sets,
          tasks=tasks,
          tokenizer=tokenizer,
        )
        if tasks
        else functools.partial(HeldOut, sets=sets),
        # The split of the corpus comes first, where there is one.
        criterion=f'eval/{next(iter(sets))}/loss',
      )
    rewind.finish(job)
    state = checkpointer.restore(run_lib.abstract_state(run))
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
  if state is None:
    state = run_lib.init_state(run)
  elif int(state.step) < config.schedule.num_steps:
    log.info('resuming after step %d', int(state.step))
  else:
    log.info('this run is complete: %d steps are done', int(state.step))
  return job, state


def fit(job: Job, state: TrainState) -> TrainState:
  """Takes the run from `state` to its end, and saves.

  Raises:
    Preempted: it was told to stop, and has saved.
    Spike: the run met one, and `optim.on_spike` is to stop there.
  """
  config, done = job.run.config, int(state.step)
  past = job.past(done)
  owed = job.evaluation and not past.evaluated(done)
  over = gave_up(past.held_out, job.patience)
  if (done >= config.schedule.num_steps or over) and not owed:
    job.checkpointer.close()
    return state
  if state.ema is not None:
    log.info(
      'evaluating and sampling the average of the weights, optim.ema=%s',
      config.optim.ema,
    )
  for step, loss in past.held_out:
    job.checkpointer.evaluated(step, loss)
  metrics = job.open_metrics(done)
  with phases.during('compile'):
    tools = tools_lib.prepare(job, state, metrics)
  while True:
    with contextlib.closing(metrics):
      try:
        return loop(job, tools, metrics, past, state)
      except spikes.Spike as e:
        spike = e
        metrics.write(spike.step, event='spike')
    started = time.perf_counter()
    state = rewind.rewind(job, spike)
    past = job.past(int(state.step))
    seconds = time.perf_counter() - started
    metrics = job.open_metrics(int(state.step), rewound=1, seconds=seconds)
    with phases.during('compile'):
      tools_lib.compile_stages(
        job.run, int(state.step), tools.train_steps, metrics
      )


def loop(
  job: Job,
  tools: tools_lib.Tools,
  metrics: Metrics,
  past: Past,
  state: TrainState,
) -> TrainState:
  """The training loop, from the state's step to the last."""
  run, config = job.run, job.run.config
  done, last = int(state.step), config.schedule.num_steps
  meter, saver = tools.meter, tools.saver
  meter.resume(past.unlogged)
  guard = spikes.Guard(run.spike_policy, past.losses, past.skipped)
  held_out = [*past.held_out]
  rewind.log_events(job, metrics, done)

  def evaluated(step: int) -> bool:
    """Evaluates where it is due; False if it was told to stop."""
    if not tools.evaluation or not should(step, config.eval.every_steps, last):
      return True
    started = time.perf_counter()
    with phases.during('evaluation'):
      values = tools.evaluation(state.eval_params, stop=preemption.reached)
    if values is None:
      return False
    seconds = time.perf_counter() - started
    metrics.write(step, **values, eval_seconds=seconds)
    judged = job.judged(values)
    assert judged is not None
    held_out.append((step, judged))
    job.checkpointer.evaluated(step, judged)
    log.info('step %d: %s', step, tools.evaluation.summary(values))
    meter.restart()
    return True

  # The first step may still compile, and there is nothing new to save.
  phases.enter('compile')
  with (
    contextlib.closing(job.batches(done)) as batches,
    Progress(total=last, done=done, active=job.active) as progress,
  ):
    # What an interruption left undone.
    if done and not past.evaluated(done) and not evaluated(done):
      raise Preempted('preempted while evaluating; start again to continue')
    for step, batch in enumerate(meter.waiting(batches), start=done + 1):
      rows = run.ramp.rows(step - 1)
      state, out = tools.train_steps[rows].call(state, run.put(batch, rows))
      meter.add(out)
      if meter.taken == 1:
        jax.block_until_ready(out)
        seconds = seconds_since_start()
        log.info('first step done %.1f s after the start', seconds)
        metrics.write(step, event='first_step', seconds=seconds)
      phases.enter('step')
      saver.poll()
      stop = preemption.reached()
      log_due = step % config.log.every_steps == 0 or step == last
      save_due = should(step, config.checkpoint.every_steps, last)
      save_due = save_due or saver.retry_due()
      eval_due = should(step, config.eval.every_steps, last)
      # Each of those may be the last.
      log_due = log_due or (eval_due and job.patience > 0)
      if log_due or save_due or eval_due or stop:
        for skipped in guard.check(step, meter.fetch()):
          rewind.log_skipped(job, metrics, *skipped)
      if log_due:
        values = meter.read(step)
        epochs = job.data.epochs(run.ramp.offset(step))
        metrics.write(step, **metrics_lib.finite(values), **epochs)
        guard.logged(values['loss'])
        progress.show(step, summary(values))
        if dead := routers.dead_experts(values):
          log.warning('step %d: %s', step, dead)
      progress.advance(step)
      stop = stop or not evaluated(step)
      over = gave_up(held_out, job.patience)
      if save_due or stop or over:
        spikes.check_state(step, state, out)
        if unlogged := meter.unlogged():
          metrics.write(step, event='unlogged', routers=unlogged)
        metrics.sync()
        seconds = saver.save(state)
        metrics.write(step, event='saved', seconds=seconds)
        meter.restart()
      if stop:
        seconds = saver.finish(state, preempted=True)
        metrics.write(step, event='saved', seconds=seconds)
        raise Preempted(
          f'preempted; saved step {step} of {last} in {seconds:.1f} s; start '
          'again to continue'
        )
      if over:
        log.info(
          'step %d: ending early, %d evaluations were not better than one '
          'before',
          *(step, job.patience),
        )
        break
    seconds = saver.finish(state)
    metrics.write(int(state.step), event='saved', seconds=seconds)
  return state


def should(step: int, every: int, last: int) -> bool:
  """True every `every` steps (0: never) and after the last."""
  return step == last or (every > 0 and step % every == 0)


def sample(run: Run, state: TrainState, workdir: str) -> None:
  """Continues `log.sample_prompt`, into samples.txt and onto the log."""
  config = run.config
  if not config.log.sample_prompt or not config.log.sample_tokens:
    return
  if jax.process_count() > 1:
    log.info('no sample is drawn where several hosts hold the parameters')
    return
  tokenizer = load_tokenizer(os.path.join(workdir, 'tokenizer'))
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
