# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Position encodings: absolute, rotary, and relative biases.

A choice implements some of four hooks: vectors added to the embeddings, a
rotation of queries and keys, a bias on the scores that all layers share, or
terms of each layer's scores, computed from its queries and keys. Those of
Transformer-XL and XLNet are in `transformer_xl`, DeBERTa's in `deberta`.
"""

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from gpt_jax.core import spec
from gpt_jax.core.nn import layout
from gpt_jax.core.nn.kv_cache import Cache, KVCache
from gpt_jax.core.nn.layers import Initializer, Initializers, parameter
from gpt_jax.core.nn.layout import platform
from gpt_jax.core.nn.masks import Pattern
from gpt_jax.core.nn.row import Context
from gpt_jax.core.ranges import Count, NotNegative, OneOf, Positive, Share, Whole
from gpt_jax.core.spec import UsageError

# The hooks of a position encoding.


Rotate = Callable[[jax.Array, jax.Array], jax.Array]
Factory = Callable[..., nn.Module]


class Model(NamedTuple):
  """The properties of a model or stack that a position encoding can use.

  Attributes:
    fields: the `Transformer`, whose fields are those of `config.model`.
    norm: makes a norm.
    inits: initialisers.
    causal: whether no token sees a later one in any layer of the stack.
  """

  fields: Any
  norm: Factory
  inits: Initializers
  dtype: Any
  num_layers: int
  causal: bool


class Position(NamedTuple):
  """The hooks; None where a choice does not use one.

  Attributes:
    embed: makes a module with the call of `LearnedPositions`.
    rotate: queries or keys [B, L, H, K] and positions [B or 1, L] to the same.
    rotate_local: replaces `rotate` in `Pattern.local` layers; None: as
      `rotate`.
    bias: makes a module with the call of `AlibiBias`.
    by_distance: whether that depends on the distance alone.
    terms: makes a module for each layer, called as `ScoreInputs` describes.
    block: from a partial `block.Block` and `Model` to a factory of extended
      blocks, with the block's parameters.
    recurrence: how rows are cut into segments, and what is kept of them, as
      `transformer_xl.Recurrence`; None: a row is a whole.
    model: the class of the models that have it; None: any.
    settings: what that class reads of the choice.
    last_layer_runs: how often a decoder's last layer is applied (DeBERTa).
  """

  embed: Callable[..., nn.Module] | None = None
  rotate: Rotate | None = None
  rotate_local: Rotate | None = None
  bias: Callable[..., nn.Module] | None = None
  by_distance: bool = False
  terms: Callable[..., nn.Module] | None = None
  block: 'Callable[[Any, Model], Factory] | None' = None
  recurrence: Any = None
  model: type[nn.Module] | None = None
  settings: Any = None
  last_layer_runs: int = 1

  def rotation(self, pattern: Pattern) -> Rotate | None:
    """The rotation of a layer's queries and keys, if any."""
    if pattern.local and self.rotate_local is not None:
      return self.rotate_local
    return self.rotate


ScoreBias = Any  # as in `attend.Request`


class ScoreInputs(NamedTuple):
  """Queries [B, L, H, K] and keys [B, M, G, K], with their positions.

  A module of `Position.terms` is called with these alone and returns the
  queries, changed or not, and a bias on the scores: [B or 1, H, L, M], or as
  products with vectors of distances, or None. score = scale * queries' keys +
  bias, so that the bias is already scaled.

  Attributes:
    q_BLHK: queries.
    k_BMGK: keys, of which the last are the row's; only those of the new tokens
      if the others are in a cache.
    context: positions, visibility, and the layers' other shared inputs.
    cache: its slots, M of them, are the positions 0, 1, 2, ...; None: the
      queries stand where the last L keys do.
    pattern: which keys are seen.
    layer: index of the layer, from 0.
    scale: of the products of queries and keys.
    d_model: width of the hidden states.
  """

  q_BLHK: jax.Array
  k_BMGK: jax.Array
  context: Context
  cache: KVCache | None
  pattern: Pattern
  layer: jax.Array
  scale: float | jax.Array
  d_model: int

  @property
  def num_keys(self) -> int:
    """M."""
    if self.cache is not None:
      return self.cache.num_slots
    return self.k_BMGK.shape[1]


# Sines and cosines of positions or distances.


