# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Routers of experts: their options, outputs and losses in Hugging Face.

HF computes one loss over all layers; `nn/moe.py` computes one per layer.
"""

from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.core import spec
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.spec import UsageError
from gpt_jax.hf.base import Options, ffns

# HF's losses -> our arguments.
_LOSSES = {'aux': 'balance', 'z': 'z_loss'}
_FOR_TRAINING = ('capacity_factor', 'jitter', 'balance', 'z_loss')


def read(options: Options, jitter: float, **coefficients: float) -> str:
  """The arguments of `switch` that matter in training only.

  `jitter` and `coefficients` (of the losses `aux` and `z`) are the family's
  defaults of `router_jitter_noise`, `router_aux_loss_coef`, ...
  """
  eps = options.number('router_jitter_noise', jitter)
  if not 0 <= eps < 1:
    raise options.fail('router_jitter_noise', 'must be from 0 and below 1')
  arguments = [f'jitter={eps}']
  for loss, default in coefficients.items():
    name = f'router_{loss}_loss_coef'
    factor = options.number(name, default)
    if factor < 0:
      raise options.fail(name, 'must not be negative')
    arguments.append(f'{_LOSSES[loss]}={factor}')
  return ', '.join(arguments)


def write(switch: dict[str, Any], *losses: str) -> dict[str, Any]:
  """The inverse of `read`, from the arguments of a `switch`."""
  coefficients = {f'router_{loss}_loss_coef': switch.get(_LOSSES[loss]) for loss in losses}
  return {'router_jitter_noise': switch.get('jitter'), **coefficients}


def same(model: Transformer, other: Transformer, stack: str) -> bool:
  """Whether the feed-forward layers of two trained models compute the same."""
  one, two = (
    [_computes(call, m.context_length) for call in ffns(m, stack)] for m in (model, other)
  )
  return one == two


def _computes(call: spec.Call, context_length: int) -> spec.Call:
  """Leaves out arguments that do not change what a trained model computes."""
  if call.name != 'switch':
    return call
  kwargs = {n: x for n, x in call.kwargs.items() if n not in _FOR_TRAINING}
  if kwargs['renormalize'] is None:
    kwargs['renormalize'] = kwargs['top_k'] > 1
  if not kwargs['group_size'] and kwargs['capacity'] >= context_length:
    kwargs |= {'capacity': 0, 'eval_capacity_factor': 'none'}
  if kwargs['capacity']:
    del kwargs['eval_capacity_factor']
  elif kwargs['eval_capacity_factor'] == 'none':
    del kwargs['group_size']
  return call._replace(kwargs=kwargs)


def outputs(
  model: Transformer, stacks: dict[str, dict[str, jax.Array]], mask: Any
) -> dict[str, jax.Array]:
  """HF's outputs with `output_router_logits`, without `loss`.

  Args:
    model: a decoder (Mixtral) or an encoder-decoder (Switch).
    stacks: the result of `layer_routers` for each stack.
    mask: [B, L], 0 for padding, which Mixtral leaves out; None: no padding.
  """
  if not any(stacks.values()):
    raise UsageError('output_router_logits: this model has no routers')
  if not model.num_encoder_layers:
    logits = stacks['decoder']['logits']
    aux = _balance_of_all(logits, _arguments(model)['top_k'], mask)
    return {'router_logits': logits, 'aux_loss': aux}
  out = {}
  for stack, values in stacks.items():
    losses = jnp.float32(0), jnp.float32(0)
    if values:
      logits = values['logits']
      out[f'{stack}_router_logits'] = logits
      out[f'{stack}_token_kept'] = jnp.all(values['kept'], axis=-1)
      # HF computes no losses if every layer has experts.
      if any(call.name != 'switch' for call in ffns(model, stack)):
        z_loss = jnp.mean(jnp.square(jax.nn.logsumexp(logits, axis=-1)))
        losses = z_loss, _balance_of_rows(logits)
    out[f'{stack}_z_loss'], out[f'{stack}_aux_loss'] = losses
  return out


def loss(model: Transformer, out: dict[str, jax.Array]) -> jax.Array:
  """The routers' part of the loss, from `outputs`."""
  arguments = _arguments(model)
  if not model.num_encoder_layers:
    return arguments['balance'] * out['aux_loss']
  z_loss = out['encoder_z_loss'] + out['decoder_z_loss']
  balance = out['encoder_aux_loss'] + out['decoder_aux_loss']
  return arguments['z_loss'] * z_loss + arguments['balance'] * balance


def _arguments(model: Transformer) -> dict[str, Any]:
  """Arguments of the first layer with experts."""
  calls = [*ffns(model, 'decoder'), *ffns(model, 'encoder')]
  return next(call.kwargs for call in calls if call.name == 'switch')


def _balance_of_all(logits_NBLE: jax.Array, top_k: int, mask_BL: Any) -> jax.Array:
  """E sum_e f_e P_e over the tokens of all N layers; f sums to `top_k`."""
  E = logits_NBLE.shape[-1]
  probs_NBLE = jax.nn.softmax(logits_NBLE, axis=-1)
  _, experts_NBLK = jax.lax.top_k(probs_NBLE, top_k)
  chosen_NBLKE = jax.nn.one_hot(experts_NBLK, E)
  if mask_BL is None:
    mask_BL = jnp.ones(logits_NBLE.shape[1:3])
  weights_BL = jnp.asarray(mask_BL, jnp.float32)
  weights_BL /= jnp.sum(weights_BL) * len(logits_NBLE)
  f_E = jnp.einsum('NBLKE,BL->E', chosen_NBLKE, weights_BL)
  P_E = jnp.einsum('NBLE,BL->E', probs_NBLE, weights_BL)
  return E * jnp.sum(f_E * P_E)


def _balance_of_rows(logits_NBLE: jax.Array) -> jax.Array:
  """The mean over rows of the loss over the tokens of all N layers."""
  B, E = logits_NBLE.shape[1], logits_NBLE.shape[-1]
  logits_BTE = jnp.moveaxis(logits_NBLE, 0, 1).reshape(B, -1, E)
  probs_BTE = jax.nn.softmax(logits_BTE, axis=-1)
  chosen_BTE = jax.nn.one_hot(jnp.argmax(probs_BTE, axis=-1), E)
  f_BE, P_BE = jnp.mean(chosen_BTE, axis=1), jnp.mean(probs_BTE, axis=1)
  return E * jnp.mean(jnp.sum(f_BE * P_BE, axis=-1))
