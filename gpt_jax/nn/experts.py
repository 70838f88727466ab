# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The experts of a layer: their matrices, and how the tokens reach them.

Suffixes: U groups of T tokens, E experts, C capacity; others as in `routing`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn import devices, grouped, layout, routing
from gpt_jax.nn.activations import Form
from gpt_jax.nn.dense import parameter
from gpt_jax.nn.init import Initializer
from gpt_jax.nn.routing import Choices


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
      # One by one: initialisers take the first axis for the input's.
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
  """`ffn.FeedForward` of every expert, by what multiplies them."""
  # The parameters' names, by which `plan` tells their gradients apart.
  with jax.named_scope('in'):
    h = widen(x, weights.widen)
  if weights.gate is not None:
    with jax.named_scope('gate'):
      gate = widen(x, weights.gate)
    h *= form.activation(gate)
  else:
    h = form.activation(h)
  with jax.named_scope('out'):
    return narrow(h, weights.narrow)


def with_capacity(
  x_UTD: jax.Array,
  choices: Choices,
  weights: Weights,
  form: Form,
  capacity: int,
) -> tuple[jax.Array, jax.Array]:
  """Each expert takes its first `capacity` assignments of each group.

  First by token, then by choice, so that a token's place depends on earlier
  tokens only. (GShard gives all first choices a place before any second: no
  causal model can.)

  The experts' inputs go from the devices that hold their groups to those that
  hold the experts, and back: an all-to-all each way.
  """
  U, T, D = x_UTD.shape
  E, J = choices.probs_NE.shape[-1], choices.experts_NJ.shape[-1]
  S = E * capacity
  owners_S = jnp.arange(S) // capacity
  bases_E = jnp.arange(E) * capacity

  def slots_of(experts_A):
    ranking = routing.rank(experts_A, E)
    return routing.place(ranking, experts_A, owners_S, bases_E, capacity)

  slots = jax.vmap(slots_of)(choices.experts_NJ.reshape(U, T * J))
  here = (None, _over('batch', U), None, None)
  # Devices that have parts of the same rows share each expert's tokens.
  there = ('expert', _over('group', U), _over('length', capacity), None)
  constrain = nn.with_logical_constraint

  def gather(x_TD, slots):
    return routing.gather(x_TD, slots, J).reshape(E, capacity, D)

  x_EUCD = constrain(jax.vmap(gather, out_axes=1)(x_UTD, slots), here)
  x_EUCD = constrain(x_EUCD, there)

  def multiply(x_EUCD, weight):
    kernel, bias = weight
    y = jnp.einsum('EUCD,EDF->EUCF', x_EUCD, kernel)
    return y if bias is None else y + bias[:, None, None]

  y_EUCD = _feed_forward(x_EUCD, weights, form, multiply, multiply)
  y_EUCD = constrain(constrain(y_EUCD, there), here)

  def combine(y_ECD, slots, gates_TJ):
    return routing.combine(y_ECD.reshape(S, D), slots, gates_TJ)

  y_UTD = jax.vmap(combine, in_axes=(1, 0, 0))(y_EUCD, slots, choices.gates_NJ)
  kept_UTJ = (slots.slots_A < S).reshape(U, T, J)
  return y_UTD.astype(x_UTD.dtype), kept_UTJ


def _over(logical: str, size: int) -> str | None:
  """The axis, where it splits evenly: groups of several rows may be too few."""
  return None if size % devices.num_parts(logical) else logical


def dropless(
  x_UTD: jax.Array, choices: Choices, weights: Weights, form: Form
) -> jax.Array:
  """Each expert takes all of its tokens.

  Over several devices, each has the tokens of all that share the experts with
  it, and computes its own experts' part.
  """
  tokens = ('batch', _over('length', x_UTD.shape[1]), None)
  wide: Any = ('expert', None, 'mlp'), ('expert', 'mlp')
  narrow: Any = ('expert', 'mlp', None), ('expert', None)
  gate = None if weights.gate is None else wide
  local = functools.partial(
    _dropless_on_device, form=form, num_experts=choices.probs_NE.shape[-1]
  )
  axes = tokens, tokens, tokens, Weights(wide, gate, narrow)
  run = devices.per_device(local, axes, tokens)
  # Rows of zeros, where there are too few to split, as in generation.
  U = len(x_UTD)
  more = -U % devices.num_parts('batch')
  x_UTD, experts_UTJ, gates_UTJ = (
    jnp.pad(y, ((0, more), (0, 0), (0, 0)))
    for y in (x_UTD, choices.experts_NJ, choices.gates_NJ)
  )
  return run(x_UTD, experts_UTJ, gates_UTJ, weights)[:U]


def _dropless_on_device(
  x_UTD: jax.Array,
  experts_UTJ: jax.Array,
  gates_UTJ: jax.Array,
  weights: Weights,
  *,
  form: Form,
  num_experts: int,
) -> jax.Array:
  """What the experts that this device holds make of all tokens."""
  over_experts = devices.mesh_axes('expert')
  x_ND, experts_NJ, gates_NJ = (
    jax.lax.all_gather(y.reshape(-1, y.shape[-1]), over_experts, tiled=True)
    if over_experts
    else y.reshape(-1, y.shape[-1])
    for y in (x_UTD, experts_UTJ, gates_UTJ)
  )
  held = weights.widen[0].shape[0]
  experts_A = experts_NJ.reshape(-1)
  if over_experts:
    experts_A -= jax.lax.axis_index(over_experts) * held
    # Those of other devices come last, and have no slots.
    experts_A = jnp.where(experts_A < 0, held, jnp.minimum(experts_A, held))
  size = grouped.block_size(len(experts_A), num_experts)
  blocks = grouped.layout(routing.rank(experts_A, held), experts_A, size)
  x_SD = routing.gather(x_ND, blocks.slots, experts_NJ.shape[-1])
  y_SD = _multiply_blocks(x_SD, weights, form, blocks, size)
  y_ND = routing.combine(y_SD, blocks.slots, gates_NJ).astype(x_ND.dtype)
  # Tokens are fewer than slots.
  y_ND = jax.lax.psum(y_ND, devices.mesh_axes('mlp'))
  if over_experts:
    y_ND = jax.lax.psum_scatter(y_ND, over_experts, tiled=True)
  return y_ND.reshape(x_UTD.shape)


def _multiply_blocks(
  x_SD: jax.Array,
  weights: Weights,
  form: Form,
  blocks: grouped.Blocks,
  size: int,
) -> jax.Array:
  """Each slot through its expert, [S, D]; a part of it where F is split."""
  over_width = devices.mesh_axes('mlp')

  def multiply(x_SD, weight):
    kernel, bias = weight
    y_SF = grouped.matmul(x_SD, kernel, blocks)
    if bias is None:
      return y_SF
    return y_SF + jnp.repeat(bias[blocks.owners_X], size, axis=0)

  def narrow(x_SF, weight):
    kernel, bias = weight
    if bias is not None and over_width:
      # Each device has a part of the sum; one of them adds the bias to it.
      first = jax.lax.axis_index(over_width) == 0
      bias = jnp.where(first, bias, 0)
    return multiply(x_SF, (kernel, bias))

  return _feed_forward(x_SD, weights, form, multiply, narrow)
