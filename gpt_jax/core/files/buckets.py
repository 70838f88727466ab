# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A folder in a bucket, and a local copy of it while a command runs.

The command reads and writes the copy. Changed files are uploaded: those that
are written as a whole at once (`uploaded`), so that what a checkpoint needs is
there before it is; the rest every half minute and at the end. A process that is
killed loses no more than that.

Large things of a run in gs:// are not copied: its checkpoints and token store
are written to the bucket and read from it. All of any other folder is copied:
of a run in s3://, where Orbax cannot write, of several runs (`compare`), of a
Hugging Face model.

A bucket has no locks: `leased` holds an object that its process renews.
"""

import contextlib
import importlib.util
import logging
import os
import re
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator

from gpt_jax.core.files import files
from gpt_jax.core.spec import UsageError, install

# Not fetched: traces, and TensorBoard's files, which only grow; and what stays
# in the bucket, where the copy is not of everything.
_ONLY_SENT = ('profile', 'tensorboard')
_STAY = ('checkpoints', 'checkpoints_damaged', 'data')
# Files that are not finished, in the names of this package, TensorStore, Orbax.
_UNFINISHED = ('.tmp', '.lock', '.__lock')
_UNSAVED = 'orbax-checkpoint-tmp'
# Makes a checkpoint count.
_MARKER = 'commit_success.txt'
LEASE = '.lease'
# Seconds between uploads (and renewals of the lease), between looks at another
# process's lease, and until a lease without renewal counts as abandoned.
EVERY, LOOK, DEAD = 30.0, 2.0, 90.0

log = logging.getLogger('gpt_jax')


class _Copy:
  """The local copy, `folder`, of what is at `url`."""

  def __init__(self, url: str, folder: str, everything: bool):
    self.url, self.folder, self.everything = url, folder, everything
    # What the bucket has, by name: the mark of the local file, and its version.
    self._known: dict[str, tuple[tuple[int, int], bytes]] = {}
    self._lock = threading.RLock()
    self._lease: tuple[bytes, bytes] | None = None  # its text and generation

  def fetch(self) -> None:
    """Makes the copy equal to the bucket; reads only what differs."""
    with self._lock:
      os.makedirs(self.folder, exist_ok=True)
      without = _ONLY_SENT if self.everything else _ONLY_SENT + _STAY
      names = files.names(self.url, without=without)
      # An object whose name ends with / is how some tools make a folder.
      names = [n for n in names if n and not n.endswith('/') and n != LEASE]
      for name in names:
        files.inside(name, of=self.url)
      half = _half(names)
      names = [name for name in names if name not in half]
      if self._lease is not None:  # nobody is uploading them now
        for name in half:
          files.delete(self.url, name)
      for name in {*self._names()} - {*names}:
        os.unlink(os.path.join(self.folder, name))
        self._known.pop(name, None)
      for name in names:
        self._fetch(name)

  def _fetch(self, name: str) -> None:
    path = os.path.join(self.folder, name)
    mark, version = self._known.pop(name, (None, b''))
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
      if _mark(path) != mark:
        os.unlink(path)
    if not os.path.exists(path):
      version = b''
    part = f'{path}.tmp'  # half of a file must not be uploaded
    try:
      os.makedirs(os.path.dirname(path), exist_ok=True)
      found = files.download(self.url, name, part, version)
      if found.changed and found.version:
        os.replace(part, path)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as e:
      raise UsageError(
        f'{self.url}: holds a file and a folder of one name, at {name}; remove one of them'
      ) from e
    finally:
      with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(part)
    if not found.version:  # deleted since the listing
      with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
      return
    self._known[name] = _mark(path), found.version

  def upload(self, below: str = '') -> None:
    """Uploads changed files, and deletes in the bucket what was deleted here.

    Args:
      below: only in this folder of the copy.

    Raises:
      RuntimeError: another process has the run now.
    """
    with self._lock:
      self.renew()
      if not os.path.isdir(self.folder):
        return
      names = sorted(self._names(below), key=_order)
      for name in names:
        # Orbax may be deleting a checkpoint: without its files it gets none.
        if os.path.basename(name) != _MARKER or all(
          os.path.exists(os.path.join(self.folder, other))
          for other in names
          if other.startswith(os.path.dirname(name) + os.sep)
        ):
          self.send(name)
      gone = [
        name
        for name in self._known
        if name.startswith(below) and not os.path.exists(os.path.join(self.folder, name))
      ]
      for name in sorted(gone, key=_order, reverse=True):
        files.delete(self.url, name)
        del self._known[name]

  def send(self, name: str) -> None:
    """Uploads a file if it differs from the bucket's."""
    path = os.path.join(self.folder, name)
    with self._lock, contextlib.suppress(FileNotFoundError):
      # Before it is read: a later change then gives another mark.
      mark = _mark(path)
      if mark == self._known.get(name, (None,))[0]:
        return
      with open(path, 'rb') as file:
        self._known[name] = mark, files.write(self.url, name, file.read())

  def take(self) -> None:
    """Takes the lease of the run."""
    text = f'{socket.gethostname()} {uuid.uuid4()}'.encode()
    found, generation, _ = files.read_versioned(self.url, LEASE)
    if found is not None:
      host = found.decode(errors='replace').partition(' ')[0]
      log.info('%s: a process on %s had it; waiting %g s for a sign of it', self.url, host, DEAD)
      before, until = generation, time.monotonic() + DEAD
      while found is not None and time.monotonic() < until:
        time.sleep(LOOK)
        found, generation, _ = files.read_versioned(self.url, LEASE)
        if found is not None and generation != before:
          raise UsageError(
            f'--workdir={self.url}: another process, on {host}, is training '
            'in it; wait for its end, or give another --workdir'
          )
    made = self._write_lease(text, generation)
    if made is None:
      raise UsageError(
        f'--workdir={self.url}: another process has just begun to train in '
        'it; wait for its end, or give another --workdir'
      )
    self._lease = text, made

  def renew(self) -> None:
    """Renews the lease, which shows that this process is alive.

    Raises:
      RuntimeError: another process has taken it.
    """
    with self._lock:
      if self._lease is None:
        return
      text, generation = self._lease
      made = self._write_lease(text, generation)
      if made is None:
        raise RuntimeError(
          f'{self.url}: another process took the run over, as this one gave '
          f'no sign for {DEAD:g} s; nothing more is written to it'
        )
      self._lease = text, made

  def _write_lease(self, text: bytes, generation: bytes) -> bytes | None:
    """Writes the lease if it has that version; None: another process has it."""
    made = files.write_versioned(self.url, LEASE, text, generation)
    if made is None:
      # Our own write may have arrived without its answer; the repeated request
      # then found another version: ours.
      found, version, _ = files.read_versioned(self.url, LEASE)
      made = version if found == text else None
    return made

  def give_back(self) -> None:
    """Lets the next process begin without waiting."""
    with self._lock:
      if self._lease is not None:
        self.renew()
        files.delete(self.url, LEASE)
        self._lease = None

  def leave(self) -> None:
    """Uploads, returns the lease and removes the copy; logs what fails."""
    try:
      self.upload()
      self.give_back()
      self.remove()
    except Exception as e:
      _warn(self, e)

  def remove(self) -> None:
    """Removes the copy, which no upload must take for deletions."""
    with self._lock:
      shutil.rmtree(os.path.dirname(self.folder), ignore_errors=True)

  def _names(self, below: str = '') -> Iterator[str]:
    """The finished files in the copy, or in a folder of it."""
    for folder, _, names in os.walk(os.path.join(self.folder, below)):
      if _UNSAVED in folder:
        continue
      for name in names:
        if not name.endswith(_UNFINISHED):
          yield os.path.relpath(os.path.join(folder, name), self.folder)


