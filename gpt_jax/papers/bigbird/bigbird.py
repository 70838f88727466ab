# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BigBird's attention to blocks (Zaheer et al., 2020: Big Bird: Transformers
for Longer Sequences, section 2).

Global tokens see all. The tokens between them see the global ones, the blocks
around their own, and a few random blocks.

`gathered` computes only these: keys and values of the window and of random
blocks are gathered for each block of queries, so that time and memory grow
linearly with the length of a row. `dense` is its reference: it computes all
scores, and counts each as often as its key is listed. Further suffixes: N
blocks, L queries and M keys of a block; X lists of keys for each block, and the
Q queries of a block that read one list.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from gpt_jax.core.nn.attend import (
  KEPT,
  Request,
  attend,
  attend_within,
  float32_einsum,
  for_groups,
  grouped,
  scores,
  ungrouped,
  weighted,
)
from gpt_jax.core.nn.attention_dropout import hashed
from gpt_jax.core.nn.layers import Initializer, parameter
from gpt_jax.core.nn.masks import Order, Pattern, bidirectional
from gpt_jax.core.nn.row import Context, Row
from gpt_jax.core.nn.stack import Caches
from gpt_jax.core.nn.transformer import Output, Transformer
from gpt_jax.core.ranges import Count, Whole
from gpt_jax.core.spec import UsageError


