# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""DeBERTa's enhanced mask decoder (He et al. 2020, section 3.2).

Absolute positions come in late: the queries of the last layer have them, its
keys and values have not. Released code applies that layer twice, each time to
its own output, with the same keys and values.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax import spec
from gpt_jax.nn import layout
from gpt_jax.nn.attention import Attention
from gpt_jax.nn.choices import build
from gpt_jax.nn.context import Cache, Context
from gpt_jax.nn.convolution import FirstBlock
from gpt_jax.nn.layer_sizes import LayerSizes
from gpt_jax.nn.pattern import is_causal, period, sharing
from gpt_jax.nn.positions import POSITIONS
from gpt_jax.nn.stack import MirroredStack, SharedStack, Stack
from gpt_jax.spec import UsageError


class LateBlock(nn.Module):
  """A block that is applied `times` in the last of `num_layers` layers.

  z_0 = H + P; z_t = block(queries and residual z_(t - 1), keys and values H).
  In the backward pass each layer has room for what the repetitions store; with
  `remat='full'` that is their input alone. Parameters are those of the block.
  """

  block: Callable[..., nn.Module]
  times: int
  num_layers: int

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    context: Context,
    cache: Cache | None,
    layer: jax.Array,
  ) -> tuple[jax.Array, Cache | None]:
    """[B, L, D] -> [B, L, D]; `context.late_BLD` is P."""
    block = self.block()
    nn.share_scope(self, block)
    p_BLD, last = context.late_BLD, layer == self.num_layers - 1
    assert p_BLD is not None
    context = context._replace(source_BLD=x_BLD)
    z_BLD = x_BLD + jnp.where(last, p_BLD.astype(x_BLD.dtype), 0)
    z_BLD, cache = block(z_BLD, context, cache, layer)
    if self.times == 1 or self.is_initializing():
      return z_BLD, cache

    def again(block: nn.Module, z_BLD: jax.Array) -> jax.Array:
      for _ in range(self.times - 1):
        z_BLD, _ = block(z_BLD, context, None, layer)
      return z_BLD

    def kept(block: nn.Module, z_BLD: jax.Array) -> jax.Array:
      return z_BLD

    return nn.cond(last, again, kept, block, z_BLD), cache


def without(position: str) -> str:
  """`model.position` without a mask decoder: it is for pre-training alone."""
  found = spec.bind_all('model.position', position, POSITIONS)[0]
  if not found.kwargs.get('mask_decoder'):
    return position
  rest = {n: v for n, v in found.kwargs.items() if n != 'mask_decoder'}
  return spec.written(found._replace(args=(), kwargs=rest))


# Positions that are added before every layer (Al-Rfou et al. 2018).


class WithPositions(nn.Module):
  """block(x + the layer's own vectors of the positions).

  The paper's depth is why: the order would be lost on the way through 64
  layers. The block's parameters keep their names.
  """

  block: Callable[..., nn.Module]
  make_positions: Callable[..., nn.Module]

  def setup(self):
    """Creates the table, beside the block's parameters."""
    self.inner = self.block()
    nn.share_scope(self, self.inner)
    self.positions = self.make_positions()

  def __call__(
    self,
    x_BLD: jax.Array,
    context: Context,
    cache: Cache | None,
    layer: jax.Array,
  ) -> tuple[jax.Array, Cache | None]:
    """[B, L, D] -> [B, L, D] and the cache, as a block's."""
    x_BLD = layout.stream(self.positions(x_BLD, context.positions_BL))
    return self.inner(x_BLD, context, cache, layer)


# Makes the stacks of a model from its fields.


