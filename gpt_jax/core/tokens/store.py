# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A token store: a corpus as one flat array of token ids.

  D/manifest.json     what is there; written last, so a store is whole or none
  D/tokens            zarr3, uint16 or uint32 [num_tokens]
  D/document_ends     zarr3, int64 [num_documents], after each eos
  D/sentence_ends     zarr3, int64 [num_sentences], after each sentence, also
                      after each eos; not where data.sentences='none'
  D/tokenizer/        see `tokenizer.load`
  D/validation/       the held-out split, a token store without tokenizer
  D/inputs.json       the files that the store was made from, see `inputs`

A wrong token must never be read. Each chunk of 8k elements carries a crc32c
that is checked at every read, and a missing chunk is an error. A store that is
small enough for memory is checked against the manifest as a whole.
"""

import functools
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from etils import epy

from gpt_jax.core import ranges, spec
from gpt_jax.core.files import arrays as arrays_lib
from gpt_jax.core.files import files
from gpt_jax.core.spec import Table, UsageError
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.tokenizers.special import Special
from gpt_jax.core.tokens import manifest, mixture
from gpt_jax.core.tokens.manifest import Manifest
from gpt_jax.core.tokens.mixture import Phase

with epy.lazy_imports():
  import tensorstore as ts

_SHARD_BYTES = 1 << 25  # one file: 16M tokens of two bytes
_CHUNK = 1 << 13  # elements read at once: 4 rows of 2048 tokens


def shard_size(dtype: str) -> int:
  """Elements of an array in one file."""
  return _SHARD_BYTES // np.dtype(dtype).itemsize


def write_shard(
  folder: str, name: str, dtype: str, length: int, i: int, values: np.ndarray, compression: str
):
  """Writes file `i` of an array of `length` elements, as `ArrayWriter` would.

  Several processes may do so at once, each for other files.
  """
  size = shard_size(dtype)
  array = files.open_array(
    files.join(folder, name),
    metadata=_metadata(dtype, size, compression) | {'shape': [length]},
    store_data_equal_to_fill_value=True,
    keep=False,
    open=True,
    create=True,
  )
  array[i * size : i * size + len(values)].write(values).result()


class Written(NamedTuple):
  """What an `ArrayWriter` wrote."""

  length: int
  crc32: list[int]


class ArrayWriter:
  """Writes a flat array as a stream; holds at most a shard and one addition."""

  def __init__(
    self,
    folder: str,
    name: str,
    dtype: str,
    compression: str = 'none',
    *,
    state: Mapping[str, np.ndarray] | None = None,
    key: str = '',
  ):
    """Creates the array, or resumes from `state`.

    Args:
      state: with entries of `ArrayWriter.state(key)`; None: begins. Raises
        `ValueError` if the array is gone, or `KeyError`.
    """
    self._dtype = np.dtype(dtype)
    self._shard = shard_size(dtype)
    # So that the checksums of the shards are those of the whole.
    assert self._shard % manifest.BLOCK == 0
    self._waiting: list[np.ndarray] = []
    self._num_waiting = 0
    self._length = 0
    self._crc32: list[int] = []
    path = files.join(folder, name)
    if state is None:
      self._array = files.open_array(
        path,
        metadata=_metadata(dtype, self._shard, compression),
        store_data_equal_to_fill_value=True,
        keep=False,
        create=True,
      )
      return
    self._length, self._crc32 = json.loads(bytes(state[f'{key}/written']))
    self._waiting, self._num_waiting = [state[key]], len(state[key])
    array = files.open_array(path, store_data_equal_to_fill_value=True, keep=False, open=True)
    if array.shape[0] < self._length:
      raise ValueError(f'{path} is too short')
    # Later values are written again.
    self._array = array.resize(exclusive_max=[self._length]).result()

  def state(self, key: str) -> dict[str, np.ndarray]:
    """The state to resume from: values to write, and what is on disk."""
    values = np.concatenate([np.empty(0, self._dtype), *self._waiting])
    written = as_bytes([self._length, self._crc32])
    return {key: values, f'{key}/written': written}

  @property
  def length(self) -> int:
    """The elements on disk."""
    return self._length

  def add(self, values: np.ndarray):
    """Appends `values`, which fit into the array's dtype."""
    self._waiting.append(values.astype(self._dtype))
    self._num_waiting += len(values)
    if self._num_waiting >= self._shard:
      self._flush(self._num_waiting // self._shard * self._shard)

  def close(self) -> Written:
    """Writes the rest."""
    self._flush(self._num_waiting)
    return Written(self._length, self._crc32)

  def _flush(self, count: int):
    """Writes the first `count` waiting values; whole shards until the last."""
    if not count:
      return
    waiting = np.concatenate(self._waiting)
    values, rest = waiting[:count], waiting[count:]
    self._waiting, self._num_waiting = [rest.copy()], len(rest)
    self._crc32 += manifest.checksums(values)
    stop = self._length + count
    self._array = self._array.resize(exclusive_max=[stop], expand_only=True).result()
    self._array[self._length : stop].write(values).result()
    self._length = stop


def token_dtype(vocab_size: int) -> str:
  """The smallest type of the format that holds all ids."""
  return 'uint16' if vocab_size <= 1 << 16 else 'uint32'


def array_dtype(name: str, dtype: str) -> str:
  """The type of an array of a store whose tokens are of type `dtype`."""
  return dtype if name == TOKENS else 'int64'


def codec(compression: str) -> list[dict[str, Any]]:
  """The codecs of zarr3 that `data.compression` names."""
  return spec.build('data.compression', compression, COMPRESSIONS)


def none() -> list[dict[str, Any]]:
  """No compression: two or four bytes a token."""
  return []


def zstd(level: Annotated[int, ranges.whole(1, 19)] = 3) -> list[dict[str, Any]]:
  """Zstandard: smaller on the disk, and faster over a slow network."""
  return [{'name': 'zstd', 'configuration': {'level': level}}]


def _metadata(dtype: str, shard: int, compression: str) -> dict:
  checked = [{'name': 'bytes', 'configuration': {'endian': 'little'}}, {'name': 'crc32c'}]
  sharding = {
    'chunk_shape': [_CHUNK],
    'codecs': [checked[0], *codec(compression), checked[1]],
    'index_codecs': checked,
  }
  return {
    'data_type': dtype,
    'shape': [0],
    'fill_value': 0,
    'chunk_grid': {'name': 'regular', 'configuration': {'chunk_shape': [shard]}},
    'codecs': [{'name': 'sharding_indexed', 'configuration': sharding}],
  }


COMPRESSIONS = {'none': none, 'zstd': zstd}


# After which tokens of a document, or of a piece of a long one, sentences end,
# without the document's end: int64 [S], ascending, above 0. Takes the text, the
# range of each token in it, and whether the document ends with it.
Splitter = Callable[[str, np.ndarray, bool], np.ndarray]


def splitter(sentences: str) -> Splitter | None:
  """The splitter that `data.sentences` names; None for 'none'."""
  return spec.build('data.sentences', sentences, SPLITTERS)


def no_sentences() -> None:
  """The store has no sentences."""


SPLITTERS = Table(
  {
    'none': no_sentences,
    'terminal': 'gpt_jax.core.tokens.sentence_ends:terminal',
    'lines': 'gpt_jax.core.tokens.sentence_ends:lines',
  }
)


# The state of an unfinished preparation, in the folder of the store.
STATE = 'unfinished.npz'


class StartOver(Exception):
  """An unfinished preparation cannot be resumed; the text says why."""


def read_state(folder: str, wanted: dict[str, Any]) -> dict[str, np.ndarray]:
  """Reads the state of an unfinished preparation with the same inputs.

  Args:
    wanted: entries that must be the same.

  Raises:
    StartOver: there is none.
  """
  data = files.read(folder, STATE)
  if data is None:
    raise StartOver
  try:
    state = arrays_lib.read(io.BytesIO(data))
    before = json.loads(bytes(state['json']))
  except (ValueError, KeyError, OSError) as e:
    raise StartOver(f'{STATE} is damaged') from e
  for name, value in wanted.items():
    if before[name] != value:
      raise StartOver(f'other {name}')
  return state


def write_state(folder: str, state: dict[str, np.ndarray]):
  """Writes the state for `read_state`; its entry 'json' has those wanted."""
  data = io.BytesIO()
  np.savez(data, allow_pickle=False, **state)
  files.write(folder, STATE, data.getvalue())


def as_bytes(entries: Any) -> np.ndarray:
  """JSON, as an entry of an npz file."""
  return np.frombuffer(json.dumps(entries).encode(), np.uint8)


TOKENS, DOCUMENT_ENDS = 'tokens', 'document_ends'
SENTENCE_ENDS = 'sentence_ends'
TOKENIZER, VALIDATION = 'tokenizer', 'validation'
PARTS = (TOKENS, DOCUMENT_ENDS, SENTENCE_ENDS, TOKENIZER, VALIDATION)

# Stores up to this size are read into memory when they are opened.
IN_MEMORY_BYTES = 1 << 30

_T = TypeVar('_T')


class TokenStore:
  """One split of a prepared corpus, open for reading."""

  def __init__(self, folder: str, contents: Manifest, arrays: dict[str, Any]):
    """Use `open`; `arrays` are in memory or on disk."""
    self.folder = folder
    self.manifest = contents
    self._tokens = arrays[TOKENS]
    self._ends = {name: arrays[name] for name in arrays if name != TOKENS}
    self.mixture: list[Phase] = []
    self.rows = 'stream'
    self._corpus = self
    self._made: dict[str, Any] = {}

  def __len__(self) -> int:
    return self.manifest.num_tokens

  @classmethod
  def open(cls, folder: str, *, in_memory_bytes: int = IN_MEMORY_BYTES) -> 'TokenStore':
    """Opens the token store in `folder`.

    Args:
      folder: a path or a URL such as `gs://bucket/path`.
      in_memory_bytes: a store up to this size is loaded and checked as a
        whole; of a larger one each chunk is checked when it is read.
    """
    contents = manifest.read(folder)
    size = contents.num_tokens * np.dtype(contents.dtype).itemsize
    lengths = {
      TOKENS: contents.num_tokens,
      DOCUMENT_ENDS: contents.num_documents,
      SENTENCE_ENDS: contents.num_sentences,
    }
    size += 8 * (contents.num_documents + contents.num_sentences)
    arrays = {}
    for name in _arrays(contents):
      dtype = array_dtype(name, contents.dtype)
      array = _open(folder, name, dtype, lengths[name])
      if size <= in_memory_bytes:
        array = _load(folder, name, array, getattr(contents, f'{name}_crc32'))
      arrays[name] = array
    return cls(folder, contents, arrays)

  @property
  def in_memory(self) -> bool:
    """Whether all tokens were loaded when it was opened."""
    return isinstance(self._tokens, np.ndarray)

  def ordered(self, source: str, rows: str = 'stream') -> 'TokenStore':
    """Sets what decides on the rows, and returns the store.

    Args:
      source: `data.source`, for the weights of a mixture.
      rows: `data.rows`, see `row_makers`.
    """
    if mixture.is_mixture(source):
      self.mixture = mixture.phases(source)
    self.rows = rows
    return self

  def once(self, name: str, make: Callable[[], _T]) -> _T:
    """The result of `make`, which is called once for each `name`."""
    if name not in self._made:
      self._made[name] = make()
    return self._made[name]

  def parts(self) -> dict[str, tuple[int, int]]:
    """The tokens [start, stop) of each source of a mixture; else of ''."""
    stops = self.manifest.parts if self.mixture else {'': len(self)}
    starts = [0, *stops.values()]
    return {name: (start, stop) for start, (name, stop) in zip(starts, stops.items(), strict=False)}

  def num_examples(self) -> dict[str, int]:
    """Documents of each source of a mixture whose weights count them; else {}.

    Where rows are pairs of texts, pairs are counted: two documents each.
    """
    if not any(phase.shares == 'examples' for phase in self.mixture):
      return {}
    size = 2 if self.manifest.pairs else 1
    out = {}
    for name, part in self.parts().items():
      first, last = np.searchsorted(self.document_ends, part, 'right')
      out[name] = int(last - first) // size
    return out

  def tokens(self, start: int, stop: int) -> np.ndarray:
    """Returns tokens [start, stop) in the store's dtype."""
    assert 0 <= start <= stop <= len(self), (start, stop, len(self))
    if isinstance(self._tokens, np.ndarray):
      return self._tokens[start:stop]
    return self._result(TOKENS, self._tokens[start:stop].read())

  def read_many(self, starts: Iterable[int], length: int) -> np.ndarray:
    """Returns rows of `length` tokens, [num_starts, length], read at once."""
    starts = np.asarray(starts, np.int64)
    assert np.all((starts >= 0) & (starts + length <= len(self))), starts
    if not len(starts):
      return np.empty((0, length), self.manifest.dtype)
    if isinstance(self._tokens, np.ndarray):
      windows = np.lib.stride_tricks.sliding_window_view(self._tokens, length)
      return windows[starts]
    return np.stack(self.read_ranges(range(s, s + length) for s in starts))

  def read_ranges(self, ranges: Iterable[range]) -> list[np.ndarray]:
    """Returns the tokens of each range, read at once."""
    if isinstance(self._tokens, np.ndarray):
      return [self._tokens[r.start : r.stop] for r in ranges]
    # In a batch, rows of one file share its index and their requests.
    with ts.Batch() as batch:
      reads = [self._tokens[r.start : r.stop].read(batch=batch) for r in ranges]
    return [self._result(TOKENS, read) for read in reads]

  def text(self, made: tokenizer.Tokenizer, start: int, stop: int) -> str:
    """The text of tokens [start, stop), all of one document."""
    number = int(np.searchsorted(self.document_ends, start, side='right'))
    if self.manifest.pairs and number % 2 == 0:
      made = made.sources
    return made.decode(self.tokens(start, stop).tolist())

  @property
  def document_ends(self) -> np.ndarray:
    """The exclusive end of each document, its eos included; int64 [N]."""
    return self._read_ends(DOCUMENT_ENDS)

  @property
  def sentence_ends(self) -> np.ndarray:
    """The exclusive end of each sentence, int64 [S].

    The last of a document ends where the document does, after its eos.
    """
    if SENTENCE_ENDS not in self._ends:
      raise UsageError(
        f'{self.folder}: this token store was prepared without sentences '
        f"(data.sentences='none'); set data.sentences='terminal' and name "
        'another data.store, or remove the folder'
      )
    return self._read_ends(SENTENCE_ENDS)

  @functools.cached_property
  def special(self) -> Special:
    """The special tokens of the tokenizer."""
    return self._corpus.tokenizer().special

  @functools.cached_property
  def source_special(self) -> Special:
    """The special tokens of source texts, where rows are of pairs."""
    return self._corpus.tokenizer().sources.special

  def tokenizer(self) -> tokenizer.Tokenizer:
    """Loads the tokenizer that wrote the train split."""
    folder = files.join(self.folder, TOKENIZER)
    loaded = tokenizer.load(folder)
    if loaded.fingerprint != self.manifest.tokenizer_fingerprint:
      raise UsageError(
        f'{folder}: is not the tokenizer that wrote this token store; prepare the data again'
      )
    return loaded

  def validation(self) -> 'TokenStore | None':
    """Opens the held-out split; None if nothing was held out."""
    (holdout,) = spec.parse('data.holdout', self.manifest.holdout)
    if holdout.name == 'none':
      return None
    return self.held_out(files.join(self.folder, VALIDATION))

  def held_out(self, folder: str) -> 'TokenStore':
    """Opens a store that was prepared beside this one, with its tokenizer.

    Its rows are made like those of this one.
    """
    opened = TokenStore.open(folder)
    opened.rows, opened._corpus = self.rows, self
    return opened

  def verify(self):
    """Reads every token and compares it with the manifest."""
    for start in range(0, len(self), manifest.BLOCK):
      stop = min(start + manifest.BLOCK, len(self))
      crc32 = manifest.checksums(np.ascontiguousarray(self.tokens(start, stop)))
      if crc32 != [self.manifest.tokens_crc32[start // manifest.BLOCK]]:
        raise _damaged(self.folder, TOKENS, 'differs from the manifest')
    for name in self._ends:
      crc32 = manifest.checksums(self._read_ends(name))
      if crc32 != getattr(self.manifest, f'{name}_crc32'):
        raise _damaged(self.folder, name, 'differs from the manifest')

  def _read_ends(self, name: str) -> np.ndarray:
    ends = self._ends[name]
    if isinstance(ends, np.ndarray):
      return ends
    return self._result(name, ends.read())

  def _result(self, name: str, read: 'ts.Future') -> np.ndarray:
    try:
      return read.result()
    except ValueError as e:
      files.check_reached(self.folder, e)
      raise _damaged(self.folder, name, str(e)) from e


def _arrays(contents: Manifest) -> list[str]:
  """The names of the arrays that a store has."""
  has_sentences = contents.num_sentences > 0
  return [TOKENS, DOCUMENT_ENDS] + [SENTENCE_ENDS] * has_sentences


def _open(folder: str, name: str, dtype: str, length: int) -> 'ts.TensorStore':
  """Opens an array and checks that all its files are there."""
  path = files.join(folder, name)
  try:
    array = files.open_array(path, open=True, fill_missing_data_reads=False)
  except ValueError as e:
    files.check_reached(folder, e)
    raise _damaged(folder, name, f'cannot be opened ({e})') from e
  if array.shape != (length,) or array.dtype.name != dtype:
    raise _damaged(folder, name, 'has another size or type than the manifest')
  (shard,) = array.chunk_layout.write_chunk.shape or (None,)
  assert shard  # the size of a file: the arrays that we write are sharded
  found = set(files.names(path))
  for i in range(-(-length // shard)):
    if f'c/{i}' not in found:
      raise _damaged(folder, f'{name}/c/{i}', 'is missing')
  return array


def _load(folder: str, name: str, array: 'ts.TensorStore', crc32: list[int]) -> np.ndarray:
  """Reads an array into memory and compares it with the manifest."""
  try:
    values = array.read().result()
  except ValueError as e:
    files.check_reached(folder, e)
    raise _damaged(folder, name, str(e)) from e
  if manifest.checksums(values) != crc32:
    raise _damaged(folder, name, 'differs from the manifest')
  values.flags.writeable = False
  return values


def _damaged(folder: str, name: str, what: str) -> UsageError:
  return UsageError(
    f'{files.join(folder, name)}: {what.splitlines()[0]}; the token store '
    f'is damaged, remove {folder} and prepare the data again'
  )


def check_pairs(rows: str, pairs: bool, where: str):
  """Refuses `data.rows` of pairs without pairs of texts, and the reverse."""
  needed = spec.parse('data.rows', rows)[0].name == 'parallel'
  if needed and not pairs:
    raise UsageError(
      f'data.rows={rows!r}: are made of pairs of texts, and {where} holds '
      "none; take data.source=\"parallel_text('train.en', 'train.de')\", "
      'parallel_jsonl or parallel_tfds'
    )
  if pairs and not needed:
    raise UsageError(
      f'data.rows={rows!r}: would join the sides of pairs of texts, which '
      f"{where} holds; set data.rows='parallel'"
    )
