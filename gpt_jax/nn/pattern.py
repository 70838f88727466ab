# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which attention and which feed-forward layer each layer has."""

import math
from typing import NamedTuple

from gpt_jax import spec
from gpt_jax.nn.ffn import FFNS, Choice
from gpt_jax.nn.masks import PATTERNS, Pattern
from gpt_jax.nn.sharing import SHARES, Sharing
from gpt_jax.spec import UsageError


class Layer(NamedTuple):
  """The two choices of one layer."""

  attention: Pattern
  ffn: Choice


def period(attention: str, ffn: str, share: str = 'none') -> list[Layer]:
  """The shortest sequence of layers that repeats over the depth.

  Each of the two comma lists repeats by itself: with 'full, local(window=5)'
  and 'gelu, gelu, switch(num_experts=8)' it is six layers; and so do the inner
  layers of a group that `share` names.
  """
  patterns = spec.build_all('model.attention', attention, PATTERNS)
  ffns = spec.build_all('model.ffn', ffn, FFNS)
  length = math.lcm(len(patterns), len(ffns), sharing(share).inner)
  return [
    Layer(patterns[i % len(patterns)], ffns[i % len(ffns)])
    for i in range(length)
  ]


def sharing(share: str) -> Sharing:
  """What `model.share` names."""
  return spec.build('model.share', share, SHARES)


def is_causal(attention: str, ffn: str) -> bool:
  """Whether no token sees a later one in any layer."""
  return all(layer.attention.causal for layer in period(attention, ffn))


def extra_tokens(attention: str) -> int:
  """How many tokens stand before a row that are none of its own.

  Raises:
    UsageError: the layers do not agree.
  """
  patterns = spec.build_all('model.attention', attention, PATTERNS)
  numbers = {p.blocks.extra if p.blocks else 0 for p in patterns}
  if len(numbers) > 1:
    raise UsageError(
      f'model.attention={attention!r}: only some of the layers have tokens '
      'beside those of the row; give all of them the same extra'
    )
  return numbers.pop()
