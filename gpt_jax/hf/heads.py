# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Heads other than the language model's, the same for all families.

`KINDS`, at the foot, has each kind of heads: its parameters, which are in
`params['heads']` beside those of `Transformer` (which ignores them), and what
it computes from the body's states, losses included, as transformers does.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn import layers
from gpt_jax.core.spec import UsageError
from gpt_jax.hf.base import ACTIVATIONS, Family, Options, Tensor, linear

# Kinds with a language model, which scores the vocabulary.
SCORING = ('lm', 'double', 'pooled_lm', 'pretraining')
# Of these, the kinds that encoders are pre-trained with.
_PRETRAINED = ('lm', 'pooled_lm', 'pretraining')

# Names of the heads' tensors, unless `Family.heads` has others. Most families
# have the pooler within the body.
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
  if kind.startswith('last_'):
    options.only('summary_type', 'last')
    options.only('summary_use_proj', True)
    options.only('summary_activation', 'tanh')
  if kind.endswith('classification'):
    types = ('regression', 'single_label_classification')
    options.only('problem_type', None, *types, 'multi_label_classification')


def num_labels(options: Options) -> int:
  """Number of classes of a classification head."""
  labels = options.get('id2label')
  if labels is None:
    return options.size('num_labels', 2)
  if not isinstance(labels, dict) or not labels:
    raise options.fail('id2label', 'must be an object with a name of each class')
  return len(labels)


def kind_of_file(kind: str, family: Family, names: Collection[str]) -> str:
  """The kind of heads in a file, which may hold more than its class reads.

  Some encoders' config.json names the class of a masked language model, while
  the file also holds the other heads of pre-training (bert-base-uncased,
  roberta-base, albert-base-v2). `kind` is that of the class, `names` are those
  of the tensors.
  """
  if kind != 'lm':
    return kind
  weights = {head: f'{_name(kind, head, family)}.weight' for head in KINDS['pretraining'].parts}
  there = [
    head
    for head, name in weights.items()
    if name in names or name.removeprefix(family.prefix) in names
  ]
  kinds = {KINDS[k].parts: k for k in _PRETRAINED}
  return kinds.get(tuple(there), kind)


def pretrained(heads: Any) -> str:
  """The kind of heads in `params['heads']` of a model pre-trained here."""
  kinds = {KINDS[k].parts: k for k in (*_PRETRAINED, 'replaced')}
  known = (*KINDS['pretraining'].parts, *KINDS['replaced'].parts)
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
  for name in KINDS[kind].parts:
    heads[name] = {'kernel': zeros(d_model, features(name))}
    if name != 'score':
      heads[name]['bias'] = zeros(features(name))
  return heads


def tensors(kind: str, family: Family) -> list[Tensor]:
  """The heads' tensors in the file."""
  return [
    tensor
    for head in KINDS[kind].parts
    for tensor in linear(f'heads/{head}', _name(kind, head, family), bias=head != 'score')
  ]


def _name(kind: str, head: str, family: Family) -> str:
  names = {**_NAMES, **family.heads}
  name = names.get(f'{kind}/{head}', names[head])
  return name.format(prefix=family.prefix)


# What the heads compute from the body's states, and the losses, as in HF.


# Labels with this value are ignored.
IGNORED = -100

Outputs = dict[str, jax.Array]


class Targets(NamedTuple):
  """Labels, and places to read at: see `forward.ModelInputs`."""

  labels: Any = None
  mc_token_ids: Any = None
  mc_labels: Any = None
  next_sentence_label: Any = None
  sentence_order_label: Any = None
  start_positions: Any = None
  end_positions: Any = None

  def check(self, kind: str, pair: str) -> None:
    """Rejects inputs that no head takes; `pair` labels two sentences."""
    given = {n for n, x in self._asdict().items() if x is not None}
    extra = given - {*KINDS[kind].takes} - ({pair} if kind == 'pretraining' else set())
    if extra & {'mc_token_ids', 'mc_labels'}:
      raise UsageError('mc_token_ids, mc_labels: there is no choice head')
    if extra:
      names = ', '.join(sorted(extra))
      raise UsageError(f'{names}: this checkpoint has no head for it')


