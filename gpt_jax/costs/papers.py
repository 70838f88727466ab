# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The table of all papers: their configs, differences and parameters."""

from gpt_jax import config as config_lib
from gpt_jax.config import shipped
from gpt_jax.costs.totals import figures_of

_TABLE_HEAD = (
  '| paper | config | what differs from its ancestor | parameters | proof |',
  '|---|---|---|---|---|',
)


def table() -> str:
  """One Markdown row for each paper and size of our configs.

  A config of a paper says in `DIFFERS` what it adds to its ancestor; its
  docstring begins with the paper's name, authors and year.
  """
  rows = []
  for stem, module in shipped.papers().items():
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
      # Said once, for all sizes.
      paper = differs = ''
  # Oldest first; within a year and a paper as they come.
  rows.sort(key=lambda year_row: year_row[0])
  return '\n'.join([*_TABLE_HEAD, *(row for _, row in rows)])
