# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Shows a resolved config, what a field means, a run's documents or a spike.

  gpt-jax inspect --config configs/gpt2.py:xl
  gpt-jax inspect --config configs/gpt2.py:xl --json
  gpt-jax inspect --field model.position
  gpt-jax inspect --table
  gpt-jax inspect --mfu
  gpt-jax inspect --config configs/gpt2.py --sharding out.png \
    --config.mesh.fsdp=4 --config.mesh.tensor=2
  gpt-jax inspect --config configs/bigbird.py:base --attention out.png
  gpt-jax inspect --config configs/gpt2.py --path
  gpt-jax inspect --workdir W --steps 100:110
  gpt-jax inspect --workdir W --steps 100 --text
  gpt-jax inspect --workdir W --steps 1:200 --order out.png
  gpt-jax inspect --spike W/spikes/8.json

For a config: the resolved fields, parameters, FLOPs, the schedule (rows, tokens
of a row and learning rate at the start of each batch stage) and the attention
backend on a TPU, in each kind of layer. Only shapes are computed, so it takes
neither memory nor an accelerator, and also works for models that the objective
cannot train.

With --sharding: a picture of which mesh axis splits which dimension of each
parameter, and how much of it a device holds. With --attention: which keys each
query sees, in each kind of layer. With --path: the functions of gpt_jax that a
training step of this config runs, in order, each where it is entered first,
indented by who calls it, with file:line; then the files by folder.

For a field: its default, what it takes (a range, or calls with their
arguments), whether a resume may change it, and what it means; for a section
such as `optim`, all its fields.

