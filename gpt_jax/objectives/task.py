# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: L3(C) = L2(C) + auxiliary * L1(C) (GPT-1, equations 3 to 5).

  P(y | x_1 ... x_m) = softmax(h_m W_y)         (3)
  L2(C) = sum over (x, y) of log P(y | x)       (4)
  L3(C) = L2(C) + lambda * L1(C)                (5)

h_m is the last layer's state at the extract token. What is minimised are
means, as in the paper's released code, whose lambda of 0.5 goes with them: L2
over the examples, L1 over the tokens of a sequence and then over sequences.
Summed over tokens, L1 would outweigh L2 a hundred times.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn import moe
from gpt_jax.nn.classifier import Classifier
from gpt_jax.nn.embed import OUTPUTS
from gpt_jax.nn.init import INITS
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Mean,
  Needs,
  Objective,
  Params,
)
from gpt_jax.objectives.causal import add_routers, causal
from gpt_jax.objectives.cross_entropy import (
  CHUNK_LOGITS,
  penalised_cross_entropy,
)
from gpt_jax.spec import UsageError

# From the outputs [B, K] and the labels [B] to the loss of each example.
Score = Callable[[jax.Array, jax.Array], jax.Array]


def classification(
  num_labels: int,
  length: int,
  sequences: int = 1,
  auxiliary: float = 0.5,
  dropout: float = 0.1,
) -> Declared:
  """A class for each example.

  Args:
    num_labels: classes.
    length: tokens of a sequence.
    sequences: of an example; their activations are added before W_y.
    auxiliary: lambda, the weight of the language model's loss.
    dropout: of the activations.
  """
  return _task(
    num_labels, length, sequences, auxiliary, dropout, _cross_entropy
  )


def regression(
  length: int,
  sequences: int = 1,
  auxiliary: float = 0.5,
  dropout: float = 0.1,
) -> Declared:
  """A score for each example: L2 is the squared error; see above."""
  return _task(1, length, sequences, auxiliary, dropout, _squared_error)


def choice(
  answers: int, length: int, auxiliary: float = 0.5, dropout: float = 0.1
) -> Declared:
  """One of several sequences: a softmax over their scores h W_y."""
  return _task(0, length, answers, auxiliary, dropout, _cross_entropy)


def target(length: int, z_loss: float = 0.0) -> Declared:
  """Next-token prediction of a part of each row: batches say which.

  Args:
    length: targets of a row.
    z_loss: as of `causal`.
  """

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    whole = causal(z_loss).build(model, tokenizer)

    def outputs(params: Params, batch: Batch) -> jax.Array:
      variables = {'params': params}
      out: Any = model.apply(variables, batch['inputs'])

      def at(place):
        hidden_BD, targets_B = place
        logits: Any = model.apply(variables, hidden_BD, method='logits')
        right_B = jnp.argmax(logits, axis=-1) == targets_B
        return _cross_entropy(logits, targets_B), right_B

      # A few positions at a time: the logits of all would not fit.
      places = jnp.swapaxes(out.hidden_BLD, 0, 1), batch['targets'].T
      chunk = CHUNK_LOGITS // (len(batch['targets']) * model.vocab_size)
      nll, right = jax.lax.map(at, places, batch_size=max(chunk, 1))
      counts = batch['weights'].T > 0
      nll_B = jnp.sum(jnp.where(counts, nll, 0), axis=0)
      columns = nll_B, jnp.sum(counts, axis=0), jnp.all(right | ~counts, axis=0)
      return jnp.stack([x.astype(jnp.float32) for x in columns], axis=1)

    zeros = np.zeros((1, length), np.int32)
    example = {
      'inputs': zeros,
      'targets': zeros,
      'weights': zeros.astype(np.float32),
    }
    return whole._replace(make_batch=None, example=example, outputs=outputs)

  return Declared(Needs(rows=()), build)


def _task(
  num_labels: int,
  length: int,
  sequences: int,
  auxiliary: float,
  dropout: float,
  score: Score,
) -> Declared:
  """`num_labels` 0: a score for each sequence, rather than for their sum."""
  if auxiliary < 0 or not 0 <= dropout < 1:
    raise UsageError(
      f'finetune: auxiliary={auxiliary} must not be negative, and dropout='
      f'{dropout} must be in [0, 1)'
    )

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    del tokenizer
    if auxiliary and spec.build('model.output', model.output, OUTPUTS).own:
      raise UsageError(
        f'finetune.auxiliary={auxiliary}: model.output={model.output!r} is an '
        'adaptive softmax, which has no auxiliary loss; give 0'
      )
    inits = spec.build('model.init_weights', model.init_weights, INITS)
    head = Classifier(num_labels or 1, inits(model.num_layers).kernel, dropout)
    task = _Task(model, head, num_labels > 0, auxiliary, score)
    labels = np.float32 if score is _squared_error else np.int32
    return Objective(
      make_batch=None,
      init=task.init,
      loss=task.loss,
      example={
        'inputs': np.zeros((1, sequences, length), np.int32),
        'lengths': np.ones((1, sequences), np.int32),
        'labels': np.zeros(1, labels),
        'weights': np.ones(1, np.float32),
      },
      outputs=lambda params, batch: task.scores(params, batch, None).outputs_BK,
    )

  return Declared(Needs(rows=()), build)


