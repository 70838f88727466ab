# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What transformers' Transformer-XL returns, memories and losses included."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.hf.base import choice
from gpt_jax.nn.caches import init_memories
from gpt_jax.nn.context import SegmentMemory
from gpt_jax.nn.stack import layer_outputs
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError

# Labels of this value count nothing.
_IGNORED = -100


def forward(
  model: Transformer,
  kind: str,
  params: Any,
  *,
  input_ids: Any,
  labels: Any = None,
  mems: Any = None,
  **others: Any,
) -> dict[str, jax.Array]:
  """See `hf.forward`; `mems` are [layer, memory, batch, width]."""
  if others:
    raise UsageError(f'{", ".join(others)}: transfo-xl takes none')
  if labels is not None and kind == 'body':
    raise UsageError('labels: this checkpoint has no head')
  ids = jnp.asarray(input_ids)
  memory = choice(model, 'position').kwargs['memory']
  caches = init_memories(model, len(ids)) if memory else None
  if mems is not None:
    shape = (model.num_layers, memory, len(ids), model.d_model)
    if not memory:
      raise UsageError('mems: the model keeps none (mem_len is 0)')
    if jnp.shape(mems) != shape:
      raise UsageError(f'mems: must be {shape}, not {jnp.shape(mems)}')
    hidden = jnp.swapaxes(jnp.asarray(mems, jnp.float32), 1, 2)
    caches = (SegmentMemory(hidden),)
  # Accelerators would multiply float32 in fewer bits; it is to be compared.
  with jax.default_matmul_precision('highest'):
    out = _run(model, params, ids, caches, kind == 'lm')
  log_probs = out.pop('log_probs', None)
  if log_probs is not None and labels is None:
    out['log_probs'] = log_probs
  elif log_probs is not None:
    cutoffs = choice(model, 'input').kwargs['cutoffs']
    out |= _losses(log_probs[:, :-1], jnp.asarray(labels)[:, 1:], cutoffs)
  return out


@functools.partial(jax.jit, static_argnames=('model', 'scores'))
def _run(model, params, tokens_BL, caches, scores):
  variables = {'params': params}
  out, sown = model.apply(
    variables, tokens_BL, caches=caches, mutable=['intermediates']
  )
  sown = sown['intermediates']
  states = jnp.stack([sown['embedded'][0], *layer_outputs(sown)])
  result = {'hidden_states': states, 'last_hidden_state': out.hidden_BLD}
  if caches is not None:
    result['mems'] = jnp.swapaxes(out.caches[0].hidden_BMD, 1, 2)
  if scores:
    result['log_probs'] = model.apply(
      variables, out.hidden_BLD, method='logits'
    )
  return result


def _losses(
  log_probs: jax.Array, labels: jax.Array, cutoffs: tuple[int, ...]
) -> dict[str, jax.Array]:
  """HF's: one cluster after the other, then a zero for each ignored label."""
  flat = labels.reshape(-1)
  counts = flat != _IGNORED
  index = jnp.where(counts, flat, 0)[:, None]
  rows = log_probs.reshape(len(flat), -1)
  losses = -jnp.take_along_axis(rows, index, axis=-1)[:, 0] * counts
  if cutoffs:
    cluster = jnp.searchsorted(jnp.asarray(cutoffs), flat, side='right')
    cluster = jnp.where(counts, cluster, len(cutoffs) + 1)
    losses = losses[jnp.argsort(cluster, stable=True)]
  total = jnp.sum(losses) / jnp.sum(counts)
  return {'losses': losses.reshape(labels.shape), 'loss': total}
