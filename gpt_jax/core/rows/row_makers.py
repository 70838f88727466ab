# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How the rows of a run are made from a token store: the choice `data.rows`.

A row maker knows the rows of a store for one length: their number, and the
tokens of the store in each. Rows depend on the run only through random draws,
by their `Keys`.
"""

import logging
from collections.abc import Container
from functools import partial

import numpy as np

from gpt_jax.core import spec
from gpt_jax.core.rows.rows import Holds, RowMaker, Rows
from gpt_jax.core.rows.stream_rows import Documents, Stream
from gpt_jax.core.spec import Table, UsageError
from gpt_jax.core.tokenizers.special import Special
from gpt_jax.core.tokens import mixture
from gpt_jax.core.tokens import store as token_store
from gpt_jax.core.tokens.mixture import SourceSizes
from gpt_jax.core.tokens.store import TokenStore

log = logging.getLogger('gpt_jax')


def kind(rows: str) -> partial[RowMaker]:
  """The row maker class, as `func`, with all arguments but store and length."""
  return spec.build('data.rows', rows, ROWS)


def load(store: TokenStore, length: int) -> RowMaker:
  """The row maker of a store, by its `rows` (see `TokenStore.ordered`).

  It is made, and the number of rows logged, at the first call for a length.
  """
  token_store.check_pairs(store.rows, store.manifest.pairs, store.folder)
  make = kind(store.rows)

  def found() -> RowMaker:
    made = make(store, length)
    if made.tokens is not None:
      _report(made, made.tokens, store, length)
    return made

  return store.once(f'{store.rows}/{length}', found)


def blank(rows: str, length: int) -> Rows:
  """A row of padding only, with the arrays of `data.rows`."""
  zeros, no = np.zeros((1, length), np.int32), np.zeros((1, length), bool)
  shapes = {
    'before': zeros[:, 0],
    'segments': zeros,
    'positions': zeros,
    'token_types': zeros,
    'special': no,
    'pair': zeros[:, 0],
    'reused': no,
  }
  arrays = kind(rows).func.arrays
  row = Rows(zeros, no)
  row = row._replace(**{n: shapes[n] for n in arrays if n != 'source'})
  return row._replace(source=row) if 'source' in arrays else row


def is_packed(rows: str) -> bool:
  """Whether a row can have several texts, which do not see each other."""
  return 'segments' in kind(rows).func.arrays


def of_sentences(rows: str) -> bool:
  """Whether `data.rows` need the sentences of a store."""
  return kind(rows).func.made_of == 'sentences'


def check(rows: str, sentences: str):
  """Checks that `data.sentences` gives sentences to rows that need them."""
  if of_sentences(rows) and token_store.splitter(sentences) is None:
    raise UsageError(
      f'data.rows={rows!r}: are made of sentences, and data.sentences='
      f"{sentences!r} finds none; set data.sentences='terminal'"
    )


def holding(holds: Container[Holds]) -> list[str]:
  """The choices of `data.rows` whose rows hold any of these."""
  return [name for name, make in ROWS.items() if make().func.holds in holds]


def as_read(rows: str, special: Special) -> Special:
  """The special tokens around single texts, as in the rows of a run."""
  make = kind(rows)
  return make.func.as_read(special, **make.keywords)


def pair_of(rows: str) -> str:
  """The argument `pair` of `pairs`; '' if `data.rows` is another choice."""
  return kind(rows).keywords.get('pair', '')


def stream() -> partial[RowMaker]:
  """Cut from all documents joined end to end (GPT)."""
  return partial(Stream)


def documents() -> partial[RowMaker]:
  """Whole documents, which do not attend to each other."""
  return partial(Documents)


def _report(found: RowMaker, tokens: dict[str, int], store: TokenStore, length: int) -> None:
  """Logs the number of rows, and their fraction of padding."""
  counted, rows = sum(tokens.values()), found.num_rows
  if not rows:
    raise UsageError(
      f'{store.folder}: has {len(store)} tokens, too few for a row of {length} '
      f'of data.rows={store.rows!r}; lower model.context_length, or add text'
    )
  log.info(
    '%s: %d rows (data.rows=%r), of which %.1f%% is padding',
    store.folder,
    rows,
    store.rows,
    100 * (1 - counted / (rows * length)),
  )
  sizes = SourceSizes(found.sizes, tokens, store.num_examples())
  for phase in store.mixture:
    # `Order` rejects sources without rows.
    if all(found.sizes.get(name) for name in phase.weights):
      log.info('%s: %s', store.folder, mixture.described(phase, sizes))


ROWS = Table({'stream': stream, 'documents': documents}, 'data.rows')
