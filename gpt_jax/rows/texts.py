# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What makes rows of a store, and what rows of sentences are made of.

A `RowMaker` says of each row which tokens of the store it has, its `Texts`, and
reads them. Of sentences `assemble` makes the row, [CLS] A [SEP] or [CLS] A
[SEP] B [SEP], and padding. The token that ends a document in the store is [SEP]
in a row that goes on after it.
"""

import abc
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.spec import UsageError
from gpt_jax.tokens.mixture import Place
from gpt_jax.tokens.store import TokenStore


class RowMaker(abc.ABC):
  """The rows of a store for one length.

  Attributes:
    made_of: what the store has to have.
    arrays: the fields of `Rows` that its rows have, beside `tokens` and `real`.
    sizes: rows of each source of a mixture; the only one of others is ''.
    tokens: of each source, tokens of these rows without padding, special ones
      counted; where texts are drawn anew each time that a row is read, an
      expected value. None: no row has padding.
  """

  made_of: ClassVar[Literal['tokens', 'sentences', 'pairs']] = 'tokens'
  arrays: ClassVar[tuple[str, ...]] = ()
  sizes: dict[str, int]
  tokens: dict[str, int] | None = None

  @property
  def num_rows(self) -> int:
    """In an epoch."""
    return sum(self.sizes.values())

  @property
  def num_held_out(self) -> int:
    """Rows that have each token of a held-out set."""
    return self.num_rows

  @abc.abstractmethod
  def texts(self, places: Sequence[Place], keys: Keys) -> 'list[Texts]':
    """The tokens of the store that the rows at some places have."""

  @abc.abstractmethod
  def read(self, places: Sequence[Place], keys: Keys) -> Rows:
    """The rows at some places, with the keys that they have in the run."""

  def read_held_out(self, keys: Keys) -> Rows:
    """Rows of a held-out set; padding where a number is past its last."""
    return self.read([Place('', 0, row) for row in keys.row.tolist()], keys)


class Texts(NamedTuple):
  """What a row is made of.

  Attributes:
    ranges: the tokens of the store that each text has; no text in a row that
      only fills up a batch.
    pair: 1 where the second does not follow the first, else 0.
  """

  ranges: list[range]
  pair: int


class Sentences(NamedTuple):
  """Sentences that have a token, besides the end of a document.

  Attributes:
    starts: int64 [S], their first tokens in the store.
    stops: int64 [S], after their last, the end of a document left out.
    documents: int64 [S], which document of the store each is of; rising.
  """

  starts: np.ndarray
  stops: np.ndarray
  documents: np.ndarray


def check_special(store: TokenStore):
  """Checks that the tokenizer has what stands around texts."""
  special = store.special
  missing = [
    name
    for name, i in (('[CLS]', special.cls_id), ('[SEP]', special.sep_id))
    if i is None
  ]
  if missing:
    raise UsageError(
      f'tokenizer.name={store.manifest.tokenizer!r}: has no '
      f'{" and no ".join(missing)}, which data.rows={store.rows!r} puts around '
      "texts; take a tokenizer of encoders, such as 'wordpiece(30000)'"
    )


def sentences(store: TokenStore) -> dict[str, Sentences]:
  """The sentences of each source of a mixture; the only one of others is ''."""
  found = {}
  for name, (start, stop) in store.parts().items():
    found[name] = _sentences(store, start, stop)
    if not len(found[name].starts):
      where = f' of the source {name}' if name else ''
      raise UsageError(
        f'{store.folder}: data.rows={store.rows!r}: no document{where} has a '
        'token; add text'
      )
  return found


def _sentences(store: TokenStore, start: int, stop: int) -> Sentences:
  ends = store.sentence_ends
  first, last = np.searchsorted(ends, [start, stop], side='right')
  stops = ends[first:last]
  starts = np.append(start, stops[:-1])
  document_ends = store.document_ends
  documents = np.searchsorted(document_ends, starts, side='right')
  stops = stops - (stops == document_ends[documents])
  kept = stops > starts
  return Sentences(starts[kept], stops[kept], documents[kept])


def walk(following: np.ndarray) -> np.ndarray:
  """Where rows begin: at 0, and where the row before says.

  Args:
    following: int64 [N], where a row goes on if one begins here; more than
      here, at most N.
  """
  steps, heads, head = following.tolist(), [], 0
  while head < len(steps):
    heads.append(head)
    head = steps[head]
  return np.array(heads, np.int64)


def assemble(
  store: TokenStore, found: Sequence[Texts], length: int, *, types: bool
) -> Rows:
  """Makes rows of their texts.

  Args:
    store: has the tokens.
    found: of each row; with its special tokens it is not longer than `length`.
    length: of a row.
    types: whether tokens have types, and rows a label: see `Rows`.
  """
  special = store.special
  assert special.cls_id is not None and special.sep_id is not None
  tokens = np.full((len(found), length), special.pad_id, np.int32)
  real = np.zeros(tokens.shape, bool)
  put_in, token_types = np.zeros_like(real), np.zeros_like(tokens)
  ranges = [part for texts in found for part in texts.ranges]
  read = iter(store.read_ranges(ranges))
  for i, texts in enumerate(found):
    at = 0
    for nth in range(len(texts.ranges)):
      ids = _without_empty(next(read).astype(np.int32), store.manifest.eos_id)
      parted = ids == store.manifest.eos_id
      head = np.full(int(nth == 0), special.cls_id, np.int32)
      both = np.where(parted, np.int32(special.sep_id), ids)
      both = np.concatenate([head, both, [np.int32(special.sep_id)]])
      stop = at + len(both)
      tokens[i, at:stop], token_types[i, at:stop] = both, nth
      put_in[i, at : at + len(head)] = put_in[i, stop - 1] = True
      put_in[i, at + len(head) : stop - 1] = parted
      at = stop
    real[i, :at] = True
  rows = Rows(tokens, real, special=put_in)
  if types:
    pair = np.array([texts.pair for texts in found], np.int32)
    rows = rows._replace(token_types=token_types, pair=pair)
  return rows


def _without_empty(ids: np.ndarray, eos_id: int) -> np.ndarray:
  """A text without the ends of documents that have no other token."""
  ended = ids == eos_id
  return ids[np.append(True, ~(ended[1:] & ended[:-1]))]