class HeadInputs(NamedTuple):
  """What the heads read."""

  options: Options  # of config.json
  parameters: Any  # `params['heads']`
  hidden: jax.Array  # the last states (an encoder-decoder's: the decoder's)
  ids: jax.Array  # the input ids
  targets: Targets
  mask: jax.Array | None  # bool, False for padding
  pair: tuple[str, str]  # see `Family`

  def dense(self, head: str, x: jax.Array) -> jax.Array:
    """One of the heads applied to states."""
    kernel, bias = (self.parameters[head][name] for name in ('kernel', 'bias'))
    return x @ kernel + bias.reshape((1,) * (x.ndim - 1) + (-1,))

  def classes(self, x: jax.Array) -> Outputs:
    """Classifies rows by the head `classifier`."""
    logits = self.dense('classifier', x)
    return _classified(self.options, logits, self.targets.labels)

  def activation(self, default: str) -> layers.Activation:
    """The body's activation function."""
    name = self.options.choice('hidden_act', ACTIVATIONS, default)
    return layers.ACTIVATIONS[name]


class Kind(NamedTuple):
  """A kind of heads."""

  parts: tuple[str, ...]  # of `params['heads']`
  outputs: Callable[[HeadInputs], Outputs]  # all but the language model's
  takes: tuple[str, ...] = ('labels',)  # `Targets`, besides that of a pair


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Mean cross entropy over the labels that are not ignored."""
  counts = labels != IGNORED
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  index = jnp.where(counts, labels, 0)[..., None]
  picked = jnp.take_along_axis(log_probs, index, axis=-1)[..., 0]
  return -jnp.sum(picked * counts) / jnp.sum(counts)


def _pick(hidden: jax.Array, index: jax.Array) -> jax.Array:
  """States [..., time, width] at the indices [...]: [..., width]."""
  index = index[..., None, None]
  return jnp.take_along_axis(hidden, index, axis=-2)[..., 0, :]


def _with_loss(logits: jax.Array, labels: Any) -> Outputs:
  if labels is None:
    return {'logits': logits}
  loss = cross_entropy(logits, jnp.asarray(labels))
  return {'logits': logits, 'loss': loss}


def _nothing(given: HeadInputs) -> Outputs:
  del given
  return {}


def _pooled(given: HeadInputs, at: int = 0) -> Outputs:
  pooled = jnp.tanh(given.dense('pooler', given.hidden[:, at]))
  return {'pooler_output': pooled}


def _pretraining(given: HeadInputs) -> Outputs:
  """Whether two sentences belong together (class 0)."""
  out = _pooled(given)
  label, output = given.pair
  logits = out[output] = given.dense('pair', out['pooler_output'])
  labels = getattr(given.targets, label)
  if labels is not None:
    out['pair_loss'] = cross_entropy(logits, jnp.asarray(labels).reshape(-1))
  return out


def _pooled_classification(given: HeadInputs, at: int = 0) -> Outputs:
  out = _pooled(given, at)
  return out | given.classes(out['pooler_output'])


def _activated_classification(given: HeadInputs, name: str) -> Outputs:
  activation = layers.ACTIVATIONS[name]
  return given.classes(activation(given.dense('pooler', given.hidden[:, 0])))


def _dense_classification(given: HeadInputs) -> Outputs:
  dense = given.activation('gelu_new')(given.dense('dense', given.hidden[:, 0]))
  return _pooled(given) | given.classes(dense)


def _last_token(given: HeadInputs) -> Outputs:
  at = _pick(given.hidden, _last(given.options, given.ids))
  logits = at @ given.parameters['score']['kernel']
  return _classified(given.options, logits, given.targets.labels)


def _eos_classification(given: HeadInputs) -> Outputs:
  at = _pick(given.hidden, _last_eos(given.options, given.ids))
  return given.classes(jnp.tanh(given.dense('dense', at)))


def _pooled_choice(given: HeadInputs, at: int = 0) -> Outputs:
  out = _pooled(given, at)
  logits = given.dense('classifier', out['pooler_output'])
  logits = logits.reshape(given.ids.shape[:-1])
  return out | _with_loss(logits, given.targets.labels)


def _tokens(given: HeadInputs) -> Outputs:
  logits = given.dense('classifier', given.hidden)
  return _with_loss(logits, given.targets.labels)


def _replaced(given: HeadInputs) -> Outputs:
  """A logit for each token: whether it was replaced (label 1)."""
  x = given.activation('gelu')(given.dense('replaced_dense', given.hidden))
  logits, labels = given.dense('replaced', x)[..., 0], given.targets.labels
  if labels is None:
    return {'logits': logits}
  losses = jax.nn.softplus(jnp.where(jnp.asarray(labels) > 0, -logits, logits))
  counts = jnp.ones(logits.shape) if given.mask is None else given.mask
  loss = jnp.sum(losses * counts) / jnp.sum(counts)
  return {'logits': logits, 'loss': loss}


def _double(given: HeadInputs) -> Outputs:
  """One score for each choice, from its state at `mc_token_ids`."""
  targets = given.targets
  if targets.mc_token_ids is None:
    at = given.hidden[..., -1, :]
  else:
    at = _pick(given.hidden, jnp.asarray(targets.mc_token_ids))
  logits = given.dense('choice', at)[..., 0]
  out = {'mc_logits': logits}
  if targets.mc_labels is not None:
    out['mc_loss'] = cross_entropy(logits, jnp.asarray(targets.mc_labels))
  return out


def _spans(given: HeadInputs) -> Outputs:
  """A score for each token to be the first, and to be the last, of a span."""
  start, end = jnp.moveaxis(given.dense('spans', given.hidden), -1, 0)
  out = {'start_logits': start, 'end_logits': end}
  right = given.targets.start_positions, given.targets.end_positions
  if all(x is not None for x in right):
    losses = []
    for logits, x in zip((start, end), right, strict=True):
      # Answers beyond the end of the row are ignored.
      index = jnp.maximum(jnp.asarray(x).reshape(-1), 0)
      index = jnp.where(index < logits.shape[1], index, IGNORED)
      losses.append(cross_entropy(logits, index))
    out['loss'] = (losses[0] + losses[1]) / 2
  return out


def _last(options: Options, ids: jax.Array) -> jax.Array:
  """Index of each row's last token that is not padding."""
  pad = options.get('pad_token_id')
  if pad is None:
    if len(ids) > 1:
      raise options.fail('pad_token_id', 'is needed for more than one row')
    return jnp.full(len(ids), ids.shape[-1] - 1)
  return jnp.max(jnp.where(ids != pad, jnp.arange(ids.shape[-1])[None], 0), 1)


