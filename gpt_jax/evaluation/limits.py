# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How large batches of evaluation are, for a model and its devices."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.evaluation.batches import Limits
from gpt_jax.nn.pattern import period
from gpt_jax.nn.transformer import Transformer
from gpt_jax.training.parts import Parts

# By default, on each device.
_MOST_TOKENS = 1 << 14
_MOST_ROWS = 1024
# Keys and values of what rows share, on each device.
_CACHE_BYTES = 1 << 29
# A program takes about a second to compile, ten on an accelerator. What is
# computed meanwhile: at least so many tokens, or so many operations.
_PROGRAM_TOKENS = 1024
_PROGRAM_FLOPS = 2e10
_PROGRAM_FLOPS_ACCELERATOR = 1e14
_SHORTEST = 16


def of(
  parts: Parts, params: Any, *, rows: int | None, tokens: int | None
) -> Limits:
  """The limits of a model's batches.

  Args:
    parts: the model, and the mesh that batches are split over.
    params: of the model.
    rows: of a batch at most; None: as many as the tokens allow.
    tokens: of a batch at most, with the padding; None: `eval.rows` rows of
      the whole context, up to 16,384 on each device.
  """
  model, shards = parts.model, parts.num_shards
  default = parts.eval_rows * model.context_length
  each = model.head_size + (model.value_size or model.head_size)
  held = model.num_layers * model.num_kv_heads * each
  held *= jnp.dtype(model.dtype).itemsize
  on_cpu = parts.mesh.devices.flat[0].platform == 'cpu'
  flops = _PROGRAM_FLOPS if on_cpu else _PROGRAM_FLOPS_ACCELERATOR
  of_token = 2 * sum(x.size for x in jax.tree.leaves(params))
  padded = _powers
  if not _limited(model):
    padded = functools.partial(_multiples, multiple=8 if on_cpu else 128)
  return Limits(
    tokens=tokens or min(default, _MOST_TOKENS * shards),
    rows=rows or _MOST_ROWS * shards,
    cached=0 if _limited(model) else _CACHE_BYTES * shards // held,
    shards=shards,
    program=_PROGRAM_TOKENS + int(flops / of_token),
    padded=lambda n: min(padded(n), model.context_length),
  )


def _limited(model: Transformer) -> bool:
  """Whether experts drop tokens, which depends on all that is in a batch."""
  routers = [layer.ffn.router for layer in period(model.attention, model.ffn)]
  return any(r is not None and r.limited(training=False) for r in routers)


def _powers(length: int) -> int:
  """As groups of experts need, which are to be full."""
  return 1 << (max(length, _SHORTEST) - 1).bit_length()


def _multiples(length: int, *, multiple: int) -> int:
  """Multiples: of the CPU's vectors, or what accelerators' kernels take."""
  return min(_powers(length), -(-length // multiple) * multiple)
