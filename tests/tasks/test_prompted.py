# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks that are asked in prompts: the Children's Book Test, and reasoning."""

from decimal import Decimal

import pytest

from gpt_jax.core.files.records import Record
from gpt_jax.core.spec import UsageError
from gpt_jax.tasks import reasoning
from tests.support.tasks import Believer, measure


def question(sentence, answer, choices):
  story = [f"{n} A{n} said `` no . ''" for n in range(1, 21)]
  return [*story, f'21 {sentence}\t{answer}\t\t{"|".join(choices)}', '']


QUESTIONS = [
  question("`` XXXXX , '' said he .", 'b', ['zzz', 'b', 'zz']),
  question("It was Bob 's XXXXX that he did n't see .", 'zz', ['a', 'zz', 'b']),
  question('They saw the XXXXX', 'a', ['zz', 'zzz', 'a']),
]


def put(folder, lines, name='cbtest_CN_valid_2000ex.txt'):
  path = folder / 'CBTest' / 'data' / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text('\n'.join(lines) + '\n')
  return path


def test_the_choice_and_the_rest_of_the_sentence(tmp_path):
  put(tmp_path, [line for lines in QUESTIONS for line in lines])
  scorer = Believer()
  found = measure(tmp_path, 'cbt', scorer=scorer)
  story = ' '.join(f'A{n} said "no."' for n in range(1, 21))
  asked = {}
  for request in scorer.seen:
    asked.setdefault(request.context, []).append(request.continuation)
  assert asked == {
    f'{story} "': [f'{word}," said he.' for word in ('zzz', 'b', 'zz')],
    f"{story} It was Bob's": [f" {word} that he didn't see." for word in ('a', 'zz', 'b')],
    f'{story} They saw the': [' zz', ' zzz', ' a'],
  }
  # By bytes 'b', 'a' and 'a' are the most probable.
  assert found['eval/cbt/accuracy'] == pytest.approx(2 / 3)
  assert found['eval/cbt/chance'] == pytest.approx(1 / 3)
  put(tmp_path, QUESTIONS[0], 'cbtest_NE_test_2500ex.txt')
  found = measure(tmp_path, "cbt('test', kind='NE')")
  assert found['eval/cbt/test-kind_NE/accuracy'] == 1


GOOD = QUESTIONS[0]


@pytest.mark.parametrize(
  ('lines', 'error'),
  [
    (['', *GOOD[:4], *GOOD[5:]], r"ex\.txt:6: begins with '6', and line 5 of"),
    (GOOD[:20] + GOOD, r"ex\.txt:21: begins with '1', and line 21 of a ques"),
    ([*GOOD[:20], '21 It is .'], r'ex\.txt:21: is not a sentence with one XXXXX'),
    (
      [*GOOD[:20], '21 XXXXX is XXXXX .\ta\t\ta|b'],
      r'ex\.txt:21: is not a sentence with one XXXXX',
    ),
    ([*GOOD[:20], '21 XXXXX .\tc\t\ta|b'], r"ex\.txt:21: label 'c' is none of its 2 choices"),
    (GOOD[:7], r'ex\.txt:7: ends within a question, of which 7 of 21 lines'),
  ],
)
def test_what_is_no_question(tmp_path, lines, error):
  put(tmp_path, lines)
  with pytest.raises(UsageError, match=error):
    measure(tmp_path, 'cbt')


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
