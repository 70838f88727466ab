# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs a model with Hugging Face's names of inputs and outputs."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.stack import Caches, layer_outputs, layer_routers
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.spec import UsageError
from gpt_jax.hf import heads, routers
from gpt_jax.hf.base import choice
from gpt_jax.hf.heads import SCORING
from gpt_jax.hf.layout import Imported, imported, transformer_fields
from gpt_jax.papers.transformer_xl.transformer_xl import SegmentMemory, init_memories


class ModelInputs(NamedTuple):
  """The inputs of models in transformers, by the same names.

  Attributes:
    input_ids: [batch, time]; [batch, choice, time] with a choice head. The
      encoder's, in an encoder-decoder.
    attention_mask: like `input_ids`, 0 for padding; or with one more axis,
      [..., query, key], 1 where the query sees the key.
    position_ids: like `input_ids`; None: 0, 1, 2, ..., whatever the mask.
    token_type_ids: like `input_ids`: types, or ids of the vocabulary (GPT).
    decoder_input_ids: [batch, length]; None: `labels`, or with a
      classification head `input_ids`, shifted right.
    decoder_attention_mask: like `decoder_input_ids`, 0 for padding.
    labels: like `input_ids` (`decoder_input_ids`), -100 to ignore a token;
      with a classification head [batch], or [batch, label] of floats; with a
      choice head on a pooler [batch].
    mc_token_ids: [batch, choice], the token the choice head reads; None: the
      last.
    mc_labels: [batch], the right choice.
    next_sentence_label: [batch], 0 if the second sentence follows the first.
    sentence_order_label: [batch], 0 if two sentences are in order (ALBERT).
    start_positions: [batch], the first token of the answer.
    end_positions: [batch], its last token.
    mems: [layer, memory, batch, width], Transformer-XL's or XLNet's output for
      the previous segment.
    use_mems: whether XLNet returns them; None: as config.json says.
    perm_mask: XLNet, [batch, query, key], 1 where the query does not see the
      key.
    target_mapping: XLNet, [batch, target, time], 1 at the token that each
      target predicts.
    output_router_logits: whether to return the router logits of experts and add
      their losses to `loss`; None: as config.json says.
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
    """The inputs of heads."""
    names = heads.Targets._fields
    return heads.Targets(*(getattr(self, name) for name in names))


def forward(model: Transformer, params: Any, **inputs: Any) -> dict[str, jax.Array]:
  """Computes what the model's class in transformers returns in evaluation.

  Args:
    model: from `load`, or a `Transformer`, which is run as a language model.
    params: its parameters.
    **inputs: see `ModelInputs`; only `input_ids` is required.

  Returns:
    `last_hidden_state`; `hidden_states` [layer + 1, batch, time, width]; for an
    encoder-decoder `decoder_hidden_states`, `encoder_hidden_states` and
    `encoder_last_hidden_state`; for Transformer-XL and XLNet `mems`; for
    Transformer-XL also `log_probs` or, with labels, `losses`, `loss`; outputs
    of the heads, such as `logits`,
    `loss`, `mc_logits`, `mc_loss`, `pooler_output`, `start_logits`. With
    experts `router_logits` [layer, batch, time, expert] and `aux_loss`, in an
    encoder-decoder for each side (`encoder_router_logits`) with `_z_loss` and
    `_token_kept` [layer, batch, time]; `lm_loss` is the loss without theirs.
  """
  given = ModelInputs(**inputs)
  if not isinstance(model, Imported):
    fields = {name: getattr(model, name) for name in transformer_fields()}
    model = imported(fields)
  kind = _check(model, given)
  row, caches = _read(model, kind, given)
  # For comparisons: accelerators multiply float32 in fewer bits by default.
  with jax.default_matmul_precision('highest'):
    found = _run(model, params, row, caches, scored=kind in SCORING)
    return _outputs(model, kind, params, given, row, caches, found)


def _check(model: Imported, given: ModelInputs) -> str:
  """Rejects inputs that the model does not take; returns its kind of heads."""
  kind = model.origin.kind
  if takes := model.family.recurrent:
    names = (n for n, x in given._asdict().items() if x is not None)
    known = ('input_ids', *takes, *heads.Targets._fields)
    if extra := [n for n in names if n not in known]:
      model_type = model.family.model_type
      raise UsageError(f'{", ".join(extra)}: {model_type} takes none')
    given.targets.check(kind, '')
    return kind
  if given.mems is not None:
    raise UsageError('mems: only Transformer-XL and XLNet take them')
  for name in ('use_mems', 'perm_mask', 'target_mapping'):
    if getattr(given, name) is not None:
      raise UsageError(f'{name}: only XLNet takes it')
  types = given.token_type_ids is not None
  if types and not model.family.token_types:
    raise UsageError(f'token_type_ids: {model.family.model_type} takes none')
  both_ways = not ModelChoices.of(model).causal
  if types and both_ways and not choice(model, 'input').kwargs['token_types']:
    # They would be looked up as words, as in GPT.
    raise UsageError('token_type_ids: this model has no types')
  given.targets.check(kind, model.family.pair[0])
  decoder = given.decoder_input_ids, given.decoder_attention_mask
  if model.num_encoder_layers:
    if _whole(given):
      raise UsageError('attention_mask: an encoder-decoder takes one number for each token')
    if given.position_ids is not None or types:
      raise UsageError('position_ids, token_type_ids: an encoder-decoder takes none')
  elif any(x is not None for x in decoder):
    raise UsageError('decoder_input_ids: this model has no encoder')
  return kind


def _read(model: Imported, kind: str, given: ModelInputs) -> tuple[Row, Caches | None]:
  """What the model reads, and memories."""
  if model.family.recurrent:
    return _with_memories(model, given)
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
    row = Row(
      jnp.asarray(decoder_ids),
      real_BL=_mask(given.decoder_attention_mask),
      extra={'source': Row(ids, real_BL=mask)},
    )
    return row, None
  positions, types = given.position_ids, given.token_type_ids
  positions = None if positions is None else _rows(positions)
  if model.family.positions:
    positions = model.family.positions(model, _rows(ids), mask, positions)
  row = Row(
    _rows(ids),
    positions_BL=positions,
    real_BL=mask,
    token_types_BL=None if types is None else _rows(types),
    visible_BLM=visible,
  )
  return row, None


def _whole(given: ModelInputs) -> bool:
  """Whether the attention mask is [..., query, key]."""
  mask = given.attention_mask
  return mask is not None and jnp.ndim(mask) > jnp.ndim(given.input_ids)


def _outputs(
  model: Imported,
  kind: str,
  params: Any,
  given: ModelInputs,
  row: Row,
  caches: Caches | None,
  found: dict[str, Any],
) -> dict[str, jax.Array]:
  """The results of `_run` by HF's names, with heads' outputs and losses."""
  options, ids = model.options, jnp.asarray(given.input_ids)
  encoded = model.num_encoder_layers > 0
  # With a choice head on a pooler, all choices are rows.
  apart = encoded or kind in ('pooled_choice', 'last_choice')
  time = row.tokens_BL.shape if apart else ids.shape
  out = {name: x for name, x in found.items() if name.startswith('encoder_')}
  states = found['hidden_states']
  states = states.reshape(len(states), *time, -1)
  hidden = states[-1]
  if 'predictions' in found:
    hidden = found['predictions']
  else:
    out['decoder_' * encoded + 'hidden_states'] = states
  out['last_hidden_state'] = hidden
  mask = row.real_BL
  if model.family.recurrent:
    out |= _kept(model, given, caches, found)
  if kind in SCORING:
    logits = found['logits'].reshape(*hidden.shape[:-1], -1)
    out |= _language_model(model, kind, logits, given.labels)
  asked = given.output_router_logits
  if asked is None:
    asked = options.flag('output_router_logits', False)
  if asked:
    out |= routers.outputs(model, found['routed'], mask)
    if kind == 'lm' and given.labels is not None:
      out['lm_loss'] = out['loss']
      out['loss'] += routers.loss(model, out)
  parameters = params.get('heads', {})
  out |= heads.KINDS[kind].outputs(
    heads.HeadInputs(options, parameters, hidden, ids, given.targets, mask, model.family.pair)
  )
  if kind == 'pretraining' and {'mlm_loss', 'pair_loss'} <= {*out}:
    out['loss'] = out['mlm_loss'] + out['pair_loss']
  return out


def _shifted_right(model: Imported, source: Any) -> jax.Array:
  """The decoder's input ids from its labels: HF's `_shift_right`."""
  if source is None:
    raise UsageError('decoder_input_ids or labels: are needed')
  ids, options = jnp.asarray(source), model.options
  pad = options.number('pad_token_id')
  ids = jnp.where(ids == heads.IGNORED, pad, ids)
  if model.family.rolled:
    last = jnp.sum(ids != pad, axis=1, keepdims=True) - 1
    first = jnp.take_along_axis(ids, last, axis=1)
  else:
    start = options.number('decoder_start_token_id')
    first = jnp.full_like(ids[:, :1], start)
  return jnp.concatenate([first, ids[:, :-1]], axis=1)


def _language_model(
  model: Imported, kind: str, logits: jax.Array, labels: Any
) -> dict[str, jax.Array]:
  """The scores of the vocabulary and their loss, by the kind's names."""
  if model.family.recurrent and choice(model, 'output').name == 'adaptive':
    return _adaptive_softmax(model, logits, labels)
  pretraining = kind == 'pretraining'
  out = {'prediction_logits' if pretraining else 'logits': logits}
  if labels is not None:
    labels = jnp.asarray(labels)
    causal = ModelChoices.of(model).causal
    if causal and not model.num_encoder_layers and not model.family.recurrent:
      # The labels are the inputs: each is predicted one token earlier.
      logits, labels = logits[..., :-1, :], labels[..., 1:]
    name = 'mlm_loss' if pretraining else 'loss'
    out[name] = heads.cross_entropy(logits, labels)
  return out


