# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT-1's ablations of fine-tuning: a grid of runs, and one table."""

import datetime
import functools
import json
import os
import shlex
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from etils import epy
from ml_collections import ConfigDict

from gpt_jax import config as config_lib
from gpt_jax.config import Config, loading
from gpt_jax.files import files
from gpt_jax.files.buckets import write_atomically
from gpt_jax.runtime.log import log, start_anew
from gpt_jax.spec import UsageError
from gpt_jax.tasks.glue import GLUE
from gpt_jax.training import metrics

with epy.lazy_imports():
  import jax

  from gpt_jax.finetuning import data, fields, transfer
  from gpt_jax.finetuning import run as run_lib
  from gpt_jax.nn import build
  from gpt_jax.training import models as trained_lib

# Name of a row of the table -> config overrides.
SETTINGS = {
  'full': [],
  'no_auxiliary': ['--config.finetune.auxiliary=0.0'],
  'scratch': ['--config.finetune.transfer=none'],
  'scratch_no_auxiliary': [
    '--config.finetune.transfer=none',
    '--config.finetune.auxiliary=0.0',
  ],
}
# Prefix of the rows of --layers, before the number of layers.
LAYERS = 'layers_'
# The row of --lstm: `full`, from another model.
LSTM = 'lstm'
# Fields that follow from the source or from the fields of `finetune`.
FOLLOWS = ('model.', 'tokenizer.', 'objective.')
# The file of the arguments that all runs in a workdir share.
ARGUMENTS = 'arguments.json'


class Grid(NamedTuple):
  """The command's flags.

  Attributes:
    workdir: contains all runs.
    config: a config file whose sizes are the tasks.
    glue: GLUE's folder; '': TFDS.
    flags: additional flags of all runs.
    tasks: sizes of the config.
    settings: keys of `SETTINGS`.
    seeds: every task and setting is run with each of these.
    layers: numbers of lowest layers to transfer, a setting each.
    lstm: a pre-trained LSTM, for one more setting; '': none.
  """

  workdir: str
  config: str
  glue: str
  flags: str
  tasks: list[str]
  settings: list[str]
  seeds: list[str]
  layers: list[str]
  lstm: str


class One(NamedTuple):
  """One run of the grid."""

  task: str
  setting: str
  seed: str
  config: Config


def wanted(grid: Grid) -> list[One]:
  """All runs of the grid, seed by seed."""
  unknown = [name for name in grid.settings if name not in SETTINGS]
  if unknown:
    raise UsageError(
      f'--settings={unknown[0]}: unknown; one of ' + ', '.join(SETTINGS)
    )
  for flag in ('tasks', 'settings'):
    given = getattr(grid, flag)
    if len({*given}) < len(given):
      raise UsageError(
        f'--{flag}={",".join(given)}: names one twice; once is enough'
      )
  settings = [*grid.settings, *(f'{LAYERS}{count}' for count in grid.layers)]
  settings += [LSTM] * bool(grid.lstm)
  runs = [
    One(task, setting, seed, config_of(grid, task, setting, seed))
    for seed in grid.seeds
    for task in grid.tasks
    for setting in settings
  ]
  if not runs:
    raise UsageError('--tasks, --settings, --seeds: leave nothing to run')
  return runs


def run(
  grid: Grid,
  runs: list[One],
  source: 'trained_lib.Pretrained',
  finished: Callable[[str], Any],
  lstm: 'trained_lib.Pretrained | None' = None,
) -> dict[str, Any]:
  """Executes the remaining runs; returns the scores of all, see `collected`.

  Args:
    runs: from `wanted`.
    source: the pre-trained model.
    finished: called with the folder of each finished run.
    lstm: the model of `Grid.lstm`.
  """
  if lstm is not None:
    check_kinds(grid, source, lstm)
  check_same(grid, source)
  check_runs(grid, source, lstm)
  source, lstm = _read_once(source), lstm and _read_once(lstm)
  started, done = time.monotonic(), 0
  for i, one in enumerate(runs):
    folder = os.path.join(grid.workdir, one.task, one.setting, one.seed)
    if os.path.exists(os.path.join(folder, data.RESULT)):
      continue
    log.info('run %d of %d: %s', i + 1, len(runs), folder)
    start = lstm if lstm and one.setting == LSTM else source
    start_anew()
    run_lib.finetune(one.config, start, folder)
    note_arguments(grid, source)
    finished(folder)
    jax.clear_caches()
    done += 1
    seconds = (time.monotonic() - started) / done * (len(runs) - i - 1)
    left = datetime.timedelta(seconds=round(seconds))
    log.info('%d of %d runs done | at most %s left', i + 1, len(runs), left)
  return collected(grid.workdir)


