# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Outer optimizers by name: how replicas that train apart come together.

`gpt_jax/training/diloco.py` has the step.
"""

from typing import NamedTuple

from etils import epy

from gpt_jax.ranges import Count, Fraction, Positive

with epy.lazy_imports():
  import optax


class Outer(NamedTuple):
  """An outer optimizer of replicas.

  Attributes:
    steps: of each replica between two outer steps.
    replicas: their number.
    optimizer: of the parameters that the replicas start from.
  """

  steps: int
  replicas: int
  optimizer: 'optax.GradientTransformation'


def diloco(
  steps: Count = 500,
  replicas: Count = 8,
  learning_rate: Positive = 0.7,
  momentum: Fraction = 0.9,
) -> Outer:
  """DiLoCo (Douillard et al. 2023, algorithm 1); the paper's values.

  Each replica takes `steps` steps of `optim.name` on its share of each batch.
  Then the mean of what they moved by is the gradient of an outer step, with
  Nesterov's momentum, and all go on from where it leads.

  Args:
    steps: H, of each replica between two outer steps.
    replicas: k; mesh.data divides it.
    learning_rate: of the outer steps.
    momentum: of the outer steps; 0: gradient descent.
  """
  optimizer = optax.sgd(
    learning_rate, momentum=momentum or None, nesterov=bool(momentum)
  )
  return Outer(steps, replicas, optimizer)


def none() -> None:
  """No replicas: the devices exchange gradients in each step."""
  return


OUTERS = {'diloco': diloco, 'none': none}
