# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: saved in the background by Orbax, verified when restored.

Each checkpoint carries a fingerprint of every array, computed on the devices
at the step that it holds. A restored state that does not give the same
fingerprint is damaged; the next older checkpoint is then used, and said so.
"""

import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from gpt_jax.command import log
from gpt_jax.spec import UsageError
from gpt_jax.state import TrainState


@jax.jit
def fingerprint(tree: Any) -> jax.Array:
  """One uint32 for each array: sum of bits[i] * (2 i + 1) modulo 2^32.

  The sum of integers does not depend on its order, hence not on the number of
  devices. A change of any one element always shows, since 2 i + 1 is odd.
  """
  return jnp.stack([_fingerprint(x) for x in jax.tree.leaves(tree)])


def _fingerprint(x: jax.Array) -> jax.Array:
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
  bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
  # The index of each element in row-major order, built axis by axis so that
  # a sharded array is neither moved nor flattened.
  index = jnp.zeros(x.shape, jnp.uint32)
  for axis, size in enumerate(x.shape):
    index = index * jnp.uint32(size)
    index += jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
  return jnp.sum(bits * (2 * index + 1), dtype=jnp.uint32)


class Checkpointer:
  """The checkpoints of one workdir, in `WORKDIR/checkpoints/STEP`."""

  def __init__(self, workdir: str, *, keep: int = 1, read_only: bool = False):
    """Opens the folder; creates it unless `read_only`."""
    self._folder = epath.Path(workdir) / 'checkpoints'
    self._options = ocp.CheckpointManagerOptions(
      max_to_keep=None if read_only else keep,
      read_only=read_only,
      create=not read_only,
    )
    self._open()

  def _open(self):
    self._manager = ocp.CheckpointManager(
      self._folder.absolute(), options=self._options
    )

  def steps(self) -> list[int]:
    """Steps of the whole checkpoints, oldest first."""
    return sorted(self._manager.all_steps())

  def save(self, state: TrainState) -> None:
    """Starts to save; waits only until the previous save is done."""
    prints = np.asarray(fingerprint(state)).tolist()
    self._manager.save(
      int(state.step),
      args=ocp.args.Composite(
        state=ocp.args.StandardSave(state),
        fingerprint=ocp.args.JsonSave({'fingerprint': prints}),
      ),
    )

  def saving(self) -> bool:
    """Whether a save is still going on in the background."""
    return self._manager.is_saving_in_progress()

  def wait(self) -> None:
    """Waits until the save in the background is done."""
    self._manager.wait_until_finished()

  def forget_after(self, step: int) -> None:
    """Deletes the checkpoints of later steps: that history was given up."""
    self.wait()
    for later in self.steps():
      if later > step:
        self._manager.delete(later)

  def restore(
    self, abstract: TrainState, *, at_most: int | None = None
  ) -> TrainState | None:
    """Restores the newest sound checkpoint onto the shardings of `abstract`.

    Damaged ones that are newer are moved to `WORKDIR/checkpoints_damaged`.

    Args:
      abstract: `jax.ShapeDtypeStruct`s with shardings.
      at_most: the last step that will do.

    Returns:
      The state, or None where there is no checkpoint yet.

    Raises:
      UsageError: there are checkpoints, and every one is damaged.
    """
    damaged = {}
    for step in reversed(self.steps()):
      if at_most is not None and step > at_most:
        continue
      try:
        state = self._restore(step, abstract)
      except Exception as e:
        # Whatever a damaged file makes the readers raise; it is reported, and
        # nothing is ever used that does not match its fingerprint.
        reason = str(e).strip().partition('\n')[0][:200]
        damaged[step] = f'{type(e).__name__}: {reason}'
        log.warning(
          'checkpoint %s is damaged (%s)', self._folder / str(step), reason
        )
        continue
      if damaged:
        self._set_aside(list(damaged))
        log.warning('going on from the older checkpoint of step %d', step)
      return state
    if damaged:
      step, reason = max(damaged.items())
      raise UsageError(
        f'{self._folder / str(step)}: damaged ({reason}), and no older '
        'checkpoint is sound; restore the folder from a copy, or start again '
        'with another --workdir'
      )
    return None

  def _restore(self, step: int, abstract: TrainState) -> TrainState:
    restored = self._manager.restore(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardRestore(abstract),
        fingerprint=ocp.args.JsonRestore(),
      ),
    )
    state = TrainState(*restored['state'])
    expected = restored['fingerprint']['fingerprint']
    found = np.asarray(fingerprint(state)).tolist()
    if found != expected or int(state.step) != step:
      names = [
        jax.tree_util.keystr(path, simple=True, separator='/')
        for path, _ in jax.tree_util.tree_leaves_with_path(abstract)
      ]
      wrong = [
        n for n, a, b in zip(names, found, expected, strict=True) if a != b
      ]
      raise ValueError(f'fingerprint differs in {", ".join(wrong)}')
    return state

  def _set_aside(self, steps: list[int]) -> None:
    """Moves damaged checkpoints away, so that their steps can be saved."""
    if self._options.read_only:
      return
    aside = self._folder.parent / 'checkpoints_damaged'
    self._manager.close()
    if jax.process_index() == 0:
      aside.mkdir(exist_ok=True)
      for step in steps:
        shutil.rmtree(aside / str(step), ignore_errors=True)
        (self._folder / str(step)).rename(aside / str(step))
    if jax.process_count() > 1:
      ocp.multihost.sync_global_processes('gpt_jax_set_aside')
    self._open()

  def close(self) -> None:
    """Waits until all is saved."""
    self._manager.wait_until_finished()
    self._manager.close()