def _mask(x: Any) -> jax.Array | None:
  return None if x is None else _rows(x).astype(bool)


def _rows(x: Any) -> jax.Array:
  """[..., time] to [rows, time]."""
  return jnp.asarray(x).reshape(-1, jnp.shape(x)[-1])


@functools.partial(jax.jit, static_argnames=('model', 'scored'))
def _run(model, params, row, caches, scored):
  """The body's states and, with `scored`, the scores of the vocabulary."""
  variables = {'params': params}
  out, sown = model.apply(variables, row, caches, mutable=['intermediates'])
  sown = sown['intermediates']

  def states(name, stack, last):
    # HF's last state is after the final norm.
    layers = [sown[name][0], *layer_outputs(sown, stack)[:-1], last]
    length = layers[0].shape[1]
    return jnp.stack([x[:, :length] for x in layers]).astype(jnp.float32)

  hidden = out.hidden_BLD
  result: dict[str, Any] = {'hidden_states': states('embedded', 'decoder', hidden)}
  if 'predicted' in row.extra:
    # XLNet's second stream follows the first.
    hidden = hidden[:, row.tokens_BL.shape[1] :]
    result['predictions'] = hidden
  if caches is not None:
    result['memories'] = out.caches[0].hidden_BMD
  if model.num_encoder_layers:
    encoder = states('encoder_embedded', 'encoder', out.memory_BMD)
    result['encoder_hidden_states'] = encoder
    result['encoder_last_hidden_state'] = encoder[-1]
  stacks = ['decoder', *['encoder'] * (model.num_encoder_layers > 0)]
  result['routed'] = {stack: layer_routers(sown, stack) for stack in stacks}
  if scored:
    result['logits'] = model.apply(variables, hidden, method='logits')
  return result


