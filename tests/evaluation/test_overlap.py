# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Texts of tasks in a training store, against a search of the plain text."""

import numpy as np
import pytest

from gpt_jax.core.files.document import Document
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.evaluation import overlap
from tests.support.tasks import Believer, measure, write


class Store:
  """A token store of documents in memory."""

  def __init__(self, documents, tokenizer):
    parts = [[*tokenizer.encode(d).tolist(), tokenizer.eos_id] for d in documents]
    self._ids = np.concatenate(parts)
    self.document_ends = np.cumsum([len(p) for p in parts])

  def __len__(self):
    return len(self._ids)

  def text(self, made, start, stop):
    return made.decode(self._ids[start:stop].tolist())


def sentence(rng, count):
  return ' '.join(f'w{i}' for i in rng.integers(1000, size=count))


@pytest.mark.parametrize('block', [1 << 20, 311])
def test_finds_what_training_has_seen(monkeypatch, block):
  monkeypatch.setattr(overlap, '_BLOCK', block)
  monkeypatch.setattr(overlap, '_SHARED', 13 * 6)
  rng = np.random.default_rng(0)
  texts = [(f'f:{i}', sentence(rng, 29)) for i in range(7)]
  texts.append(('f:short', 'too short'))
  documents = [sentence(rng, 211) for _ in range(5)]

  def plant(document, words):
    at = documents[document].index(' ', 500)
    before, after = documents[document][:at], documents[document][at:]
    documents[document] = f'{before} {words}{after}'

  plant(1, ' '.join(texts[2][1].split()[3:16]).upper() + '!')  # 13 words
  plant(3, ' '.join(texts[4][1].split()[5:17]))  # 12 are none
  plant(4, texts[6][1])
  figures, seen, found = overlap.find(
    {'a': texts[:4], 'b': texts[4:]},
    Store(documents, Bytes()),
    Bytes(),
    lambda stage, done, total: None,
  )
  assert [f['where'] for f in found['a']] == ['f:2']
  assert [f['where'] for f in found['b']] == ['f:6']
  assert found['a'][0]['words'] == ' '.join(texts[2][1].split()[3:16])
  assert seen == {'a': {2}, 'b': {2}}
  assert figures['eval/a/overlap'] == 1 / 4
  assert figures['eval/b/overlap'] == 1 / 4
  assert figures['eval/b/overlap_checked'] == 3


def test_a_tokenizer_that_changes_texts_changes_both_sides():
  rng = np.random.default_rng(0)
  # 13 words, more where the tokenizer parts them at the apostrophe.
  texts = [f"It's {sentence(rng, 5)} naïve {sentence(rng, 6)}" for _ in 'abc']
  corpus = [f'{sentence(rng, 31)} {texts[1].upper()} end', sentence(rng, 31)]
  documents = [Document(text, text) for text in [*corpus, *texts]]
  made = tokenizer.build('wordpiece(60)', documents)
  assert made.decode(made.encode(texts[1])) != texts[1]
  figures, seen, _ = overlap.find(
    {'a': [(str(i), text) for i, text in enumerate(texts)]},
    Store(corpus, made),
    made,
    lambda stage, done, total: None,
  )
  assert seen == {'a': {1}} and figures['eval/a/overlap_checked'] == 3


def test_what_training_has_not_seen_is_counted_by_itself(tmp_path):
  records = [
    {'context': f'c{i}', 'choices': choices, 'label': 0}
    # The scorer takes 'a': five are right, of which it has seen two.
    for i, choices in enumerate([['a', 'b']] * 5 + [['b', 'a']] * 2)
  ]
  write(tmp_path / 'mine.jsonl', *records)
  write(
    tmp_path / 'q.jsonl',
    {'question': 'Where? it', 'answers': 'it'},
    {'question': 'Where? at', 'answers': 'no'},
  )
  call = "multiple_choice('mine.jsonl', name='m'), qa('q.jsonl', name='q')"
  seen = {'m': frozenset({1, 4, 6}), 'q': frozenset({1})}
  found = measure(tmp_path, call, seen=seen)
  right = [1, 1, 1, 0]
  assert found['eval/m/accuracy'] == pytest.approx(5 / 7)
  assert found['eval/m/accuracy_clean'] == 3 / 4
  assert found['eval/m/accuracy_clean_stderr'] == pytest.approx(np.std(right, ddof=1) / 2)
  assert found['eval/m/accuracy_per_byte_clean'] == 3 / 4
  assert found['eval/m/examples_clean'] == 4
  assert found['eval/m/examples'] == 7
  assert 'eval/m/chance_clean' not in found
  assert found['eval/q/exact_match'] == 0.5
  assert found['eval/q/exact_match_clean'] == 1
  found = measure(tmp_path, call, seen={'m': frozenset(range(7)), 'q': frozenset()})
  assert found['eval/m/examples_clean'] == 0
  assert 'eval/m/accuracy_clean' not in found
  assert found['eval/q/exact_match_clean'] == found['eval/q/exact_match']
  assert not any('clean' in key for key in measure(tmp_path, call))


def test_a_limit_keeps_what_was_seen_with_its_example(tmp_path):
  def pair(good, bad, name):
    return {'sentence_good': good, 'sentence_bad': bad, 'UID': name}

  write(
    tmp_path / 'pairs.jsonl',
    *[pair('a', 'b', 'x'), pair('b', 'a', 'x'), pair('b', 'a', 'x')],
    *[pair('b', 'a', 'y'), pair('a', 'b', 'y')],
  )
  call = "blimp('pairs.jsonl', name='m')"
  # Of each paradigm the first two: of the second one the fourth was seen.
  found = measure(tmp_path, call, limit=2, seen={'m': frozenset({2, 3})})
  assert found['eval/m/examples'] == 4
  assert found['eval/m/examples_clean'] == 3
  assert found['eval/m/accuracy'] == 0.5
  assert found['eval/m/accuracy_clean'] == (1 / 2 + 1) / 2


def test_examples_left_out_are_no_clean_ones(tmp_path):
  write(
    tmp_path / 'mine.jsonl',
    {'context': '', 'choices': ['aaaa', 'b'], 'label': 0},
    {'context': '', 'choices': ['a', 'b'], 'label': 0},
    {'context': '', 'choices': ['b', 'a'], 'label': 0},
  )
  call = "multiple_choice('mine.jsonl', name='m')"
  scorer = Believer(context_length=4)
  found = measure(tmp_path, call, scorer=scorer, seen={'m': frozenset({2})})
  assert found['eval/m/examples'] == 2
  assert found['eval/m/examples_clean'] == 1
  assert found['eval/m/accuracy_clean'] == 1
