# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans batches of rows to score, and runs their programs."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import sharding
from gpt_jax.core.nn import row as row_lib
from gpt_jax.core.nn.caches import init_caches
from gpt_jax.core.nn.kv_cache import KVCache
from gpt_jax.core.nn.stack import Caches
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.training.parts import Parts
from gpt_jax.decoding import sampler

# Batches of rows.
#
# Padded lengths are chosen for the given rows: few, since each compiles a
# program, and with little padding. Rows that begin alike, such as the choices
# of a question, form groups, whose common beginning is read once.


# Shorter common beginnings are not worth a cache.
LEAST_SHARED = 16
_MOST_LENGTHS = 8
# Groups have two lengths: of the beginning and of the rest.
_MOST_GROUP_LENGTHS = 3
_MOST_OF_GROUP = 64


class ScoredRow(NamedTuple):
  """Token ids, of which the last `num_scored` are scored."""

  ids: np.ndarray
  num_scored: int
  cut: int = 0

  @property
  def length(self) -> int:
    """Tokens that the model reads: all but the last."""
    return len(self.ids) - 1

  @property
  def start(self) -> int:
    """The position that predicts the first scored token."""
    return self.length - self.num_scored


class BatchLimits(NamedTuple):
  """What a batch may hold."""

  tokens: int  # the most tokens of a batch, including padding
  rows: int  # the most rows of a batch
  # The most tokens whose keys and values are held; 0: nothing is shared.
  cached: int
  shards: int  # parts that a batch is split into
  program: int  # tokens that cost as much as compiling one more length
  padded: Callable[[int], int]  # rounds a length up


class Group(NamedTuple):
  """Numbers of rows, and how many of their first ids are read once for all."""

  rows: tuple[int, ...]
  shared: int = 0


class ScoredBatch(NamedTuple):
  """Groups scored together."""

  groups: list[Group]
  prefix_length: int  # padded length of the shared ids; 0: there are none
  length: int  # padded length of the rest of each row
  num_groups: int  # padded number of groups
  num_rows: int  # padded number of rows

  @property
  def rows(self) -> list[int]:
    """The numbers of all rows."""
    return [i for group in self.groups for i in group.rows]


def plan(rows: Sequence[ScoredRow], limits: BatchLimits) -> tuple[int, list[ScoredBatch]]:
  """Batches of the rows, the longest first.

  Returns:
    How many first ids all rows share that are worth reading once, and the
    batches. The shared ids of a group come after those.
  """
  common = _common(rows, limits)
  groups = [Group((i,)) for i in range(len(rows))]
  if limits.cached:
    found = _grouped(rows, common, limits)
    if sum(g.shared * (len(g.rows) - 1) for g in found) > limits.program:
      groups = found
  batches = [
    *_batches(rows, [g for g in groups if g.shared], common, limits),
    *_batches(rows, [g for g in groups if not g.shared], common, limits),
  ]
  return common, sorted(batches, key=lambda b: -(b.prefix_length + b.length))


def choose_lengths(
  lengths: Sequence[int], counts: Sequence[int], limits: BatchLimits, most: int
) -> list[int]:
  """The padded lengths of least cost: of padding and of compiled programs.

  Args:
    lengths: of rows.
    counts: how many rows have each length.
    most: how many lengths to choose.

  Returns:
    Ascending lengths; the last holds the longest row.
  """
  total: dict[int, int] = {}
  for length, count in zip(lengths, counts, strict=True):
    size = limits.padded(length)
    total[size] = total.get(size, 0) + count
  sizes = np.array(sorted(total))
  # sums[j] - sums[i]: rows longer than sizes[i - 1], up to sizes[j - 1].
  sums = np.cumsum([0, *(total[size] for size in sizes)])
  least, ends = np.full(len(sizes) + 1, np.inf), [[] for _ in range(len(sums))]
  least[0], lowest, out = 0, np.inf, []
  for _ in range(min(most, len(sizes))):
    # With one length more: the least costs, and the lengths chosen for them.
    new, picks = np.full(len(sums), np.inf), [[] for _ in sums]
    for j, size in enumerate(sizes, start=1):
      cost = least[:j] + (sums[j] - sums[:j]) * size + limits.program
      i = int(np.argmin(cost))
      new[j], picks[j] = cost[i], [*ends[i], int(size)]
    least, ends = new, picks
    if least[-1] < lowest:
      lowest, out = least[-1], ends[-1]
  return out


