# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Says whether a run's losses are those that its config is known to give.

configs/expected/NAME.json has the losses of a few seeds of a shipped config,
written by tests/support/expected.py. A run is compared in spans of steps that
double: 1 to 10, 11 to 20, 21 to 40, 41 to 80 ... Early losses fall fast and
hardly depend on the seed, later ones are noisy and change slowly. The mean of
the k losses that a run has logged in a span must be within

  4 s sqrt((1 + 1/n) / k) + f m

of m, the mean of the n seeds at the same steps. s^2 is the variance of a single
loss, estimated from how the seeds' means differ in this span and the one before
(of the first, the one after), as that of three numbers alone is often far too
small; 1 + 1/n is for the error of m. The floor f is for rounding, which differs
between processors: 2%. Python's standard library, the text of most of these
configs, differs between versions of Python; where the tokens of a run are
others, f is 5%. Held-out losses are compared in the same way, each a span of
its own.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.core import config as config_lib
from gpt_jax.core.config import Config, defaults, loading
from gpt_jax.core.files import files
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens import manifest
from gpt_jax.core.training import metrics, store_data
from gpt_jax.core.training import workdir as workdir_lib

FOLDER = 'configs/expected'
_DEVIATIONS = 4.0
_SAME_TEXT, _OTHER_TEXT = 0.02, 0.05
_FIRST = 10  # steps of the first span
# What may differ, besides what is free on resume: seeds are what the band is
# made of, and the tokens say more than the name of their file.
_FREE = ('seed', 'data.source', 'data.holdout')
_STDLIB = 'stdlib'
_REMEDY = 'restore it from the repository'


class KnownCurve(NamedTuple):
  """A metric of several seeds: float64 [seeds, steps], and its steps."""

  steps: np.ndarray
  values: np.ndarray


class Expected(NamedTuple):
  """What is known of a config.

  Attributes:
    config: as it is given to `train`.
    fields: those of the resolved config that differ from the defaults.
    fingerprint: of the tokens; see `Manifest`.
    made_with: versions of `jax` and `python`.
    curves: by the name of the metric.
  """

  config: str
  fields: dict[str, Any]
  fingerprint: str
  made_with: dict[str, str]
  curves: dict[str, KnownCurve]


class JudgedSpan(NamedTuple):
  """A mean of a run, and the band that it belongs in."""

  metric: str
  first: int  # the steps, as a metrics.jsonl counts them
  last: int
  loss: float
  low: float
  high: float

  @property
  def outside(self) -> float:
    """How far it lies above the band, or below it (negative); 0: within."""
    if self.low <= self.loss <= self.high:
      return 0.0
    return self.loss - (self.high if self.loss > self.low else self.low)


class RunVerdict(NamedTuple):
  """A run against what is expected of it."""

  expected: Expected
  same_text: bool
  made_with: dict[str, str]  # of the run
  spans: list[JudgedSpan]

  @property
  def first_outside(self) -> JudgedSpan | None:
    """The span that left its band first; None: there is none."""
    found = [span for span in self.spans if span.outside != 0]
    return min(found, key=lambda span: span.last, default=None)


def judge(workdir: str) -> RunVerdict:
  """Compares the run in a workdir with what its config is known to give.

  Raises:
    UsageError: nothing is known of its config or its text, or it has no losses
      at the known steps yet.
  """
  config = workdir_lib.read_config(workdir)
  expected = _of(config, workdir)
  lines = metrics.read(workdir)
  store = manifest.read(store_data.data_folder(config, workdir))
  same_text = store.fingerprint == expected.fingerprint
  source = expected.fields.get('data.source', _STDLIB)
  if not same_text and {source, config.data.source} != {_STDLIB}:
    raise UsageError(
      f'--workdir={workdir}: has another text than the losses that are known '
      f'of {expected.config}, of data.source={source!r}; train on that one'
    )
  floor = _SAME_TEXT if same_text else _OTHER_TEXT
  spans = [
    span
    for name, curve in expected.curves.items()
    for span in _spans(name, curve, _logged(lines, name), floor)
  ]
  if not spans:
    steps = expected.curves['loss'].steps
    raise UsageError(
      f'--workdir={workdir}: has no losses at the steps that are known of '
      f'{expected.config}, every {steps[0]} up to {steps[-1]}; train further, '
      f'with --config.log.every_steps={steps[0]}'
    )
  jax = [m['jax'] for m in lines if m.get('event') == 'start' and 'jax' in m]
  return RunVerdict(expected, same_text, {'jax': ''.join(jax[-1:])}, spans)


def _logged(lines: Sequence[Mapping[str, Any]], name: str) -> dict[int, float]:
  return {m['step']: m[name] for m in lines if name in m}


def _spans(
  name: str, curve: KnownCurve, logged: Mapping[int, float], floor: float
) -> list[JudgedSpan]:
  """The spans of a metric in which the run has logged it."""
  there = np.isin(curve.steps, [*logged])
  steps, values = curve.steps[there], curve.values[:, there]
  if not steps.size:
    return []
  held_out = name != 'loss'
  # The step that each ends its span at, or before.
  ends = steps if held_out else _FIRST * 2 ** _doublings(steps)
  groups = [np.flatnonzero(ends == end) for end in np.unique(ends)]
  sizes = np.array([len(at) for at in groups])
  means = np.stack([values[:, at].mean(1) for at in groups], 1)  # [seeds, n]
  variances = means.var(0, ddof=1) * sizes  # of a single loss
  spans = []
  for i, at in enumerate(groups):
    variance = variances[max(i - 1, 0) : max(i + 1, 2)].mean()
    middle = means[:, i].mean()
    error = math.sqrt(variance * (1 + 1 / len(values)) / sizes[i])
    width = _DEVIATIONS * error + floor * middle
    loss = float(np.mean([logged[int(step)] for step in steps[at]]))
    first, last = steps[at][0], steps[at][-1]
    if not held_out:
      first = ends[at][0] // 2 + 1 if ends[at][0] > _FIRST else 1
    low, high = float(middle - width), float(middle + width)
    spans.append(JudgedSpan(name, int(first), int(last), loss, low, high))
  return spans


