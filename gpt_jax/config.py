# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Resolves and validates a config before anything is compiled."""

import json
from typing import Any

from ml_collections import ConfigDict

from gpt_jax import spec
from gpt_jax.nn.backends import BACKENDS
from gpt_jax.nn.bias import BIASES
from gpt_jax.nn.block import BLOCKS
from gpt_jax.nn.dropout import DROPOUTS
from gpt_jax.nn.embed import INPUTS, OUTPUTS
from gpt_jax.nn.init import INITS
from gpt_jax.nn.norm import NORMS
from gpt_jax.nn.pattern import period
from gpt_jax.nn.positions import POSITIONS
from gpt_jax.nn.scales import SCALES
from gpt_jax.nn.stack import LOOPS, REMATS
from gpt_jax.nn.transformer import DTYPES
from gpt_jax.objectives.causal import OBJECTIVES
from gpt_jax.optim.optimizer import OPTIMIZERS
from gpt_jax.optim.schedules import SCHEDULES
from gpt_jax.spec import UsageError

# A ConfigDict: no type checker knows its fields.
Config = Any

CALL_STRINGS = {
  'model.input': INPUTS,
  'model.position': POSITIONS,
  'model.attention_scale': SCALES,
  'model.attention_backend': BACKENDS,
  'model.bias': BIASES,
  'model.output': OUTPUTS,
  'model.norm': NORMS,
  'model.block': BLOCKS,
  'model.dropout': DROPOUTS,
  'model.init_weights': INITS,
  'objective.name': OBJECTIVES,
  'optim.name': OPTIMIZERS,
  'schedule.name': SCHEDULES,
}
NAMES = {
  'model.dtype': DTYPES,
  'model.remat': REMATS,
  'model.loop': LOOPS,
}
AT_LEAST = {
  'seed': 0,
  'model.vocab_size': 1,
  'model.context_length': 1,
  'model.num_layers': 1,
  'model.num_encoder_layers': 0,
  'model.d_model': 1,
  'model.num_heads': 1,
  'model.num_kv_heads': 1,
  'model.head_size': 1,
  'model.d_ff': 1,
  'optim.clip_norm': 0,
  'schedule.num_steps': 1,
  'batch.rows': 1,
  'batch.micro_rows': 1,
  'checkpoint.every_steps': 1,
  'checkpoint.keep': 1,
  'eval.every_steps': 0,
  'eval.rows': 1,
  'eval.num_batches': 1,
  'log.every_steps': 1,
  'log.sample_tokens': 0,
}
# A run may go on with other values here: they do not change its result.
FREE_ON_RESUME = (
  'checkpoint.',
  'data.store',
  'eval.',
  'log.',
  'mesh.',
  'model.attention_backend',
)


def flatten(config: Any, prefix: str = '') -> dict[str, Any]:
  """`{'model.num_layers': 12, ...}` sorted within each section."""
  flat = {}
  for name, value in config.items():
    if isinstance(value, ConfigDict | dict):
      flat.update(flatten(value, f'{prefix}{name}.'))
    else:
      flat[prefix + name] = value
  return flat


def unlocked(config: Config) -> Config:
  """A copy that can be changed."""
  return config.copy_and_resolve_references().unlock()


def resolve(config: Config) -> Config:
  """Fills the empty fields that follow from others, and validates the whole.

  `model.vocab_size` may stay empty: `set_vocab_size` fills it once the
  tokenizer is known.

  Returns:
    A new locked config.

  Raises:
    UsageError: names the field, its value and the remedy.
  """
  config = unlocked(config)
  try:
    _fill(config)
    validate(config)
  except (AttributeError, KeyError) as e:
    raise UsageError(
      f'the config lacks {str(e.args[0]).partition(chr(10))[0]}: start it from '
      'configs/base.py, which has the whole tree, with model, data, ...'
    ) from e
  return config.lock()


def _fill(config: Config) -> None:
  """Gives the empty fields what they follow from others."""
  model = config.model
  if model.num_kv_heads is None:
    model.num_kv_heads = model.num_heads
  if model.head_size is None:
    if model.num_heads < 1 or model.d_model % model.num_heads:
      raise UsageError(
        f'model.d_model={model.d_model}: does not divide by model.num_heads='
        f'{model.num_heads}; change one of them or set model.head_size'
      )
    model.head_size = model.d_model // model.num_heads
  if model.d_ff is None:
    model.d_ff = 4 * model.d_model
  if config.batch.micro_rows is None:
    config.batch.micro_rows = config.batch.rows


