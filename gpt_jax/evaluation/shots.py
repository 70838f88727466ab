# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which solved examples are shown before each one."""

import collections
from collections.abc import Sequence

import numpy as np

from gpt_jax.evaluation.task import Setting
from gpt_jax.spec import UsageError


def draw(
  shown: Sequence[str], asked: Sequence[tuple[str, str]], setting: Setting
) -> list[list[int]]:
  """Draws solved examples for each one, other ones for each.

  None of them equals the one that is asked: its answer must not be shown,
  whatever files the two are from.

  Args:
    shown: what there is to show; equal texts are the same example.
    asked: 'file:line' and such a text of each one that is measured.
    setting: how many are drawn, by which seed.

  Returns:
    Indices into `shown` for each one that is asked.

  Raises:
    UsageError: there are too few.
  """
  copies = collections.Counter(shown)
  rng = np.random.default_rng(setting.seed)
  out = []
  for where, text in asked:
    others = len(shown) - copies[text]
    if others < setting.shots:
      raise UsageError(
        f'--shots={setting.shots}: there are only {others} examples to show '
        f'before {where}; give fewer'
      )
    # As many more are drawn as may equal this one.
    drawn = rng.choice(len(shown), setting.shots + copies[text], replace=False)
    out.append([int(i) for i in drawn if shown[i] != text][: setting.shots])
  return out
