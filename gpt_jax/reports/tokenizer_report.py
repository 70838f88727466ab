# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures a tokenizer on a text: length, vocabulary use, losses, speed."""

import collections
import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.core.files.document import Document
from gpt_jax.core.tokenizers.changes import difference
from gpt_jax.core.tokenizers.tokenizer import Tokenizer

_EXAMPLES = 10
_FEW = 3  # characters


class Report(NamedTuple):
  """The measurements of one tokenizer on a text."""

  vocab_size: int  # ids are below it
  num_tokens: int  # without ends of documents
  tokens_per_word: float  # words are separated by white space
  bytes_per_token: float  # of UTF-8
  num_used: int  # pieces that occur in the text
  fraction_used: float  # of the vocabulary
  # The texts of some pieces that do not occur: the first with more than a few
  # characters.
  unused_examples: list[str]
  num_documents_changed: int  # that decode to something else
  num_characters_lost: int  # in the text, but not in the decoded one
  # Document, its text and the decoded one around the first change, if any.
  first_change: tuple[str, str, str] | None
  bytes_per_second: float  # of encoding, in processor time
  counts: np.ndarray  # of each id, [vocab_size]


def measure(made: Tokenizer, documents: Sequence[Document]) -> Report:
  """Encodes and decodes each document."""
  num_bytes = sum(len(d.text.encode()) for d in documents)
  num_words = sum(len(d.text.split()) for d in documents)
  counts = np.zeros(made.vocab_size, np.int64)
  num_changed = num_lost = 0
  seconds, first = 0.0, None
  for document in documents:
    start = time.process_time()
    (ids,) = made.encode_batch([document.text])
    seconds += time.process_time() - start
    counts += np.bincount(ids, minlength=made.vocab_size)
    back = made.decode(ids)
    if back != document.text:
      num_changed += 1
      lost = collections.Counter(document.text) - collections.Counter(back)
      num_lost += lost.total()
      first = first or (document.name, *difference(document.text, back))
  num_tokens = int(counts.sum())
  unused = (made.decode([int(i)]) for i in np.flatnonzero(counts == 0))
  examples = (text for text in unused if len(text) > _FEW)
  return Report(
    vocab_size=made.vocab_size,
    num_tokens=num_tokens,
    tokens_per_word=num_tokens / max(num_words, 1),
    bytes_per_token=num_bytes / max(num_tokens, 1),
    num_used=int((counts > 0).sum()),
    fraction_used=float((counts > 0).mean()),
    unused_examples=[*itertools.islice(examples, _EXAMPLES)],
    num_documents_changed=num_changed,
    num_characters_lost=num_lost,
    first_change=first,
    bytes_per_second=num_bytes / max(seconds, 1e-9),
    counts=counts,
  )