def sinusoids(positions: jax.Array, d_model: int, *, layout: str) -> jax.Array:
  """Sines and cosines of positions / 10000^(2 i / d_model), float32.

  `interleaved` puts sine and cosine of one wave side by side (the paper's);
  `halves` puts all sines before all cosines (tensor2tensor, Transformer-XL). If
  `d_model` is odd, the last wave has a sine alone.
  """
  waves = 10_000.0 ** (-np.arange(0, d_model, 2) / d_model)
  waves = jnp.asarray(waves, jnp.float32)
  lead = (1,) * positions.ndim + (-1,)
  angles = positions.astype(jnp.float32)[..., None] * waves.reshape(lead)
  both = [jnp.sin(angles), jnp.cos(angles)]
  if layout == 'halves':
    return jnp.concatenate(both, axis=-1)[..., :d_model]
  return jnp.stack(both, axis=-1).reshape(*angles.shape[:-1], -1)[..., :d_model]


class LearnedPositions(nn.Module):
  """x + Wp[position + offset], a trained vector for each (GPT-1, eq. 2)."""

  offset: int
  context_length: int
  initializer: Initializer

  @nn.compact
  def __call__(self, x_BLD: jax.Array, positions_BL: jax.Array | None) -> jax.Array:
    """Adds the vectors; `positions_BL` None means 0, 1, 2, ... in each row."""
    shape = (self.context_length + self.offset, x_BLD.shape[-1])
    axes = ('position', 'embed')
    table = parameter(self, 'embedding', self.initializer, shape, axes)
    table = table.astype(x_BLD.dtype)
    if positions_BL is None:
      # A slice, since the gradient of a gather is a slow scatter.
      return x_BLD + table[None, self.offset : self.offset + x_BLD.shape[1]]
    return x_BLD + jnp.take(table, positions_BL + self.offset, axis=0)


class SinusoidalPositions(nn.Module):
  """x + sines and cosines (Vaswani et al., section 3.5); no parameters."""

  layout: str
  context_length: int
  initializer: Initializer

  def __call__(self, x_BLD: jax.Array, positions_BL: jax.Array | None) -> jax.Array:
    """Adds the vectors; `positions_BL` None means 0, 1, 2, ... in each row."""
    if positions_BL is None:
      positions_BL = jnp.arange(x_BLD.shape[1])[None]
    waves = sinusoids(positions_BL, x_BLD.shape[-1], layout=self.layout)
    return x_BLD + waves.astype(x_BLD.dtype)


def learned(offset: Whole = 0) -> Position:
  """Learned absolute positions; `offset` rows of the table come before 0."""
  return Position(embed=functools.partial(LearnedPositions, offset))


class WithPositions(nn.Module):
  """block(x + the layer's own vectors of the positions).

  The paper does so for depth: the order would be lost on the way through 64
  layers. The block's parameters keep their names.
  """

  block: Factory
  make_positions: Factory

  def setup(self):
    """Creates the table, beside the block's parameters."""
    self.inner = self.block()
    nn.share_scope(self, self.inner)
    self.positions = self.make_positions()

  def __call__(
    self, x_BLD: jax.Array, context: Context, cache: Cache | None, layer: jax.Array
  ) -> tuple[jax.Array, Cache | None]:
    """[B, L, D] -> [B, L, D] and the cache, as a block's."""
    x_BLD = layout.stream(self.positions(x_BLD, context.positions_BL))
    return self.inner(x_BLD, context, cache, layer)


# (number of rotated features, theta) -> (radians per position [K / 2], scale
# of cosine and sine).
Frequencies = Callable[[int, float], tuple[np.ndarray, float]]


def no_scaling() -> Frequencies:
  """theta^(-2 i / K), i from 0 to K / 2 - 1."""
  return lambda size, theta: (_frequencies(size, theta), 1.0)


def linear(factor: Positive) -> Frequencies:
  """Position interpolation (Chen et al. 2023): positions / factor."""
  return lambda size, theta: (_frequencies(size, theta) / factor, 1.0)


