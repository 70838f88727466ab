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

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.nn.build import POSITIONS, is_causal
from gpt_jax.nn.embed import INPUTS
from gpt_jax.nn.heads import OUTPUTS, POOLERS, WeightedSum
from gpt_jax.nn.layers import INITS
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import forward, heads
from gpt_jax.objectives import heads as features_lib
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Mean,
  Needs,
  Objective,
  Params,
)
from gpt_jax.objectives.cross_entropy import penalised_cross_entropy
from gpt_jax.objectives.heads import FEATURES, Features, Head
from gpt_jax.spec import Pair, UsageError
from gpt_jax.tokenizers.tokenizer import Tokenizer

# A model and the head that reads it, for the objectives of `task`.


# From the outputs [B, K] and the labels [B] to the loss of each example.
Score = Callable[[jax.Array, jax.Array], jax.Array]


class Scores(NamedTuple):
  """Of B examples of C sequences each.

  Attributes:
    hidden_SLD: the last hidden states of all S = B C sequences.
    sown: by the routers of experts.
  """

  outputs_BK: jax.Array
  hidden_SLD: jax.Array
  sown: Any


class TaskModel(NamedTuple):
  """A model and a head.

  Attributes:
    model: gives the hidden states.
    head: reads them.
    features: which of them; None: the last, and the model learns.
    auxiliary: lambda.
    score: the loss of each example.
    each_token: whether that is a sum over those of its tokens whose label is
      not negative.
  """

  model: Transformer
  head: Head
  features: Features | None
  auxiliary: float
  score: Score
  each_token: bool = False

  def init(self, key: jax.Array) -> Params:
    """Parameters of the model, and the head's."""
    params = forward.init(self.model, key)
    width = features_lib.width(self.features, self.model)
    of_heads = self.head.init(jax.random.fold_in(key, 1), width)
    if self.features is not None and self.features.weighted:
      count = len(self.features.layers(self.model.num_layers))
      of_sum: Any = WeightedSum().init(key, [jnp.zeros((1, 1, 1))] * count)
      of_heads = {**of_heads, 'layers': of_sum['params']}
    # As Hugging Face's classification heads are kept, see `hf.heads`.
    return {**params, 'heads': of_heads}

  def scores(
    self, params: Params, batch: Batch, key: jax.Array | None
  ) -> Scores:
    """What both losses are computed from."""
    hidden_SLD, sown = self._hidden(params, batch, key)
    states_SLD, of_heads = hidden_SLD, params['heads']
    if self.features is not None:
      found = features_lib.hidden_states(sown, hidden_SLD)
      picked = [found[i] for i in self.features.layers(self.model.num_layers)]
      states_SLD = self._joined(of_heads, jax.lax.stop_gradient(picked))
      of_heads = {n: x for n, x in of_heads.items() if n != 'layers'}
    of_head = None if key is None else jax.random.fold_in(key, 1)
    outputs = self.head.outputs(of_heads, states_SLD, batch, of_head)
    return Scores(outputs, hidden_SLD, sown)

  def outputs(self, params: Params, batch: Batch) -> jax.Array:
    """What the task is measured by, [B, K]."""
    return self.scores(params, batch, None).outputs_BK

  def _hidden(
    self, params: Params, batch: Batch, key: jax.Array | None
  ) -> tuple[jax.Array, Any]:
    """The last states [S, L, D] of all sequences, and what was sown."""
    B, C, L = batch['inputs'].shape
    around: dict[str, Any] = {}
    if 'second' in batch:
      places = jnp.arange(L)[None]
      real = places < batch['lengths'].reshape(B * C, 1)
      around['mask_BL'] = real
      second = real & (places >= batch['second'].reshape(B * C, 1))
      if self._has_segments:  # 0, 1, and [CLS] at the end 2
        last = places == batch['lengths'].reshape(B * C, 1) - 1
        around['token_types_BL'] = jnp.where(last, 2, second.astype(jnp.int32))
      elif self._has_types:  # 0 for padding, too
        around['token_types_BL'] = second.astype(jnp.int32)
    frozen = self.features is not None  # and its features are always the same
    out, sown = forward.apply(
      self.model,
      params,
      batch['inputs'].reshape(B * C, L),
      None if frozen else key,
      sow=('intermediates',) * frozen,
      **around,
    )
    return out.hidden_BLD, sown

  def _joined(self, of_heads: Params, states: list[jax.Array]) -> jax.Array:
    """The features of each token."""
    if 'layers' not in of_heads:
      return jnp.concatenate(states, axis=-1)
    variables: Any = {'params': of_heads['layers']}
    found: Any = WeightedSum().apply(variables, states)
    return found

  @property
  def _has_segments(self) -> bool:
    """Whether the layers tell the tokens of two texts apart (XLNet)."""
    position = spec.build('model.position', self.model.position, POSITIONS)
    return position.segments

  @property
  def _has_types(self) -> bool:
    """Whether the model is told which text a token is of."""
    found = spec.build('model.input', self.model.input, INPUTS)
    return found.num_token_types > 1

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """L2 and, in training, lambda L1."""
    scores, weights_B = self.scores(params, batch, key), batch['weights']
    losses_B = self.score(scores.outputs_BK, batch['labels'])
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
    # Reports leave the auxiliary loss out: their loss is that of the task.
    return forward.add_routers(
      Loss(total + penalty, weight, penalty, metrics),
      forward.routers(scores.sown),
      training=key is not None,
    )

  def _language_model(
    self, params: Params, batch: Batch, hidden_SLD: jax.Array
  ) -> jax.Array:
    """L1 of each example, times its weight, added up."""
    tokens_BCL, lengths_BC = batch['inputs'], batch['lengths']
    B, C, L = tokens_BCL.shape
    hidden, table_VD, softcap = forward.scores(
      self.model, params, hidden_SLD[:, :-1]
    )
    targets_SL = tokens_BCL.reshape(B * C, L)[:, 1:]
    # All tokens after the start, the extract token too.
    count_BC = jnp.maximum(lengths_BC - 1, 1)
    each_S = (batch['weights'][:, None] / (C * count_BC)).reshape(B * C, 1)
    inside_SL = jnp.arange(L - 1)[None] < (lengths_BC - 1).reshape(B * C, 1)
    weights_SL = jnp.where(inside_SL, each_S, 0.0)
    sums: Any = penalised_cross_entropy(
      hidden, table_VD, targets_SL, weights_SL, 0.0, softcap
    )
    return sums.total


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