def validate(config: Config) -> None:
  """Checks each field and the fields against each other.

  Raises:
    UsageError: at the first mistake.
  """
  flat = flatten(config)
  built = {
    field: spec.build(field, flat[field], choices)
    for field, choices in CALL_STRINGS.items()
  }
  for field, names in NAMES.items():
    if flat[field] not in names:
      raise UsageError(
        f'{field}={flat[field]!r}: unknown; one of ' + ', '.join(names)
      )
  for field, least in AT_LEAST.items():
    value = flat[field]
    if value is not None and value < least:
      raise UsageError(f'{field}={value}: must be at least {least}')
  built['schedule.name'](config.schedule.num_steps)
  batch, model = config.batch, config.model
  if batch.rows % batch.micro_rows:
    raise UsageError(
      f'batch.rows={batch.rows}: does not divide by batch.micro_rows='
      f'{batch.micro_rows}'
    )
  if model.num_heads % model.num_kv_heads:
    raise UsageError(
      f'model.num_heads={model.num_heads}: does not divide by '
      f'model.num_kv_heads={model.num_kv_heads}'
    )
  layers = period(model.attention, model.ffn)
  if not all(layer.attention.causal for layer in layers):
    raise UsageError(
      f'model.attention={model.attention!r}: tokens would see the targets of '
      f'objective.name={config.objective.name!r}; take causal patterns'
    )
  if model.num_encoder_layers and config.optim.name != 'none':
    raise UsageError(
      f'model.num_encoder_layers={model.num_encoder_layers}: objective.name='
      f'{config.objective.name!r} trains decoders; give 0'
    )
  if model.num_layers % len(layers):
    raise UsageError(
      f'model.num_layers={model.num_layers}: does not divide by the '
      f'{len(layers)} layers after which model.attention={model.attention!r} '
      f'and model.ffn={model.ffn!r} repeat'
    )
  encoder_ffn = model.encoder_ffn or model.ffn
  count = len(period('bidirectional', encoder_ffn))
  if model.num_encoder_layers % count:
    raise UsageError(
      f'model.num_encoder_layers={model.num_encoder_layers}: does not divide '
      f'by the {count} layers of {encoder_ffn!r}; set model.encoder_ffn'
    )
  for layer in layers:
    router = layer.ffn.router
    if router is not None and router.limited(training=True):
      tokens = router.group_of(batch.micro_rows, model.context_length)
      router.capacity_of(tokens, training=True)
    if router is not None and router.limited(training=False):
      tokens = router.group_of(config.eval.rows, model.context_length)
      router.capacity_of(tokens, training=False)


def set_vocab_size(config: Config, vocab_size: int, tokenizer: str) -> Config:
  """Gives the model the tokenizer's vocabulary, or checks that it fits.

  Raises:
    UsageError: the model's vocabulary is smaller than the tokenizer's.
  """
  config = unlocked(config)
  if config.model.vocab_size is None:
    config.model.vocab_size = vocab_size
  elif config.model.vocab_size < vocab_size:
    raise UsageError(
      f'model.vocab_size={config.model.vocab_size}: smaller than the '
      f'{vocab_size} tokens of tokenizer.name={tokenizer!r}; raise it, or '
      "leave it empty to take the tokenizer's"
    )
  return config.lock()


def to_json(config: Config) -> str:
  """The resolved config as indented JSON."""
  return json.dumps(config.to_dict(), indent=2) + '\n'


def from_json(text: str) -> Config:
  """Reads what `to_json` wrote."""
  return ConfigDict(json.loads(text)).lock()


def differences(old: Config, new: Config) -> list[str]:
  """Fields that change a run's result: `'seed: 0 -> 1'`."""
  before, after = flatten(old), flatten(new)
  return [
    f'{field}: {before.get(field)!r} -> {after.get(field)!r}'
    for field in dict.fromkeys([*before, *after])
    if before.get(field) != after.get(field)
    and not field.startswith(FREE_ON_RESUME)
  ]
