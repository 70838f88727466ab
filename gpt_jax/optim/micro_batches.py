# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How many micro-batches a batch is taken in, and of how many rows."""

from typing import NamedTuple


class MicroBatches(NamedTuple):
  """The parts that the rows of a batch are taken in.

  Attributes:
    num_micro: number of micro-batches, one after the other.
    num_shards: devices that share the rows of a micro-batch, equally many
      each. Where rows do not divide, others of zeros, whose weight is 0, fill
      the batch up.
    num_replicas: parts that the mesh axis `data` splits each of several
      micro-batches into, whose gradients are added up once, after the last
      micro-batch. 1: within each micro-batch, as the compiler has it.
  """

  num_micro: int
  num_shards: int = 1
  num_replicas: int = 1

  def filled(self, num_rows: int) -> int:
    """Rows of a batch with those that fill it up."""
    equal = self.num_micro * self.num_shards
    return -(-num_rows // equal) * equal

  def rows(self, num_rows: int) -> int:
    """Rows of one micro-batch, over all devices."""
    return self.filled(num_rows) // self.num_micro


def divided(
  num_rows: int, *, num_shards: int, micro_rows: int | None
) -> MicroBatches:
  """As few micro-batches as have at most `micro_rows` rows on a device.

  Args:
    num_rows: of the batch.
    num_shards: devices that share the rows.
    micro_rows: 0 or None: the whole batch at once.
  """
  here = -(-num_rows // num_shards)
  return MicroBatches(-(-here // (micro_rows or here)), num_shards)
