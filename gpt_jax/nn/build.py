# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Builds choices, layers and stacks from the fields of `config.model`."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from flax import linen as nn

from gpt_jax import spec
from gpt_jax.nn import layout
from gpt_jax.nn.attend import (
  ByDistance,
  DistanceProducts,
  Products,
  Request,
  Scale,
  Visibility,
)
from gpt_jax.nn.attention import Attention
from gpt_jax.nn.attention_dropout import AttentionDropout
from gpt_jax.nn.backends import Backend
from gpt_jax.nn.block import BlockChoice, FfnChoice
from gpt_jax.nn.choices import CHOICES, POSITIONS
from gpt_jax.nn.embed import Input
from gpt_jax.nn.heads import OutputHead
from gpt_jax.nn.int8 import Int8
from gpt_jax.nn.layers import Biases, Initializers, Rates
from gpt_jax.nn.masks import Order, Pattern, Recurrent, Tokens, bidirectional
from gpt_jax.nn.pipeline import Circular
from gpt_jax.nn.positions import Model, Position
from gpt_jax.nn.stack import Sharing, Stack
from gpt_jax.nn.transformer_xl import several
from gpt_jax.spec import UsageError


class Layer(NamedTuple):
  """The attention pattern and the feed-forward layer of one layer."""

  attention: Pattern
  ffn: FfnChoice


@dataclasses.dataclass(frozen=True)
class ModelChoices:
  """What the call-strings of a model name, each built once.

  Attributes:
    attention: the patterns of the comma list.
    encoder_attention: those of an encoder; bidirectional if the field is empty.
    ffn: the feed-forward layers of the comma list.
    encoder_ffn: those of an encoder, `ffn` if the field is empty.
    decoder: the shortest sequence of layers that repeats over the depth. The
      two comma lists repeat independently: 'full, local(window=5)' and 'gelu,
      gelu, switch(num_experts=8)' give six layers. So do the inner layers of a
      group in `share`.
    encoder: that of the encoder of an encoder-decoder.
  """

  input: Input
  position: Position
  attention: tuple[Pattern, ...]
  encoder_attention: tuple[Pattern, ...]
  attention_scale: Scale
  attention_backend: Backend
  ffn: tuple[FfnChoice, ...]
  encoder_ffn: tuple[FfnChoice, ...]
  norm: Callable[..., nn.Module]
  block: BlockChoice
  bias: Biases
  output: OutputHead
  dropout: Rates
  matmul: Int8 | None
  init_weights: Initializers
  share: Sharing
  pipeline: Circular
  decoder: tuple[Layer, ...]
  encoder: tuple[Layer, ...]

  @classmethod
  def of(cls, model: Any) -> 'ModelChoices':
    """The choices of a `Transformer`, or of a resolved `config.model`."""
    texts = (getattr(model, field) for field in CHOICES)
    return _choices(model.num_layers, *texts)

  @property
  def causal(self) -> bool:
    """Whether no token sees a later one in any layer of the decoder."""
    return all(pattern.causal for pattern in self.attention)

  @property
  def recurrent(self) -> tuple[Recurrent, ...]:
    """The layers over which a decoder of recurrent ones repeats; else none."""
    return recurrent(self.attention)

  @property
  def memory_width(self) -> int | None:
    """The width of a recurrent encoder's output; else None."""
    found = recurrent(self.encoder_attention)
    return found[-1].width if found else None

  @property
  def separate(self) -> bool:
    """Whether all layers are two LSTMs that never read each other."""
    found = [layer.directions == 'separate' for layer in self.recurrent]
    return bool(found) and all(found)

  @property
  def num_extra(self) -> int:
    """The number of extra global tokens before each row."""
    blocks = self.attention[0].blocks
    return blocks.extra if blocks else 0


def recurrent(patterns: Sequence[Pattern]) -> tuple[Recurrent, ...]:
  """The recurrent layers among those of a stack."""
  return tuple(p.recurrent for p in patterns if p.recurrent)