def _doublings(steps: np.ndarray) -> np.ndarray:
  """How often the first span is doubled until it has a step, int64."""
  return np.ceil(np.log2(np.maximum(steps / _FIRST, 1))).astype(np.int64)


def _of(config: Config, workdir: str) -> Expected:
  """What is known of a config."""
  fields = differing(config)
  found = [read(name) for name in names()]
  if not found:
    raise UsageError(
      f'{FOLDER}: is missing, so --expected knows no losses; install gpt_jax with its configs'
    )
  changed = {known.config: _changed(known.fields, fields) for known in found}
  nearest = min(found, key=lambda known: len(changed[known.config]))
  if not changed[nearest.config]:
    return nearest
  said = '; '.join(changed[nearest.config][:3])
  more = len(changed[nearest.config]) - 3
  raise UsageError(
    f'--workdir={workdir}: the losses of its config are not known; those of '
    f'the nearest one, {nearest.config}, are for {said}'
    + f' and {more} more differences' * (more > 0)
    + '; train one of docs/training.md#expected-losses without overrides'
  )


def _changed(known: dict[str, Any], fields: dict[str, Any]) -> list[str]:
  """The known values from which a run differs."""
  return [
    f'{name}={_shown(known, name)} where the run has {_shown(fields, name)}'
    for name in dict.fromkeys([*known, *fields])
    if name not in _FREE and known.get(name) != fields.get(name)
  ]


def _shown(fields: dict[str, Any], name: str) -> str:
  return repr(fields[name]) if name in fields else 'the default'


def differing(config: Config) -> dict[str, Any]:
  """The fields of a resolved config that make its result other than usual."""
  usual = config_lib.flatten(defaults.get_config())
  return {
    name: value
    for name, value in config_lib.flatten(config).items()
    if not name.startswith(defaults.FREE_ON_RESUME) and (name not in usual or usual[name] != value)
  }


def names() -> list[str]:
  """The configs whose losses are known, such as 'bert'."""
  folder = os.path.join(loading.root(), FOLDER)
  if not os.path.isdir(folder):
    return []
  return sorted(name.removesuffix('.json') for name in os.listdir(folder) if name.endswith('.json'))


def read(name: str) -> Expected:
  """What is known of one of `names`."""
  path = os.path.join(loading.root(), FOLDER, f'{name}.json')
  found = files.read_json(path, remedy=_REMEDY, needs=Expected._fields)
  curves = {
    metric: KnownCurve(np.array(curve['steps']), np.array(curve['values']))
    for metric, curve in found['curves'].items()
  }
  return Expected(**found | {'curves': curves})


# What is said of a run.


def table(found: RunVerdict) -> str:
  """A Markdown table of all spans."""
  lines = [['steps', 'loss', 'expected', 'run', ''], ['---'] * 5]
  for span in found.spans:
    lines.append(
      [
        _steps(span),
        'training' if span.metric == 'loss' else 'held-out',
        f'{span.low:.3f} to {span.high:.3f}',
        f'{span.loss:.3f}',
        'outside' if span.outside else '',
      ]
    )
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)


def to_json(found: RunVerdict) -> str:
  """The same as one JSON object."""
  return metrics.to_json(
    {
      'config': found.expected.config,
      'inside': found.first_outside is None,
      'same_text': found.same_text,
      'spans': [span._asdict() for span in found.spans],
    }
  )


def conclusion(found: RunVerdict) -> str:
  """One line: whether the run is as expected, and what it may mean if not."""
  known, out = found.expected, found.first_outside
  made, run = known.made_with, found.made_with
  if out is None:
    last = max(span.last for span in found.spans)
    whole = max(int(curve.steps[-1]) for curve in known.curves.values())
    said = f'as expected of {known.config} up to step {last:,}'
    if last < whole:
      said += f', of {whole:,} that are known'
    if not found.same_text:
      said += f'; the band is wider, as the text is that of another Python than {made["python"]}'
    return said
  kind = 'loss' if out.metric == 'loss' else 'held-out loss'
  if math.isfinite(out.loss):
    where = 'above' if out.outside > 0 else 'below'
    how = f'{abs(out.outside):.3f} {where} {out.low:.3f} to {out.high:.3f}'
  else:
    how = f'not within {out.low:.3f} to {out.high:.3f}'
  said = f'{known.config}: the {kind} of {_steps(out)} is {out.loss:.3f}, {how}'
  if run['jax'] != made['jax']:
    return (
      f'{said}; JAX is {run["jax"]}, and the band is for {made["jax"]}: '
      'install what constraints.txt names'
    )
  if not found.same_text:
    said += f', and the text is that of another Python than {made["python"]}'
  return (
    f'{said}; this installation computes something else: run gpt-jax doctor, '
    'undo changes of the code, or try another machine'
  )


def _steps(span: JudgedSpan) -> str:
  if span.first == span.last:
    return f'step {span.last:,}'
  return f'steps {span.first:,} to {span.last:,}'
