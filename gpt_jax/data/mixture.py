# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mixtures: which source each row of the run comes from, in closed form.

  data.source = 'mixture(web:0.6, books:0.4)'

Rows come in blocks of `BLOCK`, of which each source has its share, spread
evenly and at random. Draw j of a source is row j of its own order, whatever the
others do. A comma list holds phases: `mixture(web:0.2, books:0.8,
from_token=100e9)` changes the weights at that token, and goes on with each
source where the phase before left it.

A weight is a share of the rows. Where rows are padded (all `data.rows` but
'stream') the tokens of a source with much padding have a smaller share than
that; with `shares='tokens'` the weights are shares of the tokens that are
trained on: each is divided by the mean number of tokens in a row of its source,
which the store tells before the first step.

With `shares='examples'` the sources are drawn from in proportion to their size,
as T5 mixes tasks (Raffel et al., 2019, section 3.5.2): a weight is a factor on
the number of documents, or pairs of texts, that a source holds, of which no
more than `limit` count: mixture(cola:1, sst2:1, shares='examples', limit=9000).
"""

from collections.abc import Mapping
from typing import NamedTuple

from gpt_jax import ranges, spec
from gpt_jax.ranges import NotNegative, Real, Whole
from gpt_jax.spec import Pair, UsageError

# Weights count in this part of 1.
BLOCK = 10_000

_DRAWS = ('without_replacement', 'with_replacement')
_SHARES = ('rows', 'tokens', 'examples')


class Phase(NamedTuple):
  """The weights from a token of the run on."""

  weights: dict[str, float]
  from_token: int
  draw: str
  shares: str = 'rows'  # or 'tokens', 'examples': what the weights are of
  limit: int = 0  # of the examples of a source that count; 0: all do


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
  if phase.draw not in _DRAWS:
    raise UsageError(
      f'{field}: draw={phase.draw!r} is none of {", ".join(_DRAWS)}'
    )
  if phase.shares not in _SHARES:
    raise UsageError(
      f'{field}: shares={phase.shares!r} is none of {", ".join(_SHARES)}'
    )
  if phase.limit and not factors:
    raise UsageError(
      f'{field}: limit={phase.limit}: limits the examples that count; leave it '
      "out, or set shares='examples'"
    )


def mixture(
  *weights: Pair,
  from_token: NotNegative = 0,
  draw: str = 'without_replacement',
  shares: str = 'rows',
  limit: Whole = 0,
) -> Phase:
  """One phase.

  Args:
    *weights: of each source of `data.sources`.
    from_token: where it begins, counted over the run, with padding.
    draw: 'without_replacement' takes each row once before any a second time.
    shares: whether weights are shares of 'rows' or of 'tokens', which differ
      where rows are padded; or factors on the number of 'examples'.
    limit: of the examples of each source that count; 0: all do.
  """
  named = {pair.key: pair.value for pair in weights}
  real = ranges.declared(Real)
  numbers = not any(real.problem(weight) for weight in named.values())
  if not weights or len(named) < len(weights) or not numbers:
    raise UsageError(
      'data.source: give each source one weight, as in '
      "'mixture(web:0.6, books:0.4)'"
    )
  return Phase(named, int(from_token), draw, shares, limit)


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
