# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sines and cosines of positions or distances."""

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.spec import UsageError


def sinusoids(positions: jax.Array, d_model: int, *, layout: str) -> jax.Array:
  """Sines and cosines of positions / 10000^(2 i / d_model), float32.

  `interleaved` puts sine and cosine of one wave side by side (the paper's);
  `halves` puts all sines before all cosines (tensor2tensor, Transformer-XL).
  """
  if d_model % 2:
    raise UsageError(
      f'model.d_model={d_model}: must be even, for pairs of sine and cosine'
    )
  waves = 10_000.0 ** (-np.arange(0, d_model, 2) / d_model)
  waves = jnp.asarray(waves, jnp.float32)
  lead = (1,) * positions.ndim + (-1,)
  angles = positions.astype(jnp.float32)[..., None] * waves.reshape(lead)
  both = [jnp.sin(angles), jnp.cos(angles)]
  if layout == 'halves':
    return jnp.concatenate(both, axis=-1)
  return jnp.stack(both, axis=-1).reshape(*positions.shape, d_model)