# Transformer-XL and XLNet: memories, permutations and predictions.


def _with_memories(model: Imported, given: ModelInputs) -> tuple[Row, Caches | None]:
  """What the model reads, in its order of prediction, and memories."""
  tokens_BL, caches = _rows(given.input_ids), None
  position, num_rows = choice(model, 'position'), len(tokens_BL)
  memory = position.kwargs['memory']
  if position.name == 'transformer_xl' and memory:
    caches = init_memories(model, num_rows)  # zeros count as tokens
  if given.mems is not None:
    size = (memory,)
    if position.name == 'xlnet':
      size = jnp.shape(given.mems)[1:2]
    elif not memory:
      raise UsageError('mems: the model keeps none (mem_len is 0)')
    shape = (model.num_layers, *size, num_rows, model.d_model)
    if jnp.shape(given.mems) != shape:
      raise UsageError(f'mems: must be {shape}, not {jnp.shape(given.mems)}')
    mems = jnp.swapaxes(jnp.asarray(given.mems, jnp.float32), 1, 2)
    caches = (SegmentMemory(mems),)
  row = _in_order(tokens_BL, given)
  if given.token_type_ids is not None:
    row = row._replace(token_types_BL=_rows(given.token_type_ids))
  return row, caches


def _in_order(tokens_BL: jax.Array, given: ModelInputs) -> Row:
  """A row: what each token sees, and what the second stream predicts.

  The content stream of every token, even of padding, sees the token itself.
  """
  row = Row(tokens_BL)
  if given.target_mapping is not None:
    mapping = jnp.asarray(given.target_mapping)
    if jnp.any(jnp.sum(mapping != 0, axis=-1) > 1) or jnp.any(mapping > 1):
      raise UsageError('target_mapping: each row must have a single 1')
    predicted_BP = jnp.argmax(mapping, axis=-1)
    row = row._replace(extra={'predicted': predicted_BP})
  elif given.perm_mask is None and given.attention_mask is None:
    return row
  B, L = tokens_BL.shape
  seen_BLM = jnp.ones((B, L, L), bool)
  if given.perm_mask is not None:
    seen_BLM &= jnp.asarray(given.perm_mask) == 0
  if given.attention_mask is not None:
    seen_BLM &= _rows(given.attention_mask).astype(bool)[:, None]
  visible_BLM = seen_BLM | jnp.eye(L, dtype=bool)[None]
  if row.extra:
    predicted_BP1 = row.extra['predicted'][..., None]
    query_BPM = jnp.take_along_axis(seen_BLM, predicted_BP1, axis=1)
    visible_BLM = jnp.concatenate([visible_BLM, query_BPM], axis=1)
  return row._replace(visible_BLM=visible_BLM)


