# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How a token knows where it stands.

A choice says which of four hooks it uses: vectors added to the embeddings,
a rotation of queries and keys, a bias on the scores that all layers share, or
terms of each layer's scores that are made from its queries and keys.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn import rope as rope_lib
from gpt_jax.nn.activations import ACTIVATIONS
from gpt_jax.nn.dense import parameter
from gpt_jax.nn.disentangled import Disentangled, DistanceTable, num_rows
from gpt_jax.nn.init import Initializer
from gpt_jax.nn.masks import Pattern
from gpt_jax.nn.position_bias import ALIBI_SCALES, AlibiBias, T5Bias
from gpt_jax.nn.relative import TransformerXL
from gpt_jax.nn.segment_terms import SegmentTerms
from gpt_jax.nn.sinusoids import sinusoids
from gpt_jax.ranges import Count, NotNegative, Positive, Share, Whole
from gpt_jax.spec import UsageError

Rotate = Callable[[jax.Array, jax.Array], jax.Array]


class Position(NamedTuple):
  """The hooks; None where a choice does not use one.

  Attributes:
    embed: makes a module that is called as `LearnedPositions` is.
    rotate: queries or keys [B, L, H, K] and positions [B or 1, L] to the same.
    rotate_local: instead of `rotate` in layers with a window, where these turn
      otherwise.
    bias: makes a module that is called as `T5Bias` is.
    terms: makes a module for each layer, called as `terms.Asked` says.
    table: makes a module that is called as `DistanceTable` is, for the terms.
    memory: how many states of earlier segments each layer is to keep.
    segments: whether the layers ask for the types of tokens, instead of the
      input.
    late: how often the last layer is applied to queries with learned absolute
      positions: see `late`; 0: it is as the others.
    convolution: width of that beside the first layer; 0: there is none.
    activation: of the convolution; '': there is none.
    segment_length: tokens of a segment; 0: a row is one. See `segments`.
    shared_biases: whether all layers have one u and v for the terms.
    by_layer: as `embed`, for what each layer adds to its input.
  """

  embed: Callable[..., nn.Module] | None = None
  rotate: Rotate | None = None
  rotate_local: Rotate | None = None
  bias: Callable[..., nn.Module] | None = None
  terms: Callable[..., nn.Module] | None = None
  table: Callable[..., nn.Module] | None = None
  memory: int = 0
  segments: bool = False
  late: int = 0
  convolution: int = 0
  activation: str = ''
  segment_length: int = 0
  shared_biases: bool = False
  by_layer: Callable[..., nn.Module] | None = None

  def rotation(self, pattern: Pattern) -> Rotate | None:
    """What turns the queries and keys of a layer."""
    if pattern.window is not None and self.rotate_local is not None:
      return self.rotate_local
    return self.rotate


class LearnedPositions(nn.Module):
  """x + Wp[position + offset], a trained vector for each (GPT-1, eq. 2)."""

  offset: int
  context_length: int
  initializer: Initializer

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, positions_BL: jax.Array | None
  ) -> jax.Array:
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

  def __call__(
    self, x_BLD: jax.Array, positions_BL: jax.Array | None
  ) -> jax.Array:
    """Adds the vectors; `positions_BL` None means 0, 1, 2, ... in each row."""
    if positions_BL is None:
      positions_BL = jnp.arange(x_BLD.shape[1])[None]
    waves = sinusoids(positions_BL, x_BLD.shape[-1], layout=self.layout)
    return x_BLD + waves.astype(x_BLD.dtype)


def learned(offset: Whole = 0) -> Position:
  """Learned absolute positions; `offset` rows of the table come before 0."""
  return Position(embed=functools.partial(LearnedPositions, offset))


def learned_by_layer() -> Position:
  """Learned absolute positions, added before every layer (Al-Rfou et al.)."""
  return Position(by_layer=functools.partial(LearnedPositions, 0))


def sinusoidal(layout: str = 'interleaved') -> Position:
  """Fixed sines and cosines, `interleaved` or in `halves`."""
  if layout not in ('interleaved', 'halves'):
    raise UsageError(
      f'model.position: layout={layout!r}: unknown; one of interleaved, halves'
    )
  return Position(embed=functools.partial(SinusoidalPositions, layout))


def rope(
  theta: Positive = 10_000.0,
  fraction: Share = 1.0,
  layout: str = 'half',
  scaling: str = 'none',
  local_theta: NotNegative = 0.0,
) -> Position:
  """Rotary positions: see `rope.make_rotate`.

  Layers with a window turn by `local_theta`, without the scaling (Gemma 3); 0:
  as the others.
  """
  rotate_local = None
  if local_theta:
    rotate_local = rope_lib.make_rotate(local_theta, fraction, layout, 'none')
  rotate = rope_lib.make_rotate(theta, fraction, layout, scaling)
  return Position(rotate=rotate, rotate_local=rotate_local)


