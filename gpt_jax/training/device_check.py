# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether a config fits the devices: mesh, batch, rows, attention, experts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from gpt_jax import config as config_lib
from gpt_jax import sharding, spec
from gpt_jax.config import Config
from gpt_jax.nn.attend import Request, Visibility
from gpt_jax.nn.backends import BACKENDS, check
from gpt_jax.nn.build import (
  POSITIONS,
  LayerSizes,
  decoder_sizes,
  encoder_sizes,
  period,
)
from gpt_jax.nn.layers import DROPOUTS, Dropout
from gpt_jax.nn.masks import PATTERNS
from gpt_jax.nn.moe import Router
from gpt_jax.optim.micro_batches import divided
from gpt_jax.rows.row_makers import is_packed
from gpt_jax.spec import UsageError

# Attention: whether the backend can serve a config.
#
# Tracing the model would tell, but only once its data are prepared.


def check_attention(
  model: Any,
  sizes: LayerSizes,
  attention: str,
  shape_BL: tuple[int, int],
  *,
  packed: bool = False,
  padded: bool = False,
) -> None:
  """Checks that the backend supports each attention pattern of a stack.

  The current mesh counts, as it does for the backends. A backend may still
  refuse what only batches show, such as padding.

  Args:
    model: `config.model`.
    sizes: of the stack's layers.
    attention: `model.attention`, or that of the encoder of an encoder-decoder.
    shape_BL: rows of a batch as the model receives it, and their length.
    packed: whether rows hold documents that do not see each other.
    padded: whether rows may have padding that must be masked.
  """
  backend = spec.build(
    'model.attention_backend', model.attention_backend, BACKENDS
  )
  position = spec.build('model.position', model.position, POSITIONS)
  rates = spec.build('model.dropout', model.dropout, DROPOUTS)

  def heads(number: int, size: int = sizes.head_size) -> Any:
    shape = (*shape_BL, number, size)
    return jax.ShapeDtypeStruct(shape, jnp.dtype(model.dtype))

  segments: Any = jax.ShapeDtypeStruct(shape_BL, jnp.int32)
  mask: Any = jax.ShapeDtypeStruct(shape_BL, jnp.bool_)
  query, key = heads(sizes.num_heads), heads(sizes.num_kv_heads)
  value = heads(sizes.num_kv_heads, sizes.value_size or sizes.head_size)
  biased = position.bias is not None or position.terms is not None
  for pattern in spec.build_all('model.attention', attention, PATTERNS):
    request = Request(
      query,
      key,
      value,
      pattern,
      Visibility(mask if padded else None, segments if packed else None),
      scale=1.0,
      bias=query if biased else None,
      dropout=Dropout(rates.attention) if rates.attention else None,
    )
    check(backend, request)


Devices = Sequence[Any] | None


def mesh_of(config: Config, devices: Devices = None) -> Mesh:
  """The mesh of a resolved config; `devices` as of `check_devices`."""
  width = config_lib.width(config)
  return sharding.make_mesh(config.mesh, devices, width=width)


def check_devices(config: Config, devices: Devices = None) -> None:
  """Checks mesh, batch and attention backend of a config against the devices.

  It is quick, and runs before any work is done.

  Args:
    config: resolved.
    devices: all of the run's; None: those of this process's backend.
  """
  mesh = mesh_of(config, devices)
  rules = sharding.parse_rules(config.mesh.rules)
  of_length = {
    stage.length: _micro_rows(config, mesh, dict(rules), stage.rows)
    for stage in reversed(config_lib.ramp(config).stages)
  }
  check_context(config, mesh.shape, dict(rules))
  with sharding.use(mesh, rules):
    for name in ('', *config.models):
      with config_lib.named(name):
        for length, rows in of_length.items():
          part = config_lib.of_part(config, name).model
          of_encoder, of_decoder = config_lib.sides(config, length)
          packed = is_packed(config.data.rows)
          check_attention(
            *(part, decoder_sizes(part), part.attention),
            (rows, of_decoder),
            packed=packed,
          )
          if part.num_encoder_layers:
            check_attention(
              *(part, encoder_sizes(part), 'bidirectional'),
              (rows, of_encoder),
              packed=packed,
              padded=True,
            )
  _check_experts(config, mesh, dict(rules))