def _common(rows: Sequence[ScoredRow], limits: BatchLimits) -> int:
  """How many first ids all rows share, if reading them once is worthwhile."""
  if not limits.cached or len(rows) < 2:
    return 0
  common = rows[0].start
  for row in rows[1:]:
    common = min(common, _same(rows[0], row))
    if common < LEAST_SHARED:
      return 0
  return common if common * (len(rows) - 1) > limits.program else 0


def _same(a: ScoredRow, b: ScoredRow) -> int:
  """How many first ids two rows share before the scored ones."""
  stop = min(a.start, b.start)
  differs = np.flatnonzero(a.ids[:stop] != b.ids[:stop])
  return int(differs[0]) if len(differs) else stop


def _grouped(rows: Sequence[ScoredRow], common: int, limits: BatchLimits) -> list[Group]:
  """Groups for which the fewest tokens are read, by dynamic programming.

  In the order of their ids, neighbouring rows share most: a group is a section
  of that order.
  """
  # Big-endian bytes sort in the order of the ids.
  order = sorted(range(len(rows)), key=lambda i: rows[i].ids.astype('>i4').tobytes())
  same = [_same(rows[a], rows[b]) - common for a, b in itertools.pairwise(order)]
  # saved[j]: tokens saved by the best groups of the first j rows; cuts[j]: the
  # start of the last of these groups; shares[j]: how many ids it shares.
  saved, cuts = [0], [0]
  shares = [0]
  for j in range(1, len(order) + 1):
    best, cut, share = saved[j - 1], j - 1, 0
    shared, longest = 1 << 30, rows[order[j - 1]].length
    for i in range(j - 2, max(j - _MOST_OF_GROUP, 0) - 1, -1):
      shared = min(shared, same[i])
      longest = max(longest, rows[order[i]].length)
      count = j - i
      if (
        shared < LEAST_SHARED
        or count * (longest - common - shared) + shared > limits.tokens
        or count * longest > limits.cached
        or count > limits.rows
      ):
        break
      if saved[i] + shared * (count - 1) > best:
        best, cut, share = saved[i] + shared * (count - 1), i, shared
    saved.append(best)
    cuts.append(cut)
    shares.append(share)
  out, stop = [], len(order)
  while stop:
    out.append(Group(tuple(order[cuts[stop] : stop]), shares[stop]))
    stop = cuts[stop]
  return out


def _batches(
  rows: Sequence[ScoredRow], groups: list[Group], common: int, limits: BatchLimits
) -> Iterator[ScoredBatch]:
  """Batches of groups that all share ids, or all share none."""
  if not groups:
    return
  most = _MOST_GROUP_LENGTHS if groups[0].shared else _MOST_LENGTHS
  rests = [max(rows[i].length for i in g.rows) - common - g.shared for g in groups]
  lengths = choose_lengths(rests, [len(g.rows) for g in groups], limits, most)
  prefixes = [0]
  if groups[0].shared:
    shared = [g.shared for g in groups]
    prefixes = choose_lengths(shared, [1] * len(groups), limits, most)
  buckets: dict[tuple[int, int], list[Group]] = {}
  for group, rest in zip(groups, rests, strict=True):
    prefix = prefixes[int(np.searchsorted(prefixes, group.shared))]
    length = lengths[int(np.searchsorted(lengths, rest))]
    buckets.setdefault((prefix, length), []).append(group)
  for (prefix, length), found in buckets.items():
    # The number of scored tokens decides the work after the model.
    found.sort(key=lambda g: -max(rows[i].num_scored for i in g.rows))
    yield from _filled(found, prefix, length, common, limits)


