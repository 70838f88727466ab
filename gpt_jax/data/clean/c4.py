# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""C4's rules for web pages (Raffel et al. 2020, section 2.2).

Versions of the text ask for 3 words a line and 5 sentences a page, which are
the defaults, or for 5 words and 3 sentences, as the code does that made the C4
of TensorFlow Datasets. That code differs in more: it removes single lines that
occur twice instead of three-sentence spans, lines that end in an ellipsis,
words of over 1,000 characters (with their lines), citation marks and
policy notices; it splits sentences by NLTK's model; and it looks for curly
brackets and "lorem ipsum" only in lines that passed, where we look at the page.
"""

import dataclasses
import functools
import os
import re

from gpt_jax.data.clean import sentences, steps
from gpt_jax.data.clean.steps import Document, Outcome, Removal
from gpt_jax.spec import UsageError

# A period, an exclamation mark, a question mark, an end quotation mark.
_TERMINAL = ('.', '!', '?', '"', '”')

# Rules of lines, in the order in which they are asked.
_PUNCTUATION = 'line without terminal punctuation'
_JAVASCRIPT = 'line with "javascript"'
_SHORT = 'line of too few words'

_CURLY = re.compile(r'[{}]')
_LOREM = re.compile('lorem ipsum', re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Pages:
  """The rules that look at one page; a local step."""

  words: int
  sentences: int
  bad_words: tuple[str, ...]
  name: str = 'c4'

  def clean(self, document: Document) -> Outcome:
    """Drops lines, or the page."""
    text = document.text
    for rule, pattern in (
      ('page with a curly bracket', _CURLY),
      ('page with "lorem ipsum"', _LOREM),
      ('page with a bad word', _any_of(self.bad_words)),
    ):
      if pattern and (match := pattern.search(text)):
        start = max(match.start() - 40, 0)
        return steps.remove(document, rule, text[start : match.end() + 40])
    kept, removed, num_sentences = [], {}, 0
    for line in _lines(text):
      rule = self._rule(line)
      if rule is None:
        kept.append(line)
        num_sentences += sentences.count(line)
      elif line:
        count, size, example = removed.get(rule, (0, 0, line))
        removed[rule] = count + 1, size + len(line.encode()), example
    removals = [Removal(rule, *what) for rule, what in removed.items()]
    cleaned = document._replace(text='\n'.join(kept))
    if not kept or num_sentences < self.sentences:
      gone = steps.remove(cleaned, *_few(cleaned, document))
      return Outcome([], removals + gone.removals)
    return Outcome([cleaned], removals)

  def _rule(self, line: str) -> str | None:
    """The rule by which a line goes; None if it stays."""
    if not line.endswith(_TERMINAL):
      return _PUNCTUATION
    if len(line.split(None, self.words)) < self.words:
      return _SHORT
    return _JAVASCRIPT if 'javascript' in line.lower() else None


def read_words(path: str) -> tuple[str, ...]:
  """Reads a list of bad words: one word or phrase a line, '#' comments.

  Raises:
    UsageError: there is none.
  """
  path = os.path.expanduser(path)
  try:
    with open(path, encoding='utf-8-sig') as file:
      lines = [line.strip().lower() for line in file]
  except (OSError, UnicodeDecodeError) as e:
    raise UsageError(
      f'data.clean: bad_words={path!r} cannot be read ({e}); give a text file '
      'of one word or phrase a line'
    ) from e
  found = sorted({line for line in lines if line and not line.startswith('#')})
  if not found:
    raise UsageError(f'data.clean: bad_words={path!r} holds no word')
  return tuple(found)


@functools.cache
def _any_of(words: tuple[str, ...]) -> re.Pattern | None:
  """Finds any of the words, whole."""
  if not words:
    return None
  choices = '|'.join(re.escape(word) for word in words)
  return re.compile(rf'(?<!\w)(?:{choices})(?!\w)', re.IGNORECASE)


def _lines(text: str):
  """Yields stripped lines; without a list of them, for pages of any size."""
  start = 0
  while start <= len(text):
    stop = text.find('\n', start)
    stop = len(text) if stop < 0 else stop
    yield text[start:stop].strip()
    start = stop + 1


def _few(cleaned: Document, whole: Document) -> tuple[str, str]:
  return 'page of too few sentences', cleaned.text or whole.text
