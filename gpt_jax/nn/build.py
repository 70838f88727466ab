# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Builds choices, layers and stacks from the fields of `config.model`."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen as nn

from gpt_jax import spec
from gpt_jax.nn import layout
from gpt_jax.nn.attend import SCALES, Request, Visibility
from gpt_jax.nn.attention import Attention
from gpt_jax.nn.backends import BACKENDS
from gpt_jax.nn.block import BLOCKS, FFNS, FfnChoice
from gpt_jax.nn.deberta import deberta
from gpt_jax.nn.embed import INPUTS
from gpt_jax.nn.heads import OUTPUTS
from gpt_jax.nn.layers import BIASES, DROPOUTS, INITS, NORMS, Dropout
from gpt_jax.nn.masks import PATTERNS, Pattern
from gpt_jax.nn.positions import (
  Model,
  alibi,
  learned,
  learned_by_layer,
  none,
  rope,
  sinusoidal,
  t5_bias,
)
from gpt_jax.nn.stack import SHARES, Sharing, Stack
from gpt_jax.nn.transformer_xl import transformer_xl, xlnet
from gpt_jax.spec import UsageError

POSITIONS = {
  'alibi': alibi,
  'deberta': deberta,
  'learned': learned,
  'learned_by_layer': learned_by_layer,
  'none': none,
  'rope': rope,
  'sinusoidal': sinusoidal,
  't5_bias': t5_bias,
  'transformer_xl': transformer_xl,
  'xlnet': xlnet,
}


CHOICES: dict[str, Mapping[str, Callable[..., Any]]] = {
  'input': INPUTS,
  'position': POSITIONS,
  'attention': PATTERNS,
  'attention_scale': SCALES,
  'attention_backend': BACKENDS,
  'ffn': FFNS,
  'encoder_ffn': FFNS,
  'norm': NORMS,
  'block': BLOCKS,
  'bias': BIASES,
  'output': OUTPUTS,
  'dropout': DROPOUTS,
  'init_weights': INITS,
  'share': SHARES,
}


def build(model: Any, field: str) -> Any:
  """Builds the choice that a call-string field of a `Transformer` names."""
  return spec.build(f'model.{field}', getattr(model, field), CHOICES[field])


class Layer(NamedTuple):
  """The attention pattern and the feed-forward layer of one layer."""

  attention: Pattern
  ffn: FfnChoice


def period(attention: str, ffn: str, share: str = 'none') -> list[Layer]:
  """The shortest sequence of layers that repeats over the depth.

  The two comma lists repeat independently: 'full, local(window=5)' and 'gelu,
  gelu, switch(num_experts=8)' give six layers. So do the inner layers of a
  group in `share`.
  """
  patterns = spec.build_all('model.attention', attention, PATTERNS)
  ffns = spec.build_all('model.ffn', ffn, FFNS)
  length = math.lcm(len(patterns), len(ffns), sharing(share).inner)
  return [
    Layer(patterns[i % len(patterns)], ffns[i % len(ffns)])
    for i in range(length)
  ]


def sharing(share: str) -> Sharing:
  """The sharing that `model.share` names."""
  return spec.build('model.share', share, SHARES)


def is_causal(attention: str, ffn: str) -> bool:
  """Whether no token sees a later one in any layer."""
  return all(layer.attention.causal for layer in period(attention, ffn))


def extra_tokens(attention: str) -> int:
  """The number of extra global tokens before each row."""
  patterns = spec.build_all('model.attention', attention, PATTERNS)
  numbers = {p.blocks.extra if p.blocks else 0 for p in patterns}
  if len(numbers) > 1:
    raise UsageError(
      f'model.attention={attention!r}: its layers have different numbers of '
      'extra tokens; give all of them the same extra'
    )
  return numbers.pop()


class LayerSizes(NamedTuple):
  """The sizes of one stack, named as in `config.model`."""

  num_heads: int
  num_kv_heads: int
  head_size: int
  value_size: int  # 0: `head_size`
  d_ff: int


def decoder_sizes(model: Any) -> LayerSizes:
  """The decoder's sizes in `model`, a `Transformer` or `config.model`."""
  return LayerSizes(*(getattr(model, n) for n in LayerSizes._fields))


def encoder_sizes(model: Any) -> LayerSizes:
  """The encoder's sizes: the decoder's unless `encoder_...` fields differ."""
  sizes = decoder_sizes(model)._replace(d_ff=model.encoder_d_ff or model.d_ff)
  number = model.encoder_num_heads
  if not number:
    return sizes

  def parted(name: str, numerator: int, denominator: int) -> int:
    size, rest = divmod(getattr(model, name) * numerator, denominator)
    if rest:
      raise UsageError(
        f'model.encoder_num_heads={number}: model.{name}='
        f'{getattr(model, name)} * {numerator} does not divide by '
        f'{denominator}; the heads of both stacks must be as wide together'
      )
    return size

  return sizes._replace(
    num_heads=number,
    num_kv_heads=parted('num_kv_heads', number, model.num_heads),
    head_size=parted('head_size', model.num_heads, number),
    value_size=parted('value_size', model.num_heads, number),
  )


