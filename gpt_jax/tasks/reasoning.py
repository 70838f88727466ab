# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Problems whose answer is a number, solved step by step.

Chain-of-thought prompting (Wei et al., 2022) and self-consistency (Wang et al.,
2022), on files in GSM8K's format (Cobbe et al., 2021): JSON lines with a
`question` and an `answer`, which ends with the number after `####`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

from gpt_jax.core.files.records import Record
from gpt_jax.core.spec import UsageError
from gpt_jax.tasks import files

# A sign, which is none after a digit, a letter or a bracket, and a currency;
# digits with commas between thousands, and decimals.
_NUMBER = re.compile(
  r'(?:[$\u20ac\u00a3][-\u2212]|(?:(?<![\w)])[-\u2212])?[$\u20ac\u00a3]?)'
  r'(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)',
  re.ASCII,
)
_SAID = re.compile('the answer is', re.IGNORECASE)
_MARK = '####'
# GSM8K's calculator annotations: 48/2 = <<48/2=24>>24.
_CALCULATIONS = re.compile('<<[^<>]*>>')


def number_in(text: str) -> Decimal | None:
  """The number that a text gives as its answer; None if there is none.

  The last number after the last "The answer is"; if there is none, the last
  number after the last "####"; if there is none, the last number of the text.
  Commas between thousands and signs of currency do not count.
  """
  ends = [said.end() for said in _SAID.finditer(text)][-1:]
  if _MARK in text:
    ends.append(text.rindex(_MARK) + len(_MARK))
  for start in [*ends, 0]:
    if found := _NUMBER.findall(text[start:]):
      plain = found[-1].replace('\u2212', '-')
      return Decimal(re.sub(r'[^\d.-]', '', plain))
  return None


def majority(answers: Sequence[Decimal | None]) -> Decimal | None:
  """The most frequent answer; of several, the first; None if there is none."""
  counts = Counter(answer for answer in answers if answer is not None)
  return max(counts, key=lambda answer: counts[answer], default=None)


def answer_of(record: Record, column: str) -> Decimal:
  """The right answer of a problem."""
  answer = number_in(files.text(record, column))
  if answer is None:
    raise UsageError(
      f"{record.where}: {column} holds no number; write the answer as in '... #### 42', or alone"
    )
  return answer


def solution(record: Record, answer: str, reasoning: str) -> str:
  """What an example shows after 'A:': the reasoning, if any, and the answer.

  Args:
    answer: the column of the answer.
    reasoning: the column of the reasoning, which ends at `####`; '': none. If
      it is the answer's column, a text without `####` has no reasoning.
  """
  text = files.text(record, answer)
  steps, mark, after = text.partition(_MARK)
  said = f'The answer is {(after if mark else text).strip()}.'
  if not reasoning or (reasoning == answer and not mark):
    return said
  if reasoning != answer:
    steps = files.text(record, reasoning).partition(_MARK)[0]
  return f'{_CALCULATIONS.sub("", steps).strip()} {said}'.lstrip()
