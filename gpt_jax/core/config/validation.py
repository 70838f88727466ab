# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Validates the fields of a config, one by one and against each other."""

import functools
import math
import operator
from typing import Any

from etils import epy

from gpt_jax.core import spec
from gpt_jax.core.config import fields, log_trackers
from gpt_jax.core.config.defaults import CALL_STRINGS, FIELDS, OPTIONAL
from gpt_jax.core.config.fields import Config, flatten
from gpt_jax.core.config.lengths import ramp, schedule, sides
from gpt_jax.core.nn.choices import CHOICES
from gpt_jax.core.optim import batch_ramp
from gpt_jax.core.optim.outer import OUTERS, Outer
from gpt_jax.core.optim.rounding import AVERAGES
from gpt_jax.core.rows import row_makers
from gpt_jax.core.spec import KINDS, UsageError, shown

with epy.lazy_imports():
  from gpt_jax.core import sharding
  from gpt_jax.core.nn import build

# Depths: a stack has whole periods of layers, and whole groups that share.


def check_depths(config: Config) -> None:
  """Checks that both stacks divide into their periods and groups."""
  model, choices = config.model, build.ModelChoices.of(config.model)
  layers = math.lcm(len(choices.attention), len(choices.ffn))
  if model.num_layers % layers:
    raise UsageError(
      f'model.num_layers={model.num_layers}: is not divisible by the '
      f'{layers} layers after which model.attention={model.attention!r} '
      f'and model.ffn={model.ffn!r} repeat; change one of them'
    )
  for field, number in (
    ('ffn', len(choices.encoder_ffn)),
    ('attention', len(choices.encoder_attention)),
  ):
    if model.num_encoder_layers % number:
      given = model[f'encoder_{field}'] or model[field]
      raise UsageError(
        f'model.num_encoder_layers={model.num_encoder_layers}: is not '
        f'divisible by the {number} layers after which {given!r} repeats; set '
        f'model.encoder_{field}'
      )
  _check_encoder(config)
  _check_source(config, choices)
  _check_groups(config, 'num_layers', len(choices.decoder))
  _check_groups(config, 'num_encoder_layers', len(choices.encoder))


def _check_encoder(config: Config) -> None:
  """Checks the heads and the attention of the encoder."""
  model = config.model
  build.encoder_sizes(model)
  patterns = build.ModelChoices.of(model).encoder_attention
  if model.num_encoder_layers and any(
    pattern.name != 'bidirectional' and not pattern.recurrent for pattern in patterns
  ):
    raise UsageError(
      f"model.encoder_attention={model.encoder_attention!r}: an encoder's "
      "layers are bidirectional; take 'bidirectional'"
    )


def _check_source(config: Config, choices: 'build.ModelChoices') -> None:
  """Checks that an encoder of sources can precede the encoder."""
  model = config.model
  narrow = choices.input.embedding or choices.input.d_embed
  if model.source_vocab_size and narrow and not model.num_source_layers:
    raise UsageError(
      f"model.source_vocab_size={model.source_vocab_size}: the encoder's own "
      f'table does not work with model.input={model.input!r}, narrow or '
      "adaptive embeddings; take 'tokens'"
    )
  if not model.num_source_layers:
    return
  given = f'model.num_source_layers={model.num_source_layers}'
  ffns = choices.encoder_ffn
  if len(ffns) > 1 or any(ffn.router for ffn in ffns):
    raise UsageError(
      f'{given}: needs layers that are dense and all alike, not '
      f'{model.encoder_ffn or model.ffn!r}; give one dense layer in '
      'model.encoder_ffn'
    )
  if choices.share.parts or choices.share.stacks or narrow:
    raise UsageError(
      f'{given}: does not work with model.share={model.share!r} and '
      f'model.input={model.input!r}, that is with layers that share parameters '
      "or with narrow or adaptive embeddings; take 'none' and 'tokens'"
    )


