# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shows what a config means, what steps of a run consumed, or a spike.

  gpt-jax inspect --config configs/gpt2.py:xl
  gpt-jax inspect --config configs/gpt2.py:xl --json
  gpt-jax inspect --table
  gpt-jax inspect --workdir W --steps 100:110
  gpt-jax inspect --workdir W --steps 100 --text
  gpt-jax inspect --spike W/spikes/8.json

For a config it shows the resolved fields, parameters, FLOPs, and the schedule:
rows, tokens and learning rate where each stage of the batch begins. It builds
only the model's shapes, which takes no memory and no accelerator, and also
shows models that no objective trains yet, such as encoder-decoders.

For a run it shows which documents the rows of each step were taken from, by
their place in the token store: a function of the config and the step. Steps
are numbered as in metrics.jsonl, from 1 on.
"""

import importlib
import json
import math
import pathlib
import sys
from typing import NamedTuple

import jax
from absl import flags
from rich.console import Console
from rich.table import Table

from gpt_jax import cli
from gpt_jax import config as config_lib
from gpt_jax.config import Config, loading
from gpt_jax.costs import flops
from gpt_jax.costs.totals import figures_of, rounded
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import consumed, spikes

_TABLE_HEAD = (
  '| paper | config | what differs from its ancestor | parameters | proof |',
  '|---|---|---|---|---|',
)


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  loading.define(values)
  cli.define_workdir(values, 'Folder of a run, for --steps.')
  flags.DEFINE_string(
    'steps',
    None,
    'Steps of the run in --workdir: N, or FIRST:STOP without STOP itself.',
    flag_values=values,
  )
  flags.DEFINE_bool(
    'text', False, 'With --steps: also the text.', flag_values=values
  )
  flags.DEFINE_bool('json', False, 'Print one JSON object.', flag_values=values)
  flags.DEFINE_bool(
    'table',
    False,
    'Print a Markdown table of the papers in configs/ of this folder.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'spike',
    None,
    'WORKDIR/spikes/STEP.json: show the norms and the rows of that step.',
    flag_values=values,
  )


def main(args: cli.Args) -> None:
  """Runs the command."""
  if args.spike:
    found = spikes.read(args.spike)
    if args.json:
      print(json.dumps(found))
    else:
      spikes.show(found, Console())
    return
  if args.table:
    print(papers_table(pathlib.Path.cwd()))
    return
  if args.workdir or args.steps:
    cli.required(args, 'workdir', 'steps')
    consumed.show(args.workdir, args.steps, text=args.text, as_json=args.json)
    return
  cli.required(args, 'config')
  config = config_lib.resolve_model(args.config)
  params, figures = figures_of(config)
  try:
    config_lib.check_objective(config)
  except UsageError as e:
    log.info('a model to look at, not to train: %s', e)
  figures = {'parameters_text': rounded(figures['parameters']), **figures}
  if args.json:
    stages = [stage._asdict() for stage in schedule_table(config)]
    found = {**figures, 'schedule': stages, 'config': config.to_dict()}
    print(json.dumps(found))
    return
  console = Console()
  fields = Table('field', 'value', title='Resolved config')
  for name, value in config_lib.flatten(config).items():
    fields.add_row(name, repr(value))
  console.print(fields)
  table = Table(title='Parameters')
  table.add_column('parameter', overflow='fold')
  for column in ('shape', 'axes', 'count'):
    table.add_column(column)
  for path, leaf in jax.tree_util.tree_leaves_with_path(
    params, is_leaf=lambda x: hasattr(x, 'names')
  ):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    shape = leaf.value.shape
    table.add_row(
      name, str(shape), ', '.join(leaf.names), f'{math.prod(shape):,}'
    )
  console.print(table)
  table = Table(title=f'Schedule of {config.schedule.num_steps:,} steps')
  for column in ('from step', 'rows', 'tokens a step', 'tokens before', 'rate'):
    table.add_column(column, justify='right')
  for stage in schedule_table(config):
    *counts, rate = stage
    table.add_row(*(f'{count:,}' for count in counts), f'{rate:.4g}')
  console.print(table)
  for name, value in figures.items():
    console.print(
      f'{name}: {value if isinstance(value, str) else f"{value:,}"}'
    )
  console.print(flops.FORMULA)
  console.print(flops.FORMULA_CAUSAL)


class ScheduleRow(NamedTuple):
  """A stage of the batch, where it begins."""

  step: int  # its first, as in metrics.jsonl: from 1 on
  rows: int
  tokens_per_step: int
  tokens: int  # consumed before
  learning_rate: float


def schedule_table(config: Config) -> list[ScheduleRow]:
  """The stages of a resolved config's run."""
  ramp, rate = config_lib.ramp(config), config_lib.schedule(config)
  return [
    ScheduleRow(
      stage.start + 1,
      stage.rows,
      stage.rows * ramp.row_tokens,
      ramp.tokens(stage.start),
      float(rate(stage.start)),
    )
    for stage in ramp.between(0, config.schedule.num_steps)
  ]


def papers_table(root: pathlib.Path) -> str:
  """One Markdown row for each paper and size in `root`/configs.

  A config of a paper says in `DIFFERS` what it adds to its ancestor; its
  docstring begins with the paper's name, authors and year.

  Raises:
    UsageError: there are no configs.
  """
  files = sorted((root / 'configs').glob('*.py'))
  if not files:
    raise UsageError(
      f'--table: {root} has no configs/*.py; run it where configs/ is'
    )
  sys.path.insert(0, str(root))
  rows = []
  for file in files:
    module = importlib.import_module(f'configs.{file.stem}')
    if not hasattr(module, 'DIFFERS'):
      continue
    paper = str(module.__doc__).partition(':')[0] + ')'
    year = int(paper[-5:-1])
    differs = module.DIFFERS
    for size in getattr(module, 'SIZES', ['']):
      config = config_lib.resolve_model(module.get_config(size))
      figures = figures_of(config)[1]
      parameters, active = figures['parameters'], figures['parameters_active']
      count = f'{parameters:,}'
      if active != parameters:
        count += f', of which a token takes {active:,}'
      name = f'{file.stem}.py:{size}' if size else f'{file.stem}.py'
      test = f'test_decoder_row[{file.stem}-{size}]'
      row = f'| {paper} | `{name}` | {differs} | {count} | `{test}` |'
      rows.append((year, row))
      # Said once, for all sizes.
      paper = differs = ''
  # Oldest first; within a year and a paper as they come.
  rows.sort(key=lambda year_row: year_row[0])
  return '\n'.join([*_TABLE_HEAD, *(row for _, row in rows)])
