# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Switch: a feed-forward layer of experts, of which each token takes one.

y = p_i(x) E_i(x), p = softmax(x W_r), i = argmax p (Fedus et al., 2021: Switch
Transformers, equations 1 and 2). Suffixes: G groups of T tokens, E experts, C
capacity; others as in `routing`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn import devices, grouped, routing
from gpt_jax.nn.activations import FORMS, Form
from gpt_jax.nn.dense import parameter
from gpt_jax.nn.init import Initializer, Initializers
from gpt_jax.nn.routing import Choices
from gpt_jax.nn.stack import len_then_name
from gpt_jax.spec import UsageError


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

  def limited(self, training: bool) -> bool:
    """Whether experts have a capacity."""
    return bool(self.capacity) or self._factor(training) is not None

  def capacity_of(self, tokens: int, training: bool) -> int:
    """Slots of an expert for a group of `tokens`, where they are limited.

    Raises:
      UsageError: none at all.
    """
    if self.capacity:
      return self.capacity
    factor = self._factor(training)
    assert factor is not None
    # 1e-9: 0.7 * 30 / 3 is a little less than 7 in floating point.
    size = math.floor(tokens * factor / self.num_experts + 1e-9)
    if size < 1:
      raise UsageError(
        f'model.ffn: capacity_factor={factor} gives each of {self.num_experts} '
        f'experts {tokens * factor / self.num_experts:.3g} of the {tokens} '
        'tokens of a group, which rounds to zero; raise it, give a larger '
        'group_size, or take fewer experts'
      )
    return size

  def _factor(self, training: bool) -> float | None:
    return self.capacity_factor if training else self.eval_capacity_factor

  def group_of(self, rows: int, length: int) -> int:
    """Tokens in a group, for rows [rows, length].

    Raises:
      UsageError: they do not fill whole groups.
    """
    size = self.group_size or length
    if rows * length % size or (size % length and length % size):
      raise UsageError(
        f'model.ffn: group_size={size} does not fit {rows} rows of {length} '
        'tokens; it must divide a row or be a whole number of rows, and all '
        'groups must be full: give 0 for one group a row'
      )
    return size


class Stats(NamedTuple):
  """What the router of one layer did: means over its tokens.

  Attributes:
    load_E: the fraction of the assignments that chose each expert, before any
      is dropped.
    dropped: the fraction of the assignments past their expert's capacity.
    entropy: of the probabilities, in nats; log(E) when they are uniform.
    balance: the load-balancing loss without its factor; 1 when balanced.
    z_loss: the mean of log(Z)^2 of the router's softmax, without its factor.
    penalty: what the layer adds to the loss: both, times their factors.
  """

  load_E: jax.Array
  dropped: jax.Array
  entropy: jax.Array
  balance: jax.Array
  z_loss: jax.Array
  penalty: jax.Array


class Switch(nn.Module):
  """Owns the router and the experts; sows `Stats` into `router`."""

  router: Router
  form: Form
  d_ff: int
  bias: bool
  inits: Initializers
  dtype: Any

  @nn.compact
  def __call__(self, x_BLD: jax.Array) -> jax.Array:
    """[B, L, D] -> [B, L, D].

    Sows `router_logits` [B, L, E] and `router_kept` [B, L, K] into
    `intermediates`.
    """
    router, training = self.router, self.has_rng('dropout')
    B, L, D = x_BLD.shape
    T, capacity = L, None
    # A model is initialised by a token or two, which fill no group.
    if router.limited(training) and not self.is_initializing():
      T = router.group_of(B, L)
      capacity = router.capacity_of(T, training)
    x_GTD = x_BLD.reshape(-1, T, D)
    logits_GTE = self._logits(x_GTD, training)
    choices = routing.choose(logits_GTE, router.top_k, router.renormalize)
    weights = self._weights(D)
    if capacity is None:
      y_GTD = _dropless(x_GTD, choices, weights, self.form)
      kept_GTK = jnp.ones_like(choices.experts_NK, bool)
    else:
      y_GTD, kept_GTK = _with_capacity(
        x_GTD, choices, weights, self.form, capacity
      )
    self.sow('router', 'stats', _stats(router, logits_GTE, choices, kept_GTK))
    for name, value in (('logits', logits_GTE), ('kept', kept_GTK)):
      self.sow('intermediates', f'router_{name}', value.reshape(B, L, -1))
    return y_GTD.reshape(B, L, D)

  def _logits(self, x_GTD: jax.Array, training: bool) -> jax.Array:
    """Float32 throughout, whatever else is computed in (section 2.4)."""
    D, E = x_GTD.shape[-1], self.router.num_experts
    scale = nn.initializers.variance_scaling(0.1, 'fan_in', 'truncated_normal')
    kernel = _Router(scale, (D, E), name='router')()
    x_GTD = x_GTD.astype(jnp.float32)
    if training and self.router.jitter:
      eps = self.router.jitter
      x_GTD *= jax.random.uniform(
        self.make_rng('dropout'), x_GTD.shape, jnp.float32, 1 - eps, 1 + eps
      )
    return jnp.einsum('GTD,DE->GTE', x_GTD, kernel, precision='highest')

  def _weights(self, d_model: int) -> 'Weights':
    E, D, F = self.router.num_experts, d_model, self.d_ff
    widen = functools.partial(
      Expert, (E, D, F), ('expert', 'embed', 'mlp'), self.inits.kernel
    )
    narrow = functools.partial(
      Expert, (E, F, D), ('expert', 'mlp', 'embed'), self.inits.residual
    )
    make = {'bias': self.bias, 'dtype': self.dtype}
    return Weights(
      widen(**make, name='in')(),
      widen(**make, name='gate')() if self.form.gated else None,
      narrow(**make, name='out')(),
    )


