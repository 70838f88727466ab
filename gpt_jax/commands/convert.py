# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Turns Hugging Face checkpoints into workdirs, and workdirs into checkpoints.

  gpt-jax convert --from_hf gpt2 --workdir workdirs/gpt2
  gpt-jax convert --to_hf exported --workdir workdirs/mine
  gpt-jax convert --to_hf generator --workdir workdirs/electra --part generator
  gpt-jax convert --check --to_hf exported --workdir workdirs/mine --text '...'

A checkpoint is a folder with config.json and safetensors files. It becomes a
workdir that `generate` can use, or `fill` where it is an encoder's, with the
tokenizer if the folder has tokenizer.json, vocab.json and merges.txt,
vocab.txt, tokenizer.model or spiece.model; `evaluate` also needs held-out text
in WORKDIR/data, which `prepare` makes with the same tokenizer. A workdir is
exported to the family of models that computes the same, GPT-2 or LLaMA for
instance; of a run with several models it is the run's own, or that of --part.
One that was imported gives back its tensors to the last bit, and the files of
its tokenizer.
"""

import json
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from etils import epath

from gpt_jax import cli, hf, ranges
from gpt_jax import config as config_lib
from gpt_jax.checkpoints import streaming
from gpt_jax.config import defaults
from gpt_jax.data import files, progress
from gpt_jax.data.tokenizers import saved
from gpt_jax.data.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.evaluation import agreement
from gpt_jax.finetuning import heads
from gpt_jax.hf import vocabulary
from gpt_jax.hf.base import choice
from gpt_jax.objectives import choices as objectives
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import imported
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import trained as trained_lib

# Of `hf.heads`, with which a workdir can go on.
_PRETRAINED = ('lm', 'pooled_lm', 'pretraining')

# In a workdir while it is being made.
UNFINISHED = 'unfinished_import'

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
  flags.DEFINE_string(
    'max_shard_size',
    '1GB',
    'Of a file of an export, unless one tensor is larger; so much is in '
    'memory. In bytes, KB, MB or GB.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'part',
    None,
    "With --to_hf: one of config.models, such as ELECTRA's generator, instead "
    "of the run's model.",
    flag_values=values,
  )
  flags.DEFINE_bool(
    'check',
    False,
    'Convert nothing: compare the workdir with the folder on --text.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'text', None, 'Some text to --check, or a file of it.', flag_values=values
  )
  cli.number(
    values,
    'tolerance',
    1e-3,
    'The most that logits may differ in a --check.',
    ranges.NotNegative,
  )


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  cli.check_out_folder(args, 'to_hf')
  if bool(args.from_hf) == bool(args.to_hf):
    raise UsageError('give one of --from_hf and --to_hf; see --help')
  if args.text is not None and not args.check:
    raise UsageError(f'--text={args.text}: is for --check, which is not given')
  if args.part is not None and (args.check or args.from_hf):
    raise UsageError(f'--part={args.part}: is for --to_hf; leave it out')
  if args.check:
    cli.required(args, 'text')
    folder: Any = args.from_hf or args.to_hf
    text: Any = args.text
    agreement.check(
      args.workdir,
      folder,
      text,
      args.tolerance,
      sequence=heads.sequence,
    )
  elif args.from_hf:
    cli.check_out_folder(args, 'workdir')
    from_hf(args.from_hf, args.workdir)
  else:
    shard_bytes = _shard_bytes(args.max_shard_size)
    to_hf(args.workdir, args.to_hf, shard_bytes, args.part)


def _shard_bytes(text: str) -> int:
  """The bytes of '500MB', as Hugging Face writes them.

  Raises:
    UsageError: it is none of these.
  """
  found = re.fullmatch(r'([0-9]{1,15})(KB|MB|GB)?', text.strip())
  if not found or not int(found[1]):
    raise UsageError(
      f'--max_shard_size={text}: must be a number of bytes, or one of KB, MB '
      'or GB, such as 500MB'
    )
  return (
    int(found[1]) * {None: 1, 'KB': 10**3, 'MB': 10**6, 'GB': 10**9}[found[2]]
  )


def from_hf(folder: str, workdir: str) -> None:
  """Makes a workdir of a checkpoint, a tensor at a time.

  Raises:
    UsageError: the checkpoint is no language model that we know, or the
      workdir holds a run.
  """
  _check_empty(workdir)
  source = hf.Source(folder)
  model = source.model
  if model.origin.kind not in _PRETRAINED:
    kind = model.options.get('architectures')[0]
    raise UsageError(
      f'--from_hf={folder}: is a {kind}, and a workdir holds language models '
      'and encoders with the heads of their pre-training; a model with another '
      'head can be fine-tuned, with finetune --init'
    )
  found = vocabulary.read(folder, model.options.get('model_type'))
  name, tokenizer = found or ('none', None)
  config = config_lib.resolve_model(_config(model, name))
  if tokenizer is not None:
    config = config_lib.set_vocab_size(config, tokenizer.vocab_size, name)
  with files.exclusive(workdir, UNFINISHED):
    if tokenizer is not None:
      tokenizer.save(os.path.join(workdir, 'tokenizer'))
    _save_state(config, source, workdir)
    origin = json.dumps(model.origin._asdict(), indent=2) + '\n'
    files.write(workdir, imported.ORIGIN, origin.encode())
    # Without it a folder holds no run.
    files.write(workdir, 'config.json', config_lib.to_json(config).encode())
  log.info('%s: imported, tokenizer %s', workdir, name)
  if tokenizer is None:
    log.warning(
      '%s has neither vocab.json and merges.txt nor vocab.txt nor '
      'tokenizer.model nor spiece.model nor a '
      'tokenizer.json that can be used: put a saved tokenizer into %s before '
      'generating',
      folder,
      os.path.join(workdir, 'tokenizer'),
    )


def to_hf(
  workdir: str,
  folder: str,
  shard_bytes: int = hf.SHARD_BYTES,
  part: str | None = None,
) -> None:
  """Writes the newest checkpoint of a workdir for Hugging Face.

  Args:
    workdir: of the run.
    folder: to write.
    shard_bytes: see `hf.save`.
    part: which of `config.models`; None: the run's own model.

  Raises:
    UsageError: no family computes what the model does.
  """
  if os.path.exists(os.path.join(folder, 'config.json')):
    raise UsageError(f'--to_hf={folder}: holds a model; give a new folder')
  parts = trained_lib.built(workdir)
  if part is not None and part not in parts.config.models:
    known = ', '.join(parts.config.models)
    raise UsageError(
      f'--part={part}: the run has no such model; '
      + (f'one of {known}' if known else 'leave it out')
    )
  path = os.path.join(workdir, 'tokenizer')
  tokenizer, contents = None, {}
  if os.path.isdir(path):
    tokenizer, (_, contents) = tokenizer_lib.load(path), saved.read(path)
  with progress.bar() as report:
    step, arrays = streaming.opened(
      workdir,
      parts_lib.abstract_state(parts),
      at_most=heads.best_step(parts.config, workdir),
      told=_counted(report, 'checked', None),
    )
    needs = objectives.needs(parts.config.objective.name)
    params = needs.trees(hf.nest(arrays))[part or '']
    model, options = imported.model_of(parts, workdir), {}
    if part is not None:
      model = config_lib.transformer(parts.config, part)
    if tokenizer and not isinstance(model, hf.Imported):
      options = _token_ids(tokenizer)
    tuned = heads.exported(
      parts.config,
      params.get('heads'),
      options,
      before=tokenizer.special.prompt_start if tokenizer else (),
    )
    if tuned.heads is not None:
      params['heads'] = tuned.heads
    names = _VOCABULARIES.keys() & contents.keys()
    hf.save(
      folder,
      model,
      params,
      kind=tuned.kind,
      options=tuned.options,
      besides={_VOCABULARIES[name]: contents[name] for name in names},
      shard_bytes=shard_bytes,
      told=_counted(report, 'written', hf.num_bytes(model, params)),
    )
  log.info('%s: exported step %d', folder, step)
  if not names:
    log.warning('Hugging Face has no tokenizer like that of %s', workdir)


def _token_ids(tokenizer: tokenizer_lib.Tokenizer) -> dict[str, int]:
  """What config.json says of the special tokens; an encoder has a [CLS]."""
  first, last = tokenizer.special.cls_id, tokenizer.special.sep_id
  if first is None or last is None:
    eos_id = tokenizer.eos_id
    return {'bos_token_id': eos_id, 'eos_token_id': eos_id}
  pad_id = tokenizer.special.pad_id
  return {'bos_token_id': first, 'eos_token_id': last, 'pad_token_id': pad_id}


def _check_empty(workdir: str) -> None:
  """Refuses a folder that holds a run; empties an unfinished import.

  Raises:
    UsageError: it holds one.
  """
  folder = epath.Path(workdir)
  if (folder / UNFINISHED).exists():
    log.info('%s: an import was stopped; it starts again', workdir)
    for part in ('checkpoints', 'tokenizer'):
      (folder / part).rmtree(missing_ok=True)
  elif any((folder / part).exists() for part in ('config.json', 'checkpoints')):
    raise UsageError(f'--workdir={workdir}: holds a run; give a new folder')


def _config(model: hf.Imported, tokenizer: str) -> config_lib.Config:
  """The default tree with an imported model, for a run that does not train."""
  config: Any = defaults.get_config().unlock()
  config.update_from_flattened_dict(_UNTRAINED)
  for field in hf.transformer_fields():
    config.model[field] = getattr(model, field)
  config.tokenizer.name = tokenizer
  if model.num_encoder_layers:
    # T5's and Switch's: what the decoder starts with follows from it.
    config.objective.name = 'span'
  elif choice(model, 'attention').name == 'bidirectional':
    config.update_from_flattened_dict(_masked(model))
  return config.lock()


def _masked(model: hf.Imported) -> dict[str, str]:
  """How an encoder was trained, as far as its heads tell."""
  kind, label = model.origin.kind, model.family.pair[0]
  pair = 'order' if label == 'sentence_order_label' else 'next'
  objective, rows = {
    'lm': ('masked()', 'full_sentences'),
    # A pooler may be there that no task of its training reads.
    'pooled_lm': ('masked(pooler=True)', 'full_sentences'),
    'pretraining': (f'masked(pair={pair!r})', f'pairs({pair!r})'),
  }[kind]
  return {
    'objective.name': objective,
    'data.rows': rows,
    'data.sentences': 'terminal',
  }


def _save_state(
  config: config_lib.Config, source: hf.Source, workdir: str
) -> None:
  """Writes the checkpoint of step 0."""
  state = parts_lib.abstract_state(parts_lib.build(config))
  assert not jax.tree.leaves(state.opt_state), config.optim.name
  # The fingerprints come first, and are part of the checkpoint.
  stages = iter(('checked', 'written'))
  with progress.bar() as report:

    def fill(to: Any) -> None:
      source.fill(to, _counted(report, next(stages), source.num_bytes))

    state = state._replace(step=jnp.int32(0))
    streaming.write(workdir, state, source.axes, fill)


def _counted(report: progress.Report, stage: str, total: int | None) -> hf.Told:
  """Tells the bar of more bytes."""
  done = 0

  def told(count: int) -> None:
    nonlocal done
    done += count
    report(stage, done, total)

  return told
