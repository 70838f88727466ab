# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints, and verifies names, shapes, dtypes and fingerprints."""

import contextlib
import dataclasses
import datetime
import functools
import glob
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath
from etils.epath import gpath

from gpt_jax.core.files import buckets, files
from gpt_jax.core.optim import wrappers
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime import hosts
from gpt_jax.core.spec import UsageError

# The most names in an error message, for each kind of difference.
SHOWN = 20


def fingerprint(tree: Any) -> np.ndarray:
  """One uint32 for each array: sum of bits[i] * (2 i + 1) modulo 2^32.

  The sum of integers does not depend on its order, hence not on the number of
  devices. A change of any one element always shows, since 2 i + 1 is odd.
  """
  # A function of one array compiles once per shape; one program for all arrays
  # would add seconds to the first save. They run one after the other: on
  # virtual CPU devices concurrent sums wait for each other.
  prints = [np.asarray(print_of(x)) for x in jax.tree.leaves(tree)]
  return np.array(prints, np.uint32)


@jax.jit
def print_of(x: jax.Array) -> jax.Array:
  """The fingerprint of one array: uint32 []."""
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
  bits = jax.lax.bitcast_convert_type(wrappers.near(x), unsigned)
  bits = bits.astype(jnp.uint32)
  # The index of each element in row-major order, built axis by axis so that
  # a sharded array is neither moved nor flattened.
  index = jnp.zeros(x.shape, jnp.uint32)
  for axis, size in enumerate(x.shape):
    index = index * jnp.uint32(size)
    index += jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
  return jnp.sum(bits * (2 * index + 1), dtype=jnp.uint32)


class Running:
  """The fingerprint of an array that arrives in parts, in any order.

  Usage: `sums[index][...] = part`, where `index` is of leading axes.
  """

  # Elements per pass: their indices take as much memory as the elements.
  _STEP = 1 << 20

  def __init__(self, shape: tuple[int, ...]):
    """`shape` is the shape of the whole array."""
    self._shape = shape
    self._parts: dict[tuple[int, ...], int] = {}

  @property
  def total(self) -> int:
    """The fingerprint, after all parts were added."""
    return sum(self._parts.values()) % 2**32

  def __getitem__(self, index: tuple[int, ...]) -> '_Place':
    """The place of a part."""
    return _Place(self, index)

  def __setitem__(self, index: Any, part: np.ndarray) -> None:
    """Adds a part; `...` is the whole array."""
    index = () if index is ... else index
    size = math.prod(self._shape[len(index) :])
    leading = self._shape[: len(index)]
    start = int(np.ravel_multi_index(index, leading)) * size if index else 0
    flat = np.ascontiguousarray(part).reshape(-1)
    assert flat.size == size, (flat.shape, self._shape, index)
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[flat.dtype.itemsize]
    bits, total = flat.view(kind), 0
    for at in range(0, size, self._STEP):
      some = bits[at : at + self._STEP].astype(np.uint32)
      odd = np.arange(some.size, dtype=np.uint32) * 2
      odd += np.uint32((2 * (start + at) + 1) % 2**32)
      total += int(np.sum(some * odd, dtype=np.uint32))
    self._parts[index] = total


class _Place(NamedTuple):
  """A part of `Running`, written like a view of an array."""

  sums: Running
  index: tuple[int, ...]

  def __setitem__(self, whole: Any, part: np.ndarray) -> None:
    """`whole` is `...`."""
    self.sums[self.index] = part


class Array(NamedTuple):
  """Shape, dtype and fingerprint of one array."""

  shape: list[int]
  dtype: str
  fingerprint: int | None = None

  def __str__(self):
    """`float32[64,48]`."""
    return f'{self.dtype}[{",".join(map(str, self.shape))}]'


