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

from gpt_jax.core.nn import activations, layers, layout, pipeline, stages
from gpt_jax.core.nn.kv_cache import Cache
from gpt_jax.core.nn.row import Context
from gpt_jax.core.ranges import Count
from gpt_jax.core.spec import UsageError

# The collections into which blocks sow values, one for each layer.
SOWN = ('intermediates', 'router', activations.SOWN)
Caches = tuple[Cache | None, ...]
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
    circular: how rows go through the stages of a mesh that splits the layers.
    draws: whether the layers may draw random numbers in training.
  """

  blocks: tuple[Callable[..., nn.Module], ...]
  num_layers: int
  remat: str
  loop: str
  sharing: 'Sharing'
  circular: pipeline.Circular = pipeline.Circular(1, 1)
  draws: bool = True

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, caches: Caches | None
  ) -> tuple[jax.Array, Caches]:
    """[B, L, D] -> [B, L, D] and the caches.

    Args:
      caches: one for each block of the period, with a leading axis of periods;
        if layers are unstacked, one for each layer.
    """
    if self.loop == UNSTACKED:
      return self._unstacked(x_BLD, context, caches)
    if caches is None and not self.is_initializing():
      rows = layers.rows_here()
      number = len(x_BLD if rows is None else rows.numbers_B)
      if parts := pipeline.parts_of(self.circular, number):
        return stages.run(self, parts, x_BLD, context), self.no_caches
    caches = caches or self.no_caches
    if self.sharing.parts:
      return self._scan_shared(x_BLD, context, caches)
    run = self.scanned(Period, (nn.broadcast, 0, 0))
    return run(x_BLD, context, caches, jnp.arange(self.num_periods))

  def scanned(self, period: type['Period'], in_axes: Any) -> Any:
    """A loop over the periods; `in_axes` are those of what follows the carry.

    It is called as one period, and results have a leading axis of periods.
    """
    variable_axes: Any = dict.fromkeys(('params', *SOWN), 0)
    loop: Any = nn.scan(
      self.rematerialized(nn.remat, layout.gathered(period, (*self.path, 'periods'))),
      length=self.num_periods,
      variable_axes=variable_axes,
      split_rngs={'params': True, 'dropout': True},
      in_axes=in_axes,
      out_axes=0,
      unroll=self.num_periods if self.is_unrolled else 1,
      metadata_params={nn.PARTITION_NAME: 'layers'},
      # It traces the layers twice; without, those that draw random numbers
      # would draw others.
      check_constancy_invariants=self.is_initializing() or (self.draws and self.has_rng('dropout')),
    )
    return loop(self.blocks, name='periods')

  @property
  def num_periods(self) -> int:
    """The number of times that the period is run."""
    number, rest = divmod(self.num_layers, len(self.blocks))
    if rest or not number:
      raise UsageError(
        f'{self.name}: {self.num_layers} layers are not divisible by '
        f'the {len(self.blocks)} layers after which their attention and ffn '
        'repeat; give shorter lists in model.attention, model.ffn or '
        'model.encoder_ffn'
      )
    return number

  @property
  def no_caches(self) -> Caches:
    """Caches of a period that has none."""
    return (None,) * len(self.blocks)

  @property
  def is_unrolled(self) -> bool:
    """Whether the compiler gets the periods one by one."""
    return unrolled(self.loop, self.num_periods)

  def rematerialized(self, remat: Callable[..., Any], run: Any) -> Any:
    """`run`, one period, with the stack's policy."""
    policy = REMATS[self.remat]
    if policy is None:
      return run
    # CSE never merges a loop's body with its recomputation, so only unrolled
    # layers need the barrier that prevents it.
    return remat(run, policy=policy, prevent_cse=self.is_unrolled)

  def storing(self, more: Callable[..., Any]) -> Callable[..., Any]:
    """The stack's policy, which stores what `more` does too."""
    policy = REMATS[self.remat]
    return _policies.save_from_both_policies(policy, more) if policy else more

  def sown(self) -> list[str]:
    """The collections that layers sow into, and that the caller reads."""
    return [name for name in SOWN if self.is_mutable_collection(name)]

  # One period as a function of its parameters, for loops that are JAX's own.

  def period(self) -> 'Period':
    """Unattached, but named so that the program's paths match parameters'."""
    return Period(self.blocks, parent=None, name='periods')

  def as_function(self, context: Context, counted: dict | None = None) -> Callable[..., Any]:
    """One run of the period: (x, params, (caches, index, rngs)) to results.

    `counted`: how many random numbers Flax takes as drawn before.
    """

    def call(period, *args):
      if counted is not None:
        period.scope.rng_counters = _copied(counted)
      return period(*args)

    apply = nn.apply(call, self.period(), mutable=self.sown())

    def run(x_BLD, params, of_run):
      caches, index, rngs = of_run
      (x_BLD, caches), sown = apply({'params': params}, x_BLD, context, caches, index, rngs=rngs)
      return x_BLD, (caches, sown)

    return run

  # Shared parameters. `nn.scan` would need some for each layer. With a loop of
  # JAX's own they stay outside the loop over the layers of their group, once,
  # and their gradient is summed in place there.

  def _init(self, key: jax.Array, x_BLD: jax.Array, context: Context) -> Params:
    """The initial parameters: each set is initialized separately."""
    period, number, start = self.period(), self.num_periods, jnp.int32(0)

    @functools.cache
    def sets(count: int) -> Params:
      def draw(key):
        return period.init(key, x_BLD, context, self.no_caches, start)['params']

      drawn = jax.vmap(draw)(jax.random.split(key, count))
      return nn.meta.add_axis(drawn, 0, {nn.PARTITION_NAME: 'layers'})

    def drawn(block: str, part: str) -> Any:
      return sets(self.sharing.num_sets(part, number))[block][part]

    return {
      block: {part: drawn(block, part) for part in parts} for block, parts in sets(number).items()
    }

  def _scan_shared(
    self, x_BLD: jax.Array, context: Context, caches: Caches
  ) -> tuple[jax.Array, Caches]:
    """Runs the groups, and within each the periods that share."""
    if self.is_initializing():
      self.param('periods', self._init, x_BLD, context)
      return x_BLD, caches
    number, rngs = self.num_periods, {}
    if self.has_rng('dropout'):
      rngs = {'dropout': jax.random.split(self.make_rng('dropout'), number)}
    run = self.rematerialized(jax.checkpoint, self.as_function(context))
    unroll = number if self.is_unrolled else 1
    params = nn.meta.unbox(self.get_variable('params', 'periods'))

    def split(shared: bool) -> Params:
      return {
        block: {part: tree for part, tree in parts.items() if self.sharing.shares(part) == shared}
        for block, parts in params.items()
      }

    def run_group(x_BLD, group):
      shared, of_runs = group

      def step(x_BLD, of_run):
        unshared, rest = of_run
        params = {block: {**shared[block], **parts} for block, parts in unshared.items()}
        return run(x_BLD, params, rest)

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

  def _unstacked(
    self, x_BLD: jax.Array, context: Context, caches: Caches | None
  ) -> tuple[jax.Array, Caches]:
    """Each run in turn; set i of shared parameters is in `period_i`."""
    size, number = len(self.blocks), self.num_periods
    caches = caches or (None,) * self.num_layers
    out, run = [], self.as_function(context)
    sets = [self.get_variable('params', f'period_{i}') for i in range(number)]
    for i in range(number):
      params = {
        block: {part: sets[self.sharing.set_of(i, part, number)][block][part] for part in parts}
        for block, parts in sets[0].items()
      }
      of_run = caches[i * size : (i + 1) * size]
      x_BLD, (of_run, _) = run(x_BLD, params, (of_run, jnp.int32(i), {}))
      out += of_run
    return x_BLD, tuple(out)