def _kept(
  model: Imported, given: ModelInputs, caches: Any, found: dict[str, Any]
) -> dict[str, jax.Array]:
  """`mems`, [layer, memory, batch, width], for the next segment."""
  position = choice(model, 'position')
  memory = position.kwargs['memory']
  if position.name == 'transformer_xl':
    kept = found.get('memories')
    return {} if kept is None else {'mems': jnp.swapaxes(kept, 1, 2)}
  use_mems = given.use_mems
  if use_mems is None:
    use_mems = model.options.flag('use_mems_eval', True)
  if not memory or not use_mems:
    return {}
  # The inputs of each layer, without zeros before the first.
  kept = found['hidden_states'][:-1]
  if caches is not None:
    before = caches[0].hidden_BMD
    kept = jnp.concatenate([before, kept], axis=2)
  return {'mems': jnp.swapaxes(kept[:, :, -memory:], 1, 2)}


def _adaptive_softmax(model: Imported, log_probs: jax.Array, labels: Any) -> dict[str, jax.Array]:
  """HF's: one cluster after the other, then a zero for each ignored label."""
  if labels is None:
    return {'log_probs': log_probs}
  cutoffs = choice(model, 'input').kwargs['cutoffs']
  labels = jnp.asarray(labels)[:, 1:]
  flat = labels.reshape(-1)
  counts = flat != heads.IGNORED
  index = jnp.where(counts, flat, 0)[:, None]
  rows = log_probs[:, :-1].reshape(len(flat), -1)
  losses = -jnp.take_along_axis(rows, index, axis=-1)[:, 0] * counts
  if cutoffs:
    cluster = jnp.searchsorted(jnp.asarray(cutoffs), flat, side='right')
    cluster = jnp.where(counts, cluster, len(cutoffs) + 1)
    losses = losses[jnp.argsort(cluster, stable=True)]
  total = jnp.sum(losses) / jnp.sum(counts)
  return {'losses': losses.reshape(labels.shape), 'loss': total}
