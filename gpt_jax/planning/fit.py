# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fits Chinchilla's three approaches to the runs of a sweep."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpt_jax.planning import envelope, isoflop, parametric
from gpt_jax.planning.envelope import Envelope
from gpt_jax.planning.isoflop import Profile
from gpt_jax.planning.laws import Fit
from gpt_jax.planning.power import Curve, Frontier, Point, interval

# A value with its interval, if known.
Value = tuple[float, tuple[float, float] | None]


class Approach(NamedTuple):
  """Two power laws and their bootstrap samples."""

  frontier: Frontier
  samples: list[Frontier]

  def values(self) -> dict[str, Value]:
    """Exponents `a` (parameters) and `b` (tokens), with intervals."""
    return {
      name: (
        self.frontier[i].exponent,
        interval([law[i].exponent for law in self.samples]),
      )
      for i, name in enumerate('ab')
    }


class Parametric(NamedTuple):
  """The parametric loss and its bootstrap samples."""

  fit: Fit
  samples: list[Fit]

  def values(self) -> dict[str, Value]:
    """The five parameters and the two exponents, with intervals."""
    return {
      name: (
        getattr(self.fit, name),
        interval([getattr(fit, name) for fit in self.samples]),
      )
      for name in (*Fit._fields, 'a', 'b')
    }


class Fits(NamedTuple):
  """The fits; None for those that failed, with the reason in `warnings`."""

  envelope: Envelope
  profiles: list[Profile]
  approach_1: Approach | None
  approach_2: Approach | None
  approach_3: Parametric | None
  warnings: list[str]

  def to_json(self) -> dict[str, Any]:
    """As plain values, for scaling.json."""
    out: dict[str, Any] = {'interval': '90%, bootstrap'}
    for name in ('approach_1', 'approach_2'):
      approach = getattr(self, name)
      out[name] = approach and {
        **_plain(approach.values()),
        'parameters': approach.frontier[0]._asdict(),
        'tokens': approach.frontier[1]._asdict(),
      }
    if out['approach_2']:
      out['approach_2']['minima'] = [
        {
          name: getattr(profile, name)
          for name in ('budget', 'parameters', 'tokens', 'loss')
        }
        for profile in self.profiles
      ]
    out['approach_3'] = self.approach_3 and _plain(self.approach_3.values())
    return {**out, 'warnings': self.warnings}

  def table(self) -> str:
    """Two Markdown tables: exponents next to the paper's, and the loss fit."""
    lines = [
      '| approach | a (N ~ C^a) | b (D ~ C^b) | Chinchilla a, b |',
      '| --- | --- | --- | --- |',
    ]
    for number, published in PUBLISHED.items():
      found = getattr(self, f'approach_{number}')
      cells = ['-', '-']
      if found:
        values = found.values()
        cells = [_cell(*values[name]) for name in 'ab']
      lines.append(f'| {number} | {" | ".join(cells)} | {published} |')
    if self.approach_3:
      values = self.approach_3.values()
      lines += [
        '',
        '| E | A | B | alpha | beta |',
        '| --- | --- | --- | --- | --- |',
        '| ' + ' | '.join(_cell(*values[f]) for f in Fit._fields) + ' |',
      ]
    return '\n'.join(lines)


def fit_all(
  points: Sequence[Point], curves: Sequence[Curve], samples: int, seed: int
) -> Fits:
  """Fits all three approaches.

  Raises:
    RuntimeError: none of them could be fitted.
  """
  profiles, warnings = isoflop.profiles(points)
  least = min(p.flops for p in points)
  most = max(p.flops for p in points)
  outline = envelope.envelope(curves, least, most)

  def first() -> Approach:
    drawn = envelope.bootstrap(curves, least, most, samples, seed)
    return Approach(envelope.frontier(outline), drawn)

  def second() -> Approach:
    law = isoflop.frontier(profiles)
    drawn = isoflop.bootstrap(profiles, samples, seed)
    if not drawn:
      warnings.append(
        'approach 2: no interval: parabolas through three sizes leave no '
        'residuals; add sizes to sweep.sizes'
      )
    return Approach(law, drawn)

  def third() -> Parametric:
    found = parametric.fit(points)
    drawn = parametric.bootstrap(points, found, samples, seed)
    return Parametric(found, drawn)

  def tried(fit: Callable) -> Any:
    try:
      return fit()
    except ValueError as e:
      warnings.append(str(e))
      return None

  found = [tried(fit) for fit in (first, second, third)]
  if not any(found):
    raise RuntimeError('nothing could be fitted: ' + '; '.join(warnings))
  one, two, three = found
  return Fits(outline, profiles, one, two, three, warnings)


def _plain(
  values: dict[str, Value],
) -> dict[str, Any]:
  return {
    name: {'value': value, 'interval': bounds and list(bounds)}
    for name, (value, bounds) in values.items()
  }


def _cell(value: float, bounds: tuple[float, float] | None) -> str:
  shown = f'{value:.3g}'
  return f'{shown} ({bounds[0]:.3g} to {bounds[1]:.3g})' if bounds else shown


# Table 2.
PUBLISHED = {1: '0.50, 0.50', 2: '0.49, 0.51', 3: '0.46, 0.54'}
