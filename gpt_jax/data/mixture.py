# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mixtures: which source each row of the run comes from, in closed form.

  data.source = 'mixture(web:0.6, books:0.4)'

Rows come in blocks of `BLOCK`, of which each source has its share, spread
evenly and at random. Draw j of a source is row j of its own order, whatever the
others do. A comma list holds phases: `mixture(web:0.2, books:0.8,
from_token=100e9)` changes the weights at that token, and goes on with each
source where the phase before left it.
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax import ranges, spec
from gpt_jax.data.shuffle import Shuffle
from gpt_jax.ranges import NotNegative, Real
from gpt_jax.spec import Pair, UsageError

# Weights count in this part of 1.
BLOCK = 10_000

_DRAWS = ('without_replacement', 'with_replacement')


class Phase(NamedTuple):
  """The weights from a token of the run on."""

  weights: dict[str, float]
  from_token: int
  draw: str


class Place(NamedTuple):
  """Where a row of the run is found."""

  source: str
  epoch: int  # of the source, from 0; how often it was drawn through
  row: int  # of the source


def is_mixture(text: str) -> bool:
  """Tells a mixture from the call of one source."""
  return spec.parse('data.source', text)[0].name == 'mixture'


def phases(text: str) -> list[Phase]:
  """Reads `data.source` where it is a mixture.

  Raises:
    UsageError: it is none, weights do not sum to 1, or phases are in disorder.
  """
  field = f'data.source={text!r}'
  found = spec.build_all('data.source', text, {'mixture': mixture})
  for phase in found:
    total = sum(phase.weights.values())
    if abs(total - 1) > 1e-6 or min(phase.weights.values()) <= 0:
      raise UsageError(
        f'{field}: the weights are {phase.weights} and sum to {total:.6g}; '
        'give positive ones that sum to 1'
      )
    if min(phase.weights.values()) * BLOCK < 0.5:
      raise UsageError(
        f'{field}: a weight is below {0.5 / BLOCK}; leave it out'
      )
    if phase.draw not in _DRAWS:
      raise UsageError(
        f'{field}: draw={phase.draw!r} is none of {", ".join(_DRAWS)}'
      )
  starts = [phase.from_token for phase in found]
  if starts[0] != 0 or starts != sorted({*starts}):
    raise UsageError(
      f'{field}: the phases begin at tokens {starts}; the first must at 0, and '
      'each after the one before'
    )
  return found


def mixture(
  *weights: Pair, from_token: NotNegative = 0, draw: str = 'without_replacement'
) -> Phase:
  """One phase.

  Args:
    *weights: of each source of `data.sources`.
    from_token: where it begins, counted over the run.
    draw: 'without_replacement' takes each row once before any a second time.
  """
  named = {pair.key: pair.value for pair in weights}
  real = ranges.declared(Real)
  numbers = not any(real.problem(weight) for weight in named.values())
  if not weights or len(named) < len(weights) or not numbers:
    raise UsageError(
      'data.source: give each source one weight, as in '
      "'mixture(web:0.6, books:0.4)'"
    )
  return Phase(named, int(from_token), draw)


def corpus(text: str, calls: Mapping[str, str]) -> str:
  """The call of a source that holds all that a mixture draws from.

  Args:
    text: `data.source`.
    calls: `data.sources`.

  Raises:
    UsageError: `phases`, or a name without a call.
  """
  names = sorted({name for phase in phases(text) for name in phase.weights})
  for name in names:
    if name not in calls:
      raise UsageError(
        f'data.source={text!r}: data.sources has no {name!r}, it has '
        f'{sorted(calls)}; set data.sources.{name} to the call of a source'
      )
  return f'mixture({", ".join(f"{name}:{calls[name]!r}" for name in names)})'


def extends(old: str, new: str, tokens: int) -> bool:
  """Tells whether `new` differs from `old` only after `tokens` of the run."""
  if not is_mixture(old) or not is_mixture(new):
    return False
  before = [phase for phase in phases(old) if phase.from_token < tokens]
  return before == [p for p in phases(new) if p.from_token < tokens]


class Order:
  """Row i of the run, for any i."""

  def __init__(
    self,
    phases: Sequence[Phase],
    sizes: Mapping[str, int],
    *,
    length: int,
    seed: int,
  ):
    """`sizes` are the rows of each source, of `length` targets.

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
    self._counts = [_shares(p.weights, self._names) for p in phases]
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


def _shares(weights: Mapping[str, float], names: Sequence[str]) -> np.ndarray:
  """Rows of each source in a block: the largest remainders are rounded up."""
  exact = np.array([weights.get(name, 0.0) for name in names]) * BLOCK
  counts = np.floor(exact + 1e-6).astype(np.int64)
  left = BLOCK - int(counts.sum())
  counts[np.argsort(counts - exact, kind='stable')[: max(left, 0)]] += 1
  assert counts.sum() == BLOCK
  return counts
