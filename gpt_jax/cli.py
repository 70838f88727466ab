# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What all commands share: logging, exit codes, paths."""

import contextlib
import errno
import functools
import itertools
import os
import re
import select
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from etils import epy
from ml_collections import ConfigDict

from gpt_jax.core import config as config_lib
from gpt_jax.core.config import loading
from gpt_jax.core.files import buckets, files
from gpt_jax.core.runtime import log, preemption
from gpt_jax.core.runtime.preemption import Preempted
from gpt_jax.core.spec import FailedError, ToldError, ToldFailedError, UsageError, printable
from gpt_jax.flags import Flags, Path

with epy.lazy_imports():
  from gpt_jax.core.runtime import programs

# The values of a command's flags, by name.
Args = Any

# What a command's exit code says to whoever started it.
EXIT_CODES = {
  0: 'done',
  1: 'failed; the last line names the cause, unless the output was cut off, as by a pipe to `head`',
  2: 'bad usage or config; one line names the field and the remedy, and the '
  'run in the workdir is unchanged',
  preemption.EXIT_CODE: 'stopped by SIGTERM or Ctrl-C, and saved; run the same command again',
  preemption.INTERRUPTED: 'ended at once by a second Ctrl-C, or by the first '
  'where there is nothing to save',
  preemption.TERMINATED: 'ended by SIGTERM, where there is nothing to save',
  134: 'aborted by JAX, since another host died; run the same command again',
}

# The flags of a command that name files and folders.
Paths = Mapping[str, Path]

# Errors of paths that cannot be used; not a full disk, since the same command
# goes on once there is room.
_OF_PATHS = {
  errno.ENOENT,
  errno.ENOTDIR,
  errno.EISDIR,
  errno.EEXIST,
  errno.ELOOP,
  errno.EACCES,
  errno.EPERM,
  errno.EROFS,
  errno.ENAMETOOLONG,
  errno.ENXIO,
}


# Errors of writing that are the disk's, in any library's words, and what to do.
_ROOM = 'make room there, and give the same command again'
_NOT_WRITTEN = {
  errno.ENOSPC: _ROOM,
  errno.EDQUOT: f'raise the quota, or {_ROOM}',
  errno.EFBIG: 'raise the limit on the size of files (ulimit -f), and give the same command again',
  errno.EROFS: 'give another path, or mount it for writing',
}
# Less free space than this is a full disk.
_FULL = 1 << 20


def lazy_imports() -> contextlib.AbstractContextManager[None]:
  """Modules imported inside are loaded when a command first uses one.

  JAX takes seconds: flags and configs are checked before it is loaded. Programs
  compiled from then on are kept.
  """
  return epy.lazy_imports(success_callback=_keep_programs)


def _keep_programs(loaded: str) -> None:
  del loaded
  _keep_once()


@functools.cache
def _keep_once() -> None:
  programs.keep()  # which may warn


def run(module: ModuleType, argv: list[str]) -> int:
  """Parses `argv` for the command `module`, runs it, returns its exit code.

  A command module has a docstring (its help), `define(flags)` and
  `main(args)`, with the values of the flags as attributes, and `argv`.
  """
  name = module.__name__.rpartition('.')[2]
  log.set_up()
  given: dict[str, Any] = {}
  values = Flags()
  module.define(values)
  try:
    if any(arg in ('-h', '--help', '-help') for arg in argv):
      print(_help(name, module, values), flush=True)
      return 0
    loading.parse(values, [f'gpt-jax {name}', *argv])
    given |= {name: values[name].value for name in values}
    log.started_with(_given(name, argv, given))
    _check_urls(values.paths, given)
    _check_apart(values.paths, given)
    with contextlib.ExitStack() as stack:
      stack.enter_context(preemption.leaving(buckets.leave))
      here = {x: _here(stack, values.paths, x, given) for x in given}
      if isinstance(here.get('config'), ConfigDict):
        config_lib.check_unresolved(here['config'])
      module.main(SimpleNamespace(argv=argv, **here))
    if sys.stdout:
      sys.stdout.flush()  # here, where a full disk is reported
    return 0
  except ToldError:
    return 2
  except UsageError as e:
    log.say(f'gpt-jax {name}: {loading.one_line(e)}')
    return 2
  except ToldFailedError:
    return 1
  except FailedError as e:
    print(f'gpt-jax {name}: failed: {loading.one_line(e)}', file=sys.stderr)
    return 1
  except Preempted as e:
    log.say(f'gpt-jax {name}: {loading.one_line(e)}')
    return preemption.EXIT_CODE
  except KeyboardInterrupt:
    log.say(f'gpt-jax {name}: interrupted')
    return preemption.INTERRUPTED
  except (Exception, SystemExit) as e:
    if isinstance(e, BrokenPipeError) and reader_is_gone():
      return 1
    # Rich has made an exit of a closed pipe; any other is of foreign code.
    if isinstance(e.__context__, BrokenPipeError) and isinstance(e, SystemExit):
      return 1
    if isinstance(e, OSError) and (why := _of_a_flag(e, values.paths, given)):
      log.say(f'gpt-jax {name}: {why}')
      return 2
    if why := _not_written(e, values.paths, given):
      log.say(f'gpt-jax {name}: failed: {why}')
      return 1
    kind = type(e).__name__
    said = f'gpt-jax {name}: failed: {kind}: {loading.one_line(e)}'
    log.say(f'{traceback.format_exc()}{said}')
    return 1


