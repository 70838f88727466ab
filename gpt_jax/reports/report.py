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
from typing import Annotated, Any, TypedDict

import jinja2

from gpt_jax.core import config as config_lib
from gpt_jax.core import ranges
from gpt_jax.core.config import Config, defaults
from gpt_jax.core.files import files
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import metrics, store_data
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.reports import goodput, norms, runs

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


_Step = Annotated[int, ranges.whole(0, ranges.INT64)]


class _Evaluation(TypedDict):
  """A file of WORKDIR/evaluations."""

  step: _Step


class _Device(TypedDict):
  id: int
  host: int


class _Replay(TypedDict):
  """A file of WORKDIR/replays."""

  step: _Step
  kind: str
  devices: list[_Device]


def page(workdir: str) -> str:
  """The page of a run.

  It leaves out files that are damaged, and says so, but for the config and the
  metrics.

  Args:
    workdir: the folder of a run that has logged a step.
  """
  config = workdir_lib.read_config(workdir)
  lines = metrics.read(workdir)
  logged = [m for m in lines if 'loss' in m and m.get('event') != 'start']
  if not logged:
    raise UsageError(
      f'--workdir={workdir}: has no losses in metrics.jsonl; name a run that has logged some'
    )
  try:
    account = goodput.account(lines)
  except ValueError as e:
    raise UsageError(f'--workdir={workdir}: {e}; restore that file from a copy') from e
  rows, no_rows = _rows(config, workdir, logged)
  left_out: list[str] = []
  template = jinja2.Environment(
    loader=jinja2.PackageLoader('gpt_jax', 'reports'),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
  ).get_template('report.html')
  text = template.render(
    name=os.path.basename(os.path.normpath(workdir)),
    workdir=workdir,
    summary=[*_summary(config, lines, logged, account)],
    curves=[*_curves(workdir, lines, logged)],
    evaluations=[*_evaluations(workdir, lines, left_out)],
    sample=_sample(workdir, left_out),
    goodput=[*_goodput(account)],
    events=[*_events(lines), *_replays(workdir, left_out)],
    left_out=left_out,
    rows=rows,
    no_rows=no_rows,
    differs=[*_differs(config, lines)],
    recorded=any('command' in line for line in lines),
    fields=[(n, repr(v)) for n, v in config_lib.flatten(config).items()],
    environment=[*_environment(lines)],
    version=importlib.metadata.version('gpt_jax'),
  )
  # Names of files need not be UTF-8.
  return text.encode('utf-8', 'backslashreplace').decode()


def _summary(
  config: Config, lines: list[dict], logged: list[dict], account: goodput.Account
) -> Iterator[tuple[str, str]]:
  last, done = logged[-1], lines[-1]['step']
  starts = [line for line in lines if line.get('event') == 'start']

  def at(line: dict) -> str:
    """Says so where a value is not of the last step."""
    if line['step'] == done:
      return ''
    return f' (last logged, at step {line["step"]:,})'

  if commands := [line['command'] for line in starts if 'command' in line]:
    yield 'command', commands[0]
  if 'parameters' in starts[-1]:
    yield 'parameters', f'{starts[-1]["parameters"]:,}'
  if {'device', 'devices'} <= starts[-1].keys():
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


def _curves(workdir: str, lines: list[dict], logged: list[dict]) -> Iterator[str]:
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
  if figure := norms.norm_figure(lines):
    yield _svg(figure)


def _svg(figure: Any) -> str:
  """The figure as an element of a page."""
  if figure.get_layout_engine() is None:
    figure.tight_layout()
  text = io.StringIO()
  figure.savefig(text, format='svg')
  runs.load_pyplot().close(figure)
  return text.getvalue()[text.getvalue().index('<svg') :]


