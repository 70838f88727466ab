# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How much the classes of a task count in the loss."""

from collections.abc import Callable

import numpy as np

from gpt_jax.spec import UsageError

# Labels [N] and the number of classes to float32 weights [num_labels].
Build = Callable[[np.ndarray, int], np.ndarray]


def _balanced() -> Build:
  """Weights 1 / frequency, whose mean over the examples is 1."""

  def build(labels: np.ndarray, count: int) -> np.ndarray:
    seen = np.bincount(labels, minlength=count)
    return (len(labels) / (count * np.maximum(seen, 1))).astype(np.float32)

  return build


def _given(*weights: float) -> Build:
  """A weight for each class, in the order of the task's labels."""

  def build(labels: np.ndarray, count: int) -> np.ndarray:
    del labels
    if len(weights) != count or min(weights) < 0 or not sum(weights):
      raise UsageError(
        f'finetune.class_weights: weights{weights}: give {count} of them, none '
        'negative'
      )
    return np.array(weights, np.float32)

  return build


CLASS_WEIGHTS = {
  'none': lambda: None,
  'balanced': _balanced,
  'weights': _given,
}