# The same models are asked about again and again.
@functools.lru_cache(256)
def _choices(num_layers: int, *texts: str | None) -> ModelChoices:
  """The choices that the texts of the fields of `CHOICES` name, in order."""
  given: dict[str, Any] = dict(zip(CHOICES, texts, strict=True))
  given['encoder_ffn'] = given['encoder_ffn'] or given['ffn']
  given['encoder_attention'] = given['encoder_attention'] or 'bidirectional'
  built: dict[str, Any] = {}
  for field, text in given.items():
    several = field.removeprefix('encoder_') in ('attention', 'ffn')
    build = spec.build_all if several else spec.build
    found = build(f'model.{field}', text, CHOICES[field])
    built[field] = tuple(found) if several else found
  built['init_weights'] = built['init_weights'](num_layers)
  patterns, inner = built['attention'], built['share'].inner
  if len({p.blocks.extra if p.blocks else 0 for p in patterns}) > 1:
    raise UsageError(
      f'model.attention={given["attention"]!r}: its layers have different '
      'numbers of extra tokens; give all of them the same extra'
    )
  return ModelChoices(
    **built,
    decoder=_period(patterns, built['ffn'], inner),
    encoder=_period(built['encoder_attention'], built['encoder_ffn'], inner),
  )


def _period(
  patterns: Sequence[Pattern], ffns: Sequence[FfnChoice], inner: int
) -> tuple[Layer, ...]:
  return tuple(
    Layer(patterns[i % len(patterns)], ffns[i % len(ffns)])
    for i in range(math.lcm(len(patterns), len(ffns), inner))
  )


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
        f'{getattr(model, name)} * {numerator} is not divisible by '
        f'{denominator}; give both stacks heads of the same total width'
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
  layers: Sequence[Layer],
  num_layers: int,
  sizes: LayerSizes,
  *,
  cross: bool,
) -> Stack:
  """A stack that repeats `layers`, with a Transformer's fields."""
  choices = ModelChoices.of(model)
  biases, rates, norm = choices.bias, choices.dropout, choices.norm
  position, block = choices.position, choices.block
  inits, shared = choices.init_weights, choices.share
  if layers_recurrent := recurrent([layer.attention for layer in layers]):
    blocks = (
      functools.partial(x.make, inits=inits, dtype=dtype)
      for x in layers_recurrent
    )
    widens = layers_recurrent[-1].width != model.d_model
    return Stack(
      *(tuple(blocks), num_layers, model.remat, model.loop), widens=widens
    )
  of_ffn = {
    'd_ff': sizes.d_ff,
    'bias': biases.ffn,
    'inits': inits,
    'dtype': dtype,
    'matmul': choices.matmul,
  }
  make_attention = functools.partial(
    Attention,
    position=position,
    num_heads=sizes.num_heads,
    num_kv_heads=sizes.num_kv_heads,
    head_size=sizes.head_size,
    value_size=sizes.value_size,
    scale=choices.attention_scale,
    backend=choices.attention_backend,
    bias_in=biases.qkv,
    bias_key=biases.key,
    bias_out=biases.out,
    dropout=rates.attention,
    inits=inits,
    dtype=dtype,
    norm=norm,
    qk_norm=block.qk_norm,
    matmul=choices.matmul,
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
    for layer in layers
  )
  if position.block:
    causal = all(layer.attention.causal for layer in layers)
    known = Model(model, norm, inits, dtype, num_layers, causal)
    blocks = tuple(position.block(make, known) for make in blocks)
  routed = any(layer.ffn.router for layer in layers)
  return Stack(
    blocks,
    num_layers,
    model.remat,
    model.loop,
    shared,
    mirrored=shared.stacks and not cross,
    circular=choices.pipeline._replace(together=routed),
    draws=bool(rates.residual or rates.attention or choices.matmul) or routed,
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
    'encoder_attention': None,
    'ffn': fields['encoder_ffn'] or fields['ffn'],
    'output': 'tied',
  }


def make_bias(
  model: Any, layers: Sequence[Layer], sizes: LayerSizes
) -> nn.Module:
  """The module that gives all layers of a stack their bias on the scores."""
  pattern = layers[0].attention
  if any(layer.attention.causal != pattern.causal for layer in layers):
    raise UsageError(
      f'model.attention={model.attention!r}: causal and bidirectional layers '
      f'cannot share the bias of model.position={model.position!r}; take one '
      'kind of layer, or another position'
    )
  choices = ModelChoices.of(model)
  make = choices.position.bias
  assert make, model.position
  return make(
    num_heads=sizes.num_heads,
    head_size=sizes.head_size,
    pattern=pattern,
    initializer=choices.init_weights.position,
  )


# Attention as a config asks for it, before anything is traced.