class Blocks(NamedTuple):
  """The blocks of the pattern `bigbird`.

  Attributes:
    size: tokens of a block.
    window: blocks of the window, an odd number.
    random: random blocks for each head and block of queries.
    extra: global tokens before the row; 0: its first and last block are global.
    first: whether the first block replaces each random one, and is counted once
      more each time.
    seed: of the random blocks.
  """

  size: int
  window: int
  random: int
  extra: int
  first: bool
  seed: int

  def between(self, length: int) -> tuple[int, int] | None:
    """Start and end of the tokens that are not global.

    None for rows of a few blocks, which random ones would nearly fill: as in
    transformers, all their tokens see all.

    Args:
      length: of a row, with its extra tokens.
    """
    ends = 0 if self.extra else 2
    number = -(-(length - self.extra) // self.size)
    if number <= ends + self.window + 2 * self.random:
      return None
    if self.extra:
      return self.extra, length
    return self.size, (number - 1) * self.size

  def dense(self, request: Request) -> jax.Array:
    """See `dense`."""
    return dense(request)

  def count(self, length: int) -> np.ndarray:
    """The number of keys that each query of a row sees, int64 [length].

    A random block counts in full, even if it is the row's last and shorter.
    """
    seen = np.full(length, length, np.int64)
    ends = self.between(length)
    if ends is None:
      return seen
    start, stop = ends
    query = np.arange(stop - start) // self.size
    around = self.window // 2
    first = np.maximum(query - around, 0) * self.size
    last = np.minimum((query + around + 1) * self.size, stop - start)
    drawn = 0 if self.first else self.random * self.size
    seen[start:stop] = length - (stop - start) + last - first + drawn
    return seen


def random_blocks(blocks: Blocks, layer: jax.Array | int, num_heads: int, number: int) -> jax.Array:
  """The random blocks of each head and block of queries, int32 [H, N, random].

  They are drawn without replacement from the `number` blocks between the global
  ones, outside the window. They follow from seed, layer, head and block by
  arithmetic in 32 bits: they are the same on every host, device and mesh, in
  each step and after a resume.
  """
  key = jnp.asarray(layer).astype(jnp.uint32)
  key = hashed(key ^ hashed(jnp.uint32(blocks.seed)))
  head = jnp.arange(num_heads, dtype=jnp.uint32)[:, None, None]
  query = jnp.arange(number)[None, :, None]
  seen = jnp.arange(number)[None, None]
  for index in (head, query, seen):
    key = hashed(key ^ index.astype(jnp.uint32))
  around = jnp.abs(query - seen) <= blocks.window // 2
  rank = jnp.where(around, -1, (key >> 1).astype(jnp.int32))
  return jax.lax.top_k(rank, blocks.random)[1]


def bigbird(
  block: Count = 64,
  window: Count = 3,
  random: Whole = 3,
  extra: Whole = 0,
  draw: Literal['uniform', 'first'] = 'uniform',
  seed: Whole = 0,
) -> Pattern:
  """Global tokens, a window of blocks, random blocks (Zaheer et al., 2020).

  Global tokens see all and are seen by all. With `extra=0` they are those of
  the first and the last block (section 2: the internal construction, ITC);
  otherwise `extra` learned ones before each row (extended, ETC). In rows of up
  to window + 2 * random blocks beside the two global ones, all see all.

  Args:
    block: tokens of a block.
    window: blocks of the window around a block, including itself.
    random: random blocks, drawn for each layer, head and block.
    extra: global tokens beside those of the row.
    draw: 'uniform', or 'first': the first block replaces each random one, as
      transformers does in evaluation.
    seed: of the random blocks.
  """
  if window % 2 == 0:
    raise UsageError(
      f'model.attention: window={window} is even; a block has as many before '
      f'it as after it, take {window + 1}'
    )
  if draw == 'first' and extra:
    raise UsageError(
      f"model.attention: draw='first' with extra={extra}: no block of the row "
      "is global then; take draw='uniform'"
    )
  blocks = Blocks(block, window, random, extra, draw == 'first', seed)
  return Pattern(
    'bigbird',
    causal=False,
    count=lambda query: blocks.count(len(query)),
    blocks=blocks,
    model=ExtraTokens if extra else None,
  )


# Queries whose lists of keys are gathered at a time.
CHUNK = 512


def dense(request: Request) -> jax.Array:
  """Attention with all scores, each counted as often as its key is listed.

  softmax over a list with repeats: exp(s) * count / sum(exp(s) * count).
  """
  blocks, L = _blocks(request), request.q_BLHK.shape[1]
  if blocks.between(L) is None:
    return _whole(request)
  visibility, (G, H) = request.visibility, _heads(request)
  counts_HLM = listed(blocks, request.layer, H, L)
  counts = counts_HLM.reshape(1, G, -1, L)
  if visibility.key_mask_BM is not None:
    counts *= visibility.key_mask_BM[:, None, None]
  k_BGMK, v_BGMK = request.k_BLGK.swapaxes(1, 2), request.v_BLGK.swapaxes(1, 2)
  q_BGQK = grouped(request.q_BLHK, G)
  products: Any = float32_einsum('BGQK,BGMK->BGQM', q_BGQK, k_BGMK)
  given_BLM = visibility.mask_BLM
  if given_BLM is not None:
    counts *= for_groups(given_BLM, products)
  kept_BGQM = None
  if request.dropout is not None:
    at_L = jnp.arange(L)
    kept_BHLM = request.dropout.kept(H, at_L[None, :, None], at_L[None, None])
    kept_BGQM = kept_BHLM.reshape(products.shape)
  out_BGQK = _weighted(request, products, v_BGMK, counts, kept_BGQM)
  return _real(request, ungrouped(out_BGQK, request.q_BLHK.shape))


def listed(blocks: Blocks, layer: jax.Array | int | None, num_heads: int, length: int) -> jax.Array:
  """How often each query's list holds each key, int32 [H, L, L].

  For rows long enough that not all tokens see all.
  """
  ends = blocks.between(length)
  assert ends is not None
  start, stop = ends
  counts = jnp.ones((num_heads, length, length), jnp.int32)
  if blocks.first:
    counts = counts.at[:, start:stop, :start].add(blocks.random)
  number = -(-(stop - start) // blocks.size)
  block = jnp.arange(number)
  near = abs(block[:, None] - block[None]) <= blocks.window // 2
  shown = jnp.broadcast_to(near, (num_heads, number, number)).astype(jnp.int32)
  if blocks.random and not blocks.first:
    assert layer is not None
    drawn = random_blocks(blocks, layer, num_heads, number)
    shown += jax.nn.one_hot(drawn, number, dtype=jnp.int32).sum(axis=2)
  for axis in (1, 2):
    shown = jnp.repeat(shown, blocks.size, axis)
  shown = shown[:, : stop - start, : stop - start]
  return counts.at[:, start:stop, start:stop].set(shown)


def gathered(request: Request, kernel: Callable[[Request], jax.Array] | None = None) -> jax.Array:
  """Attention of each block of queries to the blocks of keys that it sees.

  `kernel` gives the output of the tokens between the global ones.
  """
  blocks, L = _blocks(request), request.q_BLHK.shape[1]
  ends = blocks.between(L)
  if ends is None:
    return _whole(request)
  start, stop = ends
  mask_BM = request.visibility.key_mask_BM
  mask_BM = jnp.ones((1, L), bool) if mask_BM is None else jnp.asarray(mask_BM)
  q_BLHK = _outside(request.q_BLHK, start, stop)
  of_global = attend(
    q_BLHK,
    request.k_BLGK,
    request.v_BLGK,
    mask=jnp.broadcast_to(mask_BM[:, None], (len(mask_BM), q_BLHK.shape[1], L)),
    scale=request.scale,
    dropout=request.dropout,
    places=(_outside(jnp.arange(L)[None], start, stop)[0], jnp.arange(L)),
    softcap=request.softcap,
  )
  others = kernel(request) if kernel else _between(request, mask_BM, start, stop)
  parts = of_global[:, :start], others, of_global[:, start:]
  return _real(request, jnp.concatenate(parts, axis=1))


def _between(request: Request, mask_BM: jax.Array, start: int, stop: int) -> jax.Array:
  """The output of the tokens [start, stop), [B, stop - start, H, K]."""
  blocks, (G, H) = _blocks(request), _heads(request)
  # How often a list has a key: zero for padding within blocks and beyond the
  # row's ends.
  times_BM = mask_BM.astype(jnp.int32)
  if blocks.first:
    times_BM = times_BM.at[:, :start].multiply(1 + blocks.random)
  q_BHNLK = _cut(request.q_BLHK, start, stop, blocks.size)
  B, _, N, L, K = q_BHNLK.shape
  index_HNJ = None
  if blocks.random and not blocks.first:
    assert request.layer is not None
    index_HNJ = random_blocks(blocks, request.layer, H, N)
  # With random blocks, each head has its own list of keys.
  X = G if index_HNJ is None else H

  def cut(x_BLGK: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_BLXK = jnp.repeat(x_BLGK, X // x_BLGK.shape[2], axis=2)
    global_BXMK = _outside(x_BLXK, start, stop).swapaxes(1, 2)
    return global_BXMK, _cut(x_BLXK, start, stop, blocks.size)

  times_BLGK = jnp.repeat(times_BM[:, :, None, None], G, axis=2)
  places_1LGK = jnp.arange(times_BM.shape[1])[None, :, None, None]
  places_1LGK = jnp.repeat(places_1LGK, G, axis=2)
  of_keys = request.k_BLGK, request.v_BLGK, times_BLGK, places_1LGK
  kinds = [cut(x) for x in of_keys]

  def some(chunk: _Chunk) -> jax.Array:
    """The output of some of the blocks, [B, X, N, Q, K]."""
    q_BXNQK = chunk.q_BXNQK
    k, v, times, places = (
      _merged(_lists(*kind, near, blocks.window, chunk.index_XNJ))
      for kind, near in zip(kinds, chunk.near, strict=True)
    )
    products: Any = float32_einsum('BGQK,BGMK->BGQM', _merged(q_BXNQK), k)
    kept = None
    if request.dropout is not None:
      # Without random blocks all heads have the same keys.
      keys_XNM = places.reshape(X, -1, places.shape[2])
      keys_XNM = keys_XNM if X == H else keys_XNM[:1]
      query_NL1, key_XN1M = chunk.places_NL[:, :, None], keys_XNM[:, :, None]
      kept_BHNLM = request.dropout.kept(H, query_NL1[None], key_XN1M)
      kept_BXRNLM = kept_BHNLM.reshape(B, X, H // X, *kept_BHNLM.shape[2:])
      kept = kept_BXRNLM.swapaxes(2, 3).reshape(products.shape)
    counts = times.swapaxes(2, 3)
    out_BGQK = _weighted(request, products, v, counts, kept)
    return out_BGQK.reshape(q_BXNQK.shape[:4] + (-1,))

  q_BXRNLK = q_BHNLK.reshape(B, X, H // X, N, L, K)
  q_BXNQK = q_BXRNLK.swapaxes(2, 3).reshape(B, X, N, -1, K)
  places_NL = start + jnp.arange(N * L).reshape(N, L)
  size = -(-N // -(-N * blocks.size // CHUNK))  # in chunks of equal size
  chunks = _Chunk(
    _split(q_BXNQK, 2, size),
    [_split(x, 2, size, around=blocks.window // 2) for _, x in kinds],
    None if index_HNJ is None else _split(index_HNJ, 1, size),
    _split(places_NL, 0, size),
  )
  # Lists are gathered again in the backward pass: those of all blocks would
  # store each key many times.
  some = jax.checkpoint(some, policy=jax.checkpoint_policies.save_only_these_names(KEPT))
  out_BXNQK = jnp.concatenate(list(jax.lax.map(some, chunks)), axis=2)
  out_BXNQK = out_BXNQK[:, :, :N]
  out_BXNRLK = out_BXNQK.reshape(B, X, N, H // X, L, -1)
  out_BHNLK = out_BXNRLK.swapaxes(2, 3).reshape(B, H, N * L, -1)
  return out_BHNLK.swapaxes(1, 2)[:, : stop - start]


class _Chunk(NamedTuple):
  """Some of the blocks.

  Attributes:
    q_BXNQK: their queries.
    near: keys, values and how often each counts, [B, X, N + window - 1, M, K],
      of these blocks and of neighbours within the window.
    index_XNJ: their random blocks; None: they have none.
    places_NL: places of the queries in their rows.
  """

  q_BXNQK: jax.Array
  near: list[jax.Array]
  index_XNJ: jax.Array | None
  places_NL: jax.Array


def _split(x: jax.Array, axis: int, size: int, around: int = 0) -> jax.Array:
  """Chunks of `size` blocks with `around` blocks about them, [C, ...].

  Missing blocks are zeros.
  """
  number = -(-x.shape[axis] // size)
  widths = [(0, 0)] * x.ndim
  widths[axis] = (around, around + number * size - x.shape[axis])
  x = jnp.pad(x, widths)
  parts = [
    jax.lax.slice_in_dim(x, i * size, (i + 1) * size + 2 * around, axis=axis) for i in range(number)
  ]
  return jnp.stack(parts)


def _lists(
  global_BXMK: jax.Array,
  others_BXNMK: jax.Array,
  near_BXNMK: jax.Array,
  window: int,
  index_XNJ: jax.Array | None,
) -> jax.Array:
  """The lists of the blocks of a chunk, [B, X, N, M, K].

  They have the global tokens, the window of each block, and the random blocks.
  Missing blocks are zeros, which the counts hide.
  """
  B, X, N, _, K = near_BXNMK.shape
  N -= window - 1
  shape = B, X, N, global_BXMK.shape[2], K
  parts = [jnp.broadcast_to(global_BXMK[:, :, None], shape)]
  parts += [near_BXNMK[:, :, i : i + N] for i in range(window)]
  if index_XNJ is not None:
    take = jax.vmap(lambda x_BNMK, index: x_BNMK[:, index], (1, 0), 1)
    drawn = take(others_BXNMK, index_XNJ)
    parts.append(drawn.reshape(B, X, N, -1, K))
  return jnp.concatenate(parts, axis=3)


def _merged(x_BXNMK: jax.Array) -> jax.Array:
  """Merges lists and blocks: [B, X N, M, K]."""
  B, X, N, M, K = x_BXNMK.shape
  return x_BXNMK.reshape(B, X * N, M, K)


def _outside(x: jax.Array, start: int, stop: int) -> jax.Array:
  """The global tokens of [B, L, ...]."""
  return jnp.concatenate([x[:, :start], x[:, stop:]], axis=1)


def _cut(x_BLHK: jax.Array, start: int, stop: int, size: int) -> jax.Array:
  """The tokens [start, stop) in blocks, padded: [B, H, N, M, K]."""
  more = -(stop - start) % size
  x_BLHK = jnp.pad(x_BLHK[:, start:stop], ((0, 0), (0, more), (0, 0), (0, 0)))
  B, _, H, K = x_BLHK.shape
  return x_BLHK.swapaxes(1, 2).reshape(B, H, -1, size, K)


def _weighted(
  request: Request,
  products_BGQM: Any,
  v_BGMK: jax.Array,
  counts: jax.Array,
  kept_BGQM: jax.Array | None,
) -> jax.Array:
  """Softmax of the scores, weighted by counts, times the values.

  [B, G, Q, K] after dropout, as in `attend.attend`.
  """
  bias = request.bias
  assert not hasattr(bias, 'feature')
  how = request.scale, bias, request.softcap
  scores_BGQM = scores(products_BGQM, *how)
  scores_BGQM += jnp.log(jnp.maximum(counts, 1).astype(jnp.float32))
  keep = 1.0 if request.dropout is None else request.dropout.keep
  out: Any = weighted(scores_BGQM, v_BGMK, counts > 0, kept_BGQM, keep)
  return out


def _real(request: Request, out_BLHK: jax.Array) -> jax.Array:
  """Zeroes the output of padding, as transformers does."""
  mask_BM = request.visibility.key_mask_BM
  if mask_BM is None:
    return out_BLHK
  return jnp.where(mask_BM[:, :, None, None], out_BLHK, 0)


def _whole(request: Request) -> jax.Array:
  """Attention in a row of a few blocks, in which all tokens see all."""
  return attend_within(request._replace(pattern=bidirectional()))


def _blocks(request: Request) -> Blocks:
  blocks = request.pattern.blocks
  assert blocks is not None
  return blocks


def _heads(request: Request) -> tuple[int, int]:
  """G and H."""
  return request.k_BLGK.shape[2], request.q_BLHK.shape[2]


class ExtraTokens(Transformer):
  """A model with learned vectors that go through the layers before each row."""

  def setup(self):
    """Creates their table."""
    super().setup()
    blocks, initializer = self._blocks, self._choices.init_weights.embedding
    self.extra_tokens = Table((blocks.extra, self.d_model), initializer)

  def __call__(self, row: Row | jax.Array, caches: Caches | None = None) -> Output:
    """Runs the stack on rows that are longer, and drops what was added."""
    row = Row.of(row)
    x_BLD = self.embedded(row)
    context = self.context(row, caches)
    if context.bias is not None or self._choices.position.terms:
      raise UsageError(
        f'model.position={self.position!r}: scores by distance, and the extra '
        f'tokens of model.attention={self.attention!r} have no place; take '
        'learned, sinusoidal, rope or none'
      )
    table_ED = self.extra_tokens().astype(self._dtype)
    front = jnp.broadcast_to(table_ED[None], (len(x_BLD), *table_ED.shape))
    x_BLD = jnp.concatenate([front, x_BLD], axis=1)
    context = _moved_back(context, self._blocks.extra)
    x_BLD, caches = self.decoder(x_BLD, context, caches)
    return self.finished(x_BLD[:, self._blocks.extra :], caches)

  @property
  def _blocks(self) -> Blocks:
    blocks = self._choices.attention[0].blocks
    assert isinstance(blocks, Blocks)
    return blocks


class Table(nn.Module):
  """The vectors of the extra tokens, [number, D]."""

  shape: tuple[int, int]
  initializer: Initializer

  @nn.compact
  def __call__(self) -> jax.Array:
    """The table."""
    axes = ('position', 'embed')
    return parameter(self, 'embedding', self.initializer, self.shape, axes)


def _moved_back(context: Context, E: int) -> Context:
  """The context of rows behind E tokens, which all of a row's tokens see."""
  seen = context.visibility
  mask_BM, visible_BLM = seen.key_mask_BM, seen.visible_BLM
  if mask_BM is not None:
    mask_BM = jnp.pad(mask_BM, ((0, 0), (E, 0)), constant_values=True)
  if visible_BLM is not None:
    widths = ((0, 0), (E, 0), (E, 0))
    visible_BLM = jnp.pad(visible_BLM, widths, constant_values=True)
  order = seen.order
  if order is not None:
    int32 = jnp.iinfo(jnp.int32)
    order = Order(
      bounds_BL=jnp.pad(order.bounds_BL, ((0, 0), (E, 0)), constant_values=int32.max - 1),
      ranks_BM=jnp.pad(order.ranks_BM, ((0, 0), (E, 0)), constant_values=int32.min),
    )
  positions_BL = context.positions_BL
  if positions_BL is not None:
    front = jnp.broadcast_to(jnp.arange(E)[None], (len(positions_BL), E))
    positions_BL = jnp.concatenate([front, positions_BL + E], axis=1)
  return context._replace(
    positions_BL=positions_BL,
    visibility=seen._replace(key_mask_BM=mask_BM, visible_BLM=visible_BLM, order=order),
  )
