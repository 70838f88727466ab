# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which row of which source is row i of a run, in closed form.

See `mixture` for what the weights mean.
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.data.mixture import BLOCK, Phase
from gpt_jax.data.shuffle import Shuffle
from gpt_jax.spec import UsageError


class Place(NamedTuple):
  """Where a row of the run is found."""

  source: str
  epoch: int  # of the source, from 0; how often it was drawn through
  row: int  # of the source


class Held(NamedTuple):
  """What the sources of a store hold, each by name.

  Attributes:
    rows: of the length of a run.
    tokens: that these hold, without padding.
    examples: documents, or pairs of texts.
  """

  rows: Mapping[str, int]
  tokens: Mapping[str, int]
  examples: Mapping[str, int]


def row_shares(phase: Phase, held: Held) -> dict[str, float]:
  """The share of the rows that each source of a phase has.

  Raises:
    UsageError: a source has next to none.
  """
  if phase.shares == 'rows':
    return phase.weights
  rows = {
    name: _wanted(phase, name, held) * held.rows[name] for name in phase.weights
  }
  total = sum(rows.values())
  for name in rows:
    rows[name] /= total
    if rows[name] * BLOCK < 0.5:
      raise UsageError(
        f'data.source: the weight {phase.weights[name]} of {name} is that of '
        f'{rows[name]:.2g} of the rows, below {0.5 / BLOCK}; raise it, or '
        'leave it out'
      )
  return rows


def _wanted(phase: Phase, name: str, held: Held) -> float:
  """How often all that a source holds is wanted, against other sources."""
  weight = phase.weights[name]
  if phase.shares == 'tokens':
    return weight / held.tokens[name]
  count = held.examples[name]
  return weight * min(count, phase.limit or count) / count


def told(phase: Phase, held: Held) -> str:
  """Says what the weights are shares of."""
  rows = row_shares(phase, held)
  means = {n: rows[n] * held.tokens[n] / held.rows[n] for n in rows}
  total = sum(means.values())
  return f'from token {phase.from_token:,} weights are shares of ' + (
    f'{phase.shares}: '
    + ', '.join(
      f'{name} {rows[name]:.3g} of rows, {means[name] / total:.3g} of tokens'
      for name in rows
    )
  )


class Order:
  """Row i of the run, for any i."""

  def __init__(
    self,
    phases: Sequence[Phase],
    sizes: Mapping[str, int],
    *,
    length: int,
    seed: int,
    tokens: Mapping[str, int] | None = None,
    examples: Mapping[str, int] | None = None,
  ):
    """Makes the order.

    Args:
      phases: one or more.
      sizes: rows of each source, of `length` targets.
      length: see `sizes`.
      seed: of all that is drawn.
      tokens: of each source's rows, where these are padded.
      examples: of each source, where weights are of these.

    Raises:
      UsageError: a source has no row.
    """
    for name in {name for phase in phases for name in phase.weights}:
      if sizes.get(name, 0) < 1:
        raise UsageError(
          f'data.sources.{name}: its training split is shorter than one row of '
          f'{length + 1} tokens; lower model.context_length, or add text'
        )
    self._phases, self._sizes, self._seed = list(phases), sizes, seed
    self._names = sorted(sizes)
    self._first = [-(-phase.from_token // length) for phase in phases]
    tokens = tokens or {name: size * length for name, size in sizes.items()}
    held = Held(sizes, tokens, {} if examples is None else examples)
    self._counts = [_counts(row_shares(p, held), self._names) for p in phases]
    self._pattern = functools.lru_cache(maxsize=8)(self._make_pattern)
    self._orders = {
      name: Shuffle(size, f'{seed}/{name}')
      for name, size in sizes.items()
      if size > 0
    }
    # Draws of each source before each phase.
    self._before = [np.zeros(len(self._names), np.int64)]
    for phase in range(len(phases) - 1):
      self._before.append(self._drawn(phase, self._first[phase + 1]))

  def place(self, index: int) -> Place:
    """Finds row `index` of the run."""
    phase = self._phase(index)
    block, slot = divmod(index - self._first[phase], BLOCK)
    sources, ranks = self._pattern(phase, block)
    source = int(sources[slot])
    draw = int(
      self._before[phase][source]
      + block * self._counts[phase][source]
      + ranks[slot]
    )
    name = self._names[source]
    size = self._sizes[name]
    if self._phases[phase].draw == 'with_replacement':
      key = f'{self._seed}/{name}/{draw}'.encode()
      digest = hashlib.blake2b(key, digest_size=8).digest()
      row = int.from_bytes(digest, 'little') % size
    else:
      row = self._orders[name][draw]
    return Place(name, draw // size, row)

  def epochs(self, index: int) -> dict[str, float]:
    """How often the rows before row `index` went through each source."""
    drawn = self._drawn(self._phase(index), index)
    return {
      name: float(count / self._sizes[name])
      for name, count in zip(self._names, drawn, strict=True)
      if self._sizes[name]
    }

  def _phase(self, index: int) -> int:
    return sum(first <= index for first in self._first) - 1

  def _drawn(self, phase: int, index: int) -> np.ndarray:
    """Draws of each source before row `index`, which is in or ends `phase`."""
    block, slot = divmod(index - self._first[phase], BLOCK)
    partial = np.zeros(len(self._names), np.int64)
    if slot:
      sources, _ = self._pattern(phase, block)
      partial = np.bincount(sources[:slot], minlength=len(self._names))
    return self._before[phase] + block * self._counts[phase] + partial

  def _make_pattern(
    self, phase: int, block: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Of each row of a block: its source, and which of that source's it is."""
    key = hashlib.blake2b(
      f'{self._seed}/{phase}/{block}'.encode(), digest_size=16
    ).digest()
    # Raw bits, whose values NumPy does not change.
    bits = np.random.Philox(key=int.from_bytes(key, 'little')).random_raw(BLOCK)
    counts = self._counts[phase]
    sources = np.repeat(np.arange(len(counts)), counts)
    ranks = np.concatenate([np.arange(count) for count in counts])
    places = (ranks + bits / 2.0**64) / counts[sources]
    order = np.argsort(places, kind='stable')
    return sources[order], ranks[order]


def _counts(shares: Mapping[str, float], names: Sequence[str]) -> np.ndarray:
  """Rows of each source in a block: the largest remainders are rounded up."""
  exact = np.array([shares.get(name, 0.0) for name in names]) * BLOCK
  counts = np.floor(exact + 1e-6).astype(np.int64)
  left = BLOCK - int(counts.sum())
  counts[np.argsort(counts - exact, kind='stable')[: max(left, 0)]] += 1
  assert counts.sum() == BLOCK
  return counts
