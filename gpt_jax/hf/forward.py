# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs a model under Hugging Face's names of inputs and outputs."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.hf.base import Options
from gpt_jax.hf.heads import num_labels
from gpt_jax.hf.layout import Imported
from gpt_jax.nn.transformer import Transformer, layer_outputs
from gpt_jax.spec import UsageError

# Labels of this value count nothing.
_IGNORED = -100


def forward(
  model: Transformer,
  params: Any,
  *,
  input_ids: Any,
  attention_mask: Any = None,
  position_ids: Any = None,
  token_type_ids: Any = None,
  labels: Any = None,
  mc_token_ids: Any = None,
  mc_labels: Any = None,
) -> dict[str, jax.Array]:
  """Computes what the model's class in transformers returns in evaluation.

  Args:
    model: from `load`, or a `Transformer`, which is taken as a language model.
    params: its parameters.
    input_ids: [batch, time]; [batch, choice, time] with a choice head.
    attention_mask: like `input_ids`, 0 for padding.
    position_ids: like `input_ids`; None means 0, 1, 2, ... whatever the mask.
    token_type_ids: like `input_ids`, ids of the vocabulary.
    labels: like `input_ids`, -100 where nothing counts; with a classification
      head [batch], or [batch, label] of floats.
    mc_token_ids: [batch, choice], where the choice head reads; None: the end.
    mc_labels: [batch], the right choice.

  Returns:
    `last_hidden_state`; `hidden_states` [layer + 1, batch, time, width]; and,
    where they exist, `logits`, `loss`, `mc_logits`, `mc_loss`.

  Raises:
    UsageError: an input that this model does not take.
  """
  ids = jnp.asarray(input_ids)
  mask = None
  if attention_mask is not None:
    mask = _rows(attention_mask).astype(bool)
    if position_ids is None and isinstance(model, Imported):
      position_ids = _positions(model, mask)
  kind = _check(model, token_type_ids, labels, (mc_token_ids, mc_labels))
  # Accelerators would multiply float32 in fewer bits; it is to be compared.
  with jax.default_matmul_precision('highest'):
    out = _run(
      model,
      params,
      _rows(ids),
      None if position_ids is None else _rows(position_ids),
      mask,
      None if token_type_ids is None else _rows(token_type_ids),
    )
    states = out['hidden_states']
    out['hidden_states'] = states.reshape(len(states), *ids.shape, -1)
    hidden = out['last_hidden_state'] = out['hidden_states'][-1]
    if kind in ('lm', 'double'):
      out['logits'] = out['logits'].reshape(*ids.shape, -1)
      if labels is not None:
        shifted = jnp.asarray(labels)[..., 1:]
        out['loss'] = _cross_entropy(out['logits'][..., :-1, :], shifted)
    if kind == 'double':
      out |= _choices(params, hidden, mc_token_ids, mc_labels)
    if kind == 'classification':
      options = model.options  # pyright: ignore[reportAttributeAccessIssue]
      out |= _classify(options, params, hidden, ids, labels)
    return out


def _check(
  model: Transformer, token_type_ids: Any, labels: Any, for_choices: tuple
) -> str:
  """Refuses inputs that the model does not take; returns its kind."""
  imported = isinstance(model, Imported)
  kind = model.origin.kind if imported else 'lm'
  if token_type_ids is not None and imported and not model.family.token_types:
    raise UsageError(f'token_type_ids: {model.family.model_type} takes none')
  if labels is not None and kind == 'body':
    raise UsageError('labels: this checkpoint has no head')
  if kind != 'double' and any(x is not None for x in for_choices):
    raise UsageError('mc_token_ids, mc_labels: there is no choice head')
  return kind


def _positions(model: Imported, mask: jax.Array) -> jax.Array | None:
  """Where the family's positions follow from the mask; else None."""
  hook = model.family.positions
  return hook(model, mask) if hook else None


def _rows(x: Any) -> jax.Array:
  """[..., time] to [rows, time]."""
  return jnp.asarray(x).reshape(-1, jnp.shape(x)[-1])


@functools.partial(jax.jit, static_argnames='model')
def _run(model, params, tokens_BL, positions_BL, mask_BL, kinds_BL):
  """The body's states, and the scores of a language model."""
  variables = {'params': params}
  out, sown = model.apply(
    variables,
    tokens_BL,
    positions_BL,
    mask_BL=mask_BL,
    kinds_BL=kinds_BL,
    mutable=['intermediates'],
  )
  sown = sown['intermediates']
  # HF's last state is the one after the last norm.
  states = [sown['embedded'][0], *layer_outputs(sown)[:-1], out.hidden_BLD]
  result: dict[str, Any] = {
    'hidden_states': jnp.stack(states).astype(jnp.float32)
  }
  if not isinstance(model, Imported) or model.origin.kind in ('lm', 'double'):
    result['logits'] = model.apply(variables, out.hidden_BLD, method='logits')
  return result


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """The mean over all labels that count."""
  counts = labels != _IGNORED
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  index = jnp.where(counts, labels, 0)[..., None]
  picked = jnp.take_along_axis(log_probs, index, axis=-1)[..., 0]
  return -jnp.sum(picked * counts) / jnp.sum(counts)


def _choices(
  params: Any, hidden: jax.Array, mc_token_ids: Any, mc_labels: Any
) -> dict[str, jax.Array]:
  """One score for each choice, from its state at `mc_token_ids`."""
  head = params['heads']['choice']
  if mc_token_ids is None:
    at = hidden[..., -1, :]
  else:
    index = jnp.asarray(mc_token_ids)[..., None, None]
    at = jnp.take_along_axis(hidden, index, axis=-2)[..., 0, :]
  logits = (at @ head['kernel'])[..., 0] + head['bias'][0]
  out = {'mc_logits': logits}
  if mc_labels is not None:
    out['mc_loss'] = _cross_entropy(logits, jnp.asarray(mc_labels))
  return out


def _classify(
  options: Options, params: Any, hidden: jax.Array, ids: jax.Array, labels: Any
) -> dict[str, jax.Array]:
  """Scores from the state of each row's last token that is not padding."""
  pad = options.get('pad_token_id')
  if pad is None:
    if len(ids) > 1:
      raise options.fail('pad_token_id', 'is needed for more than one row')
    last = jnp.full(len(ids), ids.shape[-1] - 1)
  else:
    last = jnp.max(jnp.where(ids != pad, jnp.arange(ids.shape[-1])[None], 0), 1)
  at = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
  logits = at @ params['heads']['score']['kernel']
  if labels is None:
    return {'logits': logits}
  labels = jnp.asarray(labels)
  kind = options.get('problem_type')
  if kind is None:
    if num_labels(options) == 1:
      kind = 'regression'
    elif jnp.issubdtype(labels.dtype, jnp.integer):
      kind = 'single_label_classification'
    else:
      kind = 'multi_label_classification'
  if kind == 'regression':
    loss = jnp.mean(jnp.square(logits - labels.reshape(logits.shape)))
  elif kind == 'single_label_classification':
    loss = _cross_entropy(logits, labels.reshape(-1))
  else:
    likely = labels * jax.nn.log_sigmoid(logits)
    loss = -jnp.mean(likely + (1 - labels) * jax.nn.log_sigmoid(-logits))
  return {'logits': logits, 'loss': loss}