def make(
  model: Any,
  dtype: Any,
  attention: str,
  ffn: str,
  num_layers: int,
  sizes: LayerSizes,
  *,
  cross: bool,
) -> nn.Module:
  """A stack whose layers follow both lists and the fields of a Transformer."""
  biases, rates = build(model, 'bias'), build(model, 'dropout')
  position = build(model, 'position')
  block, norm = build(model, 'block'), build(model, 'norm')
  inits = build(model, 'init_weights')(model.num_layers)
  of_ffn = {
    'd_ff': sizes.d_ff,
    'bias': biases.ffn,
    'inits': inits,
    'dtype': dtype,
  }
  make_attention = functools.partial(
    Attention,
    position=position,
    num_heads=sizes.num_heads,
    num_kv_heads=sizes.num_kv_heads,
    head_size=sizes.head_size,
    value_size=sizes.value_size,
    scale=build(model, 'attention_scale'),
    backend=build(model, 'attention_backend'),
    bias_in=biases.qkv,
    bias_key=biases.key,
    bias_out=biases.out,
    dropout=rates.attention,
    inits=inits,
    dtype=dtype,
    norm=norm,
    qk_norm=block.qk_norm,
  )
  blocks = tuple(
    functools.partial(
      block.make,
      norm=norm,
      attention=functools.partial(make_attention, layer.attention),
      ffn=functools.partial(layer.ffn.make, **of_ffn),
      dropout=rates.residual,
      cross=cross,
    )
    for layer in period(attention, ffn, model.share)
  )
  if position.by_layer:
    make_positions = functools.partial(
      position.by_layer,
      context_length=model.context_length,
      initializer=inits.position,
    )
    blocks = tuple(
      functools.partial(WithPositions, block=one, make_positions=make_positions)
      for one in blocks
    )
  if position.convolution:
    if is_causal(attention, ffn):
      raise UsageError(
        f'model.attention={attention!r}: the convolution of model.position='
        f'{model.position!r} sees later tokens; take bidirectional, or '
        'convolution=0'
      )
    blocks = tuple(functools.partial(FirstBlock, make, norm) for make in blocks)
  if position.late:
    if model.block != 'post':
      raise UsageError(
        f'model.block={model.block!r}: the last layer of model.position='
        f'{model.position!r} reads what the one before it gave, as it is; '
        'take model.block=post, or mask_decoder=0'
      )
    blocks = tuple(
      functools.partial(LateBlock, make, position.late, num_layers)
      for make in blocks
    )
  shared = sharing(model.share)
  if shared.stacks and not cross:
    return MirroredStack(blocks, num_layers, model.remat, model.loop)
  if shared.parts:
    return SharedStack(blocks, num_layers, model.remat, model.loop, shared)
  return Stack(blocks, num_layers, model.remat, model.loop)


def of_source(fields: dict[str, Any], sizes: LayerSizes) -> dict[str, Any]:
  """Fields of the encoder before the encoder, of those of the whole model.

  Its layers have the `sizes` of the encoder's.
  """
  return fields | {
    **sizes._asdict(),
    'encoder_num_heads': 0,
    'encoder_d_ff': 0,
    'vocab_size': fields['source_vocab_size'] or fields['vocab_size'],
    'num_layers': fields['num_source_layers'],
    'num_encoder_layers': 0,
    'num_source_layers': 0,
    'source_vocab_size': 0,
    'attention': 'bidirectional',
    'ffn': fields['encoder_ffn'] or fields['ffn'],
    'output': 'tied',
  }


def bias(model: Any, attention: str, sizes: LayerSizes) -> nn.Module:
  """The module that gives all layers of a stack their bias on the scores."""
  patterns = [layer.attention for layer in period(attention, model.ffn)]
  if any(p.causal != patterns[0].causal for p in patterns):
    raise UsageError(
      f'model.attention={attention!r}: mixes causal and bidirectional layers,'
      f' which cannot share the bias of model.position={model.position!r}; '
      'take one kind, or another position'
    )
  return build(model, 'position').bias(
    num_heads=sizes.num_heads,
    head_size=sizes.head_size,
    pattern=patterns[0],
    initializer=build(model, 'init_weights')(model.num_layers).position,
  )
