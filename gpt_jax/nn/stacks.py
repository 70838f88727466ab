# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes the stacks of a model from its fields."""

import functools
from typing import Any

from flax import linen as nn

from gpt_jax.nn.attention import Attention
from gpt_jax.nn.choices import build
from gpt_jax.nn.convolution import FirstBlock
from gpt_jax.nn.late import LateBlock
from gpt_jax.nn.layer_positions import WithPositions
from gpt_jax.nn.layer_sizes import LayerSizes
from gpt_jax.nn.mirrored_stack import MirroredStack
from gpt_jax.nn.pattern import is_causal, period, sharing
from gpt_jax.nn.shared_stack import SharedStack
from gpt_jax.nn.stack import Stack
from gpt_jax.spec import UsageError


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
