# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether a config fits the devices: mesh, batch, rows, attention, experts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.config import Config
from gpt_jax.core.nn import pipeline
from gpt_jax.core.nn.attend import Request
from gpt_jax.core.nn.backends import Backend, backend_for, check
from gpt_jax.core.nn.build import ModelChoices, needs_whole_rows
from gpt_jax.core.nn.masks import Order
from gpt_jax.core.nn.transformer import model_class, requests
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.objectives import forward
from gpt_jax.core.optim.micro_batches import divided
from gpt_jax.core.rows.row_makers import is_packed
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import exact

Devices = Sequence[Any] | None


def mesh_of(config: Config, devices: Devices = None) -> Mesh:
  """The mesh of a resolved config; `devices` as of `check_devices`."""
  width = config_lib.width(config)
  return sharding.make_mesh(config.mesh, devices, width=width)


def check_devices(config: Config, devices: Devices = None) -> Mesh:
  """Checks mesh, batch and attention backend of a config against the devices.

  It is quick, and runs before any work is done.

  Args:
    config: resolved.
    devices: all of the run's; None: those of this process's backend. They may
      be compile-only devices.

  Returns:
    The mesh, for `parts.build`.
  """
  mesh = mesh_of(config, devices)
  rules = sharding.parse_rules(config.mesh.rules)
  rules_of = dict(rules)
  of_length = {
    stage.length: _micro_rows(config, mesh, rules_of, stage.rows)
    for stage in reversed(config_lib.ramp(config).stages)
  }
  check_mesh(config, mesh.shape, rules_of)
  if over := config.batch.exact_over:
    exact.check_threads(over, mesh)
  with sharding.use(mesh, rules):
    for name in ('', *config.models):
      with config_lib.named(name):
        model = config_lib.of_part(config, name).model
        choices = ModelChoices.of(model)
        # `auto` takes all but packed rows of some patterns; tracing takes time.
        takes_all = bool(choices.attention_backend.choice)
        takes_all = takes_all and not is_packed(config.data.rows)
        for length, rows in of_length.items():
          asked = attention_requests(config, name, rows, length)
          for _, backend, request in () if takes_all else asked:
            check(backend, request)
          if how := choices.matmul:
            of_encoder, tokens = config_lib.sides(config, length)
            if model.num_encoder_layers:
              tokens = max(of_encoder, tokens)
            # At least; the rest is checked where products are traced.
            split = (*rules_of['batch'], *rules_of.get('length', ()))
            parts = math.prod(mesh.shape[axis] for axis in split)
            how.check_tokens(rows * tokens // (parts // mesh.shape[pipeline.STAGE]))
  _check_experts(config, mesh, rules_of)
  return mesh


def attention(config: Config, rows: int, length: int) -> list[str]:
  """What computes the attention of each kind of layer, one line for each.

  Args:
    config: resolved; its mesh, or that of `sharding.on_one_tpu`, is in context.
    rows: of a micro-batch.
    length: of the rows, in tokens.
  """
  lines = []
  for name in ('', *config.models):
    for layer, backend, request in attention_requests(config, name, rows, length):
      why = ''
      if backend.choice:
        backend, why = backend.choice(request)
      where = f'{name} {layer}'.strip()
      lines.append(f'{where}: {backend.name}' + (f' ({why})' if why else ''))
  return list(dict.fromkeys(lines))


def attention_requests(
  config: Config, name: str, rows: int, length: int
) -> Iterator[tuple[str, Backend, Request]]:
  """The kinds of layers of a model, each with its backend and a request.

  Args:
    config: resolved.
    name: of one of `config.models`; '': the model itself.
    rows: of a micro-batch.
    length: of the rows, in tokens.
  """
  model = config_lib.transformer(config, name)
  choices = ModelChoices.of(model)
  # The vocabulary, not known before there is data, and experts, whose groups
  # may not divide so few rows, are nothing to attention.
  model = model.clone(
    vocab_size=model.vocab_size or 2**24,
    ffn='relu' if _routed(choices.ffn) else model.ffn,
    encoder_ffn='relu' if _routed(choices.encoder_ffn) else model.encoder_ffn,
  )
  of_encoder, of_decoder = config_lib.sides(config, length)
  row_mask = objectives.unbound(config.objective.name).row_mask

  def ids(tokens: int) -> Any:
    return np.zeros((rows, tokens), np.int32)

  # Zeros that are read for their shapes alone.
  batch: dict[str, Any] = {
    'inputs': forward.read(model, None, ids(of_decoder)),
    'sources': ids(of_encoder),
    'source_mask': ids(of_encoder) > 0,
  }
  if is_packed(config.data.rows):
    batch |= {
      'segments': ids(of_decoder),
      'positions': ids(of_decoder),
      'source_segments': ids(of_encoder),
      'source_positions': ids(of_encoder),
    }
  if row_mask == 'prefix' and not name:
    batch['prefix'] = np.zeros(rows, np.int32)
  if row_mask == 'order' and not name:
    batch['order'] = Order(ids(of_decoder), ids(of_decoder))
  layers = requests(model, model.row(batch))
  for asked in sorted(layers, key=lambda x: x.kind.startswith('encoder')):
    yield (asked.kind, backend_for(asked.request, choices.attention_backend), asked.request)


def _routed(ffns: Sequence[Any]) -> bool:
  """Whether some of the layers have experts."""
  return any(ffn.router for ffn in ffns)


def check_mesh(config: Config, sizes: Mapping[str, int], rules: dict) -> None:
  """Checks that experts, rows and layers can be split over the mesh.

  With `sharding.check_divisible`, for parameters, this is what `train` and
  `plan` refuse of a mesh.

  Args:
    config: resolved.
    sizes: of the mesh, by axis.
    rules: of `sharding.parse_rules`.
  """
  axes = rules.get('expert', ())
  parts = math.prod(sizes[a] for a in axes)
  for _, router in _routers(config, config_lib.ramp(config).longest):
    if router.num_experts % parts:
      raise UsageError(
        f'model.ffn={config.model.ffn!r}: {router.num_experts} experts do not '
        f'divide over the {parts} devices of mesh axes {", ".join(axes)}; '
        'change num_experts or the mesh'
      )
  if sizes[pipeline.STAGE] > 1:
    _check_stages(config, sizes[pipeline.STAGE], rules)
  if outer := config_lib.outer(config):
    _check_replicas(config, outer.replicas, sizes, rules)
  if over := config.batch.exact_over:
    exact.check_mesh(over, sizes, rules)
  axes = rules.get('length', ())
  parts = math.prod(sizes[a] for a in axes)
  if parts == 1:
    return
  said = ', '.join(f'mesh.{axis}={sizes[axis]}' for axis in axes)
  for stage in config_lib.ramp(config).stages:
    for length in config_lib.sides(config, stage.length):
      # Two chunks for each device, see `nn.zigzag`.
      if length % (2 * parts):
        raise UsageError(
          f'{said}: rows of {length} tokens are not divisible by {2 * parts}, '
          'two chunks for each device; change the mesh, model.context_length '
          'or batch.length'
        )
  for name in ('', *config.models):
    with config_lib.named(name):
      model = config_lib.of_part(config, name).model
      if whole := needs_whole_rows(model):
        field, reason = whole
        raise UsageError(
          f'model.{field}={model[field]!r}: {reason}, which {said} splits; '
          f'take another {field}, or '
          f'{" and ".join(f"mesh.{axis}=1" for axis in axes)}'
        )


def _check_stages(config: Config, stages: int, rules: dict) -> None:
  """Checks that the layers of all models form the stages of a pipeline."""
  said, named = f'mesh.stage={stages}', {'batch', 'layers'}
  staged = {name for name, axes in rules.items() if pipeline.STAGE in axes}
  if staged != named or rules['layers'] != (pipeline.STAGE,):
    raise UsageError(
      f"{said}: mesh.rules has 'stage' for "
      f'{", ".join(sorted(staged)) or "none"}; it splits layers, and them '
      'alone by it, and rows: give '
      "--config.mesh.rules.layers=stage and --config.mesh.rules.batch='data, "
      "stage, fsdp, expert', and no other rule with it"
    )
  for name in ('', *config.models):
    with config_lib.named(name):
      model = config_lib.of_part(config, name).model
      choices = ModelChoices.of(model)
      repeats, period = choices.pipeline.repeats, len(choices.decoder)
      share = choices.share
      for field, is_so, reason in (
        ('num_encoder_layers', model.num_encoder_layers, 'read the encoder'),
        ('share', share.parts, 'share parameters'),
        ('attention', choices.recurrent, 'are recurrent'),
        ('position', not model_class(model).in_stages, 'share values'),
      ):
        if is_so:
          raise UsageError(
            f'model.{field}={model[field]!r}: its layers {reason}, so that '
            f'{said} does not split the {model.num_layers}; give mesh.stage=1'
          )
      if model.num_layers % (stages * repeats * period):
        raise UsageError(
          f'{said}: the {model.num_layers} layers of model.num_layers do not '
          f'divide over {stages} stages x {repeats} repeats of whole periods '
          f'of {period} layers, {stages * repeats * period}; change mesh.stage '
          'or model.pipeline'
        )
      if choices.pipeline.weights == 'stage' and any(x.ffn.router for x in choices.decoder):
        raise UsageError(
          f"model.pipeline={model.pipeline!r}: with weights='stage' a device "
          'computes its rows alone, and the experts of model.ffn are for the '
          "tokens of several; give weights='layer'"
        )
      if repeats > 1 and model.remat == 'none':
        raise UsageError(
          f'model.pipeline={model.pipeline!r}: with {repeats} repeats '
          "model.remat='none' would store the weights once more for each step; "
          "give --config.model.remat=full, or 'dots'"
        )


def _check_replicas(config: Config, replicas: int, sizes: Mapping[str, int], rules: dict) -> None:
  """Checks that the mesh splits replicas that train apart, and rows alone."""
  said = f'optim.outer={config.optim.outer!r}'
  data = sizes[sharding.REPLICAS]
  if replicas % data:
    raise UsageError(
      f'{said}: its replicas do not divide over mesh.data={data}; give '
      f'replicas={data} or a multiple, or --config.mesh.data={replicas} and '
      '--config.mesh.fsdp=-1'
    )
  if sizes[pipeline.STAGE] > 1:
    raise UsageError(f'{said}: its replicas have no pipelines; give mesh.stage=1')
  if not sharding.replicas_apart(tuple(rules.items())):
    raise UsageError(
      f'{said}: mesh.rules splits more than the rows by data, over which its '
      "replicas send nothing; begin mesh.rules.batch with 'data', and leave it "
      'out of the other rules'
    )


def groups_fit(config: Config, rows: int, length: int) -> bool:
  """Whether rows of `length` tokens divide into whole groups of all routers."""
  return not any(
    router.group_size and rows * tokens % router.group_size
    for tokens, router in _routers(config, length)
  )


def groups_span_rows(config: Config) -> bool:
  """Whether a router takes groups of several rows.

  Which rows share a group then depends on the division into micro-batches.
  """
  return any(
    router.group_size > tokens
    for tokens, router in _routers(config, config_lib.ramp(config).longest)
  )


def _routers(config: Config, length: int) -> Iterator[tuple[int, Any]]:
  """Each layer's `moe.Router`, with the tokens that it sees of a row."""
  choices = ModelChoices.of(config.model)
  of_encoder, of_decoder = config_lib.sides(config, length)
  stacks = [(of_decoder, choices.ffn)]
  if config.model.num_encoder_layers:
    stacks.append((of_encoder, choices.encoder_ffn))
  for tokens, ffns in stacks:
    for ffn in ffns:
      if ffn.router:
        yield tokens, ffn.router


def _check_experts(config: Config, mesh: Mesh, rules: dict) -> None:
  """Checks the groups of experts; see `check_devices`."""
  for length, router in _routers(config, config_lib.ramp(config).longest):
    if router.limited(training=False):
      rows = _at_once(config, mesh, rules, eval_rows(config, mesh, rules))
      router.group_of(rows, length)
  outer = config_lib.outer(config)
  for stage in config_lib.ramp(config).stages:
    rows = _micro_rows(config, mesh, rules, stage.rows)
    rows //= outer.replicas if outer else 1
    for length, router in _routers(config, stage.length):
      if router.limited(training=True):
        router.group_of(rows, length)


def _micro_rows(config: Config, mesh: Mesh, rules: dict, num_rows: int) -> int:
  """Rows of a micro-batch of a stage, over all devices that share a layer."""
  parts = math.prod(mesh.shape[a] for a in rules['batch'])
  if over := config.batch.exact_over:
    return -(-num_rows // over) * parts
  micro_rows = config.batch.micro_rows
  micro = divided(num_rows, num_shards=parts, micro_rows=micro_rows)
  return _at_once(config, mesh, rules, micro.rows(num_rows))


def _at_once(config: Config, mesh: Mesh, rules: dict, rows: int) -> int:
  """How many of the rows over all devices go through a layer together."""
  stages = mesh.shape[pipeline.STAGE]
  if stages == 1:
    return rows
  parts = math.prod(mesh.shape[a] for a in rules['batch'])
  how = ModelChoices.of(config.model).pipeline
  return parts // stages * how.at_once(rows // parts)


def eval_rows(config: Config, mesh: Mesh, rules: dict) -> int:
  """`eval.rows`, raised to a multiple of the shards of a batch."""
  parts = config.batch.exact_over or math.prod(mesh.shape[a] for a in rules['batch'])
  return -(-config.eval.rows // parts) * parts
