# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The stack of layers, scanned over one period of the layer pattern.

A pattern such as `attention='full, local(window=256)'` repeats over the depth.
One period of it is compiled once and scanned, so that compile time does not
grow with the number of layers; its parameters carry a leading axis `layers`.

Layers may share parameters (ALBERT, Lan et al. 2019): that axis then has an
entry for each set, one for each run of the period if nothing is shared, else
one for each group. Run i of N takes set i * sets // N, so sharing follows from
the shapes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn import layout
from gpt_jax.nn.attend import Cache, Context, SegmentMemory
from gpt_jax.ranges import Count
from gpt_jax.spec import UsageError


class Sharing(NamedTuple):
  """Which parameters are shared, and over which layers.

  Attributes:
    parts: prefixes of the names of a block's shared parts; (): none.
    groups: number of groups of neighbouring layers that share.
    inner: number of distinct layers in a group, which repeats them.
    stacks: whether layer i of an encoder and of its decoder have the same
      parameters, except for cross-attention.
  """

  parts: tuple[str, ...] = ()
  groups: int = 1
  inner: int = 1
  stacks: bool = False

  def shares(self, part: str) -> bool:
    """Whether a block's part, such as `ffn_norm`, is shared."""
    return part.startswith(self.parts)

  def num_sets(self, part: str, num_runs: int) -> int:
    """The number of parameter sets of a part."""
    return self.groups if self.shares(part) else num_runs

  def set_of(self, run: int, part: str, num_runs: int) -> int:
    """The parameter set that a run of the period takes."""
    return run * self.num_sets(part, num_runs) // num_runs


def none() -> Sharing:
  """Each layer has its own parameters."""
  return Sharing()


def everything(groups: Count = 1, inner: Count = 1) -> Sharing:
  """All parameters of the layers (ALBERT, section 3.1).

  Args:
    groups: of neighbouring layers; layer i of n is in group i * groups // n.
    inner: number of distinct layers in a group, which repeats them in order.
  """
  return Sharing(('',), groups, inner)


def attention(groups: Count = 1, inner: Count = 1) -> Sharing:
  """Parameters of attention and its norms (ALBERT, section 4.5)."""
  return Sharing(('attention', 'cross'), groups, inner)


def ffn(groups: Count = 1, inner: Count = 1) -> Sharing:
  """Parameters of the feed-forward layers and their norms."""
  return Sharing(('ffn',), groups, inner)


def stacks() -> Sharing:
  """Attention, ffn and their norms, shared by encoder and decoder.

  Layer i of one has the parameters of layer i of the other (T5, section 3.2.2).
  """
  return Sharing(stacks=True)


SHARES = {
  'all': everything,
  'attention': attention,
  'ffn': ffn,
  'none': none,
  'stacks': stacks,
}


# What the forward pass stores for the backward pass, in host memory if
# offloaded; everything else is recomputed.
REMATS: dict[str, Callable | None] = {
  'none': None,
  'full': jax.checkpoint_policies.nothing_saveable,
  'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'offload': jax.checkpoint_policies.offload_dot_with_no_batch_dims(
    'device', 'pinned_host'
  ),
}


LOOPS = ('scan', 'unroll')


# A further loop, for decoding: each period has its own parameters and caches,
# which a step reads and writes in place, instead of slices of a stack.
SEPARATE = 'separate'


# The collections into which blocks sow values, one for each layer.
SOWN = ('intermediates', 'router')


Caches = tuple[Cache | None, ...]


class Period(nn.Module):
  """One block for each entry of the layer pattern, in order."""

  blocks: tuple[Callable[..., nn.Module], ...]

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, caches: Caches, index: jax.Array
  ) -> tuple[jax.Array, Caches]:
    """[B, L, D] -> [B, L, D] and the caches of the blocks.

    Each block's output is sown into `intermediates` as `hidden_0`, ...
    """
    x_BLD = layout.stream(x_BLD)
    out = []
    for i, (block, cache) in enumerate(zip(self.blocks, caches, strict=True)):
      layer = index * len(self.blocks) + i
      memory, given_BLD = cache, x_BLD
      if isinstance(cache, SegmentMemory):
        cache = jax.lax.stop_gradient(cache)
      x_BLD, cache = block(name=f'block_{i}')(x_BLD, context, cache, layer)
      if isinstance(memory, SegmentMemory):
        cache = memory.then(context.keys(given_BLD))
      self.sow('intermediates', f'hidden_{i}', x_BLD)
      out.append(cache)
    return x_BLD, tuple(out)


class Stack(nn.Module):
  """`num_layers` blocks: the period repeated.

  `loop='unroll'` gives the compiler the layers one by one instead of a loop;
  parameters and results are the same.
  """

  blocks: tuple[Callable[..., nn.Module], ...]
  num_layers: int
  remat: str
  loop: str

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, caches: Caches | None
  ) -> tuple[jax.Array, Caches]:
    """[B, L, D] -> [B, L, D]; the caches have a leading axis of periods."""
    number = num_periods(self)
    if self.loop == SEPARATE:
      return self._separate(number, x_BLD, context, caches)
    if caches is None:
      caches = (None,) * len(self.blocks)
    period = Period
    policy = REMATS[self.remat]
    if policy is not None:
      # CSE never merges a loop's body with its recomputation, so only
      # unrolled layers need the barrier that prevents it.
      unrolled = self.loop == 'unroll'
      period = nn.remat(Period, policy=policy, prevent_cse=unrolled)
    axes: Any = dict.fromkeys(('params', *SOWN), 0)
    over_layers: Any = (nn.broadcast, 0, 0)
    scanned = nn.scan(
      period,
      length=number,
      variable_axes=axes,
      split_rngs={'params': True, 'dropout': True},
      in_axes=over_layers,
      out_axes=0,
      unroll=number if self.loop == 'unroll' else 1,
      metadata_params={nn.PARTITION_NAME: 'layers'},
    )
    return scanned(self.blocks, name='periods')(
      x_BLD, context, caches, jnp.arange(number)
    )

  def _separate(
    self,
    num_periods: int,
    x_BLD: jax.Array,
    context: Context,
    caches: Caches | None,
  ) -> tuple[jax.Array, Caches]:
    size, out = len(self.blocks), []
    given = caches or (None,) * self.num_layers
    for i in range(num_periods):
      period = Period(self.blocks, name=f'period_{i}')
      part = given[i * size : (i + 1) * size]
      x_BLD, part = period(x_BLD, context, part, jnp.int32(i))
      out += part
    return x_BLD, tuple(out)


