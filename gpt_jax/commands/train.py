# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Pre-trains a model, or continues a run where it stopped.

  gpt-jax train --config configs/smoke.py --workdir workdirs/smoke
  gpt-jax train --config configs/gpt2.py:medium --config.batch.size=64 \
    --workdir W

Prepares the data if the token store is missing. The same command resumes from
the newest checkpoint, and ends with the same weights as a run that was never
stopped. W then holds config.json, metrics.jsonl, checkpoints/, tokenizer/,
data/, loss.png, samples.txt and tensorboard/.
"""

import os

from gpt_jax import cli
from gpt_jax import config as config_lib
from gpt_jax.config import Config
from gpt_jax.decoding.files import Prompt
from gpt_jax.decoding.settings import Sampler
from gpt_jax.files.buckets import write_atomically
from gpt_jax.flags import Flags
from gpt_jax.runtime import preemption, watchdog
from gpt_jax.runtime.log import log
from gpt_jax.tokenizers.tokenizer import load as load_tokenizer

with cli.lazy_imports():
  import jax

  from gpt_jax import sharding
  from gpt_jax.decoding import programs, texts
  from gpt_jax.evaluation import in_loop
  from gpt_jax.optim import train_state
  from gpt_jax.plots import runs
  from gpt_jax.runtime import hosts
  from gpt_jax.training import loop, models, run
  from gpt_jax.training import parts as parts_lib
  from gpt_jax.training import workdir as workdir_lib


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  flags.workdir('Folder of the run; made when missing.')
  flags.distributed()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config', 'workdir')
  cli.check_out_folder(args, 'workdir')
  config = models.described(args.config, args.workdir)
  if args.distributed:
    hosts.initialize(**config_lib.resolve(config).hosts)
  with hosts.together():
    train(config, args.workdir)


def train(config: Config, workdir: str) -> None:
  """Trains to the last step of the schedule; `config` need not be resolved."""
  watchdog.enter('start')
  config = config_lib.resolve(config)
  stacks = os.path.join(workdir, f'stacks_{hosts.index()}.txt')
  with (
    workdir_lib.locked(workdir),
    watchdog.watching(watchdog.deadlines(config), stacks),
  ):
    training, state = run.Run.open(
      config, workdir, in_loop.evaluation(config, workdir)
    )
    with runs.drawn_when_stopped(workdir, config.checkpoint.grace_seconds):
      state = loop.fit(training, state)
    watchdog.enter('end')
    preemption.check()
    if jax.process_index() == 0:
      if path := runs.loss_curves([workdir]):
        log.info('drew %s', path)
      if path := runs.router_curves(workdir):
        log.info('drew %s', path)
    sample(training.parts, state, workdir)


def sample(
  parts: 'parts_lib.Parts', state: 'train_state.TrainState', workdir: str
) -> None:
  """Continues `log.sample_prompt`, into samples.txt and onto the log."""
  config = parts.config
  if not workdir_lib.draws_sample(config):
    return
  if jax.process_count() > 1:
    log.info('no sample is drawn where several hosts hold the parameters')
    return
  tokenizer = load_tokenizer(os.path.join(workdir, 'tokenizer'))
  options = texts.Options(
    max_tokens=config.log.sample_tokens,
    sampler=Sampler(temperature=0.8, top_k=50),
    seed=config.seed,
  )
  with sharding.use(parts.mesh, parts.rules):
    decoder = programs.Decoder.of(parts.model, state.eval_params, tokenizer)
    model = texts.TextGenerator(decoder, tokenizer, options, rows=1)
    prompt = Prompt('log.sample_prompt', config.log.sample_prompt)
    request, _ = model.request(prompt)
    ((_, (sample,)),) = model.complete([request])
    text = tokenizer.decode(request.ids) + sample.text
  write_atomically(os.path.join(workdir, 'samples.txt'), text + '\n')
  print(text)
