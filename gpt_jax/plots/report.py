# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run on one HTML page, which needs no server and no other file.

The page is `report.html`, a Jinja template; what stands in it is read from the
run's folder alone.
"""

import datetime
import glob
import importlib.metadata
import io
import itertools
import os
from collections.abc import Iterator
from typing import Any

import jinja2

from gpt_jax import config as config_lib
from gpt_jax.config import Config, defaults
from gpt_jax.files import files
from gpt_jax.plots import runs
from gpt_jax.spec import UsageError
from gpt_jax.training import goodput, metrics, models, store_data

# Events of metrics.jsonl that people look for, beside resumes.
_EVENTS = ('skipped', 'spike', 'rewind')
# Who set a field of the config, in the order of the page.
_BY = ('command line', 'config file', 'program')
_MOST_ROWS = 16  # of a step whose documents are listed
# Panels below the losses: the field of metrics.jsonl, and its axis.
_PANELS = {
  'learning_rate': 'learning rate',
  'grad_norm': 'gradient norm',
  'tokens_per_second': 'tokens/s',
}


def page(workdir: str) -> str:
  """The page of a run.

  Args:
    workdir: the folder of a run that has logged a step.
  """
  config = models.read_config(workdir)
  lines = metrics.read(workdir)
  logged = [line for line in lines if 'loss' in line]
  if not logged:
    raise UsageError(
      f'--workdir={workdir}: has no losses in metrics.jsonl; name a run that '
      'has logged some'
    )
  rows, no_rows = _rows(config, workdir, logged)
  template = jinja2.Environment(
    loader=jinja2.PackageLoader('gpt_jax', 'plots'),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
  ).get_template('report.html')
  return template.render(
    name=os.path.basename(os.path.normpath(workdir)),
    workdir=workdir,
    summary=[*_summary(config, lines, logged)],
    curves=[*_curves(workdir, logged)],
    evaluations=[*_evaluations(workdir, lines)],
    sample=_sample(workdir),
    goodput=[*_goodput(lines)],
    events=[*_events(lines), *_replays(workdir)],
    rows=rows,
    no_rows=no_rows,
    differs=[*_differs(config, lines)],
    recorded=any('command' in line for line in lines),
    fields=[(n, repr(v)) for n, v in config_lib.flatten(config).items()],
    environment=[*_environment(lines)],
    version=importlib.metadata.version('gpt_jax'),
  )


def _summary(
  config: Config, lines: list[dict], logged: list[dict]
) -> Iterator[tuple[str, str]]:
  last, done = logged[-1], lines[-1]['step']
  starts = [line for line in lines if line.get('event') == 'start']
  account = goodput.account(lines)

  def at(line: dict) -> str:
    """Says so where a value is not of the last step."""
    if line['step'] == done:
      return ''
    return f' (last logged, at step {line["step"]:,})'

  if commands := [line['command'] for line in starts if 'command' in line]:
    yield 'command', commands[0]
  if 'parameters' in starts[-1]:
    yield 'parameters', f'{starts[-1]["parameters"]:,}'
  if 'device' in starts[-1]:
    yield 'device', f'{starts[-1]["devices"]} x {starts[-1]["device"]}'
  yield 'steps', f'{done:,} of {config.schedule.num_steps:,}'
  yield 'tokens seen', f'{last["tokens"]:,}{at(last)}'
  seconds = account.total - account.seconds['downtime']
  spent = str(datetime.timedelta(seconds=round(seconds)))
  if account.starts > 1:
    spent += f' in {account.starts} starts'
  yield 'wall time', spent
  yield 'training loss', f'{last["loss"]:.4f}{at(last)}'
  held_out = [line for line in lines if metrics.held_out_losses(line)]
  if held_out:
    for name, loss in metrics.held_out_losses(held_out[-1]).items():
      yield f'loss of {name}', f'{loss:.4f}{at(held_out[-1])}'
  yield 'last line', _time(lines[-1]['time'])


def _curves(workdir: str, logged: list[dict]) -> Iterator[str]:
  """The figures, as SVG."""
  if figure := runs.loss_figure([workdir]):
    yield _svg(figure)
  pyplot = runs.load_pyplot()
  figure, grid = pyplot.subplots(1, len(_PANELS), figsize=(10, 2.6))
  for axes, (field, label) in zip(grid, _PANELS.items(), strict=True):
    points = [(m['step'], m[field]) for m in logged if field in m]
    axes.plot(*zip(*points, strict=True), lw=1)
    axes.set_xlabel('steps')
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
  yield _svg(figure)


def _svg(figure: Any) -> str:
  """The figure as an element of a page."""
  if figure.get_layout_engine() is None:
    figure.tight_layout()
  text = io.StringIO()
  figure.savefig(text, format='svg')
  runs.load_pyplot().close(figure)
  return text.getvalue()[text.getvalue().index('<svg') :]


def _evaluations(
  workdir: str, lines: list[dict]
) -> Iterator[tuple[str, str, str, str]]:
  """The last value of each figure in the loop, then those of `evaluate`."""
  last: dict[str, tuple[int, Any]] = {}
  for line in lines:
    for key, value in line.items():
      if key.startswith('eval/'):
        last[key] = line['step'], value
  stored = os.path.join(workdir, 'evaluations', 'step-*.json')
  for path in sorted(glob.glob(stored)):
    found = files.read_json(path, remedy='remove it, and evaluate again')
    for key, value in found.items():
      if key.startswith('eval/'):
        last[key] = found['step'], value
  for key, (step, value) in sorted(last.items()):
    if isinstance(value, int | float):
      _, of, *figure = key.split('/')
      shown = f'{value:,}' if isinstance(value, int) else f'{value:.4f}'
      yield of, f'{step:,}', '/'.join(figure), shown


def _sample(workdir: str) -> str:
  path = os.path.join(workdir, 'samples.txt')
  if not os.path.exists(path):
    return ''
  with open(path, encoding='utf-8') as file:
    return file.read()


def _goodput(lines: list[dict]) -> Iterator[tuple[str, str, float, str]]:
  account = goodput.account(lines)
  for kind, explained in goodput.KINDS.items():
    seconds = account.seconds[kind]
    share = round(100 * seconds / account.total, 1) if account.total else 0.0
    yield kind, f'{seconds:,.1f}', share, explained


def _events(lines: list[dict]) -> Iterator[tuple[str, str, str]]:
  for line in lines[1:]:
    if line.get('event') == 'start' and 'rewound' not in line:
      said = f'resumed after step {line["step"]:,}'
      if line['step'] == 0:
        said = 'started again: no step had been saved'
      yield f'{line["step"]:,}', 'start', said
    if line.get('event') in _EVENTS:
      said = ', '.join(
        f'{name} {value}'
        for name, value in line.items()
        if name not in ('step', 'event', 'time')
      )
      yield f'{line["step"]:,}', line['event'], said


def _replays(workdir: str) -> Iterator[tuple[str, str, str]]:
  """What replays of steps found wrong."""
  found = [
    files.read_json(path, remedy='remove it')
    for path in glob.glob(os.path.join(workdir, 'replays', '*.json'))
  ]
  for file in sorted(found, key=lambda x: (x['step'], x['kind'])):
    devices = [f'{x["id"]} of host {x["host"]}' for x in file['devices']]
    said = f'{file["kind"]} differs'
    if devices:
      said += f' on device {", ".join(devices)}'
    yield f'{file["step"]:,}', 'replay', said


def _rows(
  config: Config, workdir: str, logged: list[dict]
) -> tuple[list[tuple[str, str, str, str]], str]:
  """The first rows of the first and the last step; or why none is known."""
  found: list[tuple[str, str, str, str]] = []
  try:
    for step in sorted({1, logged[-1]['step']}):
      _, rows = store_data.rows(workdir, str(step))
      for row in itertools.islice(rows, _MOST_ROWS):
        spans = [*row['spans'], *row.get('second', ())]
        said = (f'{s["name"]} [{s["start"]}:{s["stop"]}]' for s in spans)
        number, epoch = f'{row["row"]:,}', str(row['epoch'])
        found.append((f'{step:,}', number, epoch, ', '.join(said)))
  except UsageError as e:
    return [], str(e)
  return found, ''


def _differs(
  config: Config, lines: list[dict]
) -> Iterator[tuple[str, str, str, str]]:
  """Fields that are not as in `configs/base.py`, by who set them.

  The last is empty where the run was not started by a command.
  """
  usual = config_lib.flatten(defaults.get_config())
  started = [line for line in lines if 'command' in line]
  by: dict[str, list[tuple[str, str, str]]] = {who: [] for who in (*_BY, '')}
  for name, value in config_lib.flatten(config).items():
    given = bool(started) and name in started[-1]['overrides']
    if not given and name in usual and value == usual[name]:
      continue
    who = ''
    if started:
      filled = name in started[-1]['filled']
      who = _BY[0] if given else _BY[2] if filled else _BY[1]
    default = repr(usual[name]) if name in usual else ''
    by[who].append((name, repr(value), default))
  for who, fields in by.items():
    for field in fields:
      yield who, *field


def _environment(lines: list[dict]) -> Iterator[tuple[str, str, str, str]]:
  """Each start of a process: when, on what, and by which command."""
  for line in lines:
    if line.get('event') == 'start' and 'device' in line:
      said = (
        f'{line["devices"]} x {line["device"]} in {line["processes"]} '
        f'process{"es" * (line["processes"] > 1)}, JAX {line["jax"]}'
      )
      command = line.get('command', '')
      yield f'{line["step"]:,}', _time(line['time']), said, command


def _time(seconds: float) -> str:
  """Unix time, as UTC."""
  at = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
  return f'{at:%Y-%m-%d %H:%M} UTC'