def _copied(tree: dict) -> dict:
  return {k: _copied(v) if isinstance(v, dict) else v for k, v in tree.items()}


class Period(nn.Module):
  """One block for each entry of the layer pattern, in order."""

  blocks: tuple[Callable[..., nn.Module], ...]

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, caches: Caches, index: jax.Array
  ) -> tuple[jax.Array, Caches]:
    """[B, L, D] -> [B, L, D] and the caches of the blocks.

    Each block's output is sown into `intermediates` as `hidden_0`, ..., and in
    steps that measure its mean square into `activations`.
    """
    x_BLD = layout.stream(x_BLD)
    out = []
    for i, (block, cache) in enumerate(zip(self.blocks, caches, strict=True)):
      layer = index * len(self.blocks) + i
      x_BLD, cache = block(name=f'block_{i}')(x_BLD, context, cache, layer)
      self.sow('intermediates', f'hidden_{i}', x_BLD)
      measure = functools.partial(activations.mean_square, x_BLD)
      activations.sow(self, f'{activations.MEAN_SQUARE}_{i}', measure)
      out.append(cache)
    return x_BLD, tuple(out)


# The choices of `model.share`.


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


# Those of `model.remat` and `model.loop`.


def _products(policy: Callable[..., Any]) -> Callable[..., Any]:
  """A policy for products, and for results of those in int8, not their sums.

  The sums are int32, twice as large.
  """

  def decide(primitive: Any, *args: Any, **params: Any) -> Any:
    if params.get('preferred_element_type') == jnp.int32:
      return False
    if primitive.name == 'name' and params['name'] == layers.PRODUCT:
      primitive, params = jax.lax.dot_general_p, _PRODUCT
    return policy(primitive, *args, **params)

  return decide


