# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The position-wise feed-forward layer."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

from gpt_jax.nn import moe
from gpt_jax.nn.activations import FORMS, Form
from gpt_jax.nn.dense import Dense
from gpt_jax.nn.init import Initializers


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
  def __call__(self, x_BLD: jax.Array) -> jax.Array:
    """[B, L, D] -> [B, L, D]."""
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


def dense(form: Form):
  """A choice without arguments."""
  return lambda: functools.partial(FeedForward, form)


FFNS: dict[str, Callable[..., Callable[..., nn.Module]]] = {
  **{name: dense(form) for name, form in FORMS.items()},
  'switch': moe.switch,
}