def _filled(
  groups: list[Group], prefix: int, length: int, common: int, limits: BatchLimits
) -> Iterator[ScoredBatch]:
  """As few batches as the limits allow, all of the same shape."""
  parts = _split(groups, prefix, length, common, limits)
  total = sum(len(g.rows) for g in groups)
  # As many batches of equal size: a smaller last one would compile again.
  even = limits._replace(rows=_whole(-(-total // len(parts)), limits))
  parts = _split(groups, prefix, length, common, even)
  counts = [(len(p), sum(len(g.rows) for g in p)) for p in parts]
  num_groups, num_rows = (_whole(max(n), limits) for n in zip(*counts, strict=True))
  for part in parts:
    yield ScoredBatch(part, prefix, length, num_groups, num_rows)


def _split(
  groups: list[Group], prefix: int, length: int, common: int, limits: BatchLimits
) -> list[list[Group]]:
  """Fills one batch after the other."""
  parts: list[list[Group]] = [[]]
  num_rows = 0
  for group in groups:
    new = num_rows + len(group.rows)
    tokens = (len(parts[-1]) + 1) * prefix + _whole(new, limits) * length
    held = new * (common + prefix + length) if common or prefix else 0
    full = tokens > limits.tokens or held > limits.cached or new > limits.rows
    if parts[-1] and full and num_rows >= limits.shards:
      parts.append([])
      new = len(group.rows)
    parts[-1].append(group)
    num_rows = new
  return parts


def _whole(count: int, limits: BatchLimits) -> int:
  """Rounded up to a multiple of the shards."""
  return -(-count // limits.shards) * limits.shards


# Logits held at once: 128 MiB of float32.
_CHUNK_LOGITS = 1 << 25
# Positions of all rows whose logits are computed at once.
_CHUNK_POSITIONS = 256
# Tokens of a row that attend to a cache at once.
_BLOCK = 256


class Forward:
  """Scores batches of rows on a mesh; programs are compiled on first use."""

  def __init__(self, parts: Parts, never_V: np.ndarray | None = None):
    """`never_V` is from `constraints.never_drawn`."""
    self._parts = parts
    jit = functools.partial(jax.jit, out_shardings=sharding.replicated(parts.mesh))
    fixed = {'model': parts.model, 'never_V': never_V}
    self._rows = jit(functools.partial(score_rows, **fixed))
    self._rest = jit(functools.partial(score_rest, **fixed))
    self._read = jax.jit(functools.partial(read, model=parts.model))

  def read(self, params: Any, ids: np.ndarray) -> Caches:
    """Keys and values of ids that all rows of later batches begin with."""
    batch = _padded([ids], [0], 1, len(ids))
    with sharding.use(self._parts.mesh, self._parts.rules):
      return self._read(params, None, batch)

  def score(
    self,
    params: Any,
    rows: Sequence[ScoredRow],
    batch: ScoredBatch,
    common: tuple[int, Caches] | None = None,
  ) -> list[tuple[float, bool]]:
    """Scores the rows of a batch.

    Args:
      rows: those that the batch numbers.
      batch: from `plan`.
      common: how many first ids all rows share, and their keys and values.

    Returns:
      For each row of the batch its log-probability, and whether every scored
      token was the most probable one.
    """
    before, caches = common or (0, None)
    found = [rows[i] for i in batch.rows]
    skipped = [before + g.shared for g in batch.groups for _ in g.rows]
    arrays = _padded(
      [row.ids[n:-1] for row, n in zip(found, skipped, strict=True)],
      skipped,
      batch.num_rows,
      batch.length,
    ) | _scored(found, skipped, batch)
    numbers = np.zeros(batch.num_rows, np.int32)
    with sharding.use(self._parts.mesh, self._parts.rules):
      if batch.prefix_length:
        firsts = [rows[g.rows[0]].ids for g in batch.groups]
        ends = [before + g.shared for g in batch.groups]
        prefixes = [ids[before:end] for ids, end in zip(firsts, ends, strict=True)]
        starts, shape = [before] * len(ends), batch.prefix_length
        new = _padded(prefixes, starts, batch.num_groups, shape)
        caches = self._read(params, caches, self._put(new))
        sizes = [len(g.rows) for g in batch.groups]
        numbers[: len(found)] = np.repeat(np.arange(len(sizes)), sizes)
      if caches is None:
        del arrays['positions']
        sums, greedy = self._rows(params, self._put(arrays))
      else:
        placed = self._put(arrays | {'groups': numbers})
        sums, greedy = self._rest(params, caches, placed)
    sums, greedy = np.asarray(sums, np.float64), np.asarray(greedy)
    return [(float(sums[i]), bool(greedy[i])) for i in range(len(found))]

  def _put(self, arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Puts arrays on the devices; each process provides its own rows."""
    num_rows = len(arrays['inputs'])
    mine = self._parts.host_rows(num_rows)
    return self._parts.put({k: v[mine] for k, v in arrays.items()}, num_rows)


def _padded(
  ids: Sequence[np.ndarray], starts: Sequence[int], num_rows: int, length: int
) -> dict[str, np.ndarray]:
  """`inputs` and `positions`, [num_rows, length], of ids from `starts` on.

  Padding repeats the last token at its position: it writes the same keys and
  values again, and no position exceeds the context.
  """
  out = {name: np.zeros((num_rows, length), np.int32) for name in ('inputs', 'positions')}
  for i, (part, start) in enumerate(zip(ids, starts, strict=True)):
    index = np.minimum(np.arange(length), len(part) - 1)
    out['inputs'][i], out['positions'][i] = part[index], start + index
  return out


def _scored(
  rows: Sequence[ScoredRow], skipped: Sequence[int], batch: ScoredBatch
) -> dict[str, np.ndarray]:
  """`targets`, `starts` and `counts` as `score_rows` takes them."""
  out = {
    'targets': np.zeros((batch.num_rows, batch.length), np.int32),
    'starts': np.zeros(batch.num_rows, np.int32),
    'counts': np.zeros(batch.num_rows, np.int32),
  }
  for i, (row, count) in enumerate(zip(rows, skipped, strict=True)):
    out['targets'][i, : row.num_scored] = row.ids[-row.num_scored :]
    out['starts'][i] = row.start - count
    out['counts'][i] = row.num_scored
  return out


def score_rows(
  params: Any, batch: dict[str, jax.Array], *, model: Transformer, never_V: np.ndarray | None = None
) -> tuple[jax.Array, jax.Array]:
  """Scores a batch by a causal decoder.

  Args:
    batch: `inputs` [B, L]; `targets` [B, L], the scored ids, aligned left;
      `starts` [B], the position that predicts the first of them; `counts` [B],
      their number.

  Returns:
    Log-probabilities [B], float32, and whether every scored token was the most
    probable one, [B].
  """
  out: Any = model.apply({'params': params}, batch['inputs'], mutable=['router'])
  return _score(params, out[0].hidden_BLD, batch, model, never_V)


def read(
  params: Any, caches: Caches | None, batch: dict[str, jax.Array], *, model: Transformer
) -> Caches:
  """The keys and values of the shared ids of groups.

  Args:
    caches: of one row that all groups begin with; None: there is none.
    batch: `inputs` and `positions`, [N, P] of N groups.
  """
  N, P = batch['inputs'].shape
  if caches is None:
    caches = init_caches(model, N, P)
  else:
    caches = _grown(caches, jnp.zeros(N, jnp.int32), P)
  return _continue(params, caches, batch, model)[1]


def score_rest(
  params: Any,
  caches: Caches,
  batch: dict[str, jax.Array],
  *,
  model: Transformer,
  never_V: np.ndarray | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Scores rows that continue the ids in caches.

  Args:
    caches: from `read`, of the groups.
    batch: as for `score_rows`, of the ids after the shared ones, with
      `positions` [B, L] and `groups` [B], the row's index in the caches.
  """
  caches = _grown(caches, batch['groups'], batch['inputs'].shape[1])
  hidden_BLD, _ = _continue(params, caches, batch, model)
  return _score(params, hidden_BLD, batch, model, never_V)


def _grown(caches: Caches, rows_B: jax.Array, more: int) -> Caches:
  """Rows of caches, with slots for `more` further tokens."""

  def grow(x: jax.Array, slots: int) -> jax.Array:
    # [..., N, G, K, M] or [..., N, G, M, K]; a stack has its depth in front.
    x = jnp.take(x, rows_B, axis=x.ndim - 4)
    more_slots = [(0, 0)] * x.ndim
    more_slots[slots] = (0, more)
    return jnp.pad(x, more_slots)

  def grown(cache: Any) -> KVCache:
    return KVCache(grow(cache.key_BGKM, -1), grow(cache.value_BGMK, -2))

  return tuple(map(grown, caches))


def _continue(
  params: Any, caches: Caches, batch: dict[str, jax.Array], model: Transformer
) -> tuple[jax.Array, Caches]:
  """Hidden states [B, L, D], and the caches with the new tokens."""

  def step(caches, block):
    out: Any = model.apply({'params': params}, row_lib.Row(*block), caches, mutable=['router'])
    return out[0].caches, out[0].hidden_BLD

  B, L = batch['inputs'].shape
  whole = batch['inputs'], batch['positions']
  if L <= _BLOCK:
    caches, hidden_BLD = step(caches, whole)
    return hidden_BLD, caches
  # The last block is padded as in `_padded`.
  more = [(0, 0), (0, -L % _BLOCK)]
  filled = [jnp.pad(x, more, mode='edge') for x in whole]
  blocks = [jnp.moveaxis(x.reshape(B, -1, _BLOCK), 1, 0) for x in filled]
  caches, hidden = jax.lax.scan(step, caches, tuple(blocks))
  return jnp.moveaxis(hidden, 0, 1).reshape(B, -1, model.d_model)[:, :L], caches


def _score(
  params: Any,
  hidden_BLD: jax.Array,
  batch: dict[str, jax.Array],
  model: Transformer,
  never_V: np.ndarray | None,
) -> tuple[jax.Array, jax.Array]:
  """Scores from hidden states; logits of scored positions alone, in chunks."""
  B, L, _ = hidden_BLD.shape
  starts_B1, counts_B1 = batch['starts'][:, None], batch['counts'][:, None]
  size = _CHUNK_POSITIONS // B
  size = max(1, min(size, L, _CHUNK_LOGITS // (B * model.vocab_size)))

  def score(number, sums):
    offset_1C = number * size + jnp.arange(size)[None]
    inside_1C = jnp.minimum(offset_1C, L - 1)
    at_BC = jnp.minimum(starts_B1 + inside_1C, L - 1)
    hidden_BCD = jnp.take_along_axis(hidden_BLD, at_BC[..., None], axis=1)
    index_BC = jnp.broadcast_to(inside_1C, at_BC.shape)
    targets_BC = jnp.take_along_axis(batch['targets'], index_BC, axis=1)
    counted_BC = offset_1C < counts_B1
    logits_BCV: Any = model.apply({'params': params}, hidden_BCD, method='logits')
    log_probs_BCV = jax.nn.log_softmax(logits_BCV, axis=-1)
    picked_BC = jnp.take_along_axis(log_probs_BCV, targets_BC[..., None], axis=-1)[..., 0]
    drawn_BCV = sampler.suppress(logits_BCV, never_V)
    best_BC = jnp.argmax(drawn_BCV, axis=-1) == targets_BC
    return (
      sums[0] + jnp.sum(jnp.where(counted_BC, picked_BC, 0.0), axis=-1),
      sums[1] & jnp.all(best_BC | ~counted_BC, axis=-1),
    )

  num_chunks = -(-jnp.max(batch['counts']) // size)
  first = jnp.zeros(B, jnp.float32), jnp.ones(B, bool)
  return jax.lax.fori_loop(0, num_chunks, score, first)
