# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The interface of objectives: batches made of rows, and a model's loss."""

import abc
import copy
import functools
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import numpy as np

from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.loss import Batch, Loss, Params
from gpt_jax.core.optim.train_state import Stages
from gpt_jax.core.rows.rows import Holds, Keys, Rows
from gpt_jax.core.tokenizers.tokenizer import Tokenizer


class Scored(NamedTuple):
  """How many positions of a row of a given length are scored.

  Attributes:
    output: positions scored over the vocabulary.
    heads: positions scored by the heads of pre-training, or of a task.
    once: modules of the heads that a row uses once.
  """

  output: Callable[[int], int]
  heads: Callable[[int], int]
  once: tuple[str, ...] = ()


class Part(NamedTuple):
  """An additional model of an objective, beside the run's own.

  Attributes:
    shared: names of the parameters that it shares with the run's model.
    scored: see `Scored`; None: all tokens.
    frozen: it is not trained; its parameters come from `objective.teacher`.
    added: names of the parameters that the run's model stores as differences
      from this part's.
  """

  shared: tuple[str, ...] = ()
  scored: Scored | None = None
  frozen: bool = False
  added: tuple[str, ...] = ()


class Stored(NamedTuple):
  """Teacher outputs that are read from disk.

  Attributes:
    text: the call-string of the loss whose rows the teacher read.
    places: which tokens have outputs: see `distilled`.
    temperature: of the stored probabilities.
    top_k: number of most probable tokens stored per output.
    times: different (masked) versions of each row of the store.
    positions: number of tokens with outputs in a row of a given length.
    blank: the arrays of outputs by name, of one row of a given length, as
      zeros.
  """

  text: str
  places: str
  temperature: float
  top_k: int
  times: int
  positions: Callable[[int], int]
  blank: Callable[[int], dict[str, np.ndarray]]


def _same(length: int) -> int:
  return length


class Needs(NamedTuple):
  """What an objective requires of models, rows and tokenizer.

  Attributes:
    attention: required in all layers: 'causal', 'bidirectional', 'separate'
      (LSTMs of two directions) or 'any'.
    encoder: whether the model is an encoder-decoder.
    decoder_start: for rows with two sides, the token that the decoder starts
      with: see `rows.sides.start_id`.
    text_length: context length to the tokens of text in a row of the store that
      fill the encoder's context; non-decreasing.
    target_length: context length to the most tokens that the decoder reads.
    sentinels: context length to the number of sentinel tokens needed: see
      `choices.check_sentinels`.
    rows: what the rows that it accepts hold; (): its batches are not made of
      rows.
    pair: how texts A and B of a row are made: 'next' (B from another document
      in half of the rows), 'order' (swapped in half of them), 'unified' (see
      `papers.bert.pair_rows`); '': rows have no pairs.
    tokens: names of special tokens that the tokenizer must have.
    scored: see `Scored`; None: all tokens.
    num_predicted: row length to the number of tokens that a second stream
      predicts.
    pooler: default activation of the pooler in fine-tuning, see
      `finetune.pooler`.
    in_row: how a model learns to generate after a source in the same row: by
      'mask', or after a 'prefix' whose attention is bidirectional, or 'left' to
      right; '': it does not. See `decoding.in_row`.
    parts: the additional models, by their names in `config.models`. Their
      parameters are `params['parts'][NAME]`.
    stored: teacher outputs that a training batch contains; None: no outputs.
    candidates: words that training scores instead of the vocabulary (a sampled
      softmax); 0: all.
    backward: whether the model reads texts from right to left.
    progress: whether training reads the fraction of the run that is done, so
      that each step depends on the number of steps: see `loss.RUN`.
  """

  attention: str = 'causal'
  encoder: bool = False
  decoder_start: str = ''
  text_length: Callable[[int], int] = _same
  target_length: Callable[[int], int] = _same
  sentinels: Callable[[int], int] = lambda context: 0
  rows: tuple[Holds, ...] = ('stream', 'documents')
  pair: str = ''
  tokens: tuple[str, ...] = ()
  scored: Scored | None = None
  num_predicted: Callable[[int], int] = lambda length: 0
  pooler: str = 'tanh'
  in_row: str = ''
  parts: Mapping[str, Part] = MappingProxyType({})
  stored: Stored | None = None
  candidates: int = 0
  backward: bool = False
  progress: bool = False

  def sides(self, length: int) -> tuple[int, int]:
    """Encoder and decoder tokens of a row of `length` tokens of text.

    Without an encoder both equal the row's length.
    """
    # The longest context that needs no more text.
    low, high = 1, 2
    while self.text_length(high) <= length:
      low, high = high, 2 * high
    while high - low > 1:
      middle = (low + high) // 2
      low, high = (middle, high) if self.text_length(middle) <= length else (low, middle)
    return low, self.target_length(low)

  @property
  def frozen(self) -> tuple[str, ...]:
    """Names of the parts that are not trained."""
    return tuple(name for name, part in self.parts.items() if part.frozen)

  @property
  def adds(self) -> bool:
    """Whether the run's model stores parameters as differences from a part."""
    return any(part.added for part in self.parts.values())

  def merged(self, params: Params, add: Callable[[Any, Any], Any] = operator.add) -> Params:
    """All parameters, with stored differences summed to full parameters.

    Args:
      add: adds two arrays.
    """
    sums = {
      name: jax.tree.map(add, params['parts'][of][name], params[name])
      for of, part in self.parts.items()
      for name in part.added
      if name in params
    }
    return {**params, **sums}

  def trees(self, params: Params) -> dict[str, Params]:
    """Splits all parameters by model; '' is the run's own."""
    own = {name: x for name, x in params.items() if name != 'parts'}
    trees = {'': own}
    for name, part in self.parts.items():
      shared = {n: params[n] for n in part.shared if n in params}
      trees[name] = {**shared, **params['parts'][name]}
    return trees


