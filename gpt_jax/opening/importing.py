# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Imports a Hugging Face checkpoint into a workdir, one tensor at a time."""

import json
import os
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from gpt_jax import hf
from gpt_jax.core import config as config_lib
from gpt_jax.core.config import defaults
from gpt_jax.core.files import files, progress
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import special
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.parts import Parts
from gpt_jax.core.training.workdir import ORIGIN
from gpt_jax.hf import vocabulary
from gpt_jax.hf.base import choice
from gpt_jax.hf_tokenizers import generation as generation_lib
from gpt_jax.hf_tokenizers import special_files
from gpt_jax.opening import streaming

# Imported workdirs: what an export needs to know of their origin.


# Tensors that transformers does not use either.
UNREAD = 'unread.safetensors'


def model_of(parts: Parts, workdir: str) -> Transformer:
  """The model of a workdir, with its origin where it was imported."""
  origin = files.read(workdir, ORIGIN)
  if origin is None:
    return parts.model
  path, remedy = os.path.join(workdir, ORIGIN), 'convert the checkpoint again with --from_hf'
  fields = files.parse(origin, path, remedy=remedy, needs=('config', 'kind', 'names'))
  fields = files.unsealed(fields, path, remedy=remedy)
  fields['names'] = tuple(fields['names'])
  fields.pop('repository', None)  # for who reads the file
  return hf.imported(parts.config.model, hf.ExportOrigin(**fields))


# The kinds of `hf.heads` that a workdir can hold.
_PRETRAINED = ('lm', 'pooled_lm', 'pretraining')

# Marks a workdir whose import is not complete.
UNFINISHED = 'unfinished_import'

# Fields of an import's config that differ from the defaults, since it is not
# trained.
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
    f'watchdog.{phase}_seconds': 0.0 for phase in ('start', 'compile', 'step', 'evaluation', 'save')
  },
}


def from_hf(folder: str, workdir: str, repository: str = '') -> None:
  """Imports a Hugging Face folder into a workdir, one tensor at a time.

  An adapter in PEFT's format is merged into its base.

  Args:
    folder: to import.
    workdir: to make.
    repository: of the Hub that the folder is of, for the record, with its commit.
  """
  check_empty(workdir)
  source = hf.HeaderSource(folder)
  model = source.model
  _check_kind(model, f'--from_hf={folder}', 'a workdir holds')
  found = vocabulary.of_checkpoint(folder, model.options.get('model_type'))
  name, tokenizer = found or ('none', None)
  generation, file = special_files.generation(source.folder)
  config = config_lib.resolve_model(_config(model, name, generation, file))
  if tokenizer is not None:
    config = config_lib.set_vocab_size(config, tokenizer.vocab_size, name)
  with files.exclusive(workdir, UNFINISHED):
    if tokenizer is not None:
      tokenizer.save(os.path.join(workdir, 'tokenizer'))
    elif file == special.GENERATION and generation:  # for an export
      text = json.dumps(generation, indent=2) + '\n'
      files.write(workdir, file, text.encode())
    _save_state(config, source, workdir)
    if source.unread:
      files.write(workdir, UNREAD, source.unread_file())
    known = model.origin._asdict() | ({'repository': repository} if repository else {})
    files.write(workdir, ORIGIN, files.sealed(known).encode())
    # Written last: without config.json a folder holds no run.
    files.write(workdir, 'config.json', files.sealed(config.to_dict()).encode())
  log.info('%s: imported, tokenizer %s', workdir, name)
  if source.unread:
    log.info(
      '%s: the model does not use these tensors, so they are kept only for an export',
      ', '.join(source.unread),
    )
  if drawing := generation_lib.recommended(generation):
    log.info(
      '%s recommends %s, which generate and serve take as flags and fields of requests',
      file,
      ', '.join(f'{n}={value}' for n, value in drawing.items()),
    )
  if tokenizer is None:
    log.warning(
      '%s has neither vocab.json and merges.txt nor vocab.txt nor '
      'tokenizer.model nor spiece.model nor a '
      'tokenizer.json that can be used: put a saved tokenizer into %s before '
      'generating',
      folder,
      os.path.join(workdir, 'tokenizer'),
    )


