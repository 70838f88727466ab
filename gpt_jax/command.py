# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What all commands share: flags, logging, exit codes.

Exit codes: 0 done, 1 the run failed, 2 bad usage or config, 75 preempted: the
same command goes on.
"""

import logging
import os
import sys
import time
import traceback
from types import ModuleType, SimpleNamespace
from typing import Any

from absl import flags
from ml_collections import config_flags
from rich.console import Console
from rich.logging import RichHandler

from gpt_jax import preemption
from gpt_jax.preemption import Preempted
from gpt_jax.spec import UsageError

# The start of the process, nearly: this is the first module of ours.
_STARTED = time.monotonic()

# The values of a command's flags, by name.
Args = Any

# Logs and progress go to stderr: stdout is for results.
console = Console(stderr=True)
log = logging.getLogger('gpt_jax')


def run(module: ModuleType, argv: list[str]) -> int:
  """Parses `argv` for the command `module`, runs it, returns its exit code.

  A command module has a docstring (its help), `define(flag_values)` and
  `main(args)`, with the values of the flags as attributes, and `argv`.
  """
  name = module.__name__.rpartition('.')[2]
  _set_up_logging()
  values = flags.FlagValues()
  module.define(values)
  if any(arg in ('-h', '--help', '-help') for arg in argv):
    print(_help(name, module, values))
    return 0
  try:
    _parse(values, [f'gpt-jax {name}', *argv])
    given = {name: values[name].value for name in values}
    module.main(SimpleNamespace(argv=argv, **given))
    return 0
  except UsageError as e:
    print(f'gpt-jax {name}: {_one_line(e)}', file=sys.stderr)
    return 2
  except Preempted as e:
    print(f'gpt-jax {name}: {_one_line(e)}', file=sys.stderr)
    return preemption.EXIT_CODE
  except KeyboardInterrupt:
    print(f'gpt-jax {name}: interrupted', file=sys.stderr)
    return 130
  except Exception as e:
    traceback.print_exc()
    kind = type(e).__name__
    print(f'gpt-jax {name}: failed: {kind}: {_one_line(e)}', file=sys.stderr)
    return 1


def define_config(values: flags.FlagValues) -> None:
  """Adds `--config FILE[:SIZE]` and its overrides `--config.a.b=...`."""
  config_flags.DEFINE_config_file(
    'config',
    None,
    'Config file, with a size where it has several: configs/gpt2.py:medium. '
    'Any field is overridden by --config.section.field=VALUE; '
    'configs/base.py explains them all.',
    flag_values=values,
  )
  # ml_collections finds overrides by looking at the arguments: see `_parse`.


def define_workdir(values: flags.FlagValues, use: str) -> None:
  """Adds `--workdir`."""
  flags.DEFINE_string('workdir', None, use, flag_values=values)


def required(args: Args, *names: str) -> None:
  """Checks that flags are given.

  Raises:
    UsageError: names the first that is missing.
  """
  for name in names:
    if getattr(args, name) in (None, ''):
      raise UsageError(f'--{name} is missing; see --help')


def seconds_since_start() -> float:
  """Seconds since the command was started."""
  return time.monotonic() - _STARTED


def _parse(values: flags.FlagValues, argv: list[str]) -> None:
  """Parses the flags; each mistake becomes a `UsageError`."""
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


def load_config(file: str, overrides: list[str]) -> Any:
  """The config that `--config FILE[:SIZE]` and its overrides give.

  Raises:
    UsageError: as the command line's.
  """
  values = flags.FlagValues()
  define_config(values)
  _parse(values, ['gpt-jax', f'--config={file}', *overrides])
  return values['config'].value


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
    return f'{file}, line {lines[-1]}: {kind}: {_one_line(error)}'
  if isinstance(error, AttributeError | KeyError):
    return f'unknown config field {_one_line(error)}'
  return _one_line(error)


def _help(name: str, module: ModuleType, values: flags.FlagValues) -> str:
  lines = [f'gpt-jax {name}: {(module.__doc__ or "").strip()}', '', 'Flags:']
  for flag in sorted(
    values.get_flags_for_module(sys.argv[0]) or [values[f] for f in values],
    key=lambda f: f.name,
  ):
    default = '' if flag.default is None else f' (default: {flag.default})'
    lines.append(f'  --{flag.name}: {flag.help}{default}')
  return '\n'.join(lines)


def _one_line(error: BaseException) -> str:
  # str() of a KeyError would quote its text.
  quoted = isinstance(error, KeyError) and error.args
  return ' '.join(str(error.args[0] if quoted else error).split())


def _set_up_logging() -> None:
  if console.is_terminal:
    handler = RichHandler(console=console, show_path=False)
  else:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter('%(asctime)s %(message)s'))
  log.handlers[:] = [handler]
  log.setLevel(logging.INFO)
  # What Orbax and others say through absl is for their developers; what they
  # raise is reported by us.
  for name in ('absl', 'asyncio'):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  log.propagate = False
