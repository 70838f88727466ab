# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether a small encoder can learn a task at all."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from tests.support import tiny

ROWS = 64
# From a key to a row of tokens, a place, and what is to be predicted there.
Example = Callable[[jax.Array], tuple[jax.Array, jax.Array, jax.Array]]


def accuracy(example: Example, *, steps: int, **fields: Any) -> float:
  """Trains on rows that never come again; the share right of further ones."""
  sizes = dict(d_model=32, num_heads=2, num_kv_heads=2, head_size=16, d_ff=32)
  init = 'normal(stddev=0.2)'
  model = tiny.model(**sizes, loop='unroll', init_weights=init, **fields)

  def logits(params: Any, rows: jax.Array, at: jax.Array) -> jax.Array:
    variables = {'params': params}
    out: Any = model.apply(variables, rows)
    here = jnp.take_along_axis(out.hidden_BLD, at[:, None, None], axis=1)
    return model.apply(variables, here, method='logits')[:, 0]

  def batch(number: jax.Array) -> Any:
    key = jax.random.fold_in(jax.random.key(1), number)
    return jax.vmap(example)(jax.random.split(key, ROWS))

  optimizer = optax.adam(3e-3)

  def step(state: Any, number: jax.Array) -> Any:
    rows, at, wanted = batch(number)

    def loss(params: Any) -> jax.Array:
      scores = logits(params, rows, at)
      each = optax.softmax_cross_entropy_with_integer_labels(scores, wanted)
      return each.mean()

    grads = jax.grad(loss)(state[0])
    updates, moments = optimizer.update(grads, state[1])
    return (optax.apply_updates(state[0], updates), moments), None

  def right(params: Any, number: jax.Array) -> jax.Array:
    rows, at, wanted = batch(number)
    return jnp.mean(logits(params, rows, at).argmax(-1) == wanted)

  @jax.jit
  def whole() -> jax.Array:
    rows, *_ = batch(jnp.int32(0))
    params: Any = model.init(jax.random.key(0), rows)['params']
    params = nn.meta.unbox(params)
    state = params, optimizer.init(params)
    (params, _), _ = jax.lax.scan(step, state, jnp.arange(steps))
    return jnp.mean(jax.lax.map(lambda n: right(params, n), steps + jnp.arange(8)))

  return float(whole())
