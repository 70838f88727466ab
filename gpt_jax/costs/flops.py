# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The terms of MFU: parameters, FLOPs per token, peak FLOP/s."""

import math
import re
import time
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax import spec
from gpt_jax.config import Config
from gpt_jax.nn.embed import OUTPUTS
from gpt_jax.nn.pattern import period

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
FORMULA = (
  'MFU = tokens/s * (6 * matmul parameters + 12 * layers * heads * head size '
  '* context) / peak; attention counted whole (PaLM, appendix B), and of '
  'experts only those that a token takes'
)
FORMULA_CAUSAL = (
  'causal MFU: the same with 6 * layers * heads * head size * context; '
  'attention to tokens before only'
)
FORMULA_COMPILER = (
  'compiler MFU: steps/s * FLOPs of all matrix products handed to the '
  'compiler / peak; loops times their trips, recomputation included'
)
# Experts share one array, with their number as an axis: a path only identifies
# the layer.
_EXPERT = re.compile(r'^(\w+)/periods/block_(\d+)/ffn/(?:in|gate|out)/')


def parameter_table(params: Any) -> dict[str, tuple[int, ...]]:
  """Maps paths such as 'embed/embedding' to shapes, abstract ones too."""
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf.shape
    for path, leaf in jax.tree_util.tree_leaves_with_path(nn.meta.unbox(params))
  }


def active_parameters(config: Config, params: Any) -> dict[str, int]:
  """Active parameters of each array: those that one token uses.

  All of them, except that experts count top_k / num_experts, whether or not a
  full expert drops the token.
  """
  model = config.model
  stacks = {
    'decoder': period(model.attention, model.ffn),
    'encoder': period('bidirectional', model.encoder_ffn or model.ffn),
  }
  counts = {}
  for name, shape in parameter_table(params).items():
    counts[name] = math.prod(shape)
    found = _EXPERT.search(name)
    if found and (router := stacks[found[1]][int(found[2])].ffn.router):
      counts[name] = counts[name] // router.num_experts * router.top_k
  return counts


def matmul_parameters(config: Config, params: Any) -> int:
  """Active parameters in matrix products.

  Kernels, including routers', and the output embedding; of experts only those
  that a token uses. Embedding lookups, positions, biases and norm scales are no
  matrix products, and Transformer-XL's relative-position kernel multiplies
  distances, once for all rows.
  """
  output = spec.build('model.output', config.model.output, OUTPUTS)
  head = 'embed' if output.tied else 'head'
  return sum(
    count
    for name, count in active_parameters(config, params).items()
    # An adaptive embedding has `kernel_0`, `embedding_0`, ...
    if ('/kernel' in name and '/relative/' not in name)
    or name.startswith(f'{head}/embedding')
  )


def per_token(config: Config, params: Any) -> int:
  """Training FLOPs per token, forward and backward: see `FORMULA`.

  For an encoder-decoder: per pair of an input and an output token, both
  `context_length` long; decoder layers attend twice, to their own tokens and to
  the encoder's.
  """
  return 6 * matmul_parameters(config, params) + 12 * _attention(config)


def per_token_causal(config: Config, params: Any) -> int:
  """Like `per_token` with half of the attention: see `FORMULA_CAUSAL`."""
  return 6 * matmul_parameters(config, params) + 6 * _attention(config)


def _attention(config: Config) -> int:
  """Layers * heads * head size * context: LHQT of PaLM's appendix B."""
  model = config.model
  layers = model.num_layers
  if model.num_encoder_layers:
    layers = 2 * layers + model.num_encoder_layers
  return layers * model.num_heads * model.head_size * model.context_length


def peak(device: Any) -> tuple[float, str]:
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


def mfu(tokens_per_second: float, flops: float, peaks: float) -> float:
  """Model FLOPs utilisation; `peaks` is the sum over all devices."""
  return tokens_per_second * flops / peaks
