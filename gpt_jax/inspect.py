# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shows what a config means: resolved fields, parameters, FLOPs.

  gpt-jax inspect --config configs/gpt2.py:xl
  gpt-jax inspect --config configs/gpt2.py:xl --json

Builds the model's shapes only: it takes no memory and no accelerator.
"""

import json
import math
from typing import Any

import jax
from absl import flags
from rich.console import Console
from rich.table import Table

from gpt_jax import command, flops, spec
from gpt_jax import config as config_lib
from gpt_jax.config import Config
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.causal import OBJECTIVES
from gpt_jax.spec import UsageError


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  command.define_config(values)
  flags.DEFINE_bool('json', False, 'Print one JSON object.', flag_values=values)


def main(args: command.Args) -> None:
  """Runs the command."""
  command.required(args, 'config')
  config = config_lib.resolve(args.config)
  params, figures = figures_of(config)
  if args.json:
    print(json.dumps({**figures, 'config': config.to_dict()}))
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
  for name, value in figures.items():
    console.print(f'{name}: {value:,}' if value is not None else f'{name}: -')
  console.print(flops.FORMULA)


def figures_of(config: Config) -> tuple[Any, dict[str, int]]:
  """Abstract parameters and the counts that follow from them.

  Raises:
    UsageError: the vocabulary is not known yet.
  """
  if config.model.vocab_size is None:
    raise UsageError(
      "model.vocab_size is empty: it is the tokenizer's, which is not "
      'trained yet; give --config.model.vocab_size=N'
    )
  objective = spec.build('objective.name', config.objective.name, OBJECTIVES)(
    Transformer(**config.model)
  )
  params = jax.eval_shape(objective.init, jax.random.key(0))
  table = flops.parameter_table(params)
  parameters = sum(math.prod(shape) for shape in table.values())
  embeddings = sum(
    math.prod(s) for name, s in table.items() if name.endswith('/embedding')
  )
  tokens_per_step = config.batch.rows * config.model.context_length
  per_token = flops.per_token(config, params)
  return params, {
    'parameters': parameters,
    'parameters_active': parameters,
    'parameters_without_embeddings': parameters - embeddings,
    'parameters_matmul': flops.matmul_parameters(config, params),
    'flops_per_token': per_token,
    'tokens_per_step': tokens_per_step,
    'tokens_total': tokens_per_step * config.schedule.num_steps,
    'flops_total': per_token * tokens_per_step * config.schedule.num_steps,
  }
