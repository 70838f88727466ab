# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities in the formats of OpenAI's API.

They are those of `decoding.logprobs`: of the model itself, before temperature
and all other settings of a request.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding.logprobs import TokenLogprobs

# A character has at most four bytes: what precedes them does not change it.
_NUM_BEFORE = 3
_UNFINISHED = '\ufffd'


class Named(NamedTuple):
  """A token with its text.

  Attributes:
    text: what it adds to the text; `token_id:ID` if that is nothing or bytes
      that are no whole character.
    offset: in characters, where its text begins, or that of the character of
      which it is a part.
    top: texts and log-probabilities of the most probable tokens.
  """

  text: str
  logprob: float | None
  offset: int
  top: tuple[tuple[str, float], ...]


class TokenNames:
  """Names the tokens of a text, one after the other."""

  def __init__(self, tokenizer: Tokenizer, before: Sequence[int]):
    """`before` are the tokens that precede the first one to be named."""
    self._tokenizer = tokenizer
    self._before = list(before[-_NUM_BEFORE:])
    # Length of the text so far, with a mark for each byte of no character.
    self.length = len(tokenizer.decode(before))

  def take(self, token: TokenLogprobs) -> Named:
    """Names the next token and its alternatives."""
    known = self._tokenizer.decode(self._before)
    same, added = self._added(known, token.id)
    top = tuple((_name(self._added(known, i)[1], i), x) for i, x in token.top)
    start = self.length - len(known)
    offset, self.length = start + same, start + same + len(added)
    if not added.strip(_UNFINISHED):
      offset = start + self._begins(known, token.id, bool(added))
    self._before = [*self._before, token.id][-_NUM_BEFORE:]
    return Named(_name(added, token.id), token.logprob, offset, top)

  def _added(self, known: str, id: int) -> tuple[int, str]:
    """How much of the known text stays, and what a token adds.

    The known text may end with marks of bytes that the token completes.
    """
    if id >= self._tokenizer.vocab_size:  # the model's table may be larger
      return len(known), ''
    text = self._tokenizer.decode([*self._before, id])
    pairs = zip(text, known, strict=False)
    same = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
    if same is None:
      same = min(len(text), len(known))
    return same, text[same:]

  def _begins(self, known: str, id: int, adds: bool) -> int:
    """Where in the known text the character of a part of one begins."""
    if id in self._tokenizer.run_ids:  # each of its bytes has a mark for now
      return len(known.rstrip(_UNFINISHED))
    goes_on = not adds and known.endswith(_UNFINISHED)
    return len(known) - goes_on


def _name(added: str, id: int) -> str:
  return added.rstrip(_UNFINISHED) or f'token_id:{id}'


class Listed:
  """The tokens to list with the text of a choice, as it is returned."""

  def __init__(self, tokenizer: Tokenizer, before: Sequence[int]):
    """`before` are the tokens that precede the text."""
    self._names = TokenNames(tokenizer, before)
    self._end = self._names.length  # of the returned text
    self._held: list[Named] = []

  def take(self, scores: Sequence[TokenLogprobs], text: str, *, rest: bool) -> list[Named]:
    """Lists tokens whose text is returned, at least in part.

    Args:
      scores: new tokens.
      text: new text; it lags behind the tokens if these may begin a stop text.
      rest: list all: none of them may be of a stop text.
    """
    self._held += map(self._names.take, scores)
    self._end += len(text)
    num = len(self._held)
    while num and not rest and self._held[num - 1].offset >= self._end:
      num -= 1
    listed, self._held = self._held[:num], self._held[num:]
    return listed


def of_completion(tokens: Sequence[Named]) -> dict[str, list[Any]]:
  """The field `logprobs` of a choice of /v1/completions."""
  return {
    'tokens': [token.text for token in tokens],
    'token_logprobs': [token.logprob for token in tokens],
    'top_logprobs': [_alternatives(token) for token in tokens],
    'text_offset': [token.offset for token in tokens],
  }


def _alternatives(token: Named) -> dict[str, float] | None:
  """With the token itself, as OpenAI's; of equal texts, the most probable."""
  if not token.top or token.logprob is None:
    return None
  out = {}
  for text, logprob in [*token.top, (token.text, token.logprob)]:
    out.setdefault(text, logprob)
  return out


def of_chat(tokens: Sequence[Named]) -> dict[str, Any]:
  """The field `logprobs` of a choice of /v1/chat/completions."""
  content = [
    _of_chat(token.text, token.logprob) | {'top_logprobs': [_of_chat(*pair) for pair in token.top]}
    for token in tokens
  ]
  return {'content': content, 'refusal': None}


def _of_chat(text: str, logprob: float | None) -> dict[str, Any]:
  own = None if text.startswith('token_id:') else list(text.encode())
  return {'token': text, 'logprob': logprob, 'bytes': own}
