# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loads a config file with the overrides of the command line."""

import contextlib
import difflib
import filecmp
import glob
import importlib
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import traceback
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags
from ml_collections.config_flags import config_path

from gpt_jax.core.config.fields import Config, check_known, check_override, meant
from gpt_jax.core.spec import KINDS, UsageError, printable, shown

# The configs shipped with gpt_jax: `configs/` of a clone or of a wheel.
#
# A user's config, in any folder, can build on one with `from configs import
# smoke`, and can import modules beside itself. These shadow nothing: our
# configs and installed packages come first.


_ROOT = str(pathlib.Path(__file__).parents[2])
_NAME = 'configs'
# The packages of configs.
_PACKAGES = (_NAME, f'{_NAME}.finetune')


def root() -> str:
  """The parent folder of `configs/`; '' if it was not installed."""
  # In a wheel it is inside the package, in a clone beside it.
  for folder in (os.path.join(_ROOT, 'shipped'), os.path.dirname(_ROOT)):
    if os.path.isfile(os.path.join(folder, _NAME, 'base.py')):
      return folder
  return ''


def find(path: str) -> str:
  """The path of a shipped config such as 'configs/gpt2.py'; '' if unknown."""
  if os.path.isabs(path) or not path.startswith(f'{_NAME}/'):
    return ''
  found = os.path.join(root(), path)
  return found if root() and os.path.isfile(found) else ''


def papers() -> dict[str, ModuleType]:
  """Our configs with a `DIFFERS` (deviations from a paper), by file name."""
  found = {}
  with importable():
    folder = os.path.join(root(), _NAME)
    for file in sorted(glob.glob('*.py', root_dir=folder)):
      name = file.removesuffix('.py')
      module = importlib.import_module(f'{_NAME}.{name}')
      if hasattr(module, 'DIFFERS'):
        found[name] = module
  return found


@contextlib.contextmanager
def importable(file: str = '') -> Iterator[None]:
  """Lets code inside import our configs, and modules beside a config.

  If the config is in a folder `configs`, or below one, `from configs import x`
  finds that folder's modules too, after ours. The imported modules are unloaded
  at the end, since helpers of the next config may have the same names.

  Args:
    file: the user's config file; '': there is none.
  """
  folder = os.path.dirname(os.path.abspath(file)) if file else ''
  ours = os.path.join(root(), _NAME) if root() else ''
  own = _own_configs(folder, ours)
  kept = {name: sys.modules.pop(name) for name in _imported()}
  before = {*sys.modules}
  for name in _PACKAGES:
    inside = name.split('.')[1:]
    found = [os.path.join(part, *inside) for part in (ours, own) if part]
    sys.modules[name] = _package(name, found)
  if folder:
    # At the end, where it shadows neither Python's modules nor installed ones.
    sys.path.append(folder)
  importlib.invalidate_caches()
  try:
    yield
    _check_names(file, ours, own)
  finally:
    if folder in sys.path:  # the config may have changed it
      last = len(sys.path) - 1 - sys.path[::-1].index(folder)
      del sys.path[last]
    beside = [name for name in {*sys.modules} - before if _lies_in(name.partition('.')[0], folder)]
    for name in {*_imported(), *beside}:
      del sys.modules[name]
    sys.modules.update(kept)


def _own_configs(folder: str, ours: str) -> str:
  """The user's folder `configs` that contains a config file, or ''."""
  for part in (folder, os.path.dirname(folder)):
    if os.path.basename(part) == _NAME:
      return '' if os.path.realpath(part) == os.path.realpath(ours) else part
  return ''


def _package(name: str, folders: list[str]) -> ModuleType:
  """A package of the modules in some folders; runs no `__init__.py`."""
  spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
  spec.submodule_search_locations = folders
  return importlib.util.module_from_spec(spec)


def _imported() -> list[str]:
  """The names of `configs` and of its imported modules."""
  return [name for name in sys.modules if name.partition('.')[0] == _NAME]


def _lies_in(name: str, folder: str) -> bool:
  """Whether a module or package is from a folder."""
  spec = getattr(sys.modules.get(name), '__spec__', None)
  if spec is None or not folder:
    return False
  where = spec.submodule_search_locations
  found = [spec.origin] if where is None else where
  return any(part and os.path.dirname(part) == folder for part in found)


