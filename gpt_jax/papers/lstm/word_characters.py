# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The input of a model that reads words by their characters (ELMo).

The ids of characters are those of ELMo's released code.

A character is a byte of UTF-8, so that every word has characters. A word of
the bytes b has the ids BEGIN, b + 1, END, and PADDING up to `length`; of a
longer one the first `length` - 2 bytes are read. Id 0 is that of no word.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import models

from gpt_jax.core import spec
from gpt_jax.core.entries import Option
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.embed import SCALES, Input
from gpt_jax.core.nn.layers import Initializers
from gpt_jax.core.ranges import Count, Whole
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.hf import HfTokenizer
from gpt_jax.core.tokenizers.simple import END_OF_WORDS, WordList
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.papers.lstm.characters import CharacterCnn, Characters

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
  if isinstance(tokenizer, HfTokenizer) and isinstance(tokenizer.library.model, models.WordLevel):
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
def table(tokenizer: Tokenizer, num_characters: int = NUM_IDS, length: int = 50) -> np.ndarray:
  """The characters of each token of a tokenizer of words, int16 [V, length].

  Args:
    num_characters: rows of the model's table of characters.
  """
  check(num_characters, length)
  return of_words(words_of(tokenizer), length)


# Tokenizers whose tokens are words, or may be: that is seen once it is read.
_OF_WORDS = ('words', 'words_file', 'saved', 'hf_tokenizer', 'none')


class Reader(NamedTuple):
  """The host's side of a model that reads characters: see `embed.Input`."""

  sizes: Characters

  def read(self, tokenizer: Tokenizer | None, tokens: np.ndarray) -> np.ndarray:
    """The characters of tokens, [...] to int16 [..., length].

    Without a tokenizer, zeros.
    """
    if tokenizer is None:
      return np.zeros((*tokens.shape, self.sizes.length), np.int16)
    return self.table(tokenizer)[tokens]

  def table(self, tokenizer: Tokenizer) -> np.ndarray:
    """The characters of each token, int16 [V, length]."""
    return table(tokenizer, self.sizes.num_characters, self.sizes.length)

  def opened(self, tokenizer: Tokenizer, texts: Iterable[str]) -> WordList:
    """See `opened`."""
    return opened(tokenizer, texts)

  def uses(self, shape: tuple[int, ...]) -> int:
    """How often a token uses a kernel of this shape."""
    return self.sizes.uses(shape)

  def check(self, config: Any) -> None:
    """Checks the fields that words without a table do not support."""
    model, tokenizer = config.model, config.tokenizer.name
    choices = ModelChoices.of(model)
    name = spec.parse('tokenizer.name', tokenizer)[0].name
    if name != 'none':  # an import without a vocabulary
      check(self.sizes.num_characters, self.sizes.length)
    if name not in _OF_WORDS:
      raise UsageError(
        f"tokenizer.name={tokenizer!r}: model.input='characters(...)' reads "
        "words, and its tokens are not words; take 'words(...)'"
      )
    for field, wrong, remedy in (
      ('output', choices.output.tied, "'untied(bias=True)'"),
      ('dropout', choices.dropout.words > 0, 'rates without words'),
    ):
      if wrong:
        raise UsageError(
          f'model.{field}={model[field]!r}: needs a table of words, and '
          f"model.input='characters(...)' has none; give {remedy}"
        )


# The encoder reads its sources from a table of words.
OPTION = Option(needs={'model.num_encoder_layers': 0})

# ELMo's convolutions: width, number of filters.
_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


def characters(
  filters: tuple = _FILTERS,
  d_embed: Count = 16,
  num_highways: Whole = 2,
  num_characters: Count = 262,
  length: Count = 50,
) -> Input:
  """Convolutions over the characters of each word (ELMo).

  The sizes are those of ELMo's released code. Words are those of
  tokenizer.name='words(...)', characters the bytes of UTF-8.

  Args:
    filters: the width of each convolution, and its number of filters:
      ((1, 32), (2, 64)).
    d_embed: width of a character's vector.
    num_highways: highway layers after the convolutions, before a projection to
      the model's width.
    num_characters: rows of the table of characters; 262 has all of them.
    length: characters of a word, with its begin and end; longer words are cut.
  """
  pairs = [x for x in filters if isinstance(x, tuple) and len(x) == 2]
  numbers = [n for pair in pairs for n in pair]
  if (
    not filters
    or len(pairs) < len(filters)
    or any(type(n) is not int or n < 1 for n in numbers)
    or max(width for width, _ in pairs) > length
  ):
    raise UsageError(
      f'model.input: characters(filters={filters!r}): must be pairs of a '
      f'width, at most length={length}, and a number of filters, such as '
      '((1, 32), (2, 64))'
    )
  sizes = Characters(tuple(filters), d_embed, num_highways, num_characters, length)
  return Input(
    SCALES['none'],
    embedding=functools.partial(_network, sizes),
    widths=(sizes.num_filters,),
    reader=Reader(sizes),
  )


def _network(
  sizes: Characters, num_rows: int, d_model: int, inits: Initializers, dtype: Any
) -> CharacterCnn:
  del num_rows  # a word has no row of its own
  return CharacterCnn(sizes, d_model, inits, dtype)