def config_of(grid: Grid, task: str, setting: str, seed: str) -> Config:
  """The config of a run, not yet resolved."""
  if setting == LSTM:
    overrides = []
  elif setting in SETTINGS:
    overrides = SETTINGS[setting]
  else:
    count = setting.removeprefix(LAYERS)
    overrides = [f'--config.finetune.transfer=layers({count})']
  more = [f'--config.seed={seed}', *overrides]
  if grid.glue:
    if task not in GLUE:
      raise UsageError(f'--tasks={task}: none of GLUE: ' + ', '.join(GLUE))
    folder = os.path.join(grid.glue, GLUE[task].folder)
    more.append(f'--config.finetune.task={task}({folder!r})')
  more += shlex.split(grid.flags)
  return loading.load_config(f'{grid.config}:{task}', more)


def _read_once(source: 'trained_lib.Pretrained') -> 'trained_lib.Pretrained':
  if source.params is None:
    return source
  return source._replace(params=functools.cache(source.params))


def check_kinds(
  grid: Grid, source: 'trained_lib.Pretrained', lstm: 'trained_lib.Pretrained'
) -> None:
  """Rejects an LSTM in place of the Transformer, and the reverse."""
  for flag, model, recurrent in (('init', source, False), ('lstm', lstm, True)):
    fields = model.model and ConfigDict(model.model)
    found = bool(fields and build.ModelChoices.of(fields).recurrent)
    if found != recurrent:
      raise UsageError(
        f'--{flag}={model.name}: is {"an" if found else "no"} LSTM; give the '
        'Transformer with --init, and with --lstm the model that stands in its '
        'place'
      )


def check_same(grid: Grid, source: 'trained_lib.Pretrained') -> None:
  """Rejects a workdir whose runs have other arguments."""
  given = arguments(grid, source)
  path = os.path.join(grid.workdir, ARGUMENTS)
  if os.path.exists(path):
    before = files.read_json(path, remedy=trained_lib.RESTORE)
    changed = [n for n in given if given[n] != before.get(n)]
    if changed:
      raise UsageError(
        f'--workdir={grid.workdir}: holds runs with '
        + ', '.join(
          f'--{n}={before.get(n)!r}, not {given[n]!r}' for n in changed
        )
        + '; give the same, or another --workdir'
      )


def note_arguments(grid: Grid, source: 'trained_lib.Pretrained') -> None:
  """Writes the shared arguments, once the first run is finished."""
  path = os.path.join(grid.workdir, ARGUMENTS)
  if not os.path.exists(path):
    given = arguments(grid, source)
    write_atomically(path, json.dumps(given, indent=2) + '\n')


def arguments(grid: Grid, source: 'trained_lib.Pretrained') -> dict[str, str]:
  """The arguments that all runs in a workdir share."""
  given = {name: getattr(grid, name) for name in ('config', 'glue', 'flags')}
  return {**given, 'init': source.name}  # with its step