def _check_names(file: str, ours: str, own: str) -> None:
  """Refuses a file with the name of an imported config of ours."""
  for name in _imported() if own else []:
    if name in _PACKAGES:
      continue
    path = os.path.join(*name.split('.')[1:]) + '.py'
    mine, other = os.path.join(ours, path), os.path.join(own, path)
    if not os.path.isfile(mine) or not os.path.isfile(other):
      continue
    # A config may build on our config of the same name.
    if os.path.samefile(other, file) or filecmp.cmp(mine, other, shallow=False):
      continue
    raise UsageError(
      f'--config={file}: imports {name}, which is {mine} and not {other}; rename the latter'
    )


# The most characters of a message, which may repeat a value of any length.
_LONGEST = 1200
_HELP = (
  'Config file, with a size where it has several: configs/gpt2.py:medium. '
  'Any field is overridden by --config.SECTION.FIELD=VALUE; '
  'gpt-jax inspect --fields explains them all.'
)


class _File(flags.ArgumentParser):
  """The parser of the flag `--config` until `parse` has read the file."""


def define(values: flags.FlagValues) -> None:
  """Adds `--config FILE[:SIZE]` and its overrides `--config.a.b=...`."""
  flags.DEFINE(_File(), 'config', None, _HELP, flag_values=values)


def load_config(file: str, overrides: list[str]) -> Config:
  """The config that `--config FILE[:SIZE]` and its overrides give."""
  values = flags.FlagValues()
  define(values)
  parse(values, ['gpt-jax', f'--config={file}', *overrides])
  return values['config'].value


# What absl says of a flag at the end of a line, before its name.
_NO_VALUE = 'Missing value for flag '


def parse(values: flags.FlagValues, argv: list[str]) -> None:
  """Parses the flags; each mistake becomes a `UsageError`."""
  try:
    argv = values.read_flags_from_files(argv, force_gnu=False)
    if 'config' in values and isinstance(values['config'].parser, _File):
      argv = _read_config(values, argv)
    rest = values(argv)
  except UsageError:
    raise
  except flags.UnrecognizedFlagError as e:
    raise UsageError(_unknown(e.flagname, values)) from e
  except flags.IllegalFlagValueError as e:
    raise UsageError(_of_another_type(e, values)) from e
  except Exception as e:
    name = str(e).removeprefix(_NO_VALUE).lstrip('-')
    if str(e).startswith(_NO_VALUE) and name in values:
      use = str(values[name].help)
      raise UsageError(f'--{name}: has no value; write --{name}=VALUE: {use}') from e
    # An invalid value of a flag or a field.
    raise UsageError(one_line(e)) from e
  if len(rest) > 1:
    raise UsageError(f'unexpected argument {rest[1]!r}; see --help')


def _read_config(values: flags.FlagValues, argv: list[str]) -> list[str]:
  """Reads the file that `--config` names, and adds a flag for each override.

  Returns:
    The command line without `--config FILE`.
  """
  text, argv = without_file(argv)
  if text is None:
    return argv
  config = read(text)
  for arg in argv[1:]:
    flag = arg.partition('=')[0].lstrip('-')
    if arg.startswith('-') and flag.startswith('config.'):
      check_override(config, flag.removeprefix('config.'))
  delattr(values, 'config')
  config_flags.DEFINE_config_dict('config', config, _HELP, flag_values=values, sys_argv=argv)
  return argv


def read(text: str) -> Config:
  """The config of FILE[:SIZE], without overrides.

  Output that the file prints goes to stderr, with the logs.

  Args:
    text: the path of a Python file, or a shipped config such as
      'configs/gpt2.py:medium'.

  Returns:
    The locked config, not resolved; `unlock()` it to change fields.

  Raises:
    UsageError: there is no such file or size, or the file fails.
  """
  file, size = existing(text)
  try:
    with importable(file), contextlib.redirect_stdout(sys.stderr):
      config = _run(file).get_config(*size)
  except UsageError:
    raise
  except (Exception, SystemExit) as e:
    # A config file is code: the user has to fix whatever it raises.
    raise UsageError(_cause(e, file)) from e
  if not isinstance(config, ConfigDict):
    raise UsageError(
      f'{file}: get_config() returns {shown(config)}, not a ConfigDict; end it '
      'with "return config.lock()"'
    )
  check_known(config)
  return config.lock()


