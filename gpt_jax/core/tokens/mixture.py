# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which row of which source is row i of the run, in closed form.

  data.source = 'mixture(web:0.6, books:0.4)'

Rows come in blocks of `BLOCK`, in which each source has its share, spread
evenly and at random. Draw j of a source is row j of its own order, whatever the
other sources do. A list, separated by commas, holds phases: `mixture(web:0.2,
books:0.8, from_token=100e9)` changes the weights at that token, and continues
each source where the phase before left it.

A weight is a share of the rows. Where rows are padded (all `data.rows` but
'stream') a source with much padding has a smaller share of the tokens; with
`shares='tokens'` the weights are shares of the tokens that are trained on: each
is divided by the mean number of tokens in a row of its source, which is known
before the first step.

With `shares='examples'` the sources are sampled in proportion to their size,
as T5 mixes tasks (Raffel et al., 2019, section 3.5.2): a weight is a factor on
the number of documents, or pairs of texts, of a source, of which at most
`limit` count: mixture(cola:1, sst2:1, shares='examples', limit=9000).

The order of a source is a permutation that can be computed at any place alone.
Grain's `index_shuffle` is a block cipher over the numbers below the
size. `MapDataset.shuffle` runs it for 4 rounds, after which neighbours in the
order were still correlated (by 0.09 among 65,536 rows) and their row numbers
had periods far above noise. After 8 no trace was found; we take 12.
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from etils import epy

from gpt_jax.core import ranges, spec
from gpt_jax.core.ranges import NotNegative, Real, Whole
from gpt_jax.core.spec import Pair, UsageError

with epy.lazy_imports():
  from grain import experimental

_ROUNDS = 12
_KEYS = 1 << 32
LARGEST = 1 << 32  # what the cipher can permute


class Shuffle:
  """A permutation of `size` rows for each epoch, chained."""

  def __init__(self, size: int, seed: int | str):
    """`size` is from 1 to `LARGEST`."""
    assert 1 <= size <= LARGEST, size
    self._size, self._seed = size, seed
    # Of one row more than a power of four the cipher takes too few bits for the
    # last: it reads one row twice and one never. So it gets a row too many.
    last = size - 1
    too_few = last >= 1 << 16 and last.bit_count() == 1 and last.bit_length() % 2 == 1
    self._max_index = size if too_few else last
    self._key = functools.lru_cache(maxsize=8)(self._make_key)

  def __getitem__(self, index: int) -> int:
    """The row at place `index`, counted over all epochs."""
    epoch, place = divmod(index, self._size)
    shuffle = functools.partial(
      experimental.index_shuffle, max_index=self._max_index, seed=self._key(epoch), rounds=_ROUNDS
    )
    place = shuffle(place)
    return place if place < self._size else shuffle(place)

  def _make_key(self, epoch: int) -> int:
    # Hashed, so that no epoch equals one of another seed.
    digest = hashlib.sha256(f'{self._seed}/{epoch}'.encode()).digest()
    return int.from_bytes(digest[:8], 'little') % _KEYS


# Rows of a block: weights are rounded to multiples of 1 / BLOCK.
BLOCK = 10_000


class Phase(NamedTuple):
  """The weights from a token of the run on."""

  weights: dict[str, float]
  from_token: int
  draw: str
  shares: str = 'rows'  # or 'tokens', 'examples': what weights are shares of
  limit: int = 0  # the most examples of a source that count; 0: all do


def is_mixture(text: str) -> bool:
  """Whether `data.source` is a mixture, not the call of one source."""
  return spec.parse('data.source', text)[0].name == 'mixture'


def phases(text: str) -> list[Phase]:
  """The phases of `data.source` where it is a mixture."""
  field = f'data.source={text!r}'
  found = spec.build_all('data.source', text, {'mixture': mixture})
  for phase in found:
    _check(field, phase)
  starts = [phase.from_token for phase in found]
  if starts[0] != 0 or starts != sorted({*starts}):
    raise UsageError(
      f'{field}: the phases begin at tokens {starts}; the first must at 0, and '
      'each after the one before'
    )
  return found


def _check(field: str, phase: Phase) -> None:
  total, least = sum(phase.weights.values()), min(phase.weights.values())
  factors = phase.shares == 'examples'
  if (abs(total - 1) > 1e-6 and not factors) or least <= 0:
    raise UsageError(
      f'{field}: the weights are {phase.weights} and sum to {total:.6g}; '
      'give positive ones' + ' that sum to 1' * (not factors)
    )
  if least * BLOCK < 0.5 and not factors:
    raise UsageError(f'{field}: a weight is below {0.5 / BLOCK}; leave it out')
  if phase.limit and not factors:
    raise UsageError(
      f'{field}: limit={phase.limit}: limits the examples that count; leave it '
      "out, or set shares='examples'"
    )


