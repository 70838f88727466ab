# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""An objective: batches of rows, and the loss of a model on them."""

import abc
import copy
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np

from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import forward
from gpt_jax.objectives.loss import Batch, Loss, Params
from gpt_jax.optim.train_state import Stages
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.tokenizers.tokenizer import Tokenizer


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


class Objective(abc.ABC):
  """What a run minimises.

  Each paper's is a frozen dataclass whose fields are the arguments of its call
  in `objective.name`. From these alone follow `needs`; `bind` gives the models,
  which everything else reads.

  Attributes:
    model: the run's.
    tokenizer: of the text; None: batches are made for their shapes alone.
    parts: the models of `Needs.parts`, by name.
    every_token: whether the loss is that of each token of a text, as bits per
      byte and the perplexity of a text take it.
    kinds: groups of predicted tokens that have a perplexity each, from
      `NAME_loss` of the metrics; then there is none of all tokens.
  """

  model: Transformer
  tokenizer: Tokenizer | None
  parts: Mapping[str, Transformer]
  every_token: ClassVar[bool] = False
  kinds: ClassVar[tuple[str, ...]] = ()

  @property
  @abc.abstractmethod
  def needs(self) -> Needs:
    """What it needs of models, rows and tokenizer."""

  def bind(
    self,
    model: Transformer,
    tokenizer: Tokenizer | None = None,
    **parts: Transformer,
  ) -> Self:
    """The objective of given models, which are checked.

    Args:
      tokenizer: of the text; some make no batch of text without it.
      **parts: the models of `Needs.parts`.
    """
    bound = self.replaced(model=model, tokenizer=tokenizer, parts=parts)
    bound.check()
    return bound

  def replaced(self, **attributes: Any) -> Self:
    """A copy in which functions stand in the places of methods."""
    new = copy.copy(self)
    vars(new).update(attributes)
    return new

  def check(self) -> None:  # noqa: B027 (most train any model)
    """Refuses models that the objective cannot train."""

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """The arrays of a batch; NumPy, on the host.

    Args:
      keys: what the rows' random choices follow from.
    """
    raise NotImplementedError(f'{type(self).__name__} has an example instead')

  @property
  def example(self) -> dict[str, np.ndarray] | None:
    """A batch of one row, where batches are not made of rows."""
    return None

  def init(self, key: jax.Array) -> Params:
    """Random parameters with logical axes (boxed)."""
    return forward.init(self.model, key)

  def first_params(self, params: Params) -> Params:
    """The parameters that training starts from.

    Args:
      params: with those of the frozen parts in their places.
    """
    return params

  @abc.abstractmethod
  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss of a batch; without a key no dropout and no penalty."""

  def balance(self, batch: Batch) -> Batch:
    """Adds weights that depend on the whole batch; on the device, in training.

    Before the batch is taken in parts.
    """
    return batch

  def progress(self, batch: Batch, done: jax.Array) -> Batch:
    """Adds the share of the run that is done, where `Needs.progress` asks."""
    raise NotImplementedError(f'{type(self).__name__} needs no progress')

  def outputs(self, params: Params, batch: Batch) -> jax.Array:
    """What a task is measured by, [B, K]."""
    raise NotImplementedError(f'{type(self).__name__} is no task')

  @property
  def stages(self) -> Stages | None:
    """Where one part is trained after another; None: all are at once."""
    return None

  @property
  def frozen(self) -> tuple[str, ...]:
    """Parts that are not trained: no gradient in `params['parts'][NAME]`."""
    return self.needs.frozen

  @property
  def tasks(self) -> 'Mapping[str, Objective]':
    """Of several tasks with one model, the objective of a batch of each."""
    return {}

  def of(self, task: str) -> 'Objective':
    """The objective of a batch of one of the tasks; '': as it is."""
    return self.tasks[task] if task else self


class TextObjective(Objective):
  """A loss of the last states of a text, which others may add to."""

  @abc.abstractmethod
  def loss_of_states(
    self,
    params: Params,
    hidden_BLD: jax.Array,
    batch: Batch,
    *,
    evaluating: bool,
  ) -> Loss:
    """The loss of the last states, without what routers cost."""

  def chosen(self, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
    """The states of the tokens that the loss may count, [B, P, D]."""
    del batch
    return hidden_BLD

  def counted(self, batch: Batch) -> jax.Array:
    """The weights of these tokens, float32 [B, P]."""
    return batch['weights']

  def real(self, batch: Batch) -> jax.Array:
    """1 where a token is no padding, float32 [B, L]."""
    return batch['weights']

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss of a batch; see `Objective`."""
    hidden_BLD, stats = forward.states(self.model, params, batch, key)
    found = self.loss_of_states(
      params, hidden_BLD, batch, evaluating=key is None
    )
    return forward.add_routers(found, stats, training=key is not None)
