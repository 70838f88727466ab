# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norms by layer in metrics.jsonl: see `training.norms`.

A line of its own for each of these steps has them as `KIND/STACK/layer_N`, such
as `gradient_norm/decoder/layer_3`, or `KIND/PART`, such as `update_norm/embed`;
layers are counted from 0.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

# What is measured, and what it is.
KINDS = {
  'gradient_norm': "Euclidean norm of the loss's gradient, before clipping",
  'parameter_norm': 'Euclidean norm of the parameters, before the update',
  'update_norm': 'Euclidean norm of what the step adds to the parameters',
  'activation_rms': 'root mean square of the residual stream after the layer',
  'largest_logit': 'largest attention logit, before softmax and softcap',
}


def lines(
  last: int, outputs: Sequence[dict[str, Any]], every: int
) -> Iterator[tuple[int, dict[str, float]]]:
  """Steps with norms, and the norms by their names in metrics.jsonl.

  Args:
    last: the number of the last step.
    outputs: of the steps up to it.
    every: `log.norms_every_steps`.
  """
  for step, output in enumerate(outputs, start=last - len(outputs) + 1):
    if step % every == 0:
      yield step, dict(_named(output['norms']))


def _named(found: Mapping[str, np.ndarray]) -> Iterator[tuple[str, float]]:
  for name, norms in sorted(found.items()):
    if not np.ndim(norms):
      yield name, _shortest(norms)
      continue
    for layer, value in enumerate(norms):
      # A layer that reports none, such as one of blocks, has -inf.
      if value != -math.inf:
        yield f'{name}/layer_{layer}', _shortest(value)


def _shortest(value: np.ndarray) -> float:
  """A float32 in as few digits as give it back."""
  return float(str(np.float32(value)))
