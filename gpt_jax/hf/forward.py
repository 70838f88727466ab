# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs a model under Hugging Face's names of inputs and outputs."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.hf import routers, scores
from gpt_jax.hf.base import Options, choice
from gpt_jax.hf.heads import SCORING
from gpt_jax.hf.layout import Imported
from gpt_jax.nn.transformer import (
  Transformer,
  layer_outputs,
  layer_routers,
)
from gpt_jax.spec import UsageError


def forward(
  model: Transformer,
  params: Any,
  *,
  input_ids: Any,
  attention_mask: Any = None,
  position_ids: Any = None,
  token_type_ids: Any = None,
  decoder_input_ids: Any = None,
  decoder_attention_mask: Any = None,
  labels: Any = None,
  mc_token_ids: Any = None,
  mc_labels: Any = None,
  next_sentence_label: Any = None,
  start_positions: Any = None,
  end_positions: Any = None,
  mems: Any = None,
  output_router_logits: bool | None = None,
) -> dict[str, jax.Array]:
  """Computes what the model's class in transformers returns in evaluation.

  Args:
    model: from `load`, or a `Transformer`, which is taken as a language model.
    params: its parameters.
    input_ids: [batch, time]; [batch, choice, time] with a choice head. The
      encoder's, in an encoder-decoder.
    attention_mask: like `input_ids`, 0 for padding.
    position_ids: like `input_ids`; None means 0, 1, 2, ... whatever the mask.
    token_type_ids: like `input_ids`, ids of the vocabulary, or of types.
    decoder_input_ids: [batch, length]; None: `labels`, or with a
      classification head `input_ids`, shifted right.
    decoder_attention_mask: like `decoder_input_ids`, 0 for padding.
    labels: like `input_ids` (`decoder_input_ids`), -100 where nothing counts;
      with a classification head [batch], or [batch, label] of floats.
    mc_token_ids: [batch, choice], where the choice head reads; None: the end.
    mc_labels: [batch], the right choice.
    next_sentence_label: [batch], 0 if the second sentence follows the first.
    start_positions: [batch], the first token of the answer.
    end_positions: [batch], its last token.
    mems: [layer, memory, batch, width], what Transformer-XL gave for the
      segment before.
    output_router_logits: whether the routers of experts are asked, and their
      losses are part of `loss`; None: as config.json has it.

  Returns:
    `last_hidden_state`; `hidden_states` [layer + 1, batch, time, width]; of an
    encoder-decoder `decoder_hidden_states`, `encoder_hidden_states` and
    `encoder_last_hidden_state`; of Transformer-XL `mems`, and `log_probs` or,
    with labels, `losses`, `loss`; what the heads give, such as `logits`,
    `loss`, `mc_logits`, `mc_loss`, `pooler_output`, `start_logits`. Of routers
    `router_logits` [layer, batch, time, expert] and `aux_loss`, in an
    encoder-decoder for each side (`encoder_router_logits`) with `_z_loss` and
    `_token_kept` [layer, batch, time]; `lm_loss` is the loss without theirs.

  Raises:
    UsageError: an input that this model does not take.
  """
  if isinstance(model, Imported) and model.family.forward:
    given = {
      'input_ids': input_ids,
      'attention_mask': attention_mask,
      'position_ids': position_ids,
      'token_type_ids': token_type_ids,
      'decoder_input_ids': decoder_input_ids,
      'decoder_attention_mask': decoder_attention_mask,
      'labels': labels,
      'mc_token_ids': mc_token_ids,
      'mc_labels': mc_labels,
      'next_sentence_label': next_sentence_label,
      'start_positions': start_positions,
      'end_positions': end_positions,
      'mems': mems,
      'output_router_logits': output_router_logits,
    }
    given = {name: x for name, x in given.items() if x is not None}
    return model.family.forward(model, model.origin.kind, params, **given)
  if mems is not None:
    raise UsageError('mems: only Transformer-XL takes them')
  targets = scores.Targets(
    labels,
    mc_token_ids,
    mc_labels,
    next_sentence_label,
    start_positions,
    end_positions,
  )
  kind = _check(model, token_type_ids, targets)
  options = model.options if isinstance(model, Imported) else Options({})
  ids, mask = jnp.asarray(input_ids), _mask(attention_mask)
  if position_ids is None and mask is not None and isinstance(model, Imported):
    position_ids = _positions(model, mask)
  inputs = {
    'tokens_BL': _rows(ids),
    'positions_BL': None if position_ids is None else _rows(position_ids),
    'mask_BL': mask,
    'token_types_BL': None if token_type_ids is None else _rows(token_type_ids),
  }
  if output_router_logits is None:
    output_router_logits = options.flag('output_router_logits', False)
  time = ids.shape
  if model.num_encoder_layers:
    _only_tokens(position_ids, token_type_ids)
    if decoder_input_ids is None:
      source = labels if kind in SCORING else ids
      decoder_input_ids = _shifted_right(options, source)
    inputs |= {
      'tokens_BL': jnp.asarray(decoder_input_ids),
      'mask_BL': _mask(decoder_attention_mask),
      'encoder_tokens_BM': ids,
      'encoder_mask_BM': mask,
    }
    time = inputs['tokens_BL'].shape
  elif decoder_input_ids is not None or decoder_attention_mask is not None:
    raise UsageError('decoder_input_ids: this model has no encoder')
  # Accelerators would multiply float32 in fewer bits; it is to be compared.
  with jax.default_matmul_precision('highest'):
    out = _run(model, params, inputs)
    routed = out.pop('routed')
    states = out.pop('hidden_states')
    states = states.reshape(len(states), *time, -1)
    side = 'decoder_' * (model.num_encoder_layers > 0)
    out[f'{side}hidden_states'] = states
    hidden = out['last_hidden_state'] = states[-1]
    if kind in SCORING:
      logits = out.pop('logits').reshape(*time, -1)
      out |= _language_model(model, kind, logits, labels)
    if output_router_logits:
      out |= routers.outputs(model, routed, inputs['mask_BL'])
      if kind == 'lm' and labels is not None:
        out['lm_loss'] = out['loss']
        out['loss'] += routers.loss(model, out)
    out |= scores.of_heads(kind, options, params, hidden, ids, targets)
    if kind == 'pretraining' and {'mlm_loss', 'pair_loss'} <= {*out}:
      out['loss'] = out['mlm_loss'] + out['pair_loss']
    return out


