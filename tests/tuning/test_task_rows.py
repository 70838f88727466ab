# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT-1's input transformations (figure 1), and rows of prompts and targets."""

import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.tasks.registry import TUNED
from gpt_jax.tasks.task import Example, Task
from gpt_jax.tuning import rows as task_rows
from gpt_jax.tuning.rows import EncodedExamples, Frame, fit, joined

GPT1 = Frame.after(257)
(S,), (D,), (E,), *_ = GPT1
TARGET = Task('target', {}, ('', ''))


def task(text):
  return spec.build('finetune.task', text, TUNED)


def rows(form, texts, length=16, **more):
  of = Task(form, {}, ('',) * (1 if form == 'choice' else len(texts)))
  examples = [Example('t:1', tuple(texts), 1)]
  tokens = task_rows.encode(examples, Bytes())
  return task_rows.head_rows(EncodedExamples(of, examples, tokens, Bytes(), GPT1, length, **more))


def shown(found):
  names = {S: '<', D: '$', E: '>'}
  return [
    ''.join(names.get(t) or chr(t) for t in row[:n])
    for row, n in zip(found.inputs[0], found.lengths[0], strict=True)
  ]


@pytest.mark.parametrize(
  'form, texts, expected',
  [
    ('classification', ['abc'], ['<abc>']),
    ('entailment', ['abc', 'de'], ['<abc$de>']),
    ('similarity', ['abc', 'de'], ['<abc$de>', '<de$abc>']),
    ('choice', ['abc', 'd', 'ef'], ['<abc$d>', '<abc$ef>']),
  ],
)
def test_the_papers_figure_1(form, texts, expected):
  assert shown(rows(form, texts)) == expected


def test_what_is_too_long_keeps_its_ends():
  found = rows('classification', ['abcdefgh'], length=6)
  assert (shown(found), found.cut) == (['<abcd>'], 1)
  # Nine tokens of room are left for two texts.
  both = rows('entailment', ['abcdefghij', 'klmnopqrst'], length=12)
  assert shown(both) == ['<abcde$klmn>']
  # What the second leaves the first takes.
  found = rows('entailment', ['abcdefghij', 'kl'], length=12)
  assert shown(found) == ['<abcdefg$kl>']
  assert rows('entailment', ['abcdefg', 'kl'], length=12).cut == 0


@pytest.mark.parametrize('seed', range(20))
def test_no_text_keeps_less_than_the_released_code_gives_it(seed):
  rng = np.random.default_rng(seed)
  length = int(rng.integers(8, 40))
  texts = [np.arange(n) for n in rng.integers(0, 40, size=2)]
  kept = fit(texts, length - 3)
  for text, part in zip(texts, kept, strict=True):
    np.testing.assert_array_equal(part, text[: len(part)])
    assert len(part) >= min(len(text), length // 2 - 2)
  assert sum(map(len, kept)) == min(sum(map(len, texts)), length - 3)


def target_rows(prompt, target, length, **more):
  examples = [Example('t:1', (prompt, target), None)]
  tokens = task_rows.encode(examples, Bytes())
  return task_rows.target_rows(
    EncodedExamples(TARGET, examples, tokens, Bytes(), GPT1, length, **more)
  )


def test_a_target_is_never_cut():
  found = target_rows('abc =', ' x', 10)
  assert found.inputs[0, 0].tolist() == [*b'abc = x', 256, 256, 256, 256]
  assert found.lengths.tolist() == [[5, 8]]
  # The prompt loses its beginning.
  found = target_rows('abc =', ' x', 5)
  assert found.inputs[0, 0].tolist() == [*b'c = x', 256]
  assert (found.lengths.tolist(), found.cut) == ([[3, 6]], 1)
  with pytest.raises(UsageError, match=r't:1: the target is empty'):
    target_rows('abc =', '', 4)


class Started(Bytes):
  """As LLaMA's: 1 stands before each text, and 2 fills rows."""

  special = Bytes.special._replace(prompt_start=(1,), pad_id=2)


def test_rows_begin_as_the_model_was_trained():
  examples = [Example('t:1', ('abc =', ' x'), None)]
  tokens = task_rows.encode(examples, Started())

  def found(length):
    rows = task_rows.target_rows(EncodedExamples(TARGET, examples, tokens, Started(), GPT1, length))
    return rows.inputs[0, 0].tolist(), rows.lengths[0].tolist()

  assert found(10) == ([1, *b'abc = x', 256, 2, 2], [6, 9])
  assert found(5) == ([1, *b' = x', 256], [3, 6])
  special = Frame.after(257, (1,))
  text = np.arange(11, 24, dtype=np.int32)
  row = joined([[text]], special, 7)
  assert row.ids.tolist() == [1, 257, 11, 12, 13, 14, 259]
  assert row.excess == 9


# What an encoder's tokenizer has, as BERT's and as RoBERTa's calls it.
ENCODERS = {
  'bert': Bytes.special._replace(cls_id=301, sep_id=302, pad_id=303),
  'roberta': Bytes.special._replace(
    cls_id=301, sep_id=302, pad_id=303, names={'<s>': 301, '</s>': 302}
  ),
}


@pytest.mark.parametrize(
  'form, texts, expected',
  [
    ('classification', ['abc'], ['<abc>']),
    ('entailment', ['abc', 'de'], ['<abc>de>']),
    ('similarity', ['abc', 'de'], ['<abc>de>']),
    ('choice', ['abc', 'd', 'ef'], ['<abc>d>', '<abc>ef>']),
    ('choice 2', ['abc', 'q', 'd', 'ef'], ['<abc>qd>', '<abc>qef>']),
  ],
)
@pytest.mark.parametrize('kind', ENCODERS)
def test_an_encoder_reads_both_texts_once(kind, form, texts, expected):
  """BERT's figure 4; RoBERTa has the separator twice between two texts."""
  special = Frame.of_encoder(ENCODERS[kind])
  form, _, count = form.partition(' ')
  of = Task(form, {}, ('',) * int(count or 1 if form == 'choice' else len(texts)))
  examples = [Example('t:1', tuple(texts), 1)]
  tokens = task_rows.encode(examples, Bytes())
  made = task_rows.head_rows(EncodedExamples(of, examples, tokens, Bytes(), special, 13))
  names = {301: '<', 302: '>', 303: '.'}
  found = [''.join(names.get(t) or chr(t) for t in row) for row in made.inputs[0]]
  if kind == 'roberta':
    first = len(texts[0]) + 1
    expected = [row[:first] + '>' * (form != 'classification') + row[first:] for row in expected]
  assert found == [row.ljust(13, '.') for row in expected]
  assert made.second is not None
  for row, length, second in zip(expected, made.lengths[0], made.second[0], strict=True):
    assert length == len(row)
    assert row[second - 1] == '>' and row[:second].strip('<>') == texts[0]


@pytest.mark.parametrize('seed', range(10))
def test_the_longer_of_two_texts_is_cut_as_by_bert(seed):
  rng = np.random.default_rng(seed)
  room = int(rng.integers(2, 40))
  sizes = rng.integers(1, 40, size=2)
  kept = fit([np.arange(n) for n in sizes], room)
  # Token by token, as its released code does.
  first, second = sizes
  while first + second > room:
    if first > second:
      first -= 1
    else:
      second -= 1
  assert [*map(len, kept)] == [first, second]
