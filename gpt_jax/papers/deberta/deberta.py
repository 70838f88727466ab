# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""DeBERTa: disentangled attention, by content and by distance.

He et al. 2020, section 3.1, equations 2 to 4; with buckets and shared
projections as released as version 2, its convolution beside the first layer,
and the enhanced mask decoder (section 3.2).
"""

import functools
import math
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from gpt_jax.core.nn.distance_products import DistanceProducts, Products
from gpt_jax.core.nn.kv_cache import Cache
from gpt_jax.core.nn.layers import ACTIVATIONS, Initializer, Projections, dense, parameter
from gpt_jax.core.nn.positions import (
  Factory,
  LearnedPositions,
  Model,
  Position,
  ScoreBias,
  ScoreInputs,
)
from gpt_jax.core.nn.row import Context, Row, Visibility
from gpt_jax.core.nn.stack import Caches
from gpt_jax.core.nn.transformer import Output, Transformer
from gpt_jax.core.ranges import Count, OneOf, Whole
from gpt_jax.core.spec import UsageError


class DebertaSettings(NamedTuple):
  """The arguments of `deberta` that its model reads."""

  num_rows: int  # of P
  normed: bool
  mask_decoder: int
  convolution: int
  activation: str


class Deberta(Transformer):
  """A model whose layers share P, a convolution, and late positions."""

  in_stages = False

  def setup(self):
    """Creates what the layers share."""
    super().setup()
    choices, dtype = self._choices, self._dtype
    settings, inits = choices.position.settings, choices.init_weights
    self.distances = DistanceTable(
      settings.num_rows, settings.normed, self.d_model, choices.norm, inits.position, dtype
    )
    if settings.convolution:
      self.convolution = Convolution(
        settings.convolution, settings.activation, choices.norm, inits.kernel, dtype
      )
    if settings.mask_decoder:
      self.late_positions = LearnedPositions(0, self.context_length, inits.position)

  def __call__(self, row: Row | jax.Array, caches: Caches | None = None) -> Output:
    """Runs the stack, whose layers get what they share by their context."""
    row = Row.of(row)
    x_BLD = self.embedded(row)
    context = self.context(row, caches)
    settings = self._choices.position.settings
    convolved = late_BLD = None
    if settings.convolution:
      convolved = self.convolution(x_BLD, context.visibility)
    if settings.mask_decoder:
      late_BLD = self.late_positions(jnp.zeros_like(x_BLD), row.positions)
    shared = Shared(self.distances(), convolved, late_BLD)
    x_BLD, caches = self.decoder(x_BLD, context.adding(shared=shared), caches)
    return self.finished(x_BLD, caches)


class Shared(NamedTuple):
  """Values shared by all layers through their context; None: unused."""

  table_ND: jax.Array
  convolved: 'Convolved | None' = None
  late_BLD: jax.Array | None = None


class DistanceTable(nn.Module):
  """P: a vector for each distance or bucket, which all layers share."""

  num_rows: int
  normed: bool
  d_model: int
  norm: Factory
  initializer: Initializer
  dtype: Any

  @nn.compact
  def __call__(self) -> jax.Array:
    """[N, D]."""
    shape, axes = (self.num_rows, self.d_model), ('buckets', 'embed')
    table = parameter(self, 'embedding', self.initializer, shape, axes)
    table = table.astype(self.dtype)
    return self.norm(name='norm')(table) if self.normed else table


class Disentangled(nn.Module):
  """Content to content, content to position, position to content.

  score_ij = (Qc_i Kc_j + Qc_i Kr_d(i, j) + Kc_j Qr_d(i, j)) / sqrt(K n), with n
  the number of enabled terms, Kr = P W_kr and Qr = P W_qr. The paper's third
  term has d(j, i); d(i, j) is that of the released code. A module of
  `Position.terms`.

  Attributes:
    max_distance: k; longer distances are clipped to it.
    c2c: enables the first term.
    c2p: enables the second term.
    p2c: enables the third term.
    shared: whether W_kr and W_qr are the layer's projections of content.
  """

  max_distance: int
  buckets: int
  c2c: bool
  c2p: bool
  p2c: bool
  shared: bool
  projections: Projections

  def setup(self):
    """Creates W_kr and W_qr if they are not shared."""
    to = self.projections
    if self.c2p and not self.shared:
      self.relative_key = dense(to, to.num_heads, 'heads', bias=to.key_bias)
    if self.p2c and not self.shared:
      self.relative_query = dense(to, to.num_heads, 'heads')

  def __call__(self, inputs: ScoreInputs) -> tuple[jax.Array, ScoreBias]:
    """See `ScoreInputs`."""
    shared = inputs.context.extra.get('shared')
    if inputs.cache is not None or shared is None:
      raise UsageError(
        'model.position=deberta: supports neither caches nor '
        'encoder-decoders; set model.num_encoder_layers=0'
      )
    terms = self.c2c + self.c2p + self.p2c
    q_BLHK, L = inputs.q_BLHK * terms**-0.5, inputs.q_BLHK.shape[1]
    distances = np.arange(L - 1, -L, -1)
    row = row_of(distances, self.max_distance, self.buckets)
    rows_1ND = jnp.take(shared.table_ND, row, axis=0)[None]
    c2p = p2c = None
    if self.c2p:
      c2p = Products(q_BLHK, self._keys(rows_1ND)[0])
    if self.p2c:
      r_NHK = self._queries(rows_1ND)[0] * terms**-0.5
      p2c = Products(self._all_heads(inputs.k_BMGK), r_NHK)
    if not self.c2c:
      q_BLHK = jnp.zeros_like(q_BLHK)
    bias = DistanceProducts(c2p, p2c) if self.c2p or self.p2c else None
    return q_BLHK, bias

  def _keys(self, rows_1ND: jax.Array) -> jax.Array:
    """Kr, [1, N, H, K]."""
    if self.shared:
      return self._all_heads(self.projections.keys(rows_1ND))
    return self.projections.heads(self.relative_key(rows_1ND))

  def _queries(self, rows_1ND: jax.Array) -> jax.Array:
    """Qr, [1, N, H, K]."""
    if self.shared:
      return self.projections.queries(rows_1ND)
    return self.projections.heads(self.relative_query(rows_1ND))

  def _all_heads(self, k_BMGK: jax.Array) -> jax.Array:
    """Keys for each head of the queries."""
    to = self.projections
    return jnp.repeat(k_BMGK, to.num_heads // to.num_kv_heads, axis=2)


def num_rows(max_distance: int, buckets: int) -> int:
  """The number of rows of P."""
  return 2 * (buckets or max_distance)


def row_of(distance: np.ndarray, max_distance: int, buckets: int) -> np.ndarray:
  """The row of P for distances i - j from query i to key j.

  0 for i - j <= -k, 2 k - 1 for i - j >= k, else i - j + k (equation 3), where
  k is `max_distance`. If `buckets` is not 0, it is their number on each side:
  half of them hold one distance each, the others grow logarithmically up to
  `max_distance` (released as version 2).
  """
  span = buckets or max_distance
  if buckets:
    distance = _bucketed(distance, max_distance, buckets // 2)
  return np.clip(distance + span, 0, 2 * span - 1)


def _bucketed(distance: np.ndarray, max_distance: int, middle: int) -> np.ndarray:
  """The buckets of distances above `middle`."""
  # In float32, as in the released models' code.
  far = np.float32(np.maximum(np.abs(distance), middle)) / np.float32(middle)
  longest = np.float32(math.log((max_distance - 1) / middle))
  far = np.ceil(np.log(far) / longest * (middle - 1)) + middle
  far = np.sign(distance) * far.astype(np.int64)
  return np.where(np.abs(distance) <= middle, distance, far)


class Convolved(NamedTuple):
  """The term added in the first layer, and the parameters of its norm."""

  x_BLD: jax.Array
  norm: Any


class Convolution(nn.Module):
  """act(sum_t W_t x_(i + t) + b) over `width` neighbouring tokens.

  Padding and other documents of a packed row count as zeros. The kernel is
  [width, D, D].
  """

  width: int
  activation: str  # of `ACTIVATIONS`
  norm: Factory
  initializer: Initializer
  dtype: Any

  @nn.compact
  def __call__(self, x_BLD: jax.Array, visibility: Visibility) -> Convolved:
    """Convolves the embeddings [B, L, D]."""
    D, (mask_BL, segments_BL) = x_BLD.shape[-1], visibility[:2]
    shape, axes = (self.width, D, D), ('buckets', 'embed', 'mlp')
    kernel = parameter(self, 'kernel', self.initializer, shape, axes)
    bias = parameter(self, 'bias', nn.initializers.zeros, (D,), ('mlp',))
    if mask_BL is not None:
      x_BLD = x_BLD * mask_BL[..., None].astype(x_BLD.dtype)
    y_BLD = bias.astype(self.dtype)[None, None]
    for t in range(self.width):
      offset = t - self.width // 2
      tap_BLD = _neighbour(x_BLD, offset)
      if segments_BL is not None:
        same_BL = _neighbour(segments_BL, offset) == segments_BL
        tap_BLD = jnp.where(same_BL[..., None], tap_BLD, 0)
      y_BLD = y_BLD + jnp.dot(tap_BLD, kernel[t].astype(self.dtype))
    norm = self.norm(name='norm')
    if self.is_initializing():
      norm(y_BLD)
    params = nn.meta.unbox(norm.variables['params'])
    return Convolved(ACTIVATIONS[self.activation](y_BLD), params)


class FirstBlock(nn.Module):
  """A block with the convolution after it in the first layer.

  Parameters are those of the block.
  """

  block: Factory
  norm: Factory

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, cache: Cache | None, layer: jax.Array
  ) -> tuple[jax.Array, Cache | None]:
    """[B, L, D] -> [B, L, D]."""
    block = self.block()
    nn.share_scope(self, block)
    x_BLD, cache = block(x_BLD, context, cache, layer)
    added = context.extra['shared'].convolved
    norm = self.norm(parent=None)
    normed: Any = norm.apply({'params': added.norm}, x_BLD + added.x_BLD)
    return jnp.where(layer == 0, normed, x_BLD), cache


def _neighbour(x: jax.Array, offset: int) -> jax.Array:
  """x[:, i + offset] at i, zeros beyond the ends."""
  L, reach = x.shape[1], abs(offset)
  pad = [(0, 0), (reach, reach)] + [(0, 0)] * (x.ndim - 2)
  return jnp.pad(x, pad)[:, reach + offset : reach + offset + L]


class LateBlock(nn.Module):
  """A block that is applied `times` in the last of `num_layers` layers.

  z_0 = H + P; z_t = block(queries and residual z_(t - 1), keys and values H).
  In the backward pass every layer reserves memory for the repetitions' stored
  values; with `remat='full'` only their inputs. Parameters are the block's.
  """

  block: Factory
  times: int
  num_layers: int

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, cache: Cache | None, layer: jax.Array
  ) -> tuple[jax.Array, Cache | None]:
    """[B, L, D] -> [B, L, D]; the context's `late_BLD` is P."""
    block = self.block()
    nn.share_scope(self, block)
    p_BLD, last = context.extra['shared'].late_BLD, layer == self.num_layers - 1
    context = context.adding(late_source=x_BLD)
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


