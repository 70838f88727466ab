# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The layers, where some of them share parameters.

`nn.scan` would want an array of parameters for each layer. Here the loop is
JAX's own: what is shared stays outside the loop over the layers of its group,
once, and its gradient is summed in place there.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.context import Context
from gpt_jax.nn.sharing import Sharing
from gpt_jax.nn.stack import (
  REMATS,
  SEPARATE,
  SOWN,
  Caches,
  Period,
  num_periods,
)

# Block, part of the block -> its parameters.
Params = dict[str, dict[str, Any]]


class SharedStack(nn.Module):
  """A `Stack` with fewer parameters: `periods` has what `sharing` says."""

  blocks: tuple[Callable[..., nn.Module], ...]
  num_layers: int
  remat: str
  loop: str
  sharing: Sharing

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, caches: Caches | None
  ) -> tuple[jax.Array, Caches]:
    """As `Stack`'s; raises what it does."""
    no_caches = (None,) * len(self.blocks)
    if self.is_initializing():
      self.param('periods', self._init, x_BLD, context)
      return x_BLD, no_caches
    if self.loop == SEPARATE:
      return self._separate(x_BLD, context, caches)
    caches = caches or no_caches
    keys = None
    if self.has_rng('dropout'):
      keys = jax.random.split(self.make_rng('dropout'), self._num_runs)
    given = caches, jnp.arange(self._num_runs), keys
    params = nn.meta.unbox(self.get_variable('params', 'periods'))
    x_BLD, (out, sown) = self._scan(x_BLD, context, params, given)
    for collection, values in sown.items():
      self.put_variable(collection, 'periods', values)
    return x_BLD, out

  @property
  def _num_runs(self) -> int:
    return num_periods(self)

  def _period(self) -> Period:
    """A module by itself, whose name is that in the paths of parameters."""
    return Period(self.blocks, parent=None, name='periods')

  def _init(self, key: jax.Array, x_BLD: jax.Array, context: Context) -> Params:
    """The first parameters: each set is drawn by itself."""
    period, number = self._period(), self._num_runs
    caches, start = (None,) * len(self.blocks), jnp.int32(0)

    def sets(count: int) -> Params:
      def draw(key):
        return period.init(key, x_BLD, context, caches, start)['params']

      drawn = jax.vmap(draw)(jax.random.split(key, count))
      return nn.meta.add_axis(drawn, 0, {nn.PARTITION_NAME: 'layers'})

    num_sets = functools.partial(self.sharing.num_sets, num_runs=number)
    drawn = {count: sets(count) for count in {self.sharing.groups, number}}
    return {
      block: {part: drawn[num_sets(part)][block][part] for part in parts}
      for block, parts in drawn[number].items()
    }

  def _scan(
    self, x_BLD: jax.Array, context: Context, params: Params, given: Any
  ) -> tuple[jax.Array, Any]:
    """Runs the groups, and within each the periods that share.

    Args:
      x_BLD: the stack's input.
      context: of all runs.
      params: of `periods`.
      given: caches, number and key of each run, with an axis of them in front.

    Returns:
      [B, L, D]; caches and what was sown, like `given`.
    """
    run, groups, unroll = self._run(context), self.sharing.groups, 1
    if self.loop == 'unroll':
      unroll = self._num_runs
    policy = REMATS[self.remat]
    if policy is not None:
      # See `Stack`.
      run = jax.checkpoint(run, policy=policy, prevent_cse=unroll > 1)

    def run_group(x_BLD, group):
      shared, of_runs = group

      def step(x_BLD, of_run):
        own, given = of_run
        return run(x_BLD, _both(shared, own), given)

      return jax.lax.scan(step, x_BLD, of_runs, unroll=unroll)

    shared, own = self._parted(params)
    of_runs = jax.tree.map(
      lambda x: x.reshape(groups, -1, *x.shape[1:]), (own, given)
    )
    x_BLD, out = jax.lax.scan(
      run_group, x_BLD, (shared, of_runs), unroll=unroll
    )
    return x_BLD, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), out)

  def _run(self, context: Context) -> Callable[..., Any]:
    """One run of the period, as a function of its parameters."""
    period = self._period()
    mutable = [name for name in SOWN if self.is_mutable_collection(name)]

    def run(x_BLD, params, given):
      caches, index, key = given
      rngs = {} if key is None else {'dropout': key}
      (x_BLD, caches), sown = period.apply(
        {'params': params},
        x_BLD,
        context,
        caches,
        index,
        rngs=rngs,
        mutable=mutable,
      )
      return x_BLD, (caches, sown)

    return run

  def _parted(self, params: Params) -> tuple[Params, Params]:
    """What is shared, and what each run has of its own."""
    parted: tuple[Params, Params] = ({}, {})
    for block, parts in params.items():
      for i, found in enumerate(parted):
        found[block] = {
          part: tree
          for part, tree in parts.items()
          if self.sharing.shares(part) == (i == 0)
        }
    return parted

  def _separate(
    self, x_BLD: jax.Array, context: Context, caches: Caches | None
  ) -> tuple[jax.Array, Caches]:
    """As `Stack`'s: a set that is shared is with the period of its number."""
    size, number, out = len(self.blocks), self._num_runs, []
    given = caches or (None,) * self.num_layers
    sets = [self.get_variable('params', f'period_{i}') for i in range(number)]
    run = self._run(context)
    for i in range(number):
      params = {
        block: {
          part: sets[self.sharing.set_of(i, part, number)][block][part]
          for part in parts
        }
        for block, parts in sets[0].items()
      }
      part = given[i * size : (i + 1) * size]
      x_BLD, (part, _) = run(x_BLD, params, (part, jnp.int32(i), None))
      out += part
    return x_BLD, tuple(out)


def _both(one: Params, other: Params) -> Params:
  """The parts of each block of two trees."""
  return {block: {**one[block], **other[block]} for block in one}