def arrays(state: Any, prints: Iterable[int] | None = None) -> dict[str, Array]:
  """`{'params/embed/embedding': Array, ...}` in the order of the leaves."""
  leaves = jax.tree_util.tree_leaves_with_path(state)
  numbers = [None] * len(leaves) if prints is None else [int(n) for n in prints]
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): Array(
      list(x.shape), str(x.dtype), number
    )
    for (path, x), number in zip(leaves, numbers, strict=True)
  }


class CheckpointContents(NamedTuple):
  """The arrays of a checkpoint, and the record of its run."""

  arrays: dict[str, Array]
  record: Any = None  # the run's history, plain JSON; None: it has none


def signed(contents: CheckpointContents) -> dict[str, Any]:
  """The contents as JSON, with the checksum of that JSON."""
  rows = {name: list(array) for name, array in contents.arrays.items()}
  digest = files.digest([rows, contents.record])
  return {'arrays': rows, 'record': contents.record, 'sha256': digest}


def verified(text: str) -> CheckpointContents:
  """Parses the JSON text of `signed`.

  Raises:
    ValueError: the checksum is wrong.
  """
  content = json.loads(text)
  rows, record = content['arrays'], content['record']
  if content['sha256'] != files.digest([rows, record]):
    raise ValueError('the list of checksums was changed')
  return CheckpointContents({name: Array(*row) for name, row in rows.items()}, record)


def difference(saved: dict[str, Array], expected: dict[str, Array]) -> str:
  """The differences, by name; '' if there are none."""
  parts = {
    'lacks': [n for n in expected if n not in saved],
    'has besides': [n for n in saved if n not in expected],
    'has otherwise': [
      f'{n} ({saved[n]}, not {expected[n]})'
      for n in expected
      if n in saved and str(saved[n]) != str(expected[n])
    ],
  }
  return '; '.join(
    f'{what} {", ".join(names[:SHOWN])}'
    + (f' and {len(names) - SHOWN} more' if len(names) > SHOWN else '')
    for what, names in parts.items()
    if names
  )


# Orbax: how it names, lists and merges checkpoints, even if some are damaged.
#
# Each process writes its arrays into its own database; at the end of a save
# Orbax merges these into one, which readers open. It looks for the databases
# with a glob of their whole path: in a folder called `[a]` none would match,
# and the save would count as done. Nothing is deleted before a save is done: if
# the merge fails, the older checkpoints stay.


# Orbax's prefix of the processes' databases.
_PROCESS = 'ocdbt.process_'


class _Literal(gpath.PosixGPath):
  """A folder whose own path is not a glob pattern; see `literal`."""

  def glob(self, pattern: str) -> Iterator[Any]:
    """Yields the matching files in the folder."""
    for name in glob.glob(pattern, root_dir=os.fspath(self)):
      yield self / name


@dataclasses.dataclass(frozen=True)
class _Step(ocp.path.step.Metadata):
  """A checkpoint with a constant time, so that Orbax does not read its file."""

  @property
  def commit_timestamp(self) -> datetime.datetime:
    """A constant."""
    return datetime.datetime.fromtimestamp(0, datetime.UTC)


class StepNames(ocp.path.step.NameFormat[ocp.path.step.Metadata]):
  """Checkpoints are named by their steps.

  Orbax's own class reads a file of each checkpoint to list them: one damaged
  file would hide them all.
  """

  _named = ocp.path.step.standard_name_format()

  def build_name(self, step: int) -> str:
    """The name of a step's folder."""
    return self._named.build_name(step)

  def find_all(self, base_path: epath.PathLike) -> Iterator[ocp.path.step.Metadata]:
    """The finished checkpoints."""
    for metadata in self._named.find_all(base_path):
      yield _Step(metadata.step, metadata.path)

  def find_step(self, base_path: epath.PathLike, step: int) -> ocp.path.step.Metadata:
    """The checkpoint of a step; raises ValueError if there is none."""
    metadata = self._named.find_step(base_path, step)
    return _Step(metadata.step, metadata.path)


