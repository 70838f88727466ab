# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints docs/flags.md: what each command does, with its flags.

python -m tests.support.flags_page > docs/flags.md
"""

import importlib
import textwrap
from collections.abc import Iterator
from typing import Any

from gpt_jax import cli
from gpt_jax.__main__ import COMMANDS
from gpt_jax.flags import Flags

MARK = '<!-- page: python -m tests.support.flags_page -->'

# What absl adds to the help of a flag that may be repeated.
_REPEATED = ';\n    repeat this option to specify a list of values'


def page() -> str:
  """The text of the page."""
  return '\n'.join(_lines()) + '\n'


def _lines() -> Iterator[str]:
  yield '# Flags of the commands'
  yield f'\n{MARK}\n'
  yield (
    'What each command prints with `--help`. A flag is given as\n'
    '`--name=value` or `--name value`; a yes or no as `--name` or\n'
    '`--name=false`.\n'
    'With `--config` any [field](fields.md) is overridden by\n'
    '`--config.SECTION.FIELD=value`. [Commands](commands.md) has examples.'
  )
  yield '\n## Exit codes\n\n| exit code | |\n|---|---|'
  for code, said in cli.EXIT_CODES.items():
    yield f'| {code} | {said} |'
  yield (
    '\n[When things go wrong](training.md#when-things-go-wrong) says which event ends with which.'
  )
  for name in sorted(COMMANDS):
    module = importlib.import_module(f'gpt_jax.commands.{name}')
    title, *rest = textwrap.dedent(module.__doc__ or '').strip().split('\n\n')
    yield f'\n## {name}\n\n{title}\n'
    for part in rest:
      # Examples are indented, and so are tables.
      code = part.startswith('  ')
      yield f'```\n{textwrap.dedent(part)}\n```\n' if code else f'{part}\n'
    flags = Flags()
    module.define(flags)
    yield '| flag | default | |\n|---|---|---|'
    for flag in flags:
      one = flags[flag]
      yield f'| `--{flag}` | {_default(one.default)} | {_cell(one.help)} |'


def _default(value: Any) -> str:
  if isinstance(value, list):
    value = ','.join(map(str, value))
  if value is False or value in (None, ''):
    return ''
  return f'`{value}`'


def _cell(text: str) -> str:
  text = text.removesuffix(_REPEATED)
  return ' '.join(text.split()).replace('|', '\\|').replace('<', '&lt;')


if __name__ == '__main__':
  print(page(), end='')