def without_mask_decoder(position: str) -> str:
  """`model.position` without a mask decoder: it is for pre-training alone."""
  found = spec.bind_all('model.position', position, POSITIONS)[0]
  if not found.kwargs.get('mask_decoder'):
    return position
  rest = {n: v for n, v in found.kwargs.items() if n != 'mask_decoder'}
  return spec.written(found._replace(args=(), kwargs=rest))


# Stacks of a model.


def make_stack(
  model: Any,
  dtype: Any,
  attention: str,
  ffn: str,
  num_layers: int,
  sizes: LayerSizes,
  *,
  cross: bool,
) -> Stack:
  """A stack with layers from both comma lists and a Transformer's fields."""
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
  if position.block:
    known = Model(
      model, norm, inits, dtype, num_layers, is_causal(attention, ffn)
    )
    blocks = tuple(position.block(make, known) for make in blocks)
  shared = sharing(model.share)
  return Stack(
    blocks,
    num_layers,
    model.remat,
    model.loop,
    shared,
    mirrored=shared.stacks and not cross,
  )


def source_fields(fields: dict[str, Any], sizes: LayerSizes) -> dict[str, Any]:
  """The fields of the source encoder, from those of the whole model.

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


def make_bias(model: Any, attention: str, sizes: LayerSizes) -> nn.Module:
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


# Attention as a config asks for it, before anything is traced.


def requests(
  model: Any,
  sizes: LayerSizes,
  attention: str,
  shape_BL: tuple[int, int],
  *,
  packed: bool = False,
  padded: bool = False,
) -> list[Request]:
  """The abstract requests of a stack to its backend: one for each pattern.

  Args:
    model: a `Transformer` or `config.model`.
    sizes: of the stack's layers.
    attention: `model.attention`, or that of the encoder of an encoder-decoder.
    shape_BL: rows of a batch as the model receives it, and their length.
    packed: whether rows hold documents that do not see each other.
    padded: whether rows may have padding that must be masked.
  """
  position, rate = build(model, 'position'), build(model, 'dropout').attention

  def heads(number: int, size: int = sizes.head_size) -> Any:
    return jax.ShapeDtypeStruct(
      (*shape_BL, number, size), np.dtype(model.dtype)
    )

  segments: Any = jax.ShapeDtypeStruct(shape_BL, np.int32)
  mask: Any = jax.ShapeDtypeStruct(shape_BL, np.bool_)
  query, key = heads(sizes.num_heads), heads(sizes.num_kv_heads)
  value = heads(sizes.num_kv_heads, sizes.value_size or sizes.head_size)
  biased = position.bias is not None or position.terms is not None
  return [
    Request(
      *(query, key, value, pattern),
      Visibility(mask if padded else None, segments if packed else None),
      scale=1.0,
      bias=query if biased else None,
      dropout=Dropout(rate) if rate else None,
      softcap=build(model, 'attention_scale').softcap,
    )
    for pattern in spec.build_all('model.attention', attention, PATTERNS)
  ]


def needs_whole_rows(model: Any) -> tuple[str, str] | None:
  """Why rows cannot be split over devices: a field of `model`, and its reason.

  None if they can.
  """
  if build(model, 'position').terms:
    return 'position', 'scores by distances within whole rows'
  for pattern in spec.build_all('model.attention', model.attention, PATTERNS):
    if pattern.blocks:
      return (
        'attention',
        f'the blocks of {pattern.name} are those of whole rows',
      )
  return None


def zigzag_places(model: Any, length: int) -> np.ndarray | None:
  """The place of each token in the row, int32 [length]; None: in order.

  Rows stay in order if the load is even anyway (no layer sees all earlier
  tokens), or if results depend on the order: the random numbers of dropout and
  the capacity of experts would depend on the mesh.

  Args:
    model: a `Transformer`; the mesh is the one in context.
    length: of the rows.
  """
  parts = layout.num_parts('length')
  if parts == 1 or length % (2 * parts) or model.num_encoder_layers:
    return None
  if (
    needs_whole_rows(model)
    or any(build(model, 'dropout'))
    or any(layer.ffn.router for layer in period(model.attention, model.ffn))
  ):
    return None
  backend = build(model, 'attention_backend')
  layers = requests(model, decoder_sizes(model), model.attention, (1, length))
  patterns = [request.pattern for request in layers]
  if not any(p.causal and p.window is None for p in patterns):
    return None
  if not all(backend.zigzag(request) for request in layers):
    return None
  return zigzag(length, parts)


def zigzag(length: int, parts: int) -> np.ndarray:
  """The places of the parts' tokens, one part after the other, int32."""
  chunks = np.arange(length, dtype=np.int32).reshape(2 * parts, -1)
  pairs = np.stack([chunks[:parts], chunks[: parts - 1 : -1]], axis=1)
  return pairs.reshape(-1)
