# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads a config file with overrides, as the command line gives them."""

import os
import sys
import traceback
from typing import Any

from absl import flags
from ml_collections import config_flags

from gpt_jax.config import shipped
from gpt_jax.config.fields import RENAMED, hint, rename
from gpt_jax.spec import UsageError

# Characters of a message: one that repeats a value may be of any length.
_LONGEST = 1200


def define(values: flags.FlagValues) -> None:
  """Adds `--config FILE[:SIZE]` and its overrides `--config.a.b=...`."""
  config_flags.DEFINE_config_file(
    'config',
    None,
    'Config file, with a size where it has several: configs/gpt2.py:medium. '
    'Any field is overridden by --config.section.field=VALUE; '
    'gpt_jax/config/defaults.py explains them all.',
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
  argv, file = _find_config(_renamed(argv))
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
  # A command may take the name of the file alone.
  if file and not isinstance(values['config'].value, str):
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


def _find_config(argv: list[str]) -> tuple[list[str], str]:
  """The command line with the config file that is meant, and that file.

  The folder that holds `configs/` goes onto the path, so that a config can
  import its ancestor, `from configs import base`: an installed script does
  not have the working directory there. A file `configs/...` that is not here
  is the one that came with gpt_jax.

  Raises:
    UsageError: there is no such file.
  """
  out, file = [*argv], ''
  for i, flag in enumerate(argv):
    name, equals, text = flag.partition('=')
    if name.lstrip('-') != 'config' or not name.startswith('-'):
      continue
    at = i if equals else i + 1
    text = text if equals else ''.join(argv[at : at + 1])
    file, size = _existing(text)
    shipped.importable(_folder_of_configs(file))
    if at < len(out):
      out[at] = f'{name}={file}{size}' if equals else file + size
  return out, file


def _existing(text: str) -> tuple[str, str]:
  """FILE[:SIZE] as the file, here or shipped, and ':SIZE' or ''."""
  stem, found, size = text.partition('.py')
  file = f'{stem}.py'
  if found and '\0' not in file and (not size or size.startswith(':')):
    if os.path.isfile(file):
      return file, size
    if ours := shipped.find(file):
      return ours, size
  raise UsageError(
    f'--config={text}: no such file; give a Python file, with a size '
    'where it has several: configs/gpt2.py:medium'
  )


def _folder_of_configs(file: str) -> str:
  """Where `configs/` lies, of configs/mine.py or configs/finetune/sst2.py."""
  folder = os.path.dirname(os.path.abspath(file))
  if os.path.basename(os.path.dirname(folder)) == 'configs':
    folder = os.path.dirname(folder)
  return os.path.dirname(folder)


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
  """What an error says, in one line; the middle of a very long one left out."""
  # str() of a KeyError would quote its text.
  quoted = isinstance(error, KeyError) and error.args
  text = ' '.join(str(error.args[0] if quoted else error).split())
  if len(text) <= _LONGEST:
    return text
  return f'{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}'