def _check(
  model: Transformer, token_type_ids: Any, targets: scores.Targets
) -> str:
  """Refuses inputs that the model does not take; returns its kind."""
  imported = isinstance(model, Imported)
  kind = model.origin.kind if imported else 'lm'
  if token_type_ids is not None and imported and not model.family.token_types:
    raise UsageError(f'token_type_ids: {model.family.model_type} takes none')
  targets.check(kind)
  return kind


def _only_tokens(position_ids: Any, token_type_ids: Any) -> None:
  """Refuses what encoder-decoders do not take."""
  if position_ids is not None or token_type_ids is not None:
    raise UsageError(
      'position_ids, token_type_ids: an encoder-decoder takes none'
    )


def _shifted_right(options: Options, source: Any) -> jax.Array:
  """The decoder's ids, from what it is to say: HF's `_shift_right`."""
  if source is None:
    raise UsageError('decoder_input_ids or labels: are needed')
  ids = jnp.asarray(source)
  start = options.number('decoder_start_token_id')
  pad = options.number('pad_token_id')
  ids = jnp.where(ids == scores.IGNORED, pad, ids)
  first = jnp.full_like(ids[:, :1], start)
  return jnp.concatenate([first, ids[:, :-1]], axis=1)


def _language_model(
  model: Transformer, kind: str, logits: jax.Array, labels: Any
) -> dict[str, jax.Array]:
  """The scores of the vocabulary, and their loss, as the kind calls them."""
  pretraining = kind == 'pretraining'
  out = {'prediction_logits' if pretraining else 'logits': logits}
  if labels is not None:
    labels = jnp.asarray(labels)
    decoder_only = model.num_encoder_layers == 0
    if decoder_only and choice(model, 'attention').name != 'bidirectional':
      # The labels are the inputs, of which each is said one token before.
      logits, labels = logits[..., :-1, :], labels[..., 1:]
    name = 'mlm_loss' if pretraining else 'loss'
    out[name] = scores.cross_entropy(logits, labels)
  return out


def _positions(model: Imported, mask: jax.Array) -> jax.Array | None:
  """Where the family's positions follow from the mask; else None."""
  hook = model.family.positions
  return hook(model, mask) if hook else None


def _mask(x: Any) -> jax.Array | None:
  return None if x is None else _rows(x).astype(bool)


def _rows(x: Any) -> jax.Array:
  """[..., time] to [rows, time]."""
  return jnp.asarray(x).reshape(-1, jnp.shape(x)[-1])


@functools.partial(jax.jit, static_argnames='model')
def _run(model, params, inputs):
  """The states of the body, and the scores of a language model."""
  variables = {'params': params}
  out, sown = model.apply(variables, **inputs, mutable=['intermediates'])
  sown = sown['intermediates']

  def states(name, stack, last):
    # HF's last state is the one after the last norm.
    layers = [sown[name][0], *layer_outputs(sown, stack)[:-1], last]
    return jnp.stack(layers).astype(jnp.float32)

  result: dict[str, Any] = {
    'hidden_states': states('embedded', 'decoder', out.hidden_BLD)
  }
  if model.num_encoder_layers:
    encoder = states('encoder_embedded', 'encoder', out.memory_BMD)
    result['encoder_hidden_states'] = encoder
    result['encoder_last_hidden_state'] = encoder[-1]
  stacks = ['decoder', *['encoder'] * (model.num_encoder_layers > 0)]
  result['routed'] = {stack: layer_routers(sown, stack) for stack in stacks}
  if not isinstance(model, Imported) or model.origin.kind in SCORING:
    result['logits'] = model.apply(variables, out.hidden_BLD, method='logits')
  return result
