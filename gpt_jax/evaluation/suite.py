# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures a model on several tasks, with several numbers of shots."""

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from etils import epy

from gpt_jax.core.files import progress
from gpt_jax.core.spec import Call, UsageError
from gpt_jax.evaluation import likelihood, text_tasks
from gpt_jax.evaluation.figures import FigureCurve, Figures, Make, MeasuredTask, Setting
from gpt_jax.evaluation.results import NamedCall, owner
from gpt_jax.evaluation.score import Journal, Scorer
from gpt_jax.tasks.registry import PROMPTED
from gpt_jax.tasks.texts import PUBLISHED

with epy.lazy_imports():
  from gpt_jax.core.checkpoints import restore

log = logging.getLogger('gpt_jax')


# With GPT-3's prompts (appendix G) unless noted; GLUE is text to text.
TASKS: dict[str, Callable[..., Make]] = {
  **{name: likelihood.of(make) for name, make in PROMPTED.items()},
  **{name: likelihood.published(name) for name in PUBLISHED},
  'text': likelihood.text,
  **text_tasks.TASKS,
}


class NamedTask(NamedTuple):
  """A task and its name."""

  name: str
  call: Call
  task: MeasuredTask


def build(calls: Sequence[NamedCall], folder: str) -> list[NamedTask]:
  """Makes tasks of `TASKS` without reading their files below `folder`."""
  return [NamedTask(name, call, TASKS[call.name](**call.kwargs)(folder)) for name, call in calls]


def check(
  field: str, tasks: Sequence[NamedTask], *, shots: Sequence[int] = (0,), sets: Collection[str] = ()
) -> None:
  """Reads the files of all tasks, so that errors show before any task runs.

  Args:
    field: for errors.
    sets: names of the held-out sets evaluated alongside.
  """
  for named in tasks:
    if named.name in sets:
      raise UsageError(
        f'{field}: {named.name} is a set of eval.sets too, and both would '
        f'report as eval/{named.name}; rename the set, or leave one out'
      )
    named.task.check(max(shots) if named.task.takes_shots else 0)


def fingerprint(params: Any) -> str:
  """Identifies the parameters that scores belong to."""
  return hashlib.sha256(restore.fingerprint(params).tobytes()).hexdigest()


def measure(
  tasks: Sequence[NamedTask],
  scorer: Scorer,
  *,
  shots: Sequence[int] = (0,),
  seed: int = 0,
  limit: int | None = None,
  seen: Mapping[str, frozenset[int]] = MappingProxyType({}),
  folder: str | None = None,
  model: str = '',
  outputs: str = '',
  keep: Callable[[Figures], None] | None = None,
  report: progress.Report | None = None,
) -> Figures:
  """Measures all tasks with each number of shots.

  A task without few-shot examples is measured once, zero-shot.

  Args:
    seed: for drawing few-shot examples.
    limit: see `Setting`.
    seen: by task, see `Setting`.
    folder: for journals, by which a stopped evaluation resumes; None: none.
    model: fingerprint of the parameters that the scores belong to.
    outputs: prefix of the files of generated texts, NAME.jsonl of each task;
      '': they are not kept.
    keep: called with the results of each task and number of shots.
    report: called after each batch; None shows a bar and logs each task.

  Returns:
    Results by `eval/TASK/KEY`, `eval/TASK/5_shots/KEY`.
  """
  out: Figures = {}
  for named in tasks:
    for count in shots if named.task.takes_shots else (0,):
      name = f'{named.name}/{count}_shots' if count else named.name
      setting = Setting(count, seed, limit, seen.get(named.name))
      if outputs:
        path = f'{outputs}{named.name.replace("/", "-")}.jsonl'
        setting = setting._replace(outputs=path)
      shown = contextlib.nullcontext(report)
      if report is None:
        shown = progress.bar('examples')
      with shown as reporting:
        assert reporting is not None
        found = named.task.measure(
          scorer, setting, Journal(folder and _path(folder, named, setting), model), reporting
        )
      new = {f'eval/{name}/{key}': value for key, value in found.items()}
      out |= new
      if keep is not None:
        keep(new)
      if report is None:
        log.info('%s: %s', name, summary(found))
      if found.get('shots_shown', count) < count:
        log.warning(
          '%s: %.2f of %d solved examples were shown on average (shots_shown): '
          'there are no more, or the context of %d tokens has no room for them',
          name,
          found['shots_shown'],
          count,
          scorer.context_length,
        )
    if shots and set(shots) != {0} and not named.task.takes_shots:
      log.info('%s: has no examples to show: without shots only', named.name)
  return out