def _check_groups(config: Config, field: str, inner: int) -> None:
  """Checks that a stack divides into groups that share parameters."""
  model, shared = config.model, build.ModelChoices.of(config.model).share
  if shared.parts and model[field] % (shared.groups * inner):
    raise UsageError(
      f'model.{field}={model[field]}: is not divisible by '
      f'{shared.groups * inner}, the {shared.groups} groups of model.share='
      f'{model.share!r} times the {inner} layers that each repeats; change one '
      'of them'
    )


# What fields and options need of others, as they declare it.


# By the field and the name of an option: 'model.attention.lstm'.
OPTIONS = spec.Table({}, 'option')


def check_needs(config: Config) -> None:
  """Checks what fields that are set need of others."""
  flat = flatten(config)
  for name, field in FIELDS.items():
    if field.needs and flat.get(name) and not flat[field.needs]:
      raise UsageError(
        f'{name}={flat[name]!r}: needs {field.needs}; set it, or {name}='
        f'{"" if field.default is None else field.default}'
      )


def check_options(config: Config) -> None:
  """Checks what options that are named need of other fields."""
  flat, declared = flatten(config), {*OPTIONS}
  for name in (*CALL_STRINGS, *(f'model.{field}' for field in CHOICES)):
    calls = spec.parse(name, flat[name]) if flat.get(name) else ()
    for option in {f'{name}.{call.name}' for call in calls} & declared:
      for other, value in OPTIONS[option].needs.items():
        if flat[other] != value:
          raise UsageError(
            f'{other}={flat[other]!r}: does not work with {name}={flat[name]!r}; '
            f'set it to {value!r}'
          )
      if check := OPTIONS[option].check:
        check(config)


# Sizes: no array may have more bytes than the compiler can count.
#
# The compiler would abort the process without a message.


# In elements: of 4 bytes each, and up to 4 such arrays are joined.
LARGEST_ARRAY = 2**59


def check_sizes(config: Config) -> None:
  """Checks that no array has more than `LARGEST_ARRAY` elements."""
  m = config.model
  heads = m.num_heads * max(m.head_size, m.value_size)
  vocab = max(m.vocab_size or 1, m.source_vocab_size)
  rows = max(config.eval.rows, *(stage.rows for stage in ramp(config).stages))
  routers = (ffn.router for ffn in build.ModelChoices.of(m).ffn)
  experts = max(router.num_experts if router else 1 for router in routers)
  layers, tokens = (
    max(m.num_layers, m.num_encoder_layers, m.num_source_layers),
    rows * m.context_length,
  )
  of_ffn = layers * experts * m.d_model
  scores = tokens * m.context_length
  for names, size in (
    (('num_layers', 'd_model', 'd_ff'), of_ffn * m.d_ff),
    (('num_layers', 'd_model', 'encoder_d_ff'), of_ffn * m.encoder_d_ff),
    (('num_layers', 'd_model', 'num_heads', 'head_size'), layers * m.d_model * heads),
    (('vocab_size', 'd_model'), vocab * m.d_model),
    (('context_length', 'vocab_size'), tokens * vocab),
    (('context_length', 'd_model'), tokens * m.d_model * layers),
    (('context_length', 'd_ff'), tokens * m.d_ff * experts),
    (('context_length', 'encoder_d_ff'), tokens * m.encoder_d_ff * experts),
    (('context_length', 'num_heads'), scores * m.num_heads),
    (('context_length', 'encoder_num_heads'), scores * m.encoder_num_heads),
  ):
    if size > LARGEST_ARRAY:
      fields = ', '.join(f'model.{name}={m[name]}' for name in names)
      raise UsageError(
        f'{fields}: need an array of {size:.2g} numbers, above the maximum of '
        f'{LARGEST_ARRAY:.2g}; give smaller sizes'
      )


