# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""MassiveText's rules at both sides of their thresholds, worked by hand."""

import collections
import itertools
import pickle
import random
import string

import numpy as np
import pytest

from gpt_jax.core.text.clean import choices, gopher, report
from gpt_jax.core.text.clean.steps import Document

# Of three and of four letters, none of them a stop word.
THREE = [a + b + 'q' for a, b in itertools.product(string.ascii_lowercase[::-1], repeat=2)]
FOUR = [a + b + c + 'q' for a, b, c in itertools.product('zyxwvutsrp', repeat=3)]
STOP = ['that', 'have']


def broken(text, call='gopher'):
  """The rule by which a text goes; None if it stays as it is."""
  (step,) = choices.load(call)
  step.check()
  document = Document(256, '', 'x', text)
  documents, removals = step.clean(document)
  if not removals:
    assert documents == [document]
    return None
  (removal,) = removals
  assert not documents and removal.count == 1
  assert removal.num_bytes == len(text.encode())
  return removal.rule


def prose(num_words, *special):
  """Different words of four letters, two stop words among them."""
  words = [*STOP, *special, *FOUR]
  return words[:num_words]


def test_number_of_words():
  assert broken(' '.join(prose(50))) is None
  assert broken(' '.join(prose(49))) == 'too few words'
  many = [*STOP, *(f'w{i:05}' for i in range(100_000 - 2))]
  assert broken(' '.join(many)) is None
  assert broken(' '.join([*many, 'more'])) == 'too many words'
  assert broken(' '.join(prose(53)), 'gopher(max_words=53)') is None
  assert broken(' \n ', 'gopher(min_words=0)') is None


def test_mean_word_length():
  three = ['the', 'and', *THREE[:48]]
  assert broken(' '.join(three)) is None
  three[7] = 'zz'
  assert broken(' '.join(three)) == 'mean word too short'
  # 2 words of 4, 2 of 16 and 46 of 10 letters: 500.
  ten = [*STOP, 'a' * 16, 'b' * 16, *(word + 'abcdef' for word in FOUR[:46])]
  assert broken(' '.join(ten)) is None
  ten[7] += 'g'
  assert broken(' '.join(ten)) == 'mean word too long'


@pytest.mark.parametrize(
  ('mark', 'rule'),
  [
    ('#{}', 'too many "#" a word'),
    ('{}...', 'too many ellipses a word'),
    ('{}.....', 'too many ellipses a word'),
    ('{}…', 'too many ellipses a word'),
  ],
)
def test_symbols(mark, rule):
  words = prose(50)
  for i in range(5):
    words[7 * i] = mark.format(words[7 * i])
  assert broken(' '.join(words)) is None
  words[1] = mark.format(words[1])
  assert broken(' '.join(words)) == rule


def lines(words, per_line):
  starts = range(0, len(words), per_line)
  return [' '.join(words[i : i + per_line]) for i in starts]


@pytest.mark.parametrize(
  ('mark', 'most', 'rule'),
  [
    ('•{}', 9, 'lines starting with a bullet'),
    ('  * {}', 9, 'lines starting with a bullet'),
    ('- {}', 9, 'lines starting with a bullet'),
    ('{}...', 3, 'lines ending with an ellipsis'),
    ('{}… ', 3, 'lines ending with an ellipsis'),
  ],
)
@pytest.mark.parametrize('end', ['\n', '\r\n', '\n \n'])
def test_lines(mark, most, rule, end):
  found = lines(prose(80), 8)
  for i in range(most):
    found[i] = mark.format(found[i])
  assert broken(end.join(found)) is None
  found[most] = mark.format(found[most])
  assert broken(end.join(found)) == rule


def test_words_with_a_letter():
  numbers = [f'{i}' for i in range(1000, 1011)]
  assert broken(' '.join(prose(50, *numbers[:10]))) is None
  assert broken(' '.join(prose(50, *numbers))) == 'too few words with a letter'


@pytest.mark.parametrize(
  ('words', 'stays'),
  [
    (['the', 'with'], True),
    (['"The', 'of,'], True),
    (['the', 'the'], False),
    (['them', 'without'], False),
    (['be'], False),
  ],
)
def test_stop_words(words, stays):
  text = ' '.join(words + FOUR[:60])
  assert broken(text) == (None if stays else 'too few stop words')
  assert broken(text, 'gopher(stop_words=0)') is None
  assert broken(text, 'gopher(stop_words=3)') == 'too few stop words'


@pytest.mark.parametrize(
  ('end', 'kind'), [('\n', 'line'), ('\n\n', 'paragraph'), ('\n \n', 'paragraph')]
)
def test_duplicate_lines_and_paragraphs(end, kind):
  parts = ['\n'.join(lines(FOUR[8 * i : 8 * i + 8], 4)) for i in range(12)]
  if kind == 'line':
    parts = [part.replace('\n', ' ') for part in parts]
  parts[0] += ' that have'
  # One part four times among ten: three are duplicates.
  few = ['x', *parts[:3], 'x', *parts[3:6], 'x', ' x']
  assert broken(end.join(few)) is None
  many = ['x', *parts[:3], 'x', *parts[3:5], 'x', 'x', 'x ']
  assert len(few) == len(many) == 10
  call = 'gopher(min_words=40)'
  assert broken(end.join(many), call) == f'duplicate {kind} fraction'