# The parameters of a product without batch dimensions.
_PRODUCT: dict[str, Any] = {'dimension_numbers': (((0,), (0,)), ((), ()))}
_policies = jax.checkpoint_policies


# What the forward pass stores for the backward pass, in host memory if
# offloaded; everything else is recomputed.
REMATS: dict[str, Callable | None] = {
  'none': None,
  'full': _policies.nothing_saveable,
  'dots': _products(_policies.dots_with_no_batch_dims_saveable),
  'offload': _products(_policies.offload_dot_with_no_batch_dims('device', 'pinned_host')),
}


# The most periods that auto unrolls. GPT-2's 12 layers compile as fast as a
# loop over them, its 48 not in 80 seconds instead of 11.
MOST_UNROLLED = 24


def unrolled(loop: str, number: int) -> bool:
  """Whether the compiler gets the periods one by one, by `model.loop`.

  auto does it on GPUs: there a loop copies all that it saves for the backward
  pass, to save it and to read it, which took a fifth of a step.
  """
  few = number <= MOST_UNROLLED and layout.platform() == 'gpu'
  return loop == 'unroll' or (loop == 'auto' and few)


# A loop beside those of `model.loop`, for decoding: each period has its own
# parameters and caches, which a step reads and writes in place, instead of
# slices of a stack.
UNSTACKED = 'unstacked'


# What layers sowed.


def layer_outputs(intermediates: Any, stack: str = 'decoder') -> list[jax.Array]:
  """The output of each layer of a stack, before any last norm.

  Args:
    intermediates: from `apply(..., mutable=['intermediates'])`.
    stack: `decoder`, or `encoder` of an encoder-decoder.
  """
  sown = intermediates[stack]['periods']
  names = [name for name in sown if name.startswith('hidden_')]
  period = [sown[name][0] for name in sorted(names, key=len_then_name)]
  return [block[n] for n in range(len(period[0])) for block in period]


def layer_routers(intermediates: Any, stack: str = 'decoder') -> dict[str, jax.Array]:
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
      period[block]['ffn'][f'router_{name}'][0] for block in sorted(blocks, key=len_then_name)
    ]
    layers = jnp.stack(of_blocks, axis=1)
    out[name] = layers.reshape(-1, *layers.shape[2:])
  return out


def len_then_name(name: str) -> tuple[int, str]:
  """A sort key that puts `hidden_2` before `hidden_10`."""
  return len(name), name