def _given(name: str, argv: list[str], flags: dict[str, Any]) -> log.Given:
  """What the user gave to the command, for the records of runs."""
  config, prefix = flags.get('config'), 'config.'
  return log.Given(
    shell_line(['gpt-jax', name, *argv]),
    [flag.removeprefix(prefix) for flag in flags if flag.startswith(prefix)],
    config_lib.flatten(config) if isinstance(config, ConfigDict) else {},
  )


def shell_line(words: list[str]) -> str:
  """The words as a shell reads them; call-strings with quotes stay readable.

  `shlex.join` writes `'"'"'` for each single quote.
  """
  return ' '.join(
    f'"{word}"' if "'" in word and not {*word} & {*'"$`\\!'} else shlex.quote(word)
    for word in words
  )


def reader_is_gone() -> bool:
  """Whether nothing reads stdout any more, as after `| head`.

  If so, the rest of the output is dropped.
  """
  try:
    number = sys.stdout.fileno()
  except (AttributeError, OSError):  # there is none, or it is no file
    return False
  poll = select.poll()
  poll.register(number, 0)
  gone = any(e & (select.POLLERR | select.POLLHUP) for _, e in poll.poll(0))
  if gone:
    # Python flushes once more at its exit, and would complain.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
  return gone


def required(args: Args, *names: str) -> None:
  """Checks that flags are given."""
  for name in names:
    if getattr(args, name) in (None, '', []):
      raise UsageError(f'--{name} is missing; see --help')


def check_out_file(args: Args, name: str, kinds: tuple[str, ...] = ()) -> None:
  """Checks a flag that names a file to write, before any work.

  What is no regular file is never replaced: root could lose a device.

  Args:
    args: the values of the flags.
    kinds: how the file's name may end, such as '.png'; (): in any way.
  """
  path = getattr(args, name)
  if path is None:
    return
  folder = os.path.dirname(path) or '.'
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    os.lstat(path)  # says so where the name is too long
  if os.path.lexists(path) and not os.path.isfile(path):
    raise UsageError(f'--{name}={path}: is not a regular file; give the path of one')
  if not os.path.isdir(folder):
    raise UsageError(f'--{name}={path}: {folder} is not a folder; create it')
  if not os.access(folder, os.W_OK | os.X_OK):
    raise UsageError(f'--{name}={path}: {folder} is not writable; give another path')
  if kinds and not path.lower().endswith(kinds):
    raise UsageError(f'--{name}={path}: must end in {" or ".join(kinds)}; rename it')


def check_out_folder(args: Args, name: str) -> None:
  """Checks a flag that names a folder to write, made when missing."""
  path = getattr(args, name)
  if path is not None and '://' not in path:
    _check_folder(f'--{name}={path}', path)


def check_in_workdir(args: Args, folders: Iterable[str], files: Iterable[str]) -> None:
  """Checks what a command will make in --workdir, before any run of it."""
  for folder in folders:
    _check_folder(f'--workdir={args.workdir}', folder)
  for file in files:
    if os.path.lexists(file) and not os.path.isfile(file):
      raise UsageError(
        f'--workdir={args.workdir}: {file} is not a regular file and cannot '
        'be replaced; move it, or give another --workdir'
      )


def _check_folder(flag: str, path: str) -> None:
  """Checks that a folder is there, or can be made."""
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    os.lstat(path)  # says so where the name is too long
  there = os.path.abspath(path)
  while not os.path.lexists(there):
    there = os.path.dirname(there)
  if not os.path.isdir(there):
    raise UsageError(f'{flag}: {there} is not a folder; give one, which need not exist yet')
  if not os.access(there, os.W_OK | os.X_OK):
    raise UsageError(f'{flag}: {there} is not writable; give another path')


def _here(stack: contextlib.ExitStack, paths: Paths, flag: str, given: dict[str, Any]) -> Any:
  """The value of a flag, with copies here of the folders in buckets."""
  value, kind = given[flag], paths.get(flag, Path()).bucket
  if kind in ('', 'in place') or not _urls(value):
    return value
  makes_runs = kind == 'runs' and not given.get('expected')
  everything = kind == 'folder' or makes_runs or _imports(flag, given)
  parts = value.split(',') if isinstance(value, str) else value
  folders = [
    stack.enter_context(buckets.copied(part, everything=everything)) if '://' in part else part
    for part in parts
  ]
  if makes_runs:
    stack.enter_context(buckets.leased(folders[0]))
    buckets.refetched(folders[0])
  return ','.join(folders) if isinstance(value, str) else folders


def _imports(flag: str, given: dict[str, Any]) -> bool:
  """Whether a flag names the run that a Hugging Face model becomes."""
  return flag == 'workdir' and bool(given.get('from_hf'))


