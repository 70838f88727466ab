# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Switch: a feed-forward layer of experts, of which each token takes one.

y = p_i(x) E_i(x), p = softmax(x W_r), i = argmax p (Fedus et al., 2021: Switch
Transformers, equations 1 and 2). Suffixes: U groups of T tokens, E experts, C
capacity; others as in `routing`.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn import batch_rows, experts, routing
from gpt_jax.nn.activations import Form
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
  bias: bool = False

  def limited(self, training: bool) -> bool:
    """Whether experts have a capacity."""
    return bool(self.capacity) or self._factor(training) is not None

  def capacity_of(self, tokens: int, training: bool) -> int:
    """Slots of an expert for a group of `tokens`, where they are limited.

    Raises:
      UsageError: none at all.
    """
    if self.capacity:
      # No expert gets a token twice, so more slots would stay empty.
      return min(self.capacity, tokens)
    factor = self._factor(training)
    assert factor is not None
    # 1e-9: 0.7 * 30 / 3 is a little less than 7 in floating point.
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
  def __call__(self, x_BLD: jax.Array, decoding: bool = False) -> jax.Array:
    """[B, L, D] -> [B, L, D].

    Decoding drops nothing: where a text was cut into calls must not matter.
    Sows `router_logits` [B, L, E] and `router_kept` [B, L, J] into
    `intermediates`.
    """
    router, training = self.router, self.has_rng('dropout')
    B, L, D = x_BLD.shape
    T, capacity = L, None
    # A model is initialised by a token or two, which fill no group.
    whole = decoding or self.is_initializing()
    if router.limited(training) and not whole:
      T = router.group_of(B, L)
      capacity = router.capacity_of(T, training)
    x_UTD = x_BLD.reshape(-1, T, D)
    logits_UTE = self._logits(x_UTD, training)
    choices = routing.choose(logits_UTE, router.top_k, router.renormalize)
    weights = self._weights(D)
    if capacity is None:
      y_UTD = experts.dropless(x_UTD, choices, weights, self.form)
      kept_UTJ = jnp.ones_like(choices.experts_NJ, bool)
    else:
      y_UTD, kept_UTJ = experts.with_capacity(
        x_UTD, choices, weights, self.form, capacity
      )
    if not self.is_initializing():  # or it would stand beside the parameters
      stats = _stats(router, logits_UTE, choices, kept_UTJ)
      self.sow('router', 'stats', stats)
    for name, value in (('logits', logits_UTE), ('kept', kept_UTJ)):
      self.sow('intermediates', f'router_{name}', value.reshape(B, L, -1))
    return y_UTD.reshape(B, L, D)

  def _logits(self, x_UTD: jax.Array, training: bool) -> jax.Array:
    """Float32 throughout, whatever else is computed in (section 2.4)."""
    D, E = x_UTD.shape[-1], self.router.num_experts
    scale = nn.initializers.variance_scaling(0.1, 'fan_in', 'truncated_normal')
    kernel, bias = _Router(scale, (D, E), self.router.bias, name='router')()
    x_UTD = x_UTD.astype(jnp.float32)
    if training and self.router.jitter:
      eps = self.router.jitter
      x_UTD *= batch_rows.draw(
        lambda key, shape: jax.random.uniform(
          key, shape, jnp.float32, 1 - eps, 1 + eps
        ),
        self.make_rng('dropout'),
        x_UTD.shape,
      )
    logits = jnp.einsum('UTD,DE->UTE', x_UTD, kernel, precision='highest')
    return logits if bias is None else logits + bias[None, None]

  def _weights(self, d_model: int) -> experts.Weights:
    E, D, F = self.router.num_experts, d_model, self.d_ff
    widen = functools.partial(
      experts.Expert, (E, D, F), ('expert', 'embed', 'mlp'), self.inits.kernel
    )
    narrow = functools.partial(
      experts.Expert, (E, F, D), ('expert', 'mlp', 'embed'), self.inits.residual
    )
    make = {'bias': self.bias, 'dtype': self.dtype}
    return experts.Weights(
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
  router: Router,
  logits_UTE: jax.Array,
  choices: Choices,
  kept_UTJ: jax.Array,
) -> Stats:
  """Over groups: the mean of each group's own."""
  probs_UTE, E = choices.probs_NE, router.num_experts
  chosen_UTJE = jax.nn.one_hot(choices.experts_NJ, E, dtype=bool)
  load_UE = jnp.mean(chosen_UTJE, axis=(1, 2), dtype=jnp.float32)
  balance = batch_rows.mean(jax.vmap(routing.load_balance)(probs_UTE, load_UE))
  log_z_UT = jax.nn.logsumexp(logits_UTE, axis=-1)
  z_loss = _over_tokens(jnp.square(log_z_UT))
  log_probs = logits_UTE - log_z_UT[..., None]
  return Stats(
    batch_rows.mean(load_UE),
    1 - batch_rows.mean(jnp.mean(kept_UTJ, axis=(1, 2), dtype=jnp.float32)),
    -_over_tokens(jnp.sum(probs_UTE * log_probs, axis=-1)),
    balance,
    z_loss,
    router.balance * balance + router.z_loss * z_loss,
  )


def _over_tokens(x_UT: jax.Array) -> jax.Array:
  return batch_rows.mean(jnp.mean(x_UT, axis=1))


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