def num_periods(stack: Any) -> int:
  """The number of times that a stack runs its period."""
  number, rest = divmod(stack.num_layers, len(stack.blocks))
  if rest or not number:
    raise UsageError(
      f'{stack.name}: {stack.num_layers} layers do not divide by the '
      f'{len(stack.blocks)} after which their attention and ffn repeat; give '
      'shorter lists in model.attention, model.ffn or model.encoder_ffn'
    )
  return number


def layer_outputs(
  intermediates: Any, stack: str = 'decoder'
) -> list[jax.Array]:
  """The output of each layer of a stack, before any last norm.

  Args:
    intermediates: from `apply(..., mutable=['intermediates'])`.
    stack: `decoder`, or `encoder` of an encoder-decoder.
  """
  sown = intermediates[stack]['periods']
  names = [name for name in sown if name.startswith('hidden_')]
  period = [sown[name][0] for name in sorted(names, key=len_then_name)]
  return [block[n] for n in range(len(period[0])) for block in period]


def layer_routers(
  intermediates: Any, stack: str = 'decoder'
) -> dict[str, jax.Array]:
  """Outputs of the routers of a stack; empty if no layer has experts.

  Args:
    intermediates: from `apply(..., mutable=['intermediates'])`.
    stack: `decoder`, or `encoder` of an encoder-decoder.

  Returns:
    `logits` [layers, B, L, E] of its layers with experts, and `kept`
    [layers, B, L, J], whether each choice got a slot.
  """
  period = intermediates[stack]['periods']
  names = [name for name in period if name.startswith('block_')]
  blocks = [name for name in names if 'ffn' in period[name]]
  out = {}
  for name in ('logits', 'kept') if blocks else ():
    of_blocks = [
      period[block]['ffn'][f'router_{name}'][0]
      for block in sorted(blocks, key=len_then_name)
    ]
    layers = jnp.stack(of_blocks, axis=1)
    out[name] = layers.reshape(-1, *layers.shape[2:])
  return out


def len_then_name(name: str) -> tuple[int, str]:
  """A sort key that puts `hidden_2` before `hidden_10`."""
  return len(name), name


# Stacks whose layers share parameters.
#
# `nn.scan` would need parameters for each layer. Here the loop is JAX's own:
# shared parameters stay outside the loop over the layers of their group, once,
# and their gradient is summed in place there.


# Block, part of the block -> its parameters.
Params = dict[str, dict[str, Any]]


class SharedStack(nn.Module):
  """A `Stack` with fewer parameters: `periods` has the sets of `sharing`."""

  blocks: tuple[Callable[..., nn.Module], ...]
  num_layers: int
  remat: str
  loop: str
  sharing: Sharing

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, caches: Caches | None
  ) -> tuple[jax.Array, Caches]:
    """As `Stack.__call__`."""
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
    """An unattached module, named as in the paths of parameters."""
    return Period(self.blocks, parent=None, name='periods')

  def _init(self, key: jax.Array, x_BLD: jax.Array, context: Context) -> Params:
    """The initial parameters: each set is drawn separately."""
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
    """Splits parameters into shared ones and those of each run."""
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
    """As `Stack` with separate periods; set i is in period i."""
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
  """Merges the parts of each block of two trees."""
  return {block: {**one[block], **other[block]} for block in one}


# An encoder with the parameters of the decoder's layers (T5, section 3.2).


class MirroredStack(nn.Module):
  """A `Stack` without parameters: layer i uses those of the decoder's layer i.

  Cross-attention is the decoder's alone.
  """

  blocks: tuple[Callable[..., nn.Module], ...]
  num_layers: int
  remat: str
  loop: str

  def __call__(
    self, x_BLD: jax.Array, context: Context, params: Any
  ) -> tuple[jax.Array, Caches]:
    """As `Stack.__call__` without caches, with the decoder's `params`."""
    if self.is_initializing():  # the decoder has none yet
      return x_BLD, ()
    rngs = {}
    if self.has_rng('dropout'):
      rngs = {'dropout': self.make_rng('dropout')}
    fields = self.blocks, self.num_layers, self.remat, self.loop
    # Unattached, with the name that it has in messages.
    stack: Any = Stack(*fields, parent=None, name='encoder')
    (x_BLD, caches), sown = stack.apply(
      {'params': _without_cross(nn.meta.unbox(params))},
      x_BLD,
      context,
      None,
      rngs=rngs,
      mutable=[name for name in SOWN if self.is_mutable_collection(name)],
    )
    for collection, values in sown.items():
      for name, value in values.items():
        self.put_variable(collection, name, value)
    return x_BLD, caches


def _without_cross(params: Any) -> Any:
  """The parts of all blocks without cross-attention."""
  return {
    period: {
      block: {n: x for n, x in parts.items() if not n.startswith('cross')}
      for block, parts in blocks.items()
    }
    for period, blocks in params.items()
  }