class Handler(ocp.PyTreeCheckpointHandler):
  """Handles trees of arrays; checks the merged database of a save."""

  def finalize(self, directory: epath.Path) -> None:
    """Merges the databases, and checks that the result has all arrays.

    Args:
      directory: of the arrays, not yet under its final name.

    Raises:
      OSError: the merged database lacks arrays that a process wrote.
    """
    super().finalize(literal(directory))
    merged = _keys(directory)
    parts = [p for p in directory.iterdir() if p.name.startswith(_PROCESS)]
    lost = {key for part in parts for key in _keys(part)} - merged
    if lost or not merged:
      raise OSError(f'not all arrays were merged in {directory}')


# Gigabytes that a process writes at a time. What is being written is encoded,
# which takes as much memory again; without a bound that is a second copy of the
# process's share of the state, beside the one taken off the devices.
_AT_ONCE = 4


class BoundedHandler(Handler):
  """Of arrays on devices: holds no more than it needs while it writes them."""

  async def async_save(self, directory: Any, args: Any) -> Any:
    """Writes at most `_AT_ONCE` at a time, or the largest shard."""
    bounded = ocp.PyTreeCheckpointHandler(save_concurrent_gb=_gigabytes_at_once(args.item))
    return await bounded.async_save(directory, args=args)