def _order(name: str) -> tuple:
  """Uploads in this order leave nothing that is only half there, if one stops.

  Checkpoints come after the other files, one after the other. What is said of
  files comes after them: a manifest, the state of a preparation, a marker.
  """
  folders = name.split(os.sep)[:-1]
  last = (-len(folders), os.path.basename(name) == _MARKER, name)
  if not (step := _step(name)):
    return (False, '', 0, *last)
  return (True, os.path.dirname(step), int(os.path.basename(step)), *last)


def _step(name: str) -> str:
  """The folder of the checkpoint that a file is of; '': of none."""
  found = re.match(r'(.*/)?checkpoints/\d+(?=/)', name)
  return found[0] if found else ''


def _half(names: list[str]) -> set[str]:
  """Files of checkpoints whose upload was not ended."""
  whole = {_step(n) for n in names if n == f'{_step(n)}/{_MARKER}'} | {''}
  return {name for name in names if _step(name) not in whole}


# The copies of this process, by their folders.
_copies: dict[str, _Copy] = {}


@contextlib.contextmanager
def copied(url: str, *, everything: bool = False) -> Iterator[str]:
  """Yields a local copy of a folder, which is removed at the end.

  Args:
    url: `gs://BUCKET/FOLDER` or `s3://BUCKET/FOLDER`; it may not exist yet.
    everything: also the checkpoints and the token store, as always of s3://.

  Raises:
    UsageError: it cannot be reached.
    RuntimeError: not all could be uploaded; the folder stays.
  """
  everything = everything or not in_place(url)
  if not everything and importlib.util.find_spec('gcsfs') is None:
    raise UsageError(f'{url}: checkpoints in a bucket need gcsfs; run {install("gcs")}')
  url = url.rstrip('/')
  files.inside(url.partition('://')[2], of=url)
  made = tempfile.mkdtemp(prefix='gpt_jax_')
  copy = _Copy(url, os.path.join(made, url.rpartition('/')[2]), everything)
  stopped, in_log = threading.Event(), _Shown()

  def upload_regularly() -> None:
    while not stopped.wait(EVERY):
      try:
        copy.upload()
      except Exception as e:
        _warn(copy, e)

  thread = threading.Thread(target=upload_regularly, daemon=True)
  try:
    copy.fetch()
  except BaseException:
    copy.remove()
    raise
  _copies[copy.folder] = copy
  log.addFilter(in_log)
  thread.start()
  try:
    try:
      yield copy.folder
    except UsageError as e:
      raise UsageError(shown(str(e))) from e
    finally:
      stopped.set()
      thread.join()
      try:
        copy.upload()
      except Exception as e:
        kind = UsageError if isinstance(e, files.DeniedError) else RuntimeError
        raise kind(
          f'{copy.url}: the last files were not uploaded ({e}); they are in {copy.folder}'
        ) from e
      copy.remove()
  finally:
    log.removeFilter(in_log)
    _copies.pop(copy.folder, None)