# Several tasks with one model: MT-DNN (Liu et al., 2019), section 3.
#
# Embeddings, layers and the pooler are shared; what is above them each task has
# for itself, in `params['parts'][TASK]`. A batch is of one task, and its loss
# is that of the task alone (algorithm 1): equation 6 for classes, 7 for scores,
# and 8 for ranking, which is `choice` with gamma = 1 (gamma would only scale
# the learned scores). Section 3.1 has a stochastic answer network above pairs
# of texts; here their head is linear, as of a single text.


# Of a head's layers those that all tasks share.
_SHARED = ('pooler',)
OF_TASKS = {
  'choice': choice,
  'classification': classification,
  'regression': regression,
}


def tasks(*each: Pair) -> Declared:
  """A model and a head for each task.

  Args:
    *each: by the name of a task, the call of its objective, one of `OF_TASKS`.
  """
  declared: dict[str, Declared] = {
    pair.key: spec.build(
      f'objective.name: tasks: {pair.key}', pair.value, OF_TASKS
    )
    for pair in each
  }
  if not each or len(declared) < len(each):
    raise UsageError(
      'objective.name: tasks: give each task once, by its name, as in '
      'tasks(rte:"classification(num_labels=2, length=96)")'
    )

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    del tokenizer
    alone = {name: one(model) for name, one in declared.items()}

    def init(key: jax.Array) -> Params:
      return _init(alone, key)

    def of(name: str) -> Objective:
      return Objective(
        make_batch=None,
        init=init,
        loss=functools.partial(_loss, alone[name], name),
        example=alone[name].example,
        outputs=functools.partial(_outputs, alone[name], name),
        frozen=tuple(other for other in alone if other != name),
      )

    return Objective(
      make_batch=None,
      init=init,
      loss=_no_loss,
      tasks=tuple((name, of(name)) for name in alone),
    )

  (needs, *others) = (one.needs for one in declared.values())
  if any(other.attention != needs.attention for other in others):
    raise UsageError(
      'objective.name: tasks: some read the first token and some the last, '
      "which no model does; give all the same read='...'"
    )
  return Declared(needs, build)


def of_task(params: Params, name: str) -> Params:
  """The parameters that a task alone would have."""
  own = {n: x for n, x in params.items() if n != 'parts'}
  heads = {**params.get('heads', {}), **params['parts'][name]}
  return {**own, 'heads': heads}


def own_head(heads: Any) -> Any:
  """Of the head of a task alone, what is not shared."""
  return {name: x for name, x in heads.items() if name not in _SHARED}


def _init(alone: dict[str, Objective], key: jax.Array) -> Params:
  """The first task's parameters, as if it were alone, and the others' heads."""
  params: Params = {}
  parts = {}
  for i, (name, objective) in enumerate(alone.items()):
    # No two heads of one shape start the same. What is not used of the others
    # is not computed.
    found = objective.init(jax.random.fold_in(key, i) if i else key)
    parts[name] = own_head(found['heads'])
    if not i:
      shared = {n: x for n, x in found['heads'].items() if n in _SHARED}
      params = {n: x for n, x in found.items() if n != 'heads'}
      params |= {'heads': shared} if shared else {}
  return {**params, 'parts': parts}


def _loss(
  task: Objective,
  name: str,
  params: Params,
  batch: Batch,
  key: jax.Array | None,
) -> Loss:
  return task.loss(of_task(params, name), batch, key)


def _outputs(
  task: Objective, name: str, params: Params, batch: Batch
) -> jax.Array:
  assert task.outputs is not None
  return task.outputs(of_task(params, name), batch)


def _no_loss(params: Params, batch: Batch, key: jax.Array | None) -> NoReturn:
  raise AssertionError('a batch is of one task: ask for `Objective.of(task)`')
