# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Resolves a config: fills fields that follow from others, and validates."""

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any

from etils import epy
from ml_collections import ConfigDict

from gpt_jax.core import spec
from gpt_jax.core.config.defaults import FIELDS
from gpt_jax.core.config.fields import Config, check_known, unlocked
from gpt_jax.core.config.lengths import num_steps
from gpt_jax.core.config.validation import check_fields, fill_micro_rows, validate
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.rows import row_makers
from gpt_jax.core.spec import UsageError, shown
from gpt_jax.core.tokenizers.tokenizer import Tokenizer

with epy.lazy_imports():
  from gpt_jax.core import sharding
  from gpt_jax.core.nn import build
  from gpt_jax.core.nn import transformer as nn
  from gpt_jax.core.objectives import base

# The models of a config: the run's own, and named parts beside it.
#
# `config.model` is the model that a run is for. `config.models` has a section
# for each other model of its objective (such as ELECTRA's generator). Such a
# section states only differences from `config.model`; resolved, it has all
# fields.


def complete(config: Config) -> None:
  """Gives each part the fields of `config.model` that it lacks.

  A teacher whose outputs are on disk is not a model of the run.
  """
  name = config.objective.name
  if 'teacher' in config.models and objectives.needs(name).stored is not None:
    del config.models.teacher
  for name, part in config.models.items():
    config.models[name] = ConfigDict({**config.model, **part})


def of_part(config: Config, name: str) -> Config:
  """The config with a part's section as its `model`; '': unchanged."""
  if not name:
    return config
  changed = unlocked(config)
  changed.model = changed.models[name]
  changed.models = ConfigDict()
  return changed.lock()


