# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints larger than memory, written and read in parts of arrays.

`write` produces the same files as `Checkpointer`; `opened` reads any of its
checkpoints. Arrays are TensorStore's, whose parts are read and written as
NumPy's: `array[index][...] = part`, `np.asarray(array[index])`.
"""

import asyncio
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath

from gpt_jax.core.checkpoints import restore
from gpt_jax.core.checkpoints.checkpointer import DamageError
from gpt_jax.core.checkpoints.restore import (
  CheckpointContents,
  Running,
  absolute,
  arrays,
  contents,
  difference,
  fingerprint,
  folder_of,
  reason_of,
  signed,
  steps,
)
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import FailedError, UsageError

# Writes all parts of the parameters: `to[name][index][...] = part`, with
# indices of leading axes.
Fill = Callable[[Mapping[str, Any]], None]
# Reports progress: called with the number of further bytes read.
Report = Callable[[int], None]


class _Promised:
  """A placeholder with shape and dtype for Orbax, until it is filled."""

  def __init__(self, name: str, shape: tuple[int, ...], dtype: Any):
    """`name` is the one that `Fill` uses."""
    self.name, self.shape, self.dtype = name, shape, np.dtype(dtype)
    self.ndim, self.size = len(shape), math.prod(shape)
    self.nbytes = self.size * self.dtype.itemsize


class _Handler(ocp.type_handlers.NumpyHandler):
  """Creates the arrays as Orbax does, and fills all of them at once."""

  def __init__(self, count: int, fill: Fill):
    """`count` is the number of promised arrays."""
    super().__init__(deepcopy_host_arrays=False)
    self._count, self._fill = count, fill
    self._created: dict[str, ts.TensorStore] = {}

  async def _open_and_write(self, value: Any, tspec, ts_context):
    self._created[value.name] = await ts.open(
      ts.Spec(tspec), create=True, open=True, context=ts_context
    )
    if len(self._created) == self._count:
      await asyncio.to_thread(self._fill, self._created)


def write(workdir: str, state: TrainState, axes: Mapping[str, int], fill: Fill) -> None:
  """Saves a checkpoint, part by part.

  Args:
    workdir: without a checkpoint of that step.
    state: its `params` are `jax.ShapeDtypeStruct`s.
    axes: by name ('embed/embedding'), the number of leading axes of a parameter
      that the indices of its parts have.
    fill: called twice; the first call, before anything is written, may refuse.

  Raises:
    UsageError: from `fill`.
    RuntimeError: the checkpoint could not be saved.
  """
  folder = absolute(folder_of(workdir))
  shapes = arrays(state.params)
  sums = {n: Running(tuple(x.shape)) for n, x in shapes.items()}
  fill(sums)
  promised = [_Promised(n, tuple(x.shape), x.dtype) for n, x in shapes.items()]
  structure = jax.tree.structure(state.params)
  whole = state._replace(params=jax.tree.unflatten(structure, promised))
  prints = [
    sums[x.name].total if isinstance(x, _Promised) else int(fingerprint(x).item())
    for x in jax.tree.leaves(whole)
  ]
  save_args = jax.tree.map(
    lambda x: ocp.SaveArgs(
      shard_axes=tuple(range(axes[x.name])) if isinstance(x, _Promised) else ()
    ),
    whole,
  )
  of_arrays = ocp.type_handlers.create_type_handler_registry(
    (_Promised, _Handler(len(promised), fill)), (jax.Array, ocp.type_handlers.ArrayHandler())
  )
  of_state = restore.Handler(type_handler_registry=of_arrays)
  step = int(state.step)
  restore.quiet_late_futures()
  try:
    with ocp.CheckpointManager(
      folder,
      options=ocp.CheckpointManagerOptions(enable_async_checkpointing=False),
      handler_registry=restore.registry(of_state),
    ) as manager:
      manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.PyTreeSave(whole, save_args=save_args),
          checksums=ocp.args.JsonSave(signed(CheckpointContents(arrays(whole, prints)))),
        ),
      )
  except OSError as e:
    raise FailedError(
      f'{folder}: could not be written ({reason_of(e)}); make room, and give the same command again'
    ) from e


def opened(
  workdir: str,
  abstract: TrainState,
  *,
  at_most: int | None = None,
  report: Report = lambda count: None,
) -> tuple[int, dict[str, ts.TensorStore]]:
  """Opens the arrays of the newest sound checkpoint; reads each once.

  Args:
    abstract: the state as `jax.ShapeDtypeStruct`s; only its `eval_params` are
      read.
    at_most: the last acceptable step; None: any.
    report: is called with the number of verified bytes.

  Returns:
    The step, and the parameters for evaluation by name.

  Raises:
    UsageError: there is no checkpoint, or its arrays differ from `abstract`.
    DamageError: there are checkpoints, and every one is damaged.
  """
  folder = absolute(folder_of(workdir))
  reason = ''
  for step in steps(folder):
    if at_most is not None and step > at_most:
      continue
    try:
      return step, _verified(folder / str(step), abstract, report)
    except UsageError:
      raise
    except Exception as e:  # a damaged file may make readers raise anything
      reason = reason_of(e)
      log.warning('checkpoint %s is damaged (%s)', folder / str(step), reason)
  if reason:
    raise DamageError(
      f'{folder}: no checkpoint is sound ({reason}); restore the folder from a copy'
    )
  raise UsageError(f'--workdir={workdir}: holds no checkpoint yet; train it first, or name another')


def _verified(
  folder: epath.Path, abstract: TrainState, report: Report
) -> dict[str, ts.TensorStore]:
  """The arrays, after comparing their fingerprints."""
  saved = contents(folder).arrays
  if differs := difference(saved, arrays(abstract)):
    raise UsageError(
      f'{folder}: holds another state than the config describes: it '
      f'{differs}; give the config of that run, or another --workdir'
    )
  # Frozen parameters have no average.
  names = {
    average if (average := f'ema/{name}') in saved else f'params/{name}': name
    for name in (n.removeprefix('params/') for n in saved if n.startswith('params/'))
  }
  found = _open(str(folder / 'state'), [*names])
  wrong = []
  for name, array in found.items():
    if _fingerprint(array, report) != saved[name].fingerprint:
      wrong.append(name)
  if wrong:
    raise ValueError(f'fingerprint differs in {", ".join(wrong)}')
  return {names[name]: array for name, array in found.items()}


def _open(folder: str, names: list[str]) -> dict[str, ts.TensorStore]:
  """The arrays as Orbax wrote them: Zarr in an OCDBT database."""

  def arrays(cache_bytes: int) -> dict[str, ts.TensorStore]:
    context = ts.Context({'cache_pool': {'total_bytes_limit': cache_bytes}})
    return {name: _array(folder, name, context) for name in names}

  found = arrays(0)
  # In older checkpoints a chunk has all layers: it stays cached until all are
  # read, as do those of queries, keys and values, which may be one tensor.
  whole = [
    math.prod(_chunk(array)) * array.dtype.numpy_dtype.itemsize
    for name, array in found.items()
    if '/periods/' in name and _chunk(array)[0] > 1
  ]
  return arrays(3 * max(whole)) if whole else found


def _array(folder: str, name: str, context: ts.Context) -> ts.TensorStore:
  path = f'{name.replace("/", ".")}/'
  kvstore = restore.database(folder) | {'path': path}
  spec = {'driver': 'zarr', 'kvstore': kvstore}
  return ts.open(spec, context=context, read=True).result()


def _chunk(array: ts.TensorStore) -> tuple[int, ...]:
  shape: Any = array.chunk_layout.read_chunk.shape
  return shape


def _fingerprint(array: ts.TensorStore, report: Report) -> int:
  """The fingerprint of an array, read chunk by chunk of the leading axes."""
  sums = Running(array.shape)
  single = itertools.takewhile(lambda size: size == 1, _chunk(array))
  for index in np.ndindex(array.shape[: len([*single])]):
    part = np.asarray(array[index])
    sums[index][...] = part
    report(part.nbytes)
  return sums.total
