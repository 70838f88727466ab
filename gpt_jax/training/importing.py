# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Imports a Hugging Face checkpoint into a workdir, one tensor at a time."""

import json
import os
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from gpt_jax import config as config_lib
from gpt_jax import hf
from gpt_jax.checkpoints import streaming
from gpt_jax.config import defaults
from gpt_jax.files import files, progress
from gpt_jax.hf import vocabulary
from gpt_jax.hf.base import choice
from gpt_jax.nn.build import ModelChoices
from gpt_jax.nn.transformer import Transformer
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import constraints, special
from gpt_jax.training import parts as parts_lib
from gpt_jax.training.parts import Parts

# Imported workdirs: what an export needs to know of their origin.


ORIGIN = 'hf.json'


def is_import(workdir: str) -> bool:
  """Whether the model of a workdir was imported."""
  return files.read(workdir, ORIGIN) is not None


def model_of(parts: Parts, workdir: str) -> Transformer:
  """The model of a workdir, with its origin where it was imported."""
  origin = files.read(workdir, ORIGIN)
  if origin is None:
    return parts.model
  known = files.parse(
    origin,
    os.path.join(workdir, ORIGIN),
    remedy='convert the checkpoint again with --from_hf',
    needs=('config', 'kind', 'names'),
  )
  known['names'] = tuple(known['names'])
  return hf.Imported(**parts.config.model, origin=hf.Origin(**known))


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
    f'watchdog.{phase}_seconds': 0.0
    for phase in ('start', 'compile', 'step', 'evaluation', 'save')
  },
}


def from_hf(folder: str, workdir: str) -> None:
  """Imports a Hugging Face folder into a workdir, one tensor at a time.

  An adapter in PEFT's format is merged into its base.
  """
  _check_empty(workdir)
  source = hf.Source(folder)
  model = source.model
  kinds = (*_PRETRAINED, *['body'] * model.family.scoring_body)
  if model.origin.kind not in kinds:
    kind = model.options.get('architectures')[0]
    raise UsageError(
      f'--from_hf={folder}: is a {kind}, and a workdir holds language models '
      'and encoders with the heads of their pre-training; a model with another '
      'head can be fine-tuned, with finetune --init'
    )
  found = vocabulary.read(source.folder, model.options.get('model_type'))
  name, tokenizer = found or ('none', None)
  generation, file = special.generation(source.folder)
  config = config_lib.resolve_model(_config(model, name, generation, file))
  if tokenizer is not None:
    config = config_lib.set_vocab_size(config, tokenizer.vocab_size, name)
  with files.exclusive(workdir, UNFINISHED):
    if tokenizer is not None:
      tokenizer.save(os.path.join(workdir, 'tokenizer'))
    _save_state(config, source, workdir)
    origin = json.dumps(model.origin._asdict(), indent=2) + '\n'
    files.write(workdir, ORIGIN, origin.encode())
    # Written last: without config.json a folder holds no run.
    files.write(workdir, 'config.json', config_lib.to_json(config).encode())
  log.info('%s: imported, tokenizer %s', workdir, name)
  if drawing := constraints.recommended(generation):
    log.info(
      '%s recommends %s, which generate and serve take as flags and fields of '
      'requests',
      *(file, ', '.join(f'{n}={value}' for n, value in drawing.items())),
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


def _check_empty(workdir: str) -> None:
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
  if model.num_encoder_layers:
    config.update_from_flattened_dict(_seq2seq(model, generation, file))
  elif not ModelChoices.of(model).causal:
    config.update_from_flattened_dict(_encoder(model))
  return config.lock()


def _seq2seq(
  model: hf.Imported, generation: dict[str, Any], file: str
) -> dict[str, str]:
  """The objective of an encoder-decoder: keeps its decoder's start token.

  Args:
    generation: of `special.generation`.
    file: that holds it, for errors.
  """
  options, name = model.options, 'decoder_start_token_id'
  start = options.get(name, generation.get(name))
  if generation.get(name, start) != start:
    raise options.fail(
      name,
      f'{file} says {generation[name]}; a decoder starts with one token: make '
      'both the same',
    )
  # mBART's decoder starts with the last token of its text.
  found = 'eos' if model.family.rolled else ''
  for role in ('pad', 'eos'):
    if not found and start == options.get(f'{role}_token_id', -1):
      found = role
  if not found:
    raise options.fail(
      name,
      'is neither pad_token_id nor eos_token_id, with which our decoders start',
    )
  return {
    'objective.name': f'seq2seq(start={found!r})',
    'data.rows': 'parallel',
  }


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
  # The first pass computes the fingerprints, which the checkpoint holds.
  stages = iter(('checked', 'written'))
  with progress.bar() as report:

    def fill(to: Any) -> None:
      source.fill(to, progress.counted(report, next(stages), source.num_bytes))

    state = state._replace(step=jnp.int32(0))
    streaming.write(workdir, state, source.axes, fill)
