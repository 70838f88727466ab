# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads a config file with overrides, as the command line gives them."""

import os
import sys
import traceback
from typing import Any

from absl import flags
from ml_collections import config_flags

from gpt_jax.config.fields import RENAMED, hint, rename
from gpt_jax.spec import UsageError


def define(values: flags.FlagValues) -> None:
  """Adds `--config FILE[:SIZE]` and its overrides `--config.a.b=...`."""
  config_flags.DEFINE_config_file(
    'config',
    None,
    'Config file, with a size where it has several: configs/gpt2.py:medium. '
    'Any field is overridden by --config.section.field=VALUE; '
    'configs/base.py explains them all.',
    flag_values=values,
  )
  # ml_collections finds overrides by looking at the arguments: see `parse`.


def load_config(file: str, overrides: list[str]) -> Any:
  """The config that `--config FILE[:SIZE]` and its overrides give.

  Raises:
    UsageError: as the command line's.
  """
  values = flags.FlagValues()
  define(values)
  parse(values, ['gpt-jax', f'--config={file}', *overrides])
  return values['config'].value


def parse(values: flags.FlagValues, argv: list[str]) -> None:
  """Parses the flags; each mistake becomes a `UsageError`."""
  argv = _renamed(argv)
  file = _find_config(argv)
  # ml_collections looks for the overrides in `sys.argv`.
  old_argv, sys.argv = sys.argv, argv
  try:
    rest = values(argv)
  except UsageError:
    raise
  except Exception as e:
    # A config file is code: whatever it raises is the user's to mend.
    raise UsageError(_cause(e, file)) from e
  finally:
    sys.argv = old_argv
  if len(rest) > 1:
    raise UsageError(f'unexpected argument {rest[1]!r}; see --help')
  if file:
    _rename_fields(values['config'].value, argv)


def _renamed(argv: list[str]) -> list[str]:
  """The arguments with today's names of fields: --config.batch.size=8."""
  out = []
  for arg in argv:
    flag, equals, value = arg.partition('=')
    old = flag.lstrip('-').removeprefix('config.')
    if flag.startswith('-') and old in RENAMED and 'config.' in flag:
      hint(old)
      flag = f'--config.{RENAMED[old]}'
    out.append(f'{flag}{equals}{value}')
  return out


def _rename_fields(config: Any, argv: list[str]) -> None:
  """Gives what a config file sets under an old name its name of today.

  An override of the new name holds against it.
  """
  flags = (arg.partition('=')[0].lstrip('-') for arg in argv)
  given = tuple(flag.removeprefix('config.') for flag in flags)
  with config.unlocked():
    for old in rename(config, given=given):
      hint(old)


def _find_config(argv: list[str]) -> str:
  """The config file of the command line, '' if there is none.

  The folder that holds `configs/` goes onto the path, so that a config can
  import its ancestor, `from configs import base`: an installed script does
  not have the working directory there.

  Raises:
    UsageError: there is no such file.
  """
  for flag, value in zip(argv, [*argv[1:], ''], strict=True):
    if flag == '--config' or flag.startswith('--config='):
      text = flag.partition('=')[2] or value
      stem, found, _ = text.partition('.py')
      if not found or not os.path.isfile(stem + '.py'):
        raise UsageError(
          f'--config={text}: no such file; give a Python file, with a size '
          'where it has several: configs/gpt2.py:medium'
        )
      folder = os.path.dirname(os.path.abspath(stem))
      if os.path.basename(os.path.dirname(folder)) == 'configs':
        folder = os.path.dirname(folder)  # configs/finetune/sst2.py
      sys.path.insert(0, os.path.dirname(folder))
      return stem + '.py'
  return ''


def _cause(error: Exception, file: str) -> str:
  """One line on what is wrong with a flag, an override or the config file."""
  text = str(error)
  if 'Traceback' in text:
    # How ml_collections wraps a ValueError of `get_config`: ours say it all.
    last = text.strip().rpartition('\n')[2]
    return last.partition(': ')[2]
  lines = [
    frame.lineno
    for frame in traceback.extract_tb(error.__traceback__)
    if file and frame.filename.endswith(file)
  ]
  if isinstance(error, SyntaxError):
    lines.append(error.lineno)
  if lines:
    kind = type(error).__name__
    return f'{file}, line {lines[-1]}: {kind}: {one_line(error)}'
  if isinstance(error, AttributeError | KeyError):
    return f'unknown config field {one_line(error)}'
  return one_line(error)


def one_line(error: BaseException) -> str:
  # str() of a KeyError would quote its text.
  quoted = isinstance(error, KeyError) and error.args
  return ' '.join(str(error.args[0] if quoted else error).split())
