# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of which only a part is to be predicted: a prefix, then its target.

For fine-tuning on tasks (GPT-1, section 3.2; T5, section 2.4): the model reads
the prefix and is trained on the target alone. The batch has the arrays that
`objectives.causal` takes, so the same training step serves.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.spec import UsageError


class Example(NamedTuple):
  """Ids of one example, without any end of document."""

  prefix: Sequence[int] | np.ndarray
  target: Sequence[int] | np.ndarray


def prefix_target(
  examples: Iterable[Example], *, length: int, eos_id: int
) -> dict[str, np.ndarray]:
  """Makes one row of each example: eos, prefix, target, eos, padding.

  As in pre-training a text follows an eos and ends with one, which counts as
  part of the target. Only the target has weight 1: the prefix, which may be
  empty, and the padding have 0. The padding stands behind all that counts, so
  that causal attention never sees it.

  Args:
    examples: ids; the first tokens of a prefix are left out where a row is too
      short for it.
    length: of the rows, in targets.
    eos_id: the end of a document, also the padding.

  Returns:
    `inputs` and `targets` int32 [B, length], `weights` float32 [B, length].

  Raises:
    UsageError: a target alone does not fit into a row.
  """
  examples = list(examples)
  tokens = np.full((len(examples), length + 1), eos_id, np.int32)
  weights = np.zeros((len(examples), length), np.float32)
  for i, (prefix, target) in enumerate(examples):
    room = length - len(target) - 1  # for the prefix; an eos ends the target
    if room < 0:
      raise UsageError(
        f'model.context_length={length}: the target of example {i} has '
        f'{len(target)} tokens and an eos, which is more; raise it, or leave '
        'the example out'
      )
    kept = len(prefix) - max(len(prefix) - room, 0)
    stop = 1 + kept + len(target)  # behind the eos in front
    tokens[i, 1 : 1 + kept] = np.asarray(prefix, np.int32)[len(prefix) - kept :]
    tokens[i, 1 + kept : stop] = target
    weights[i, kept:stop] = 1
  return {
    'inputs': np.ascontiguousarray(tokens[:, :-1]),
    'targets': np.ascontiguousarray(tokens[:, 1:]),
    'weights': weights,
  }
