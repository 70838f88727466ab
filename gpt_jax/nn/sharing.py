# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which parameters the layers of a stack share (ALBERT, Lan et al. 2019).

A stack runs its period of blocks again and again. Each array of parameters has
a leading axis of the sets that there are: as many as runs where nothing is
shared, else one for each group. Run i of N takes set i * sets // N, so that
what is shared follows from the shapes.
"""

from typing import NamedTuple

from gpt_jax.ranges import Count


class Sharing(NamedTuple):
  """What is shared, over which layers.

  Attributes:
    parts: how the names of a block's shared parts begin; (): nothing is.
    groups: neighbouring layers that share are so many groups.
    inner: layers with parameters of their own, which a group repeats.
    stacks: whether layer i of an encoder and of its decoder have the same
      parameters, but for attention between the two.
  """

  parts: tuple[str, ...] = ()
  groups: int = 1
  inner: int = 1
  stacks: bool = False

  def shares(self, part: str) -> bool:
    """Whether a block's part, such as `ffn_norm`, is shared."""
    return part.startswith(self.parts)

  def num_sets(self, part: str, num_runs: int) -> int:
    """How many sets of it there are."""
    return self.groups if self.shares(part) else num_runs

  def set_of(self, run: int, part: str, num_runs: int) -> int:
    """Which of them a run of the period takes."""
    return run * self.num_sets(part, num_runs) // num_runs


def none() -> Sharing:
  """Each layer has its own."""
  return Sharing()


def everything(groups: Count = 1, inner: Count = 1) -> Sharing:
  """All parameters of the layers (ALBERT, section 3.1).

  Args:
    groups: of neighbouring layers; layer i of n is in group i * groups // n.
    inner: each group has so many layers of its own, which it repeats in order.
  """
  return Sharing(('',), groups, inner)


def attention(groups: Count = 1, inner: Count = 1) -> Sharing:
  """Those of attention, with its norms (ALBERT, section 4.5)."""
  return Sharing(('attention', 'cross'), groups, inner)


def ffn(groups: Count = 1, inner: Count = 1) -> Sharing:
  """Those of the feed-forward layers, with their norms."""
  return Sharing(('ffn',), groups, inner)


def stacks() -> Sharing:
  """Those of attention and ffn, with their norms, by encoder and decoder.

  Layer i of one has those of layer i of the other (T5, section 3.2.2).
  """
  return Sharing(stacks=True)


SHARES = {
  'all': everything,
  'attention': attention,
  'ffn': ffn,
  'none': none,
  'stacks': stacks,
}
