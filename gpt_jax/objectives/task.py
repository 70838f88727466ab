# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: L3(C) = L2(C) + auxiliary * L1(C) (GPT-1, equations 3 to 5), and
the heads of BERT (section 4), whose loss is L2(C) of theirs.

  P(y | x_1 ... x_m) = softmax(h_m W_y)         (3)
  L2(C) = sum over (x, y) of log P(y | x)       (4)
  L3(C) = L2(C) + lambda * L1(C)                (5)

h_m is the last layer's state at the extract token, or what another head reads:
see `heads`. What is minimised are
means, as in the paper's released code, whose lambda of 0.5 goes with them: L2
over the examples, L1 over the tokens of a sequence and then over sequences.
Summed over tokens, L1 would outweigh L2 a hundred times.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.classifier import POOLERS
from gpt_jax.nn.embed import OUTPUTS
from gpt_jax.nn.init import INITS
from gpt_jax.nn.pattern import is_causal
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import heads
from gpt_jax.objectives.base import Declared, Needs, Objective
from gpt_jax.objectives.features import FEATURES, Features
from gpt_jax.objectives.heads import Head
from gpt_jax.objectives.task_model import Score, TaskModel
from gpt_jax.spec import UsageError


def classification(
  num_labels: int,
  length: int,
  sequences: int = 1,
  auxiliary: float = 0.5,
  dropout: float = 0.1,
  read: str = 'extract',
  features: str = '',
  pooler: str = 'tanh',
) -> Declared:
  """A class for each example.

  Args:
    num_labels: classes.
    length: tokens of a sequence.
    sequences: of an example; their activations are added before W_y.
    auxiliary: lambda, the weight of the language model's loss.
    dropout: of the activations.
    read: `extract`, of decoders, or `first`, of encoders, or XLNet's `last`;
      see `heads`.
    features: a call of `features`: the model is frozen; '': it is not.
    pooler: of encoders, 'tanh', 'gelu' or 'relu'.
  """
  task = _Options(num_labels, length, sequences, auxiliary, dropout)
  return _task(task, read, features, _cross_entropy, pooler)


def regression(
  length: int,
  sequences: int = 1,
  auxiliary: float = 0.5,
  dropout: float = 0.1,
  read: str = 'extract',
  features: str = '',
  pooler: str = 'tanh',
) -> Declared:
  """A score for each example: L2 is the squared error; see above."""
  task = _Options(1, length, sequences, auxiliary, dropout)
  return _task(task, read, features, _squared_error, pooler)


def choice(
  answers: int,
  length: int,
  auxiliary: float = 0.5,
  dropout: float = 0.1,
  read: str = 'extract',
  features: str = '',
  pooler: str = 'tanh',
) -> Declared:
  """One of several sequences: a softmax over their scores h W_y."""
  task = _Options(0, length, answers, auxiliary, dropout)
  return _task(task, read, features, _cross_entropy, pooler)


def spans(length: int, features: str = '') -> Declared:
  """The first and the last token of an answer: the mean of both losses."""
  task = _Options(2, length, 1, 0.0, 0.0)
  return _task(task, 'spans', features, _ends)


def tags(
  num_labels: int, length: int, dropout: float = 0.1, features: str = ''
) -> Declared:
  """A class for each token whose label is not negative."""
  task = _Options(num_labels, length, 1, 0.0, dropout)
  return _task(task, 'tokens', features, _of_tokens)


class _Options(NamedTuple):
  """Of a task; `num_labels` 0: a score for each sequence."""

  num_labels: int
  length: int
  sequences: int
  auxiliary: float
  dropout: float


def _task(
  task: _Options, read: str, features: str, score: Score, pooler: str = 'tanh'
) -> Declared:
  if task.auxiliary < 0 or not 0 <= task.dropout < 1:
    raise UsageError(
      f'finetune: auxiliary={task.auxiliary} must not be negative, and dropout='
      f'{task.dropout} must be in [0, 1)'
    )
  if pooler not in POOLERS or pooler == 'none':
    raise UsageError(
      f'finetune.pooler={pooler!r}: unknown; one of tanh, gelu, relu'
    )
  mixed = None
  if features:
    mixed = spec.build('finetune.features', features, FEATURES)

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    del tokenizer
    if task.auxiliary and spec.build('model.output', model.output, OUTPUTS).own:
      raise UsageError(
        f'finetune.auxiliary={task.auxiliary}: model.output={model.output!r} '
        'is an adaptive softmax, which has no auxiliary loss; give 0'
      )
    head = _head(model, task, read, mixed, pooler)
    found = TaskModel(
      model, head, mixed, task.auxiliary, score, score is _of_tokens
    )
    return Objective(
      make_batch=None,
      init=found.init,
      loss=found.loss,
      example=_example(model, task, score),
      outputs=found.outputs,
    )

  attention = {
    'extract': 'causal',
    'first': 'bidirectional',
    'last': 'bidirectional',
  }.get(read, 'any')
  return Declared(Needs(attention=attention, rows=()), build)


def _head(
  model: Transformer,
  task: _Options,
  read: str,
  mixed: Features | None,
  pooler: str,
) -> Head:
  """What `read` names, one of `heads`."""
  kernel = spec.build('model.init_weights', model.init_weights, INITS)(
    model.num_layers
  ).kernel
  count = task.num_labels or 1
  if read == 'extract':
    added = task.num_labels > 0
    return heads.extract(count, kernel, task.dropout, added=added)
  if read in ('first', 'last'):
    # The pooler is of the last layer.
    pooler = 'none' if mixed else pooler
    of = heads.first if read == 'first' else heads.last
    return of(count, kernel, task.dropout, pooler=pooler)
  if read == 'tokens':
    return heads.tokens(count, kernel, task.dropout)
  return heads.spans(kernel)


def _example(
  model: Transformer, task: _Options, score: Score
) -> dict[str, np.ndarray]:
  """A batch of one row."""
  shape = (1,)
  if score in (_ends, _of_tokens):
    shape = (1, 2 if score is _ends else task.length)
  kind = np.float32 if score is _squared_error else np.int32
  batch = {
    'inputs': np.zeros((1, task.sequences, task.length), np.int32),
    'lengths': np.ones((1, task.sequences), np.int32),
    'labels': np.zeros(shape, kind),
    'weights': np.ones(1, np.float32),
  }
  if not is_causal(model.attention, model.ffn):
    batch['second'] = np.ones((1, task.sequences), np.int32)
  return batch


def _cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
  log_probs = jax.nn.log_softmax(outputs, axis=-1)
  return -jnp.take_along_axis(log_probs, labels[:, None], axis=-1)[:, 0]


def _squared_error(outputs: jax.Array, labels: jax.Array) -> jax.Array:
  return jnp.square(outputs[:, 0] - labels)


def _ends(outputs: jax.Array, labels: jax.Array) -> jax.Array:
  """Of spans: [B, 2 L] and the first and last tokens [B, 2]."""
  first, last = jnp.split(outputs, 2, axis=1)
  both = _cross_entropy(first, labels[:, 0]), _cross_entropy(last, labels[:, 1])
  return (both[0] + both[1]) / 2


def _of_tokens(outputs: jax.Array, labels: jax.Array) -> jax.Array:
  """The sum over a row's tokens: [B, L K] and labels [B, L]."""
  flat = outputs.reshape(labels.size, -1)
  losses = _cross_entropy(flat, jnp.maximum(labels, 0).reshape(-1))
  losses = losses.reshape(labels.shape)
  return jnp.sum(jnp.where(labels >= 0, losses, 0), axis=1)
