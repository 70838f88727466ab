# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What stands on the body besides a language model: the same for all families.

A `kind` is `lm`, `double` (a language model and a multiple-choice head),
`classification` or `body`. The parameters of heads are `params['heads']`,
beside those of `Transformer`, which ignores them.
"""

from typing import Any

import numpy as np

from gpt_jax.hf.base import Options, Tensor, linear, transposed

KINDS = ('lm', 'double', 'classification', 'body')


def check(kind: str, options: Options) -> None:
  """Refuses options of heads that we do not compute."""
  if kind == 'double':
    options.only('summary_type', 'cls_index')
    options.only('summary_use_proj', True)
    options.only('summary_activation', None)
    # To one score: HF sets num_labels to 1 for this class.
  if kind == 'classification':
    types = ('regression', 'single_label_classification')
    options.only('problem_type', None, *types, 'multi_label_classification')


def num_labels(options: Options) -> int:
  """Of a classification head."""
  labels = options.get('id2label')
  return options.size('num_labels', 2) if labels is None else len(labels)


def shapes(kind: str, options: Options, d_model: int) -> dict[str, Any]:
  """The tree of `params['heads']`, of float32 arrays without memory."""

  def zeros(*shape: int) -> np.ndarray:
    return np.broadcast_to(np.float32(0), shape)

  if kind == 'classification':
    return {'score': {'kernel': zeros(d_model, num_labels(options))}}
  if kind == 'double':
    return {'choice': {'kernel': zeros(d_model, 1), 'bias': zeros(1)}}
  return {}


def tensors(kind: str) -> list[Tensor]:
  """The heads' tensors in the file."""
  if kind == 'classification':
    return [transposed('heads/score/kernel', 'score.weight')]
  if kind == 'double':
    return linear('heads/choice', 'multiple_choice_head.summary')
  return []
