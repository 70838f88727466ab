# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Special tokens: those before a text, those that end an answer, and others.

A model that we train reads documents that end with `eos_id`, so it is evaluated
after that token. A model of Hugging Face gets what its own tokenizer puts
before a text: `<s>` for LLaMA, nothing for GPT-2. An import writes this into
the file `special.json` of its saved tokenizer. Encoders' tokens [CLS], [SEP]
and [MASK] are known by their roles.
"""

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.core.spec import UsageError

# Splits the name of a special token in a user's text, so that it stays text.
# Unicode reserves this code point for such uses: no text has it.
BREAK = '\ufdd0'

# The end of a document in tokenizers whose files do not name it.
END_OF_DOCUMENT = '<|endoftext|>'

# What an import knows about special tokens.
SPECIAL = 'special.json'
CONFIG, MAP = 'tokenizer_config.json', 'special_tokens_map.json'
ADDED, GENERATION = 'added_tokens.json', 'generation_config.json'
# Files of Hugging Face that do not change the ids of a text.
BESIDE = (CONFIG, MAP, ADDED, GENERATION, 'chat_template.jinja')


class Special(NamedTuple):
  """The special tokens of a tokenizer, as the model was trained."""

  document_start: tuple[int, ...]  # before a text that is scored
  # Before a text that is continued or fine-tuned on.
  prompt_start: tuple[int, ...]
  # Before a text whose first token is predicted too, if nothing else is: BOS,
  # or else the end of a document.
  first_id: int
  stop_ids: frozenset[int]  # each ends generation
  pad_id: int  # fills rows; without a token for that, the end of a document
  names: Mapping[str, int]  # ids of the special tokens that a template may name
  eos_id: int  # ends each document, and each side of a pair of texts
  # Before an encoder's row: [CLS], or RoBERTa's <s>; None: there is none.
  cls_id: int | None = None
  # After each text of such a row: [SEP], or RoBERTa's </s>.
  sep_id: int | None = None
  mask_id: int | None = None  # replaces a token that an encoder is to predict
  # Never generated: ids without a token, and those that an import's
  # generation_config.json forbids.
  never_ids: frozenset[int] = frozenset()
  # Which tokens may come next, by an import's files: what decoding makes its
  # `Constraints` from.
  constraints: Mapping[str, Any] | None = None
  # The ids in an import's config.json, as {'bos_token_id': 1}: a token may have
  # several or none. None: not an import, or one of an older version.
  model_ids: Mapping[str, Any] | None = None

  def before(self, *, first_scored: bool) -> tuple[int, ...]:
    """The ids before a text; at least one if its first token is scored."""
    return self.document_start or (self.first_id,) * first_scored

  def prompt(self, ids: Any) -> list[int]:
    """The ids of a prompt with those before it; never empty."""
    return [*self.prompt_start, *map(int, ids)] or [self.first_id]


def of(contents: Mapping[str, bytes], eos_id: int, names: Mapping[str, int]) -> Special:
  """The special tokens of a saved tokenizer.

  Args:
    contents: its files; without `special.json` roles go by the usual names.
    names: the special tokens of its vocabulary.
  """
  if SPECIAL not in contents:
    cls, sep, mask = (usual(role, names) for role in ENCODERS)
    pad = usual('pad', names)
    pad = eos_id if pad is None else pad
    stops = frozenset([eos_id])
    return Special(
      document_start=(eos_id,),
      prompt_start=(),
      first_id=eos_id,
      stop_ids=stops,
      pad_id=pad,
      names=names,
      eos_id=eos_id,
      cls_id=cls,
      sep_id=sep,
      mask_id=mask,
    )
  entries = json.loads(contents[SPECIAL])
  start, names = tuple(entries['start']), entries['names']
  # Imports of older versions lack these entries.
  cls, sep, mask = (entries.get(r, usual(r, names)) for r in ENCODERS)
  constraints = entries.get('constraints')
  return Special(
    document_start=start,
    prompt_start=start,
    first_id=entries['first'],
    stop_ids=frozenset(entries['stop']),
    pad_id=entries['pad'],
    names=names,
    eos_id=eos_id,
    cls_id=cls,
    sep_id=sep,
    mask_id=mask,
    never_ids=frozenset((constraints or {}).get('never', ())),
    constraints=constraints,
    model_ids=entries.get('model_ids'),
  )


def num_rows(contents: Mapping[str, bytes], size: int) -> int:
  """The `vocab_size`: how many of `size` ids have an embedding in the model.

  A vocabulary may have tokens without one, such as <pad> for LLaMA 2.
  """
  found = json.loads(contents.get(SPECIAL, b'{}')).get('rows')
  return size if found is None else min(size, found)


def usual(role: str, names: Mapping[str, int]) -> int | None:
  """The token of a role, by its names in published vocabularies.

  Without a <mask>, as in LLaMA's, <s> and </s> have other uses.
  """
  for name in _USUAL[role]:
    if name in names and (name not in _SHARED or '<mask>' in names):
      return names[name]
  return None


def encode(text: str, names: Mapping[str, int], plain: Callable[[str], np.ndarray]) -> np.ndarray:
  """Encodes a text in which names of special tokens are those tokens.

  Args:
    text: a name that is split by `BREAK` stays text.
  """
  ids = [np.empty(0, np.int32)]
  for start, stop, token in _parts(text, names):
    if token is None:
      ids.append(plain(text[start:stop].replace(BREAK, '')))
    else:
      ids.append(np.array([token], np.int32))
  return np.concatenate(ids)


def offsets(text: str, names: Mapping[str, int], plain: Callable[[str], np.ndarray]) -> np.ndarray:
  """Where the tokens of `encode` come from: int32 [num_tokens, 2].

  Args:
    text: may contain `BREAK`, which no token covers alone.
    plain: `Tokenizer.offsets`.
  """
  found = [np.empty((0, 2), np.int32)]
  for start, stop, token in _parts(text, names):
    if token is not None:
      found.append(np.array([[start, stop]], np.int32))
      continue
    kept = [i for i in range(start, stop) if text[i] != BREAK]
    of_part = plain(''.join(text[i] for i in kept))
    first = np.array([*kept, stop], np.int32)
    after = np.array([start, *(i + 1 for i in kept)], np.int32)
    starts, stops = first[of_part[:, 0]], after[of_part[:, 1]]
    # Some of the tokens that make one character have an empty range.
    stops = np.where(of_part[:, 0] == of_part[:, 1], starts, stops)
    found.append(np.stack([starts, stops], axis=1))
  return np.concatenate(found)


def _parts(text: str, names: Mapping[str, int]) -> Iterator[tuple[int, int, int | None]]:
  """Splits a text at names: start, stop, and the token's id, None: plain."""
  longest = sorted(names, key=len, reverse=True)
  pattern = '|'.join(map(re.escape, longest)) or r'(?!)'
  start = 0
  for match in re.finditer(pattern, text):
    yield start, match.start(), None
    yield *match.span(), names[match[0]]
    start = match.end()
  yield start, len(text), None


