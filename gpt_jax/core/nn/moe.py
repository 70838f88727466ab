# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts: a feed-forward layer in which tokens choose experts.

y = p_i(x) E_i(x), p = softmax(x W_r), i = argmax p (Fedus et al., 2021: Switch
Transformers, equations 1 and 2). Suffixes: U groups of T tokens, E experts, C
capacity.
"""

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core import ranges
from gpt_jax.core.nn import grouped, layout
from gpt_jax.core.nn.block import FfnChoice
from gpt_jax.core.nn.layers import (
  FORMS,
  Form,
  Initializer,
  Initializers,
  Matmul,
  draw_by_row,
  mean_over_rows,
  parameter,
  token_hash,
)
from gpt_jax.core.nn.layout import platform
from gpt_jax.core.nn.router_stats import RouterStats
from gpt_jax.core.ranges import Count, Fraction, OneOf, Positive, Whole
from gpt_jax.core.spec import UsageError

# Routing: the experts of each token, as pure functions with static shapes.
#
# More suffixes: N tokens, T tokens of a group, J choices of a token, A = T J
# assignments (choice j of token t is assignment t J + j), E experts, S slots
# (the places of the experts' inputs, one token each).


class Choices(NamedTuple):
  """The experts of each token, and the factors of their outputs."""

  probs_NE: jax.Array
  experts_NJ: jax.Array
  gates_NJ: jax.Array


def choose(logits_NE: jax.Array, top_k: int, renormalize: bool) -> Choices:
  """The `top_k` most probable experts of each token.

  Args:
    logits_NE: float32 [..., E], of the router.
    top_k: 1 is Switch (section 2.1), more is the mixture of experts.
    renormalize: a token's gates sum to one (GShard, Mixtral; the gate of one
      choice is then 1, and no gradient of it reaches the router); else they
      are the probabilities themselves (Switch, equation 2).
  """
  probs_NE = jax.nn.softmax(logits_NE, axis=-1)
  if top_k == 1:
    # Equal to top_k, but faster.
    experts_NJ = jnp.argmax(probs_NE, axis=-1, keepdims=True)
    gates_NJ = jnp.max(probs_NE, axis=-1, keepdims=True)
  else:
    gates_NJ, experts_NJ = jax.lax.top_k(probs_NE, top_k)
  if renormalize:
    gates_NJ /= jnp.sum(gates_NJ, axis=-1, keepdims=True)
  return Choices(probs_NE, experts_NJ.astype(jnp.int32), gates_NJ)


def load_balance(probs_NE: jax.Array, fractions_E: jax.Array) -> jax.Array:
  """N sum_i f_i P_i (Switch, equations 4 to 6), without the factor alpha.

  1 when both are uniform.

  Args:
    probs_NE: [N, E]; P_i is their mean over the tokens.
    fractions_E: f_i, the fraction of the assignments that chose expert i.
  """
  num_experts = probs_NE.shape[-1]
  return num_experts * jnp.sum(fractions_E * jnp.mean(probs_NE, axis=0))


class Ranking(NamedTuple):
  """The assignments, sorted by expert, each expert's in token order."""

  order_A: jax.Array
  counts_E: jax.Array
  starts_E: jax.Array  # start of each expert in `order_A`
  ranks_A: jax.Array  # of each assignment among those of its expert


def rank(experts_A: jax.Array, num_experts: int) -> Ranking:
  """Sorts assignments by expert.

  A token's rank depends on earlier tokens only.
  """
  A = len(experts_A)
  if num_experts * A > 2**31:
    raise UsageError(
      f'model.ffn: {A} assignments to {num_experts} experts are too many to '
      'sort at once; give fewer rows at a time'
    )
  # As single numbers, since XLA sorts pairs much more slowly.
  index_A = jnp.arange(A, dtype=jnp.int32)
  keys_A = jnp.sort(experts_A * A + index_A)
  order_A, sorted_A = keys_A % A, keys_A // A
  chosen_AE = experts_A[:, None] == jnp.arange(num_experts)[None]
  counts_E = jnp.sum(chosen_AE, axis=0, dtype=jnp.int32)
  starts_E = jnp.cumsum(counts_E) - counts_E
  ranks_A = index_A - starts_E[sorted_A]
  ranks_A = jnp.zeros_like(ranks_A).at[order_A].set(ranks_A, unique_indices=True)
  return Ranking(order_A, counts_E, starts_E, ranks_A)


