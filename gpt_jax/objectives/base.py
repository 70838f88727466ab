# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the training step knows of an objective."""

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.nn.transformer import Transformer
from gpt_jax.optim.train_state import Stages
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.tokenizers.tokenizer import Tokenizer

Params = Any
Batch = dict[str, jax.Array]


class Mean(NamedTuple):
  """A mean as its two sums, so that parts of a batch add up exactly."""

  sum: jax.Array
  weight: jax.Array

  def times(self, factor: float) -> 'Mean':
    """The mean times a factor."""
    return self._replace(sum=factor * self.sum)


Means = tuple[Mean, ...]  # their sum, of means over different things


class Loss(NamedTuple):
  """Sums, so that micro-batches and evaluation batches add up exactly."""

  sum: jax.Array  # of the loss over the tokens that count: what is minimised
  weight: jax.Array  # how many tokens count, or the sum of their weights
  # The part of `sum` that is no measure of the model, such as z-loss: reports
  # subtract it. Not differentiated by itself.
  penalty: jax.Array | float = 0.0
  metrics: Mapping[str, Mean | Means] | None = None  # None: none
  # In evaluation, further means that are added to `sum` / `weight`: each has
  # its own weight, so that a held-out loss does not depend on how the rows are
  # cut into batches. In training `sum` has them, weighed by `balance`.
  added: Means = ()

  @property
  def means(self) -> Means:
    """The reported loss."""
    return (Mean(self.sum - self.penalty, self.weight), *self.added)

  def times(self, factor: float) -> 'Loss':
    """The loss times a factor, its metrics as they are."""
    return self._replace(
      sum=factor * self.sum,
      penalty=factor * self.penalty,
      added=tuple(mean.times(factor) for mean in self.added),
    )


class Text(NamedTuple):
  """The parts of a loss of text, for objectives that add to it.

  Attributes:
    loss: parameters, states, batch and whether it evaluates to the loss,
      without what routers cost.
    chosen: of states and batch, those of the tokens that the loss may count,
      [B, P, D].
    counted: of a batch, the weights of these tokens, float32 [B, P].
    real: of a batch, 1 where a token is no padding; float32 [B, L].
  """

  loss: Callable[[Params, jax.Array, Batch, bool], Loss]
  chosen: Callable[[jax.Array, Batch], jax.Array]
  counted: Callable[[Batch], jax.Array]
  real: Callable[[Batch], jax.Array]


class Objective(NamedTuple):
  """Pure functions.

  Attributes:
    make_batch: rows and what their random choices follow from, to the arrays
      of a batch; NumPy, on the host. None: batches like `example` come from
      elsewhere.
    init: a random key to parameters with logical axes (boxed).
    loss: parameters, batch and a random key to a `Loss`. Without a key it
      evaluates: no dropout, no penalty.
    every_token: whether the loss is that of each token of a text, as the bits
      per byte and the perplexity of a text take it.
    kinds: of tokens that are predicted each in another way: of `NAME_loss` in
      the metrics each has a perplexity, and there is none of all.
    balance: on the device, in training: the whole batch before it is taken in
      parts; gives weights that depend on all of it. None: nothing to do.
    example: a batch of one row, where there is no `make_batch`.
    outputs: parameters and batch to what a task is measured by, [B, K].
    text: see `Text`, of those that others add to.
    frozen: names of the parts that are not trained: `loss` has no gradient in
      `params['parts'][NAME]`.
    start: parameters, with those of the frozen parts in their places, to those
      that training starts from. None: as they are.
    stages: see `Stages`; None: all parts are trained at once.
    tasks: of several tasks with one model, by name, the objective of a batch of
      each, whose `frozen` are the heads of the others. Empty: there is one.
    progress: on the device, in training: the batch and the share of the run
      that is done, to the batch that `loss` takes with a key. None: nothing.
  """

  make_batch: Callable[[Rows, Keys], dict[str, np.ndarray]] | None
  init: Callable[[jax.Array], Params]
  loss: Callable[[Params, Batch, jax.Array | None], Loss]
  every_token: bool = False
  kinds: tuple[str, ...] = ()
  balance: Callable[[Batch], Batch] | None = None
  example: dict[str, np.ndarray] | None = None
  outputs: Callable[[Params, Batch], jax.Array] | None = None
  text: Text | None = None
  frozen: tuple[str, ...] = ()
  start: Callable[[Params], Params] | None = None
  progress: Callable[[Batch, jax.Array], Batch] | None = None
  stages: Stages | None = None
  tasks: "tuple[tuple[str, 'Objective'], ...]" = ()

  def of(self, task: str) -> 'Objective':
    """The objective of a batch of one of the tasks; '': as it is."""
    return dict(self.tasks)[task] if task else self


class Scored(NamedTuple):
  """How many positions of a row of a given length are scored.

  Attributes:
    output: by the vocabulary.
    heads: by the heads of pre-training.
  """

  output: Callable[[int], int]
  heads: Callable[[int], int]