For a run: the documents in the rows of each step, by their number in the token
store, computed from the config and the step. Steps count from 1, as in
metrics.jsonl. With --order: a picture of them.
"""

import json
import math
import textwrap
from typing import Any

from rich.console import Console

from gpt_jax import cli
from gpt_jax.core import config as config_lib
from gpt_jax.core import spec
from gpt_jax.core.runtime import tables
from gpt_jax.core.runtime.log import log
from gpt_jax.core.runtime.tables import TextTable
from gpt_jax.core.spec import UsageError
from gpt_jax.flags import Flags
from gpt_jax.reports import explaining
from gpt_jax.tasks.registry import TUNED

with cli.lazy_imports():
  import jax

  from gpt_jax.core import sharding
  from gpt_jax.core.costs import flops, totals
  from gpt_jax.core.tokens import manifest
  from gpt_jax.core.training import device_check, store_data
  from gpt_jax.core.training import workdir as workdir_lib
  from gpt_jax.reports import attention, data_order, layout, step_path

# The calls of fields that rooms above the config read.
TABLES = spec.Table(
  {
    'eval.tasks': 'gpt_jax.evaluation.suite:TASKS',
    'finetune.task': spec.Table({**TUNED}, 'finetune.task'),
    'finetune.transfer': 'gpt_jax.tuning.transfer:TRANSFERS',
    'finetune.class_weights': 'gpt_jax.tuning.data:CLASS_WEIGHTS',
  }
)


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  flags.workdir('Folder of a run, for --steps.')
  flags.text('steps', None, 'Steps of the run in --workdir: N, or FIRST:STOP, exclusive.')
  flags.switch('text', 'With --steps: also print the text.')
  flags.path('order', None, 'With --steps: PNG of the documents of each step.', written=True)
  flags.json()
  flags.switch('table', 'Print a Markdown table of the papers with a config.')
  flags.text('field', None, 'A field of the config or a section, to explain.')
  flags.switch('fields', 'Print docs/fields.md, which explains all fields.')
  flags.switch('mfu', 'Print how FLOPs and MFU are counted.')
  flags.path('sharding', None, 'PNG of how a mesh splits the parameters.', written=True)
  flags.path('attention', None, 'PNG of which keys each query sees.', written=True)
  flags.switch('path', 'Print the functions that a training step runs.')
  flags.path('spike', None, 'WORKDIR/spikes/STEP.json: show the norms and rows of that step.')


def main(args: cli.Args) -> None:
  """Runs the command."""
  if args.spike:
    found = store_data.spike(args.spike)
    if args.json:
      print(json.dumps(found))
    else:
      _show_spike(found, tables.console())
  elif args.field:
    explained = explaining.explain(args.field, TABLES)
    print(json.dumps(explained) if args.json else explaining.text(explained))
  elif args.fields:
    print(explaining.page(TABLES))
  elif args.table:
    print(totals.table())
  elif args.mfu:
    formulas = (flops.FORMULA, flops.FORMULA_CAUSAL, flops.FORMULA_COMPILER)
    print('\n\n'.join(textwrap.fill(text, 80) for text in formulas))
  elif args.workdir or args.steps:
    cli.required(args, 'workdir', 'steps')
    if args.order:
      cli.check_out_file(args, 'order', ('.png',))
      folder, rows = store_data.rows(args.workdir, args.steps)
      num_documents = manifest.read(folder).num_documents
      print(data_order.chart(rows, num_documents, args.order))
    else:
      _show_rows(args)
  elif args.sharding:
    cli.required(args, 'config')
    cli.check_out_file(args, 'sharding', ('.png',))
    config = config_lib.resolve_model(args.config)
    print(layout.sharding_chart(config, args.sharding))
  elif args.attention:
    cli.required(args, 'config')
    cli.check_out_file(args, 'attention', ('.png',))
    config = config_lib.resolve_model(args.config)
    print(attention.attention_chart(config, args.attention))
  elif args.path:
    cli.required(args, 'config')
    entered = step_path.functions(config_lib.resolve_model(args.config))
    if args.json:
      print(json.dumps([function._asdict() for function in entered]))
    else:
      print(step_path.text(entered), step_path.rooms(entered), sep='\n\n')
  else:
    cli.required(args, 'config')
    _show_config(args)


def _show_spike(found: dict[str, Any], console: Console, *, width: int = 400) -> None:
  """Prints a spike and its rows, each up to `width` characters."""
  console.print(
    f'step {found["step"]}: loss {found["loss"]}, gradient norm '
    f'{found["grad_norm"]}, learning rate {found["learning_rate"]:.4g}'
  )
  norms = TextTable('part of the model', 'gradient norm')
  for name, norm in found['grad_norms'].items():
    norms.add_row(name, str(norm))
  console.print(norms)
  rows = TextTable('row of the run', 'row of the store', 'text')
  for i, (number, text) in enumerate(zip(found['store_rows'], found['texts'], strict=True)):
    rows.add_row(str(found['first_row'] + i), str(number), repr(text[:width]))
  console.print(rows)


def _show_rows(args: cli.Args) -> None:
  """Prints the documents in the rows of steps."""
  store, rows = store_data.rows(args.workdir, args.steps, text=args.text)
  if args.json:
    print(json.dumps({'store': store, 'rows': [*rows]}))
    return
  for row in rows:
    texts = [
      ', '.join(f'{s["document"]} [{s["start"]}:{s["stop"]}]' for s in spans)
      for spans in (row['spans'], row.get('second'))
      if spans
    ]
    # In rows with two texts: whether the second follows the first.
    joint = ', not followed by ' if row.get('pair') else ', followed by '
    if 'second' in row and 'pair' not in row:  # sources and their targets
      joint = ' to '
    source = f'source {row["source"]} ' if row['source'] else ''
    print(
      f'step {row["step"]} row {row["row"]} {source}epoch {row["epoch"]} '
      f'position {row["position"]}: documents {joint.join(texts)}'
    )
    for first, stop in row.get('sentences', ()):
      print(f'sentences {first} to {stop - 1}')
    for name in ('text', 'second_text'):
      if name in row:
        print(row[name])
    for both in zip(row.get('sources', ()), row.get('targets', ()), strict=True):
      print(*both, sep=' => ')


def _show_config(args: cli.Args) -> None:
  """Prints a resolved config and its model."""
  config = config_lib.resolve_model(args.config)
  params, figures = totals.figures_of(config)
  try:
    config_lib.check_objective(config)
  except UsageError as e:
    log.info('a model to look at, not to train: %s', e)
  figures = {'parameters_text': totals.short(figures['parameters'], 2), **figures}
  stages = totals.stages(config)
  if note := config_lib.warm_up_note(config):
    log.warning('%s', note)
  longest = config_lib.ramp(config).longest
  with sharding.on_one_tpu(sharding.parse_rules(config.mesh.rules)):
    computed = device_check.attention(config, 1, longest)
  if args.json:
    listed = [stage._asdict() for stage in stages]
    found = {**figures, 'schedule': listed, 'attention': computed, 'config': config.to_dict()}
    print(json.dumps(found))
  else:
    _show(config, params, figures, stages, computed)
  workdir_lib.warn_of_planned_rows(config)  # last, where it is seen


def _show(config: Any, params: Any, figures: Any, stages: Any, computed: list[str]) -> None:
  """Prints tables for people, and the figures."""
  console = tables.console()
  fields = TextTable('field', 'value', title='Resolved config')
  for name, value in config_lib.flatten(config).items():
    fields.add_row(name, repr(value))
  console.print(fields)
  console.print(_parameters(params))
  columns = ('from step', 'rows', 'tokens a row', 'a step', 'before', 'rate')
  title = f'Schedule of {config.schedule.num_steps:,} steps'
  table = TextTable(*columns, title=title, right=columns)
  for stage in stages:
    *counts, rate = stage
    table.add_row(*(f'{count:,}' for count in counts), f'{rate:.4g}')
  console.print(table)
  for line in computed:
    console.print(f'attention on a TPU: {line}')
  in_short = figures.pop('parameters_text')
  for name, value in figures.items():
    more = f' ({in_short})' if name == 'parameters' else ''
    console.print(f'{_in_words(name)}: {value:,}{more}')


def _in_words(figure: str) -> str:
  """A figure's name for people, from its key in --json."""
  first, *others = figure.replace('flops', 'FLOPs').split('_')
  match others:
    case ['active' | 'matmul' | 'total']:
      return f'{others[0]} {first}'
    case ['per', 'token', 'causal']:
      return f'{first} per token, causal'
  return ' '.join([first, *others])


def _parameters(params: Any) -> TextTable:
  """A table of all parameters: shapes, logical axes and counts."""
  columns = 'parameter', 'shape', 'axes', 'count'
  table = TextTable(*columns, title='Parameters', right=('count',))
  for path, leaf in jax.tree_util.tree_leaves_with_path(
    params, is_leaf=lambda x: hasattr(x, 'names')
  ):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    shape = leaf.value.shape
    table.add_row(name, str(shape), ', '.join(leaf.names), f'{math.prod(shape):,}')
  return table
