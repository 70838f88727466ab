# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning on labels, by GPT-1's loss or with BERT's heads (section 4).

  P(y | x_1 ... x_m) = softmax(h_m W_y)         (3)
  L2(C) = sum over (x, y) of log P(y | x)       (4)
  L3(C) = L2(C) + lambda * L1(C)                (5)

(GPT-1.) h_m is the last layer's state at the extract token, or the input of
another head: see `heads`. As in the paper's released code, for which lambda is
0.5, means are minimised: L2 over the examples, L1 over the tokens of a sequence
and then over sequences. Summed over tokens, L1 would outweigh L2 a hundred
times.
"""

import abc
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import spec
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.stack import layer_outputs
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, Objective, Scored
from gpt_jax.core.objectives.choices import FEATURES
from gpt_jax.core.objectives.cross_entropy import token_loss
from gpt_jax.core.objectives.loss import Batch, Loss, Mean, Params
from gpt_jax.core.spec import Pair, UsageError
from gpt_jax.papers.bert.task_heads import (
  POOLERS,
  Classifier,
  EachToken,
  FirstToken,
  SpanEnds,
  TwoLayers,
  WeightedSum,
)
from gpt_jax.papers.lstm.biattentive import Biattentive
from gpt_jax.tuning.objectives import heads
from gpt_jax.tuning.objectives.heads import Features


class TaskScores(NamedTuple):
  """Outputs for B examples of C sequences each.

  Attributes:
    hidden_SLD: the last hidden states of all S = B C sequences.
    sown: collections that the model sowed, such as the routers'.
  """

  outputs_BK: jax.Array
  hidden_SLD: jax.Array
  sown: Any


class TaskObjective(Objective):
  """A model with a head for a task.

  Attributes:
    length: tokens of a sequence.
    auxiliary: lambda, the weight of the language modelling loss.
    read: the head, see `heads`: 'extract' or 'concat' for decoders, 'concat'
      for LSTMs of two separate directions, 'first' for other encoders, XLNet's
      'last', 'spans' or 'tokens'.
    features: a call of `FEATURES`, which also freezes the model; '': the head
      reads the last states, and the model is trained.
    pooler: activation of encoders' pooler: 'tanh', 'gelu' or 'relu'.
    segment: of LSTMs, the tokens after which no gradient passes to the state
      before them; 0: it passes through the whole row.
    num_outputs: number of outputs of the head; 0: a score for each sequence.
    num_sequences: sequences per example.
    label_type: dtype of the labels in a batch.
    each_token: whether an example's loss is a sum over the tokens whose label
      is not negative.
  """

  length: int
  auxiliary: float = 0.0
  dropout: float = 0.0
  read: str
  features: str
  pooler: str = 'tanh'
  segment: int = 0
  label_type: ClassVar[Any] = np.int32
  each_token: ClassVar[bool] = False

  @property
  @abc.abstractmethod
  def num_outputs(self) -> int: ...

  @property
  def num_sequences(self) -> int:
    return 1

  @property
  def label_shape(self) -> tuple[int, ...]:
    """Shape of an example's labels."""
    return ()

  def losses(self, outputs_BK: jax.Array, labels: jax.Array) -> jax.Array:
    """The loss of each example; by default the cross-entropy of labels [B]."""
    return _cross_entropy(outputs_BK, labels)

  def __post_init__(self):
    """Checks the ranges of the arguments, which come from `finetune`."""
    if self.auxiliary < 0 or not 0 <= self.dropout < 1:
      raise UsageError(
        f'finetune: auxiliary={self.auxiliary} must not be negative, and '
        f'dropout={self.dropout} must be in [0, 1)'
      )
    if self.pooler not in POOLERS or self.pooler == 'none':
      raise UsageError(f'finetune.pooler={self.pooler!r}: unknown; one of tanh, gelu, relu')
    if self.features:
      spec.build('finetune.features', self.features, FEATURES)

  @property
  def needs(self) -> Needs:
    """A model whose attention fits the head; batches come from the task."""
    attention = {'extract': 'causal', 'first': 'bidirectional', 'last': 'bidirectional'}.get(
      self.read, 'any'
    )
    if self.read == 'biattentive':
      once = 'maxout', 'classifier'
      return Needs(
        'any',
        encoder=True,
        target_length=lambda context: 0,  # the decoder is not run
        rows=(),
        scored=Scored(lambda length: 0, lambda length: length, once),
      )
    scored = None
    if not self.auxiliary:
      heads = self.num_sequences
      scored = Scored(lambda length: 0, lambda length: length if self.each_token else heads)
    return Needs(attention, rows=(), scored=scored)

  def check(self) -> None:
    """Rejects the auxiliary loss of an adaptive softmax, segments of others."""
    choices = ModelChoices.of(self.model)
    if self.segment and not choices.recurrent:
      raise UsageError(
        f'finetune.segment={self.segment}: cuts the gradient of an LSTM, and '
        f'model.attention={self.model.attention!r} has none; give 0, or an '
        'LSTM with --init'
      )
    if self.auxiliary and choices.output.softmax:
      raise UsageError(
        f'finetune.auxiliary={self.auxiliary}: model.output='
        f'{self.model.output!r} is an adaptive softmax, which has no auxiliary '
        'loss; give 0'
      )

  @property
  def example(self) -> dict[str, np.ndarray]:
    C = self.num_sequences
    batch = {
      'inputs': forward.read(self.model, None, np.zeros((1, C, self.length), np.int32)),
      'lengths': np.ones((1, C), np.int32),
      'labels': np.zeros((1, *self.label_shape), self.label_type),
      'weights': np.ones(1, np.float32),
    }
    alone = self.read == 'biattentive'  # no sequence has two texts
    if not ModelChoices.of(self.model).causal and not alone:
      batch['second'] = np.ones((1, C), np.int32)
    return batch

  @property
  def _features(self) -> Features | None:
    """The layers that the head reads; None: the last, of a trained model."""
    if not self.features:
      return None
    return spec.build('finetune.features', self.features, FEATURES)

  @property
  def _head(self) -> heads.TaskHead:
    model, count = self.model, self.num_outputs or 1
    inits = ModelChoices.of(model).init_weights
    kernel = inits.head or inits.kernel
    if self.read == 'biattentive':
      module = Biattentive(count, inits, self.dropout)
      return heads.TaskHead(module, heads.two_texts)
    if self.read == 'extract':
      reads = heads.last_added if self.num_outputs else heads.last_of_each
      module = Classifier(count, kernel, self.dropout)
      return heads.TaskHead(module, reads, within='score')
    if self.read == 'concat':
      return heads.TaskHead(TwoLayers(count, kernel, self.dropout), heads.pooled)
    if self.read == 'tokens':
      module = EachToken(count, kernel, self.dropout)
      return heads.TaskHead(module, heads.all_tokens)
    if self.read == 'spans':
      return heads.TaskHead(SpanEnds(kernel), heads.all_tokens)
    # The pooler was trained on the last layer only.
    pooler = 'none' if self.features else self.pooler
    module = FirstToken(count, kernel, self.dropout, pooler)
    last = self.read == 'last'
    return heads.TaskHead(module, heads.last_token if last else heads.all_tokens)

  def init(self, key: jax.Array) -> Params:
    """Parameters of the model and of the head."""
    params, features = super().init(key), self._features
    width = heads.width(features, self.model)
    of_heads = self._head.init(jax.random.fold_in(key, 1), width)
    if features is not None and features.weighted:
      count = len(features.layers(self.model.num_layers))
      of_sum: Any = WeightedSum().init(key, [jnp.zeros((1, 1, 1))] * count)
      of_heads = {**of_heads, 'layers': of_sum['params']}
    # Stored like Hugging Face's classification heads, see `hf.heads`.
    return {**params, 'heads': of_heads}

  def scores(self, params: Params, batch: Batch, key: jax.Array | None) -> TaskScores:
    """The outputs and states that both losses are computed from."""
    if self.read == 'biattentive':
      states_SLD = self._encoded(params, batch)
      of_head = None if key is None else jax.random.fold_in(key, 1)
      head = self._head
      outputs = head.outputs(params['heads'], states_SLD, batch, of_head)
      return TaskScores(outputs, states_SLD, {})
    hidden_SLD, sown = self._hidden(params, batch, key)
    states_SLD, of_heads = hidden_SLD, params['heads']
    if self._features is not None:
      sown_states = sown['intermediates']
      # The embeddings and each layer's output; the last one is normalised.
      below = sown_states['embedded'][0], *layer_outputs(sown_states)[:-1]
      layers = [*below, hidden_SLD]
      picked = [layers[i] for i in self._features.layers(self.model.num_layers)]
      if 'layers' in of_heads:
        variables: Any = {'params': of_heads['layers']}
        states_SLD: Any = WeightedSum().apply(variables, picked)
      else:
        states_SLD = jnp.concatenate(picked, axis=-1)
      of_heads = {n: x for n, x in of_heads.items() if n != 'layers'}
    of_head = None if key is None else jax.random.fold_in(key, 1)
    outputs = self._head.outputs(of_heads, states_SLD, batch, of_head)
    return TaskScores(outputs, hidden_SLD, sown)

  def outputs(self, params: Params, batch: Batch) -> jax.Array:
    """The head's outputs, from which the task's metrics follow; [B, K]."""
    return self.scores(params, batch, None).outputs_BK

  def _encoded(self, params: Params, batch: Batch) -> jax.Array:
    """Embeddings and output of the encoder, joined: [S, L, E + D]."""
    B, C, L = batch['inputs'].shape
    real_SL = jnp.arange(L)[None] < batch['lengths'].reshape(B * C, 1)
    row = Row(batch['inputs'].reshape(B * C, L), real_BL=real_SL)
    found: Any = self.model.apply(
      {'params': params}, row, method='encode', mutable=['intermediates']
    )
    memory_SLD, sown = found
    (below_SLD,) = sown['intermediates']['encoder_embedded']
    return jnp.concatenate([below_SLD, memory_SLD], axis=-1)

  def _hidden(self, params: Params, batch: Batch, key: jax.Array | None) -> tuple[jax.Array, Any]:
    """The last states [S, L, D] of all sequences, and sown collections."""
    frozen = bool(self.features)  # without dropout: features are constant
    out, sown = forward.apply(
      self.model,
      params,
      self.row(batch, key),
      None if frozen else key,
      sow=('intermediates',) * frozen,
    )
    return out.hidden_BLD, sown

  def row(self, batch: Batch, key: jax.Array | None) -> Row:
    """What the model reads: tokens, padding, types, segments."""
    inputs = batch['inputs']
    B, C, L = inputs.shape[:3]
    row = Row(inputs.reshape(-1, *inputs.shape[2:]))
    if 'second' in batch:
      places = jnp.arange(L)[None]
      real = places < batch['lengths'].reshape(B * C, 1)
      row = row._replace(real_BL=real)
      second = real & (places >= batch['second'].reshape(B * C, 1))
      types = second.astype(jnp.int32)
      if self.model.cls_place == 'last':  # it has a type of its own
        last = places == batch['lengths'].reshape(B * C, 1) - 1
        row = row._replace(token_types_BL=jnp.where(last, 2, types))
      elif ModelChoices.of(self.model).input.num_token_types > 1:
        row = row._replace(token_types_BL=types)  # padding has type 0
    if self.segment and key is not None:
      cuts_L = jnp.arange(L) % self.segment == 0
      row = row._replace(extra={'cuts': jnp.broadcast_to(cuts_L, (B * C, L))})
    return row

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """L2 and, in training, lambda L1."""
    scores, weights_B = self.scores(params, batch, key), batch['weights']
    losses_B = self.losses(scores.outputs_BK, batch['labels'])
    weight = jnp.sum(weights_B)
    if self.each_token:
      asked_B = jnp.sum(batch['labels'] >= 0, axis=1)
      weight = jnp.sum(weights_B * asked_B)
    total = jnp.sum(weights_B * losses_B)
    penalty, metrics = jnp.zeros(()), {}
    if self.auxiliary and key is not None:
      lm = self._language_model(params, batch, scores.hidden_SLD)
      penalty = self.auxiliary * lm
      metrics = {'objective/lm_loss': Mean(lm, weight)}
    # Reports leave the auxiliary loss out: they show the task's loss.
    stats = forward.stats(scores.sown)
    return Loss(total + penalty, weight, penalty, metrics, stats=stats)

  def _language_model(self, params: Params, batch: Batch, hidden_SLD: jax.Array) -> jax.Array:
    """The weighted sum of the examples' L1."""
    tokens_BCL, lengths_BC = batch['inputs'], batch['lengths']
    B, C, L = tokens_BCL.shape
    scores = forward.scores(self.model, params, hidden_SLD[:, :-1])
    targets_SL = tokens_BCL.reshape(B * C, L)[:, 1:]
    # All tokens after the start, including the extract token.
    count_BC = jnp.maximum(lengths_BC - 1, 1)
    each_S = (batch['weights'][:, None] / (C * count_BC)).reshape(B * C, 1)
    inside_SL = jnp.arange(L - 1)[None] < (lengths_BC - 1).reshape(B * C, 1)
    weights_SL = jnp.where(inside_SL, each_S, 0.0)
    return token_loss(scores, targets_SL, weights_SL).sum