def _last_eos(options: Options, ids: jax.Array) -> jax.Array:
  """Index of each row's last end-of-text token."""
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


_POOLER, _CLASSIFIER = ('pooler',), ('pooler', 'classifier')

KINDS: dict[str, Kind] = {
  # A language model, causal or masked.
  'lm': Kind((), _nothing),
  # A language model and a multiple-choice head.
  'double': Kind(('choice',), _double, ('labels', 'mc_token_ids', 'mc_labels')),
  # A row's class, from its last token.
  'classification': Kind(('score',), _last_token),
  'body': Kind((), _nothing, ()),
  # A pooler: dense and tanh on the first token (BERT).
  'pooled': Kind(_POOLER, _pooled, ()),
  # A masked language model and a pooler.
  'pooled_lm': Kind(_POOLER, _pooled),
  # The same, and from the pooler whether two sentences belong together, or are
  # in order.
  'pretraining': Kind(('pooler', 'pair'), _pretraining),
  # A row's class, from the pooler; with GELU for tanh (ELECTRA), with ReLU
  # (DistilBERT), or from a layer beside it with the body's activation
  # (BigBird).
  'pooled_classification': Kind(_CLASSIFIER, _pooled_classification),
  'gelu_classification': Kind(_CLASSIFIER, partial(_activated_classification, name='gelu')),
  'relu_classification': Kind(_CLASSIFIER, partial(_activated_classification, name='relu')),
  'dense_classification': Kind(('pooler', 'dense', 'classifier'), _dense_classification),
  # A score of each choice's row, from the pooler.
  'pooled_choice': Kind(_CLASSIFIER, _pooled_choice),
  # The same from a pooler on the last token (XLNet).
  'last_classification': Kind(_CLASSIFIER, partial(_pooled_classification, at=-1)),
  'last_choice': Kind(_CLASSIFIER, partial(_pooled_choice, at=-1)),
  # Whether each token is replaced, by a layer with the body's activation
  # (ELECTRA).
  'replaced': Kind(('replaced_dense', 'replaced'), _replaced),
  # The first and the last token of an answer.
  'spans': Kind(('spans',), _spans, ('start_positions', 'end_positions')),
  # A class for each token; also beside a pooler that is not read (BigBird).
  'tokens': Kind(('classifier',), _tokens),
  'pooled_tokens': Kind(_CLASSIFIER, _tokens),
  # A row's class, by dense and tanh from the state at the last end-of-text
  # token (T5, BART).
  'eos_classification': Kind(('dense', 'classifier'), _eos_classification),
}