def _urls(value: Any) -> list[str]:
  """The URLs in the value of a flag, which may be a comma list."""
  parts = value.split(',') if isinstance(value, str) else value
  if not isinstance(parts, list):
    return []
  return [part for part in parts if isinstance(part, str) and '://' in part]


def _check_urls(paths: Paths, given: dict[str, Any]) -> None:
  """Refuses URLs where only paths work, before anything waits for a network."""
  for flag, kind in paths.items():
    value = given.get(flag)
    # --text may also be a text, which may hold anything.
    if flag == 'text' or not (urls := _urls(value)):
      continue
    shown = value if isinstance(value, str) else ','.join(value or [])
    if not kind.bucket:
      raise UsageError(
        f'--{flag}={shown}: must be a path, not a URL; mount the bucket '
        '(gcsfuse), or copy from and to it (gcloud storage rsync)'
      )
    for url in urls:
      if not url.startswith((*files.BUCKETS,)):
        raise UsageError(
          f'--{flag}={shown}: {url} is not in a bucket that we can read; give '
          f'a URL that begins with {" or ".join(files.BUCKETS)}, or a path'
        )
    if flag == 'workdir' and given.get('distributed') and not all(map(buckets.in_place, urls)):
      raise UsageError(
        f'--{flag}={shown}: several hosts write one checkpoint together, which '
        'works in gs:// and in a folder that all of them share; give one'
      )


def _check_apart(paths: Paths, given: dict[str, Any]) -> None:
  """Refuses to write what another flag names to be read."""

  def place(path: str) -> str:
    local = files.is_local(path)
    return os.path.realpath(path) if local else path.rstrip('/')

  for flag, other in itertools.product(paths, paths):
    pair = given.get(flag), given.get(other)
    if (paths[flag].written and not paths[other].written) or (
      (flag, other) == ('workdir', 'from_hf')
    ):
      written, read = (x if isinstance(x, str) else '' for x in pair)
      for part in filter(None, read.split(',')):
        if written and place(written) == place(part):
          raise UsageError(
            f'--{flag}={written}: is what --{other} names, and would be '
            'overwritten; give another path'
          )


def _of_a_flag(error: OSError, paths: Paths, given: dict[str, Any]) -> str:
  """What is wrong with the path that a flag gives; '' if none gives it."""
  if error.errno not in _OF_PATHS:
    return ''
  named = [
    os.path.abspath(os.fsdecode(name))
    for name in (error.filename, error.filename2)
    if isinstance(name, str | bytes)
  ]
  for flag in paths:
    value = given.get(flag)
    for part in value.split(',') if isinstance(value, str) else ():
      path = os.path.abspath(part)
      # The path, what is in it, its temporary name, or a folder around it.
      if any(n.startswith(path) or path.startswith(f'{n}/') for n in named):
        why = os.strerror(error.errno).lower()
        return f'--{flag}={part}: {error.filename}: {why}; give another path'
  return ''


def _not_written(error: BaseException | None, paths: Paths, given: dict[str, Any]) -> str:
  """What an error says of a full disk, and the remedy; '' if it does not."""
  if error is None:
    return ''
  number, text = getattr(error, 'errno', None), str(error)
  if number not in _NOT_WRITTEN:
    number = next((n for n in _NOT_WRITTEN if os.strerror(n) in text), None)
  if number is None:
    return _not_written(error.__cause__ or error.__context__, paths, given)
  # TensorStore quotes the path.
  quoted = re.search(r'"(/[^"]+)"', text)
  path = getattr(error, 'filename', None) or (quoted and quoted[1])
  path = os.fsdecode(path) if isinstance(path, str | bytes) else _full(paths, given)
  why = os.strerror(number).lower()
  return printable(f'{buckets.shown(path)}: cannot be written: {why}; {_NOT_WRITTEN[number]}')


def _full(paths: Paths, given: dict[str, Any]) -> str:
  """What lies on a full disk, where an error does not name what it wrote."""
  places = {}
  if os.path.isfile('/dev/stdout'):  # else it is a pipe, or a terminal
    places['standard output'] = '/dev/stdout'
  for flag in paths:
    for part in str(given.get(flag) or '').split(','):
      if part and files.is_local(part):
        places[f'--{flag}={part}'] = os.path.abspath(part)
  places['the temporary folder (TMPDIR)'] = tempfile.gettempdir()
  for name, path in places.items():
    while not os.path.exists(path):
      path = os.path.dirname(path)
    found = os.statvfs(path)
    if found.f_bavail * found.f_frsize < _FULL:
      return name
  return 'a file'


def _help(name: str, module: ModuleType, values: Flags) -> str:
  lines = [f'gpt-jax {name}: {(module.__doc__ or "").strip()}', '', 'Flags:']
  for flag in sorted(
    values.get_flags_for_module(sys.argv[0]) or [values[f] for f in values], key=lambda f: f.name
  ):
    default = '' if flag.default is None else f' (default: {flag.default})'
    lines.append(f'  --{flag.name}: {flag.help}{default}')
  return '\n'.join(lines)