def _gigabytes_at_once(tree: Any) -> int:
  """`_AT_ONCE`, or more than the largest shard: Orbax refuses one as large."""

  def size(x: Any) -> int:
    # Arrays on the host are written as a whole.
    lies = getattr(x, 'sharding', None)
    return math.prod(lies.shard_shape(x.shape) if lies else x.shape) * x.dtype.itemsize

  return max(_AT_ONCE, max(map(size, jax.tree.leaves(tree))) // 10**9 + 1)


def registry(handler: Handler) -> Any:
  """The handlers of a checkpoint's `state` and `checksums`."""
  handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
  handlers.add('state', ocp.args.PyTreeSave, handler)
  handlers.add('checksums', ocp.args.JsonSave, ocp.JsonCheckpointHandler())
  return handlers


def literal(folder: epath.Path) -> epath.Path:
  """The folder, with a path that is never read as a glob pattern."""
  return folder if is_url(folder) else _Literal(folder)


def is_url(path: epath.PathLike) -> bool:
  """Whether a path is a URL rather than a local path."""
  return '://' in os.fspath(path)


def database(folder: epath.PathLike) -> dict[str, Any]:
  """TensorStore's spec of the database in a folder.

  The spec has the plain path: in a URL, % and # have a meaning.
  """
  path = f'{os.fspath(folder)}/'
  base = path if is_url(path) else {'driver': 'file', 'path': path}
  return {'driver': 'ocdbt', 'base': base}


def _keys(folder: epath.Path) -> set[bytes]:
  return set(ts.KvStore.open(database(folder)).result().list().result())


# Reading: only content that matches its checksums is trusted.


class Restored(NamedTuple):
  """The step that was restored, and the record saved with it."""

  step: int
  record: Any  # the run's history, plain JSON; None: it has none


class Found(NamedTuple):
  """The result of `read`: a state, or the reason why there is none."""

  state: TrainState | None = None
  reason: str = ''  # what is wrong, if there is no state
  record: Any = None


def folder_of(workdir: str) -> epath.Path:
  """The folder of a run's checkpoints, on a disk or in its bucket."""
  home = buckets.home(workdir)
  files.check_path(home)
  return epath.Path(home) / 'checkpoints'


def absolute(path: epath.Path) -> epath.Path:
  """An absolute path for Orbax; leaves URLs alone."""
  return path if is_url(path) else path.absolute()


def steps(folder: epath.Path) -> list[int]:
  """The steps of the checkpoints in `folder`, newest first, sound or not."""
  if not folder.is_dir():
    return []
  names = [path.name for path in folder.iterdir()]
  numbers = [int(name) for name in names if name.isdecimal()]
  return sorted((n for n in numbers if str(n) in names), reverse=True)


def newest(workdir: str) -> Restored | None:
  """The newest checkpoint whose record is sound; reads no arrays."""
  folder = folder_of(workdir)
  for step in steps(folder):
    with contextlib.suppress(Exception):  # damaged: `read` will report it
      return Restored(step, contents(folder / str(step)).record)
  return None


def contents(folder: epath.Path) -> CheckpointContents:
  """The list of arrays and the record of the checkpoint in `folder`.

  Raises:
    Exception: whatever reading a half-written or damaged file raises.
  """
  if not committed(folder):
    raise ValueError('half-written: it has no commit_success.txt')
  return verified((folder / 'checksums/metadata').read_text(encoding='utf-8'))


def read(folder: epath.Path, abstract: TrainState, *, moments: bool = True) -> Found:
  """Reads the checkpoint in `folder`; a collective of all processes.

  Args:
    folder: its name is the step.
    abstract: `jax.ShapeDtypeStruct`s with shardings.
    moments: False leaves `opt_state` out, which then is ().
  """
  saved, record, state, reason = {}, None, None, ''
  try:
    saved, record = contents(folder)
  except Exception as e:
    reason = reason_of(e)
  if not hosts.all_agree(not reason):
    return Found(reason=reason or 'another host cannot read it')
  if differs := difference(saved, arrays(abstract)):
    raise UsageError(
      f'{folder}: holds another state than the config describes: it '
      f'{differs}; give the config of that run, or another --workdir'
    )
  quiet_late_futures()
  places = ocp.checkpoint_utils.construct_restore_args(abstract)
  target = abstract
  if not moments:
    left = jax.tree.map(lambda _: ocp.PLACEHOLDER, abstract.opt_state)
    target = abstract._replace(opt_state=left)
  try:
    # Use the handler directly: the manager would wait for hosts that failed.
    state = TrainState(
      *ocp.PyTreeCheckpointHandler().restore(
        literal(folder / 'state'), args=ocp.args.PyTreeRestore(target, places)
      )
    )
  except Exception as e:
    # Orbax wraps Ctrl-C, too.
    if isinstance(e.__cause__, KeyboardInterrupt):
      raise e.__cause__ from None
    # A damaged file may make the readers raise anything. It is reported, and
    # no array is used that does not match its fingerprint.
    reason = reason_of(e)
  if not hosts.all_agree(state is not None):
    return Found(reason=reason or 'another host cannot read it')
  assert state is not None
  if not moments:
    state = state._replace(opt_state=())
  state_arrays = arrays(state, fingerprint(state))
  wrong = [
    name for name, array in state_arrays.items() if array.fingerprint != saved[name].fingerprint
  ]
  if wrong:
    return Found(reason=f'fingerprint differs in {", ".join(wrong)}')
  if str(int(state.step)) != folder.name:
    return Found(reason=f'it is of step {int(state.step)}')
  return Found(state, record=record)


def committed(folder: epath.Path) -> bool:
  """Whether the save into `folder` is complete."""
  return (folder / 'commit_success.txt').exists()


@functools.cache
def quiet_late_futures() -> None:
  """Silences reads and writes that end after another one has failed.

  Orbax closes its event loop at the first failure, and TensorStore then prints
  a traceback for every later one: hundreds on a full disk.
  """
  told = sys.unraisablehook

  def tell(hook_args: 'sys.UnraisableHookArgs') -> None:
    late = '_read_array_index_and_device_put' in repr(hook_args.object)
    if not late and str(hook_args.exc_value) != 'Event loop is closed':
      told(hook_args)

  sys.unraisablehook = tell


def reason_of(error: Exception) -> str:
  """One line of at most 200 characters."""
  # TensorStore's message has the system's error after long paths and before
  # key='value' pairs of its own in brackets.
  system = re.search(r": ([^:\[]+) \[\w+='", str(error))
  if system and '[os_error_code=' in str(error):
    return system[1]
  line = str(error).strip().partition('\n')[0][:200]
  return f'{type(error).__name__}: {line}'
