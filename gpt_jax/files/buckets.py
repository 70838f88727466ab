# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run's folder in a bucket, and a local copy of its small files.

Checkpoints and the token store are written to the bucket and read from it. All
other files (config, metrics, tokenizer, plots, samples) are read and written in
a local folder of this process, and uploaded: files that are written as a whole
at once (`uploaded`), so that what a checkpoint needs is there before it is; the
rest every half minute and at the end. A process that is killed loses no more
than that.

A bucket has no locks: `leased` holds an object that its process renews.
"""

import contextlib
import importlib.util
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator

from gpt_jax.files import files
from gpt_jax.spec import UsageError, install

# Not copied: folders that stay in the bucket, traces, and TensorBoard's files,
# which only grow.
_STAY = ('checkpoints', 'checkpoints_damaged', 'data', 'profile', 'tensorboard')
LEASE = '.lease'
# Seconds between uploads (and renewals of the lease), between looks at another
# process's lease, and until a lease without renewal counts as abandoned.
EVERY, LOOK, DEAD = 30.0, 2.0, 90.0

log = logging.getLogger('gpt_jax')


class _Copy:
  """The local copy, `folder`, of the small files of the run at `url`."""

  def __init__(self, url: str, folder: str):
    self.url, self.folder = url, folder
    # What the bucket has, by name: when it changed here, and its size.
    self._known: dict[str, tuple[int, int]] = {}
    self._lock = threading.RLock()
    self._lease: tuple[bytes, bytes] | None = None  # its text and generation

  def fetch(self) -> None:
    """Makes the copy equal to the bucket."""
    with self._lock:
      shutil.rmtree(self.folder, ignore_errors=True)
      os.makedirs(self.folder)
      self._known = {}
      names = files.names(self.url, without=_STAY)
      # An object whose name ends with / is how some tools make a folder.
      names = [n for n in names if n and not n.endswith('/') and n != LEASE]
      for name in names:
        files.inside(name, of=self.url)
      for name in names:
        data = files.read(self.url, name)
        if data is None:
          continue  # deleted since the listing
        path = os.path.join(self.folder, name)
        try:
          os.makedirs(os.path.dirname(path), exist_ok=True)
          with open(path, 'xb') as file:
            file.write(data)
        except (FileExistsError, NotADirectoryError) as e:
          raise UsageError(
            f'{self.url}: holds a file and a folder of one name, at {name}; '
            'remove one of them'
          ) from e
        self._known[name] = _mark(path)

  def upload(self) -> None:
    """Uploads changed files, and deletes in the bucket what was deleted here.

    Raises:
      RuntimeError: another process has the run now.
    """
    with self._lock:
      self.renew()
      if not os.path.isdir(self.folder):
        return
      for name in self._names():
        self.send(name)
      for name in [*self._known]:
        if not os.path.exists(os.path.join(self.folder, name)):
          files.delete(self.url, name)
          del self._known[name]

  def send(self, name: str) -> None:
    """Uploads a file if it differs from the bucket's."""
    path = os.path.join(self.folder, name)
    with self._lock, contextlib.suppress(FileNotFoundError):
      # Before it is read: a later change then gives another mark.
      mark = _mark(path)
      if mark == self._known.get(name):
        return
      with open(path, 'rb') as file:
        files.write(self.url, name, file.read())
      self._known[name] = mark

  def take(self) -> None:
    """Takes the lease of the run."""
    text = f'{socket.gethostname()} {uuid.uuid4()}'.encode()
    found, generation = files.read_versioned(self.url, LEASE)
    if found is not None:
      host = found.decode(errors='replace').partition(' ')[0]
      log.info(
        '%s: a process on %s had it; waiting %g s for a sign of it',
        *(self.url, host, DEAD),
      )
      before, until = generation, time.monotonic() + DEAD
      while found is not None and time.monotonic() < until:
        time.sleep(LOOK)
        found, generation = files.read_versioned(self.url, LEASE)
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
      found, version = files.read_versioned(self.url, LEASE)
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

  def _names(self) -> Iterator[str]:
    for folder, _, names in os.walk(self.folder):
      for name in sorted(names):
        if not name.endswith(('.tmp', '.lock')):
          yield os.path.relpath(os.path.join(folder, name), self.folder)


# The copies of this process, by their folders.
_copies: dict[str, _Copy] = {}


@contextlib.contextmanager
def copied(url: str) -> Iterator[str]:
  """Yields a local copy of a run's folder, which is removed at the end.

  Args:
    url: `gs://BUCKET/FOLDER`; it may not exist yet.

  Raises:
    UsageError: it cannot be reached.
    RuntimeError: not all could be uploaded; the folder stays.
  """
  if importlib.util.find_spec('gcsfs') is None:
    raise UsageError(
      f'{url}: checkpoints in a bucket need gcsfs; run {install("gcs")}'
    )
  url = url.rstrip('/')
  files.inside(url.partition('://')[2], of=url)
  made = tempfile.mkdtemp(prefix='gpt_jax_')
  copy = _Copy(url, os.path.join(made, url.rpartition('/')[2]))
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
        raise RuntimeError(
          f'{copy.url}: the last files of the run were not uploaded ({e}); '
          f'they are in {copy.folder}'
        ) from e
      copy.remove()
  finally:
    log.removeFilter(in_log)
    _copies.pop(copy.folder, None)


def leave() -> None:
  """For a process that ends at once: uploads, and gives leases back."""
  for copy in _copies.values():
    copy.leave()


def home(folder: str) -> str:
  """Where a run's checkpoints and token store are: for a copy, its URL."""
  copy = _copies.get(folder)
  return folder if copy is None else copy.url


def shown(path: str) -> str:
  """A path as users know it: that in the bucket instead of the copy's."""
  for folder, copy in _copies.items():
    path = path.replace(folder, copy.url)
  return path


def write_atomically(path: str, text: str) -> None:
  """Replaces a file as a whole: a crash leaves the old one or the new one."""
  with (
    files.replacing(path) as temporary,
    open(temporary, 'w', encoding='utf-8') as f,
  ):
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
  """Keeps other processes from training in the run of a copy."""
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
  """What changes when the file does."""
  found = os.stat(path)
  return found.st_mtime_ns, found.st_size
