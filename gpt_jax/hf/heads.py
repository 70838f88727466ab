# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What stands on the body besides a language model: the same for all families.

The parameters of heads are `params['heads']`, beside those of `Transformer`,
which ignores them. `scores.py` has what they compute. The kinds of heads:

  lm                     a language model, causal or masked
  double                 a language model and a multiple-choice head
  classification         a row's class, from its last token
  body                   nothing
  pooled                 a pooler: dense and tanh on the first token (BERT)
  pooled_lm              a masked language model and a pooler
  pretraining            these, and from the pooler whether two sentences
                         belong together, or are in order
  pooled_classification  a row's class, from the pooler
  gelu_classification    the same, where the pooler has GELU for tanh (ELECTRA)
  relu_classification    the same with ReLU (DistilBERT)
  dense_classification   the same, by a dense layer of its own with the body's
                         activation, beside a pooler (BigBird)
  pooled_choice          a score of each choice's row, from the pooler
  last_classification    a row's class, from a pooler on the last token (XLNet)
  last_choice            a score of each choice's row, from the same
  replaced               whether each token is replaced, by a dense layer with
                         the activation of the body's (ELECTRA)
  spans                  the first and the last token of an answer
  tokens                 a class for each token
  pooled_tokens          the same, beside a pooler that is not read (BigBird)
  eos_classification     a row's class, by dense and tanh from the state at
                         the last end-of-text token (T5, BART)
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.hf.base import ACTIVATIONS, Family, Options, Tensor, linear
from gpt_jax.nn import activations
from gpt_jax.spec import UsageError

# Each kind -> its `params['heads']`.
HEADS: dict[str, tuple[str, ...]] = {
  'lm': (),
  'double': ('choice',),
  'classification': ('score',),
  'body': (),
  'pooled': ('pooler',),
  'pooled_lm': ('pooler',),
  'pretraining': ('pooler', 'pair'),
  'pooled_classification': ('pooler', 'classifier'),
  'gelu_classification': ('pooler', 'classifier'),
  'relu_classification': ('pooler', 'classifier'),
  'dense_classification': ('pooler', 'dense', 'classifier'),
  'pooled_choice': ('pooler', 'classifier'),
  'last_classification': ('pooler', 'classifier'),
  'last_choice': ('pooler', 'classifier'),
  'replaced': ('replaced_dense', 'replaced'),
  'spans': ('spans',),
  'tokens': ('classifier',),
  'pooled_tokens': ('pooler', 'classifier'),
  'eos_classification': ('dense', 'classifier'),
}
KINDS = tuple(HEADS)
# Those that score the vocabulary.
SCORING = ('lm', 'double', 'pooled_lm', 'pretraining')
# Those of them that encoders are trained with.
_PRETRAINED = ('lm', 'pooled_lm', 'pretraining')
CLASSIFYING = (
  'classification',
  'pooled_classification',
  'gelu_classification',
  'relu_classification',
  'last_classification',
  'dense_classification',
  'eos_classification',
)
# Whose pooler reads the last token of a row.
LAST = ('last_classification', 'last_choice')
POOLING = tuple(kind for kind, names in HEADS.items() if 'pooler' in names)

# The heads' tensors in the file, where `Family.heads` has no others. Most have
# the pooler within the body.
_NAMES = {
  'score': 'score',
  'choice': 'multiple_choice_head.summary',
  'pooler': '{prefix}pooler.dense',
  'pair': 'cls.seq_relationship',
  'spans': 'qa_outputs',
  'classifier': 'classifier',
  'dense': 'classification_head.dense',
  'eos_classification/classifier': 'classification_head.out_proj',
  'replaced_dense': 'discriminator_predictions.dense',
  'replaced': 'discriminator_predictions.dense_prediction',
}


def check(kind: str, options: Options) -> None:
  """Refuses options of heads that we do not compute."""
  if kind == 'double':
    options.only('summary_type', 'cls_index')
    options.only('summary_use_proj', True)
    options.only('summary_activation', None)
    # To one score: HF sets num_labels to 1 for this class.
  if kind in LAST:
    options.only('summary_type', 'last')
    options.only('summary_use_proj', True)
    options.only('summary_activation', 'tanh')
  if kind in CLASSIFYING:
    types = ('regression', 'single_label_classification')
    options.only('problem_type', None, *types, 'multi_label_classification')


