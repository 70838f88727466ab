# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What stays as it is: a teacher beside its student, and of several tasks the
heads of those that a batch is not of.

Their parameters are in the one tree, `params['parts'][NAME]`, and so in its
checkpoints. Gradients, optimizer state and averages are trees of the rest.
"""

from collections.abc import Collection
from typing import Any


def trained(params: Any, frozen: Collection[str]) -> Any:
  """What is trained of the parameters, or of any tree like theirs.

  Args:
    params: of all models.
    frozen: names of those that stay; none: the tree comes back as it is.
  """
  if not frozen:
    return params
  rest = {name: x for name, x in params.items() if name != 'parts'}
  parts = {n: x for n, x in params['parts'].items() if n not in frozen}
  return {**rest, 'parts': parts} if parts else rest


def with_frozen(tree: Any, params: Any, frozen: Collection[str]) -> Any:
  """What is trained, together with what stays of the parameters.

  Args:
    tree: such as `trained` gives.
    params: of all models.
    frozen: see `trained`.
  """
  if not frozen:
    return tree
  kept = {name: params['parts'][name] for name in frozen}
  return {**tree, 'parts': {**tree.get('parts', {}), **kept}}
