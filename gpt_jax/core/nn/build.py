# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Builds choices, layers and stacks from the fields of `config.model`."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flax import linen as nn

from gpt_jax.core import spec
from gpt_jax.core.nn.attend import Scale
from gpt_jax.core.nn.attention import Attention
from gpt_jax.core.nn.backends import Backend
from gpt_jax.core.nn.block import Block, BlockChoice, FfnChoice
from gpt_jax.core.nn.choices import CHOICES, POSITIONS
from gpt_jax.core.nn.embed import Input
from gpt_jax.core.nn.heads import OutputHead
from gpt_jax.core.nn.layers import Biases, Initializers, Matmul, Rates
from gpt_jax.core.nn.masks import Pattern, Recurrent
from gpt_jax.core.nn.pipeline import Circular
from gpt_jax.core.nn.positions import Model, Position
from gpt_jax.core.nn.stack import Sharing, Stack
from gpt_jax.core.spec import UsageError


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
  matmul: Matmul | None
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
  block: Callable[..., nn.Module] = Block,
  stack: type[Stack] = Stack,
) -> Stack:
  """A stack that repeats `layers`, with the fields of a `Transformer`.

  Args:
    block: the class of the blocks.
    stack: its own class.
  """
  choices = ModelChoices.of(model)
  rates, norm, inits = choices.dropout, choices.norm, choices.init_weights
  if layers_recurrent := recurrent([layer.attention for layer in layers]):
    return layers_recurrent[0].make_stack(
      layers_recurrent, model, num_layers, inits=inits, dtype=dtype
    )
  make_attention = functools.partial(
    Attention,
    position=choices.position,
    num_heads=sizes.num_heads,
    num_kv_heads=sizes.num_kv_heads,
    head_size=sizes.head_size,
    value_size=sizes.value_size,
    scale=choices.attention_scale,
    backend=choices.attention_backend,
    bias_in=choices.bias.qkv,
    bias_key=choices.bias.key,
    bias_out=choices.bias.out,
    dropout=rates.attention,
    inits=inits,
    dtype=dtype,
    norm=norm,
    qk_norm=choices.block.qk_norm,
    matmul=choices.matmul,
  )
  blocks = tuple(
    functools.partial(
      block,
      choices.block.places,
      norm=norm,
      attention=functools.partial(make_attention, layer.attention),
      ffn=functools.partial(
        layer.ffn.make,
        d_ff=sizes.d_ff,
        bias=choices.bias.ffn,
        inits=inits,
        dtype=dtype,
        matmul=choices.matmul,
      ),
      dropout=rates.residual,
    )
    for layer in layers
  )
  if choices.position.block:
    causal = all(layer.attention.causal for layer in layers)
    properties = Model(model, norm, inits, dtype, num_layers, causal)
    blocks = tuple(choices.position.block(make, properties) for make in blocks)
  routed = any(layer.ffn.router for layer in layers)
  return stack(
    blocks,
    num_layers,
    model.remat,
    model.loop,
    choices.share,
    circular=choices.pipeline._replace(together=routed),
    draws=bool(rates.residual or rates.attention or choices.matmul) or routed,
  )


def make_bias(model: Any, layers: Sequence[Layer], sizes: LayerSizes) -> nn.Module:
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


def needs_whole_rows(model: Any) -> tuple[str, str] | None:
  """Why rows cannot be split over devices: a field of `model`, and its reason.

  None if they can.
  """
  choices = ModelChoices.of(model)
  if choices.position.terms:
    return 'position', 'scores by distances within whole rows'
  for pattern in (*choices.attention, *choices.encoder_attention):
    if pattern.blocks:
      return ('attention', f'the blocks of {pattern.name} are those of whole rows')
    if pattern.recurrent:
      return 'attention', 'reads the tokens of a row one after the other'
  return None