def num_labels(options: Options) -> int:
  """Of a classification head."""
  labels = options.get('id2label')
  if labels is None:
    return options.size('num_labels', 2)
  if not isinstance(labels, dict) or not labels:
    raise options.fail(
      'id2label', 'must be an object with a name of each class'
    )
  return len(labels)


def found(kind: str, family: Family, names: Collection[str]) -> str:
  """The kind of a file that may hold more than its class reads.

  Files of encoders name the class of a masked language model, and yet hold the
  other heads of pre-training (bert-base-uncased, roberta-base, albert-base-v2).

  Args:
    kind: of the class that config.json names.
    family: the file's.
    names: of its tensors.
  """
  if kind != 'lm':
    return kind
  weights = {
    head: f'{_name(kind, head, family)}.weight' for head in HEADS['pretraining']
  }
  there = [
    head
    for head, name in weights.items()
    if name in names or name.removeprefix(family.prefix) in names
  ]
  kinds = {HEADS[k]: k for k in _PRETRAINED}
  return kinds.get(tuple(there), kind)


def pretrained(heads: Any) -> str:
  """The kind of a model trained here by its `params['heads']`, or None."""
  kinds = {HEADS[k]: k for k in (*_PRETRAINED, 'replaced')}
  known = (*HEADS['pretraining'], *HEADS['replaced'])
  return kinds[tuple(n for n in known if n in (heads or ()))]


def shapes(kind: str, options: Options, d_model: int) -> dict[str, Any]:
  """The tree of `params['heads']`, of float32 arrays without memory."""

  def zeros(*shape: int) -> np.ndarray:
    return np.broadcast_to(np.float32(0), shape)

  def features(name: str) -> int:
    if name in ('score', 'classifier') and not kind.endswith('_choice'):
      return num_labels(options)
    sizes = {'pair': 2, 'spans': 2}
    wide = ('pooler', 'dense', 'replaced_dense')
    return d_model if name in wide else sizes.get(name, 1)

  heads: dict[str, Any] = {}
  for name in HEADS[kind]:
    heads[name] = {'kernel': zeros(d_model, features(name))}
    if name != 'score':
      heads[name]['bias'] = zeros(features(name))
  return heads


def tensors(kind: str, family: Family) -> list[Tensor]:
  """The heads' tensors in the file."""
  return [
    tensor
    for head in HEADS[kind]
    for tensor in linear(
      f'heads/{head}', _name(kind, head, family), bias=head != 'score'
    )
  ]


def _name(kind: str, head: str, family: Family) -> str:
  names = {**_NAMES, **family.heads}
  name = names.get(f'{kind}/{head}', names[head])
  return name.format(prefix=family.prefix)


# What the heads compute from the body's states, and the losses, as in HF.


# Labels of this value count nothing.
IGNORED = -100

# The inputs that tell the heads of each kind what is right, or where to look.
# With two sentences there is one more, that of `Family.pair`.
TAKES = {
  'lm': {'labels'},
  'double': {'labels', 'mc_token_ids', 'mc_labels'},
  'pooled_lm': {'labels'},
  'pretraining': {'labels'},
  'classification': {'labels'},
  'pooled_classification': {'labels'},
  'pooled_choice': {'labels'},
  'last_classification': {'labels'},
  'last_choice': {'labels'},
  'gelu_classification': {'labels'},
  'relu_classification': {'labels'},
  'dense_classification': {'labels'},
  'eos_classification': {'labels'},
  'replaced': {'labels'},
  'tokens': {'labels'},
  'pooled_tokens': {'labels'},
  'spans': {'start_positions', 'end_positions'},
  'pooled': set(),
  'body': set(),
}

Outputs = dict[str, jax.Array]


