# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run read back from its workdir."""

import hashlib
import os
from typing import Any, NamedTuple

from gpt_jax import config as config_lib
from gpt_jax.checkpoints import checkpointer as checkpoint
from gpt_jax.config import Config
from gpt_jax.decoding import fill, sampler, speculative
from gpt_jax.decoding.engine import in_place
from gpt_jax.decoding.in_row import AfterPrefix, ByMask, InRow
from gpt_jax.decoding.speculative import Draft
from gpt_jax.files import files
from gpt_jax.nn.pattern import is_causal
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import choices as objectives
from gpt_jax.objectives import unified
from gpt_jax.optim.train_state import TrainState
from gpt_jax.rows.unified_order import SEQ2SEQ
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.training import averaged
from gpt_jax.training.parts import Parts, abstract_state, build

# What to do about a damaged file of a run.
RESTORE = 'restore it from a copy, or start again with another --workdir'


class Trained(NamedTuple):
  """A run read back from its workdir.

  Attributes:
    parts: of the run.
    state: its newest.
    tokenizer: its.
    averaged: the steps whose mean the parameters are; (): of the newest alone.
  """

  parts: Parts
  state: TrainState
  tokenizer: tokenizer_lib.Tokenizer
  averaged: tuple[int, ...] = ()


def load(workdir: str, average: int = 0) -> Trained:
  """Loads the newest sound checkpoint of a workdir, and its tokenizer.

  Args:
    workdir: of the run.
    average: take the mean of this many checkpoints: see `averaged`; 0: none.
  """
  config = read_config(workdir)
  check_reads(f'--workdir={workdir}', config)
  model = config.model
  if model.num_encoder_layers or not is_causal(model.attention, model.ffn):
    raise UsageError(
      f'--workdir={workdir}: holds no decoder (model.attention='
      f'{model.attention!r}, model.num_encoder_layers='
      f'{model.num_encoder_layers}), which is what continues a text; give '
      'another'
    )
  return load_any(workdir, average)


def check_reads(what: str, config: Config) -> None:
  """Checks that a decoder reads a text as what is to be continued.

  Args:
    what: how the message begins.
    config: of a run.
  """
  name = config.objective.name
  if objectives.needs(name).starts and not config.model.num_encoder_layers:
    raise UsageError(
      f'{what}: objective.name={name!r} trains a decoder to read a source, '
      'its target after it, and no text that is continued or scored; give '
      'sources (--source), or train with a causal objective'
    )


def answers_sources(config: Config) -> bool:
  """Whether a run's model writes texts from others, which it is given."""
  needs = objectives.needs(config.objective.name)
  return bool(config.model.num_encoder_layers or needs.in_row)


def in_row(parts: Parts, tokenizer: tokenizer_lib.Tokenizer) -> InRow | None:
  """How a run's model writes after a source; None: it has not learned to."""
  how = objectives.needs(parts.config.objective.name).in_row
  if parts.config.model.num_encoder_layers or not how:
    return None
  if how != 'mask':
    return AfterPrefix(how == 'prefix')
  first, second = unified.types_of(parts.model, SEQ2SEQ).tolist()
  assert tokenizer.special.mask_id is not None, 'see Needs.tokens'
  return ByMask(tokenizer.special.mask_id, (first, second))


def load_writer(workdir: str, average: int = 0) -> Trained:
  """As `load` does, what writes texts: an encoder only if it learned that."""
  answers = answers_sources(read_config(workdir))
  return (load_any if answers else load)(workdir, average)


def load_any(workdir: str, average: int = 0) -> Trained:
  """As `load` does, a model of any kind."""
  steps = ()
  if average:
    parts = built(workdir)
    state, steps = averaged.last(workdir, average, abstract_state(parts))
  else:
    parts, state = restore(workdir)
  tokenizer = tokenizer_lib.load(os.path.join(workdir, 'tokenizer'))
  return Trained(parts, state, tokenizer, steps)


def decoder(trained: Trained, weights: str) -> tuple[Transformer, Any]:
  """The model and its parameters, to decode with.

  Args:
    trained: a run.
    weights: see `in_place`.
  """
  needs = objectives.needs(trained.parts.config.objective.name)
  # Whatever else was trained beside it, or taught it, is not decoded with.
  own = needs.trees(trained.state.eval_params)['']
  return in_place(trained.parts.model, own, weights)


def rounded(trained: Trained) -> Trained:
  """The run with a model that computes in int8, to score texts with."""
  model, params = decoder(trained, 'int8')
  return trained._replace(
    parts=trained.parts._replace(model=model),
    state=trained.state._replace(params=params, ema=None),
  )


