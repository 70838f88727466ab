# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which parameters weight decay acts on."""

from typing import Any

import jax

# Weights decay; biases and norm scales do not (GPT-1, section 4.1).
DECAYED = ('embedding', 'kernel')


def is_matrix(path: Any) -> bool:
  """True for a kernel or a table, by the last name of its path."""
  return any(word in path[-1].key for word in DECAYED)


def decay_mask(params: Any) -> Any:
  """True for each parameter that weight decay acts on."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: is_matrix(path), params
  )