class Targets(NamedTuple):
  """Such inputs; see `forward`."""

  labels: Any = None
  mc_token_ids: Any = None
  mc_labels: Any = None
  next_sentence_label: Any = None
  sentence_order_label: Any = None
  start_positions: Any = None
  end_positions: Any = None

  def check(self, kind: str, pair: str) -> None:
    """Refuses those that no head takes; `pair` is that of two sentences."""
    given = {n for n, x in self._asdict().items() if x is not None}
    extra = given - TAKES[kind] - ({pair} if kind == 'pretraining' else set())
    if extra & {'mc_token_ids', 'mc_labels'}:
      raise UsageError('mc_token_ids, mc_labels: there is no choice head')
    if extra:
      names = ', '.join(sorted(extra))
      raise UsageError(f'{names}: this checkpoint has no head for it')


def of_heads(
  kind: str,
  options: Options,
  params: Any,
  hidden: jax.Array,
  ids: jax.Array,
  targets: Targets,
  *,
  mask: jax.Array | None,
  pair: tuple[str, str],
) -> Outputs:
  """The outputs of all heads but the language model's.

  Args:
    kind: of `heads.KINDS`.
    options: the checkpoint's.
    params: all parameters.
    hidden: the body's last states; the decoder's, in an encoder-decoder.
    ids: the input ids.
    targets: what is right.
    mask: bool, False for padding; None: there is none.
    pair: see `Family`.
  """
  parameters = params.get('heads', {})
  if kind == 'double':
    return _choices(parameters['choice'], hidden, targets)
  if kind == 'spans':
    return _spans(parameters['spans'], hidden, targets)
  if kind in ('tokens', 'pooled_tokens'):
    logits = _dense(parameters['classifier'], hidden)
    return _with_loss(logits, targets.labels)
  if kind == 'replaced':
    return _replaced(options, parameters, hidden, targets.labels, mask)
  if kind in ('gelu_classification', 'relu_classification'):
    activation = activations.ACTIVATIONS[kind.partition('_')[0]]
    pooled = activation(_dense(parameters['pooler'], hidden[:, 0]))
    logits = _dense(parameters['classifier'], pooled)
    return _classified(options, logits, targets.labels)
  if kind in POOLING:
    at = hidden[:, -1 if kind in LAST else 0]
    pooled = jnp.tanh(_dense(parameters['pooler'], at))
    out = {'pooler_output': pooled}
    if kind == 'pretraining':
      out |= _pair(parameters['pair'], pooled, targets, pair)
    if kind in ('pooled_classification', 'last_classification'):
      logits = _dense(parameters['classifier'], pooled)
      out |= _classified(options, logits, targets.labels)
    if kind == 'dense_classification':
      activation = _activation(options, 'gelu_new')
      dense = activation(_dense(parameters['dense'], hidden[:, 0]))
      logits = _dense(parameters['classifier'], dense)
      out |= _classified(options, logits, targets.labels)
    if kind in ('pooled_choice', 'last_choice'):
      logits = _dense(parameters['classifier'], pooled)
      out |= _with_loss(logits.reshape(ids.shape[:-1]), targets.labels)
    return out
  if kind == 'classification':
    at = _pick(hidden, _last(options, ids))
    logits = at @ parameters['score']['kernel']
    return _classified(options, logits, targets.labels)
  if kind == 'eos_classification':
    at = _pick(hidden, _last_eos(options, ids))
    at = jnp.tanh(_dense(parameters['dense'], at))
    logits = _dense(parameters['classifier'], at)
    return _classified(options, logits, targets.labels)
  return {}


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """The mean over all labels that count."""
  counts = labels != IGNORED
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  index = jnp.where(counts, labels, 0)[..., None]
  picked = jnp.take_along_axis(log_probs, index, axis=-1)[..., 0]
  return -jnp.sum(picked * counts) / jnp.sum(counts)


def _activation(options: Options, default: str) -> activations.Activation:
  """The body's."""
  name = options.choice('hidden_act', ACTIVATIONS, default)
  return activations.ACTIVATIONS[name]


def _dense(head: Any, x: jax.Array) -> jax.Array:
  bias = head['bias'].reshape((1,) * (x.ndim - 1) + (-1,))
  return x @ head['kernel'] + bias


def _pick(hidden: jax.Array, index: jax.Array) -> jax.Array:
  """[..., time, width] and where [...] to [..., width]."""
  index = index[..., None, None]
  return jnp.take_along_axis(hidden, index, axis=-2)[..., 0, :]


