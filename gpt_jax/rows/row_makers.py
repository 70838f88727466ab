# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How rows are made of a token store: the choice `data.rows`.

A maker knows the rows of a store for one length: how many there are, and which
tokens of the store each one has. Its rows do not depend on the run, but for
what is drawn for them by their `Keys`.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from gpt_jax import spec
from gpt_jax.ranges import Probability
from gpt_jax.rows import parallel_rows
from gpt_jax.rows.pair_rows import HalfRows, PairRows
from gpt_jax.rows.parallel_rows import ParallelRows
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.rows.sentence_rows import SentenceRows
from gpt_jax.rows.stream_rows import Documents, Stream
from gpt_jax.rows.texts import Texts
from gpt_jax.spec import UsageError
from gpt_jax.text.sentences import splitter
from gpt_jax.tokenizers.special import Special
from gpt_jax.tokens import mixture
from gpt_jax.tokens import store as token_store
from gpt_jax.tokens.mixture import Held, Place
from gpt_jax.tokens.store import TokenStore

log = logging.getLogger('gpt_jax')


class Maker(Protocol):
  """The rows of a store."""

  @property
  def num_rows(self) -> int:
    """In an epoch."""
    ...

  @property
  def sizes(self) -> dict[str, int]:
    """Rows of each source of a mixture; the only one of others is ''."""
    ...

  @property
  def tokens(self) -> dict[str, int] | None:
    """Tokens of these rows without padding; None where there is none.

    Special tokens count. Where texts are drawn anew each time that a row is
    read, an expected value.
    """
    ...

  @property
  def num_held_out(self) -> int:
    """Rows that have each token of a held-out set."""
    ...

  def texts(self, places: Sequence[Place], keys: Keys) -> list[Texts]:
    """The tokens of the store that the rows at some places have."""
    ...

  def read(self, places: Sequence[Place], keys: Keys) -> Rows:
    """The rows at some places, with the keys that they have in the run."""
    ...

  def read_held_out(self, keys: Keys) -> Rows:
    """Rows of a held-out set; padding where a number is past its last."""
    ...


def load(store: TokenStore, length: int) -> Maker:
  """The rows of a store, as `TokenStore.ordered` was told.

  Args:
    store: open.
    length: of a row.
  """
  token_store.check_pairs(store.rows, store.manifest.pairs, store.folder)
  return spec.build('data.rows', store.rows, ROWS)(store, length)


def of_sentences(rows: str) -> bool:
  """Whether `data.rows` are made of the sentences of a store."""
  return spec.parse('data.rows', rows)[0].name in _OF_SENTENCES


def check(rows: str, sentences: str):
  """Checks that a store of `data.sentences` has what rows are made of."""
  if of_sentences(rows) and splitter(sentences) is None:
    raise UsageError(
      f'data.rows={rows!r}: are made of sentences, and data.sentences='
      f"{sentences!r} finds none; set data.sentences='terminal'"
    )


def as_read(rows: str, special: Special) -> Special:
  """The special tokens of texts that are read as the rows of a run."""
  (call,) = spec.bind_all('data.rows', rows, ROWS)
  return parallel_rows.started(special, call.kwargs.get('start', 'text'))


def pair_of(rows: str) -> str:
  """How `data.rows` makes pairs: see `pairs`; '' for no pairs."""
  (call,) = spec.bind_all('data.rows', rows, ROWS)
  return call.kwargs.get('pair', '')


def stream() -> Callable[[TokenStore, int], Maker]:
  """Cut out of all documents joined end to end (GPT)."""
  return Stream


def documents() -> Callable[[TokenStore, int], Maker]:
  """Whole documents, which do not see each other."""
  return _once(Documents)


def full_sentences() -> Callable[[TokenStore, int], Maker]:
  """Whole sentences, also of several documents (RoBERTa)."""
  return _once(functools.partial(SentenceRows, crossing=True))


def doc_sentences() -> Callable[[TokenStore, int], Maker]:
  """Whole sentences of one document."""
  return _once(functools.partial(SentenceRows, crossing=False))


def pairs(
  pair: Literal['next', 'order', 'unified'] = 'next', short: Probability = 0.1
) -> Callable[[TokenStore, int], Maker]:
  """Two texts: see `pair_rows`.

  Args:
    pair: 'next' (BERT), 'order' (ALBERT) or 'unified' (UniLM).
    short: share of rows that aim at fewer tokens than fit.
  """
  return _once(functools.partial(PairRows, pair=pair, short=short))


def halves() -> Callable[[TokenStore, int], Maker]:
  """Text, and two texts that see it (XLNet): see `half_rows`."""
  return _once(HalfRows)


def parallel(
  start: Literal['text', 'cls'] = 'text',
) -> Callable[[TokenStore, int], Maker]:
  """Pairs of a source and a target text: see `parallel_rows`.

  Args:
    start: of a source: 'text', what its tokenizer puts before texts, or 'cls',
      its [CLS] (UniLM).
  """
  return _once(functools.partial(ParallelRows, before=start))


def _once(
  make: Callable[[TokenStore, int], Maker],
) -> Callable[[TokenStore, int], Maker]:
  """Finds the rows of a store when they are first asked for, and tells."""

  def made(store: TokenStore, length: int) -> Maker:
    def found():
      return _told(make(store, length), store, length)

    return store.once(f'{store.rows}/{length}', found)

  return made


def _told(found: Maker, store: TokenStore, length: int) -> Maker:
  assert found.tokens is not None
  tokens, rows = sum(found.tokens.values()), found.num_rows
  if not rows:
    raise UsageError(
      f'{store.folder}: has {len(store)} tokens, too few for a row of {length} '
      f'of data.rows={store.rows!r}; lower model.context_length, or add text'
    )
  log.info(
    '%s: %d rows (data.rows=%r), of which %.1f%% is padding',
    *(store.folder, rows, store.rows, 100 * (1 - tokens / (rows * length))),
  )
  held = Held(found.sizes, found.tokens, store.num_examples())
  for phase in store.mixture:
    if all(found.sizes.get(name) for name in phase.weights):  # else see `Order`
      log.info(
        '%s: %s',
        store.folder,
        mixture.told(phase, held),
      )
  return found


ROWS = {
  'stream': stream,
  'documents': documents,
  'full_sentences': full_sentences,
  'doc_sentences': doc_sentences,
  'pairs': pairs,
  'halves': halves,
  'parallel': parallel,
}
_OF_SENTENCES = ('full_sentences', 'doc_sentences', 'pairs', 'halves')
