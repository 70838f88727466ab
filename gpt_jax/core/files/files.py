# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small files in a folder: a local path, or a URL `gs://b/p` or `s3://b/p`.

TensorStore's key-value stores do the work: on a local disk a write goes to a
temporary name, is synced and then renamed, so a file is whole or absent. What a
bucket answers with 429 or 5xx, or not to its end, is asked again, with growing
waits.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import pwd
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from etils import epy

from gpt_jax.core.files import schema
from gpt_jax.core.spec import FailedError, UsageError

with epy.lazy_imports():
  import tensorstore as ts

# Chunks read lately, of all token stores of the process together.
_CACHE_BYTES = 1 << 28
# Seconds until a URL that does not answer is reported, and until one that never
# did is given up. TensorStore alone tries again for a quarter of an hour.
_REPORTED, _GIVEN_UP = 10.0, 120.0
_answered: set[str] = set()  # buckets
# Where folders may be, and how to log in there.
BUCKETS = {
  'gs://': 'gcloud auth application-default login',
  's3://': 'aws sso login, or AWS_ACCESS_KEY_ID and its fellows',
}
# How a bucket says that it does not take the credentials. S3's answers to HEAD,
# which TensorStore sends before a write on a condition, have no text: 400 then
# stands for an expired token.
_DENIED = re.compile(
  r'PERMISSION_DENIED|UNAUTHENTICATED|AccessDenied|Expired\w*|Invalid\w*Token'
  r'|InvalidAccessKeyId|SignatureDoesNotMatch'
  r"|http_response_code='40[13]'|(?<=^Unknown \[)http_response_code='400'"
)
# And that all attempts have failed, in TensorStore's words.
_UNREACHED = re.compile('retry attempts failed|UNAVAILABLE|DEADLINE_EXCEEDED')

# Bytes of an object that are read at once. The first are few: what a server
# answers with a Content-Encoding is decompressed in memory, with gzip to a
# thousand times its size, before it can be told from a plain answer.
_FIRST, _BLOCK = 1 << 18, 1 << 24
_SIZE = re.compile(r'total size (\d+)')

log = logging.getLogger('gpt_jax')


class DeniedError(UsageError):
  """A bucket does not take the credentials, or no longer."""


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
  except BaseException as e:
    with contextlib.suppress(FileNotFoundError):
      os.unlink(temporary)
    if isinstance(e, OSError) and e.errno and e.filename is None:  # a full disk
      e.filename = path
    raise


def create(path: str) -> None:
  """Creates an empty file, and fails where anything has that name."""
  os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def owner(path: str) -> str:
  """The name of the user that a file or folder belongs to."""
  uid = os.lstat(path).st_uid
  try:
    return pwd.getpwuid(uid).pw_name
  except KeyError:  # as in a container
    return f'user {uid}'


def replaceable(folder: str) -> str:
  """Why other users can replace what a folder holds; '' if none can.

  Whoever owns it or a folder around it can, or may write to one of these that
  has no sticky bit. Root can anyway.
  """
  path = os.path.realpath(folder)
  while True:
    found = os.stat(path)
    if found.st_uid not in (0, os.geteuid()):
      return f'{path} belongs to {owner(path)}; name a folder of your own'
    group = found.st_mode & stat.S_IWGRP and found.st_gid
    for writable, who, mode in (
      (found.st_mode & stat.S_IWOTH, 'all users', 'o-w'),
      (group, 'other users of its group', 'g-w'),
    ):
      if writable and not found.st_mode & stat.S_ISVTX:
        return f'{who} may write to {path}; chmod {mode} it, or name a folder of your own'
    if path == os.path.dirname(path):
      return ''
    path = os.path.dirname(path)


