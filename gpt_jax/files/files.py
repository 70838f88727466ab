# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small files in a folder that is a local path or a URL such as `gs://b/p`.

TensorStore's key-value stores do the work: on a local disk a write goes to a
temporary name, is synced and then renamed, so a file is whole or absent.
"""

import contextlib
import fcntl
import functools
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from typing import Any

from etils import epy

from gpt_jax.spec import UsageError

with epy.lazy_imports():
  import tensorstore as ts

# Chunks read lately, of all token stores of the process together.
_CACHE_BYTES = 1 << 28
# Seconds until a URL that does not answer is reported, and until one that never
# did is given up. TensorStore alone tries again for a quarter of an hour.
_REPORTED, _GIVEN_UP = 10.0, 120.0
_answered: set[str] = set()  # buckets

log = logging.getLogger('gpt_jax')


def join(folder: str, name: str) -> str:
  """Returns the path or URL of `name` inside `folder`."""
  return f'{folder.rstrip("/")}/{name}'


def inside(name: object, *, of: str) -> str:
  """Returns a relative path that others gave, if it stays inside its folder.

  Args:
    of: where the name was found, for the message.
  """
  if (
    isinstance(name, str)
    and not set(name.split('/')) & {'', '.', '..'}
    and not set(name) & {'\\', '\0'}
  ):
    return name
  raise UsageError(
    f'{of}: names the file {name!a}, which does not lie inside a folder: '
    'names from outside are relative, without .., backslash and NUL; do not '
    'trust where it comes from, or remove that name'
  )


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
  """Yields the name of a temporary file, which then replaces `path`.

  Whenever the process dies, `path` is the old file or the new one, on the disk.
  The temporary name cannot be guessed and must not exist, so that no link that
  another user planted in the folder is followed.
  """
  temporary = f'{path}.{secrets.token_hex(8)}.tmp'
  create(temporary)
  try:
    yield temporary
    with open(temporary, 'rb') as file:
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(FileNotFoundError):
      os.unlink(temporary)
    raise


def create(path: str) -> None:
  """Creates an empty file, and fails where anything has that name."""
  os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def make_own_folder(folder: str) -> None:
  """Makes a folder that no other user may look into or write to."""
  os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
  with contextlib.suppress(FileExistsError):
    os.mkdir(folder, 0o700)
  found = os.lstat(folder)
  if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
    raise UsageError(
      f'{folder}: is to hold temporary data, and is not a folder of yours; '
      'remove it, or name another folder by the variable TMPDIR'
    )
  os.chmod(folder, 0o700)


def is_local(folder: str) -> bool:
  """Tells a path from a URL."""
  return '://' not in folder


def check_path(folder: str) -> None:
  """Refuses a path that TensorStore cannot take, or takes for another."""
  if not is_local(folder):
    return
  path, problem = os.path.abspath(folder), ''
  if '\\' in path:
    problem = 'has a backslash'
  elif '\0' in path:
    problem = 'has a NUL character'
  elif os.fsencode(path).decode(errors='replace') != path:
    problem = 'is not UTF-8'
  if problem:
    raise UsageError(
      f'{path}: this path {problem}, and arrays cannot be saved in it; rename '
      'the folder, or give another'
    )


@functools.cache
def _context(keep: bool) -> 'ts.Context':
  """What all arrays of the process share; `keep`: with a cache of chunks."""
  cache = {'cache_pool': {'total_bytes_limit': _CACHE_BYTES if keep else 0}}
  return ts.Context(cache, None if keep else _context(True))


def open_array(folder: str, *, keep: bool = True, **spec) -> 'ts.TensorStore':
  """Opens the zarr3 array in `folder`; `ValueError` if none can be read.

  Args:
    keep: whether chunks that were read or written stay in memory for a while.
  """
  spec = {'driver': 'zarr3', 'kvstore': _spec(folder)} | spec
  return ts.open(spec, context=_context(keep)).result()


def read(folder: str, name: str) -> bytes | None:
  """Reads a file; None where there is none."""
  try:
    result = _wait(folder, _store(folder).read(name))
  except ValueError as e:
    if not is_local(folder):  # the network may be at fault, not the user
      raise
    why = str(e).partition('\n')[0].partition(' [')[0]
    raise UsageError(f'{join(folder, name)}: cannot be read: {why}') from e
  return result.value if result.state == 'value' else None


def write(folder: str, name: str, data: bytes):
  """Writes a file that is whole or absent, whenever the process dies."""
  _wait(folder, _store(folder).write(name, data))


def read_versioned(folder: str, name: str) -> tuple[bytes | None, bytes]:
  """A file (None: there is none), and its version."""
  result = _wait(folder, _store(folder).read(name))
  found = result.value if result.state == 'value' else None
  return found, result.stamp.generation


def write_versioned(
  folder: str, name: str, data: bytes, version: bytes
) -> bytes | None:
  """Writes a file if it still has a version; returns the new one, or None."""
  written = _store(folder).write(name, data, if_equal=version)
  return _wait(folder, written).generation or None


def names(folder: str, without: Iterable[str] = ()) -> list[str]:
  """Lists the files below `folder`, as sorted paths relative to it.

  Args:
    without: folders in it that are skipped.
  """
  store, found, start = _store(folder), [], ''
  for name in sorted(f'{name}/' for name in without):
    found += _wait(folder, store.list(ts.KvStore.KeyRange(start, name)))
    start = f'{name[:-1]}0'  # '0' follows '/'
  found += _wait(folder, store.list(ts.KvStore.KeyRange(start)))
  return sorted(key.decode() for key in found)


def delete(folder: str, name: str):
  """Deletes the file `name` and all files below a folder of that name."""
  store = _store(folder)
  _wait(folder, store.delete_range(ts.KvStore.KeyRange(name, f'{name}\0')))
  below = ts.KvStore.KeyRange(f'{name}/', f'{name}0')  # '0' follows '/'
  _wait(folder, store.delete_range(below))


@contextlib.contextmanager
def exclusive(folder: str, name: str) -> Iterator[None]:
  """Keeps the file `name` in a folder while the folder is being written.

  The file is removed only when the body ends without an error, so one that is
  left marks an unfinished folder. On a local disk a second process waits here
  until the first has ended; to a URL only one process may write.
  """
  if not is_local(folder):
    write(folder, name, b'')
    yield
    delete(folder, name)
    return
  check_path(folder)
  os.makedirs(folder, exist_ok=True)
  path = os.path.join(folder, name)
  with open(path, 'ab') as file:
    fcntl.flock(file, fcntl.LOCK_EX)  # freed by the system when we die
    yield
    # A process that waited for us may have removed it.
    with contextlib.suppress(FileNotFoundError):
      os.unlink(path)


def _wait(folder: str, future: 'ts.Future') -> Any:
  """The result; a slow bucket is logged, a silent one is an error."""
  if is_local(folder):
    return future.result()
  bucket = '/'.join(folder.split('/')[:3])
  try:
    result = future.result(timeout=_REPORTED)
  except TimeoutError:
    log.warning('%s: no answer for %g s; still trying', bucket, _REPORTED)
    left = None if bucket in _answered else _GIVEN_UP - _REPORTED
    try:
      result = future.result(timeout=left)
    except TimeoutError as e:
      raise UsageError(
        f'{folder}: no answer within {_GIVEN_UP:g} s; look at the network and '
        'at the credentials (gcloud auth application-default login), or give '
        'a local folder'
      ) from e
  _answered.add(bucket)
  return result


def _spec(folder: str) -> str | dict[str, str]:
  if is_local(folder):
    check_path(folder)
    return {'driver': 'file', 'path': f'{os.path.abspath(folder)}/'}
  return f'{folder.rstrip("/")}/'


def _store(folder: str) -> 'ts.KvStore':
  spec = _spec(folder)
  try:
    return ts.KvStore.open(spec, context=_context(True)).result()
  except ValueError as e:
    why = str(e).partition(' [')[0]
    raise UsageError(f'{folder}: no folder can be there: {why}') from e


def read_json(path: str, *, remedy: str, needs: tuple[str, ...] = ()) -> Any:
  """Reads a JSON object that we wrote, and that a crash may have damaged.

  Args:
    path: of the file; `FileNotFoundError` if there is none.
    remedy: what to do if it is damaged.
    needs: keys that the object must have.
  """
  with open(path, 'rb') as f:
    return parse(f.read(), path, remedy=remedy, needs=needs)


def parse(
  data: bytes, path: str, *, remedy: str, needs: tuple[str, ...] = ()
) -> Any:
  """Like `read_json`, from the bytes of the file."""
  try:
    found = json.loads(data)
  except (ValueError, RecursionError) as e:
    raise UsageError(f'{path}: is damaged, no JSON ({e}); {remedy}') from e
  if not isinstance(found, dict):
    raise UsageError(f'{path}: is damaged, no JSON object; {remedy}')
  if missing := [key for key in needs if key not in found]:
    raise UsageError(
      f'{path}: is damaged, it lacks {", ".join(missing)}; {remedy}'
    )
  return found