def mixture(
  *weights: Pair,
  from_token: NotNegative = 0,
  draw: Literal['without_replacement', 'with_replacement'] = 'without_replacement',
  shares: Literal['rows', 'tokens', 'examples'] = 'rows',
  limit: Whole = 0,
) -> Phase:
  """Interleaves `data.sources` by weights, in a phase of the run.

  Args:
    *weights: of each source of `data.sources`.
    from_token: where the phase begins, counted over the run, with padding.
    draw: 'without_replacement' takes each row once before any a second time.
    shares: whether weights are shares of 'rows' or of 'tokens', which differ
      where rows are padded; or factors on the number of 'examples'.
    limit: the most examples of each source that count; 0: all do.
  """
  named = {pair.key: pair.value for pair in weights}
  real = ranges.declared(Real)
  numbers = not any(real.problem(weight) for weight in named.values())
  if not weights or len(named) < len(weights) or not numbers:
    raise UsageError(
      "data.source: give each source one weight, as in 'mixture(web:0.6, books:0.4)'"
    )
  return Phase(named, int(from_token), draw, shares, limit)


def corpus(text: str, calls: Mapping[str, str]) -> str:
  """The call of the source of all documents that a mixture samples."""
  names = sorted({name for phase in phases(text) for name in phase.weights})
  for name in names:
    if name not in calls:
      raise UsageError(
        f'data.source={text!r}: data.sources has no {name!r}, it has '
        f'{sorted(calls)}; set data.sources.{name} to the call of a source'
      )
  return f'mixture({", ".join(f"{name}:{calls[name]!r}" for name in names)})'


def extends(old: str, new: str, tokens: int) -> bool:
  """Whether `new` differs from `old` only after `tokens` of the run."""
  if not is_mixture(old) or not is_mixture(new):
    return False
  before = [phase for phase in phases(old) if phase.from_token < tokens]
  return before == [p for p in phases(new) if p.from_token < tokens]


class Place(NamedTuple):
  """Where a row of the run is found: a row of a source."""

  source: str
  epoch: int  # of the source, from 0: how often it was exhausted before
  row: int  # of the source


class SourceSizes(NamedTuple):
  """The sizes of each source of a store."""

  rows: Mapping[str, int]
  tokens: Mapping[str, int]  # without padding
  examples: Mapping[str, int]  # documents, or pairs of texts


def row_shares(phase: Phase, sizes: SourceSizes) -> dict[str, float]:
  """The share of the rows that each source of a phase has."""
  if phase.shares == 'rows':
    return phase.weights
  rows = {}
  for name, weight in phase.weights.items():
    # How often the source as a whole is drawn, relative to other sources.
    if phase.shares == 'tokens':
      times = weight / sizes.tokens[name]
    else:
      count = sizes.examples[name]
      times = weight * min(count, phase.limit or count) / count
    rows[name] = times * sizes.rows[name]
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


def described(phase: Phase, sizes: SourceSizes) -> str:
  """Says what the weights of a phase are shares of, for the log."""
  rows = row_shares(phase, sizes)
  means = {n: rows[n] * sizes.tokens[n] / sizes.rows[n] for n in rows}
  total = sum(means.values())
  return f'from token {phase.from_token:,} weights are shares of ' + (
    f'{phase.shares}: '
    + ', '.join(
      f'{name} {rows[name]:.3g} of rows, {means[name] / total:.3g} of tokens' for name in rows
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
    """Makes the order of `phases`.

    Args:
      phases: one or more.
      sizes: rows of each source, of `length` targets.
      length: targets of a row.
      tokens: of each source, without padding; None: rows are not padded.
      examples: of each source, where weights count them.
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
    of_sources = SourceSizes(sizes, tokens, {} if examples is None else examples)
    shares = [row_shares(phase, of_sources) for phase in phases]
    self._counts = [_counts(share, self._names) for share in shares]
    self._pattern = functools.lru_cache(maxsize=8)(self._make_pattern)
    self._orders = {
      name: Shuffle(size, f'{seed}/{name}') for name, size in sizes.items() if size > 0
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
    draw = int(self._before[phase][source] + block * self._counts[phase][source] + ranks[slot])
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
    """The epochs of each source in the rows before row `index`."""
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

  def _make_pattern(self, phase: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The source of each row of a block, and its rank among that source's."""
    key = hashlib.blake2b(f'{self._seed}/{phase}/{block}'.encode(), digest_size=16).digest()
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
