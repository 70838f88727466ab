# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Best of n: the completions of a prompt that a reward model scores highest."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.decoding.requests import DAMAGED
from gpt_jax.tuning.records import Content


def rank(
  reward: Callable[[Sequence[Any], Sequence[Any]], np.ndarray],
  prompt: Content,
  texts: Sequence[str],
) -> list[tuple[int, float]]:
  """The numbers of completions with their scores, the best first.

  Equal scores stay in order.

  Args:
    reward: a `rewards.RewardFunction`.
    prompt: a text, or the messages that the completions answer.
  """
  answers: Sequence[Content] = texts
  if not isinstance(prompt, str):
    answers = [[{'role': 'assistant', 'content': text}] for text in texts]
  scores = reward([prompt] * len(texts), answers)
  if not np.isfinite(scores).all():
    raise FailedError(f"the reward model's scores are not finite: {DAMAGED}")
  order = np.argsort(-scores, kind='stable')
  return [(int(i), float(scores[i])) for i in order]


def check(best_of: int, num_samples: int, folder: str | None) -> None:
  """Checks the flags --best_of, --num_samples and --reward."""
  if bool(folder) != (best_of > 1):
    raise UsageError(
      '--best_of and --reward go together: a reward model chooses from two or '
      'more samples; give both'
    )
  if folder and best_of <= num_samples:
    raise UsageError(
      f'--best_of={best_of}: must be more than --num_samples={num_samples}, '
      'the number that it chooses; give more'
    )