@dataclass(frozen=True)
class Classification(TaskObjective):
  """A class for each example.

  Attributes:
    num_labels: number of classes.
    sequences: sequences per example; their activations are added before W_y.
  """

  num_labels: int
  length: int
  sequences: int = 1
  auxiliary: float = 0.5
  dropout: float = 0.1
  read: str = 'extract'
  pooler: str = 'tanh'
  segment: int = 0
  features: str = ''

  @property
  def num_outputs(self) -> int:
    return self.num_labels

  @property
  def num_sequences(self) -> int:
    return self.sequences


@dataclass(frozen=True)
class Regression(TaskObjective):
  """A score for each example: L2 is the squared error."""

  length: int
  sequences: int = 1
  auxiliary: float = 0.5
  dropout: float = 0.1
  read: str = 'extract'
  pooler: str = 'tanh'
  segment: int = 0
  features: str = ''
  label_type = np.float32

  @property
  def num_outputs(self) -> int:
    return 1

  @property
  def num_sequences(self) -> int:
    return self.sequences

  def losses(self, outputs_BK: jax.Array, labels: jax.Array) -> jax.Array:
    """The squared error."""
    return jnp.square(outputs_BK[:, 0] - labels)


@dataclass(frozen=True)
class Choice(TaskObjective):
  """One of several sequences: a softmax over their scores h W_y."""

  answers: int
  length: int
  auxiliary: float = 0.5
  dropout: float = 0.1
  read: str = 'extract'
  pooler: str = 'tanh'
  segment: int = 0
  features: str = ''

  @property
  def num_outputs(self) -> int:
    return 0

  @property
  def num_sequences(self) -> int:
    return self.answers