class LateAttention(nn.Module):
  """Attention to the tokens that `LateBlock` gives; parameters are `make`'s."""

  make: Factory

  def setup(self):
    """Creates the attention."""
    self.inner = self.make()
    nn.share_scope(self, self.inner)

  def __call__(
    self, x_BLD: jax.Array, context: Context, cache: Cache | None = None, *, layer: jax.Array
  ) -> tuple[jax.Array, Cache | None]:
    """[B, L, D] -> [B, L, D]."""
    q_BLHK = self.inner.projections.queries(x_BLD)
    source_BLD = context.extra['late_source']
    y_BLHK, cache = self.inner.within(q_BLHK, source_BLD, context, cache, layer)
    return self.inner.project_out(y_BLHK, x_BLD), cache


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
  activation: Annotated[str, OneOf((*ACTIVATIONS,))] = 'gelu',
) -> Position:
  """DeBERTa's disentangled attention (He et al. 2020, section 3).

  Args:
    max_distance: k; longer distances are clipped to it.
    buckets: number of buckets on each side, which grow logarithmically; 0: each
      distance has its own (version 2: 256).
    c2c: enables content-to-content terms. Scores are divided by
      sqrt(head_size * number of enabled terms).
    c2p: enables content-to-position terms.
    p2c: enables position-to-content terms.
    shared: distances use the projections of content (version 2: share_att_key).
    norm: normalise the distances' vectors (version 2: norm_rel_ebd).
    absolute: learned absolute positions at the input as well.
    mask_decoder: number of times that the last layer is applied, to queries
      with absolute positions (section 3.2); 0: it is as the others.
    convolution: width, an odd number of tokens, of the convolution beside the
      first layer (version 2: 3); 0: there is none.
    activation: of the convolution, from `ACTIVATIONS`.
  """
  if not (c2c or c2p or p2c):
    raise UsageError('model.position=deberta: c2c, c2p and p2c are all False; one must be on')
  if convolution and convolution % 2 == 0:
    raise UsageError(f'model.position: convolution={convolution} must be odd, or 0')
  # Half of the buckets hold a distance each, and the last one is the longest.
  if buckets and not 2 <= buckets // 2 < max_distance - 1:
    raise UsageError(
      f'model.position: buckets={buckets} must be at least 4, and half of them '
      f'below max_distance - 1, which is {max_distance - 1}'
    )
  terms = functools.partial(Disentangled, max_distance, buckets, c2c, c2p, p2c, shared)

  def block(make: Any, model: Model) -> Factory:
    fields = model.fields
    if convolution and model.causal:
      raise UsageError(
        f'model.attention={fields.attention!r}: the convolution of '
        f'model.position={fields.position!r} sees later tokens; take '
        'bidirectional, or convolution=0'
      )
    if mask_decoder and fields.block != 'post':
      raise UsageError(
        f'model.block={fields.block!r}: the mask decoder of model.position='
        f"{fields.position!r} reads the previous layer's output as it is; "
        'take model.block=post, or mask_decoder=0'
      )
    if mask_decoder:
      attention = make.keywords['attention']
      attention = functools.partial(LateAttention, attention)
      make = functools.partial(make, attention=attention)
    if convolution:
      make = functools.partial(FirstBlock, make, model.norm)
    if mask_decoder:
      make = functools.partial(LateBlock, make, mask_decoder, model.num_layers)
    return make

  settings = DebertaSettings(
    num_rows(max_distance, buckets), norm, mask_decoder, convolution, activation
  )
  return Position(
    functools.partial(LearnedPositions, 0) if absolute else None,
    terms=terms,
    block=block,
    model=Deberta,
    settings=settings,
    last_layer_runs=max(mask_decoder, 1),
  )
