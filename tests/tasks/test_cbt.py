# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Children's Book Test, on files in its format."""

import pytest

from gpt_jax.core.spec import UsageError
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