def _run(file: str) -> Any:
  """Runs a config file as a module, without importing it by name."""
  name = 'gpt_jax_config_file'
  spec = importlib.util.spec_from_file_location(name, file)
  assert spec and spec.loader, file
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module  # dataclasses look up their module there
  spec.loader.exec_module(module)
  if not hasattr(module, 'get_config'):
    raise UsageError(
      f"{file}: defines no get_config(arg=''); add one that returns the "
      'config, as in configs/smoke.py'
    )
  return module


def without_file(argv: list[str]) -> tuple[str | None, list[str]]:
  """The value of `--config` (None if not given), and the other arguments."""
  text, rest, i = None, argv[:1], 1
  while i < len(argv) and argv[i] != '--':
    flag, equals, value = argv[i].partition('=')
    if flag in ('--config', '-config'):
      text = value if equals else ''.join(argv[i + 1 : i + 2])
      i += not equals
    else:
      rest.append(argv[i])
    i += 1
  return text, rest + argv[i:]


def existing(text: str) -> tuple[str, list[str]]:
  """Splits FILE[:SIZE] into a file, local or shipped, and its size if any."""
  parts = [] if '\0' in text else text.split(':')
  # A path may have colons: take the longest prefix that is a file.
  for i in range(len(parts), 0, -1):
    file, size = ':'.join(parts[:i]), parts[i:]
    if not file.endswith('.py'):
      continue
    found = file if os.path.isfile(file) else find(file)
    if found:
      return found, [':'.join(size)] if size else []
  raise UsageError(
    f'--config={text}: no such file; give a Python file, with a size '
    'where it has several: configs/gpt2.py:medium'
  )


def _cause(error: BaseException, file: str) -> str:
  """One line on the error that a config file raised, and where."""
  folder = os.path.dirname(os.path.abspath(file))
  where = [
    (frame.filename, frame.lineno)
    for frame in traceback.extract_tb(error.__traceback__)
    if os.path.dirname(os.path.abspath(frame.filename)) == folder and os.path.isfile(frame.filename)
  ]
  if isinstance(error, SyntaxError) and error.filename:
    where.append((error.filename, error.lineno))
  path, line = where[-1] if where else (file, None)
  at = f'{path}, line {line}' if line else path
  if isinstance(error, SystemExit):
    return f'{at}: exits the process (SystemExit); raise a ValueError instead'
  return f'{at}: {type(error).__name__}: {one_line(error)}'


def _unknown(name: str, values: flags.FlagValues) -> str:
  """One line on a flag unknown to the command."""
  if name.startswith('config.'):
    return (
      f'--{name}: overrides a field of a config, but --config is missing; give --config FILE too'
    )
  found = difflib.get_close_matches(name.replace('-', '_'), [*values], 1)
  likely = f'--{found[0]}' if found else ''
  if not likely and 'config' in values:
    likely = f'--config.{meant(name)}' if meant(name) else ''
  remedy = f'did you mean {likely}?' if likely else 'see --help'
  return f'--{name}: there is no such flag; {remedy}'


def _of_another_type(error: Exception, values: flags.FlagValues) -> str:
  """One line on a value that a flag, or the field that it sets, cannot take."""
  # absl's message: 'flag --NAME=VALUE: what the parser said'.
  said, why = one_line(error), f': {error.__context__}'
  for name in values:
    start = f'flag --{name}='
    if values[name].boolean and said.startswith(start):
      text = said.removeprefix(start).partition(': ')[0]
      return f'{start}{text}: takes true or false'
    if not name.startswith('config.') or not said.startswith(start):
      continue
    field, config = name.removeprefix('config.'), values['config'].value
    kind = config_path.get_type(field, config)
    now = config_path.get_value(field, config)
    such_as = '' if now is None or now == '' else f', such as {now!r}'
    text = said.removeprefix(start).removesuffix(one_line(Exception(why)))
    what = KINDS.get(kind, 'a value of another type')
    return f'{field}={shown(text)}: must be {what}{such_as}'
  return said


def one_line(error: BaseException) -> str:
  """An error's message in one line, with the middle cut out if very long."""
  # str() of a KeyError would quote its text.
  quoted = isinstance(error, KeyError) and error.args
  text = str(error.args[0] if quoted else error)
  text = printable(' '.join(text.split()))
  if len(text) <= _LONGEST:
    return text
  return f'{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}'