class Objective(abc.ABC):
  """What a run minimises.

  An objective is a frozen dataclass whose fields are the arguments of its call
  in `objective.name`. `needs` depends on these alone; everything else also
  reads the models that `bind` sets.

  Attributes:
    model: the run's model.
    tokenizer: None if batches are made for their shapes only.
    parts: the models of `Needs.parts`, by name.
    every_token: whether the loss covers every token of a text, as bits per
      byte and the perplexity of a text require.
    kinds: groups of predicted tokens whose perplexities are reported
      separately, each from the metric `NAME_loss`, and no overall one.
    unsaved: frozen parts that are not in checkpoints: the base of adapters,
      which is read from its own folder (`tuning.objectives.lora`).
  """

  model: Transformer
  tokenizer: Tokenizer | None
  parts: Mapping[str, Transformer]
  every_token: ClassVar[bool] = False
  kinds: ClassVar[tuple[str, ...]] = ()
  unsaved: ClassVar[tuple[str, ...]] = ()

  @property
  @abc.abstractmethod
  def needs(self) -> Needs:
    """What the objective requires of models, rows and tokenizer."""

  def bind(
    self, model: Transformer, tokenizer: Tokenizer | None = None, **parts: Transformer
  ) -> Self:
    """A copy bound to the given models, which are checked.

    Args:
      tokenizer: some objectives need it to make batches of text.
      **parts: the models of `Needs.parts`.
    """
    bound = self.replaced(model=model, tokenizer=tokenizer, parts=parts)
    bound.check()
    return bound

  def replaced(self, **attributes: Any) -> Self:
    """A copy with other attributes; functions may replace methods."""
    new = copy.copy(self)
    vars(new).pop('shapes', None)
    vars(new).update(attributes)
    return new

  def check(self) -> None:  # noqa: B027 (most train any model)
    """Rejects models that the objective cannot train."""

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """The arrays of a batch; NumPy, on the host.

    Args:
      keys: determine the rows' random choices.
    """
    raise NotImplementedError(f'{type(self).__name__} has an example instead')

  @property
  def example(self) -> dict[str, np.ndarray] | None:
    """A batch of one example, if batches are not made of rows; else None."""
    return None

  def init(self, key: jax.Array) -> Params:
    """Random parameters, boxed with their logical axes."""
    return forward.init(self.model, key)

  @functools.cached_property
  def shapes(self) -> Params:
    """What `init` returns, as shapes and dtypes; traced once."""
    return jax.eval_shape(self.init, jax.random.key(0))

  def first_params(self, params: Params) -> Params:
    """The parameters that training starts from.

    Args:
      params: random parameters, but those of frozen parts already loaded.
    """
    return params

  def full(self, params: Params) -> Params:
    """The parameters of the models themselves, adapters merged into them."""
    return params

  @abc.abstractmethod
  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss of a batch; without a key there is no dropout or penalty.

    Args:
      params: of all models, as in `TrainState.params`.
      batch: arrays [rows, ...] by name, as `make_batch` makes them.
      key: of dropout; None: evaluates.

    Returns:
      Sums over the tokens that count.

    Raises:
      KeyError: the batch lacks an array.
    """

  def weights(self, batch: Batch) -> dict[str, jax.Array]:
    """The weights in a batch of the loss, '', and of each of its terms."""
    del batch
    return {}

  def weighed(self, batch: Batch) -> Batch:
    """A batch of a training step, before it is divided into micro-batches.

    Some weights depend on all of its rows: see `loss.share`.
    """
    return batch

  def outputs(self, params: Params, batch: Batch) -> jax.Array:
    """The outputs that a task's metrics are computed from, [B, K]."""
    raise NotImplementedError(f'{type(self).__name__} is no task')

  def stages(self) -> Stages | None:
    """The stages, if not all parameters are trained all along; else None."""
    return None

  @property
  def row_mask(self) -> Literal['', 'prefix', 'order']:
    """Which data of a row, beside its segments, mask its attention.

    A prefix that all of its tokens see, or an order in which tokens see each
    other; '': none.
    """
    return ''

  @property
  def frozen(self) -> tuple[str, ...]:
    """Untrained parts: `params['parts'][NAME]` gets no gradient."""
    return (*self.needs.frozen, *self.unsaved)

  @property
  def tasks(self) -> 'Mapping[str, Objective]':
    """The objective of each task's batches, if one model learns several."""
    return {}

  def of(self, task: str) -> 'Objective':
    """The objective of a batch of `task`; '' means this objective."""
    return self.tasks[task] if task else self


class TextObjective(Objective):
  """A loss of a text's last states, which other objectives can extend."""

  @abc.abstractmethod
  def loss_of_states(
    self, params: Params, hidden_BLD: jax.Array, batch: Batch, *, evaluating: bool
  ) -> Loss:
    """The loss of the last states, before what its layers add."""

  def chosen(self, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
    """The states of the tokens that the loss can count, [B, P, D]."""
    del batch
    return hidden_BLD

  def counted(self, batch: Batch) -> jax.Array:
    """The weights of the tokens in `chosen`, float32 [B, P]."""
    return batch['weights']

  def real(self, batch: Batch) -> jax.Array:
    """1 for tokens, 0 for padding; float32 [B, L]."""
    return batch['weights']

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss of a batch, with what its layers report."""
    hidden_BLD, stats = forward.states(self.model, params, batch, key)
    found = self.loss_of_states(params, hidden_BLD, batch, evaluating=key is None)
    return found._replace(stats=stats)