@dataclass(frozen=True)
class Spans(TaskObjective):
  """The first and the last token of an answer: the mean of both losses."""

  length: int
  features: str = ''
  read = 'spans'

  @property
  def num_outputs(self) -> int:
    return 2

  @property
  def label_shape(self) -> tuple[int, ...]:
    return (2,)

  def losses(self, outputs_BK: jax.Array, labels: jax.Array) -> jax.Array:
    """The loss of outputs [B, 2 L] and first and last tokens [B, 2]."""
    first_BL, last_BL = jnp.split(outputs_BK, 2, axis=1)
    begin_B = _cross_entropy(first_BL, labels[:, 0])
    end_B = _cross_entropy(last_BL, labels[:, 1])
    return (begin_B + end_B) / 2


class EachTokenTask(TaskObjective):
  """A task with a class for each token.

  Attributes:
    num_labels: number of classes.
    length: tokens of a row.
  """

  num_labels: int
  length: int
  read = 'tokens'
  each_token = True

  @property
  def num_outputs(self) -> int:
    return self.num_labels

  @property
  def label_shape(self) -> tuple[int, ...]:
    return (self.length,)


@dataclass(frozen=True)
class Tags(EachTokenTask):
  """A class for each token whose label is not negative."""

  num_labels: int
  length: int
  dropout: float = 0.1
  features: str = ''

  def losses(self, outputs_BK: jax.Array, labels: jax.Array) -> jax.Array:
    """Sums over a row's tokens; outputs are [B, L K], labels [B, L]."""
    flat = outputs_BK.reshape(labels.size, -1)
    losses = _cross_entropy(flat, jnp.maximum(labels, 0).reshape(-1))
    losses = losses.reshape(labels.shape)
    return jnp.sum(jnp.where(labels >= 0, losses, 0), axis=1)


