# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Words as WikiText has them: what stands between white space, and line ends.

Not lossless: spaces become one, and rare words `<unk>`. The perplexity per
token is the papers' per word, of which a line's end is one, and the end of a
document. Ids go by frequency, as an adaptive softmax needs them.
"""

import collections
import json
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gpt_jax.data.sources.sources import Document
from gpt_jax.data.tokenizers import saved, special
from gpt_jax.ranges import Count, Whole
from gpt_jax.spec import UsageError

_WORD = re.compile(r'\n|[^\s]+')
# In a text it is this word, too: WikiText is published with it.
UNKNOWN = '<unk>'
_UNKNOWN_ID = 1
_EDGES = re.compile(r' ?\n ?')


class WordList:
  """A list of words, the end of document and the unknown word before them."""

  kind = 'words'
  eos_id = 0
  special = special.of({}, eos_id, {})
  in_threads = False
  parts_at_spaces = True
  run_ids = frozenset()

  def __init__(self, words: Sequence[str]):
    """`words` have the ids from 2 on."""
    self.words = [*words]
    self._ids = {word: i for i, word in enumerate(words, start=2)}
    self.vocab_size = len(self.words) + 2

  @property
  def fingerprint(self) -> str:
    return saved.fingerprint(self.kind, self._contents())

  def encode(self, text: str) -> np.ndarray:
    found = [self._ids.get(w, _UNKNOWN_ID) for w in _WORD.findall(text)]
    return np.array(found, np.int32)

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [self.encode(text) for text in texts]

  def encode_special(self, text: str) -> np.ndarray:
    return self.encode(text)

  def offsets(self, text: str) -> np.ndarray:
    spans = [match.span() for match in _WORD.finditer(text)]
    return np.array(spans, np.int32).reshape(-1, 2)

  def decode(self, ids: Iterable[int]) -> str:
    words = [
      UNKNOWN if i == _UNKNOWN_ID else self.words[i - 2]
      for i in map(int, ids)
      if i != self.eos_id
    ]
    return _EDGES.sub('\n', ' '.join(words))

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    return np.ones(np.shape(ids), bool)

  def save(self, folder: str) -> None:
    saved.write(folder, self.kind, self._contents())

  def _contents(self) -> dict[str, bytes]:
    return {'words.json': json.dumps(self.words).encode()}


def words(
  vocab_size: Whole = 0, count: Count = 1
) -> Callable[[Iterable[Document]], WordList]:
  """The words of the training split, the most frequent first.

  Args:
    vocab_size: how many at most, with `<unk>` and the end of document; 0: all.
    count: only those that occur so often.

  Raises:
    UsageError: no word is left.
  """

  def read(documents: Iterable[Document]) -> WordList:
    counts = collections.Counter()
    for document in documents:
      counts.update(_WORD.findall(document.text))
    del counts[UNKNOWN]
    # Ties in the order of the words: that of the documents does not matter.
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = [word for word, number in ordered if number >= count]
    kept = kept[: max(vocab_size - 2, 0)] if vocab_size else kept
    if not kept:
      raise UsageError(
        f'tokenizer.name: words(vocab_size={vocab_size}, count={count}): keeps '
        f'none of the {len(counts)} words of this corpus; raise vocab_size '
        'above 2, lower count, or add text'
      )
    return WordList(kept)

  return read