def llama3(
  factor: Positive,
  original_context: Count,
  low_freq_factor: Positive = 1.0,
  high_freq_factor: Positive = 4.0,
) -> Frequencies:
  """LLaMA 3.1: long waves are interpolated, short ones kept, a ramp between.

  A wave is long if it fits the original context fewer than `low_freq_factor`
  times, and short from `high_freq_factor` times on.
  """
  if high_freq_factor <= low_freq_factor:
    raise UsageError(
      f'model.position: scaling: high_freq_factor={high_freq_factor} must be '
      f'above low_freq_factor={low_freq_factor}'
    )

  def build(size: int, theta: float) -> tuple[np.ndarray, float]:
    frequencies = _frequencies(size, theta)
    times = original_context * frequencies / (2 * math.pi)
    ramp = (times - low_freq_factor) / (high_freq_factor - low_freq_factor)
    keep = np.clip(ramp, 0, 1)
    return frequencies * (keep + (1 - keep) / factor), 1.0

  return build


def yarn(
  factor: Positive,
  original_context: Count,
  beta_fast: Positive = 32.0,
  beta_slow: Positive = 1.0,
  attention_factor: NotNegative = 0.0,
  truncate: bool = True,
) -> Frequencies:
  """YaRN (Peng et al. 2023, section 3): interpolation by parts, and a scale.

  The ramp runs over feature indices, between those whose waves fit the
  original context `beta_fast` and `beta_slow` times (rounded outwards if
  `truncate`). Cosine and sine are scaled by 0.1 ln(factor) + 1, or by
  `attention_factor` if it is not 0.
  """

  def build(size: int, theta: float) -> tuple[np.ndarray, float]:
    def index(times: float) -> float:
      waves = original_context / (times * 2 * math.pi)
      return size * math.log(waves) / (2 * math.log(theta))

    low, high = index(beta_fast), index(beta_slow)
    if truncate:
      low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    # Released code lets the ramp run backwards if the bounds have crossed.
    span = high - low or 0.001
    interpolated = np.clip((np.arange(size // 2) - low) / span, 0, 1)
    frequencies = _frequencies(size, theta)
    scale = attention_factor or 0.1 * math.log(factor) + 1
    if factor <= 1 and not attention_factor:
      scale = 1.0
    return frequencies * (1 - interpolated * (1 - 1 / factor)), scale

  return build


SCALINGS = {'linear': linear, 'llama3': llama3, 'none': no_scaling, 'yarn': yarn}


Layout = Literal['half', 'interleaved']


def make_rotate(
  theta: float, fraction: float, layout: str, scaling: str
) -> Callable[[jax.Array, jax.Array], jax.Array]:
  """Returns the function that rotates [B, L, H, K] by positions [B or 1, L].

  See `rope` for the arguments.
  """
  frequencies = spec.build('model.position: scaling', scaling, SCALINGS)

  def rotate(x_BLHK: jax.Array, positions_BL: jax.Array) -> jax.Array:
    size = int(x_BLHK.shape[-1] * fraction)
    if size % 2 or not size:
      raise UsageError(
        f'model.position: fraction={fraction} of a head of {x_BLHK.shape[-1]} '
        f'is {size} features: must be an even number from 2'
      )
    radians, scale = frequencies(size, theta)
    radians = jnp.asarray(radians, jnp.float32)
    angles_BL1I = positions_BL.astype(jnp.float32)[:, :, None, None] * radians[None, None, None]
    cos, sin = jnp.cos(angles_BL1I) * scale, jnp.sin(angles_BL1I) * scale
    if platform() == 'cpu':
      cos, sin = computed_once(cos), computed_once(sin)
    x, rest = x_BLHK[..., :size].astype(jnp.float32), x_BLHK[..., size:]
    if layout == 'half':
      a, b = jnp.split(x, 2, axis=-1)
    else:
      a, b = x[..., 0::2], x[..., 1::2]
    turned = [a * cos - b * sin, b * cos + a * sin]
    if layout == 'half':
      out = jnp.concatenate(turned, axis=-1)
    else:
      out = jnp.stack(turned, axis=-1).reshape(x.shape)
    return jnp.concatenate([out.astype(x_BLHK.dtype), rest], axis=-1)

  return rotate


@jax.jit
def computed_once(x: jax.Array) -> jax.Array:
  """x, [..., N]; XLA on CPU does not compute it again for each of its uses.

  It fuses sines and cosines into all that multiplies by them, so that each
  head of each layer would have its own. It does not fuse into a product, here
  by the identity, which `costs.matmuls` does not count.
  """
  one = jnp.eye(x.shape[-1], dtype=x.dtype)
  return jnp.dot(x, one, precision='highest')


def _frequencies(size: int, theta: float) -> np.ndarray:
  return theta ** (-np.arange(0, size, 2) / size)


# Relative biases on the scores: T5's buckets, ALiBi's slopes.
#
# All layers share one array.


ALIBI_SCALES: dict[str, Callable[[int], float]] = {
  'none': lambda head_size: 1.0,
  'rsqrt': lambda head_size: head_size**-0.5,
}


class AlibiBias(nn.Module):
  """-slope * distance, a slope for each head (ALiBi, Press et al. 2022)."""

  scale: Callable[[int], float]
  rounded: bool
  num_heads: int
  head_size: int
  pattern: Pattern
  initializer: Initializer

  def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
    """Positions [B or 1, L] and [B or 1, M] to a bias [B or 1, H, L, M]."""
    scale = self.scale(self.head_size)
    slopes = jnp.asarray(alibi_slopes(self.num_heads), jnp.float32)
    slopes = slopes[None, :, None, None]
    if not self.rounded:
      distance = jnp.abs(query[:, None, :, None] - key[:, None, None, :])
      return -slopes * distance.astype(jnp.float32) * scale
    # Equal up to a constant in each row of scores, to which softmax is
    # invariant, and up to rounding, which depends on the position.
    at = to_bfloat16(key[:, None, None, :].astype(jnp.float32))
    bias = to_bfloat16(to_bfloat16(slopes) * at) * scale
    B, M = key.shape
    return jnp.broadcast_to(bias, (B, self.num_heads, query.shape[1], M))


def to_bfloat16(x: jax.Array) -> jax.Array:
  """Rounds float32 to bfloat16 precision; XLA may remove a pair of casts."""
  return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def alibi_slopes(num_heads: int) -> np.ndarray:
  """2^(-8 i / n) for n heads, a power of two, i from 1.

  For other counts, those of the power of two below, and then every second one
  of the power above (the paper's released code).
  """
  below = 2 ** math.floor(math.log2(num_heads))
  slopes = 2.0 ** (-8 * np.arange(1, below + 1) / below)
  between = 2.0 ** (-8 * np.arange(1, 2 * below + 1, 2) / (2 * below))
  return np.concatenate([slopes, between[: num_heads - below]])


def learned_by_layer() -> Position:
  """Learned absolute positions, added before every layer (Al-Rfou et al.)."""

  def block(make: Factory, model: Model) -> Factory:
    length = model.fields.context_length
    table = functools.partial(LearnedPositions, 0, length, model.inits.position)
    return functools.partial(WithPositions, make, table)

  return Position(block=block)


def sinusoidal(layout: Literal['interleaved', 'halves'] = 'interleaved') -> Position:
  """Fixed sines and cosines, `interleaved` or in `halves`."""
  return Position(embed=functools.partial(SinusoidalPositions, layout))


def rope(
  theta: Positive = 10_000.0,
  fraction: Share = 1.0,
  layout: Layout = 'half',
  scaling: str = 'none',
  local_theta: NotNegative = 0.0,
) -> Position:
  """Rotary positions: queries and keys are rotated by their position.

  Args:
    theta: base of the angles.
    fraction: of each head's features that are rotated.
    layout: pairs are (i, i + K / 2) for half (LLaMA in HF, GPT-NeoX) and
      (2 i, 2 i + 1) for interleaved (RoFormer, GPT-J, PaLM).
    scaling: a call of `SCALINGS`.
    local_theta: of `local` layers, which have no scaling (Gemma 3); 0: as the
      others.
  """
  rotate_local = None
  if local_theta:
    rotate_local = make_rotate(local_theta, fraction, layout, 'none')
  rotate = make_rotate(theta, fraction, layout, scaling)
  return Position(rotate=rotate, rotate_local=rotate_local)


def alibi(
  scale: Annotated[str, OneOf((*ALIBI_SCALES,))] = 'none',
  dtype: Literal['float32', 'bfloat16'] = 'float32',
) -> Position:
  """ALiBi: a penalty on scores that grows with distance (Press et al.).

  Args:
    scale: none; rsqrt: divided by the square root of the head size, as the
      scores are (Falcon).
    dtype: float32; bfloat16: slope * key position rounded to it, as BLOOM and
      Falcon were trained.
  """
  rounded = dtype == 'bfloat16'
  bias = functools.partial(AlibiBias, ALIBI_SCALES[scale], rounded)
  return Position(bias=bias, by_distance=not rounded)


def none() -> Position:
  """No positions: only the causal mask gives the order."""
  return Position()
