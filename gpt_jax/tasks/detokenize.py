# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Detokenizers of published texts whose words are separated by spaces.

GPT-2 (Radford et al., 2019, section 3.1) removes such artefacts as `did n't`
and `1 @,@ 000` before it measures perplexity per original word: as the removal
can be undone, the text without them has the probability of the original one.

`detokenize` joins words by rules, and only where `tokenize` splits them again.
A word that `tokenize` would split although it is one, such as `Mr.`, is in
`kept`, which belongs to the result: with it every text comes back, word by word
and line by line.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

Style = Literal['wikitext', 'ptb']

# Words that are joined at most: a long run of marks takes linear time.
_LONGEST = 64


class Rules(NamedTuple):
  """The artefacts of a corpus.

  Attributes:
    texts: how words are written without spaces beside them, if otherwise.
    opening: words that are joined to the next one.
    closing: pattern of words that are joined to the one before.
    between: words that are joined to both.
    splits: patterns of a joined text, whose groups are its parts; the outer
      ones are split again.
    words: by their written form at the beginning, between and at the end.
    quotes: whether '"' opens and closes in turn.
  """

  texts: dict[str, str]
  opening: frozenset[str]
  closing: re.Pattern[str]
  between: frozenset[str]
  splits: tuple[re.Pattern[str], ...]
  words: tuple[dict[str, str], dict[str, str], dict[str, str]]
  quotes: bool


def _patterns(*patterns: str) -> tuple[re.Pattern[str], ...]:
  return tuple(re.compile(p, re.DOTALL | re.IGNORECASE) for p in patterns)


_BETWEEN = {'@-@': '-', '@,@': ',', '@.@': '.'}
_OPEN = {'``': '"', '`': "'", '-LRB-': '(', '-LSB-': '[', '-LCB-': '{'}
_CLOSE = {"''": '"', '-RRB-': ')', '-RSB-': ']', '-RCB-': '}'}

RULES: dict[str, Rules] = {
  # Moses' tokenizer, with marks between the parts of words and numbers.
  'wikitext': Rules(
    texts=_BETWEEN,
    opening=frozenset('([$£'),
    closing=re.compile(r"[.,;:!?%)\]]|'\w+"),
    between=frozenset(['/', *_BETWEEN]),
    splits=_patterns(
      r'(=)(=+)',
      r'(["(\[$£])(.+)',
      r'(.+)([",;:!?%)\]])',
      r'(.+)(\.)',
      r"(.+)('[^\W\d]\w*)",
      r"(.+s)(')",
      r'(.*\w)(-)(\w.*)',
      r'(.*\d)([.,])(\d.*)',
      r'(.+)(/)(.+)',
    ),
    words=({}, {'-': '@-@', ',': '@,@', '.': '@.@'}, {}),
    quotes=True,
  ),
  # The Penn Treebank's, also of Stanford's CoreNLP.
  'ptb': Rules(
    texts={**_OPEN, **_CLOSE},
    opening=frozenset([*_OPEN, '$', '#']),
    closing=re.compile(r"[.,;:!?%']|\.\.\.|''|-R[RSC]B-|n't|'(s|re|ve|ll|d|m)", re.IGNORECASE),
    between=frozenset(),
    splits=_patterns(
      r'(["(\[{$#])(.+)',
      r"('(?!(?:s|re|ve|ll|d|m)$))(.+)",
      r'(.+)(\.\.\.)',
      r'(.+)([.,;:!?%")\]}])',
      r"(.+)(n't|'(?:s|re|ve|ll|d|m))",
      r"(.+)(')",
    ),
    words=(
      {text: word for word, text in _OPEN.items()},
      {},
      {text: word for word, text in _CLOSE.items()},
    ),
    quotes=False,
  ),
}


class Detokenized(NamedTuple):
  """A text without artefacts, and what brings them back.

  Attributes:
    kept: the words of the text that the rules would split.
  """

  text: str
  kept: frozenset[str]


def detokenize(style: str, text: str) -> Detokenized:
  """Joins the words of a text, line by line; other spaces are dropped."""
  rules = RULES[style]
  lines = [line.split() for line in text.split('\n')]
  kept = frozenset(
    word
    for word in {word for line in lines for word in line}
    if _split(rules, word, frozenset()) != [word]
  )
  joined = (' '.join(_joined(rules, line, kept)) for line in lines)
  return Detokenized('\n'.join(joined), kept)


def tokenize(style: str, text: str, kept: frozenset[str]) -> list[list[str]]:
  """The words of each line that `detokenize` was given."""
  rules = RULES[style]
  return [
    [word for part in line.split() for word in _split(rules, part, kept)]
    for line in text.split('\n')
  ]


def _split(rules: Rules, text: str, kept: frozenset[str]) -> list[str]:
  """The words of a text without spaces."""
  start, within, end = rules.words
  out: list[str] = []
  left = [(text, False)]  # the next part last, and whether it is a word
  while left:
    part, is_word = left.pop()
    found = None
    if not is_word and part not in kept:
      matches = (pattern.fullmatch(part) for pattern in rules.splits)
      found = next(filter(None, matches), None)
    if found is None:
      out.append(part)
      continue
    first, *between, last = found.groups()
    if between:
      (mark,) = between
      left += [(last, False), (within.get(mark, mark), True), (first, False)]
    elif first in start:
      left += [(last, False), (start[first], True)]
    elif last in end:
      left += [(end[last], True), (first, False)]
    else:
      left += [(last, False), (first, False)]
  return out


def _joined(rules: Rules, words: Sequence[str], kept: frozenset[str]) -> list[str]:
  """Texts without spaces, each of one or several words."""
  groups: list[list[str]] = []
  attach = quoted = False
  for i, word in enumerate(words):
    quote = rules.quotes and word == '"'
    closes = (quote and quoted) or rules.closing.fullmatch(word)
    again = word == '=' == words[i - 1] and i > 0
    of_s = word == "'" and i > 0 and words[i - 1].endswith('s')
    if groups and (attach or closes or again or of_s or word in rules.between):
      groups[-1].append(word)
    else:
      groups.append([word])
    attach = (quote and not quoted) or (word in rules.opening or word in rules.between)
    quoted ^= quote
  out = []
  for group in groups:
    while group:
      # As many words as the rules split again, up to a limit; one at least.
      for count in range(min(len(group), _LONGEST), 0, -1):
        part = group[:count]
        text = ''.join(rules.texts.get(word, word) for word in part)
        if count > 1 and _split(rules, text, kept) == part:
          break
      else:
        count, text = 1, group[0]
      out.append(text)
      group = group[count:]
  return out
