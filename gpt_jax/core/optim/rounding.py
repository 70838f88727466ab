# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Number formats of the parameters, stochastic rounding, moving average."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from etils import epy

from gpt_jax.core.optim.optimizer import Axes, Build, is_matrix
from gpt_jax.core.ranges import Fraction, Whole
from gpt_jax.core.spec import UsageError

with epy.lazy_imports():
  import jax
  import jax.numpy as jnp
  import optax

# Casts float32 parameters to the formats that they are stored in.
Precision = Callable[[Any], Any]


def to_float32(tree: Any) -> Any:
  """Casts all arrays to float32."""
  return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


def in_float32(build: Build) -> Build:
  """Wraps an optimizer so that it sees the parameters in float32."""

  def built(axes: Axes) -> 'optax.GradientTransformationExtraArgs':
    inner = optax.with_extra_args_support(build(axes))

    def update(updates, state, params=None, **extra):
      return inner.update(updates, state, to_float32(params), **extra)

    return optax.GradientTransformationExtraArgs(inner.init, update)

  return built


def add(params: Any, updates: Any, key: 'jax.Array') -> Any:
  """Params + updates in float32; bfloat16 is then rounded stochastically.

  Args:
    params: float32 or bfloat16.
    updates: float32.
    key: of the step; parameter i of the tree draws with `fold_in(key, i)`, on
      its global shape, so that no sharding changes the result.
  """
  leaves, tree = jax.tree.flatten(params)
  out = []
  for i, (param, update) in enumerate(zip(leaves, tree.flatten_up_to(updates), strict=True)):
    total = param.astype(jnp.float32) + update
    if param.dtype == jnp.bfloat16:
      total = stochastic_round(total, jax.random.fold_in(key, i))
    out.append(total)
  return tree.unflatten(out)


def stochastic_round(x: 'jax.Array', key: 'jax.Array') -> 'jax.Array':
  """Rounds float32 to one of its two bfloat16 neighbours, without bias.

  x = a + p (b - a) becomes b with probability p. bfloat16 is float32 without
  its last 16 bits: a uniform 16-bit number is added, whose carry rounds up,
  before they are cut off. Infinities and NaN are unchanged.
  """
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
  high = ((bits + noise) >> 16).astype(jnp.uint16)
  rounded = jax.lax.bitcast_convert_type(high, jnp.bfloat16)
  return jnp.where(jnp.isfinite(x), rounded, x.astype(jnp.bfloat16))


def float32() -> Precision:
  """All parameters in float32."""
  return lambda params: params


def bfloat16() -> Precision:
  """Kernels and tables in bfloat16, biases and norm scales in float32.

  The largest Gopher models keep their parameters in bfloat16 with stochastic
  rounding (section 3.2). The paper does not mention scales and biases: near 1
  the step of bfloat16 is 1/128, more than such a scale moves in a long time,
  and they are a thousandth of the memory. Initial weights are rounded to the
  nearest.
  """
  return lambda params: jax.tree_util.tree_map_with_path(
    lambda path, x: x.astype(jnp.bfloat16) if is_matrix(path) else x, params
  )


PRECISIONS = {'bfloat16': bfloat16, 'float32': float32}


# An average of the weights, for evaluation.


class Average(NamedTuple):
  """An average of the parameters.

  Attributes:
    update: from the average so far, the new parameters, the number of steps
      that made them, and `start`, to the new average.
    patience: if not 0, evaluations decide `start`, the number of steps after
      which parameters are averaged: see `start_of`.
  """

  update: Callable[[Any, Any, 'jax.Array', 'jax.Array | None'], Any]
  patience: int = 0

  def start_of(self, held_out: Sequence[tuple[int, float]]) -> int:
    """The step at which averaging starts; `NEVER` if it has not yet.

    It is the first evaluation whose loss is above the lowest loss of all but
    the `patience` evaluations before it: NT-ASGD (Merity et al. 2017,
    algorithm 1).

    Args:
      held_out: step and loss of each evaluation so far.
    """
    if not self.patience:
      return NEVER
    for i, (step, loss) in enumerate(held_out):
      earlier = [value for _, value in held_out[: max(i - self.patience, 0)]]
      if earlier and loss > min(earlier):
        return step
    return NEVER


# A step that no run reaches.
NEVER = 2**31 - 1


def ema(decay: Fraction = 0.999) -> Average:
  """Keeps average <- decay * average + (1 - decay) * parameters, in float32.

  It starts at the initial parameters; 0.999 averages over about 1000 steps.
  """

  def update(average: Any, params: Any, step: 'jax.Array', start: Any) -> Any:
    del step, start
    return jax.tree.map(lambda a, p: a + (1 - decay) * (p - a), average, to_float32(params))

  return Average(update)


def mean(start: Whole = 0, patience: Whole = 0) -> Average:
  """The mean of the parameters after step `start` and those that follow.

  Averaged SGD (Polyak and Juditsky 1992), as AWD-LSTM is evaluated (Merity et
  al. 2017, algorithm 1: T = start). Until then it is the parameters themselves.

  Args:
    start: number of steps.
    patience: n of NT-ASGD, which the paper sets to 5: averaging starts instead
      at the first evaluation whose loss is above the lowest loss of all but the
      n evaluations before it.
  """
  if start and patience:
    raise UsageError(
      f'optim.ema: mean(start={start}, patience={patience}): each says when to '
      'start; give one of them'
    )

  def update(average: Any, params: Any, step: 'jax.Array', decided: Any) -> Any:
    first = start if decided is None else decided
    number = (step - first + 1).astype(jnp.float32)
    return jax.tree.map(
      lambda a, p: jnp.where(step > first, a + (p - a) / number, p), average, to_float32(params)
    )

  return Average(update, patience)


def none() -> None:
  """No average is kept."""


AVERAGES = {'ema': ema, 'mean': mean, 'none': none}