def guarded(text: str, names: Mapping[str, int]) -> str:
  """The text with the names of special tokens split by `BREAK`."""
  text = text.replace(BREAK, '')
  for name in sorted(names, key=len, reverse=True):
    text = text.replace(name, name[:1] + BREAK + name[1:])
  return text


def with_masks(made: Any, text: str) -> np.ndarray:
  """Encodes a text in which the name of the mask is that token.

  Other names of special tokens stay text. Space before a mask belongs to it, as
  the piece that it replaces begins with a space.
  """
  found: Special = made.special
  if found.mask_id is None:
    raise UsageError('the tokenizer has no token for what is to be predicted, [MASK] or <mask>')
  (mask,) = (n for n, i in found.names.items() if i == found.mask_id)
  others = {name: i for name, i in found.names.items() if name != mask}
  text = re.sub(rf'\s+{re.escape(mask)}', mask, guarded(text, others))
  return made.encode_special(text)


def content(token: Any) -> str | None:
  """The text of a token, which may be given with options."""
  token = token.get('content') if isinstance(token, dict) else token
  return token if isinstance(token, str) else None


# Roles in the rows of an encoder: fields of `Special`.
ENCODERS = ('cls', 'sep', 'mask')

_USUAL = {
  'cls': ('[CLS]', '<cls>', '<s>'),
  'sep': ('[SEP]', '<sep>', '</s>'),
  'mask': ('[MASK]', '<mask>'),
  'pad': ('[PAD]', '<pad>'),
}
_SHARED = ('<s>', '</s>')


def sentinel(i: int) -> str:
  """T5's name of the i-th token that replaces a span."""
  return f'<extra_id_{i}>'


def num_sentinels(names: Collection[str]) -> int:
  """Number of consecutive sentinels, from 0 on, among special tokens."""
  return next(i for i in itertools.count() if sentinel(i) not in names)
