# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Outer optimizers by name: how replicas that train apart come together."""

from collections.abc import Sequence
from typing import Any, Protocol

from gpt_jax.core.spec import Table


class Outer(Protocol):
  """An outer optimizer of replicas, with a step of its own.

  Attributes:
    steps: of each replica between two outer steps.
    replicas: their number.
  """

  steps: int
  replicas: int

  @property
  def optimizer(self) -> Any:
    """Of the parameters that the replicas start from."""
    ...

  def init(self, params: Any, opt_state: Any) -> Any:
    """The first `TrainState.opt_state`, from that of one replica."""
    ...

  def state_shardings(self, params: Any, opt_state: Any, outer: Any) -> Any:
    """Shardings of what `init` returns, from those of its parts."""
    ...

  def output_shardings(self, mesh: Any) -> Any:
    """Shardings of the second result of `train_step`."""
    ...

  def train_step(
    self, state: Any, batch: Any, average_start: Any = None, **inner: Any
  ) -> tuple[Any, Any]:
    """In place of `training.step.train_step`, with the same arguments."""
    ...

  def pooled(self, outputs: Sequence[Any]) -> list[dict[str, Any]]:
    """The metrics of steps from what `train_step` returned: means."""
    ...


def none() -> None:
  """No replicas: the devices exchange gradients in each step."""


OUTERS = Table({'none': none}, 'optim.outer')