def leave() -> None:
  """For a process that ends at once: uploads, and gives leases back."""
  for copy in _copies.values():
    copy.leave()


def in_place(url: str) -> bool:
  """Whether Orbax reads and writes checkpoints in a bucket."""
  return url.startswith('gs://')


def is_copy(folder: str) -> bool:
  """Whether a folder is the copy of one in a bucket."""
  return folder in _copies


def home(folder: str) -> str:
  """Where a run's checkpoints and token store are: for gs://, its URL."""
  copy = _copies.get(folder)
  return folder if copy is None or copy.everything else copy.url


def shown(path: str) -> str:
  """A path as users know it: that in the bucket instead of the copy's."""
  for folder, copy in _copies.items():
    path = path.replace(folder, copy.url)
  return path


def write_atomically(path: str, text: str) -> None:
  """Replaces a file as a whole: a crash leaves the old one or the new one."""
  with files.replacing(path) as temporary, open(temporary, 'w', encoding='utf-8') as f:
    f.write(text)
  uploaded(path)


def uploaded(path: str) -> None:
  """Uploads the file, or all of the folder, `path`, if it is in a copy.

  A failure is logged, and the upload is tried again later.

  Raises:
    RuntimeError: another process has the run now.
  """
  for folder, copy in _copies.items():
    try:
      if path == folder:
        copy.upload()
      elif path.startswith(f'{folder}{os.sep}') and os.path.isdir(path):
        copy.upload(os.path.relpath(path, folder))
      elif path.startswith(f'{folder}{os.sep}'):
        copy.send(os.path.relpath(path, folder))
    except ValueError as e:
      _warn(copy, e)


def refetched(folder: str) -> None:
  """Makes a copy equal to the bucket again; other folders stay as they are."""
  if copy := _copies.get(folder):
    copy.fetch()


@contextlib.contextmanager
def leased(folder: str) -> Iterator[None]:
  """Keeps other processes from training in the folder of a copy."""
  copy = _copies[folder]
  copy.take()
  try:
    try:
      yield
    finally:
      copy.upload()
  finally:
    copy.give_back()


class _Shown(logging.Filter):
  """The log names the run's folder, not the copy of it."""

  def filter(self, record: logging.LogRecord) -> bool:
    """Changes the text."""
    record.msg, record.args = shown(record.getMessage()), ()
    return True


def _warn(copy: _Copy, error: Exception) -> None:
  why = str(error).partition('\n')[0].partition(' [')[0]
  log.warning('%s: not uploaded yet, and tried again: %s', copy.url, why)


def _mark(path: str) -> tuple[int, int]:
  """A value that changes when the file does."""
  found = os.stat(path)
  return found.st_mtime_ns, found.st_size
