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
from typing import Any

import numpy as np

from gpt_jax.hf.base import Family, Options, Tensor, linear

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
