# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Profiles steps of a run, and shows where their time goes.

  gpt-jax profile --workdir W --steps 10:13
  gpt-jax profile --workdir W --steps 10:13 --top 30
  tensorboard --logdir W/profile     (with the package xprof: its tab Profile)

Repeats steps 10, 11 and 12 of the run in W on the local devices: their batches,
with the weights of the newest checkpoint. Nothing is trained, and W only gets a
new folder below W/profile/plugins/profile. Do not run it during training, which
needs the devices.

Prints the most expensive operations, collectives and waits of this host's
devices, in milliseconds per step and device, with the part of the model that
each comes from. Waits include 'batches', the host's wait for data, and 'nothing
runs', a device's time between operations. Concurrent operations, as on the
threads of a CPU, are all counted.
"""

from gpt_jax import cli
from gpt_jax.core import ranges
from gpt_jax.core.runtime import tables
from gpt_jax.core.runtime.tables import TextTable
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.core.runtime import hosts
  from gpt_jax.opening import models as trained_lib
  from gpt_jax.reports import profiling

KINDS = {'compute': 'operations', 'collective': 'collectives', 'wait': 'waits'}


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of the run.')
  flags.text('steps', '10:13', 'Steps to profile, from 1 on: N, or FIRST:STOP, exclusive.')
  flags.number('top', 12, 'How many of each kind to show.', ranges.Count)
  flags.distributed()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  if args.distributed:
    hosts.initialize(**trained_lib.read_config(args.workdir).hosts)
  with hosts.together():
    found = profiling.profile(args.workdir, args.steps)
    if hosts.index() == 0:
      show(found, args.top)


def show(found: 'profiling.StepsProfile', top: int) -> None:
  """Prints the tables."""
  console = tables.console()
  step = found.seconds / found.steps
  console.print(
    f'{found.steps} steps of {1e3 * step:,.2f} ms on {found.trace.devices} device(s) of this host'
  )
  each = found.steps * max(found.trace.devices, 1)
  right = 'ms a step', 'share'
  table = TextTable(*right, 'part', title='parts of the model', right=right)
  parts = profiling.by_part(found.trace, found.sources)
  for part, seconds in [*parts.items()][:top]:
    spent = seconds / each
    table.add_row(f'{1e3 * spent:.3f}', f'{spent / step:.1%}', part)
  console.print(table)
  for kind, title in KINDS.items():
    rows = _rows(found, kind)
    if not rows:
      continue
    table = TextTable('ms a step', 'share', 'calls', 'name', 'from', title=title)
    for seconds, *texts in sorted(rows, reverse=True)[:top]:
      table.add_row(f'{1e3 * seconds:.3f}', f'{seconds / step:.1%}', *texts)
    console.print(table)
  console.print(found.file, soft_wrap=True)


def _rows(found: 'profiling.StepsProfile', kind: str) -> list[tuple[float, str, str, str]]:
  """Seconds per step and device, calls, name and source."""
  each = found.steps * max(found.trace.devices, 1)
  rows = [
    (
      op.seconds / each,
      f'{op.calls / each:g}',
      op.name,
      # Without the step's own name; at most the last five parts.
      '/'.join(found.sources.get(op.name, '').split('/')[1:][-5:]),
    )
    for op in found.trace.ops
    if op.kind == kind
  ]
  if kind == 'wait':
    rows += [
      (found.data_seconds / found.steps, '', 'batches', 'the host'),
      (found.trace.idle / each, '', 'nothing runs', ''),
    ]
  return rows