@pytest.mark.parametrize(
  ('end', 'kind', 'call'),
  [('\n', 'line', 'gopher'), ('\n\n', 'paragraph', 'gopher(duplicate_line_characters=1.0)')],
)
def test_characters_of_duplicates(end, kind, call):
  # Words of four letters, one a line; some again, in another order.
  words = prose(40)
  assert broken(end.join(words + words[9::-1]), call) is None  # 10 of 50
  rule = f'duplicate {kind} character fraction'
  assert broken(end.join(words + words[10::-1]), call) == rule  # 11 of 51


def scattered(phrase, times, num_words):
  """A phrase again and again, among words that occur once."""
  rest = FOUR[: num_words - times * len(phrase)]
  parts = [[*phrase, *rest[2 * i : 2 * i + 2]] for i in range(times)]
  text = [*itertools.chain(*parts), *rest[2 * times :]]
  assert len(text) == num_words
  return ' '.join(text)


@pytest.mark.parametrize(('n', 'most'), [(2, 10), (3, 6), (4, 4)])
def test_the_most_frequent_ngram(n, most):
  phrase = [*STOP, 'aaaa', 'bbbb'][:n]
  # 0.20, 0.18 and 0.16 of a hundred words of four letters.
  assert broken(scattered(phrase, most, 100)) is None
  rule = f'top {n}-gram character fraction'
  assert broken(scattered(phrase, most + 1, 100)) == rule


@pytest.mark.parametrize(
  ('n', 'times', 'num_words'),
  [
    (5, 3, 100),  # 0.15
    (6, 7, 300),  # 0.14
    (7, 13, 700),  # 0.13
    (8, 3, 200),  # 0.12
    (9, 11, 900),  # 0.11
    (10, 2, 200),  # 0.10
  ],
)
def test_duplicate_ngrams(n, times, num_words):
  phrase = [*STOP, *(letter * 4 for letter in 'abcdefgh')][:n]
  assert broken(scattered(phrase, times, num_words)) is None
  rule = f'duplicate {n}-gram character fraction'
  assert broken(scattered(phrase, times, num_words - 1)) == rule


def brute_force(words, n):
  """Looks at each place and each n-gram, and marks words."""
  places = range(len(words) - n + 1)
  grams = [tuple(words[i : i + n]) for i in places]
  counts = collections.Counter(grams)
  chosen = {gram for gram, count in counts.items() if count > 1}
  if n <= 4 and chosen:
    best = max(counts.values())
    equal = [gram for gram in grams if counts[gram] == best]
    chosen = {max(equal, key=lambda gram: sum(map(len, gram)))}
  marked = {i + k for i, gram in enumerate(grams) if gram in chosen for k in range(n)}
  return sum(len(words[i]) for i in marked) / sum(map(len, words))


def test_ngrams_match_brute_force():
  rng = random.Random(5)
  between = np.zeros(9, int)
  for _ in range(307):
    known = ['a', 'bc', 'b', 'ca', 'dddd', 'e', 'ff'][: rng.randrange(1, 8)]
    words = [rng.choice(known) for _ in range(rng.randrange(1, 47))]
    at = rng.randrange(len(words))
    words += words[at : at + rng.randrange(17)]
    lengths = np.array([*map(len, words)])
    found = [*gopher.ngram_fractions(words, lengths)]
    expected = [brute_force(words, n) for n in range(2, 11)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    between += [0 < x < 1 for x in expected]
  assert between.min() > 30


def test_characters_count_once():
  # 'a a a a' is covered by its three 2-grams, and counts once.
  words = ['a', 'a', 'a', 'a', 'bbbb']
  assert next(gopher.ngram_fractions(words, np.array([1, 1, 1, 1, 4]))) == 0.5


def test_fractions_turn_rules_off():
  text = ' '.join(STOP * 50)
  assert broken(text) == 'top 2-gram character fraction'
  rest = 'duplicate_ngrams=(1, 1, 1, 1, 1, 1.0)'
  assert broken(text, f'gopher(top_ngrams=(1, 1, 1), {rest})') is None


def test_the_report_names_the_rules():
  (step,) = pickle.loads(pickle.dumps(choices.load('gopher')))
  counts = {}
  texts = [' '.join(prose(60)), ' '.join(prose(31)), ' '.join(prose(37))]
  for i, text in enumerate(texts):
    document = Document(256 * i, 'web', f'{i}', text)
    report.count(counts, 0, document, step.clean(document))
  (entry,) = report.entries([step.name], counts)
  rules = entry['sources']['web']['rules']
  assert {name: rule['documents_removed'] for name, rule in rules.items()} == {'too few words': 2}
  why = [example['why'] for example in rules['too few words']['examples']]
  assert [text[:13] for text in why] == ['31: that have', '37: that have']
