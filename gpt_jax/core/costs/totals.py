# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Total parameters, tokens and FLOPs of a config."""

import math
from typing import Any, NamedTuple

import jax

from gpt_jax.core import config as config_lib
from gpt_jax.core.config import Config, loading
from gpt_jax.core.costs import flops
from gpt_jax.core.spec import UsageError


def check_vocabulary(config: Config) -> None:
  """Checks that the size of the vocabulary is known before any training."""
  if config.model.vocab_size is None:
    raise UsageError(
      "model.vocab_size is empty: it is the tokenizer's, which is not "
      'trained yet; give --config.model.vocab_size=N'
    )


def figures_of(config: Config) -> tuple[Any, dict[str, int]]:
  """The abstract parameters of a config, and the counts derived from them."""
  check_vocabulary(config)
  objective = config_lib.objective(config)
  params = objective.shapes
  table = flops.parameter_table(params)
  parameters = sum(math.prod(shape) for shape in table.values())
  embeddings = sum(math.prod(s) for name, s in table.items() if name.endswith('/embedding'))
  ramp = config_lib.ramp(config)
  steps = config.schedule.num_steps
  by_shape = ramp.tokens_by_shape(0, steps)
  last = ramp.stages[-1]
  of_parts = {
    f'parameters_of_{name}': sum(x.size for x in jax.tree.leaves(part))
    for name, part in params.get('parts', {}).items()
  }
  return params, {
    'parameters': parameters,
    **of_parts,
    'parameters_active': sum(flops.active_parameters(config, params).values()),
    'parameters_without_embeddings': parameters - embeddings,
    'parameters_matmul': flops.matmul_parameters(config, params),
    'flops_per_token': flops.per_token(config, params, last.length),
    'flops_per_token_causal': flops.per_token_causal(config, params, last.length),
    'tokens_per_step': last.shape.tokens,
    'tokens_total': ramp.tokens(steps),
    'flops_total': sum(
      flops.per_token(config, params, shape.length) * tokens for shape, tokens in by_shape.items()
    ),
  }


def short(count: float, digits: int = 1) -> str:
  """Formats a count as papers do: 540,354,281,472 is `540.4B`."""
  for unit, size in (('T', 1e12), ('B', 1e9), ('M', 1e6), ('k', 1e3)):
    # 999.96M would be 1000.0M.
    if count >= size * (1 - 0.5 * 10 ** -(digits + 3)):
      return f'{count / size:.{digits}f}{unit}'
  return f'{count:.{digits}f}'


# The table of all papers: configs, differences and parameters.


_TABLE_HEAD = (
  '| paper | config | what differs from its ancestor | parameters | proof |',
  '|---|---|---|---|---|',
)


def table() -> str:
  """One Markdown row for each paper and size of our configs.

  A paper's config says in `DIFFERS` what it adds to its ancestor, and its
  docstring begins with the paper's name, authors and year.
  """
  rows = []
  for stem, module in loading.papers().items():
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
      name = f'{stem}.py:{size}' if size else f'{stem}.py'
      test = f'test_decoder_row[{stem}-{size}]'
      row = f'| {paper} | `{name}` | {differs} | {count} | `{test}` |'
      rows.append((year, row))
      # Only in the row of the first size.
      paper = differs = ''
  # Oldest first; the sort is stable within a year.
  rows.sort(key=lambda year_row: year_row[0])
  return '\n'.join([*_TABLE_HEAD, *(row for _, row in rows)])


# The batches and learning rates of a run, by stage.


class ScheduleRow(NamedTuple):
  """A stage of the batch, at its beginning."""

  step: int  # the first, numbered from 1 as in metrics.jsonl
  rows: int
  row_tokens: int
  tokens_per_step: int
  tokens: int  # consumed before it
  learning_rate: float


def stages(config: Config) -> list[ScheduleRow]:
  """The stages of a resolved config's run."""
  ramp, rate = config_lib.ramp(config), config_lib.schedule(config)
  return [
    ScheduleRow(
      stage.start + 1,
      stage.rows,
      stage.length,
      stage.shape.tokens,
      ramp.tokens(stage.start),
      float(rate(stage.start)),
    )
    for stage in ramp.between(0, config.schedule.num_steps)
  ]
