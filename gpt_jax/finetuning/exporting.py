# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes a workdir as a checkpoint of Hugging Face, fine-tuned heads too."""

import json
import os
from typing import Any

import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import hf
from gpt_jax.checkpoints import streaming
from gpt_jax.files import progress
from gpt_jax.finetuning import fields, heads, sequences
from gpt_jax.hf.base import choice
from gpt_jax.nn.pattern import is_causal
from gpt_jax.objectives import choices as objectives
from gpt_jax.rows import sides
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import constraints, exported, saved
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokenizers.special import BESIDE, SPECIAL, Special
from gpt_jax.training import importing
from gpt_jax.training import models as trained_lib
from gpt_jax.training import parts as parts_lib

# What an import's saved tokenizer has, under HF's names.
_VOCABULARIES = {
  'vocabulary.json': 'vocab.json',
  'merges.txt': 'merges.txt',
  'sentencepiece.model': 'tokenizer.model',
  'hf_tokenizer.json': 'tokenizer.json',
  **{name: name for name in BESIDE},
}


def to_hf(
  workdir: str,
  folder: str,
  shard_bytes: int = hf.SHARD_BYTES,
  part: str | None = None,
  *,
  with_tokenizer: bool = True,
) -> None:
  """Writes the newest checkpoint of a workdir for Hugging Face.

  Args:
    workdir: of the run.
    folder: to write.
    shard_bytes: see `hf.save`.
    part: which of `config.models`; None: the run's own model.
    with_tokenizer: whether AutoTokenizer is to read what the run's does.
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
  tokenizer, vocabulary = None, {}
  if os.path.isdir(path):
    tokenizer = tokenizer_lib.load(path)
    if with_tokenizer:
      vocabulary = _vocabulary(parts.config, tokenizer, path)
  needs = objectives.needs(parts.config.objective.name)
  with progress.bar() as report:
    step, arrays = streaming.opened(
      workdir,
      parts_lib.abstract_state(parts),
      at_most=heads.best_step(parts.config, workdir),
      told=progress.counted(report, 'checked', None),
    )
    params = needs.merged(hf.nest(arrays), _sum)
    params = needs.trees(params)[part or '']
    model, options = importing.model_of(parts, workdir), {}
    if part is not None:
      model = config_lib.transformer(parts.config, part)
    if tokenizer and not isinstance(model, hf.Imported):
      options = _token_ids(parts.config, tokenizer)
    tuned = heads.exported(
      parts.config,
      params.get('heads'),
      options,
      before=tokenizer.special.prompt_start if tokenizer else (),
    )
    if tuned.heads is not None:
      params['heads'] = tuned.heads
    beside = vocabulary
    if tokenizer and not isinstance(model, hf.Imported):
      beside = _generation(tokenizer, tuned.options) | beside
    hf.save(
      folder,
      model,
      params,
      kind=tuned.kind,
      options=tuned.options,
      besides=beside,
      shard_bytes=shard_bytes,
      told=progress.counted(report, 'written', hf.num_bytes(model, params)),
    )
  log.info('%s: exported step %d', folder, step)
  if not vocabulary:
    log.warning('%s: has no tokenizer', folder)


def _sum(one: Any, other: Any) -> np.ndarray:
  """Of two arrays on disk."""
  return np.asarray(one) + np.asarray(other)


def _generation(
  tokenizer: tokenizer_lib.Tokenizer, options: dict[str, Any]
) -> dict[str, bytes]:
  """generation_config.json where the run's import had rules and no such file.

  Args:
    tokenizer: of the run.
    options: of config.json, with the ids of special tokens.
  """
  rules = constraints.options(tokenizer.special.constraints)
  if not rules:
    return {}
  ids = {n: i for n, i in options.items() if n.endswith('_token_id')}
  text = json.dumps({**ids, **rules}, indent=2) + '\n'
  return {'generation_config.json': text.encode()}


def _vocabulary(
  config: config_lib.Config, tokenizer: tokenizer_lib.Tokenizer, path: str
) -> dict[str, bytes]:
  """The files of the tokenizer that is saved at `path`."""
  _, contents = saved.read(path)
  if SPECIAL in contents:  # an import's, given back
    names = _VOCABULARIES.keys() & contents.keys()
    return {_VOCABULARIES[name]: contents[name] for name in names}
  needs = objectives.needs(config.objective.name)
  sentinels = needs.sentinels(config.model.context_length)
  ids = _token_ids(config, tokenizer)
  roles = {
    f'{role}_token': ids[f'{role}_token_id']
    for role in ('bos', 'eos', 'pad')
    if f'{role}_token_id' in ids
  }
  special = tokenizer.special
  if not _is_decoder(config):
    more = ('cls', special.cls_id), ('sep', special.sep_id)
    more = (*more, ('mask', special.mask_id))
    roles |= {f'{role}_token': i for role, i in more if i is not None}
  roles.setdefault('pad_token', special.pad_id)
  try:
    files = exported.files(
      tokenizer,
      _template(config, special),
      roles,
      names='mask' in needs.tokens or bool(sentinels),
    )
  except UsageError as e:
    raise UsageError(
      f'tokenizer.name={config.tokenizer.name!r}: {e}; give '
      '--tokenizer=false to export the model alone'
    ) from e
  if texts := exported.approximate(tokenizer):
    log.warning('AutoTokenizer gives other ids than this run to %s', texts)
  return files


def _is_decoder(config: config_lib.Config) -> bool:
  model = config.model
  return not model.num_encoder_layers and is_causal(model.attention, model.ffn)


def _template(config: config_lib.Config, special: Special) -> exported.Template:
  """What the model reads around a text."""
  model, tuned = config.model, config.get('finetune')
  before = special.prompt_start
  if model.num_encoder_layers:
    return exported.Template(before, None, (special.eos_id,))
  forms = fields.forms(model)
  lacking = special.cls_id is None or special.sep_id is None
  # XLNet is trained on a stream of text.
  if _is_decoder(config) or lacking or (forms == 'last' and not tuned):
    return exported.Template(before)
  found = sequences.Special.of_encoder(special, forms)
  types = choice(model, 'input').kwargs.get('token_types', 0)
  return exported.Template(
    found.start,
    found.delimiter,
    found.end,
    types > 1 or forms == 'last',
    forms == 'last',
  )


def _token_ids(
  config: config_lib.Config, tokenizer: tokenizer_lib.Tokenizer
) -> dict[str, int]:
  """What config.json says of the special tokens; an encoder has a [CLS]."""
  special = tokenizer.special
  first, last, eos_id = special.cls_id, special.sep_id, tokenizer.eos_id
  if starts := objectives.needs(config.objective.name).starts:
    # BART's text begins with <s>, T5's with nothing.
    ids = {'bos_token_id': eos_id if first is None else first}
    ids |= {'eos_token_id': eos_id, 'pad_token_id': special.pad_id}
    return ids | {'decoder_start_token_id': sides.start_id(starts, special)}
  if first is None or last is None or _is_decoder(config):
    return {'bos_token_id': eos_id, 'eos_token_id': eos_id}
  return {
    'bos_token_id': first,
    'eos_token_id': last,
    'pad_token_id': special.pad_id,
  }