class _Scores(NamedTuple):
  """Of B examples of C sequences each.

  Attributes:
    outputs_BK: of the classifier.
    hidden_SLD: the last hidden states of all S = B C sequences.
    sown: by the routers of experts.
  """

  outputs_BK: jax.Array
  hidden_SLD: jax.Array
  sown: Any


class _Task(NamedTuple):
  """A model and a classifier.

  Attributes:
    model: gives the hidden states.
    head: reads that of each sequence's last token.
    added: whether the sequences' states are added first, for one output of
      each example; else each sequence has its own.
    auxiliary: lambda.
    score: the loss of each example.
  """

  model: Transformer
  head: Classifier
  added: bool
  auxiliary: float
  score: Score

  def init(self, key: jax.Array) -> Params:
    """Parameters of the model, and the head's."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    params: Any = self.model.init(key, tokens)['params']
    hidden_BD = jnp.zeros((1, self.model.d_model))
    of_head = self.head.init(jax.random.fold_in(key, 1), hidden_BD)
    # As Hugging Face's classification heads are kept, see `hf.heads`.
    return {**params, 'heads': {'score': of_head['params']}}

  def scores(
    self, params: Params, batch: Batch, key: jax.Array | None
  ) -> _Scores:
    """What both losses are computed from."""
    B, C, L = batch['inputs'].shape
    result: Any = self.model.apply(
      {'params': params},
      batch['inputs'].reshape(B * C, L),
      rngs={} if key is None else {'dropout': key},
      mutable=['router'],
    )
    out, sown = result
    # Whatever fills up a row stands after the token that is read here.
    last = batch['lengths'].reshape(B * C, 1, 1) - 1
    at = jnp.take_along_axis(out.hidden_BLD, last, axis=1).reshape(B, C, -1)
    states = jnp.sum(at, axis=1) if self.added else at.reshape(B * C, -1)
    outputs: Any = self.head.apply(
      {'params': params['heads']['score']},
      states,
      rngs={} if key is None else {'dropout': jax.random.fold_in(key, 1)},
    )
    return _Scores(outputs.reshape(B, -1), out.hidden_BLD, sown)

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """L2 and, in training, lambda L1."""
    scores, weights_B = self.scores(params, batch, key), batch['weights']
    losses_B = self.score(scores.outputs_BK, batch['labels'])
    total = jnp.sum(weights_B * losses_B)
    penalty, metrics = jnp.zeros(()), {}
    if self.auxiliary and key is not None:
      lm = self._language_model(params, batch, scores.hidden_SLD)
      penalty = self.auxiliary * lm
      metrics = {'objective/lm_loss': Mean(lm, jnp.sum(weights_B))}
    routers = moe.layer_stats(scores.sown.get('router', {}))
    # Reports leave the auxiliary loss out: their loss is that of the task.
    return add_routers(
      Loss(total + penalty, jnp.sum(weights_B), penalty, metrics),
      routers,
      training=key is not None,
    )

  def _language_model(
    self, params: Params, batch: Batch, hidden_SLD: jax.Array
  ) -> jax.Array:
    """L1 of each example, times its weight, added up."""
    tokens_BCL, lengths_BC = batch['inputs'], batch['lengths']
    B, C, L = tokens_BCL.shape
    variables = {'params': params}
    table_VD: Any = self.model.apply(variables, method='output_table')
    hidden: Any = self.model.apply(
      variables, hidden_SLD[:, :-1], method='output_hidden'
    )
    targets_SL = tokens_BCL.reshape(B * C, L)[:, 1:]
    # All tokens after the start, the extract token too.
    count_BC = jnp.maximum(lengths_BC - 1, 1)
    each_S = (batch['weights'][:, None] / (C * count_BC)).reshape(B * C, 1)
    inside_SL = jnp.arange(L - 1)[None] < (lengths_BC - 1).reshape(B * C, 1)
    weights_SL = jnp.where(inside_SL, each_S, 0.0)
    sums: Any = penalised_cross_entropy(
      hidden, table_VD, targets_SL, weights_SL, 0.0, self.model.output_softcap
    )
    return sums.total


def _cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
  log_probs = jax.nn.log_softmax(outputs, axis=-1)
  return -jnp.take_along_axis(log_probs, labels[:, None], axis=-1)[:, 0]


def _squared_error(outputs: jax.Array, labels: jax.Array) -> jax.Array:
  return jnp.square(outputs[:, 0] - labels)