def check_context(
  config: Config, sizes: Mapping[str, int], rules: dict
) -> None:
  """Checks that rows can be split over the mesh as its rules say.

  Args:
    config: resolved.
    sizes: of the mesh, by axis.
    rules: of `sharding.parse_rules`.
  """
  axes = rules.get('length', ())
  parts = math.prod(sizes[a] for a in axes)
  if parts == 1:
    return
  said = ', '.join(f'mesh.{axis}={sizes[axis]}' for axis in axes)
  for stage in config_lib.ramp(config).stages:
    for length in config_lib.sides(config, stage.length):
      # Two chunks for each device, see `nn.build.zigzag`.
      if length % (2 * parts):
        raise UsageError(
          f'{said}: rows of {length} tokens do not divide by {2 * parts}, two '
          'chunks for each device; change the mesh, model.context_length or '
          'batch.length'
        )
  for name in ('', *config.models):
    with config_lib.named(name):
      model = config_lib.of_part(config, name).model
      if spec.build('model.position', model.position, POSITIONS).terms:
        raise UsageError(
          f'model.position={model.position!r}: scores by distances within '
          f'whole rows, which {said} splits; take another position, or '
          f'{" and ".join(f"mesh.{axis}=1" for axis in axes)}'
        )
      if any(x.attention.blocks for x in period(model.attention, model.ffn)):
        raise UsageError(
          f'model.attention={model.attention!r}: the blocks of bigbird are '
          f'those of whole rows, which {said} splits; take another attention, '
          f'or {" and ".join(f"mesh.{axis}=1" for axis in axes)}'
        )


def groups_fit(config: Config, rows: int, length: int) -> bool:
  """Whether rows of `length` tokens divide into whole groups of all routers."""
  return not any(
    router.group_size and rows * tokens % router.group_size
    for tokens, router in _routers(config, length)
  )


def _routers(config: Config, length: int) -> Iterator[tuple[int, Router]]:
  """The routers of all layers, each with the tokens that it sees of a row."""
  model = config.model
  of_encoder, of_decoder = config_lib.sides(config, length)
  stacks = [(of_decoder, period(model.attention, model.ffn))]
  if model.num_encoder_layers:
    ffn = model.encoder_ffn or model.ffn
    stacks.append((of_encoder, period('bidirectional', ffn)))
  for tokens, layers in stacks:
    for layer in layers:
      if layer.ffn.router:
        yield tokens, layer.ffn.router


def _check_experts(config: Config, mesh: Mesh, rules: dict) -> None:
  """Checks the layers with experts; see `check_devices`."""
  axes = rules.get('expert', ())
  parts = math.prod(mesh.shape[a] for a in axes)
  for length, router in _routers(config, config_lib.ramp(config).longest):
    if router.num_experts % parts:
      raise UsageError(
        f'model.ffn={config.model.ffn!r}: {router.num_experts} experts do not '
        f'divide over the {parts} devices of mesh axes {", ".join(axes)}; '
        'change num_experts or the mesh'
      )
    if router.limited(training=False):
      router.group_of(eval_rows(config, mesh, rules), length)
  for stage in config_lib.ramp(config).stages:
    rows = _micro_rows(config, mesh, rules, stage.rows)
    for length, router in _routers(config, stage.length):
      if router.limited(training=True):
        router.group_of(rows, length)


def _micro_rows(config: Config, mesh: Mesh, rules: dict, num_rows: int) -> int:
  """Rows of a micro-batch of a stage, over all devices."""
  parts = math.prod(mesh.shape[a] for a in rules['batch'])
  micro_rows = config.batch.micro_rows
  return divided(num_rows, num_shards=parts, micro_rows=micro_rows).rows(
    num_rows
  )


def eval_rows(config: Config, mesh: Mesh, rules: dict) -> int:
  """`eval.rows`, raised to a multiple of the shards of a batch."""
  parts = math.prod(mesh.shape[a] for a in rules['batch'])
  return -(-config.eval.rows // parts) * parts