class _Router(nn.Module):
  """Owns the router's matrix."""

  initializer: Initializer
  shape: tuple[int, int]

  @nn.compact
  def __call__(self) -> jax.Array:
    axes = ('embed', 'router')
    return parameter(self, 'kernel', self.initializer, self.shape, axes)


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

    def each(key, shape, dtype):
      keys = jax.random.split(key, shape[0])
      # One by one: initialisers take the first axis for the input's.
      return jax.vmap(lambda k: self.initializer(k, shape[1:], dtype))(keys)

    kernel = parameter(self, 'kernel', each, self.shape, self.axes)
    kernel = kernel.astype(self.dtype)
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
  h = widen(x, weights.widen)
  if weights.gate is not None:
    h *= form.activation(widen(x, weights.gate))
  else:
    h = form.activation(h)
  return narrow(h, weights.narrow)


def _with_capacity(
  x_GTD: jax.Array,
  choices: Choices,
  weights: Weights,
  form: Form,
  capacity: int,
) -> tuple[jax.Array, jax.Array]:
  """Each expert takes its first `capacity` tokens of each group.

  The experts' inputs go from the devices that hold their groups to those that
  hold the experts, and back: an all-to-all each way.
  """
  G, T, D = x_GTD.shape
  E, K = choices.probs_NE.shape[-1], choices.experts_NK.shape[-1]
  S = E * capacity
  owners_S = jnp.arange(S) // capacity
  bases_E = jnp.arange(E) * capacity

  def slots_of(experts_A):
    ranking = routing.rank(experts_A, E)
    return routing.place(ranking, experts_A, owners_S, bases_E, capacity)

  slots = jax.vmap(slots_of)(choices.experts_NK.reshape(G, T * K))
  here = (None, 'batch', None, None)
  there = ('expert', 'group', None, None)
  constrain = nn.with_logical_constraint

  def gather(x_TD, slots):
    return routing.gather(x_TD, slots, K).reshape(E, capacity, D)

  x_EGCD = constrain(jax.vmap(gather, out_axes=1)(x_GTD, slots), here)
  x_EGCD = constrain(x_EGCD, there)

  def multiply(x_EGCD, weight):
    kernel, bias = weight
    y = jnp.einsum('EGCD,EDF->EGCF', x_EGCD, kernel)
    return y if bias is None else y + bias[:, None, None]

  y_EGCD = _feed_forward(x_EGCD, weights, form, multiply, multiply)
  y_EGCD = constrain(constrain(y_EGCD, there), here)

  def combine(y_ECD, slots, gates_TK):
    return routing.combine(y_ECD.reshape(S, D), slots, gates_TK)

  y_GTD = jax.vmap(combine, in_axes=(1, 0, 0))(
    y_EGCD, slots, choices.gates_NK
  )
  kept_GTK = (slots.slots_A < S).reshape(G, T, K)
  return y_GTD.astype(x_GTD.dtype), kept_GTK