def make_own_folder(folder: str, field: str) -> None:
  """Makes a folder that no other user may look into or write to.

  Args:
    folder: is made when missing.
    field: what names another place, for the error.
  """
  os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
  with contextlib.suppress(FileExistsError):
    os.mkdir(folder, 0o700)
  found = os.lstat(folder)
  if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
    is_folder = stat.S_ISDIR(found.st_mode)
    what = f'one of {owner(folder)}' if is_folder else 'none'
    raise UsageError(
      f'{folder}: should be a folder of yours, and is {what}; remove it, or '
      f'name another place by {field}'
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


def write(folder: str, name: str, data: bytes) -> bytes:
  """Writes a file that is whole or absent, whenever the process dies.

  Returns:
    Its version, for `read_versioned`.
  """
  return _wait(folder, _store(folder).write(name, data)).generation


class Versioned(NamedTuple):
  """A file as it was read."""

  data: bytes | None  # None: there is none, or it is as it was
  version: bytes
  changed: bool


def read_versioned(folder: str, name: str, known: bytes = b'') -> Versioned:
  """Reads a file and its version, unless it still has the version `known`."""
  store = _store(folder)
  if known:
    result = _wait(folder, store.read(name, if_not_equal=known))
  else:
    result = _wait(folder, store.read(name))
  found = result.value if result.state == 'value' else None
  return Versioned(found, result.stamp.generation, changed=result.state != 'unspecified')


def download(folder: str, name: str, path: str, known: bytes) -> Versioned:
  """Like `read_versioned`, of a bucket, into a file and a part at a time.

  Args:
    path: is written if there is an object and it differs from `known`.

  Returns:
    Without data; its version is b'' if there is no object.
  """
  store, result = _store(folder), None
  with contextlib.ExitStack() as stack:
    file, version, size = None, b'', _FIRST
    while result is None or len(result.value) == size:
      at = file.tell() if file else 0
      size = _BLOCK if at else _FIRST
      result = _part(folder, store, name, slice(at, at + size), known)
      if result is None:  # the last part was whole
        break
      if result.state != 'value':
        changed = result.state != 'unspecified'
        return Versioned(None, b'' if changed else known, changed)
      if file is None:
        file, version = stack.enter_context(open(path, 'wb')), None
      if version not in (None, result.stamp.generation):
        raise FailedError(
          f'{join(folder, name)}: was written while it was read; give the same command again'
        )
      version = result.stamp.generation
      file.write(result.value)
  return Versioned(None, version or b'', True)


def _part(folder: str, store: 'ts.KvStore', name: str, part: slice, known: bytes) -> Any:
  """Reads a part of an object, up to its end; None: it ends before."""
  how: dict[str, Any] = {'if_not_equal': known} if known else {}
  try:
    return _wait(folder, store.read(name, byte_range=part, **how))
  except ValueError as e:
    # TensorStore refuses a part that reaches beyond the end, and names that.
    size = _SIZE.search(str(e))
    if not str(e).startswith('OUT_OF_RANGE'):
      raise
    error = e
  if size is None or int(size[1]) <= part.start:
    return None if part.start else _wait(folder, store.read(name, **how))
  part = slice(part.start, int(size[1]))
  with contextlib.suppress(ValueError):
    result = _wait(folder, store.read(name, byte_range=part, **how))
    if result.state != 'value' or len(result.value) == part.stop - part.start:
      return result
  raise UsageError(
    f'{join(folder, name)}: is not answered as it is stored, as where the '
    'bucket holds it with a Content-Encoding such as gzip; store it without'
  ) from error


def write_versioned(folder: str, name: str, data: bytes, version: bytes) -> bytes | None:
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
  if folder.startswith('gs://'):
    # TensorStore takes a refusal for a list without entries; not so of a file.
    _wait(folder, store.read('.none'))
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
    try:
      result = future.result(timeout=_REPORTED)
    except TimeoutError:
      log.warning('%s: no answer for %g s; still trying', bucket, _REPORTED)
      left = None if bucket in _answered else _GIVEN_UP - _REPORTED
      result = future.result(timeout=left)
  except TimeoutError as e:
    raise UsageError(
      f'{folder}: no answer within {_GIVEN_UP:g} s; look at the network and '
      f'at the credentials ({_login(folder)}), or give a local folder'
    ) from e
  except ValueError as e:
    check_taken(folder, e)
    raise
  _answered.add(bucket)
  return result


def check_taken(folder: str, error: ValueError) -> None:
  """Raises `DeniedError` if a bucket answered that it refuses the credentials.

  TensorStore renews those that it can renew.
  """
  denied = None if is_local(folder) else _DENIED.search(str(error))
  if denied:
    raise DeniedError(
      f'{folder}: the bucket does not take the credentials ({denied[0]}); '
      f'renew them ({_login(folder)}), or ask for the right to use this '
      'folder, and give the same command again'
    ) from error


def check_reached(folder: str, error: ValueError) -> None:
  """Raises if a read failed because of the bucket, not of what is in it."""
  check_taken(folder, error)
  if not is_local(folder) and _UNREACHED.search(str(error)):
    why = str(error).partition('\n')[0].partition(' [')[0]
    raise FailedError(
      f'{folder}: the bucket does not answer ({why}); give the same command again, which goes on'
    ) from error


def _login(folder: str) -> str:
  return next((to for url, to in BUCKETS.items() if folder.startswith(url)), '')


def _spec(folder: str) -> str | dict[str, Any]:
  if is_local(folder):
    check_path(folder)
    return {'driver': 'file', 'path': f'{os.path.abspath(folder)}/'}
  url = f'{folder.rstrip("/")}/'
  if not url.startswith('s3://'):
    return url
  bucket, _, path = url.removeprefix('s3://').partition('/')
  spec: dict[str, Any] = {'driver': 's3', 'bucket': bucket, 'path': path}
  # The variables of Amazon's own tools; TensorStore knows no endpoint.
  variables = 'AWS_ENDPOINT_URL_S3', 'AWS_ENDPOINT_URL'
  if endpoint := next(filter(None, map(os.environ.get, variables)), ''):
    region = os.environ.get('AWS_REGION') or 'us-east-1'
    spec |= {'endpoint': endpoint, 'aws_region': region}
  if os.environ.get('AWS_ACCESS_KEY_ID'):  # looks for no files, nor warns
    spec['aws_credentials'] = {'type': 'environment'}
  return spec


def _store(folder: str) -> 'ts.KvStore':
  spec = _spec(folder)
  try:
    return ts.KvStore.open(spec, context=_context(True)).result()
  except ValueError as e:
    why = str(e).partition(' [')[0]
    raise UsageError(f'{folder}: no folder can be there: {why}; give another') from e


def check_regular(path: str, *, remedy: str) -> None:
  """Refuses what is there and no file: a FIFO or a device may never end."""
  if os.path.exists(path) and not os.path.isfile(path):
    kind = 'a folder' if os.path.isdir(path) else 'a device, FIFO or socket'
    raise UsageError(f'{path}: is {kind}, not a file; {remedy}')


def read_regular(path: str, *, remedy: str) -> bytes | None:
  """Reads a file of a folder that others made; None where there is none."""
  check_regular(path, remedy=remedy)
  try:
    with open(path, 'rb') as file:
      return file.read()
  except FileNotFoundError:
    return None
  except OSError as e:
    raise UsageError(f'{path}: cannot be read: {e.strerror}; {remedy}') from e


def read_json(path: str, *, remedy: str, needs: tuple[str, ...] = (), kind: Any = dict) -> Any:
  """Reads a JSON object that we wrote, and that a crash may have damaged.

  Args:
    path: of the file; `FileNotFoundError` if there is none.
    remedy: what to do if it is damaged.
    needs: keys that the object must have.
    kind: of the object, if it must fit a type of `schema`.
  """
  check_regular(path, remedy=remedy)
  with open(path, 'rb') as f:
    parsed = parse(f.read(), path, remedy=remedy, needs=needs)
  if said := schema.problem(parsed, kind):
    raise UsageError(f'{path}: is damaged, {said}; {remedy}')
  return parsed


def parse(data: bytes, path: str, *, remedy: str, needs: tuple[str, ...] = ()) -> Any:
  """Like `read_json`, from the bytes of the file."""
  try:
    found = json.loads(data)
  except (ValueError, RecursionError) as e:
    raise UsageError(f'{path}: is damaged, not JSON ({e}); {remedy}') from e
  if not isinstance(found, dict):
    raise UsageError(f'{path}: is damaged, not a JSON object; {remedy}')
  if missing := [key for key in needs if key not in found]:
    raise UsageError(f'{path}: is damaged, it lacks {", ".join(missing)}; {remedy}')
  return found


def digest(value: Any) -> str:
  """The sha256 of a JSON value."""
  return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def sealed(fields: dict[str, Any]) -> str:
  """The text of a JSON object with its digest, `sha256`."""
  return json.dumps({**fields, 'sha256': digest(fields)}, indent=2) + '\n'


def unsealed(fields: dict[str, Any], path: str, *, remedy: str) -> dict[str, Any]:
  """The fields without their digest, which an older or handwritten file need not have."""
  if fields.pop('sha256', None) not in (None, digest(fields)):
    raise UsageError(f'{path}: is damaged or was changed; {remedy}')
  return fields
