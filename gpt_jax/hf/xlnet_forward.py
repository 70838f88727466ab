# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What transformers' XLNet returns: with orders, predictions and memories."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.hf import scores
from gpt_jax.hf.base import choice
from gpt_jax.nn.context import SegmentMemory
from gpt_jax.nn.stack import layer_outputs
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError


def forward(
  model: Any,
  kind: str,
  params: Any,
  *,
  input_ids: Any,
  attention_mask: Any = None,
  token_type_ids: Any = None,
  perm_mask: Any = None,
  target_mapping: Any = None,
  mems: Any = None,
  use_mems: bool | None = None,
  **targets: Any,
) -> dict[str, jax.Array]:
  """See `hf.forward`; `mems` are [layer, memory, batch, width].

  Raises:
    UsageError: inputs that XLNet or this checkpoint does not take.
  """
  known = scores.Targets._fields
  if extra := [name for name in targets if name not in known]:
    raise UsageError(f'{", ".join(extra)}: xlnet takes none')
  asked = scores.Targets(**targets)
  asked.check(kind, '')
  ids = jnp.asarray(input_ids)
  memory = choice(model, 'position').kwargs['memory']
  if use_mems is None:
    use_mems = model.options.flag('use_mems_eval', True)
  rows = {'tokens_BL': _rows(ids)}
  if token_type_ids is not None:
    rows['token_types_BL'] = _rows(token_type_ids)
  if mems is not None:
    rows['mems'] = _memories(model, mems, len(rows['tokens_BL']))
  _add_order(rows, attention_mask, perm_mask, target_mapping)
  # Accelerators would multiply float32 in fewer bits; it is to be compared.
  with jax.default_matmul_precision('highest'):
    out = _run(model, params, rows, memory if use_mems else 0, kind == 'lm')
    if kind == 'lm' and asked.labels is not None:
      labels = jnp.asarray(asked.labels)
      out['loss'] = scores.cross_entropy(out['logits'], labels)
    out |= scores.of_heads(
      *(kind, model.options, params, out['last_hidden_state'], ids, asked),
      mask=None,
      pair=('', ''),
    )
  return out


def _rows(x: Any) -> jax.Array:
  """[..., time] to [rows, time]."""
  return jnp.asarray(x).reshape(-1, jnp.shape(x)[-1])


def _memories(model: Transformer, mems: Any, num_rows: int) -> jax.Array:
  """[layer, memory, batch, width] to [layer, batch, memory, width]."""
  found = jnp.shape(mems)
  shape = (model.num_layers, *found[1:2], num_rows, model.d_model)
  if found != shape:
    raise UsageError(f'mems: must be {shape}, not {found}')
  return jnp.swapaxes(jnp.asarray(mems, jnp.float32), 1, 2)


def _add_order(
  rows: dict[str, Any],
  attention_mask: Any,
  perm_mask: Any,
  target_mapping: Any,
) -> None:
  """What each token sees, and the tokens that the second stream predicts.

  The content stream of a token, of padding too, sees the token itself.
  """
  if target_mapping is not None:
    mapping = jnp.asarray(target_mapping)
    if jnp.any(jnp.sum(mapping != 0, axis=-1) > 1) or jnp.any(mapping > 1):
      raise UsageError('target_mapping: each row must have a single 1')
    rows['asked_BP'] = jnp.argmax(mapping, axis=-1)
  elif perm_mask is None and attention_mask is None:
    return
  B, L = rows['tokens_BL'].shape
  seen_BLM = jnp.ones((B, L, L), bool)
  if perm_mask is not None:
    seen_BLM &= jnp.asarray(perm_mask) == 0
  if attention_mask is not None:
    seen_BLM &= _rows(attention_mask).astype(bool)[:, None]
  content_BLM = seen_BLM | jnp.eye(L, dtype=bool)[None]
  if target_mapping is None:
    rows['visible_BLM'] = content_BLM
    return
  query_BPM = jnp.take_along_axis(seen_BLM, rows['asked_BP'][..., None], axis=1)
  rows['visible_BLM'] = jnp.concatenate([content_BLM, query_BPM], axis=1)


@functools.partial(jax.jit, static_argnames=('model', 'memory', 'scored'))
def _run(model, params, rows, memory, scored):
  variables, rows = {'params': params}, dict(rows)
  mems, caches = rows.pop('mems', None), None
  if mems is not None:
    caches = (SegmentMemory(mems),)
  out, sown = model.apply(
    variables, **rows, caches=caches, mutable=['intermediates']
  )
  sown, length = sown['intermediates'], rows['tokens_BL'].shape[1]
  layers = [x[:, :length] for x in layer_outputs(sown)]
  states = jnp.stack([sown['embedded'][0], *layers])
  if 'asked_BP' in rows:
    result = {'last_hidden_state': out.hidden_BLD[:, length:]}
  else:
    result = {'hidden_states': states, 'last_hidden_state': out.hidden_BLD}
  if memory:
    # The inputs of each layer, without zeros before the first.
    kept = states[:-1]
    if mems is not None:
      kept = jnp.concatenate([mems, kept], axis=2)
    result['mems'] = jnp.swapaxes(kept[:, :, -memory:], 1, 2)
  if scored:
    hidden = result['last_hidden_state']
    result['logits'] = model.apply(variables, hidden, method='logits')
  return result