def t5_bias(num_buckets: Count = 32, max_distance: Count = 128) -> Position:
  """T5's relative position buckets."""
  return Position(bias=functools.partial(T5Bias, num_buckets, max_distance))


def alibi(scale: str = 'none', dtype: str = 'float32') -> Position:
  """ALiBi.

  Args:
    scale: none; rsqrt: divided by the square root of the head size, as the
      scores are (Falcon).
    dtype: float32; bfloat16: slope * key position rounded to it, as BLOOM and
      Falcon were trained.
  """
  if scale not in ALIBI_SCALES:
    raise UsageError(
      f'model.position: scale={scale!r}: unknown; one of '
      + ', '.join(ALIBI_SCALES)
    )
  if dtype not in ('float32', 'bfloat16'):
    raise UsageError(
      f'model.position: dtype={dtype!r}: unknown; one of float32, bfloat16'
    )
  rounded = dtype == 'bfloat16'
  return Position(
    bias=functools.partial(AlibiBias, ALIBI_SCALES[scale], rounded)
  )


def transformer_xl(
  memory: Whole = 0, clamp: Whole = 0, segment: Whole = 0, biases: str = 'own'
) -> Position:
  """Transformer-XL's relative attention (Dai et al. 2019, section 3.3).

  Args:
    memory: how many states of earlier segments each layer keeps as keys and
      values of later ones: see `caches.init_memories`.
    clamp: longer distances count as this one; 0: as they are.
    segment: rows are cut into segments of so many tokens, each with its memory;
      0: a row is one segment.
    biases: whether u and v of the scores are each layer's own, or shared by all
      layers (the paper's).
  """
  if biases not in ('own', 'shared'):
    raise UsageError(
      f'model.position: biases={biases!r}: unknown; one of own, shared'
    )
  shared = biases == 'shared'
  return Position(
    terms=functools.partial(TransformerXL, clamp, shared),
    memory=memory,
    segment_length=segment,
    shared_biases=shared,
  )


def xlnet(memory: Whole = 0, clamp: Whole = 0) -> Position:
  """XLNet's relative attention, to both sides, with the types of tokens.

  Args:
    memory: as in `transformer_xl`.
    clamp: as in `transformer_xl`.
  """
  terms = functools.partial(SegmentTerms, clamp)
  return Position(terms=terms, memory=memory, segments=True)


def deberta(
  max_distance: Count = 512,
  buckets: Whole = 0,
  c2c: bool = True,
  c2p: bool = True,
  p2c: bool = True,
  shared: bool = False,
  norm: bool = False,
  absolute: bool = False,
  mask_decoder: Whole = 0,
  convolution: Whole = 0,
  activation: str = 'gelu',
) -> Position:
  """DeBERTa's disentangled attention (He et al. 2020, section 3).

  Args:
    max_distance: k; longer distances count as the longest.
    buckets: on each side, of distances that grow logarithmically; 0: each
      distance by itself (version 2: 256).
    c2c: whether content attends to content; the others likewise, c content
      and p position. Scores are divided by sqrt(head_size * how many are on).
    c2p: see above.
    p2c: see above.
    shared: distances are projected as content is (version 2: share_att_key).
    norm: of the distances' vectors (version 2: norm_rel_ebd).
    absolute: learned absolute positions at the input as well.
    mask_decoder: the last layer is applied so often to queries that know
      absolute positions (section 3.2); 0: it is as the others.
    convolution: the odd number of tokens that one beside the first layer reads
      (version 2: 3); 0: there is none.
    activation: what the convolution's sums go through, of `ACTIVATIONS`.
  """
  if not (c2c or c2p or p2c):
    raise UsageError(
      'model.position=deberta: c2c, c2p and p2c are all False; one must be on'
    )
  if convolution and convolution % 2 == 0:
    raise UsageError(
      f'model.position: convolution={convolution} must be odd, or 0'
    )
  if activation not in ACTIVATIONS:
    raise UsageError(
      f'model.position: activation={activation!r}: unknown; one of '
      f'{", ".join(ACTIVATIONS)}'
    )
  # Half of the buckets hold a distance each, and the last one is the longest.
  if buckets and not 2 <= buckets // 2 < max_distance - 1:
    raise UsageError(
      f'model.position: buckets={buckets} must be at least 4, and half of them '
      f'below max_distance - 1, which is {max_distance - 1}'
    )
  terms = functools.partial(
    Disentangled, max_distance, buckets, c2c, c2p, p2c, shared
  )
  rows = num_rows(max_distance, buckets)
  table = functools.partial(DistanceTable, rows, norm)
  embed = functools.partial(LearnedPositions, 0) if absolute else None
  return Position(
    embed,
    terms=terms,
    table=table,
    late=mask_decoder,
    convolution=convolution,
    activation=activation,
  )


def none() -> Position:
  """No positions: order is known from the causal mask alone."""
  return Position()


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
