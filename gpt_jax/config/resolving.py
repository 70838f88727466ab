# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Resolves and validates a config before anything is compiled."""

import json
from typing import Any

from ml_collections import ConfigDict

from gpt_jax import spec
from gpt_jax.config import log_trackers
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
from gpt_jax.objectives.choices import OBJECTIVES
from gpt_jax.optim import amount, batch_ramp
from gpt_jax.optim.average import AVERAGES
from gpt_jax.optim.batch_ramp import Ramp
from gpt_jax.optim.clock import LAST_STEP
from gpt_jax.optim.optimizer import OPTIMIZERS
from gpt_jax.optim.rounding import PRECISIONS
from gpt_jax.optim.schedules import SCHEDULES, Schedule
from gpt_jax.optim.spikes import SPIKES
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
  'optim.precision': PRECISIONS,
  'optim.ema': AVERAGES,
  'optim.on_spike': SPIKES,
  'schedule.name': SCHEDULES,
}
NAMES = {
  'data.rows': ('stream', 'documents'),
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
  'data.workers': 1,
  'optim.clip_norm': 0,
  'schedule.num_steps': 1,
  'batch.micro_rows': 0,
  'checkpoint.every_steps': 1,
  'checkpoint.keep': 1,
  'checkpoint.grace_seconds': 0,
  'watchdog.start_seconds': 0,
  'watchdog.compile_seconds': 0,
  'watchdog.step_seconds': 0,
  'watchdog.evaluation_seconds': 0,
  'watchdog.save_seconds': 0,
  'hosts.join_seconds': 1,
  'hosts.heartbeat_seconds': 1,
  'checkpoint.keep_every_steps': 0,
  'checkpoint.keep_best': 0,
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
  'data.workers',
  'eval.',
  'hosts.',
  'log.',
  'mesh.',
  'model.attention_backend',
  # So that a run that stopped at a spike can go on.
  'optim.on_spike',
  # The grid of `scaling`, which may grow.
  'sweep.',
  'watchdog.',
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
  config = resolve_model(config)
  check_objective(config)
  return config


def resolve_model(config: Config) -> Config:
  """Like `resolve`, for a model to look at: no matter what could train it.

  Raises:
    UsageError: names the field, its value and the remedy.
  """
  config = unlocked(config)
  tuned = config.get('finetune')
  if tuned and tuned.sequences is None:
    raise UsageError(
      '--config: has a section finetune, whose task says what the rest is; '
      'give it to gpt-jax finetune'
    )
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
  # The field may hold a text such as '300B_tokens' until here.
  with config.schedule.ignore_type():
    config.schedule.num_steps = _num_steps(config)


def _num_steps(config: Config) -> int:
  """The steps of the run: the last one begins before its tokens are reached.

  Raises:
    UsageError: the field is no length, or the batch no ramp.
  """
  given = config.schedule.num_steps
  if type(given) is int:
    return given
  found = ramp(config).step_at(amount.parse('schedule.num_steps', given))
  if found > LAST_STEP:
    raise UsageError(
      f'schedule.num_steps={given!r}: are {found:,} steps, more than can be '
      'counted; give fewer'
    )
  return found


def ramp(config: Config) -> Ramp:
  """The rows of each step.

  Raises:
    UsageError: `batch.size` makes no sense.
  """
  return batch_ramp.build(config.batch.size, row_tokens=row_tokens(config))


def row_tokens(config: Config) -> int:
  """Tokens that one row of a batch brings to the model."""
  # A fine-tuned example may be several sequences, shorter than the context.
  tuned = config.get('finetune')
  if tuned and tuned.length:
    return tuned.length * tuned.sequences
  return config.model.context_length


def schedule(config: Config) -> Schedule:
  """The learning rate of each step of a resolved config.

  Raises:
    UsageError: its lengths do not fit the run.
  """
  build = spec.build('schedule.name', config.schedule.name, SCHEDULES)
  return build(ramp(config), config.schedule.num_steps)


def validate(config: Config) -> None:
  """Checks each field and the fields against each other.

  Raises:
    UsageError: at the first mistake.
  """
  flat = flatten(config)
  for field, choices in CALL_STRINGS.items():
    spec.build(field, flat[field], choices)
  log_trackers.load(flat[log_trackers.FIELD])
  for field, names in NAMES.items():
    if flat[field] not in names:
      raise UsageError(
        f'{field}={flat[field]!r}: unknown; one of ' + ', '.join(names)
      )
  for field, least in AT_LEAST.items():
    value = flat[field]
    if value is not None and value < least:
      raise UsageError(f'{field}={value}: must be at least {least}')
  model, micro_rows = config.model, config.batch.micro_rows
  stages = ramp(config).stages
  schedule(config)
  for stage in stages:
    if stage.rows % (micro_rows or 1):
      raise UsageError(
        f'{stage_name(config, stage.rows)} does not divide by '
        f'batch.micro_rows={micro_rows}'
      )
  if model.num_heads % model.num_kv_heads:
    raise UsageError(
      f'model.num_heads={model.num_heads}: does not divide by '
      f'model.num_kv_heads={model.num_kv_heads}'
    )
  layers = period(model.attention, model.ffn)
  if model.num_layers % len(layers):
    raise UsageError(
      f'model.num_layers={model.num_layers}: does not divide by the '
      f'{len(layers)} layers after which model.attention={model.attention!r} '
      f'and model.ffn={model.ffn!r} repeat'
    )
  encoder_ffn = model.encoder_ffn or model.ffn
  encoder = period('bidirectional', encoder_ffn)
  if model.num_encoder_layers % len(encoder):
    raise UsageError(
      f'model.num_encoder_layers={model.num_encoder_layers}: does not divide '
      f'by the {len(encoder)} layers after which {encoder_ffn!r} repeats; set '
      'model.encoder_ffn'
    )
  routers = [layer.ffn.router for layer in layers + encoder if layer.ffn.router]
  if len({router.num_experts for router in routers}) > 1:
    raise UsageError(
      f'model.ffn={model.ffn!r}: layers with different num_experts cannot be '
      'reported together; give all the same'
    )
  rows = [(True, micro_rows or stage.rows) for stage in stages]
  rows.append((False, config.eval.rows))
  for router in {*routers}:
    for training, number in rows:
      if router.limited(training):
        tokens = router.group_of(number, model.context_length)
        router.capacity_of(tokens, training)


def check_objective(config: Config) -> None:
  """Checks that the objective can train the model.

  Raises:
    UsageError: it cannot.
  """
  model = config.model
  layers = period(model.attention, model.ffn)
  if not all(layer.attention.causal for layer in layers):
    raise UsageError(
      f'model.attention={model.attention!r}: tokens would see the targets of '
      f'objective.name={config.objective.name!r}; take causal patterns'
    )
  if model.num_encoder_layers:
    raise UsageError(
      f'model.num_encoder_layers={model.num_encoder_layers}: objective.name='
      f'{config.objective.name!r} trains decoders; give 0'
    )


def stage_name(config: Config, rows: int) -> str:
  """How an error names a stage of the batch: `batch.size=...: ...`."""
  given = config.batch.size
  if isinstance(given, int):
    return f'batch.size={given}:'
  return f'batch.size={given!r}: its stage of {rows} rows'


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
  """Reads what `to_json` wrote, now or under an older name of a field."""
  tree = json.loads(text)
  batch = tree.get('batch', {})
  if 'rows' in batch:
    batch['size'] = batch.pop('rows')
  return ConfigDict(tree).lock()


def differences(old: Config, new: Config) -> list[str]:
  """Fields that change a run's result: `'seed: 0 -> 1'`."""
  before, after = flatten(old), flatten(new)
  return [
    f'{field}: {before.get(field)!r} -> {after.get(field)!r}'
    for field in dict.fromkeys([*before, *after])
    if before.get(field) != after.get(field)
    and not field.startswith(FREE_ON_RESUME)
  ]
