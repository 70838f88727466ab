# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Answers that are numbers, and examples with their reasoning."""

from decimal import Decimal

import pytest

from gpt_jax.core.files.records import Record
from gpt_jax.core.spec import UsageError
from gpt_jax.tasks import reasoning


@pytest.mark.parametrize(
  ('text', 'number'),
  [
    ('23 - 20 = 3. 3 + 6 = 9. The answer is 9.', '9'),
    ('the answer is 3 + 6 = 9', '9'),
    ('The answer is 7. No: the answer is $1,234.50.', '1234.5'),
    ('The answer is -5', '-5'),
    ('The answer is \u2212$1,000,000', '-1000000'),
    ('The answer is 20-3', '3'),
    ('So 48 + 24 = 72 clips.\n#### 72', '72'),
    ('#### 5\nThe answer is 6 apples', '6'),
    ('It costs \u20ac.75 in all', '0.75'),
    ('Of 5, the answer is unknown', '5'),
    ('The answer is eleven.', None),
    ('', None),
  ],
)
def test_the_number_of_a_text(text, number):
  found = reasoning.number_in(text)
  assert found == (None if number is None else Decimal(number))


def test_the_majority():
  """Equal numbers are one; texts without a number do not vote."""
  one, two = Decimal('1'), Decimal('2')
  assert reasoning.majority([None, two, one, Decimal('1.0'), None, None]) == one
  assert reasoning.majority([two, one, one, two]) == two
  assert reasoning.majority([None, None]) is None


def test_solutions():
  def solution(answer, how, **more):
    record = Record('x.jsonl:1', {'answer': answer, **more})
    return reasoning.solution(record, 'answer', how)

  published = '48/2 = <<48/2=24>>24.\n24 + 48 = <<24+48=72>>72\n#### 72'
  steps = '48/2 = 24.\n24 + 48 = 72'
  assert solution(published, 'answer') == f'{steps} The answer is 72.'
  assert solution(published, '') == 'The answer is 72.'
  assert solution('72', 'answer') == 'The answer is 72.'
  assert solution('#### 72', 'answer') == 'The answer is 72.'
  assert solution('72', 'why', why=' So. ') == 'So. The answer is 72.'


def test_an_answer_without_a_number_is_refused():
  with pytest.raises(UsageError, match=r'^x.jsonl:3: answer holds no number'):
    reasoning.answer_of(Record('x.jsonl:3', {'answer': 'two'}), 'answer')
