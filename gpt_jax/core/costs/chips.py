# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""TPU generations and their rates, and the peak FLOP/s of any device.

Peaks, HBM with its bandwidth, and data-centre network are from the
Cloud TPU pages on v4, v5e, v5p, v6e and tpu7x, read in 2026
(https://docs.cloud.google.com/tpu/docs/v4 and so on); the one-way speed of a
link, the speed in int8 and the vector units of v5e and later, from the scaling
book (https://jax-ml.github.io/scaling-book/tpus), the units of v4 from its
paper (Jouppi et al., 2023: 128 lanes of 16 units in each of two cores); the HBM
that the compiler allows from its own error message (libtpu 0.0.42.1).
"""

import time
from typing import Any, NamedTuple

from etils import epy

with epy.lazy_imports():
  import jax
  import jax.numpy as jnp

GIB = 2**30


class Chip(NamedTuple):
  """One TPU generation. Rates are per chip and second."""

  name: str
  kind: str  # the device_kind of its JAX devices
  devices: int  # JAX devices per chip
  peak: float  # bf16 FLOP
  int8: float  # products in int8 to those in bf16
  hbm: float  # bytes that the compiler allows, per chip
  hbm_bandwidth: float  # bytes
  link: float  # bytes over one link, one way
  dcn: float  # bytes over the data-centre network
  clock: float  # Hz of the matrix units
  side: int  # of a matrix unit: products of other sizes are padded
  vector: float  # operations of the vector units
  config_name: str  # libtpu's name for the use of its cores
  host: tuple[int, ...]  # bounds of a host, in chips


CHIPS = {
  chip.name: chip
  for chip in (
    Chip(
      name='v4',
      kind='TPU v4',
      devices=1,
      peak=275e12,
      int8=1,
      hbm=30.75 * GIB,
      hbm_bandwidth=1200e9,
      link=45e9,
      dcn=6.25e9,  # not published: as v5p
      clock=1.05e9,
      side=128,
      vector=2 * 128 * 16 * 1.05e9,
      config_name='megacore',
      host=(2, 2, 1),
    ),
    Chip(
      name='v5e',
      kind='TPU v5 lite',
      devices=1,
      peak=197e12,
      int8=2,
      hbm=15.75 * GIB,
      hbm_bandwidth=819e9,
      link=45e9,
      dcn=200e9 / 8 / 8,  # two cards of 100 Gbit/s for the 8 chips of a host
      clock=1.5e9,
      side=128,
      vector=8 * 128 * 4 * 1.5e9,
      config_name='default',
      host=(2, 2, 1),
    ),
    Chip(
      name='v5p',
      kind='TPU v5',
      devices=1,
      peak=459e12,
      int8=2,
      hbm=95.74 * GIB,
      hbm_bandwidth=2765e9,
      link=90e9,
      dcn=50e9 / 8,
      clock=1.75e9,
      side=128,
      vector=2 * 8 * 128 * 4 * 1.75e9,
      config_name='megacore',
      host=(2, 2, 1),
    ),
    Chip(
      name='v6e',
      kind='TPU v6 lite',
      devices=1,
      peak=918e12,
      int8=2,
      hbm=31.25 * GIB,
      hbm_bandwidth=1638e9,
      link=90e9,
      dcn=6.25e9,  # as v5p; a host has four cards of 200 Gbit/s at best
      clock=1.75e9,
      side=256,
      vector=8 * 128 * 4 * 1.75e9,
      config_name='default',
      host=(2, 2, 1),
    ),
    Chip(
      name='tpu7x',
      kind='TPU7x',
      devices=2,
      peak=2307e12,
      int8=1,  # assumed: only that of fp8 is published
      hbm=2 * 94.75 * GIB,
      hbm_bandwidth=7380e9,
      link=90e9,  # assumed: a third of 1.2 TB/s both ways over six links
      dcn=6.25e9,  # assumed: as v5p
      clock=1.9e9,  # assumed
      side=256,
      vector=2 * 8 * 128 * 4 * 1.9e9,  # assumed: as v6e, in two cores
      config_name='default',
      host=(2, 2, 1),
    ),
  )
}


# Dense bf16 peak in FLOP/s of one JAX device, from the vendors' pages. A chip
# of v2, v3 or 7x is two devices.
PEAKS = {
  'TPU v2': 22.5e12,
  'TPU v3': 61.5e12,
  **{chip.kind: chip.peak / chip.devices for chip in CHIPS.values()},
  'NVIDIA A100': 312e12,
  'NVIDIA H100': 989e12,
  'NVIDIA H200': 989e12,
}


def vendor_peak(device: Any) -> tuple[float, str] | None:
  """Peak FLOP/s of one device, and the source of the figure; None: unknown."""
  kind = device.device_kind
  # Longest name first: 'TPU v5 lite' before 'TPU v5'.
  for name in sorted(PEAKS, key=len, reverse=True):
    if kind.startswith(name):
      return PEAKS[name], f'{kind}, bf16, vendor figure'
  return None


def measured_peak(device: Any, dtype: Any) -> float:
  """FLOP/s of the fastest of several square products; of all of a host's CPUs.

  Which size is the fastest depends on the library: of one version of JAX on CPUs
  2048^3 reached two thirds of 1024^3.
  """
  return max(2 * size**3 / measure_matmul(device, dtype, size) for size in SIZES)


# Of the products that are measured. A first start waits for them: 4096^3 would
# take seven times as long as the rest, and was never the fastest on a CPU.
SIZES = (512, 1024, 2048)


def measure_matmul(device: Any, dtype: Any, size: int, repeats: int = 5) -> float:
  """Seconds for a product of two matrices [size, size]: the best of `repeats`."""
  x = jax.device_put(jnp.ones((size, size), dtype), device)
  product = jax.jit(jnp.dot)
  product(x, x).block_until_ready()
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    product(x, x).block_until_ready()
    times.append(time.perf_counter() - start)
  return min(times)
