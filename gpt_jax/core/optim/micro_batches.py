# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The division of a batch into micro-batches."""

from typing import NamedTuple


class MicroBatches(NamedTuple):
  """How the rows of a batch are divided.

  Attributes:
    num_micro: number of micro-batches, one after the other.
    num_shards: shards of a micro-batch over the devices, all of equal size. A
      batch that does not divide is padded with rows of zeros and weight 0.
    num_replicas: parts along the mesh axis `data` whose gradients are summed
      once, after the last micro-batch. 1: they are summed in each micro-batch,
      as the compiler chooses by itself.
  """

  num_micro: int
  num_shards: int = 1
  num_replicas: int = 1

  def filled(self, num_rows: int) -> int:
    """Rows of a batch, including padding."""
    equal = self.num_micro * self.num_shards
    return -(-num_rows // equal) * equal

  def rows(self, num_rows: int) -> int:
    """Rows of one micro-batch, over all devices."""
    return self.filled(num_rows) // self.num_micro


def divided(num_rows: int, *, num_shards: int, micro_rows: int | None) -> MicroBatches:
  """The fewest micro-batches with at most `micro_rows` rows on a device.

  Args:
    num_shards: devices that share the rows.
    micro_rows: 0 or None: the whole batch at once.
  """
  here = -(-num_rows // num_shards)
  return MicroBatches(-(-here // (micro_rows or here)), num_shards)
