# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fills in what follows from other fields, and validates the whole."""

from gpt_jax.config.fields import Config, hint, rename, unlocked
from gpt_jax.config.known import check_known
from gpt_jax.config.lengths import num_steps
from gpt_jax.config.models import complete, named, of_part
from gpt_jax.config.trainable import check_objective
from gpt_jax.config.validation import check_fields, validate
from gpt_jax.spec import UsageError, shown


def resolve(config: Config) -> Config:
  """Fills the empty fields that follow from others, and validates the whole.

  `model.vocab_size` may stay empty: `set_vocab_size` fills it once the
  tokenizer is known.

  Returns:
    A new locked config.

  Raises:
    UsageError: names the field, its value and the remedy.
  """
  config = resolve_model(config)
  check_objective(config)
  return config


def resolve_model(config: Config) -> Config:
  """Like `resolve`, for a model to look at: no matter what could train it.

  Raises:
    UsageError: names the field, its value and the remedy.
  """
  config = unlocked(config)
  for old in rename(config):
    hint(old)
  check_known(config)
  tuned = config.get('finetune')
  if tuned and tuned.sequences is None:
    raise UsageError(
      '--config: has a section finetune, whose task says what the rest is; '
      'give it to gpt-jax finetune'
    )
  check_fields(config)
  complete(config)
  names = ['', *config.models]
  for name in names[1:]:
    with named(name):
      check_fields(of_part(config, name))
  for name in names:
    with named(name):
      _fill_model(config.models[name] if name else config.model)
  # The field may hold a text such as '300B_tokens' until here.
  with config.schedule.ignore_type():
    config.schedule.num_steps = num_steps(config)
  check_resolved(config)
  return config.lock()


def check_resolved(config: Config) -> None:
  """Checks a config that `resolve` has made, or that a run has saved."""
  check_known(config)
  steps = config.schedule.num_steps
  if type(steps) is not int:
    raise UsageError(
      f'schedule.num_steps={shown(steps)}: must be a whole number'
    )
  for name in ('', *config.models):
    with named(name):
      part = of_part(config, name)
      check_known(part)
      check_fields(part)
      validate(part)


def _fill_model(model: Config) -> None:
  """Gives the empty fields of a section what they follow from others."""
  if model.num_kv_heads is None:
    model.num_kv_heads = model.num_heads
  if model.head_size is None:
    if model.d_model % model.num_heads:
      raise UsageError(
        f'model.d_model={model.d_model}: does not divide by model.num_heads='
        f'{model.num_heads}; change one of them or set model.head_size'
      )
    model.head_size = model.d_model // model.num_heads
  if model.value_size == model.head_size:
    model.value_size = 0  # so that equal models have equal fields
  if model.d_ff is None:
    model.d_ff = 4 * model.d_model
  for name in ('num_heads', 'd_ff'):
    if model[f'encoder_{name}'] == model[name]:
      model[f'encoder_{name}'] = 0  # as above


def set_vocab_size(
  config: Config, vocab_size: int, tokenizer: str, of_sources: int | None = 0
) -> Config:
  """Gives the models the tokenizer's vocabulary, or checks that it fits.

  Args:
    config: resolved.
    vocab_size: of the tokenizer.
    tokenizer: `tokenizer.name`.
    of_sources: that of sources, where they have a tokenizer of their own; None:
      it is not known yet.

  Raises:
    UsageError: a model's vocabulary is smaller than the tokenizer's, or no
      part of it is for sources alone.
  """
  config = unlocked(config)
  model = config.model
  if of_sources and not model.num_source_layers:
    raise UsageError(
      f'tokenizer.name={tokenizer!r}: sources with tokens of their own are '
      'read by an encoder of their own; set model.num_source_layers'
    )
  if of_sources and not model.source_vocab_size:
    model.source_vocab_size = of_sources
  needed = 0 if of_sources is None else of_sources or vocab_size
  if 0 < model.source_vocab_size < needed:
    raise UsageError(
      f'model.source_vocab_size={model.source_vocab_size}: smaller than the '
      f'{needed} tokens of sources by tokenizer.name='
      f'{tokenizer!r}; raise it, or set it to 0 to take that'
    )
  sections = {f'models.{name}': part for name, part in config.models.items()}
  for field, model in {'model': config.model, **sections}.items():
    if model.vocab_size is None:
      model.vocab_size = vocab_size
    elif model.vocab_size < vocab_size:
      raise UsageError(
        f'{field}.vocab_size={model.vocab_size}: smaller than the '
        f'{vocab_size} tokens of tokenizer.name={tokenizer!r}; raise it, or '
        "leave it empty to take the tokenizer's"
      )
  return config.lock()
