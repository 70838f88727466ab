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
from jax.ad_checkpoint import checkpoint_name

from gpt_jax.nn import int8, layers, layout, pipeline
from gpt_jax.nn.attend import ByDistance, Cache, Context, SegmentMemory
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


def _products(policy: Callable[..., Any]) -> Callable[..., Any]:
  """A policy for products, and for results of those in int8, not their sums.

  The sums are int32, twice as large.
  """

  def decide(primitive: Any, *args: Any, **params: Any) -> Any:
    if params.get('preferred_element_type') == jnp.int32:
      return False
    if primitive.name == 'name' and params['name'] == int8.RESULT:
      primitive, params = jax.lax.dot_general_p, _PRODUCT
    return policy(primitive, *args, **params)

  return decide


# The parameters of a product without batch dimensions.
_PRODUCT: dict[str, Any] = {'dimension_numbers': (((0,), (0,)), ((), ()))}
_policies = jax.checkpoint_policies


# What the forward pass stores for the backward pass, in host memory if
# offloaded; everything else is recomputed.
# Inputs of layers, which all policies store; one by name does it in steps of a
# pipeline too.
_INPUT = 'layer_input'
REMATS: dict[str, Callable | None] = {
  'none': None,
  'full': _policies.nothing_saveable,
  'dots': _products(_policies.dots_with_no_batch_dims_saveable),
  'offload': _products(
    _policies.offload_dot_with_no_batch_dims('device', 'pinned_host')
  ),
}


# The most periods that auto unrolls. GPT-2's 12 layers compile as fast as a
# loop over them, its 48 not in 80 seconds instead of 11.
MOST_UNROLLED = 24


def unrolled(loop: str, number: int) -> bool:
  """Whether the compiler gets the periods one by one, by `model.loop`.

  auto does it on GPUs: there a loop copies all that it saves for the backward
  pass, to save it and to read it, which took a fifth of a step.

  Args:
    loop: see `Stack`.
    number: of periods.
  """
  few = number <= MOST_UNROLLED and layout.platform() == 'gpu'
  return loop == 'unroll' or (loop == 'auto' and few)


# A loop beside those of `model.loop`, for decoding: each period has its own
# parameters and caches, which a step reads and writes in place, instead of
# slices of a stack.
UNSTACKED = 'unstacked'


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


class WideningPeriod(Period):
  """A period whose output is not as wide as its input: no carry of a loop."""

  def __call__(
    self,
    carry: tuple[()],
    x_BLD: jax.Array,
    context: Context,
    caches: Caches,
    index: jax.Array,
  ) -> tuple[tuple[()], tuple[jax.Array, Caches]]:
    """As `Period`, after the empty carry."""
    return carry, super().__call__(x_BLD, context, caches, index)


# Block, part of the block -> its parameters.
Params = dict[str, dict[str, Any]]