def load_encoder(workdir: str) -> Trained:
  """Loads an encoder with the head of a masked language model."""
  config = read_config(workdir)
  model = config.model
  if model.num_encoder_layers or is_causal(model.attention, model.ffn):
    raise UsageError(
      f'--workdir={workdir}: holds no encoder (model.attention='
      f'{model.attention!r}), which is what fills a [MASK]; give another'
    )
  if config.get('finetune') is not None:
    raise UsageError(
      f'--workdir={workdir}: was fine-tuned on {config.finetune.task}, so what '
      'it knew of a [MASK] is gone; give what it was fine-tuned from'
    )
  needs = objectives.needs(config.objective.name)
  if needs.asked(model.context_length):
    raise UsageError(
      f'--workdir={workdir}: the model of objective.name='
      f'{config.objective.name!r} knows no [MASK]: it predicts tokens by a '
      'second stream; give a model of masked tokens'
    )
  scored = needs.scored
  if scored is not None and not scored.output(model.context_length):
    raise UsageError(
      f'--workdir={workdir}: the model of objective.name='
      f'{config.objective.name!r} scores no vocabulary; export its generator '
      'with convert --to_hf FOLDER --part generator, import that, and fill '
      'with it'
    )
  tokenizer = tokenizer_lib.load(os.path.join(workdir, 'tokenizer'))
  fill.special_of(tokenizer)
  parts, state = restore(workdir)
  own = needs.merged(state.eval_params)
  return Trained(parts, state._replace(params=own, ema=None), tokenizer)


def load_draft(workdir: str, trained: Trained, num_tokens: int) -> Draft:
  """Loads a smaller run that proposes tokens to `trained`."""
  try:
    other = load(workdir)
  except UsageError as e:
    message = str(e).replace('--workdir=', '--draft=', 1)
    raise UsageError(message) from e
  rules = sampler.constraints_of(trained.tokenizer)
  speculative.check(trained.parts.model, other.parts.model, rules)
  if other.tokenizer.fingerprint != trained.tokenizer.fingerprint:
    raise UsageError(
      f'--draft={workdir}: its tokenizer, '
      f"{other.parts.config.tokenizer.name}, is not the model's, "
      f'{trained.parts.config.tokenizer.name}, of the same vocabulary; give a '
      'draft that was trained with that'
    )
  return Draft(other.parts.model, other.state.eval_params, num_tokens)


def config_key(workdir: str) -> str:
  """The sha256 of the config of the run in a workdir."""
  with open(os.path.join(workdir, 'config.json'), 'rb') as file:
    return hashlib.sha256(file.read()).hexdigest()


def read_config(workdir: str) -> Config:
  """The resolved config of the run in a workdir."""
  path = os.path.join(workdir, 'config.json')
  try:
    found = files.read_json(path, remedy=RESTORE, needs=('model', 'tokenizer'))
  except (FileNotFoundError, NotADirectoryError) as e:
    raise UsageError(
      f'--workdir={workdir}: holds no run (no config.json); train one first'
    ) from e
  try:
    config = config_lib.from_dict(found)
    config_lib.check_resolved(config)
  except (ValueError, TypeError, LookupError, AttributeError) as e:
    # Of `finetune.each`, whose fields have names of the user's own.
    raise UsageError(f'{path}: is damaged: {e}; {RESTORE}') from e
  return config


def built(workdir: str) -> Parts:
  """The parts of a workdir's run, on the devices that are here."""
  # The devices here need not be those it was trained on.
  config = config_lib.unlocked(read_config(workdir))
  config.mesh.update(data=1, fsdp=-1, expert=1, context=1, tensor=1)
  for model in (config.model, *config.models.values()):
    model.attention_backend = 'auto'
  return build(config.lock())


def restore(workdir: str) -> tuple[Parts, TrainState]:
  """Loads the newest sound checkpoint of a workdir, split over all devices."""
  parts = built(workdir)
  config = parts.config
  checkpointer = checkpoint.Checkpointer(workdir, read_only=True)
  state = checkpointer.restore(abstract_state(parts))
  checkpointer.close()
  if state is None:
    raise UsageError(
      f'--workdir={workdir}: holds no checkpoint yet; it is written after '
      f'{config.checkpoint.every_steps} steps'
    )
  if state.ema is not None:
    log.info('using the average of the weights, optim.ema=%s', config.optim.ema)
  return parts, state