def check_fields(config: Config, *, filled: bool = True) -> None:
  """Checks the type and the range of each field.

  A field whose default is empty may be empty.

  Args:
    config: has passed `check_known`.
    filled: else any field may be empty, as before fine-tuning fills them.
  """
  flat = flatten(config)
  tree: Any = fields.tree(*(name for name in OPTIONAL if name in config))
  for field, default in flatten(tree).items():
    *sections, name = field.split('.')
    section: Any = functools.reduce(operator.getitem, sections, tree)
    if filled or flat[field] is not None:
      _check_type(field, flat[field], default, section.get_type(name))
  check_ranges(config)
  check_calls(config)
  for field, value in flat.items():
    if isinstance(value, str):
      spec.check_text(field, value)
    elif field.startswith(('data.sources.', 'eval.sets.')):
      raise UsageError(
        f'{field}={shown(value)}: must be a text that calls a source, such as "text(\'a.txt\')"'
      )
    elif isinstance(value, list):
      if not all(isinstance(text, str) for text in value):
        raise UsageError(f'{field}={shown(value)}: must be {KINDS[list]}')
      for text in value:
        spec.check_text(field, text)


def check_calls(config: Config) -> None:
  """Checks the names of all call-strings, and arguments where that is quick.

  What a `spec.Table` has to import is checked when it is built, with JAX.
  """
  flat = flatten(config)
  lists = {f'model.{name}': table for name, table in CHOICES.items()}
  if (rows := flat.get('batch.size')) is not None:
    batch_ramp.check_rows(rows)
  for field, table in {**CALL_STRINGS, **lists}.items():
    if text := flat.get(field):
      calls = spec.parse_known(field, text, table)
      quick = [x for x in calls if not isinstance(table, spec.Table) or table.at_hand(x.name)]
      spec.bind_calls(field, text, quick, table)


def check_ranges(config: Config) -> None:
  """Checks that the fields that are set are within their ranges."""
  flat = flatten(config)
  for name, field in FIELDS.items():
    value = flat.get(name)
    if value is None or (field.or_text and type(value) is not int):
      continue
    if field.range and (problem := field.range.problem(value)):
      raise UsageError(f'{name}={shown(value)}: {problem}')


def _check_average(config: Config) -> None:
  """Rejects an average that evaluations start, in a run without any."""
  average = spec.build('optim.ema', config.optim.ema, AVERAGES)
  if average is None or not average.patience:
    return
  judged = config.get('finetune') or config.eval.sets
  judged = judged or config.data.holdout != 'none'
  if not judged or not config.eval.every_steps:
    raise UsageError(
      f'optim.ema={config.optim.ema!r}: starts when evaluations get worse, and '
      f'with data.holdout={config.data.holdout!r} and eval.every_steps='
      f'{config.eval.every_steps} the run has none; set both, or give '
      'mean(start=...)'
    )


# Optimizers that treat each number of an array alone.
ELEMENTWISE = ('adagrad', 'adam', 'adamax', 'adamw', 'lion', 'none', 'sgd')


def _check_exact(config: Config) -> None:
  """Rejects sums that `batch.exact_over` does not add in its tree."""
  over = config.batch.exact_over
  if not over:
    return
  said = f'batch.exact_over={over}'
  if over & (over - 1):
    raise UsageError(f'{said}: must be a power of two; give {1 << over.bit_length()}')
  if config.get('finetune'):
    raise UsageError(f'{said}: is for pre-training; give 0')
  optimizer = spec.parse('optim.name', config.optim.name)[0].name
  choices = build.ModelChoices.of(config.model)
  routed = any(x.router for x in (*choices.ffn, *choices.encoder_ffn))
  for field, value, refused, reason, give in (
    (
      'optim.name',
      config.optim.name,
      optimizer not in ELEMENTWISE,
      'sums over whole arrays, in an order that depends on the mesh',
      f'give one of {", ".join(ELEMENTWISE)}',
    ),
    (
      'optim.outer',
      config.optim.outer,
      outer(config) is not None,
      'trains replicas apart, and their number is that of a part of the mesh',
      'give none',
    ),
    (
      'optim.state',
      config.optim.state,
      config.optim.state == 'host',
      'updates layers in a program of its own, whose bits were not compared',
      "give 'device'",
    ),
    (
      'model.ffn',
      config.model.ffn,
      routed,
      "balances experts over a micro-batch's tokens, on a mesh axis of their own",
      'give layers without experts',
    ),
    (
      'log.norms_every_steps',
      config.log.norms_every_steps,
      config.log.norms_every_steps,
      'sums over split arrays, in an order that depends on the mesh',
      'give 0',
    ),
    (
      'replay.every_steps',
      config.replay.every_steps,
      config.replay.every_steps,
      'compares replicas that compute equal shares of a batch at once',
      'give 0',
    ),
  ):
    if refused:
      raise UsageError(f'{field}={shown(value)}: {reason}, and {said} forbids that; {give}')
  rows = _virtual_rows(config)
  if 0 < (config.batch.micro_rows or 0) < rows:
    raise UsageError(
      f'batch.micro_rows={config.batch.micro_rows}: {said} computes the {rows} rows of a virtual '
      f'shard at once; give {rows} or more, or a larger exact_over'
    )