def lines(found: Figures, tasks: Sequence[NamedTask]) -> list[str]:
  """One line for each task and number of shots."""
  by_line = _by_task(found, tasks)
  return [f'{name}: {summary(values)}' for name, values in by_line.items()]


def _by_task(found: Figures, tasks: Sequence[NamedTask]) -> dict[str, Figures]:
  """The figures of each task and number of shots, by their own names."""
  known = [named.name for named in tasks]
  by_line: dict[str, Figures] = {}
  for key, value in found.items():
    name = owner(key, known)
    rest = key.removeprefix(f'eval/{name}/').split('/')
    if len(rest) > 1 and rest[0].endswith('_shots'):
      name, rest = f'{name}/{rest[0]}', rest[1:]
    by_line.setdefault(name, {})['/'.join(rest)] = value
  return by_line


def curves(
  found: Mapping[int, Figures], tasks: Sequence[NamedTask], *, relative: bool = False
) -> list[FigureCurve]:
  """The main figure of each task over the steps.

  Args:
    found: results of `measure` by step, and maybe of held-out sets.
    relative: take `relative` where a task has it.
  """
  out: dict[str, FigureCurve] = {}
  for step, results in found.items():
    each = {k: v for k, v in results.items() if k.startswith('eval/')}
    for task, values in _by_task(each, tasks).items():
      main = next(iter(values))
      if relative and 'relative' in values:
        main = 'relative'
      curve = out.setdefault(task, FigureCurve(task, main, {}))
      if curve.figure in values:  # a perplexity may be too large for a float
        error = values.get(f'{curve.figure}_stderr', 0.0)
        curve.values[step] = values[curve.figure], error
  return [*out.values()]


def steps_table(found: Sequence[FigureCurve]) -> str:
  """A Markdown table: a row for each step, a column for each task."""
  steps = sorted({step for curve in found for step in curve.values})
  head = ['step', *(f'{curve.task} ({curve.figure})' for curve in found)]
  rows = [head, ['---'] * len(head)]
  for step in steps:
    cells = [curve.values.get(step) for curve in found]
    rows.append(
      [
        f'{step:,}',
        *(
          '-' if cell is None else f'{cell[0]:.4f} ± {cell[1]:.4f}' if cell[1] else f'{cell[0]:.4f}'
          for cell in cells
        ),
      ]
    )
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in rows)


def summary(figures: Figures) -> str:
  """Results with standard errors, without those of parts of a task."""
  parts = []
  for key, value in figures.items():
    if key.endswith(('_stderr', '_signature')) or '/' in key:
      continue
    error = figures.get(f'{key}_stderr')
    text = f'{value:,}' if isinstance(value, int) else f'{value:.4f}'
    parts.append(f'{key} {text}' + (f' ± {error:.4f}' if error else ''))
    if signature := figures.get(f'{key}_signature'):
      parts[-1] += f' ({signature})'
  return ', '.join(parts)


def _path(folder: str, named: NamedTask, setting: Setting) -> str:
  key = repr((named.name, named.call, setting.seed))
  digest = hashlib.sha256(key.encode()).hexdigest()[:8]
  name = named.name.replace('/', '-')
  if setting.limit is not None:
    name += f'-limit-{setting.limit}'
  return os.path.join(folder, f'{name}-{setting.shots}-{digest}.jsonl')
