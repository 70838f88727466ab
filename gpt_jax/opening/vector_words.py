# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The words of a file of word vectors, as a tokenizer."""

import itertools
from collections.abc import Iterable

from gpt_jax.core.files.document import Document
from gpt_jax.core.ranges import Count, Whole
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.simple import UNKNOWN, WORD, WordList
from gpt_jax.core.tokenizers.tokenizer import Maker
from gpt_jax.opening import vectors


def word_list_file(path: str, size: Count, vocab_size: Whole = 0) -> Maker:
  """The words of a file of word vectors (GloVe), in its order.

  A text is split at white space, so words that hold any are left out.

  Args:
    path: in the text format; see optim.vectors.
    size: numbers of a vector.
    vocab_size: the first words of the file, with `<unk>` and the end of
      document; 0: all.
  """

  def read(documents: Iterable[Document]) -> WordList:
    del documents
    if 0 < vocab_size < 3:
      raise UsageError(
        f'tokenizer.name: words_file(vocab_size={vocab_size}) has no word; '
        'give at least 3, or 0 for all'
      )
    listed = (
      word for word in vectors.words(path, size) if word != UNKNOWN and WORD.fullmatch(word)
    )
    most = vocab_size - 2 if vocab_size else None
    kept = [*itertools.islice(listed, most)]
    return WordList(kept)

  return Maker(read)