class Slots(NamedTuple):
  """The slot of each kept assignment, and the inverse."""

  slots_A: jax.Array  # S: dropped
  sources_S: jax.Array  # the assignment in a slot; A: empty


def place(
  ranking: Ranking,
  experts_A: jax.Array,
  owners_S: jax.Array,
  bases_E: jax.Array,
  size: int | None = None,
) -> Slots:
  """Places each expert's first assignments in the slots from its base on.

  Args:
    ranking: of `experts_A`.
    experts_A: the expert of each assignment.
    owners_S: the expert of each slot.
    bases_E: the first slot of each expert.
    size: number of slots of an expert; None: enough for all.
  """
  A, S = len(experts_A), len(owners_S)
  within_S = jnp.arange(S, dtype=jnp.int32) - bases_E[owners_S]
  sources_S = ranking.order_A.at[ranking.starts_E[owners_S] + within_S].get(mode='clip')
  sources_S = jnp.where(within_S < ranking.counts_E[owners_S], sources_S, A)
  slots_A = bases_E[experts_A] + ranking.ranks_A
  if size is not None:
    slots_A = jnp.where(ranking.ranks_A < size, slots_A, S)
  return Slots(slots_A, sources_S)


@jax.custom_vjp
def move(x_ND: jax.Array, from_Q: jax.Array, to_NJ: jax.Array) -> jax.Array:
  """y[q] = x[from_Q[q]], and zero where that is out of range.

  Args:
    x_ND: rows.
    from_Q: the row for each of Q results.
    to_NJ: the inverse: up to J results that each row goes to; Q: none. It lets
      the gradient gather too, as TPUs scatter slowly.
  """
  del to_NJ
  return x_ND.at[from_Q].get(mode='fill', fill_value=0)


def _move(x_ND, from_Q, to_NJ):
  return move(x_ND, from_Q, to_NJ), to_NJ


def _move_gradient(to_NJ, dy_QD):
  picked: Any = dy_QD.at[to_NJ].get(mode='fill', fill_value=0)
  return jnp.sum(picked, axis=1), None, None


move.defvjp(_move, _move_gradient)


