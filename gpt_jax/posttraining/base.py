# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a method of post-training is, and what several do with their rows.

`methods` has the table of them.
"""

import abc
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from gpt_jax.config import Config, defaults
from gpt_jax.posttraining import rollouts
from gpt_jax.posttraining.dialogues import Encoded
from gpt_jax.rows.row_order import Batch
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.chat import ChatTemplate
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training.parts import Parts

Row = TypeVar('Row')


class Split(Protocol):
  """The rows of a split, from which batches are made."""

  def __len__(self) -> int:
    """Number of rows."""
    ...

  def batch(self, numbers: Sequence[int]) -> Batch:
    """The arrays of rows, among them `weights` [rows, ...]."""
    ...


class Prepared(NamedTuple):
  """What a method trains on.

  Attributes:
    objective: the call of `objective.name`.
    train: the rows to train on, or how the model draws them.
    dev: the rows to evaluate on; None: nothing is evaluated.
    data: identifies the rows: their numbers and a hash.
    figures: of each split, for result.json.
    template: the chat template, if there are conversations.
    ends: the special tokens that end an answer in these.
  """

  objective: str
  train: Split | rollouts.Plan
  dev: Split | None
  data: str
  figures: dict[str, dict[str, Any]]
  template: ChatTemplate | None = None
  ends: frozenset[int] = frozenset()


class Method(abc.ABC):
  """A method of post-training.

  Attributes:
    reads: the fields of the section `finetune` that it uses.
    criterion: the metric of the dev split that selects the best step; lower is
      better, or higher with a leading '-'.
    shown: metrics of the dev split in the log.
    template: names the chat template: see `chat.choose`.
  """

  template: str
  reads: ClassVar[frozenset[str]]
  criterion: ClassVar[str] = 'loss'
  shown: ClassVar[tuple[str, ...]] = ('loss',)

  @abc.abstractmethod
  def prepare(
    self,
    config: Config,
    tokenizer: Tokenizer,
    template: Callable[[], ChatTemplate],
  ) -> Prepared:
    """Reads and encodes the files; sets `finetune.length` if it is empty.

    Args:
      config: not resolved, but with the model's fields.
      tokenizer: of the model.
      template: finds the chat template, or raises if there is none.
    """

  def begin(  # noqa: B027 (most have rows that are complete)
    self,
    prepared: Prepared,
    parts: Parts,
    params: Callable[[], Any],
    workdir: str,
  ) -> None:
    """Adds to the rows what the first parameters give; by default nothing.

    Args:
      prepared: from `prepare`.
      parts: of the run.
      params: makes the parameters that a new run starts from.
      workdir: the run's folder.
    """

  def judged(
    self, prepared: Prepared, parts: Parts, params: Any, workdir: str
  ) -> dict[str, Any]:
    """Further figures of the dev split, for result.json; by default none.

    Args:
      prepared: from `prepare`.
      parts: of the run.
      params: what the run has learned.
      workdir: the run's folder, where predictions are written.
    """
    del prepared, parts, params, workdir
    return {}


# The fields of the section `finetune` that all methods use.
COMMON = frozenset(
  [
    *('task', 'length', 'too_long', 'examples', 'epochs', 'peak', 'warmup'),
    *('patience', 'select', 'freeze', 'lora'),
    *(f'model.{name}' for name in defaults.FINETUNE['model']),
  ]
)


def limited(
  config: Config, split: str, rows: list[Row], path: str
) -> list[Row]:
  """`finetune.examples` of the rows of the train split, drawn by the seed."""
  if not rows:
    raise UsageError(f'{path}: has no rows; give another file')
  count = config.finetune.examples
  if split != 'train' or not count or count >= len(rows):
    return rows
  order = np.random.default_rng(config.seed).permutation(len(rows))
  return [rows[i] for i in order[:count]]


def set_length(config: Config, longest: int) -> None:
  """Sets `finetune.length` to the longest sequence's, if that fits.

  Args:
    longest: inputs of the longest sequence.
  """
  tuned, context = config.finetune, config.model.context_length
  if tuned.length is None:
    tuned.length = min(context, 8 * -(-longest // 8))
  if not 2 <= tuned.length <= context:
    raise UsageError(
      f"finetune.length={tuned.length}: must be from 2 to the model's context "
      f'of {context}'
    )


def digest(
  encoded: Mapping[str, Sequence[Encoded]], sizes_of_rows: Sequence[int] = ()
) -> str:
  """The numbers of train and dev examples, and a hash of their tokens.

  Args:
    encoded: by split.
    sizes_of_rows: how many examples each row has, if it may have several.
  """
  found, sizes = hashlib.sha256(), []
  for split, sequences in encoded.items():
    for one in sequences:
      found.update(np.int64(len(one.ids)).tobytes())
      found.update(one.ids.tobytes() + one.learned.tobytes())
    sizes.append(f'{len(sequences)} {split}')
  found.update(np.array(sizes_of_rows, np.int64).tobytes())
  return f'{", ".join(sizes)}, sha256 {found.hexdigest()[:16]}'
