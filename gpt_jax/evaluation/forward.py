# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The programs that score batches of rows, with or without a cache."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import sharding
from gpt_jax.decoding import sampler
from gpt_jax.evaluation.batches import Batch, Row
from gpt_jax.nn.caches import init_caches
from gpt_jax.nn.context import KVCache
from gpt_jax.nn.stack import Caches
from gpt_jax.nn.transformer import Transformer
from gpt_jax.training.parts import Parts

# Logits held at once: 128 MiB of float32.
_CHUNK_LOGITS = 1 << 25
# Positions of all rows whose logits are computed at once.
_CHUNK_POSITIONS = 256
# Tokens of a row that attend to a cache at once.
_BLOCK = 256


class Forward:
  """Runs batches of rows on a mesh; programs are compiled on first use."""

  def __init__(self, parts: Parts, never_V: np.ndarray | None = None):
    """Takes the model, the mesh and `sampler.never_drawn`."""
    self._parts = parts
    jit = functools.partial(
      jax.jit, out_shardings=sharding.replicated(parts.mesh)
    )
    fixed = {'model': parts.model, 'never_V': never_V}
    self._rows = jit(functools.partial(score_rows, **fixed))
    self._rest = jit(functools.partial(score_rest, **fixed))
    self._read = jax.jit(functools.partial(read, model=parts.model))

  def read(self, params: Any, ids: np.ndarray) -> Caches:
    """Keys and values of ids that stand before all rows of later batches."""
    batch = _padded([ids], [0], 1, len(ids))
    with sharding.use(self._parts.mesh, self._parts.rules):
      return self._read(params, None, batch)

  def score(
    self,
    params: Any,
    rows: Sequence[Row],
    batch: Batch,
    common: tuple[int, Caches] | None = None,
  ) -> list[tuple[float, bool]]:
    """Scores the rows of a batch.

    Args:
      params: of the model.
      rows: all that the batch's numbers count.
      batch: see `batches.plan`.
      common: how many first ids all rows share, and their keys and values.

    Returns:
      For each row of the batch its log-probability, and whether all tokens
      were the most probable ones.
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
        prefixes = [
          ids[before:end] for ids, end in zip(firsts, ends, strict=True)
        ]
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
    """Places arrays, of which each process keeps its own rows."""
    num_rows = len(arrays['inputs'])
    mine = self._parts.host_rows(num_rows)
    return self._parts.put({k: v[mine] for k, v in arrays.items()}, num_rows)


def _padded(
  ids: Sequence[np.ndarray], starts: Sequence[int], num_rows: int, length: int
) -> dict[str, np.ndarray]:
  """`inputs` and `positions`, [num_rows, length], of ids that begin somewhere.

  Padding repeats the last token in its place: it writes the same keys and
  values again, and no position lies past the context.
  """
  out = {
    name: np.zeros((num_rows, length), np.int32)
    for name in ('inputs', 'positions')
  }
  for i, (part, start) in enumerate(zip(ids, starts, strict=True)):
    index = np.minimum(np.arange(length), len(part) - 1)
    out['inputs'][i], out['positions'][i] = part[index], start + index
  return out


def _scored(
  rows: Sequence[Row], skipped: Sequence[int], batch: Batch
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
  params: Any,
  batch: dict[str, jax.Array],
  *,
  model: Transformer,
  never_V: np.ndarray | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Scores a batch.

  Args:
    params: of the model.
    batch: `inputs` [B, L]; `targets` [B, L], the scored ids from the left;
      `starts` [B], the position that predicts the first of them; `counts` [B],
      their number.
    model: a causal decoder.
    never_V: see `sampler.never_drawn`.

  Returns:
    Log-probabilities [B], float32, and whether all tokens were the most
    probable ones, [B].
  """
  out: Any = model.apply(
    {'params': params}, batch['inputs'], mutable=['router']
  )
  return _score(params, out[0].hidden_BLD, batch, model, never_V)


def read(
  params: Any,
  caches: Caches | None,
  batch: dict[str, jax.Array],
  *,
  model: Transformer,
) -> Caches:
  """Reads the shared ids of groups; gives their keys and values.

  Args:
    params: of the model.
    caches: of one row, which stands before all groups; None: nothing does.
    batch: `inputs` and `positions`, [N, P] of N groups.
    model: as for `score_rows`.
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
  """Scores rows that continue what is in caches.

  Args:
    params: of the model.
    caches: from `read`, of the groups.
    batch: as for `score_rows`, of what follows the shared ids, and
      `positions` [B, L]; `groups` [B], the row of the caches.
    model: as for `score_rows`.
    never_V: as for `score_rows`.
  """
  caches = _grown(caches, batch['groups'], batch['inputs'].shape[1])
  hidden_BLD, _ = _continue(params, caches, batch, model)
  return _score(params, hidden_BLD, batch, model, never_V)


def _grown(caches: Caches, rows_B: jax.Array, more: int) -> Caches:
  """Some rows of caches, with slots for `more` tokens."""

  def grow(x: jax.Array, slots: int) -> jax.Array:
    # [..., N, G, K, M] or [..., N, G, M, K]: of a stack, the depth is first.
    x = jnp.take(x, rows_B, axis=x.ndim - 4)
    more_slots = [(0, 0)] * x.ndim
    more_slots[slots] = (0, more)
    return jnp.pad(x, more_slots)

  def grown(cache: Any) -> KVCache:
    return KVCache(grow(cache.key_BGKM, -1), grow(cache.value_BGMK, -2))

  return tuple(map(grown, caches))


def _continue(
  params: Any,
  caches: Caches,
  batch: dict[str, jax.Array],
  model: Transformer,
) -> tuple[jax.Array, Caches]:
  """Hidden states [B, L, D], and the caches with what was read."""

  def step(caches, block):
    out: Any = model.apply(
      {'params': params}, *block, caches, mutable=['router']
    )
    return out[0].caches, out[0].hidden_BLD

  B, L = batch['inputs'].shape
  whole = batch['inputs'], batch['positions']
  if L <= _BLOCK:
    caches, hidden_BLD = step(caches, whole)
    return hidden_BLD, caches
  # The last block is filled as `_padded` fills rows.
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
  """Scores from hidden states: logits only of what is scored, in chunks."""
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
    logits_BCV: Any = model.apply(
      {'params': params}, hidden_BCD, method='logits'
    )
    log_probs_BCV = jax.nn.log_softmax(logits_BCV, axis=-1)
    picked_BC = jnp.take_along_axis(
      log_probs_BCV, targets_BC[..., None], axis=-1
    )[..., 0]
    drawn_BCV = sampler.suppress(logits_BCV, never_V)
    best_BC = jnp.argmax(drawn_BCV, axis=-1) == targets_BC
    return (
      sums[0] + jnp.sum(jnp.where(counted_BC, picked_BC, 0.0), axis=-1),
      sums[1] & jnp.all(best_BC | ~counted_BC, axis=-1),
    )

  num_chunks = -(-jnp.max(batch['counts']) // size)
  first = jnp.zeros(B, jnp.float32), jnp.ones(B, bool)
  return jax.lax.fori_loop(0, num_chunks, score, first)