class Part(NamedTuple):
  """A model that an objective has beside the run's own.

  Attributes:
    shared: names of the parameters that it takes from the run's model.
    added: names of the parameters of the run's model that are kept as what is
      added to this model's.
    scored: see `Scored`; None: all tokens.
    frozen: it is not trained: its parameters are those of `objective.teacher`.
  """

  shared: tuple[str, ...] = ()
  scored: Scored | None = None
  frozen: bool = False
  added: tuple[str, ...] = ()


class Stored(NamedTuple):
  """Outputs of a teacher that are read from disk: see `rows.teacher_outputs`.

  Attributes:
    text: the call-string of the loss whose rows the teacher read.
    places: the tokens that have outputs: see `distilled`.
    temperature: of its probabilities.
    top_k: tokens of the vocabulary, the most probable, that each output has.
    times: different rows that one row of the store becomes.
    positions: the length of a row to how many of its tokens have outputs.
  """

  text: str
  places: str
  temperature: float
  top_k: int
  times: int
  positions: Callable[[int], int]


def _same(length: int) -> int:
  return length


class Needs(NamedTuple):
  """What an objective needs of models, rows and tokenizer.

  Attributes:
    attention: of all layers: 'causal', 'bidirectional' or 'any'.
    encoder: whether the model is an encoder-decoder.
    starts: of rows with two sides, the token that the decoder starts with:
      see `rows.sides.start_id`.
    text_length: context to the tokens of text that a row of the store has, so
      that the encoder reads as many as the context; never falls.
    target_length: context to the tokens that the decoder reads, at most.
    sentinels: context to how many tokens that stand for spans it needs: see
      `t5.check`.
    rows: which `data.rows` it takes, by name; (): its batches come from
      elsewhere.
    pair: how texts A and B of a row are made: 'next' (another document's text
      as B in half of the rows), 'order' (swapped in half of them), 'unified'
      (see `rows.pair_rows`); '': there are none.
    tokens: names of special tokens that the tokenizer must have.
    scored: see `Scored`; None: all tokens.
    asked: the length of a row to how many tokens a second stream predicts.
    pooler: what a task that reads the first token puts it through, see
      `finetune.pooler`.
    in_row: how a model learns to write after a source in one row: by 'mask', or
      after a 'prefix' that sees 'left' alone or itself; '': it does not. See
      `decoding.in_row`.
    parts: the models beside the run's own, by the names that `config.models`
      has them by. Their parameters are `params['parts'][NAME]`.
    stored: what a batch of training has of a teacher on disk; None: nothing.
    progress: whether training reads the share of the run that is done, so that
      each step depends on the number of steps: see `Objective`.
  """

  attention: str = 'causal'
  encoder: bool = False
  starts: str = ''
  text_length: Callable[[int], int] = _same
  target_length: Callable[[int], int] = _same
  sentinels: Callable[[int], int] = lambda context: 0
  rows: tuple[str, ...] = ('stream', 'documents')
  pair: str = ''
  tokens: tuple[str, ...] = ()
  scored: Scored | None = None
  asked: Callable[[int], int] = lambda length: 0
  pooler: str = 'tanh'
  in_row: str = ''
  parts: Mapping[str, Part] = MappingProxyType({})
  stored: Stored | None = None
  progress: bool = False

  def sides(self, length: int) -> tuple[int, int]:
    """Tokens of the encoder and of the decoder of a row of `length` of text.

    Of a model without an encoder both are that of the row.
    """
    # The longest context that needs no more text.
    low, high = 1, 2
    while self.text_length(high) <= length:
      low, high = high, 2 * high
    while high - low > 1:
      middle = (low + high) // 2
      low, high = (
        (middle, high) if self.text_length(middle) <= length else (low, middle)
      )
    return low, self.target_length(low)

  @property
  def frozen(self) -> tuple[str, ...]:
    """Names of the parts that are not trained."""
    return tuple(name for name, part in self.parts.items() if part.frozen)

  @property
  def adds(self) -> bool:
    """Whether parameters of the run's model are kept as differences."""
    return any(part.added for part in self.parts.values())

  def merged(
    self, params: Params, add: Callable[[Any, Any], Any] = operator.add
  ) -> Params:
    """The parameters of all, the run's model's as it computes with them.

    Args:
      add: two arrays to their sum.
    """
    sums = {
      name: jax.tree.map(add, params['parts'][of][name], params[name])
      for of, part in self.parts.items()
      for name in part.added
      if name in params
    }
    return {**params, **sums}

  def trees(self, params: Params) -> dict[str, Params]:
    """The parameters of each model, '' being the run's, of those of all."""
    own = {name: x for name, x in params.items() if name != 'parts'}
    trees = {'': own}
    for name, part in self.parts.items():
      shared = {n: params[n] for n in part.shared if n in params}
      trees[name] = {**shared, **params['parts'][name]}
    return trees


class Declared(NamedTuple):
  """An objective that no model was given to yet.

  Attributes:
    build: what a call does, with the model, the tokenizer and, by name, the
      parts.
  """

  needs: Needs
  build: Callable[..., Objective]

  def __call__(
    self,
    model: Transformer,
    tokenizer: Tokenizer | None = None,
    **parts: Transformer,
  ) -> Objective:
    """The objective of a model.

    Args:
      tokenizer: of the text; some make no batch of text without it.
      **parts: the models of `Needs.parts`.
    """
    return self.build(model, tokenizer, **parts)