def _check_kind(model: hf.Imported, given: str, does: str) -> None:
  """Refuses a model that lacks the head of its pre-training."""
  kinds = (*_PRETRAINED, *['body'] * model.family.scoring_body)
  if model.origin.kind not in kinds:
    kind = model.options.get('architectures')[0]
    raise UsageError(
      f'{given}: is a {kind}, and {does} language models and encoders with the '
      'heads of their pre-training; a model with another head can be '
      'fine-tuned, with finetune --init'
    )


def check_empty(workdir: str) -> None:
  """Refuses a folder that holds a run; empties an unfinished import."""
  folder = epath.Path(workdir)
  if (folder / UNFINISHED).exists():
    log.info('%s: an import was stopped; it starts again', workdir)
    for part in ('checkpoints', 'tokenizer'):
      (folder / part).rmtree(missing_ok=True)
  elif any((folder / part).exists() for part in ('config.json', 'checkpoints')):
    raise UsageError(f'--workdir={workdir}: holds a run; give a new folder')


def _config(
  model: hf.Imported, tokenizer: str, generation: dict[str, Any], file: str
) -> config_lib.Config:
  """The default config with the imported model, for a run without training."""
  config: Any = defaults.get_config().unlock()
  config.update_from_flattened_dict(_UNTRAINED)
  for field in hf.transformer_fields():
    config.model[field] = getattr(model, field)
  config.tokenizer.name = tokenizer
  config.update_from_flattened_dict(_objective(model, generation, file))
  return config.lock()


def pretraining(source: hf.HeaderSource, given: str) -> dict[str, str]:
  """The fields that train a checkpoint further; `given` is for errors."""
  _check_kind(source.model, given, 'continued pre-training is of')
  return _objective(source.model, *special_files.generation(source.folder))


def _objective(model: hf.Imported, generation: dict[str, Any], file: str) -> dict[str, str]:
  """The fields that differ from the defaults, of what the model predicts.

  Args:
    generation: of `special_files.generation`.
    file: that holds it, for errors.
  """
  if model.num_encoder_layers:
    return _seq2seq(model, generation, file)
  return {} if ModelChoices.of(model).causal else _encoder(model)


def _seq2seq(model: hf.Imported, generation: dict[str, Any], file: str) -> dict[str, str]:
  """The objective of an encoder-decoder: keeps its decoder's start token."""
  options, name = model.options, 'decoder_start_token_id'
  start = options.get(name, generation.get(name))
  if generation.get(name, start) != start:
    raise options.fail(
      name, f'{file} says {generation[name]}; a decoder starts with one token: make both the same'
    )
  # mBART's decoder starts with the last token of its text.
  found = 'eos' if model.family.rolled else ''
  for role in ('pad', 'eos'):
    if not found and start == options.get(f'{role}_token_id', -1):
      found = role
  if not found:
    raise options.fail(
      name, 'is neither pad_token_id nor eos_token_id, with which our decoders start'
    )
  return {'objective.name': f'seq2seq(start={found!r})', 'data.rows': 'parallel'}


def _encoder(model: hf.Imported) -> dict[str, str]:
  """The objective of an encoder, inferred from its heads."""
  if choice(model, 'input').kwargs.get('queries'):
    return {'objective.name': 'permuted()', 'data.rows': 'stream'}
  if ModelChoices.of(model).separate:
    return {'objective.name': 'bilm(negatives=0)', 'data.rows': 'stream'}
  kind, label = model.origin.kind, model.family.pair[0]
  pair = 'order' if label == 'sentence_order_label' else 'next'
  objective, rows = {
    'lm': ('masked()', 'full_sentences'),
    # A pooler that no pre-training task reads.
    'pooled_lm': ('masked(pooler=True)', 'full_sentences'),
    'pretraining': (f'masked(pair={pair!r})', f'pairs({pair!r})'),
  }[kind]
  return {'objective.name': objective, 'data.rows': rows, 'data.sentences': 'terminal'}


def _save_state(config: config_lib.Config, source: hf.HeaderSource, workdir: str) -> None:
  """Writes the checkpoint of step 0."""
  state = parts_lib.abstract_state(parts_lib.build(config))
  assert not jax.tree.leaves(state.opt_state), config.optim.name
  # The first pass computes the fingerprints, which the checkpoint holds.
  stages = iter(('checked', 'written'))
  with progress.bar() as report:

    def fill(to: Any) -> None:
      source.fill(to, progress.counted(report, next(stages), source.num_bytes))

    state = state._replace(step=jnp.int32(0))
    streaming.write(workdir, state, source.axes, fill)
