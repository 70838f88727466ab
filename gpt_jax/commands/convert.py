# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Turns Hugging Face checkpoints into workdirs, and workdirs into checkpoints.

  gpt-jax convert --from_hf gpt2 --workdir workdirs/gpt2
  gpt-jax convert --to_hf exported --workdir workdirs/mine

A checkpoint is a folder with config.json and safetensors files. It becomes a
workdir that `generate` can use, with the tokenizer if the folder has
tokenizer.json, vocab.json and merges.txt, or tokenizer.model; `evaluate` also
needs held-out text in WORKDIR/data, which `prepare` makes with the same
tokenizer. A workdir is exported to the family of models that computes the same,
GPT-2 or LLaMA for instance; one that was imported gives back its tensors to the
last bit, and the files of its tokenizer.
"""

import json
import os
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

from gpt_jax import cli, hf
from gpt_jax import config as config_lib
from gpt_jax.checkpoints import checkpointer as checkpoint
from gpt_jax.config import defaults
from gpt_jax.data import files, json_file
from gpt_jax.data.tokenizers import saved
from gpt_jax.data.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.hf import vocabulary
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import trained as trained_lib

# What an import leaves in its workdir for an export.
ORIGIN = 'hf.json'

# What an import's config has for a run that does not train; the rest is the
# default.
_UNTRAINED = {
  'optim.name': 'none',
  'optim.clip_norm': 0.0,
  'schedule.num_steps': 1,
  'schedule.name': 'constant(peak=1e-4)',
  'batch.size': 1,
  'batch.micro_rows': 1,
  'checkpoint.every_steps': 1,
  'checkpoint.keep': 1,
  'eval.every_steps': 0,
  'eval.rows': 8,
  'log.every_steps': 1,
  'log.sample_prompt': '',
  'log.sample_tokens': 0,
  **{
    f'watchdog.{phase}_seconds': 0.0
    for phase in ('start', 'compile', 'step', 'evaluation', 'save')
  },
}

# Our saved tokenizers' files under HF's names.
_VOCABULARIES = {
  'vocabulary.json': 'vocab.json',
  'merges.txt': 'merges.txt',
  'sentencepiece.model': 'tokenizer.model',
  'hf_tokenizer.json': 'tokenizer.json',
  **{name: name for name in saved.BESIDE},
}


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  cli.define_workdir(values, 'Folder of a run, to make or to export.')
  flags.DEFINE_string(
    'from_hf', None, 'Checkpoint to import.', flag_values=values
  )
  flags.DEFINE_string('to_hf', None, 'Folder to export to.', flag_values=values)


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  cli.check_out_folder(args, 'to_hf')
  if bool(args.from_hf) == bool(args.to_hf):
    raise UsageError('give one of --from_hf and --to_hf; see --help')
  if args.from_hf:
    cli.check_out_folder(args, 'workdir')
    from_hf(args.from_hf, args.workdir)
  else:
    to_hf(args.workdir, args.to_hf)


def from_hf(folder: str, workdir: str) -> None:
  """Makes a workdir of a checkpoint.

  Raises:
    UsageError: the checkpoint is no language model that we know, or the
      workdir holds a run.
  """
  parts = ('config.json', 'checkpoints')
  if any(os.path.exists(os.path.join(workdir, part)) for part in parts):
    raise UsageError(f'--workdir={workdir}: holds a run; give a new folder')
  model, params = hf.load(folder)
  if model.origin.kind != 'lm':
    kind = model.options.get('architectures')[0]
    raise UsageError(
      f'--from_hf={folder}: is a {kind}, and a workdir holds language models'
    )
  found = vocabulary.read(folder, model.options.get('model_type'))
  name, tokenizer = found or ('none', None)
  config = config_lib.resolve_model(_config(model, name))
  if tokenizer is not None:
    config = config_lib.set_vocab_size(config, tokenizer.vocab_size, name)
    tokenizer.save(os.path.join(workdir, 'tokenizer'))
  _save_state(config, params, workdir)
  origin = json.dumps(model.origin._asdict(), indent=2) + '\n'
  files.write(workdir, ORIGIN, origin.encode())
  files.write(workdir, 'config.json', config_lib.to_json(config).encode())
  log.info('%s: imported, tokenizer %s', workdir, name)
  if tokenizer is None:
    log.warning(
      '%s has neither vocab.json and merges.txt nor tokenizer.model nor a '
      'tokenizer.json that can be used: put a saved tokenizer into %s before '
      'generating',
      folder,
      os.path.join(workdir, 'tokenizer'),
    )


def to_hf(workdir: str, folder: str) -> None:
  """Writes the newest checkpoint of a workdir for Hugging Face.

  Raises:
    UsageError: no family computes what the model does.
  """
  if os.path.exists(os.path.join(folder, 'config.json')):
    raise UsageError(f'--to_hf={folder}: holds a model; give a new folder')
  parts, state = trained_lib.restore(workdir)
  model, options = parts.model, {}
  origin = files.read(workdir, ORIGIN)
  if origin is not None:
    known = json_file.parse(
      origin,
      os.path.join(workdir, ORIGIN),
      remedy='convert the checkpoint again with --from_hf',
      needs=('config', 'kind', 'names'),
    )
    known['names'] = tuple(known['names'])
    model = hf.Imported(**parts.config.model, origin=hf.Origin(**known))
  contents = {}
  if os.path.isdir(os.path.join(workdir, 'tokenizer')):
    path = os.path.join(workdir, 'tokenizer')
    _, contents = saved.read(path)
    if origin is None:
      eos_id = tokenizer_lib.load(path).eos_id
      options = {'bos_token_id': eos_id, 'eos_token_id': eos_id}
  hf.save(folder, model, jax.device_get(state.eval_params), options=options)
  names = _VOCABULARIES.keys() & contents.keys()
  written = {_VOCABULARIES[name]: contents[name] for name in names}
  for name, data in written.items():
    files.write(folder, name, data)
  log.info('%s: exported step %d', folder, int(state.step))
  if not written:
    log.warning('Hugging Face has no tokenizer like that of %s', workdir)


def _config(model: hf.Imported, tokenizer: str) -> config_lib.Config:
  """The default tree with an imported model, for a run that does not train."""
  config: Any = defaults.get_config().unlock()
  config.update_from_flattened_dict(_UNTRAINED)
  for field in hf.transformer_fields():
    config.model[field] = getattr(model, field)
  config.tokenizer.name = tokenizer
  return config.lock()


def _save_state(config: config_lib.Config, params: Any, workdir: str) -> None:
  """Writes the checkpoint of step 0."""
  parts = parts_lib.build(config)
  params = jax.device_put(params, parts.shardings.params)
  opt_state = jax.jit(
    parts.optimizer.init, out_shardings=parts.shardings.opt_state
  )(params)
  step = jax.device_put(jnp.int32(0), parts.shardings.step)
  checkpointer = checkpoint.Checkpointer(workdir)
  checkpointer.finish(TrainState(step, params, opt_state))
