# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs a model under Hugging Face's names of inputs and outputs."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.hf import heads, routers
from gpt_jax.hf.base import Options, choice
from gpt_jax.hf.heads import SCORING
from gpt_jax.hf.layout import Imported
from gpt_jax.nn.pattern import is_causal
from gpt_jax.nn.stack import layer_outputs, layer_routers
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError


class Inputs(NamedTuple):
  """What models take in transformers, under the same names; None: not given.

  Attributes:
    input_ids: [batch, time]; [batch, choice, time] with a choice head. The
      encoder's, in an encoder-decoder.
    attention_mask: like `input_ids`, 0 for padding; or with one more axis, 1
      where a token looks at another, which comes last.
    position_ids: like `input_ids`; None means 0, 1, 2, ... whatever the mask.
    token_type_ids: like `input_ids`, ids of the vocabulary, or of types.
    decoder_input_ids: [batch, length]; None: `labels`, or with a
      classification head `input_ids`, shifted right.
    decoder_attention_mask: like `decoder_input_ids`, 0 for padding.
    labels: like `input_ids` (`decoder_input_ids`), -100 where nothing counts;
      with a classification head [batch], or [batch, label] of floats; with a
      choice head on a pooler [batch].
    mc_token_ids: [batch, choice], where the choice head reads; None: the end.
    mc_labels: [batch], the right choice.
    next_sentence_label: [batch], 0 if the second sentence follows the first.
    sentence_order_label: [batch], 0 if two sentences are in order (ALBERT).
    start_positions: [batch], the first token of the answer.
    end_positions: [batch], its last token.
    mems: [layer, memory, batch, width], what Transformer-XL or XLNet gave for
      the segment before.
    use_mems: whether XLNet gives them; None: as config.json has it.
    perm_mask: of XLNet, [batch, time, time], 1 where a token does not look at
      another, which comes last.
    target_mapping: of XLNet, [batch, target, time], 1 at the token of which
      each target is a prediction.
    output_router_logits: whether the routers of experts are asked, and their
      losses are part of `loss`; None: as config.json has it.
  """

  input_ids: Any
  attention_mask: Any = None
  position_ids: Any = None
  token_type_ids: Any = None
  decoder_input_ids: Any = None
  decoder_attention_mask: Any = None
  labels: Any = None
  mc_token_ids: Any = None
  mc_labels: Any = None
  next_sentence_label: Any = None
  sentence_order_label: Any = None
  start_positions: Any = None
  end_positions: Any = None
  mems: Any = None
  use_mems: bool | None = None
  perm_mask: Any = None
  target_mapping: Any = None
  output_router_logits: bool | None = None

  @property
  def targets(self) -> heads.Targets:
    """Those that heads take."""
    names = heads.Targets._fields
    return heads.Targets(*(getattr(self, name) for name in names))


def forward(
  model: Transformer, params: Any, **inputs: Any
) -> dict[str, jax.Array]:
  """Computes what the model's class in transformers returns in evaluation.

  Args:
    model: from `load`, or a `Transformer`, which is taken as a language model.
    params: its parameters.
    **inputs: see `Inputs`; only `input_ids` must be given.

  Returns:
    `last_hidden_state`; `hidden_states` [layer + 1, batch, time, width]; of an
    encoder-decoder `decoder_hidden_states`, `encoder_hidden_states` and
    `encoder_last_hidden_state`; of Transformer-XL `mems`, and `log_probs` or,
    with labels, `losses`, `loss`; what the heads give, such as `logits`,
    `loss`, `mc_logits`, `mc_loss`, `pooler_output`, `start_logits`. Of routers
    `router_logits` [layer, batch, time, expert] and `aux_loss`, in an
    encoder-decoder for each side (`encoder_router_logits`) with `_z_loss` and
    `_token_kept` [layer, batch, time]; `lm_loss` is the loss without theirs.
  """
  given = Inputs(**inputs)
  if isinstance(model, Imported) and model.family.forward:
    named = {n: x for n, x in given._asdict().items() if x is not None}
    return model.family.forward(model, model.origin.kind, params, **named)
  kind = _check(model, given)
  arguments = _arguments(model, kind, given)
  # Accelerators would multiply float32 in fewer bits; it is to be compared.
  with jax.default_matmul_precision('highest'):
    found = _run(model, params, arguments)
    return _outputs(model, kind, params, given, arguments, found)


def _check(model: Transformer, given: Inputs) -> str:
  """Refuses inputs that the model does not take; returns its kind."""
  if given.mems is not None:
    raise UsageError('mems: only Transformer-XL and XLNet take them')
  for name in ('use_mems', 'perm_mask', 'target_mapping'):
    if getattr(given, name) is not None:
      raise UsageError(f'{name}: only XLNet takes it')
  kind = model.origin.kind if isinstance(model, Imported) else 'lm'
  types = given.token_type_ids is not None
  if types and isinstance(model, Imported) and not model.family.token_types:
    raise UsageError(f'token_type_ids: {model.family.model_type} takes none')
  both_ways = not is_causal(model.attention, model.ffn)
  if types and both_ways and not choice(model, 'input').kwargs['token_types']:
    # They would be words, as in GPT.
    raise UsageError('token_type_ids: this model has no types')
  given.targets.check(kind, _pair(model)[0])
  decoder = given.decoder_input_ids, given.decoder_attention_mask
  if model.num_encoder_layers:
    if _whole(given):
      raise UsageError(
        'attention_mask: an encoder-decoder takes one number for each token'
      )
    if given.position_ids is not None or types:
      raise UsageError(
        'position_ids, token_type_ids: an encoder-decoder takes none'
      )
  elif any(x is not None for x in decoder):
    raise UsageError('decoder_input_ids: this model has no encoder')
  return kind