def check_runs(
  grid: Grid,
  source: 'trained_lib.Pretrained',
  lstm: 'trained_lib.Pretrained | None' = None,
) -> None:
  """Checks that existing runs equal those of the present arguments.

  Compares the given fields and the task's examples, but nothing derived from
  them or from the source (the model, the tokenizer, and lengths that are left
  empty), so that no text need be encoded.
  """
  known: dict[Any, Config] = {}
  for task, setting, seed in _folders(grid.workdir):
    folder = os.path.join(grid.workdir, task, setting, seed)
    if not os.path.exists(os.path.join(folder, 'config.json')):
      continue
    old = config_lib.flatten(trained_lib.read_config(folder))
    config = config_lib.unlocked(config_of(grid, task, setting, seed))
    tuned = config.finetune
    key = tuned.task, tuned.examples, seed
    if key not in known:
      fields.read_task(config)
      known[key] = tuned
    tuned.labels, tuned.data = known[key].labels, known[key].data
    # Without --lstm nothing is known of the model of its runs.
    start = lstm if setting == LSTM else source
    tuned.init = start and transfer.init_name(tuned, start)
    given = {
      field: value
      for field, value in config_lib.flatten(config).items()
      if value is not None and not field.startswith(FOLLOWS)
    }
    # A length such as '300_steps' has been converted to a number.
    if not isinstance(config.schedule.num_steps, int):
      given.pop('schedule.num_steps', None)
    changed = config_lib.differences(old, {**old, **given})
    if changed:
      raise UsageError(
        f'--workdir={grid.workdir}: {task}/{setting}/{seed} is a run of '
        f'another config ({"; ".join(changed)}); give the same config and '
        'data, or another --workdir'
      )


def _folders(workdir: str) -> Iterator[tuple[str, str, str]]:
  """Task, setting and seed of all runs in a workdir, sorted."""
  if not os.path.isdir(workdir):
    return
  for task in sorted(os.listdir(workdir)):
    folder = os.path.join(workdir, task)
    if not os.path.isdir(folder):
      continue
    for setting in sorted(os.listdir(folder)):
      seeds = os.listdir(os.path.join(folder, setting))
      for seed in sorted(seeds, key=lambda s: (len(s), s)):
        yield task, setting, seed


def collected(workdir: str) -> dict[str, Any]:
  """Results in a workdir: task -> setting -> seed -> dev metrics."""
  found: dict[str, Any] = {}
  for task, setting, seed in _folders(workdir):
    path = os.path.join(workdir, task, setting, seed, data.RESULT)
    if os.path.exists(path):
      remedy = 'remove it, and the same command makes it again'
      result = files.read_json(path, remedy=remedy, needs=('metrics', 'dev'))
      result = metrics.as_numbers(result)
      runs = found.setdefault(task, {}).setdefault(setting, {})
      metric = result['metrics'][0]
      runs[seed] = {
        'metric': metric,
        'score': result['dev'][metric],
        **result['dev'],
      }
  return found


def table(scores: dict[str, Any]) -> str:
  """A Markdown table like GPT-1's table 5, of means and standard deviations."""
  tasks = [*scores]
  metrics = {
    task: next(iter(next(iter(scores[task].values())).values()))['metric']
    for task in tasks
  }
  settings = [s for s in SETTINGS if any(s in scores[t] for t in tasks)]
  settings += sorted(
    {s for task in tasks for s in scores[task]} - {*settings},
    key=lambda s: (len(s), s),
  )
  head = ['', 'average', *(f'{task} ({metrics[task]})' for task in tasks)]
  lines = [head, ['---'] * len(head)]
  for setting in settings:
    # For each task: seed -> score.
    found = [
      {seed: 100 * run['score'] for seed, run in runs.items()}
      for runs in (scores[task].get(setting, {}) for task in tasks)
    ]
    # Tasks are averaged over the seeds that all of them have.
    seeds = set.intersection(*({*of_task} for of_task in found))
    averages = [statistics.mean(s[seed] for s in found) for seed in seeds]
    cells = [_cell(averages), *(_cell([*s.values()]) for s in found)]
    lines.append([setting.replace('_', ' '), *cells])
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)


def _cell(values: list[float]) -> str:
  """Mean and standard deviation."""
  if not values:
    return '-'
  spread = f' ± {statistics.stdev(values):.1f}' if len(values) > 1 else ''
  return f'{statistics.mean(values):.1f}{spread}'
