# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rotary position embeddings (RoFormer, Su et al. 2021, section 3.2.2).

Each pair of features of a query or key is turned by an angle that grows with
the position: q_m k_n then depends on the positions through m - n alone.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.ranges import Count, NotNegative, Positive
from gpt_jax.spec import UsageError

# (head features that turn, theta) -> (radians a position [K / 2], scale of
# cosine and sine).
Frequencies = Callable[[int, float], tuple[np.ndarray, float]]


def none() -> Frequencies:
  """theta^(-2 i / K), i from 0 to K / 2 - 1."""
  return lambda size, theta: (_frequencies(size, theta), 1.0)


def linear(factor: Positive) -> Frequencies:
  """Position interpolation (Chen et al. 2023): positions / factor."""
  return lambda size, theta: (_frequencies(size, theta) / factor, 1.0)


def llama3(
  factor: Positive,
  original_context: Count,
  low_freq_factor: Positive = 1.0,
  high_freq_factor: Positive = 4.0,
) -> Frequencies:
  """LLaMA 3.1: long waves are interpolated, short ones kept, a ramp between.

  A wave is long if it fits the original context fewer than `low_freq_factor`
  times, and short from `high_freq_factor` times on.
  """
  if high_freq_factor <= low_freq_factor:
    raise UsageError(
      f'model.position: scaling: high_freq_factor={high_freq_factor} must be '
      f'above low_freq_factor={low_freq_factor}'
    )

  def build(size: int, theta: float) -> tuple[np.ndarray, float]:
    frequencies = _frequencies(size, theta)
    times = original_context * frequencies / (2 * math.pi)
    ramp = (times - low_freq_factor) / (high_freq_factor - low_freq_factor)
    keep = np.clip(ramp, 0, 1)
    return frequencies * (keep + (1 - keep) / factor), 1.0

  return build


def yarn(
  factor: Positive,
  original_context: Count,
  beta_fast: Positive = 32.0,
  beta_slow: Positive = 1.0,
  attention_factor: NotNegative = 0.0,
  truncate: bool = True,
) -> Frequencies:
  """YaRN (Peng et al. 2023, section 3): interpolation by parts, and a scale.

  The ramp runs over feature indices, between those whose waves fit the
  original context `beta_fast` and `beta_slow` times (rounded outwards if
  `truncate`). Cosine and sine are scaled by 0.1 ln(factor) + 1, or by
  `attention_factor` if it is not 0.
  """

  def build(size: int, theta: float) -> tuple[np.ndarray, float]:
    def index(times: float) -> float:
      waves = original_context / (times * 2 * math.pi)
      return size * math.log(waves) / (2 * math.log(theta))

    low, high = index(beta_fast), index(beta_slow)
    if truncate:
      low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    # Released code lets the ramp run backwards if the bounds have crossed.
    span = high - low or 0.001
    interpolated = np.clip((np.arange(size // 2) - low) / span, 0, 1)
    frequencies = _frequencies(size, theta)
    scale = attention_factor or 0.1 * math.log(factor) + 1
    if factor <= 1 and not attention_factor:
      scale = 1.0
    return frequencies * (1 - interpolated * (1 - 1 / factor)), scale

  return build


SCALINGS = {'linear': linear, 'llama3': llama3, 'none': none, 'yarn': yarn}
LAYOUTS = ('half', 'interleaved')


def make_rotate(
  theta: float, fraction: float, layout: str, scaling: str
) -> Callable[[jax.Array, jax.Array], jax.Array]:
  """Returns the function that turns [B, L, H, K] by positions [B or 1, L].

  Args:
    theta: base of the angles.
    fraction: of each head's features that turn; the rest stay.
    layout: pairs are (i, i + K / 2) for `half` (LLaMA in HF, GPT-NeoX) and
      (2 i, 2 i + 1) for `interleaved` (RoFormer, GPT-J, PaLM).
    scaling: a call of `SCALINGS`.

  Raises:
    UsageError: names the argument.
  """
  if layout not in LAYOUTS:
    raise UsageError(
      f'model.position: layout={layout!r}: unknown; one of '
      + ', '.join(LAYOUTS)
    )
  frequencies = spec.build('model.position: scaling', scaling, SCALINGS)

  def rotate(x_BLHK: jax.Array, positions_BL: jax.Array) -> jax.Array:
    size = int(x_BLHK.shape[-1] * fraction)
    if size % 2 or not size:
      raise UsageError(
        f'model.position: fraction={fraction} of a head of {x_BLHK.shape[-1]} '
        f'is {size} features: must be an even number from 2'
      )
    radians, scale = frequencies(size, theta)
    radians = jnp.asarray(radians, jnp.float32)
    angles_BL1I = (
      positions_BL.astype(jnp.float32)[:, :, None, None]
      * radians[None, None, None]
    )
    cos, sin = jnp.cos(angles_BL1I) * scale, jnp.sin(angles_BL1I) * scale
    x, rest = x_BLHK[..., :size].astype(jnp.float32), x_BLHK[..., size:]
    if layout == 'half':
      a, b = jnp.split(x, 2, axis=-1)
    else:
      a, b = x[..., 0::2], x[..., 1::2]
    turned = [a * cos - b * sin, b * cos + a * sin]
    if layout == 'half':
      out = jnp.concatenate(turned, axis=-1)
    else:
      out = jnp.stack(turned, axis=-1).reshape(x.shape)
    return jnp.concatenate([out.astype(x_BLHK.dtype), rest], axis=-1)

  return rotate


def _frequencies(size: int, theta: float) -> np.ndarray:
  return theta ** (-np.arange(0, size, 2) / size)
