# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads prompts into caches, block by block, before they join the batch.

The cost of a block is known beforehand, so that the engine can read a long
prompt between the decoding steps of other rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import sharding
from gpt_jax.core.nn import caches as caches_lib
from gpt_jax.core.nn.stack import Caches
from gpt_jax.core.nn.transformer import DTYPES
from gpt_jax.decoding import logprobs, programs
from gpt_jax.decoding.logprobs import Logprobs, TokenLogprobs
from gpt_jax.decoding.programs import Decoder, Prefilled
from gpt_jax.decoding.requests import Slot

# Prefix caching: the caches of ended rows serve prompts that begin alike.
#
# The next turn of a chat is its whole history and a little more. A cache has a
# slot for each position, whatever the attention's window, so that its first
# slots hold for every row with the same first tokens. Only whole blocks are
# reused: the rest is read by the programs that read whole prompts.


class RowPrefix(NamedTuple):
  """The beginning of a row.

  Attributes:
    ids: whole blocks of tokens.
    caches: of a single row; slots beyond `ids` hold anything.
  """

  ids: Sequence[int]
  caches: Caches


class PrefixCache:
  """The beginnings of the rows that ended last."""

  def __init__(self, most: int):
    """Keeps at most `most` rows."""
    self._most = most
    self._prefixes: list[RowPrefix] = []  # the newest last

  def wants(self, ids: Sequence[int]) -> bool:
    """Whether a row with these tokens would be kept."""
    return self._most > 0 and len(ids) >= programs.BLOCK

  def add(self, ids: Sequence[int], caches: Caches) -> None:
    """Keeps a row, and drops rows that are its beginning.

    Args:
      ids: tokens that the caches hold, at least a block.
      caches: of that row alone.
    """
    ids = ids[: _blocks(len(ids))]
    others = [p for p in self._prefixes if p.ids != ids[: len(p.ids)]]
    self._prefixes = [*others, RowPrefix(ids, caches)][-self._most :]

  def find(self, prompt: Sequence[int]) -> RowPrefix | None:
    """The longest cached beginning of a prompt, without its last token."""
    found = [
      RowPrefix(prompt[: _blocks(num)], prefix.caches)
      for prefix in self._prefixes
      if (num := _num_common(prompt[:-1], prefix.ids)) >= programs.BLOCK
    ]
    return max(found, key=lambda prefix: len(prefix.ids), default=None)


def _blocks(length: int) -> int:
  """`length` rounded down to whole blocks."""
  return length - length % programs.BLOCK


def _num_common(one: Sequence[int], two: Sequence[int]) -> int:
  """Length of the common prefix."""
  pairs = enumerate(zip(one, two, strict=False))
  return next((i for i, (x, y) in pairs if x != y), min(len(one), len(two)))


