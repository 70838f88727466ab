# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws the few-shot examples."""

import collections
from collections.abc import Sequence

import numpy as np

from gpt_jax.evaluation.task import Setting
from gpt_jax.spec import UsageError


def draw(
  shown: Sequence[str], asked: Sequence[tuple[str, str]], setting: Setting
) -> list[list[int]]:
  """Draws few-shot examples independently for each measured example.

  None of them equals the measured one, whatever files they come from, so that
  its answer is never shown.

  Args:
    shown: texts of the pool; equal texts are the same example.
    asked: 'file:line' and text of each measured example.
    setting: number of shots, and seed.

  Returns:
    Indices into `shown` for each measured example.
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
    # Draw as many extra examples as may equal this one.
    drawn = rng.choice(len(shown), setting.shots + copies[text], replace=False)
    out.append([int(i) for i in drawn if shown[i] != text][: setting.shots])
  return out


def of_text(
  shown: Sequence[tuple[str, str]],
  asked: Sequence[tuple[str, str]],
  setting: Setting,
) -> list[list[int]]:
  """Takes the other examples about the same text.

  In the order in which they are shown: those that follow the measured one, and
  then those before it, as if it were the last. There may be fewer than asked
  for.

  Args:
    shown: what each example of the pool is about, and its text; the pool holds
      the measured ones.
    asked: the same of each measured example.
    setting: number of shots.

  Returns:
    Indices into `shown` for each measured example, the nearest first.
  """
  members: dict[str, list[int]] = {}
  for i, (about, _) in enumerate(shown):
    members.setdefault(about, []).append(i)
  out = []
  for about, text in asked:
    mine = members[about]
    texts = [shown[i][1] for i in mine]
    at = texts.index(text)
    before = [i for i in mine[at + 1 :] + mine[:at] if shown[i][1] != text]
    out.append(before[::-1][: setting.shots])
  return out
