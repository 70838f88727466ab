# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From texts and conversations to tokens, and which of them are learned.

A conversation is rendered by the chat template and encoded as a whole: pieces
encoded apart and joined would have other tokens at the borders. The tokens of a
span of characters are those that come from at least one of its characters.

A text is encoded as a prompt to `generate` is: after the ids that the tokenizer
puts before a text, and with the end of a document after its last token. A
conversation has the special tokens of its template only.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding.chat import ChatTemplate, Message
from gpt_jax.tuning.records import Content, TextExample

# What is learned of a row.
LossOn = Literal['assistant', 'completion', 'all']


class LearnedTokens(NamedTuple):
  """A row of tokens.

  Attributes:
    ids: int32 [n].
    learned: bool [n], whether the loss counts the prediction of the token; the
      first token is never predicted.
  """

  ids: np.ndarray
  learned: np.ndarray


class Encoder:
  """Encodes examples by a model's tokenizer and chat template."""

  def __init__(self, tokenizer: Tokenizer, template: Callable[[], ChatTemplate]):
    """`template` is called when the first conversation comes."""
    self.tokenizer, self._get_template = tokenizer, template
    self._template: ChatTemplate | None = None

  @property
  def template(self) -> ChatTemplate:
    """The chat template."""
    if self._template is None:
      self._template = self._get_template()
    return self._template

  @property
  def chats(self) -> bool:
    """Whether a conversation has been encoded."""
    return self._template is not None

  def encode(self, example: TextExample, loss_on: LossOn) -> LearnedTokens:
    """Encodes an example.

    Args:
      loss_on: 'assistant': what the assistant says, or the completion of a
        text; 'completion': all that follows the prompt; 'all': all tokens.
    """
    where, prompt, completion = example
    if prompt is None and loss_on == 'completion':
      raise UsageError(
        f"{where}: loss_on='completion', and the row has no completion; give "
        'rows with prompt and completion, or another loss_on'
      )
    if prompt is None and isinstance(completion, str) and loss_on != 'all':
      raise UsageError(
        f'{where}: loss_on={loss_on!r}, and a text contains no answer; '
        "give messages, or prompt and completion, or loss_on='all'"
      )
    try:
      if isinstance(completion, str):
        assert prompt is None or isinstance(prompt, str), 'see check_pair'
        tokens = self.text(prompt or '', completion)
      else:
        assert not isinstance(prompt, str), 'see check_pair'
        tokens = self.conversation(prompt or [], completion, loss_on)
    except UsageError as e:
      raise UsageError(f'{where}: {e}') from e
    if loss_on == 'all':
      tokens = tokens._replace(learned=np.ones(len(tokens.ids), bool))
    if len(tokens.learned):
      tokens.learned[0] = False
    return tokens

  def text(self, prompt: str, completion: str) -> LearnedTokens:
    """A completion after a prompt, and the end of a document after it."""
    tokenizer, whole = self.tokenizer, prompt + completion
    start = tokenizer.special.prompt_start
    if not prompt:
      start = tokenizer.special.before(first_scored=True)
    ids = tokenizer.encode(whole)
    spans = [(len(prompt), len(whole))]
    learned = _within(tokenizer.offsets(whole), spans)
    return LearnedTokens(
      np.array([*start, *ids, tokenizer.eos_id], np.int32),
      np.array([*[False] * len(start), *learned, True]),
    )

  def conversation(
    self, prompt: Sequence[Message], completion: Sequence[Message], loss_on: LossOn
  ) -> LearnedTokens:
    """The messages of a prompt and of a completion, rendered as one chat."""
    tokenizer, names = self.tokenizer, self.tokenizer.special.names
    text, spans = self.template.rendered(names, [*prompt, *completion], len(prompt))
    if spans and loss_on == 'completion':
      spans = [(spans[0][0], spans[-1][1])]
    ids = tokenizer.encode_special(text)
    learned = _within(tokenizer.offsets_special(text), spans)
    return LearnedTokens(ids, learned)

  def prompt(self, content: Content) -> np.ndarray:
    """The ids of a prompt that the model is to answer, int32 [n]."""
    tokenizer = self.tokenizer
    if isinstance(content, str):
      ids = tokenizer.special.prompt(tokenizer.encode(content))
    else:
      ids = self.template.ids(tokenizer, content)
    return np.array(ids, np.int32)


def ends(
  path: str, examples: Sequence[TextExample], encoded: Sequence[LearnedTokens], tokenizer: Tokenizer
) -> frozenset[int]:
  """The special tokens that end what is learned of conversations.

  Warns if some end with none: the model would never learn to end its turn.
  """
  last = [
    _end(one, tokenizer)
    for example, one in zip(examples, encoded, strict=True)
    if not isinstance(example.completion, str)
  ]
  if endless := last.count(None):
    log.warning(
      '%s: %s of %s conversations have no special token after their last '
      'answer in what is learned, so the model does not learn to end its turn; '
      'take a template that ends answers with one, such as zephyr, also inside '
      '{%% generation %%}',
      path,
      f'{endless:,}',
      f'{len(last):,}',
    )
  return frozenset(end for end in last if end is not None)


def _end(encoded: LearnedTokens, tokenizer: Tokenizer) -> int | None:
  """The special token that ends what is learned, but for white space."""
  learned = encoded.ids[encoded.learned]
  places = np.flatnonzero(np.isin(learned, [*tokenizer.special.names.values()]))
  if not places.size or tokenizer.decode(learned[places[-1] + 1 :].tolist()).strip():
    return None
  return int(learned[places[-1]])


def _within(offsets: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
  """Which tokens come from characters of the spans: bool [num_tokens].

  Args:
    offsets: int32 [num_tokens, 2]. A token with an empty range is one of
      several that make the character at its start.
    spans: in order, without overlap.
  """
  starts, stops = offsets.astype(np.int64).T
  stops = np.maximum(stops, starts + 1)
  inside = np.zeros(len(offsets), bool)
  for start, stop in spans:
    inside |= (starts < stop) & (stops > start)
  return inside


def fitted(encoded: LearnedTokens, most: int) -> LearnedTokens:
  """The first `most` tokens of a row."""
  return LearnedTokens(encoded.ids[:most], encoded.learned[:most])
