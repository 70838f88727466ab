# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which rows are scored together, and what they share is computed once.

Padded lengths are chosen for the rows at hand: few, since each is a program to
compile, and so that little is padding. Rows that begin alike, such as the
choices of one question, form groups, whose common beginning is read once.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

# Shorter beginnings are not worth a cache of their own.
LEAST_SHARED = 16
_MOST_LENGTHS = 8
# Groups have two lengths, that of the beginning and that of the rest.
_MOST_GROUP_LENGTHS = 3
_MOST_OF_GROUP = 64


class Row(NamedTuple):
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


class Limits(NamedTuple):
  """What a batch may hold.

  Attributes:
    tokens: of a batch at most, with the padding.
    rows: of a batch at most.
    cached: tokens whose keys and values are held at most; 0: nothing is
      shared.
    shards: parts that a batch is split into.
    program: a length more costs as much as this number of tokens, to compile.
    padded: rounds a length up.
  """

  tokens: int
  rows: int
  cached: int
  shards: int
  program: int
  padded: Callable[[int], int]


class Group(NamedTuple):
  """Rows by number, and how many of their first ids are read once for all."""

  rows: tuple[int, ...]
  shared: int = 0


class Batch(NamedTuple):
  """Groups scored together.

  Attributes:
    groups: with the rows.
    prefix_length: that the shared ids are padded to; 0: there are none.
    length: that the rest of each row is padded to.
    num_groups: that their number is padded to.
    num_rows: that the number of rows is padded to.
  """

  groups: list[Group]
  prefix_length: int
  length: int
  num_groups: int
  num_rows: int

  @property
  def rows(self) -> list[int]:
    """Their numbers."""
    return [i for group in self.groups for i in group.rows]


def plan(rows: Sequence[Row], limits: Limits) -> tuple[int, list[Batch]]:
  """Batches of the rows, the longest first.

  Returns:
    The number of first ids that all of them share and that are worth reading
    once, and the batches. The shared ids of a group come after those.
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
  lengths: Sequence[int], counts: Sequence[int], limits: Limits, most: int
) -> list[int]:
  """The padded lengths that cost least: padding, and a program for each.

  Args:
    lengths: of the rows.
    counts: how many rows have each length.
    limits: how a length is rounded up, and what a program costs.
    most: how many to choose.

  Returns:
    They ascend; the last is the longest.
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
    # Of one length more: the cost of the shorter ones, and what they end with.
    new, picks = np.full(len(sums), np.inf), [[] for _ in sums]
    for j, size in enumerate(sizes, start=1):
      cost = least[:j] + (sums[j] - sums[:j]) * size + limits.program
      i = int(np.argmin(cost))
      new[j], picks[j] = cost[i], [*ends[i], int(size)]
    least, ends = new, picks
    if least[-1] < lowest:
      lowest, out = least[-1], ends[-1]
  return out


def _common(rows: Sequence[Row], limits: Limits) -> int:
  """How many first ids all rows share, if that is worth a program."""
  if not limits.cached or len(rows) < 2:
    return 0
  common = rows[0].start
  for row in rows[1:]:
    common = min(common, _same(rows[0], row))
    if common < LEAST_SHARED:
      return 0
  return common if common * (len(rows) - 1) > limits.program else 0


def _same(a: Row, b: Row) -> int:
  """How many first ids both share, before what is scored."""
  stop = min(a.start, b.start)
  differs = np.flatnonzero(a.ids[:stop] != b.ids[:stop])
  return int(differs[0]) if len(differs) else stop


def _grouped(rows: Sequence[Row], common: int, limits: Limits) -> list[Group]:
  """Groups for which the fewest tokens are read, by dynamic programming.

  Of rows in the order of their ids, neighbours share most: a group is a
  section of that order.
  """
  # Big-endian bytes stand in the order of the ids.
  order = sorted(
    range(len(rows)), key=lambda i: rows[i].ids.astype('>i4').tobytes()
  )
  same = [
    _same(rows[a], rows[b]) - common for a, b in itertools.pairwise(order)
  ]
  # saved[j]: tokens that the best groups of the first j rows save; cuts[j]:
  # where the last of those groups begins.
  saved, cuts = [0], [0]
  shares = [0]  # of the last group
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
  rows: Sequence[Row], groups: list[Group], common: int, limits: Limits
) -> Iterator[Batch]:
  """Batches of groups that all share something, or all nothing."""
  if not groups:
    return
  most = _MOST_GROUP_LENGTHS if groups[0].shared else _MOST_LENGTHS
  rests = [
    max(rows[i].length for i in g.rows) - common - g.shared for g in groups
  ]
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
    # What is left to do after the model depends on how many are scored.
    found.sort(key=lambda g: -max(rows[i].num_scored for i in g.rows))
    yield from _filled(found, prefix, length, common, limits)


def _filled(
  groups: list[Group], prefix: int, length: int, common: int, limits: Limits
) -> Iterator[Batch]:
  """As few batches as the limits allow, all of one shape."""
  parts = _split(groups, prefix, length, common, limits)
  total = sum(len(g.rows) for g in groups)
  # As many, and equally large: a smaller last one would be another program.
  even = limits._replace(rows=_whole(-(-total // len(parts)), limits))
  parts = _split(groups, prefix, length, common, even)
  counts = [(len(p), sum(len(g.rows) for g in p)) for p in parts]
  num_groups, num_rows = (
    _whole(max(n), limits) for n in zip(*counts, strict=True)
  )
  for part in parts:
    yield Batch(part, prefix, length, num_groups, num_rows)


def _split(
  groups: list[Group], prefix: int, length: int, common: int, limits: Limits
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


def _whole(count: int, limits: Limits) -> int:
  """A multiple of the shards."""
  return -(-count // limits.shards) * limits.shards
