# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What fine-tuning on one task has in common with that on several."""

from collections.abc import Callable
from typing import Any, NamedTuple

from gpt_jax.config import Config
from gpt_jax.optim.train_state import TrainState
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training.parts import Parts
from gpt_jax.training.training_run import Data, Evaluation, TrainingRun


class Plan(NamedTuple):
  """A run, before anything of it is built or written.

  Attributes:
    config: resolved.
    tokenizer: of the model.
    data: what is trained on.
    examples: how many that are.
    evaluation: what measures the run.
    criterion: see `TrainingRun`.
    params: the pre-trained parameters that are gone on with; None: there are
      none.
    finish: writes the predictions of the state that predicts; gives what
      result.json is to hold.
  """

  config: Config
  tokenizer: Tokenizer
  data: Data
  examples: int
  evaluation: Callable[[Parts], Evaluation]
  criterion: str
  params: Callable[[], Any] | None
  finish: Callable[[TrainingRun, TrainState], dict[str, Any]]


def once(make: Callable[[Parts], Evaluation]) -> Callable[[Parts], Any]:
  """What evaluates a run, made when it is first asked for.

  It is compiled once for the loop and for the predictions at the end.
  """
  made: list[Evaluation] = []

  def evaluation(parts: Parts) -> Evaluation:
    if not made:
      made.append(make(parts))
    return made[0]

  return evaluation
