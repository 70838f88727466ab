# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A teacher's outputs for the rows of a token store, on disk.

  D/manifest.json   which rows and which teacher; written last, so that a folder
                    without it is incomplete
  D/ids             zarr3, uint16 or uint32 [rows * positions * k]
  D/log_probs       zarr3, float16 [rows * positions * (k + 1)]

A position has the teacher's k most probable tokens, and the natural logarithms
of their probabilities at the manifest's temperature; the last of k + 1 is that
of all other tokens together, or -inf. Float16 rounds a logarithm by at most one
part in 2,048: a probability of 0.9 by 0.005%, one of 1e-4 by 0.45%. As in the
token store, each chunk has a checksum that is read with it. Outputs are indexed
by the row's number in the store, so that they depend neither on the order of a
run nor on a resume.
"""

import dataclasses
import hashlib
import json
from typing import Any

import numpy as np
import tensorstore as ts

from gpt_jax.core.files import files
from gpt_jax.core.rows.rows import Keys
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens import manifest, store
from gpt_jax.core.tokens.store import ArrayWriter, as_bytes, token_dtype

NAME = 'manifest.json'
IDS, LOG_PROBS = 'ids', 'log_probs'
FORMAT_VERSION = 1
# Distinguishes this manifest from a token store's.
_KIND = 'teacher_outputs'
_AGAIN = 'write it again by gpt-jax teach'


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputRows:
  """The rows that have outputs: those of a run must equal those on disk."""

  store: str  # fingerprint of the token store
  rows: str  # `data.rows`
  length: int  # tokens of a row
  # See `objectives.base.Stored`.
  text: str
  places: str
  temperature: float
  top_k: int
  times: int
  positions: int  # number of positions of a row that have outputs
  num_rows: int
  seed: int  # of the run that draws the rows' masks; 0: nothing is random


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputsManifest:
  """The manifest."""

  rows: OutputRows
  teacher: str  # description, for people
  teacher_sha256: str  # of its parameters
  vocab_size: int  # of the teacher
  kept: float  # mean total probability of the k tokens
  crc32: dict[str, list[int]]  # of the blocks of each array

  @property
  def fingerprint(self) -> str:
    """The sha256 of rows, teacher and arrays."""
    entries = dataclasses.asdict(self)
    data = json.dumps(entries | {'teacher': ''}, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


class Writer:
  """Writes outputs in the order of the rows; can resume."""

  def __init__(self, folder: str, wanted: dict[str, Any], vocab_size: int):
    """Begins, or resumes outputs that were begun for the same `wanted`.

    Args:
      folder: a path or a URL.
      wanted: JSON values that identify these outputs.
    """
    self._folder, self._wanted = folder, wanted
    self._dtypes = {IDS: token_dtype(vocab_size), LOG_PROBS: 'float16'}
    try:
      state = store.read_state(folder, wanted)
      counts = json.loads(bytes(state['counts']))
      self.done, self._kept, self._places = counts
      self._arrays = self._open(state)
    except (store.StartOver, ValueError, KeyError):
      for name in (*self._dtypes, store.STATE):
        files.delete(folder, name)
      self.done, self._kept, self._places = 0, 0.0, 0.0
      self._arrays = self._open(None)

  def _open(self, state: dict[str, np.ndarray] | None):
    return {
      name: ArrayWriter(self._folder, name, dtype, state=state, key=name)
      for name, dtype in self._dtypes.items()
    }

  def add(self, ids_RPk: np.ndarray, log_probs_RPk: np.ndarray, weights_RP: np.ndarray) -> None:
    """Appends the outputs of the next rows.

    Args:
      ids_RPk: for R rows, P positions and k tokens.
      log_probs_RPk: [R, P, k + 1].
      weights_RP: 0 for padding.
    """
    self._arrays[IDS].add(ids_RPk.reshape(-1))
    self._arrays[LOG_PROBS].add(log_probs_RPk.astype(np.float16).reshape(-1))
    rest_RP = np.exp(log_probs_RPk[..., -1].astype(np.float64))
    self._kept += float(np.sum((1 - rest_RP) * weights_RP))
    self._places += float(np.sum(weights_RP))
    self.done += len(ids_RPk)

  def note(self) -> None:
    """Saves the state from which a later process can resume."""
    counts = [self.done, self._kept, self._places]
    state = {'json': as_bytes(self._wanted), 'counts': as_bytes(counts)}
    for name, array in self._arrays.items():
      state |= array.state(name)
    store.write_state(self._folder, state)

  def finish(self, rows: OutputRows, **about: Any) -> OutputsManifest:
    """Writes the manifest; `about` are its entries about the teacher."""
    written = {name: array.close() for name, array in self._arrays.items()}
    contents = OutputsManifest(
      rows=rows,
      kept=self._kept / self._places,
      crc32={name: crc32 for name, (_, crc32) in written.items()},
      **about,
    )
    entries = {'kind': _KIND, 'format_version': FORMAT_VERSION}
    entries |= dataclasses.asdict(contents)
    entries['fingerprint'] = contents.fingerprint
    files.write(self._folder, NAME, json.dumps(entries, indent=2).encode())
    files.delete(self._folder, store.STATE)
    return contents


def read(folder: str) -> OutputsManifest | None:
  """The manifest; None if the folder has no complete outputs."""
  data = files.read(folder, NAME)
  if data is None:
    return None
  try:
    entries = json.loads(data)
    if entries.pop('kind', None) != _KIND:
      return None
    version = entries.pop('format_version')
    fingerprint = entries.pop('fingerprint')
    if version == FORMAT_VERSION:
      contents = OutputsManifest(**entries | {'rows': OutputRows(**entries['rows'])})
      if contents.fingerprint == fingerprint:
        return contents
  except (ValueError, RecursionError, TypeError, KeyError) as e:
    raise _damaged(folder, NAME) from e
  raise _damaged(folder, NAME)


class TeacherOutputs:
  """Outputs, open for reading."""

  def __init__(self, folder: str, wanted: OutputRows):
    """Opens outputs, which must be for the `wanted` rows."""
    found = read(folder)
    if found is None:
      raise UsageError(
        f'objective.teacher={folder}: holds no finished outputs of a teacher, '
        f'which top_k={wanted.top_k} of objective.name reads; write them by '
        'gpt-jax teach, or leave top_k out'
      )
    for field in dataclasses.fields(OutputRows):
      there, here = (getattr(x, field.name) for x in (found.rows, wanted))
      if there != here:
        raise UsageError(
          f'objective.teacher={folder}: was written for {field.name}={there}, '
          f'and this run has {here}; {_AGAIN}, or give the former'
        )
    self.contents, self._folder = found, folder
    places = wanted.num_rows * wanted.times * wanted.positions
    self._arrays = {
      name: _open(folder, name, places * each)
      for name, each in ((IDS, wanted.top_k), (LOG_PROBS, wanted.top_k + 1))
    }

  def batch(self, keys: Keys) -> dict[str, np.ndarray]:
    """The arrays of a batch with these rows' outputs.

    Returns:
      `teacher_ids` int32 [B, P, k] and `teacher_log_probs` float16
      [B, P, k + 1].
    """
    rows = self.contents.rows
    numbers = (keys.row * rows.times + keys.epoch % rows.times).tolist()
    found = {}
    with ts.Batch() as batch:
      for name, array in self._arrays.items():
        size = rows.positions * (rows.top_k + (name == LOG_PROBS))
        found[name] = [array[n * size : (n + 1) * size].read(batch=batch) for n in numbers]
    try:
      read = {name: [x.result() for x in found[name]] for name in found}
    except ValueError as e:
      files.check_reached(self._folder, e)
      raise _damaged(self._folder, 'an array') from e
    shape = (len(numbers), rows.positions, -1)
    ids, log_probs = (np.stack(read[name]) for name in (IDS, LOG_PROBS))
    return {
      'teacher_ids': ids.astype(np.int32).reshape(shape),
      'teacher_log_probs': log_probs.reshape(shape),
    }

  def verify(self) -> None:
    """Reads all outputs and compares them with the manifest."""
    for name, array in self._arrays.items():
      for i, crc32 in enumerate(self.contents.crc32[name]):
        stop = min((i + 1) * manifest.BLOCK, array.shape[0])
        try:
          values = array[i * manifest.BLOCK : stop].read().result()
        except ValueError as e:
          files.check_reached(self._folder, e)
          raise _damaged(self._folder, name) from e
        if manifest.checksums(np.ascontiguousarray(values)) != [crc32]:
          raise _damaged(self._folder, name)


def blank(positions: int, top_k: int) -> dict[str, np.ndarray]:
  """The arrays of `TeacherOutputs.batch` for one row, as zeros."""
  return {
    'teacher_ids': np.zeros((1, positions, top_k), np.int32),
    'teacher_log_probs': np.zeros((1, positions, top_k + 1), np.float16),
  }


def _open(folder: str, name: str, length: int) -> ts.TensorStore:
  """Opens an array, and checks its length."""
  path = files.join(folder, name)
  try:
    array = files.open_array(path, open=True, fill_missing_data_reads=False)
  except ValueError as e:
    files.check_reached(folder, e)
    raise _damaged(folder, name) from e
  if array.shape != (length,):
    raise _damaged(folder, name)
  return array


def _damaged(folder: str, name: str) -> UsageError:
  return UsageError(
    f'{files.join(folder, name)}: is damaged, or of another version of '
    f'gpt_jax; remove {folder} and {_AGAIN}'
  )
