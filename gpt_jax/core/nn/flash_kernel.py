# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Flash attention for TPU with scores by distance and dropout, in Pallas.

As FlashAttention (Dao et al., 2022; algorithms 1 and 4) it computes blocks of
scores that stay in the chip's vector memory, in one kernel forward and one
backward. JAX's splash kernel has neither of two things:

- Scores by distance: one number for each head and distance, or a product of
  the query or the key with a vector of the distance (`flash_distances`). The
  vectors of a head stay in the vector memory, and their gradient is summed
  there.
- Dropout is drawn by `attention_dropout` within a block, again in the backward
  kernel.

Suffixes within the kernels: L queries and M keys of a block, W = L + M.
"""

import functools
import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gpt_jax.core.nn.attention_dropout import hashed, kept
from gpt_jax.core.nn.distance_products import ByKind, Products
from gpt_jax.core.nn.flash_distances import by_distance, of_distances, product, skewed, unskewed
from gpt_jax.core.nn.kernels import LANES

# The score of a hidden key. Twice its negative overflows to an exponential of
# zero, the difference of two is no nan.
HIDDEN = -0.7 * float(jnp.finfo(jnp.float32).max)
# The id of keys that are padding; no document has it, and no order's bound.
PADDING = 2**31 - 1


class Static(NamedTuple):
  """What a kernel is compiled for.

  Attributes:
    causal: no query sees a later key.
    window: a query sees no key further back than `window` - 1; None: all.
    softcap: bound of the scores; 0: none.
    blocks: sizes of a block of queries and of keys.
    before: keys of a memory, before the first query.
    ordered: ids are those of an order, not of documents.
    interpret: runs on any device, slowly: for tests.
  """

  causal: bool
  window: int | None
  softcap: float
  rate: float
  blocks: tuple[int, int]
  before: int
  ordered: bool
  interpret: bool


class Operands(NamedTuple):
  """The kernels' inputs on a device, heads first; None where unused.

  Attributes:
    q_BHLK: scaled queries; their number divides by the block, as keys' does.
    k_BGMK: keys.
    v_BGMK: values.
    strips_HNW: the bias: for each offset between a block of keys and one of
      queries, in order, the numbers of the distances within the pair.
    hashes_BH: int32, of `AttentionDropout.of_heads`.
    prefix_B: int32, see `row.Visibility`.
    query_ids_BL: int32, the document of each query, or its bound in an order.
    key_ids_BM: int32, that of each key, or its rank, or PADDING; without
      `query_ids_BL` all others are seen.
    of_queries: scaled vectors of queries [B, H, L, K], and those of distances
      [H, N, K]: see `flash_distances.table`.
    of_keys: scaled vectors of keys, and those of distances as they see them.
    by_kind: scaled numbers of queries, [B, H, 2, L], and kinds.
    numbers_BL: int32, of the queries, for dropout; None: their places.
    firsts: int32, the places of the first query and of the first key, where
      rows are split over devices; None: those of whole rows.
  """

  q_BHLK: jax.Array
  k_BGMK: jax.Array
  v_BGMK: jax.Array
  strips_HNW: jax.Array | None = None
  hashes_BH: jax.Array | None = None
  prefix_B: jax.Array | None = None
  query_ids_BL: jax.Array | None = None
  key_ids_BM: jax.Array | None = None
  of_queries: Products | None = None
  of_keys: Products | None = None
  by_kind: ByKind | None = None
  numbers_BL: jax.Array | None = None
  firsts: jax.Array | None = None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_blocks(static: Static, x: Operands) -> jax.Array:
  """Attention on a device: [B, H, L, K]."""
  return _forward(static, x)[0]


def _forward(static: Static, x: Operands):
  B, H, L, _ = x.q_BHLK.shape
  K = x.v_BGMK.shape[3]
  (size, _), of_queries = static.blocks, lambda b, h, i, j: (b, h, i, 0)
  out_BHLK, log_BH1L = _call(
    'flash_forward',
    _forward_kernel,
    static,
    x,
    grid=lambda i, j: (i, j),
    out={
      'out': ((B, H, L, K), x.v_BGMK.dtype, (1, 1, size, K), of_queries),
      'log': ((B, H, 1, L), jnp.float32, (1, 1, 1, size), lambda b, h, i, j: (b, h, 0, i)),
    },
    scratch={'top': (size, LANES), 'sum': (size, LANES), 'acc': (size, K)},
    products=(1, 1, 1),
  )
  return out_BHLK, (x, out_BHLK, log_BH1L)


def _backward(static: Static, residuals, grad_BHLK):
  x, out_BHLK, log_BH1L = residuals
  (B, H, L, K), (_, G, M, V) = x.q_BHLK.shape, x.v_BGMK.shape
  of_head, of_keys = (lambda b, h, i, j: (b, h, 0, 0), lambda b, h, i, j: (b, h, j, 0))
  size = static.blocks[1]
  # Of query heads; those that share a head of keys are summed below.
  dtype = x.k_BGMK.dtype if G == H else jnp.float32
  out = {
    'dq': ((B, H, L, K), x.q_BHLK.dtype, (1, 1, L, K), of_head),
    'dk': ((B, H, M, K), dtype, (1, 1, size, K), of_keys),
    'dv': ((B, H, M, V), dtype, (1, 1, size, V), of_keys),
  }
  scratch = {'dq_acc': (L, K), 'dk_acc': (size, K), 'dv_acc': (size, V)}
  if x.by_kind is not None:
    out['dkinds'] = (B, H, 2, L), jnp.float32, (1, 1, 2, L), of_head
  if x.strips_HNW is not None:
    _, N, W = x.strips_HNW.shape
    out['dstrips'] = ((H, N, 1, W), jnp.float32, (1, N, 1, W), lambda b, h, i, j: (h, 0, 0, 0))
  for name, given, rows, place in (
    ('queries', x.of_queries, L, of_head),
    ('keys', x.of_keys, size, of_keys),
  ):
    if given is not None:
      x_BHLK, (_, N, _) = given.x_BLHK, given.table_NHK.shape
      out[f'd{name}'] = x_BHLK.shape, x_BHLK.dtype, (1, 1, rows, K), place
      out[f'd{name}_table'] = ((H, N, K), jnp.float32, (1, N, K), lambda b, h, i, j: (h, 0, 0))
      scratch[f'd{name}_acc'] = rows, K
  found = _call(
    'flash_backward',
    _backward_kernel,
    static,
    x,
    grid=lambda i, j: (j, i),
    more={'grad': grad_BHLK, 'y': out_BHLK, 'log': log_BH1L},
    out=out,
    scratch=scratch,
    products=(3, 2, 3),
  )
  dq, dk, dv, *_ = found
  found = dict(zip(out, found, strict=True))
  if G < H:
    dk, dv = (y.reshape(B, G, H // G, M, -1).sum(axis=2).astype(x.k_BGMK.dtype) for y in (dk, dv))
  gradient = Operands(dq, dk, dv)
  keep = 1 - static.rate
  if x.strips_HNW is not None:
    gradient = gradient._replace(strips_HNW=found['dstrips'][:, :, 0] / keep)
  if x.by_kind is not None:
    kinds = ByKind(found['dkinds'] / keep, None, None)  # pyright: ignore
    gradient = gradient._replace(by_kind=kinds)
  for name in ('queries', 'keys'):
    given = getattr(x, f'of_{name}')
    if given is not None:
      table_HNK = (found[f'd{name}_table'] / keep).astype(given.table_NHK.dtype)
      both = Products(found[f'd{name}'], table_HNK)
      gradient = gradient._replace(**{f'of_{name}': both})
  return (gradient,)


attend_blocks.defvjp(_forward, _backward)


def _call(
  name: str,
  kernel: Callable[..., None],
  static: Static,
  x: Operands,
  *,
  grid: Callable[[Any, Any], tuple[Any, Any]],
  out: dict[str, tuple],
  scratch: dict[str, tuple[int, int]],
  products: tuple[int, int, int],
  more: dict[str, jax.Array] | None = None,
) -> list[jax.Array]:
  """Runs a kernel on all blocks of all rows and heads.

  Args:
    kernel: called with `static` and the references by name.
    x: inputs by name.
    grid: from the block of queries and that of keys to the order of the loops,
      or back.
    out: shape, dtype, block and its place (b, h, i, j) of each output.
    scratch: shapes of float32 that stay while blocks change.
    products: of width K and of width V, for each score; and with each table.
    more: further inputs, of the queries.
  """
  (B, H, L, K), (_, G, M, V) = x.q_BHLK.shape, x.v_BGMK.shape
  size, num = static.blocks, (L // static.blocks[0], M // static.blocks[1])
  scalars, inputs = {}, {}
  if x.hashes_BH is not None:
    scalars['hashes'] = x.hashes_BH.reshape(-1)
  if x.prefix_B is not None:
    scalars['prefix'] = x.prefix_B
  if x.firsts is not None:
    scalars['firsts'] = x.firsts

  def add(name, array, block, place):
    if array is not None:
      inputs[name] = array, block, place

  def of_queries(b, h, i, j):
    return b, h, i, 0

  def of_keys(b, h, i, j):
    return b, h // (H // G), j, 0

  add('q', x.q_BHLK, (1, 1, size[0], K), of_queries)
  add('k', x.k_BGMK, (1, 1, size[1], K), of_keys)
  add('v', x.v_BGMK, (1, 1, size[1], V), of_keys)
  if x.strips_HNW is not None:
    add(
      'strip',
      x.strips_HNW[:, :, None],
      (1, 1, 1, sum(size)),
      lambda b, h, i, j: (h, j - i + num[0] - 1, 0, 0),
    )
  if x.query_ids_BL is not None:
    add('query_ids', x.query_ids_BL[:, None], (1, 1, size[0]), lambda b, h, i, j: (b, 0, i))
  if x.key_ids_BM is not None:
    add('key_ids', x.key_ids_BM[:, None], (1, 1, size[1]), lambda b, h, i, j: (b, 0, j))
  if x.numbers_BL is not None:
    add('numbers', x.numbers_BL[:, None], (1, 1, size[0]), lambda b, h, i, j: (b, 0, i))
  if x.by_kind is not None:
    numbers_BH2L, of_queries_BL, of_keys_BM = x.by_kind
    add('kinds', numbers_BH2L, (1, 1, 2, size[0]), lambda b, h, i, j: (b, h, 0, i))
    add('query_kinds', of_queries_BL[:, None], (1, 1, size[0]), lambda b, h, i, j: (b, 0, i))
    add('key_kinds', of_keys_BM[:, None], (1, 1, size[1]), lambda b, h, i, j: (b, 0, j))
  for key, given, rows, place in (
    ('queries', x.of_queries, size[0], of_queries),
    ('keys', x.of_keys, size[1], lambda b, h, i, j: (b, h, j, 0)),
  ):
    if given is not None:
      add(key, given.x_BLHK, (1, 1, rows, K), place)
      _, N, _ = given.table_NHK.shape
      add(f'{key}_table', given.table_NHK, (1, N, K), lambda b, h, i, j: (h, 0, 0))
  for key, array in (more or {}).items():
    if key == 'log':
      add(key, array, (1, 1, 1, size[0]), lambda b, h, i, j: (b, h, 0, i))
    else:
      add(key, array, (1, 1, size[0], V), of_queries)

  def spec(block, place):
    def index(h, b, first, second, *_):
      return place(b, h, *grid(first, second))

    return pl.BlockSpec(block, index)

  names = (*scalars, *inputs, *out, *scratch)

  def run(*refs):
    h, b = pl.program_id(0), pl.program_id(1)
    i, j = grid(pl.program_id(2), pl.program_id(3))
    refs = dict.fromkeys(UNUSED) | dict(zip(names, refs, strict=True))
    query, key, firsts = static.before, 0, refs['firsts']
    if firsts is not None:
      query, key = firsts[0], firsts[1]
    at = At(b, h, i, j, *num, H, query=query + i * size[0], key=key + j * size[1])
    kernel(static, at, SimpleNamespace(**refs))

  # The last of the queries take longest where rows are split.
  first = static.before if x.firsts is None else M - L
  seen = sum(
    bool(may_see(static, first + i, j)) for i in range(0, L, size[0]) for j in range(0, M, size[1])
  )
  scores = B * H * seen * math.prod(size)
  features = [
    n
    for n in ('strip', 'queries_table', 'keys_table', 'kinds', 'hashes')
    if n in {*inputs, *scalars}
  ]
  # Gradients of what all rows share are summed in place.
  summed = any(key.endswith(('strips', 'table')) for key in out)
  flops = products[0] * K + products[1] * V
  for n, other in (('queries_table', size[1]), ('keys_table', size[0])):
    if n in inputs:
      flops += products[2] * K * (other + LANES) / other
  return pl.pallas_call(
    run,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(scalars),
      grid=(H, B, *grid(*num)),
      in_specs=[spec(*given[1:]) for given in inputs.values()],
      out_specs=[spec(*given[2:]) for given in out.values()],
      scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()],
    ),
    out_shape=[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, *_ in out.values()],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=(
        'parallel',
        'arbitrary' if summed else 'parallel',
        'arbitrary',
        'arbitrary',
      )
    ),
    interpret=static.interpret,
    name='_'.join([name, *features]),
    cost_estimate=pl.CostEstimate(
      flops=int(2 * scores * flops),
      transcendentals=scores,
      bytes_accessed=_traffic(grid, num, inputs, out, (B, H)),
    ),
  )(*scalars.values(), *(array for array, *_ in inputs.values()))


def _traffic(grid, num, inputs, out, rows: tuple[int, int]) -> int:
  """Bytes of all blocks, each moved again whenever its place changes.

  Rows are stored in whole LANES.
  """
  places = [
    grid(first, second) for first in range(grid(*num)[0]) for second in range(grid(*num)[1])
  ]
  total = 0
  both = [(a.dtype, block, place) for a, block, place in inputs.values()]
  both += [given[1:] for given in out.values()]
  for dtype, block, place in both:
    visited = [place(0, 0, *at) for at in places]
    changes = sum(a != b for a, b in itertools.pairwise(visited))
    each = math.prod(block[:-1]) * -(-block[-1] // LANES) * LANES
    each *= jnp.dtype(dtype).itemsize
    # The vectors of a head's distances stay from row to row.
    stays = not changes and place(1, 0, *places[0]) == place(0, 0, *places[0])
    total += (1 + changes) * each * (rows[1] if stays else math.prod(rows))
  return total


# The references of inputs that a kernel may lack.
UNUSED = (
  'hashes',
  'prefix',
  'firsts',
  'strip',
  'query_ids',
  'key_ids',
  'queries',
  'queries_table',
  'keys',
  'keys_table',
  'kinds',
  'query_kinds',
  'key_kinds',
  'numbers',
)


class At(NamedTuple):
  """Where a kernel is: row, head, blocks of queries and keys, and how many.

  `query` and `key` are the places of the blocks' first ones.
  """

  b: Any
  h: Any
  i: Any
  j: Any
  num_i: int
  num_j: int
  num_heads: int
  query: Any
  key: Any


def _forward_kernel(static: Static, at: At, refs: Any) -> None:
  """Adds a block of keys to the output of a block of queries."""

  @pl.when(at.j == 0)
  def _():
    refs.top[...] = jnp.full_like(refs.top, HIDDEN)
    refs.sum[...] = jnp.zeros_like(refs.sum)
    refs.acc[...] = jnp.zeros_like(refs.acc)

  @_where_seen(static, at, refs)
  def _():
    scores_LM, _ = _scores(static, at, refs)
    before_L1 = refs.top[:, :1]
    top_L1 = jnp.maximum(before_L1, scores_LM.max(axis=1, keepdims=True))
    decay_L1 = jnp.exp(before_L1 - top_L1)
    exp_LM = jnp.exp(scores_LM - top_L1)
    sum_L1 = decay_L1 * refs.sum[:, :1] + exp_LM.sum(axis=1, keepdims=True)
    refs.top[...] = jnp.broadcast_to(top_L1, refs.top.shape)
    refs.sum[...] = jnp.broadcast_to(sum_L1, refs.sum.shape)
    if static.rate:
      exp_LM = jnp.where(_kept(static, at, refs), exp_LM, 0.0)
    value_MK = refs.v[0, 0]
    more_LK = product(exp_LM.astype(value_MK.dtype), value_MK, (1, 0))
    refs.acc[...] = decay_L1 * refs.acc[...] + more_LK

  @pl.when(at.j == at.num_j - 1)
  def _():
    top_L1, sum_L1 = refs.top[:, :1], refs.sum[:, :1]
    # A query that sees nothing gives zeros.
    seen_L1 = top_L1 > HIDDEN
    out_LK = refs.acc[...] / (sum_L1 * (1 - static.rate))
    refs.out[0, 0] = jnp.where(seen_L1, out_LK, 0.0).astype(refs.out.dtype)
    log_L1 = jnp.where(seen_L1, top_L1 + jnp.log(sum_L1), -HIDDEN)
    refs.log[0, 0] = _as_row(log_L1)


def _backward_kernel(static: Static, at: At, refs: Any) -> None:
  """Adds a block of scores to the gradients of its queries, keys and values.

  The gradients of scores lack a factor 1 / keep, which the sums get instead.
  """
  keep, size = 1 - static.rate, static.blocks[0]

  @pl.when(at.i == 0)
  def _():
    refs.dk_acc[...] = jnp.zeros_like(refs.dk_acc)
    refs.dv_acc[...] = jnp.zeros_like(refs.dv_acc)
    if refs.keys is not None:
      refs.dkeys_acc[...] = jnp.zeros_like(refs.dkeys_acc)

  @pl.when((at.i == 0) & (at.j == 0))
  def _():
    refs.dq_acc[...] = jnp.zeros_like(refs.dq_acc)
    if refs.queries is not None:
      refs.dqueries_acc[...] = jnp.zeros_like(refs.dqueries_acc)
    if refs.kinds is not None:
      refs.dkinds[...] = jnp.zeros_like(refs.dkinds)

  @pl.when((at.b == 0) & (at.i == 0) & (at.j == 0))
  def _():
    for name in ('dstrips', 'dqueries_table', 'dkeys_table'):
      if hasattr(refs, name):
        ref = getattr(refs, name)
        ref[...] = jnp.zeros_like(ref)

  @_where_seen(static, at, refs)
  def _():
    scores_LM, slope_LM = _scores(static, at, refs)
    probs_LM = jnp.exp(scores_LM - _as_column(refs.log[0, 0]))
    query_LK, key_MK, grad_LV = refs.q[0, 0], refs.k[0, 0], refs.grad[0, 0]
    of_probs_LM = product(grad_LV, refs.v[0, 0], (1, 1))
    # sum_m p_m dp_m is the product of the output and its gradient.
    mean_L1 = jnp.sum(
      grad_LV.astype(jnp.float32) * refs.y[0, 0].astype(jnp.float32), axis=1, keepdims=True
    )
    kept_LM = probs_LM
    if static.rate:
      mask_LM = _kept(static, at, refs)
      kept_LM = jnp.where(mask_LM, probs_LM, 0.0)
      of_probs_LM = jnp.where(mask_LM, of_probs_LM, 0.0)
    of_scores_LM = probs_LM * (of_probs_LM - mean_L1 * keep)
    if slope_LM is not None:
      of_scores_LM *= slope_LM
    refs.dv_acc[...] += product(kept_LM.astype(grad_LV.dtype), grad_LV, (0, 0))
    rounded_LM = of_scores_LM.astype(query_LK.dtype)
    refs.dk_acc[...] += product(rounded_LM, query_LK, (0, 0))
    rows = pl.ds(pl.multiple_of(at.i * size, size), size)
    refs.dq_acc[rows] += product(rounded_LM, key_MK, (1, 0))
    if refs.strip is not None:
      n = at.j - at.i + at.num_i - 1
      refs.dstrips[0, n] += unskewed(of_scores_LM)
    if refs.kinds is not None:
      other_LM = jnp.where(_other_kind(refs), of_scores_LM, 0.0)
      other_L1 = other_LM.sum(axis=1, keepdims=True)
      same_L1 = of_scores_LM.sum(axis=1, keepdims=True) - other_L1
      refs.dkinds[0, 0, :, rows] += jnp.concatenate([_as_row(same_L1), _as_row(other_L1)])
    of_queries, of_keys = _first_distances(static, at)
    if refs.queries is not None:
      refs.dqueries_acc[rows] += of_distances(
        of_scores_LM, refs.queries, refs.queries_table, refs.dqueries_table, of_queries
      )
    if refs.keys is not None:
      refs.dkeys_acc[...] += of_distances(
        of_scores_LM.T, refs.keys, refs.keys_table, refs.dkeys_table, of_keys
      )

  @pl.when(at.i == at.num_i - 1)
  def _():
    refs.dk[0, 0] = (refs.dk_acc[...] / keep).astype(refs.dk.dtype)
    refs.dv[0, 0] = (refs.dv_acc[...] / keep).astype(refs.dv.dtype)
    if refs.keys is not None:
      refs.dkeys[0, 0] = (refs.dkeys_acc[...] / keep).astype(refs.dkeys.dtype)

  @pl.when((at.i == at.num_i - 1) & (at.j == at.num_j - 1))
  def _():
    refs.dq[0, 0] = (refs.dq_acc[...] / keep).astype(refs.dq.dtype)
    if refs.queries is not None:
      dqueries = refs.dqueries_acc[...] / keep
      refs.dqueries[0, 0] = dqueries.astype(refs.dqueries.dtype)


def _where_seen(static: Static, at: At, refs: Any) -> Callable[..., None]:
  """Runs a function if a query of the block may see a key of its block."""
  if at.num_i == at.num_j == 1:
    return lambda function: function()
  seen = may_see(static, at.query, at.key)
  if static.causal and refs.prefix is not None:
    within = may_see(static._replace(causal=False), at.query, at.key)
    seen |= within & (at.key < refs.prefix[at.b])
  return pl.when(seen)


def may_see(static: Static, query: Any, key: Any) -> Any:
  """Whether any query of a block may see any key of one, by the pattern.

  Args:
    query: the place of the first query.
    key: that of the first key.
  """
  L, M = static.blocks
  seen = key >= 0
  if static.causal:
    seen &= key < query + L
  if static.window is not None:
    seen &= query - (key + M - 1) < static.window
  return seen


def _scores(static: Static, at: At, refs: Any) -> tuple[jax.Array, jax.Array | None]:
  """Scores with HIDDEN ones; and, with a softcap, its slope."""
  scores_LM = product(refs.q[0, 0], refs.k[0, 0], (1, 1))
  if refs.strip is not None:
    scores_LM += skewed(refs.strip[0, 0], static.blocks)
  of_queries, of_keys = _first_distances(static, at)
  if refs.queries is not None:
    scores_LM += by_distance(refs.queries, refs.queries_table, of_queries, static.blocks[1])
  if refs.keys is not None:
    scores_LM += by_distance(refs.keys, refs.keys_table, of_keys, static.blocks[0]).T
  if refs.kinds is not None:
    kinds = refs.kinds[0, 0]
    same_L1, other_L1 = _as_column(kinds[:1]), _as_column(kinds[1:])
    scores_LM += jnp.where(_other_kind(refs), other_L1, same_L1)
  slope_LM = None
  if static.softcap:
    share_LM = jnp.tanh(scores_LM / static.softcap)
    scores_LM, slope_LM = static.softcap * share_LM, 1 - share_LM**2
  mask = _visible(static, at, refs)
  if mask is not None:
    scores_LM = jnp.where(mask, scores_LM, HIDDEN)
  return scores_LM, slope_LM


def _first_distances(static: Static, at: At) -> tuple[Any, Any]:
  """The entry of each table for the first row and column of a block."""
  L, M = static.blocks
  of_queries = (at.num_i - at.i) * L + at.j * M
  of_keys = (at.num_j - at.j) * M + at.i * L
  return of_queries, of_keys


def _other_kind(refs: Any) -> jax.Array:
  """Whether a key of the block is of another kind than a query."""
  return _as_column(refs.query_kinds[0]) != refs.key_kinds[0]


def _visible(static: Static, at: At, refs: Any) -> jax.Array | None:
  """Which keys of the block its queries see; None: all."""
  masks = []
  if static.causal or static.window is not None:
    query = jax.lax.broadcasted_iota(jnp.int32, static.blocks, 0) + at.query
    key = jax.lax.broadcasted_iota(jnp.int32, static.blocks, 1) + at.key
    if static.causal:
      earlier = key <= query
      if refs.prefix is not None:
        earlier |= key < refs.prefix[at.b]
      masks.append(earlier)
    if static.window is not None:
      masks.append(query - key < static.window)
  if refs.query_ids is not None:
    query_ids_L1, key_ids_1M = _as_column(refs.query_ids[0]), refs.key_ids[0]
    if static.ordered:
      masks.append(key_ids_1M <= query_ids_L1)
    else:
      masks.append(key_ids_1M == query_ids_L1)
  elif refs.key_ids is not None:
    real = refs.key_ids[0] != PADDING
    masks.append(jnp.broadcast_to(real, static.blocks))
  return functools.reduce(jnp.logical_and, masks) if masks else None


def _kept(static: Static, at: At, refs: Any) -> jax.Array:
  """`AttentionDropout.kept` of the block's queries and keys."""
  (L, M), u32 = static.blocks, jnp.uint32
  of_head = refs.hashes[at.b * at.num_heads + at.h].astype(u32)
  key_1M = jax.lax.broadcasted_iota(u32, (1, M), 1) + at.key.astype(u32)
  # Those of a memory are not counted.
  query = (at.query - static.before).astype(u32)
  query_LM = jax.lax.broadcasted_iota(u32, (L, M), 0) + query
  if refs.numbers is not None:
    query_LM = _as_column(refs.numbers[0]).astype(u32)
  return kept(hashed(hashed(key_1M ^ of_head) ^ query_LM), static.rate)


def _as_row(x_L1: jax.Array) -> jax.Array:
  """[L, 1] to [1, L], as whole tiles are transposed."""
  return jnp.broadcast_to(x_L1, (x_L1.shape[0], LANES)).T[:1]


def _as_column(x_1L: jax.Array) -> jax.Array:
  """[1, L] to [L, 1]."""
  return jnp.broadcast_to(x_1L, (LANES, x_1L.shape[1])).T[:, :1]
