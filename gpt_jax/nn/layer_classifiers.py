# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A classifier of the vocabulary for each layer (Al-Rfou et al. 2018)."""

import jax
from flax import linen as nn

from gpt_jax.nn.dense import parameter
from gpt_jax.nn.init import Initializer


class LayerClassifiers(nn.Module):
  """Bias-free classifiers of states: logits of layer n are h_n kernel_n^T.

  The shape is that of the kernel, [N, V, D].
  """

  shape: tuple[int, int, int]
  initializer: Initializer

  @nn.compact
  def __call__(self) -> jax.Array:
    """The kernel."""
    axes = ('layers', 'vocab', 'embed')
    return parameter(self, 'kernel', self.initializer, self.shape, axes)
