# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Peak FLOP/s of devices, from the vendors or measured."""

import time
from typing import Any

import jax
import jax.numpy as jnp

# Dense bf16 peak in FLOP/s of one JAX device, from the vendors' pages. A chip
# of v2, v3 or 7x is two devices.
PEAKS = {
  'TPU v2': 22.5e12,
  'TPU v3': 61.5e12,
  'TPU v4': 275e12,
  'TPU v5 lite': 197e12,
  'TPU v5': 459e12,
  'TPU v6 lite': 918e12,
  'TPU7x': 1153.5e12,
  'NVIDIA A100': 312e12,
  'NVIDIA H100': 989e12,
  'NVIDIA H200': 989e12,
}


def of_device(device: Any) -> tuple[float, str]:
  """Peak FLOP/s of one device, and the source of the figure.

  Measured on CPUs and on devices that `PEAKS` does not list: the best of
  several 2048^3 products, in float32 on a CPU.
  """
  kind = device.device_kind
  # Longest name first: 'TPU v5 lite' before 'TPU v5'.
  for name in sorted(PEAKS, key=len, reverse=True):
    if kind.startswith(name):
      return PEAKS[name], f'{kind}, bf16, vendor figure'
  dtype = jnp.float32 if device.platform == 'cpu' else jnp.bfloat16
  seconds = measure_matmul(device, dtype)
  rate = 2 * 2048**3 / seconds
  if device.platform == 'cpu':
    # Virtual CPU devices share the cores, which were measured together.
    rate /= jax.local_device_count()
  return rate, f'{kind}, {dtype.__name__}, measured on 2048^3 matmuls'


def measure_matmul(device: Any, dtype: Any, repeats: int = 5) -> float:
  """Seconds for a 2048^3 product: the best of `repeats`."""
  x = jax.device_put(jnp.ones((2048, 2048), dtype), device)
  product = jax.jit(jnp.dot)
  product(x, x).block_until_ready()
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    product(x, x).block_until_ready()
    times.append(time.perf_counter() - start)
  return min(times)