def requests(
  model: Any,
  sizes: LayerSizes,
  patterns: Sequence[Pattern],
  shape_BL: tuple[int, int],
  *,
  packed: bool = False,
  padded: bool = False,
  sees: Literal['', 'prefix', 'order'] = '',
  num_keys: int = 0,
) -> list[Request]:
  """The abstract requests of a stack to its backend: one for each pattern.

  And, with `num_keys`, one of cross-attention.

  Args:
    model: a `Transformer` or `config.model`.
    sizes: of the stack's layers.
    patterns: of the stack's layers, each once.
    shape_BL: rows of a batch as the model receives it, and their length.
    packed: whether rows hold documents that do not see each other.
    padded: whether rows may have padding that must be masked.
    sees: whether rows have a prefix, or an order.
    num_keys: tokens of the encoder's rows, to which the layers attend.
  """
  choices = ModelChoices.of(model)
  position, rate = choices.position, choices.dropout.attention
  before = 0
  if several(position, shape_BL[1], None):
    size = position.segment_length
    shape_BL = shape_BL[0] * -(-shape_BL[1] // size), size
    before, padded = position.memory, True
  shape_BM = shape_BL[0], before + shape_BL[1]
  seed: Any = jax.ShapeDtypeStruct((), np.uint32)
  rows: Any = jax.ShapeDtypeStruct(shape_BL[:1], np.uint32)

  def heads(
    number: int, size: int = sizes.head_size, shape: tuple = shape_BM
  ) -> Any:
    return jax.ShapeDtypeStruct((*shape, number, size), np.dtype(model.dtype))

  segments: Any = jax.ShapeDtypeStruct(shape_BL, np.int32)
  mask: Any = jax.ShapeDtypeStruct(shape_BM, np.bool_)
  query, key = heads(sizes.num_heads, shape=shape_BL), heads(sizes.num_kv_heads)
  value = heads(sizes.num_kv_heads, sizes.value_size or sizes.head_size)
  bias: Any = query if position.bias or position.terms else None
  if position.products:
    bias = DistanceProducts(Products(query, query))
  if position.by_distance:
    numbers = sizes.num_heads, 2 * shape_BL[1] - 1
    bias = ByDistance(jax.ShapeDtypeStruct(numbers, np.float32))  # pyright: ignore
  found = [
    Request(
      *(query, key, value, pattern),
      Visibility(
        mask if padded else None,
        segments if packed else None,
        rows if sees == 'prefix' else None,
        order=Order(segments, segments) if sees == 'order' else None,
      ),
      scale=1.0,
      bias=bias,
      dropout=AttentionDropout(rate, seed, rows) if rate else None,
      softcap=choices.attention_scale.softcap,
    )
    for pattern in patterns
    if not pattern.recurrent
  ]
  if not num_keys or not found:
    return found

  def encoded(like: Any) -> Any:
    shape = (shape_BL[0], num_keys, *like.shape[2:])
    return jax.ShapeDtypeStruct(shape, like.dtype)

  places: Any = jax.ShapeDtypeStruct((1, num_keys), np.int32)
  documents = encoded(segments) if packed else None
  across = found[0]._replace(
    k_BLGK=encoded(key),
    v_BLGK=encoded(value),
    pattern=bidirectional(),
    visibility=Visibility(segments_BL=segments if packed else None),
    bias=None,
    keys=Tokens(places, segments=documents, real=encoded(mask)),
  )
  return [*found, across]


def needs_whole_rows(model: Any) -> tuple[str, str] | None:
  """Why rows cannot be split over devices: a field of `model`, and its reason.

  None if they can.
  """
  choices = ModelChoices.of(model)
  if choices.position.terms:
    return 'position', 'scores by distances within whole rows'
  for pattern in (*choices.attention, *choices.encoder_attention):
    if pattern.blocks:
      return (
        'attention',
        f'the blocks of {pattern.name} are those of whole rows',
      )
    if pattern.recurrent:
      return 'attention', 'reads the tokens of a row one after the other'
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
  choices = ModelChoices.of(model)
  if (
    needs_whole_rows(model)
    or any(choices.dropout)
    or any(ffn.router for ffn in choices.ffn)
  ):
    return None
  patterns = choices.attention
  if not any(p.causal and p.window is None for p in patterns):
    return None
  layers = requests(model, decoder_sizes(model), patterns, (1, length))
  if not all(choices.attention_backend.zigzag(request) for request in layers):
    return None
  return zigzag(length, parts)


def zigzag(length: int, parts: int) -> np.ndarray:
  """The places of the parts' tokens, one part after the other, int32."""
  chunks = np.arange(length, dtype=np.int32).reshape(2 * parts, -1)
  pairs = np.stack([chunks[:parts], chunks[: parts - 1 : -1]], axis=1)
  return pairs.reshape(-1)