def _files(
  workdir: str, names: str, kind: Any, left_out: list[str], *, remedy: str
) -> list[dict[str, Any]]:
  """The JSON files with these names in a run's folder, in their order.

  Args:
    names: FOLDER/PATTERN.
    kind: of each, a type of `schema`; others are left out.
    left_out: gets a line for each of these.
  """
  out = []
  # The folder's own name may hold what means something in a pattern.
  for name in sorted(glob.glob(names, root_dir=workdir)):
    try:
      path = os.path.join(workdir, name)
      out.append(files.read_json(path, remedy=remedy, kind=kind))
    except (UsageError, OSError) as e:
      _leave_out(left_out, str(e))
  return out


def _leave_out(left_out: list[str], why: str) -> None:
  left_out.append(why)
  log.warning('%s; the page leaves it out', why)


def _evaluations(
  workdir: str, lines: list[dict], left_out: list[str]
) -> Iterator[tuple[str, str, str, str]]:
  """The last value of each figure in the loop, then those of `evaluate`."""
  last: dict[str, tuple[int, Any]] = {}
  for line in lines:
    for key, value in line.items():
      if key.startswith('eval/'):
        last[key] = line['step'], value
  for stored in _files(
    workdir,
    'evaluations/step-*.json',
    _Evaluation,
    left_out,
    remedy='remove it, and evaluate again',
  ):
    for key, value in stored.items():
      if key.startswith('eval/'):
        last[key] = stored['step'], value
  for key, (step, value) in sorted(last.items()):
    if isinstance(value, int | float):
      _, of, *figure = key.split('/')
      shown = f'{value:,}' if isinstance(value, int) else f'{value:.4f}'
      yield of, f'{step:,}', '/'.join(figure), shown


def _sample(workdir: str, left_out: list[str]) -> str:
  path = os.path.join(workdir, 'samples.txt')
  if not os.path.exists(path):
    return ''
  try:
    with open(path, encoding='utf-8') as file:
      return file.read()
  except (UnicodeDecodeError, OSError) as e:
    _leave_out(left_out, f'{path}: cannot be read ({e}); remove it')
    return ''


def _goodput(account: goodput.Account) -> Iterator[tuple[str, str, float, str]]:
  for kind, explained in goodput.KINDS.items():
    share = round(100 * account.share(kind), 1)
    yield kind, f'{account.seconds[kind]:,.1f}', share, explained


def _events(lines: list[dict]) -> Iterator[tuple[str, str, str]]:
  for line in lines[1:]:
    if line.get('event') == 'start' and 'rewound' not in line:
      said = f'resumed after step {line["step"]:,}'
      if line['step'] == 0:
        said = 'started again: no step had been saved'
      yield f'{line["step"]:,}', 'start', said
    if line.get('event') in _EVENTS:
      said = ', '.join(
        f'{name} {value}' for name, value in line.items() if name not in ('step', 'event', 'time')
      )
      yield f'{line["step"]:,}', line['event'], said


def _replays(workdir: str, left_out: list[str]) -> Iterator[tuple[str, str, str]]:
  """What replays of steps found wrong."""
  found = _files(workdir, 'replays/*.json', _Replay, left_out, remedy='remove it')
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


def _differs(config: Config, lines: list[dict]) -> Iterator[tuple[str, str, str, str]]:
  """Fields that are not as in `configs/base.py`, by who set them.

  The last is empty where the run was not started by a command.
  """
  usual = config_lib.flatten(defaults.get_config())
  started = [line for line in lines if 'command' in line]
  by: dict[str, list[tuple[str, str, str]]] = {who: [] for who in (*_BY, '')}
  for name, value in config_lib.flatten(config).items():
    given = bool(started) and name in started[-1].get('overrides', ())
    if not given and name in usual and value == usual[name]:
      continue
    who = ''
    if started:
      filled = name in started[-1].get('filled', ())
      who = _BY[0] if given else _BY[2] if filled else _BY[1]
    default = repr(usual[name]) if name in usual else ''
    by[who].append((name, repr(value), default))
  for who, fields in by.items():
    for field in fields:
      yield who, *field


def _environment(lines: list[dict]) -> Iterator[tuple[str, str, str, str]]:
  """Each start of a process: when, on what, and by which command."""
  for line in lines:
    if {'device', 'devices', 'processes', 'jax'} <= line.keys():
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