def width(config: Config) -> int:
  """The largest `fsdp` axis that divides the `embed` dimension of all models.

  Other mesh axes that split it are accounted for.
  """
  widths = []
  for model in (config.model, *config.models.values()):
    choices = build.ModelChoices.of(model)
    widths += [model.d_model, choices.input.d_embed, *choices.input.widths]
    patterns = (*choices.attention, *choices.encoder_attention)
    widths += [layer.state_width for layer in build.recurrent(patterns)]
    if choices.separate:
      widths.append(model.d_model // 2)
  axes = dict(sharding.parse_rules(config.mesh.rules))['embed']
  # Sizes below 1 are left to `make_mesh`, which fills or refuses them.
  others = (max(config.mesh[axis], 1) for axis in axes if axis != 'fsdp')
  return max(1, math.gcd(*widths) // math.prod(others))


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
  """Renames `model.x` in errors to the part's field `models.NAME.x`."""
  try:
    yield
  except UsageError as e:
    if not name:
      raise
    text = re.sub(r'\bmodel\.', f'models.{name}.', str(e))
    raise UsageError(text) from e


def transformer(config: Config, name: str = '') -> 'nn.Transformer':
  """The model of a part; '': the run's own."""
  section: Any = config.models[name] if name else config.model
  return nn.make_model(**section)


def objective(config: Config, tokenizer: Tokenizer | None = None) -> 'base.Objective':
  """The objective of a resolved config, with all its models.

  Args:
    config: resolved, with the vocabulary size set.
    tokenizer: see `objectives.base.Objective.bind`.
  """
  return objectives.build(
    config.objective.name,
    transformer(config),
    tokenizer,
    {name: transformer(config, name) for name in config.models},
  )


# Compatibility of the objective and the models.


def check_objective(config: Config) -> None:
  """Checks that the objective can train the models."""
  name = config.objective.name
  needs = objectives.needs(name)
  objectives.check_parts(name, config.models)
  teacher = config.objective.teacher
  if teacher and not (needs.frozen or needs.stored):
    raise UsageError(
      f'objective.teacher={teacher!r}: objective.name={name!r} has no teacher; leave it empty'
    )
  for part in ('', *config.models):
    with named(part):
      _check_model(of_part(config, part), needs)
  rows = config.data.rows
  if needs.rows and row_makers.kind(rows).func.holds not in needs.rows:
    raise UsageError(
      f'data.rows={rows!r}: objective.name={name!r} needs other rows; set '
      f'data.rows to {" or ".join(row_makers.holding(needs.rows))}'
    )
  if needs.pair and row_makers.pair_of(rows) != needs.pair:
    raise UsageError(
      f'data.rows={rows!r}: objective.name={name!r} needs other pairs; set '
      f'data.rows="pairs({needs.pair!r})"'
    )


def _check_model(config: Config, needs: 'base.Needs') -> None:
  """Checks that the objective can train `config.model`."""
  model, name = config.model, config.objective.name
  causal = [pattern.causal for pattern in build.ModelChoices.of(model).attention]
  if needs.attention == 'causal' and not all(causal):
    raise UsageError(
      f'model.attention={model.attention!r}: tokens would see the targets of '
      f'objective.name={name!r}; use causal patterns'
    )
  if needs.attention == 'bidirectional' and any(causal):
    raise UsageError(
      f'model.attention={model.attention!r}: objective.name={name!r} trains '
      "models that see both sides of a token; take 'bidirectional'"
    )
  if needs.attention == 'bidirectional' and build.ModelChoices.of(model).separate:
    raise UsageError(
      f'model.attention={model.attention!r}: objective.name={name!r} trains '
      'models that see both sides of a token, and each of its LSTMs sees one; '
      "take directions='both', or objective.name=bilm"
    )
  if needs.encoder != bool(model.num_encoder_layers):
    trained, give = (
      ('encoder-decoders', '1 or more')
      if needs.encoder
      else (('decoders' if needs.attention == 'causal' else 'encoders'), '0')
    )
    raise UsageError(
      f'model.num_encoder_layers={model.num_encoder_layers}: objective.name='
      f'{name!r} trains {trained}; give {give}'
    )


def resolve(config: Config) -> Config:
  """Fills empty fields that follow from others, and validates the config.

  `model.vocab_size` may stay empty: `set_vocab_size` fills it once the
  tokenizer is known.

  Args:
    config: of `loading.read`, or derived from one; unchanged.

  Returns:
    A new locked config.

  Raises:
    UsageError: a field is unknown, out of range, or does not go with another;
      the message names both and the remedy.
  """
  config = resolve_model(config)
  check_objective(config)
  return config


def resolve_model(config: Config) -> Config:
  """Like `resolve`, but without checking that the objective can train it."""
  config = unlocked(config)
  check_known(config)
  tuned = config.get('finetune')
  if tuned and tuned.sequences is None:
    raise UsageError(
      '--config: is for fine-tuning, since it has a section finetune; give it '
      'to gpt-jax finetune, or to the command that finetune.task names'
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
  # The field may hold a string such as '300B_tokens' until here.
  with config.schedule.ignore_type():
    config.schedule.num_steps = num_steps(config)
  fill_micro_rows(config)
  check_resolved(config)
  return config.lock()


def check_unresolved(config: Config) -> None:
  """Checks a new config as far as that is possible without importing JAX."""
  config = unlocked(config)
  check_known(config)
  check_fields(config, filled='finetune' not in config)
  for field in ('data.source', 'data.clean', 'tokenizer.name'):
    section, name = field.split('.')
    spec.parse_known(field, config[section][name], FIELDS[field].table)
  for name, part in {'': {}, **config.models}.items():
    with named(name):
      _fill_model(ConfigDict({**config.model, **part}))


def check_resolved(config: Config) -> None:
  """Checks a config that `resolve` returned, or that a run has saved."""
  check_known(config)
  steps = config.schedule.num_steps
  if type(steps) is not int:
    raise UsageError(f'schedule.num_steps={shown(steps)}: must be a whole number')
  for name in ('', *config.models):
    with named(name):
      part = of_part(config, name)
      check_known(part)
      check_fields(part)
      validate(part)


def _fill_model(model: Config) -> None:
  """Fills the empty fields of a section that follow from others."""
  if model.num_kv_heads is None:
    model.num_kv_heads = model.num_heads
  if model.head_size is None:
    if model.d_model % model.num_heads:
      raise UsageError(
        f'model.d_model={model.d_model}: is not divisible by model.num_heads='
        f'{model.num_heads}; change one of them, or set model.head_size'
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
  """Sets the vocabulary sizes from the tokenizer, or checks that it fits.

  Args:
    config: resolved.
    tokenizer: `tokenizer.name`.
    of_sources: the vocabulary size of sources with their own tokenizer; None:
      not known yet.
  """
  config = unlocked(config)
  model = config.model
  if of_sources and not model.num_encoder_layers:
    raise UsageError(
      f'tokenizer.name={tokenizer!r}: sources have a separate tokenizer, which '
      'needs an encoder; set model.num_encoder_layers'
    )
  if of_sources and not model.source_vocab_size:
    model.source_vocab_size = of_sources
  needed = 0 if of_sources is None else of_sources or vocab_size
  if 0 < model.source_vocab_size < needed:
    raise UsageError(
      f'model.source_vocab_size={model.source_vocab_size}: is smaller than the '
      f'{needed} source tokens of tokenizer.name={tokenizer!r}; raise it, or '
      "set it to 0 to take the tokenizer's size"
    )
  sections = {f'models.{name}': part for name, part in config.models.items()}
  for field, model in {'model': config.model, **sections}.items():
    if model.vocab_size is None:
      model.vocab_size = vocab_size
    elif model.vocab_size < vocab_size:
      raise UsageError(
        f'{field}.vocab_size={model.vocab_size}: is smaller than the '
        f'{vocab_size} tokens of tokenizer.name={tokenizer!r}; raise it, or '
        "leave it empty to take the tokenizer's size"
      )
  return config.lock()