class Stack(nn.Module):
  """`num_layers` blocks: the period repeated; parameters are in `periods`.

  `loop='unroll'` gives the compiler the layers one by one instead of a loop;
  parameters and results are the same.

  Attributes:
    blocks: factories of the period's blocks.
    num_layers: a multiple of their number.
    remat: a name in `REMATS`.
    loop: `model.loop`, or `UNSTACKED`.
    sharing: which layers share parameters.
    mirrored: has no parameters, but is called with another stack's: layer i of
      an encoder uses those of the decoder's layer i (T5, section 3.2).
    widens: whether the output is not as wide as the input; with one period.
    circular: how rows go through the stages of a mesh that splits the layers.
    draws: whether the layers may draw random numbers in training.
  """

  blocks: tuple[Callable[..., nn.Module], ...]
  num_layers: int
  remat: str
  loop: str
  sharing: Sharing = Sharing()
  mirrored: bool = False
  widens: bool = False
  circular: pipeline.Circular = pipeline.Circular(1, 1)
  draws: bool = True

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    context: Context,
    caches: Caches | None,
    params: Any = None,
  ) -> tuple[jax.Array, Caches]:
    """[B, L, D] -> [B, L, D] and the caches.

    Args:
      x_BLD: the input.
      context: of all layers.
      caches: one for each block of the period, with a leading axis of periods;
        if layers are unstacked, one for each layer.
      params: the decoder's, for a mirrored stack.
    """
    number = num_periods(self)
    if self.mirrored:
      return self._mirror(x_BLD, context, params)
    if self.loop == UNSTACKED:
      return self._unstacked(number, x_BLD, context, caches)
    here = layers.rows_here()
    rows = len(x_BLD if here is None else here.numbers_B)
    parts = pipeline.parts_of(self.circular, rows)
    if parts and caches is None and not self.is_initializing():
      return self._over_stages(parts, x_BLD, context)
    caches = caches or (None,) * len(self.blocks)
    if self.sharing.parts:
      return self._scan_shared(number, x_BLD, context, caches)
    axes: Any = dict.fromkeys(('params', *SOWN), 0)
    over_layers: Any = (*((0,) * self.widens), nn.broadcast, 0, 0)
    scanned = nn.scan(
      self._remat(nn.remat, WideningPeriod if self.widens else Period),
      length=number,
      variable_axes=axes,
      split_rngs={'params': True, 'dropout': True},
      in_axes=over_layers,
      out_axes=0,
      unroll=number if unrolled(self.loop, number) else 1,
      metadata_params={nn.PARTITION_NAME: 'layers'},
      # It traces the layers twice; without, those that draw random numbers
      # would draw others.
      check_constancy_invariants=self.is_initializing()
      or (self.draws and self.has_rng('dropout')),
    )
    run: Any = scanned(self.blocks, name='periods')
    if not self.widens:
      return run(x_BLD, context, caches, jnp.arange(number))
    assert number == 1
    args = x_BLD[None], context, caches, jnp.arange(number)
    _, (x_1BLD, out) = run((), *args)
    return x_1BLD[0], out

  def _remat(self, remat: Callable[..., Any], run: Any) -> Any:
    """`run`, one period, with the stack's policy."""
    policy = REMATS[self.remat]
    if policy is None:
      return run
    # CSE never merges a loop's body with its recomputation, so only unrolled
    # layers need the barrier that prevents it.
    apart = unrolled(self.loop, num_periods(self))
    return remat(run, policy=policy, prevent_cse=apart)

  def _mirror(
    self, x_BLD: jax.Array, context: Context, params: Any
  ) -> tuple[jax.Array, Caches]:
    """Runs with the decoder's `params`, without its cross-attention."""
    if self.is_initializing():  # the decoder has none yet
      return x_BLD, ()
    rngs = {}
    if self.has_rng('dropout'):
      rngs = {'dropout': self.make_rng('dropout')}
    # Unattached, with the name that it has in messages.
    stack = self.clone(mirrored=False, parent=None, name='encoder')
    (x_BLD, caches), sown = stack.apply(
      {'params': _without_cross(nn.meta.unbox(params))},
      *(x_BLD, context, None),
      rngs=rngs,
      mutable=self._sown(),
    )
    for collection, values in sown.items():
      for name, value in values.items():
        self.put_variable(collection, name, value)
    return x_BLD, caches

  def _sown(self) -> list[str]:
    return [name for name in SOWN if self.is_mutable_collection(name)]

  # Shared parameters. `nn.scan` would need some for each layer. Here the loop
  # is JAX's own: they stay outside the loop over the layers of their group,
  # once, and their gradient is summed in place there.

  def _period(self) -> Period:
    """Unattached, but named so that the program's paths match parameters'."""
    return Period(self.blocks, parent=None, name='periods')

  def _init(self, key: jax.Array, x_BLD: jax.Array, context: Context) -> Params:
    """The initial parameters: each set is drawn separately."""
    period, number = self._period(), num_periods(self)
    caches, start = (None,) * len(self.blocks), jnp.int32(0)

    @functools.cache
    def sets(count: int) -> Params:
      def draw(key):
        return period.init(key, x_BLD, context, caches, start)['params']

      drawn = jax.vmap(draw)(jax.random.split(key, count))
      return nn.meta.add_axis(drawn, 0, {nn.PARTITION_NAME: 'layers'})

    def drawn(block: str, part: str) -> Any:
      return sets(self.sharing.num_sets(part, number))[block][part]

    return {
      block: {part: drawn(block, part) for part in parts}
      for block, parts in sets(number).items()
    }

  def _run(
    self, context: Context, counted: dict | None = None
  ) -> Callable[..., Any]:
    """One run of the period, as a function of its parameters.

    `counted`: how many random numbers Flax takes as drawn before.
    """

    def call(period, *args):
      if counted is not None:
        period.scope.rng_counters = _copied(counted)
      return period(*args)

    apply = nn.apply(call, self._period(), mutable=self._sown())

    def run(x_BLD, params, given):
      caches, index, rngs = given
      (x_BLD, caches), sown = apply(
        {'params': params},
        *(x_BLD, context, caches, index),
        rngs=rngs,
      )
      return x_BLD, (caches, sown)

    return run

  def _scan_shared(
    self, number: int, x_BLD: jax.Array, context: Context, caches: Caches
  ) -> tuple[jax.Array, Caches]:
    """Runs the groups, and within each the periods that share."""
    if self.is_initializing():
      self.param('periods', self._init, x_BLD, context)
      return x_BLD, caches
    rngs = {}
    if self.has_rng('dropout'):
      rngs = {'dropout': jax.random.split(self.make_rng('dropout'), number)}
    run = self._remat(jax.checkpoint, self._run(context))
    unroll = number if unrolled(self.loop, number) else 1
    params = nn.meta.unbox(self.get_variable('params', 'periods'))

    def split(shared: bool) -> Params:
      return {
        block: {
          part: tree
          for part, tree in parts.items()
          if self.sharing.shares(part) == shared
        }
        for block, parts in params.items()
      }

    def run_group(x_BLD, group):
      shared, of_runs = group

      def step(x_BLD, of_run):
        own, given = of_run
        both = {block: {**shared[block], **own[block]} for block in own}
        return run(x_BLD, both, given)

      return jax.lax.scan(step, x_BLD, of_runs, unroll=unroll)

    of_runs = jax.tree.map(
      lambda x: x.reshape(self.sharing.groups, -1, *x.shape[1:]),
      (split(shared=False), (caches, jnp.arange(number), rngs)),
    )
    groups = split(shared=True), of_runs
    x_BLD, out = jax.lax.scan(run_group, x_BLD, groups, unroll=unroll)
    caches, sown = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), out)
    for collection, values in sown.items():
      self.put_variable(collection, 'periods', values)
    return x_BLD, caches

  # The layers as stages of a pipeline, see `pipeline`. What differs between
  # rows goes with them from stage to stage.

  def _over_stages(
    self, parts: pipeline.Parts, x_BLD: jax.Array, context: Context
  ) -> tuple[jax.Array, Caches]:
    """Runs the layers where the mesh splits them over stages."""
    number, here = num_periods(self), layers.rows_here()
    params, rngs = nn.meta.unbox(self.get_variable('params', 'periods')), {}
    if self.has_rng('dropout'):
      # The keys that `nn.scan` gives the layers.
      scope: Any = self.scope
      lazy = scope.push('periods', reuse=True).rngs['dropout']
      keys = jax.random.split(lazy.rng, number)
      rngs = {'dropout': lazy.replace(rng=keys)}
    leaves, form = jax.tree.flatten(
      context, is_leaf=lambda x: isinstance(x, ByDistance)
    )
    differs = [not isinstance(x, ByDistance) and len(x) > 1 for x in leaves]

    def pick(rows: bool) -> list[Any]:
      return [x for x, y in zip(leaves, differs, strict=True) if y == rows]

    def part(run, of_layers, same, rows):
      x_BLD, own, numbers_B = rows
      every, each = iter(same), iter(own)
      whole = form.unflatten(next(each if y else every) for y in differs)
      with layers.use_rows(here and here._replace(numbers_B=numbers_B)):
        return run(of_layers, x_BLD, whole)

    def stage(of_layers, same, rows):
      run = functools.partial(self._stage, drawn=drawn)
      x_BLD, sown = part(run, of_layers, same, rows)
      return (x_BLD, *rows[1:]), sown

    numbers_B = None if here is None else here.numbers_B
    rows = jax.tree.map(parts.split, (x_BLD, pick(True), numbers_B))
    S, W = rows[0].shape[:2]
    of_layers, same = (params, jnp.arange(number), rngs), pick(False)
    # `nn.scan` traces the layers twice, and Flax counts what both traces draw:
    # without those of the first, other numbers would be drawn.
    one_part = jax.tree.map(lambda x: x[0, 0], rows)
    first = functools.partial(part, self._first)
    with layout.within(pipeline.STAGE):
      drawn, read = first(of_layers, same, one_part)
    stored = _policies.save_only_these_names(_INPUT)
    if policy := REMATS[self.remat]:
      stored = _policies.save_from_both_policies(policy, stored)
    (x, *_), sown = pipeline.run(
      stage,
      of_layers,
      same,
      rows,
      pipeline.Schedule(S, self.circular.repeats, S * W),
      stored,
      parts.holders,
      (read, None, None),
    )

    def mean(x):  # [layers, M, ...], each a mean over rows
      return jnp.tensordot(_shares(parts, here, S * W), x, (0, 1))

    def joined(x):  # [layers, M, b, ...]
      return jax.vmap(parts.joined)(x.reshape(number, S, W, *x.shape[2:]))

    for name, values in sown.items():
      values = jax.tree.map(mean if name == 'router' else joined, values)
      self.put_variable(name, 'periods', values)
    return parts.joined(x), (None,) * len(self.blocks)

  def _first(
    self, of_layers: Any, x_BLD: jax.Array, context: Context
  ) -> tuple[dict, Any]:
    """What a period draws, and a `layout.Weight` or None for each parameter."""
    drawn, found = {}, {}

    def count(period: Any, index: jax.Array):
      period(x_BLD, context, (None,) * len(self.blocks), index)
      drawn.update(period.scope.rng_counters)

    def first(of_layers: Any):
      params, index, rngs = jax.tree.map(lambda x: x[0], of_layers)
      apply = nn.apply(count, self._period(), mutable=self._sown())
      with layout.weights_read() as read:
        apply({'params': params}, index, rngs=rngs)
      found.update(jax.tree.map(lambda x: read.get(id(x)), params))

    jax.eval_shape(first, of_layers)
    return drawn, found

  def _stage(
    self, of_layers: Any, x_BLD: jax.Array, context: Context, *, drawn: dict
  ) -> tuple[jax.Array, Any]:
    """Some of the layers, by their parameters, numbers and random keys."""
    caches: Caches = (None,) * len(self.blocks)
    run = of_period = self._run(context, drawn)
    if self.remat != 'none' and layout.num_parts('embed') > 1:

      def run(x_BLD, params, given):
        return of_period(x_BLD, pipeline.in_step(params, x_BLD), given)

    run = self._remat(jax.checkpoint, run)

    def step(x_BLD, of_layer):
      params, index, rngs = of_layer
      x_BLD = checkpoint_name(x_BLD, _INPUT)
      x_BLD, (_, sown) = run(x_BLD, params, (caches, index, rngs))
      return x_BLD, sown

    apart = unrolled(self.loop, num_periods(self))
    unroll = len(of_layers[1]) if apart else 1
    return jax.lax.scan(step, x_BLD, of_layers, unroll=unroll)

  def _unstacked(
    self,
    number: int,
    x_BLD: jax.Array,
    context: Context,
    caches: Caches | None,
  ) -> tuple[jax.Array, Caches]:
    """Each run in turn; set i of shared parameters is in `period_i`."""
    size, out, run = len(self.blocks), [], self._run(context)
    given = caches or (None,) * self.num_layers
    sets = [self.get_variable('params', f'period_{i}') for i in range(number)]
    for i in range(number):
      params = {
        block: {
          part: sets[self.sharing.set_of(i, part, number)][block][part]
          for part in parts
        }
        for block, parts in sets[0].items()
      }
      of_run = given[i * size : (i + 1) * size]
      x_BLD, (of_run, _) = run(x_BLD, params, (of_run, jnp.int32(i), {}))
      out += of_run
    return x_BLD, tuple(out)