class PromptGroup:
  """A group of slots whose prompts are being read; equal prompts once."""

  def __init__(
    self,
    rows: Sequence[Slot],
    *,
    readers: Sequence[Decoder],
    slots: int,
    prefix: RowPrefix | None = None,
  ):
    """Prepares a group; reads nothing yet.

    Args:
      rows: of one group of `requests.alike`.
      readers: `ready`: the model, then its draft, if any.
      slots: the most rows of a batch.
      prefix: a cached beginning; then all prompts are equal.
    """
    self.rows = list(rows)
    self._readers = readers
    prompts = {row.prompt: row.request for row in rows}
    self._places = {prompt: i for i, prompt in enumerate(prompts)}
    self._size = programs.num_rows(len(prompts), slots)
    in_row = readers[0].in_row
    ids = [request.ids for request in prompts.values()]
    if in_row is not None:
      ids = [in_row.prompt(own) for own in ids]
    self._tokens_BL, self._lengths_B = self._pad(ids)
    # Tokens of a source may see later ones: it is read as a whole.
    whole = in_row is not None
    self._block = self._tokens_BL.shape[1] if whole else programs.BLOCK
    self._sources = None
    if any(request.source for request in prompts.values()):
      self._sources = self._pad([r.source or () for r in prompts.values()])
    assert prefix is None or len(prompts) == 1
    self._prefix = prefix
    self._start = len(prefix.ids) if prefix else 0
    self._read: list[Prefilled] = []  # of each reader
    self._scored = any(row.request.scores_prompt for row in rows)
    assert not (self._scored and prefix)
    self._scores: list[Logprobs] = []  # of each block

  @property
  def num_blocks(self) -> int:
    """Blocks left to read."""
    left = self._tokens_BL.shape[1] - self._start
    return -(-left // self._block)

  @property
  def num_tokens(self) -> int:
    """Tokens that the next block computes, including sources."""
    left = self._tokens_BL.shape[1] - self._start
    num = min(left, self._block)
    if self._sources is not None and not self._read:
      num += self._sources[0].shape[1]
    return self._size * num

  @property
  def last_BD(self) -> jax.Array:
    """The model's last hidden state of each prompt that was read."""
    return self._read[0].last_BD

  @property
  def caches(self) -> Caches:
    """The caches of the prompts, of each reader in turn."""
    return sum((prefilled.caches for prefilled in self._read), ())

  def places(self) -> list[int]:
    """The index of each row's prompt in `last_BD` and `caches`."""
    return [self._places[row.prompt] for row in self.rows]

  def prompt_logprobs(self) -> list[tuple[TokenLogprobs, ...]]:
    """Of each row whose request asks for them; else empty."""
    if not self._scored:
      return [()] * len(self.rows)
    blocks = zip(*jax.device_get(self._scores), strict=True)
    scores = Logprobs(*(np.concatenate(parts, axis=1) for parts in blocks))
    out = []
    for row, place in zip(self.rows, self.places(), strict=True):
      own, num_top = [], row.request.num_top
      if row.request.scores_prompt and num_top is not None:
        first, *rest = row.request.ids
        own = [TokenLogprobs(first, None)]
        for i, token in enumerate(rest):
          own.append(scores.at((place, i)).token(token, num_top))
      out.append(tuple(own))
    return out

  def read(self) -> None:
    """Reads the next block, asynchronously."""
    memory_BMD = mask_BM = None
    if self._sources is not None:
      tokens_BM, lengths_B = self._sources
      mask_BM = np.arange(tokens_BM.shape[1])[None] < lengths_B[:, None]
      if not self._read:
        # Later blocks find its keys and values in the caches.
        decoder = self._readers[0]
        memory_BMD = programs.encode(decoder.params, tokens_BM, mask_BM, model=decoder.model)
    if not self._read:
      self._read = self._init_caches()
    start, L = self._start, self._tokens_BL.shape[1]
    stop = min(start + self._block, L)
    if start and start // self._block % sharding.MOST_STARTED == 0:
      # Not later: a block's outputs are donated to the next. Nor at the start,
      # where a server would wait for the programs of other requests.
      jax.block_until_ready(self._read)
    self._read = [
      programs.read_block(
        reader.params,
        read.caches,
        self._tokens_BL[:, start:stop],
        start,
        self._lengths_B,
        read.last_BD,
        memory_BMD,
        mask_BM,
        model=reader.model,
        num_seen=programs.seen(stop, programs.bucket(L, self._longest)),
        in_row=reader.in_row,
      )
      for reader, read in zip(self._readers, self._read, strict=True)
    ]
    if self._scored:
      decoder, hidden_BLD = self._readers[0], self._read[0].hidden_BLD
      next_BL = np.pad(self._tokens_BL, ((0, 0), (0, 1)))[:, start + 1 : stop + 1]
      self._scores.append(
        logprobs.score_block(decoder.params, hidden_BLD, next_BL, model=decoder.model)
      )
    self._read = [read._replace(hidden_BLD=None) for read in self._read]
    self._start = stop

  @property
  def _longest(self) -> int:
    """The context length."""
    return self._readers[0].model.context_length

  def _init_caches(self) -> list[Prefilled]:
    """Caches for the padded prompts: empty, or with the prefix."""
    B, L = self._tokens_BL.shape
    M = 0 if self._sources is None else self._sources[0].shape[1]
    capacity = programs.bucket(L, self._longest)
    taken = ()
    if self._prefix is not None:
      taken = caches_lib.take_rows(self._prefix.caches, np.zeros(B, int), capacity)
      self._prefix = None  # and its memory
    out = []
    for model in (reader.model for reader in self._readers):
      caches, taken = taken[: model.num_layers], taken[model.num_layers :]
      if not caches:
        caches = caches_lib.init_caches(model, B, capacity, M)
      last_BD = jnp.zeros((B, model.d_model), DTYPES[model.dtype])
      out.append(Prefilled(last_BD, caches))
    return out

  def _pad(self, rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """`programs.pad`, filled up with rows of one token."""
    more = [[0]] * (self._size - len(rows))
    return programs.pad([*rows, *more], self._longest)