def _arguments(
  model: Transformer, kind: str, given: Inputs
) -> dict[str, jax.Array | None]:
  """What `Transformer.__call__` is given."""
  ids, mask, visible = jnp.asarray(given.input_ids), given.attention_mask, None
  if _whole(given):
    mask, visible = None, jnp.asarray(mask).astype(bool)
    visible = visible.reshape(*_rows(ids).shape, -1)
  mask = _mask(mask)
  if model.num_encoder_layers:
    decoder_ids = given.decoder_input_ids
    if decoder_ids is None:
      source = given.labels if kind in SCORING else ids
      decoder_ids = _shifted_right(model, source)
    return {
      'tokens_BL': jnp.asarray(decoder_ids),
      'mask_BL': _mask(given.decoder_attention_mask),
      'encoder_tokens_BM': ids,
      'encoder_mask_BM': mask,
    }
  positions, types = given.position_ids, given.token_type_ids
  positions = None if positions is None else _rows(positions)
  if isinstance(model, Imported) and model.family.positions:
    positions = model.family.positions(model, _rows(ids), mask, positions)
  return {
    'tokens_BL': _rows(ids),
    'positions_BL': positions,
    'mask_BL': mask,
    'token_types_BL': None if types is None else _rows(types),
    'visible_BLM': visible,
  }


def _whole(given: Inputs) -> bool:
  """Whether the mask says of each token which others it looks at."""
  mask = given.attention_mask
  return mask is not None and jnp.ndim(mask) > jnp.ndim(given.input_ids)


def _outputs(
  model: Transformer,
  kind: str,
  params: Any,
  given: Inputs,
  arguments: dict[str, Any],
  found: dict[str, Any],
) -> dict[str, jax.Array]:
  """What `_run` found under HF's names, with the heads' outputs and losses."""
  options, ids = _options(model), jnp.asarray(given.input_ids)
  encoded = model.num_encoder_layers > 0
  # With a choice head, rows are those of all choices.
  apart = encoded or kind == 'pooled_choice'
  time = arguments['tokens_BL'].shape if apart else ids.shape
  out = {name: x for name, x in found.items() if name.startswith('encoder_')}
  states = found['hidden_states']
  states = states.reshape(len(states), *time, -1)
  out['decoder_' * encoded + 'hidden_states'] = states
  hidden = out['last_hidden_state'] = states[-1]
  if kind in SCORING:
    logits = found['logits'].reshape(*time, -1)
    out |= _language_model(model, kind, logits, given.labels)
  asked = given.output_router_logits
  if asked is None:
    asked = options.flag('output_router_logits', False)
  if asked:
    out |= routers.outputs(model, found['routed'], arguments['mask_BL'])
    if kind == 'lm' and given.labels is not None:
      out['lm_loss'] = out['loss']
      out['loss'] += routers.loss(model, out)
  out |= heads.of_heads(
    *(kind, options, params, hidden, ids, given.targets),
    mask=arguments['mask_BL'],
    pair=_pair(model),
  )
  if kind == 'pretraining' and {'mlm_loss', 'pair_loss'} <= {*out}:
    out['loss'] = out['mlm_loss'] + out['pair_loss']
  return out


def _pair(model: Transformer) -> tuple[str, str]:
  """The names of what says that two sentences belong together."""
  return model.family.pair if isinstance(model, Imported) else ('', '')


def _options(model: Transformer) -> Options:
  return model.options if isinstance(model, Imported) else Options({})


def _shifted_right(model: Transformer, source: Any) -> jax.Array:
  """The decoder's ids, from what it is to say: HF's `_shift_right`."""
  if source is None:
    raise UsageError('decoder_input_ids or labels: are needed')
  ids, options = jnp.asarray(source), _options(model)
  pad = options.number('pad_token_id')
  ids = jnp.where(ids == heads.IGNORED, pad, ids)
  if isinstance(model, Imported) and model.family.rolled:
    last = jnp.sum(ids != pad, axis=1, keepdims=True) - 1
    first = jnp.take_along_axis(ids, last, axis=1)
  else:
    start = options.number('decoder_start_token_id')
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
    if decoder_only and is_causal(model.attention, model.ffn):
      # The labels are the inputs, of which each is said one token before.
      logits, labels = logits[..., :-1, :], labels[..., 1:]
    name = 'mlm_loss' if pretraining else 'loss'
    out[name] = heads.cross_entropy(logits, labels)
  return out


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
