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
  pretraining            a masked language model, a pooler, and from that
                         whether two sentences belong together (BERT)
  pooled_classification  a row's class, from the pooler
  spans                  the first and the last token of an answer
  tokens                 a class for each token
  eos_classification     a row's class, by dense and tanh from the state at
                         the last end-of-text token (T5, BART)
"""

from typing import Any

import numpy as np

from gpt_jax.hf.base import Options, Tensor, linear, transposed

# Those that score the vocabulary.
SCORING = ('lm', 'double', 'pretraining')
CLASSIFYING = ('classification', 'pooled_classification', 'eos_classification')
POOLING = ('pooled', 'pretraining', 'pooled_classification')
KINDS = (*SCORING, *CLASSIFYING, 'body', 'pooled', 'spans', 'tokens')


def check(kind: str, options: Options) -> None:
  """Refuses options of heads that we do not compute."""
  if kind == 'double':
    options.only('summary_type', 'cls_index')
    options.only('summary_use_proj', True)
    options.only('summary_activation', None)
    # To one score: HF sets num_labels to 1 for this class.
  if kind in CLASSIFYING:
    types = ('regression', 'single_label_classification')
    options.only('problem_type', None, *types, 'multi_label_classification')


def num_labels(options: Options) -> int:
  """Of a classification head."""
  labels = options.get('id2label')
  return options.size('num_labels', 2) if labels is None else len(labels)


def shapes(kind: str, options: Options, d_model: int) -> dict[str, Any]:
  """The tree of `params['heads']`, of float32 arrays without memory."""

  def zeros(*shape: int) -> np.ndarray:
    return np.broadcast_to(np.float32(0), shape)

  def dense(features: int) -> dict[str, np.ndarray]:
    return {'kernel': zeros(d_model, features), 'bias': zeros(features)}

  if kind == 'classification':
    return {'score': {'kernel': zeros(d_model, num_labels(options))}}
  if kind == 'double':
    return {'choice': dense(1)}
  if kind == 'spans':
    return {'spans': dense(2)}
  heads = {}
  if kind in POOLING:
    heads['pooler'] = dense(d_model)
  if kind == 'pretraining':
    heads['pair'] = dense(2)
  if kind == 'eos_classification':
    heads['dense'] = dense(d_model)
  if kind in ('pooled_classification', 'eos_classification', 'tokens'):
    heads['classifier'] = dense(num_labels(options))
  return heads


def tensors(kind: str, prefix: str) -> list[Tensor]:
  """The heads' tensors in the file; the pooler is within the body."""
  if kind == 'classification':
    return [transposed('heads/score/kernel', 'score.weight')]
  if kind == 'double':
    return linear('heads/choice', 'multiple_choice_head.summary')
  if kind == 'spans':
    return linear('heads/spans', 'qa_outputs')
  if kind == 'tokens':
    return linear('heads/classifier', 'classifier')
  if kind == 'eos_classification':
    return [
      *linear('heads/dense', 'classification_head.dense'),
      *linear('heads/classifier', 'classification_head.out_proj'),
    ]
  out = []
  if kind in POOLING:
    out += linear('heads/pooler', f'{prefix}pooler.dense')
  if kind == 'pretraining':
    out += linear('heads/pair', 'cls.seq_relationship')
  if kind == 'pooled_classification':
    out += linear('heads/classifier', 'classifier')
  return out