def _copied(tree: dict) -> dict:
  return {k: _copied(v) if isinstance(v, dict) else v for k, v in tree.items()}


def _shares(
  parts: pipeline.Parts, rows: layers.Rows | None, number: int
) -> jax.Array:
  """The weight of each micro-batch's means over its rows in those of all."""
  if rows is None or not rows.filled:
    return jnp.full(number, 1 / number)
  # The divisors of `layers.mean_over_rows`.
  real = layers.over_replicas(jnp.sum(parts.split(rows.real()), axis=2))
  return jnp.maximum(real.reshape(-1), 1) / jnp.maximum(jnp.sum(real), 1)


def _without_cross(params: Any) -> Any:
  """The parts of all blocks without cross-attention."""
  return {
    period: {
      block: {n: x for n, x in parts.items() if not n.startswith('cross')}
      for block, parts in blocks.items()
    }
    for period, blocks in params.items()
  }


def num_periods(stack: Any) -> int:
  """The number of times that a stack runs its period."""
  number, rest = divmod(stack.num_layers, len(stack.blocks))
  if rest or not number:
    raise UsageError(
      f'{stack.name}: {stack.num_layers} layers are not divisible by '
      f'the {len(stack.blocks)} layers after which their attention and ffn '
      'repeat; give shorter lists in model.attention, model.ffn or '
      'model.encoder_ffn'
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