def _cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
  log_probs = jax.nn.log_softmax(outputs, axis=-1)
  return -jnp.take_along_axis(log_probs, labels[:, None], axis=-1)[:, 0]


# Several tasks with one model: MT-DNN (Liu et al., 2019), section 3.
#
# Embeddings, layers and the pooler are shared; the output layers are separate,
# in `params['parts'][TASK]`. Each batch belongs to one task and has that task's
# loss (algorithm 1): equation 6 for classes, 7 for scores, and 8 for ranking,
# which is `Choice` with gamma = 1 (gamma would only scale the learned scores).
# Section 3.1 has a stochastic answer network for pairs of texts; here their
# head is linear, as for single texts.


# The layers of heads that all tasks share.
_SHARED = ('pooler',)
OF_TASKS = {'choice': Choice, 'classification': Classification, 'regression': Regression}


class Tasks(Objective):
  """A model and a head for each task."""

  def __init__(self, *each: Pair):
    """Takes each task's objective, or its call: one of `OF_TASKS`."""
    self.each: dict[str, TaskObjective] = {
      name: call
      if isinstance(call, TaskObjective)
      else spec.build(f'objective.name: tasks: {name}', call, OF_TASKS)
      for name, call in each
    }
    if not each or len(self.each) < len(each):
      raise UsageError(
        'objective.name: tasks: give each task once, by its name, as in '
        'tasks(rte:"classification(num_labels=2, length=96)")'
      )
    if len({one.needs.attention for one in self.each.values()}) > 1:
      raise UsageError(
        'objective.name: tasks: some read the first token and some the last, '
        "which no model does; give all the same read='...'"
      )

  @property
  def needs(self) -> Needs:
    """The needs of each task; they must be equal."""
    return next(iter(self.each.values())).needs

  def check(self) -> None:
    """Rejects what the objective of any task rejects."""
    for one in self.each.values():
      one.bind(self.model)

  @functools.cached_property
  def alone(self) -> dict[str, TaskObjective]:
    """Each task's objective with its own parameters only."""
    return {name: one.bind(self.model) for name, one in self.each.items()}

  @property
  def tasks(self) -> Mapping[str, Objective]:
    """Each task's objective with the parameters of all tasks."""
    return {name: _OneOfTasks(self, name) for name in self.each}

  def init(self, key: jax.Array) -> Params:
    """The parameters of the first task alone, and the other tasks' heads."""
    params: Params = {}
    parts = {}
    for i, (name, objective) in enumerate(self.alone.items()):
      # Different keys, so that heads of equal shape differ. The unused
      # parameters of the other tasks are not computed.
      own = objective.init(jax.random.fold_in(key, i) if i else key)
      shared = {n: x for n, x in own['heads'].items() if n in _SHARED}
      parts[name] = {n: x for n, x in own['heads'].items() if n not in shared}
      if not i:
        params = {n: x for n, x in own.items() if n != 'heads'}
        params |= {'heads': shared} if shared else {}
    return {**params, 'parts': parts}

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """Not defined: a batch belongs to one task."""
    raise AssertionError('a batch is of one task: ask for `Objective.of(task)`')


class _OneOfTasks(Objective):
  """The objective of one task's batches, with the parameters of all tasks."""

  def __init__(self, several: Tasks, name: str):
    self._several, self._name = several, name
    self._alone = several.alone[name]

  @property
  def needs(self) -> Needs:
    return self._several.needs

  @property
  def frozen(self) -> tuple[str, ...]:
    """The other tasks' heads."""
    return tuple(x for x in self._several.alone if x != self._name)

  @property
  def example(self) -> dict[str, np.ndarray]:
    return self._alone.example

  def init(self, key: jax.Array) -> Params:
    return self._several.init(key)

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    return self._alone.loss(of_task(params, self._name), batch, key)

  def outputs(self, params: Params, batch: Batch) -> jax.Array:
    return self._alone.outputs(of_task(params, self._name), batch)


def of_task(params: Params, name: str) -> Params:
  """The parameters of one task alone, out of all tasks'."""
  shared = {n: x for n, x in params.items() if n != 'parts'}
  heads = {**params.get('heads', {}), **params['parts'][name]}
  return {**shared, 'heads': heads}
