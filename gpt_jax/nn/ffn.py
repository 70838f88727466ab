# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The position-wise feed-forward layer."""

import functools
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
from flax import linen as nn

from gpt_jax import ranges
from gpt_jax.nn.activations import FORMS, Form
from gpt_jax.nn.dense import Dense
from gpt_jax.nn.init import Initializers
from gpt_jax.nn.moe import Router, Switch
from gpt_jax.ranges import Count, Fraction, OneOf, Positive, Weight, Whole
from gpt_jax.spec import UsageError


class FeedForward(nn.Module):
  """FFN(x) = act(x W_in + b) W_out + b, or, gated, (act(x W_gate) * x W_in)
  W_out (Shazeer 2020, GLU Variants Improve Transformer, eq. 6).
  """

  form: Form
  d_ff: int
  bias: bool
  inits: Initializers
  dtype: Any

  @nn.compact
  def __call__(self, x_BLD: jax.Array, decoding: bool = False) -> jax.Array:
    """[B, L, D] -> [B, L, D]; `decoding` matters to experts only."""
    del decoding
    dense = functools.partial(Dense, bias=self.bias, dtype=self.dtype)
    widen = functools.partial(
      dense, self.d_ff, ('embed', 'mlp'), self.inits.kernel
    )
    h_BLF = widen(name='in')(x_BLD)
    if self.form.gated:
      h_BLF *= self.form.activation(widen(name='gate')(x_BLD))
    else:
      h_BLF = self.form.activation(h_BLF)
    narrow = dense(
      x_BLD.shape[-1], ('mlp', 'embed'), self.inits.residual, name='out'
    )
    return narrow(h_BLF)


class Choice(NamedTuple):
  """A layer, and how it routes where it has experts."""

  make: Callable[..., nn.Module]
  router: Router | None = None


def dense(form: Form):
  """A choice without arguments."""
  return lambda: Choice(functools.partial(FeedForward, form))


def switch(
  num_experts: Count,
  expert: Annotated[str, OneOf((*FORMS,))] = 'relu',
  top_k: Count = 1,
  capacity_factor: Any = 1.25,
  eval_capacity_factor: Any = 'none',
  capacity: Whole = 0,
  group_size: Whole = 0,
  jitter: Fraction = 0.01,
  balance: Weight = 0.01,
  z_loss: Weight = 0.0,
  renormalize: bool | None = None,
  router_bias: bool = False,
) -> Choice:
  """A mixture of experts in the place of a feed-forward layer.

  Args:
    num_experts: each has its own matrices, of width d_ff.
    expert: what each of them is: a name of a feed-forward layer.
    top_k: experts of each token: 1 is Switch, 2 GShard and Mixtral.
    capacity_factor: in training an expert takes at most
      tokens of a group / num_experts * capacity_factor of them, in token
      order; the others skip the layer. 'none': it takes all.
    eval_capacity_factor: the same for evaluation. Generation drops nothing.
    capacity: the tokens that an expert takes, instead of both factors.
    group_size: tokens of a group; 0: a row.
    jitter: in training the router's input is multiplied by random numbers
      from 1 - jitter to 1 + jitter.
    balance: alpha, the factor of the load-balancing loss.
    z_loss: factor of the router's z-loss (Zoph et al., 2022: ST-MoE, eq. 5).
    renormalize: the gates of a token sum to one, instead of being
      probabilities; None: if there are several.
    router_bias: the router has one.
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
  return Choice(functools.partial(Switch, router, FORMS[expert]), router)


def _factor(name: str, value: Any) -> float | None:
  """A capacity factor; None: no bound."""
  if value == 'none':
    return None
  if ranges.declared(Positive).problem(value):
    raise _nonsense(name, value, "must be a positive number or 'none'")
  return float(value)


def _nonsense(name: str, value: Any, remedy: str) -> UsageError:
  return UsageError(f'model.ffn: switch({name}={value!r}): {remedy}')


FFNS: dict[str, Callable[..., Choice]] = {
  **{name: dense(form) for name, form in FORMS.items()},
  'switch': switch,
}