def _with_loss(logits: jax.Array, labels: Any) -> Outputs:
  if labels is None:
    return {'logits': logits}
  loss = cross_entropy(logits, jnp.asarray(labels))
  return {'logits': logits, 'loss': loss}


def _replaced(
  options: Options,
  parameters: Any,
  hidden: jax.Array,
  labels: Any,
  mask: jax.Array | None,
) -> Outputs:
  """Whether each token is replaced: a logit, and 1 as the label, says so."""
  activation = _activation(options, 'gelu')
  x = activation(_dense(parameters['replaced_dense'], hidden))
  logits = _dense(parameters['replaced'], x)[..., 0]
  if labels is None:
    return {'logits': logits}
  losses = jax.nn.softplus(jnp.where(jnp.asarray(labels) > 0, -logits, logits))
  counts = jnp.ones(logits.shape) if mask is None else mask
  loss = jnp.sum(losses * counts) / jnp.sum(counts)
  return {'logits': logits, 'loss': loss}


def _choices(head: Any, hidden: jax.Array, targets: Targets) -> Outputs:
  """One score for each choice, from its state at `mc_token_ids`."""
  if targets.mc_token_ids is None:
    at = hidden[..., -1, :]
  else:
    at = _pick(hidden, jnp.asarray(targets.mc_token_ids))
  logits = _dense(head, at)[..., 0]
  out = {'mc_logits': logits}
  if targets.mc_labels is not None:
    out['mc_loss'] = cross_entropy(logits, jnp.asarray(targets.mc_labels))
  return out


def _spans(head: Any, hidden: jax.Array, targets: Targets) -> Outputs:
  """A score for each token to be the first, and to be the last, of a span."""
  start, end = jnp.moveaxis(_dense(head, hidden), -1, 0)
  out = {'start_logits': start, 'end_logits': end}
  right = targets.start_positions, targets.end_positions
  if all(x is not None for x in right):
    losses = []
    for logits, x in zip((start, end), right, strict=True):
      # Answers that were cut off count nothing.
      index = jnp.maximum(jnp.asarray(x).reshape(-1), 0)
      index = jnp.where(index < logits.shape[1], index, IGNORED)
      losses.append(cross_entropy(logits, index))
    out['loss'] = (losses[0] + losses[1]) / 2
  return out


def _pair(
  head: Any, pooled: jax.Array, targets: Targets, names: tuple[str, str]
) -> Outputs:
  """Whether two sentences belong together: class 0 says so."""
  told, said = names
  logits = _dense(head, pooled)
  out = {said: logits}
  labels = getattr(targets, told)
  if labels is not None:
    out['pair_loss'] = cross_entropy(logits, jnp.asarray(labels).reshape(-1))
  return out


def _last(options: Options, ids: jax.Array) -> jax.Array:
  """Where each row's last token is that is not padding."""
  pad = options.get('pad_token_id')
  if pad is None:
    if len(ids) > 1:
      raise options.fail('pad_token_id', 'is needed for more than one row')
    return jnp.full(len(ids), ids.shape[-1] - 1)
  return jnp.max(jnp.where(ids != pad, jnp.arange(ids.shape[-1])[None], 0), 1)


def _last_eos(options: Options, ids: jax.Array) -> jax.Array:
  """Where each row's last end-of-text token is."""
  is_eos = ids == options.size('eos_token_id')
  if not is_eos.any(axis=1).all():
    eos = options.get('eos_token_id')
    raise UsageError(f'input_ids: no eos_token_id={eos} in a row to classify')
  return jnp.max(jnp.where(is_eos, jnp.arange(ids.shape[-1])[None], 0), 1)


def _classified(options: Options, logits: jax.Array, labels: Any) -> Outputs:
  """Classes of whole rows, and their loss by `problem_type`."""
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
    loss = cross_entropy(logits, labels.reshape(-1))
  else:
    likely = labels * jax.nn.log_sigmoid(logits)
    loss = -jnp.mean(likely + (1 - labels) * jax.nn.log_sigmoid(-logits))
  return {'logits': logits, 'loss': loss}
