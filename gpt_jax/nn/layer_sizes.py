# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sizes of the layers of each stack.

An encoder may have another number of heads than its decoder, and another width
of the feed-forward layers (distilled BART and Marian). All of a stack's heads
are as wide together as those of the other.
"""

from typing import Any, NamedTuple

from gpt_jax.spec import UsageError


class LayerSizes(NamedTuple):
  """Of one stack, in the words of `config.model`."""

  num_heads: int
  num_kv_heads: int
  head_size: int
  value_size: int  # 0: `head_size`
  d_ff: int


def of_decoder(model: Any) -> LayerSizes:
  """Those of `model`, a `Transformer` or `config.model`."""
  return LayerSizes(*(getattr(model, n) for n in LayerSizes._fields))


def of_encoder(model: Any) -> LayerSizes:
  """As of the decoder, but for what the fields `encoder_...` say."""
  sizes = of_decoder(model)._replace(d_ff=model.encoder_d_ff or model.d_ff)
  number = model.encoder_num_heads
  if not number:
    return sizes

  def parted(name: str, numerator: int, denominator: int) -> int:
    size, rest = divmod(getattr(model, name) * numerator, denominator)
    if rest:
      raise UsageError(
        f'model.encoder_num_heads={number}: model.{name}='
        f'{getattr(model, name)} * {numerator} does not divide by '
        f'{denominator}; the heads of both stacks are as wide together'
      )
    return size

  return sizes._replace(
    num_heads=number,
    num_kv_heads=parted('num_kv_heads', number, model.num_heads),
    head_size=parted('head_size', model.num_heads, number),
    value_size=parted('value_size', model.num_heads, number),
  )