def _dropless(
  x_GTD: jax.Array, choices: Choices, weights: Weights, form: Form
) -> jax.Array:
  """Each expert takes all of its tokens.

  Over several devices, each has the tokens of all that share the experts with
  it, and computes its own experts' part.
  """
  E, K = choices.probs_NE.shape[-1], choices.experts_NK.shape[-1]
  over_experts = devices.mesh_axes('expert')
  over_width = devices.mesh_axes('mlp')

  def local(x_GTD, experts_GTK, gates_GTK, weights):
    x_ND, experts_NK, gates_NK = (
      jax.lax.all_gather(y.reshape(-1, y.shape[-1]), over_experts, tiled=True)
      if over_experts
      else y.reshape(-1, y.shape[-1])
      for y in (x_GTD, experts_GTK, gates_GTK)
    )
    held = weights.widen[0].shape[0]
    experts_A = experts_NK.reshape(-1)
    if over_experts:
      experts_A -= jax.lax.axis_index(over_experts) * held
      # Those of other devices come last, and have no slots.
      experts_A = jnp.where(experts_A < 0, held, jnp.minimum(experts_A, held))
    ranking = routing.rank(experts_A, held)
    size = grouped.block_size(len(experts_A), E)
    blocks = grouped.layout(ranking, experts_A, size)

    def multiply(x_SD, weight, reduce=lambda y: y):
      kernel, bias = weight
      y_SF = reduce(grouped.matmul(x_SD, kernel, blocks))
      if bias is None:
        return y_SF
      return y_SF + jnp.repeat(bias[blocks.owners_X], size, axis=0)

    def narrow(x_SF, weight):
      return multiply(x_SF, weight, lambda y: jax.lax.psum(y, over_width))

    x_SD = routing.gather(x_ND, blocks.slots, K)
    y_SD = _feed_forward(x_SD, weights, form, multiply, narrow)
    y_ND = routing.combine(y_SD, blocks.slots, gates_NK).astype(x_ND.dtype)
    if over_experts:
      y_ND = jax.lax.psum_scatter(y_ND, over_experts, tiled=True)
    return y_ND.reshape(x_GTD.shape)

  tokens = ('batch', None, None)
  wide, narrow = ('expert', None, 'mlp'), ('expert', 'mlp', None)
  axes = Weights(
    (wide, ('expert', 'mlp')),
    None if weights.gate is None else (wide, ('expert', 'mlp')),
    (narrow, ('expert', None)),
  )
  run = devices.per_device(local, (tokens, tokens, tokens, axes), tokens)
  return run(x_GTD, choices.experts_NK, choices.gates_NK, weights)


def _stats(
  router: Router,
  logits_GTE: jax.Array,
  choices: Choices,
  kept_GTK: jax.Array,
) -> Stats:
  """Over groups: the mean of each group's own."""
  probs_GTE, E = choices.probs_NE, router.num_experts
  chosen_GTKE = choices.experts_NK[..., None] == jnp.arange(E)
  load_GE = jnp.mean(chosen_GTKE, axis=(1, 2), dtype=jnp.float32)
  balance = jnp.mean(jax.vmap(routing.load_balance)(probs_GTE, load_GE))
  log_z_GT = jax.nn.logsumexp(logits_GTE, axis=-1)
  z_loss = jnp.mean(jnp.square(log_z_GT))
  log_probs = logits_GTE - log_z_GT[..., None]
  return Stats(
    jnp.mean(load_GE, axis=0),
    1 - jnp.mean(kept_GTK, dtype=jnp.float32),
    -jnp.mean(jnp.sum(probs_GTE * log_probs, axis=-1)),
    balance,
    z_loss,
    router.balance * balance + router.z_loss * z_loss,
  )


def layer_stats(sown: Any) -> dict[str, Stats]:
  """The `Stats` of all layers with experts: `{'decoder': Stats}`.

  Args:
    sown: the collection `router`, from `apply(..., mutable=['router'])`.

  Returns:
    For each stack its layers' in order, as arrays with a leading axis.
  """
  stats = {}
  for stack, blocks in sown.items():
    period = blocks['periods']
    names = sorted(period, key=len_then_name)
    layers = [period[name]['ffn']['stats'][0] for name in names]
    stats[stack] = jax.tree.map(
      lambda *x: jnp.stack(x, axis=1).reshape(-1, *x[0].shape[1:]), *layers
    )
  return stats
