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
from gpt_jax.data import progress, sides
from gpt_jax.data.tokenizers import constraints, saved
from gpt_jax.data.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.finetuning import heads
from gpt_jax.objectives import choices as objectives
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import imported
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import trained as trained_lib

# Our saved tokenizers' files under HF's names.
_VOCABULARIES = {
  'vocabulary.json': 'vocab.json',
  'merges.txt': 'merges.txt',
  'sentencepiece.model': 'tokenizer.model',
  'hf_tokenizer.json': 'tokenizer.json',
  **{name: name for name in saved.BESIDE},
}


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
      told=progress.counted(report, 'checked', None),
    )
    needs = objectives.needs(parts.config.objective.name)
    params = needs.merged(hf.nest(arrays), _sum)
    params = needs.trees(params)[part or '']
    model, options = imported.model_of(parts, workdir), {}
    if part is not None:
      model = config_lib.transformer(parts.config, part)
    if tokenizer and not isinstance(model, hf.Imported):
      options = _token_ids(tokenizer, needs.starts)
    tuned = heads.exported(
      parts.config,
      params.get('heads'),
      options,
      before=tokenizer.special.prompt_start if tokenizer else (),
    )
    if tuned.heads is not None:
      params['heads'] = tuned.heads
    names = _VOCABULARIES.keys() & contents.keys()
    beside = {_VOCABULARIES[name]: contents[name] for name in names}
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
  if not names:
    log.warning('Hugging Face has no tokenizer like that of %s', workdir)


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


def _token_ids(
  tokenizer: tokenizer_lib.Tokenizer, starts: str
) -> dict[str, int]:
  """What config.json says of the special tokens; an encoder has a [CLS].

  Args:
    tokenizer: of the run.
    starts: see `Needs`; '': the model is no encoder-decoder.
  """
  special = tokenizer.special
  first, last, eos_id = special.cls_id, special.sep_id, tokenizer.eos_id
  if starts:
    # BART's text begins with <s>, T5's with nothing.
    ids = {'bos_token_id': eos_id if first is None else first}
    ids |= {'eos_token_id': eos_id, 'pad_token_id': special.pad_id}
    return ids | {'decoder_start_token_id': sides.start_id(starts, special)}
  if first is None or last is None:
    return {'bos_token_id': eos_id, 'eos_token_id': eos_id}
  return {
    'bos_token_id': first,
    'eos_token_id': last,
    'pad_token_id': special.pad_id,
  }