def _virtual_rows(config: Config) -> int:
  """The most rows of a virtual shard."""
  return -(-max(stage.rows for stage in ramp(config).stages) // config.batch.exact_over)


def fill_micro_rows(config: Config) -> None:
  """With `batch.exact_over`, an empty `batch.micro_rows`, or 0, is a virtual shard."""
  if config.batch.exact_over and not config.batch.micro_rows:
    config.batch.micro_rows = _virtual_rows(config)


def outer(config: Config) -> Outer | None:
  """The replicas that train apart, each on its share of a batch, if any."""
  return spec.build('optim.outer', config.optim.outer, OUTERS)


def validate(config: Config) -> None:
  """Checks the call-strings, and the fields against each other."""
  flat = flatten(config)
  choices = build.ModelChoices.of(config.model)
  for field, table in CALL_STRINGS.items():
    if field in flat and not field.startswith('model.'):
      spec.build(field, flat[field], table)
  _check_average(config)
  _check_exact(config)
  log_trackers.load(flat[log_trackers.FIELD])
  row_makers.check(config.data.rows, config.data.sentences)
  sharding.parse_rules(config.mesh.rules)
  model = config.model
  run = ramp(config)
  schedule(config)
  check_sizes(config)
  if model.num_heads % model.num_kv_heads:
    raise UsageError(
      f'model.num_heads={model.num_heads}: is not divisible by '
      f'model.num_kv_heads={model.num_kv_heads}; change one of them'
    )
  check_needs(config)
  check_depths(config)
  check_options(config)
  if reader := build.ModelChoices.of(model).input.reader:
    reader.check(config)
  stacks = (choices.encoder_ffn, choices.ffn)
  routers = [ffn.router for ffns in stacks for ffn in ffns if ffn.router]
  if len({router.num_experts for router in routers}) > 1:
    raise UsageError(
      f'model.ffn={model.ffn!r}: layers with different num_experts cannot be '
      'reported together; give all layers the same num_experts'
    )
  if choices.matmul and not all(router.limited(True) for router in routers):
    raise UsageError(
      f'model.matmul={model.matmul!r}: the kernels of experts without a '
      "capacity have no int8; take 'plain', or a capacity_factor in model.ffn"
    )
  # Whole batches; their micro-batches depend on the devices, and
  # `training.device_check` checks them.
  apart = outer(config)
  each = apart.replicas if apart else 1
  shapes = [(True, s.rows // each, s.length) for s in run.stages]
  shapes.append((False, config.eval.rows, run.longest))
  for side, ffns in enumerate(stacks):
    if side == 0 and not model.num_encoder_layers:
      continue
    for router in {ffn.router for ffn in ffns if ffn.router}:
      for training, rows, length in shapes:
        if router.limited(training):
          group = router.group_of(rows, sides(config, length)[side])
          router.capacity_of(group, training)


def _check_type(field: str, value: Any, default: Any, kind: type) -> None:
  if value is None:
    if default is not None:
      raise UsageError(f'{field}: must not be empty; its default is {shown(default)}')
    return
  if kind in KINDS and (not isinstance(value, kind) or (isinstance(value, bool) != (kind is bool))):
    if kind is float and type(value) is int:
      return
    raise UsageError(f'{field}={shown(value)}: must be {KINDS[kind]}')
