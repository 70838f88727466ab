# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ids of the characters of words, as ELMo's released code has them.

A character is a byte of UTF-8, so that every word has characters. A word of
the bytes b has the ids BEGIN, b + 1, END, and PADDING up to `length`; of a
longer one the first `length` - 2 bytes are read. Id 0 is that of no word.
"""

import functools
from collections.abc import Iterable, Sequence

import numpy as np
from tokenizers import models

from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.hf import HfTokenizer
from gpt_jax.tokenizers.simple import END_OF_WORDS, WordList
from gpt_jax.tokenizers.tokenizer import Tokenizer

NUM_IDS = 262
_BEGIN_TEXT, _END_TEXT, BEGIN, END, PADDING = range(257, NUM_IDS)
# The ends of a text are words of one character each.
_MARKS = {'<S>': _BEGIN_TEXT, '</S>': _END_TEXT, END_OF_WORDS: _END_TEXT}


def of_words(words: Sequence[str], length: int = 50) -> np.ndarray:
  """The ids of the characters of words, int16 [N, length].

  Args:
    length: at least 3: a byte, and the begin and the end of the word.
  """
  assert length >= 3, length
  ids = np.full((len(words), length), PADDING, np.int16)
  ids[:, 0] = BEGIN
  for row, word in zip(ids, words, strict=True):
    if word in _MARKS:
      found = np.array([_MARKS[word]], np.int16)
    else:
      found = np.frombuffer(word.encode()[: length - 2], np.uint8)
      found = found.astype(np.int16) + 1
    row[1 : len(found) + 1] = found
    row[len(found) + 1] = END
  return ids


def words_of(tokenizer: Tokenizer) -> list[str]:
  """The word of each id, of a tokenizer of words."""
  if isinstance(tokenizer, WordList):
    return tokenizer.listed
  if isinstance(tokenizer, HfTokenizer) and isinstance(
    tokenizer.library.model, models.WordLevel
  ):
    return [tokenizer.token(i) or '' for i in range(tokenizer.vocab_size)]
  raise UsageError(
    'model.input: characters(...): reads words, and the tokens of this '
    "tokenizer are not words; set tokenizer.name='words(...)'"
  )


def check(num_characters: int, length: int) -> None:
  """Checks that a model has room for the characters of any word."""
  if num_characters < NUM_IDS or length < 3:
    raise UsageError(
      f'model.input: characters(num_characters={num_characters}, length='
      f'{length}): the characters of words are the bytes of UTF-8 and a few '
      f'marks; give num_characters={NUM_IDS}, and a length of 3 or more'
    )


def opened(tokenizer: Tokenizer, texts: Iterable[str]) -> WordList:
  """A tokenizer that knows the words of `texts`, too.

  Their ids follow those that it has. A model that reads characters needs no
  rows for them; its softmax has none.
  """
  words, first = words_of(tokenizer), WordList([]).listed
  if words[: len(first)] != first:
    raise UsageError(
      f'model.input: characters(...): the words of the tokenizer begin with '
      f'{words[: len(first)]}, not with {first}; give a model whose '
      "tokenizer.name is 'words(...)', or an export of one"
    )
  return WordList(words[len(first) :]).with_words(texts)


@functools.lru_cache(2)  # it is large, and asked for with each batch
def table(
  tokenizer: Tokenizer, num_characters: int = NUM_IDS, length: int = 50
) -> np.ndarray:
  """The characters of each token of a tokenizer of words, int16 [V, length].

  Args:
    num_characters: rows of the model's table of characters.
    length: of each token.
  """
  check(num_characters, length)
  return of_words(words_of(tokenizer), length)