def gather_slots(x_ND: jax.Array, slots: Slots, top_k: int) -> jax.Array:
  """The tokens in their slots: [T, D] to [S, D], zero where one is empty."""
  to_NJ = slots.slots_A.reshape(-1, top_k)
  return move(x_ND, slots.sources_S // top_k, to_NJ)


def combine_slots(y_SD: jax.Array, slots: Slots, gates_NJ: jax.Array) -> jax.Array:
  """sum_j gate_j y_j: [S, D] to float32 [T, D]; a dropped choice adds zero."""
  picked_AD: Any = move(y_SD, slots.slots_A, slots.sources_S[:, None])
  picked_NJD = picked_AD.reshape(*gates_NJ.shape, -1)
  return jnp.sum(gates_NJ[..., None] * picked_NJD, axis=-2)


# The experts of a layer: their matrices, and how the tokens reach them.
#
# Suffixes: U groups of T tokens, E experts, C capacity.


class Expert(nn.Module):
  """Owns one matrix, and maybe one bias, of every expert."""

  shape: tuple[int, int, int]
  axes: tuple[str, str, str]
  initializer: Initializer
  bias: bool
  dtype: Any

  @nn.compact
  def __call__(self) -> tuple[jax.Array, jax.Array | None]:
    """The kernels [E, in, out] and biases [E, out]."""

    def each(key, shape, dtype=jnp.float32, out_sharding=None):
      del out_sharding
      keys = jax.random.split(key, shape[0])
      # Per expert: initialisers would take the expert axis for an input axis.
      return jax.vmap(lambda k: self.initializer(k, shape[1:], dtype))(keys)

    kernel = parameter(self, 'kernel', each, self.shape, self.axes)
    kernel = layout.weight(kernel, self.axes, self.dtype)
    if not self.bias:
      return kernel, None
    shape, axes = (self.shape[0], self.shape[2]), (self.axes[0], self.axes[2])
    zeros = nn.initializers.zeros
    bias = parameter(self, 'bias', zeros, shape, axes)
    return kernel, bias.astype(self.dtype)


Weight = tuple[jax.Array, jax.Array | None]


class Weights(NamedTuple):
  """Kernels and biases of all experts."""

  widen: Weight
  gate: Weight | None
  narrow: Weight


def _feed_forward(
  x: jax.Array,
  weights: Weights,
  form: Form,
  widen: Callable[[jax.Array, Weight], jax.Array],
  narrow: Callable[[jax.Array, Weight], jax.Array],
) -> jax.Array:
  """`block.FeedForward` of every expert, with the given products."""
  # Scopes named as the parameters, by which `plan` identifies gradients.
  with jax.named_scope('in'):
    h = widen(x, weights.widen)
  gate = None
  if weights.gate is not None:
    with jax.named_scope('gate'):
      gate = widen(x, weights.gate)
  h = form(h, gate)
  with jax.named_scope('out'):
    return narrow(h, weights.narrow)


def with_capacity(
  x_UTD: jax.Array,
  choices: Choices,
  weights: Weights,
  form: Form,
  capacity: int,
  product: Callable[[jax.Array, jax.Array], jax.Array],
) -> tuple[jax.Array, jax.Array]:
  """Each expert takes its first `capacity` assignments of each group.

  They are ordered by token, then by choice, so that a token's slot depends on
  earlier tokens only. (GShard places all first choices before any second one,
  which a causal model cannot do.)

  `product` multiplies [E, U, C, in] and [E, in, out].

  The experts' inputs move from the devices that hold their groups to those that
  hold the experts, and back: an all-to-all each way.
  """
  U, T, D = x_UTD.shape
  E, J = choices.probs_NE.shape[-1], choices.experts_NJ.shape[-1]
  S = E * capacity
  owners_S = jnp.arange(S) // capacity
  bases_E = jnp.arange(E) * capacity

  def slots_of(experts_A):
    ranking = rank(experts_A, E)
    return place(ranking, experts_A, owners_S, bases_E, capacity)

  slots = jax.vmap(slots_of)(choices.experts_NJ.reshape(U, T * J))
  here = (None, _over('batch', U), None, None)
  # Devices with parts of the same rows split each expert's slots.
  there = ('expert', _over('group', U), _over('length', capacity), None)
  constrain = nn.with_logical_constraint

  def gather(x_TD, slots):
    return gather_slots(x_TD, slots, J).reshape(E, capacity, D)

  x_EUCD = constrain(jax.vmap(gather, out_axes=1)(x_UTD, slots), here)
  x_EUCD = constrain(x_EUCD, there)

  def multiply(x_EUCD, weight):
    kernel, bias = weight
    y = product(x_EUCD, kernel)
    return y if bias is None else y + bias[:, None, None]

  y_EUCD = _feed_forward(x_EUCD, weights, form, multiply, multiply)
  y_EUCD = constrain(constrain(y_EUCD, there), here)

  def combine(y_ECD, slots, gates_TJ):
    return combine_slots(y_ECD.reshape(S, D), slots, gates_TJ)

  y_UTD = jax.vmap(combine, in_axes=(1, 0, 0))(y_EUCD, slots, choices.gates_NJ)
  kept_UTJ = (slots.slots_A < S).reshape(U, T, J)
  return y_UTD.astype(x_UTD.dtype), kept_UTJ


def _over(logical: str, size: int) -> str | None:
  """The axis if it divides the size: there may be too few groups; or None."""
  return None if size % layout.num_parts(logical) else logical


def dropless(x_UTD: jax.Array, choices: Choices, weights: Weights, form: Form) -> jax.Array:
  """Each expert takes all of its tokens.

  If devices split the experts, each sends its tokens to the devices of their
  experts, and gets the outputs back.
  """
  tokens = ('batch', _over('length', x_UTD.shape[1]), None)
  wide: Any = ('expert', None, 'mlp'), ('expert', 'mlp')
  narrow: Any = ('expert', 'mlp', None), ('expert', None)
  gate = None if weights.gate is None else wide
  local = functools.partial(_dropless_on_device, form=form, num_experts=choices.probs_NE.shape[-1])
  axes = tokens, tokens, tokens, Weights(wide, gate, narrow)
  run = layout.per_device(local, axes, tokens)
  U = len(x_UTD)
  args = x_UTD, choices.experts_NJ, choices.gates_NJ
  # Repeat the last row if there are too few to split, as in decoding.
  if more := -U % layout.num_parts('batch'):
    last = ((0, more), (0, 0), (0, 0))
    args = tuple(jnp.pad(y, last, mode='edge') for y in args)
  return run(*args, weights)[:U]


def _dropless_on_device(
  x_UTD: jax.Array,
  experts_UTJ: jax.Array,
  gates_UTJ: jax.Array,
  weights: Weights,
  *,
  form: Form,
  num_experts: int,
) -> jax.Array:
  """The outputs for this device's tokens, of experts wherever they are."""
  over_experts = layout.mesh_axes('expert')
  x_ND, experts_NJ, gates_NJ = (y.reshape(-1, y.shape[-1]) for y in (x_UTD, experts_UTJ, gates_UTJ))
  top_k, experts_A = experts_NJ.shape[-1], experts_NJ.reshape(-1)
  ranking = rank(experts_A, num_experts)
  A, held = len(experts_A), weights.widen[0].shape[0]
  size = grouped.block_size(A, held)
  if over_experts:
    counts_PE = jax.lax.all_gather(ranking.counts_E, over_experts)
    P, here = len(counts_PE), jax.lax.axis_index(over_experts)
    totals_PH = jnp.sum(counts_PE, axis=0).reshape(P, held)
    # One device may get all tokens, for each of its experts once.
    most = P * len(x_ND) * min(top_k, held)
    blocks = grouped.layout(totals_PH[here], most, size)
    bases_E = grouped.starts(totals_PH, size).reshape(-1)
    there, back = runs(counts_PE, here, bases_E)
    # Tokens are sent in the order of experts, and arrive in their slots.
    slots_A = ranking.starts_E[experts_A] + ranking.ranks_A
    slots = Slots(slots_A, ranking.order_A)
    x_AD = gather_slots(x_ND, slots, top_k)
    lengths = A, len(blocks.owners_X) * size
    x_SD: Any = exchange(over_experts, lengths, x_AD, there, back)
    y_SD = _multiply_blocks(x_SD, weights, form, blocks, A)
    y_AD: Any = exchange(over_experts, lengths[::-1], y_SD, back, there)
    y_ND = combine_slots(y_AD, slots, gates_NJ)
  else:
    blocks = grouped.layout(ranking.counts_E, A, size)
    bases_E = grouped.starts(ranking.counts_E, size)
    owners_S = jnp.repeat(blocks.owners_X, size)
    slots = place(ranking, experts_A, owners_S, bases_E)
    x_SD = gather_slots(x_ND, slots, top_k)
    y_SD = _multiply_blocks(x_SD, weights, form, blocks, A)
    y_ND = combine_slots(y_SD, slots, gates_NJ)
  # Summed by token, not by slot: there are fewer tokens.
  y_ND = jax.lax.psum(y_ND.astype(x_ND.dtype), layout.mesh_axes('mlp'))
  return y_ND.reshape(x_UTD.shape)


class Runs(NamedTuple):
  """Runs of rows that one device exchanges with the others.

  As many for each device, in the order of the devices.

  Attributes:
    starts_K: where each run begins in the sender's rows.
    sizes_K: number of rows of each.
    targets_K: where it begins in the receiver's rows.
    arriving_K: number of rows of each run that this device receives.
  """

  starts_K: jax.Array
  sizes_K: jax.Array
  targets_K: jax.Array
  arriving_K: jax.Array


def runs(counts_PE: jax.Array, here: jax.Array | int, bases_E: jax.Array) -> tuple[Runs, Runs]:
  """The runs of a device's tokens to the experts' devices, and back.

  Args:
    counts_PE: number of rows that each device sends to each expert. The devices
      hold equally many experts, in order.
    bases_E: where each expert's rows begin on its device. They are in the order
      of their senders; a sender's rows are in the order of the experts.
  """
  P, _ = counts_PE.shape
  starts_PE = jnp.cumsum(counts_PE, axis=1) - counts_PE
  slots_PE = bases_E[None] + jnp.cumsum(counts_PE, axis=0) - counts_PE

  def held(x_PE):  # the part of this device's experts, by sender
    return x_PE.reshape(P, P, -1)[:, here].reshape(-1)

  sent, got = counts_PE[here], held(counts_PE)
  return (
    Runs(starts_PE[here], sent, slots_PE[here], got),
    Runs(held(slots_PE), got, held(starts_PE), sent),
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def exchange(
  axes: tuple[str, ...], lengths: tuple[int, int], x_ND: jax.Array, there: Runs, back: Runs
) -> jax.Array:
  """Exchanges runs of rows between the devices along mesh axes.

  Args:
    lengths: number of rows here before and after.
    x_ND: the rows; those in no run are not sent.
    there: the runs, which do not overlap where they arrive.
    back: the runs that would undo it, which exchange the gradient.

  Returns:
    The rows that arrive, and zeros between them.
  """
  del back
  if platform() == 'tpu':
    out = jnp.zeros((lengths[1], x_ND.shape[1]), x_ND.dtype)
    return jax.lax.ragged_all_to_all(x_ND, out, *there, axis_name=axes)
  return _exchange_by_gather(axes, lengths, x_ND, there)


def _exchange_by_gather(axes, lengths, x_ND, there):
  """`jax.lax.ragged_all_to_all`, which XLA does not have for CPUs.

  Each device gathers all rows, and keeps its own.
  """
  starts_K, targets_K = (
    jax.lax.all_to_all(y, axes, split_axis=0, concat_axis=0, tiled=True)
    for y in (there.starts_K, there.targets_K)
  )
  x_PND = jax.lax.all_gather(x_ND, axes)
  P, K = len(x_PND), len(starts_K)
  first_K = jnp.arange(K) // (K // P) * lengths[0] + starts_K
  within_SK = jnp.arange(lengths[1])[:, None] - targets_K[None]
  arrives_SK = (within_SK >= 0) & (within_SK < there.arriving_K[None])
  # One run at most has a row.
  from_S = jnp.sum(jnp.where(arrives_SK, first_K[None] + within_SK, 0), axis=1)
  from_S = jnp.where(jnp.any(arrives_SK, axis=1), from_S, P * lengths[0])
  x_MD = x_PND.reshape(-1, x_ND.shape[1])
  return x_MD.at[from_S].get(mode='fill', fill_value=0)


def _exchange(axes, lengths, x_ND, there, back):
  return exchange(axes, lengths, x_ND, there, back), (there, back)


def _exchange_gradient(axes, lengths, saved, dy_SD):
  there, back = saved
  return exchange(axes, lengths[::-1], dy_SD, back, there), None, None


exchange.defvjp(_exchange, _exchange_gradient)


def _multiply_blocks(
  x_SD: jax.Array, weights: Weights, form: Form, blocks: grouped.Blocks, expected: int
) -> jax.Array:
  """Each slot through its expert, [S, D]; a partial sum if F is split.

  `expected` rows are in use if all experts are chosen equally often.
  """
  size = len(x_SD) // len(blocks.owners_X)
  over_width = layout.mesh_axes('mlp')

  def multiply(x_SD, weight):
    kernel, bias = weight
    y_SF = grouped.matmul(x_SD, kernel, blocks)
    if bias is None:
      return y_SF
    return y_SF + jnp.repeat(bias[blocks.owners_X], size, axis=0)

  def narrow(x_SF, weight):
    kernel, bias = weight
    if bias is not None and over_width:
      # Each device has a partial sum; only one of them adds the bias.
      first = jax.lax.axis_index(over_width) == 0
      bias = jnp.where(first, bias, 0)
    return multiply(x_SF, (kernel, bias))

  # For `plan`, which cannot see in a program how many blocks are in use: each
  # expert's last one is half full on average.
  used = min(expected + len(weights.widen[0]) * size // 2, len(x_SD))
  with jax.named_scope(f'rows_{used}'):
    return _feed_forward(x_SD, weights, form, multiply, narrow)


class Router(NamedTuple):
  """The arguments of `switch`, which explains them."""

  num_experts: int
  top_k: int
  capacity_factor: float | None
  eval_capacity_factor: float | None
  capacity: int
  group_size: int
  jitter: float
  balance: float
  z_loss: float
  renormalize: bool
  bias: bool = False

  def limited(self, training: bool) -> bool:
    """Whether experts have a capacity."""
    return bool(self.capacity) or self._factor(training) is not None

  def capacity_of(self, tokens: int, training: bool) -> int:
    """Slots of an expert for a group of `tokens`, if they are limited."""
    if self.capacity:
      # No expert gets a token twice, so more slots would stay empty.
      return min(self.capacity, tokens)
    factor = self._factor(training)
    assert factor is not None
    # 1e-9: in floating point 0.7 * 30 / 3 is slightly less than 7.
    size = math.floor(tokens * factor / self.num_experts + 1e-9)
    if size < 1:
      name = 'capacity_factor' if training else 'eval_capacity_factor'
      raise UsageError(
        f'model.ffn: {name}={factor} gives each of {self.num_experts} '
        f'experts {tokens * factor / self.num_experts:.3g} of the {tokens} '
        'tokens of a group, which rounds to zero; raise it, give a larger '
        'group_size, or take fewer experts'
      )
    return min(size, tokens)

  def _factor(self, training: bool) -> float | None:
    return self.capacity_factor if training else self.eval_capacity_factor

  def group_of(self, rows: int, length: int) -> int:
    """Tokens in a group, for rows [rows, length]."""
    size = self.group_size or length
    if rows * length % size or (size % length and length % size):
      raise UsageError(
        f'model.ffn: group_size={size} does not fit {rows} rows of {length} '
        'tokens; it must divide a row or be a whole number of rows, and all '
        'groups must be full: give 0 for one group a row'
      )
    return size


class Switch(nn.Module):
  """Owns the router and the experts; sows `RouterStats` into `router`."""

  router: Router
  form: Form
  d_ff: int
  bias: bool
  inits: Initializers
  dtype: Any
  matmul: Matmul | None = None

  @nn.compact
  def __call__(self, x_BLD: jax.Array, decoding: bool = False) -> jax.Array:
    """[B, L, D] -> [B, L, D].

    Decoding drops nothing: the division of a text into calls must not matter.
    Sows `router_logits` [B, L, E] and `router_kept` [B, L, J] into
    `intermediates`.
    """
    router, training = self.router, self.has_rng('dropout')
    B, L, D = x_BLD.shape
    T, capacity = L, None
    # Initialisation uses a token or two, which do not fill a group.
    whole = decoding or self.is_initializing()
    if router.limited(training) and not whole:
      T = router.group_of(B, L)
      capacity = router.capacity_of(T, training)
    x_UTD = x_BLD.reshape(-1, T, D)
    logits_UTE = self._logits(x_UTD, training)
    choices = choose(logits_UTE, router.top_k, router.renormalize)
    weights = self._weights(D)
    if capacity is None:
      y_UTD = dropless(x_UTD, choices, weights, self.form)
      kept_UTJ = jnp.ones_like(choices.experts_NJ, bool)
    else:
      y_UTD, kept_UTJ = with_capacity(x_UTD, choices, weights, self.form, capacity, self._product())
    if not self.is_initializing():  # `init` would return the sown values too
      stats = _stats(router, logits_UTE, choices, kept_UTJ)
      self.sow('router', 'stats', stats)
    for name, value in (('logits', logits_UTE), ('kept', kept_UTJ)):
      self.sow('intermediates', f'router_{name}', value.reshape(B, L, -1))
    return y_UTD.reshape(B, L, D)

  def _logits(self, x_UTD: jax.Array, training: bool) -> jax.Array:
    """The logits, in float32 whatever the compute dtype (section 2.4)."""
    D, E = x_UTD.shape[-1], self.router.num_experts
    scale = nn.initializers.variance_scaling(0.1, 'fan_in', 'truncated_normal')
    kernel, bias = _Router(scale, (D, E), self.router.bias, name='router')()
    x_UTD = x_UTD.astype(jnp.float32)
    if training and self.router.jitter:
      eps = self.router.jitter
      x_UTD *= draw_by_row(
        lambda key, shape: jax.random.uniform(key, shape, jnp.float32, 1 - eps, 1 + eps),
        self.make_rng('dropout'),
        x_UTD.shape,
      )
    logits = jnp.einsum('UTD,DE->UTE', x_UTD, kernel, precision='highest')
    return logits if bias is None else logits + bias[None, None]

  def _product(self) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The product of each expert's slots [E, U, C, in] and its kernel."""
    how = self.matmul
    if how is None or not self.has_rng('dropout'):
      return functools.partial(jnp.einsum, 'EUCD,EDF->EUCF')

    def product(x_EUCD, kernel_EDF):
      keys_E = jax.random.split(self.make_rng('dropout'), len(x_EUCD))
      hashes_EUC = jax.vmap(lambda k: token_hash(k, x_EUCD.shape[1:3]))(keys_E)
      return jax.vmap(how.product)(x_EUCD, kernel_EDF, hashes_EUC)

    return product

  def _weights(self, d_model: int) -> Weights:
    E, D, F = self.router.num_experts, d_model, self.d_ff
    widen = functools.partial(Expert, (E, D, F), ('expert', 'embed', 'mlp'), self.inits.kernel)
    narrow = functools.partial(Expert, (E, F, D), ('expert', 'mlp', 'embed'), self.inits.residual)
    make = {'bias': self.bias, 'dtype': self.dtype}
    return Weights(
      widen(**make, name='in')(),
      widen(**make, name='gate')() if self.form.gated else None,
      narrow(**make, name='out')(),
    )


class _Router(nn.Module):
  """Owns the router's matrix, and its bias if there is one."""

  initializer: Initializer
  shape: tuple[int, int]
  bias: bool

  @nn.compact
  def __call__(self) -> tuple[jax.Array, jax.Array | None]:
    axes = ('embed', 'router')
    kernel = parameter(self, 'kernel', self.initializer, self.shape, axes)
    if not self.bias:
      return kernel, None
    zeros = nn.initializers.zeros
    return kernel, parameter(self, 'bias', zeros, self.shape[1:], axes[1:])


def _stats(
  router: Router, logits_UTE: jax.Array, choices: Choices, kept_UTJ: jax.Array
) -> RouterStats:
  """The statistics of each group, averaged over groups."""
  probs_UTE, E = choices.probs_NE, router.num_experts
  chosen_UTJE = jax.nn.one_hot(choices.experts_NJ, E, dtype=bool)
  load_UE = jnp.mean(chosen_UTJE, axis=(1, 2), dtype=jnp.float32)
  balance = mean_over_rows(jax.vmap(load_balance)(probs_UTE, load_UE))
  log_z_UT = jax.nn.logsumexp(logits_UTE, axis=-1)
  z_loss = _over_tokens(jnp.square(log_z_UT))
  log_probs = logits_UTE - log_z_UT[..., None]
  return RouterStats(
    mean_over_rows(load_UE),
    1 - mean_over_rows(jnp.mean(kept_UTJ, axis=(1, 2), dtype=jnp.float32)),
    -_over_tokens(jnp.sum(probs_UTE * log_probs, axis=-1)),
    balance,
    z_loss,
    router.balance * balance + router.z_loss * z_loss,
  )


def _over_tokens(x_UT: jax.Array) -> jax.Array:
  return mean_over_rows(jnp.mean(x_UT, axis=1))


# The choice of `model.ffn`.


def switch(
  num_experts: Count,
  expert: Annotated[str, OneOf((*FORMS,))] = 'relu',
  top_k: Count = 1,
  capacity_factor: Any = 1.25,
  eval_capacity_factor: Any = 'none',
  capacity: Whole = 0,
  group_size: Whole = 0,
  jitter: Fraction = 0.01,
  balance: ranges.Weight = 0.01,
  z_loss: ranges.Weight = 0.0,
  renormalize: bool | None = None,
  router_bias: bool = False,
) -> FfnChoice:
  """A mixture of experts in place of a feed-forward layer.

  Args:
    num_experts: each has its own matrices, of width d_ff.
    expert: the form of each: the name of a feed-forward layer.
    top_k: experts of each token: 1 is Switch, 2 GShard and Mixtral.
    capacity_factor: in training an expert takes at most
      tokens of a group / num_experts * capacity_factor of them, in token
      order; the others skip the layer. 'none': it takes all.
    eval_capacity_factor: the same for evaluation. Generation drops nothing.
    capacity: the most tokens that an expert takes, instead of both factors.
    group_size: tokens of a group; 0: a row.
    jitter: in training the router's input is multiplied by random numbers
      from 1 - jitter to 1 + jitter.
    balance: alpha, the factor of the load-balancing loss.
    z_loss: factor of the router's z-loss (Zoph et al., 2022: ST-MoE, eq. 5).
    renormalize: the gates of a token sum to one, instead of being
      probabilities; None: if there are several.
    router_bias: whether the router has a bias.
  """
  if top_k > num_experts:
    most = f'must be from 1 to num_experts={num_experts}'
    raise _nonsense('top_k', top_k, most)
  router = Router(
    num_experts,
    top_k,
    _factor('capacity_factor', capacity_factor),
    _factor('eval_capacity_factor', eval_capacity_factor),
    capacity,
    group_size,
    jitter,
    balance,
    z_loss,
    top_k > 1 if renormalize is None else renormalize,
    router_bias,
  )
  return FfnChoice(functools.partial(Switch, router, FORMS[expert]), router)


def _factor(name: str, value: Any) -> float | None:
  """A capacity factor; None: no bound."""
  if value == 'none':
    return None
  if ranges.declared(Positive).problem(value):
    raise _nonsense(name, value, "must be a positive number or 'none'")
  return float(value)


def _nonsense(name: str, value: Any, remedy: str) -> UsageError:
  return UsageError(f'model.ffn: switch({name}={value!r}): {remedy}')
