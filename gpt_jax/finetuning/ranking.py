# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Relevance ranking: groups of candidates, one of which answers the question.

MT-DNN (Liu et al., 2019), equation 8: the loss of a question is that of its
right answer among all its candidates, a softmax over their scores, which is the
form `choice`. A table has a line for each candidate; here they are grouped.
"""

import functools
from collections.abc import Callable, Iterable, Iterator

from gpt_jax.files.records import Record
from gpt_jax.ranges import Count
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tasks.tasks import Task, check_label, filled

Gather = Callable[[Iterable[Record]], Iterator[Record]]


def rank_choices(
  train: str,
  dev: str,
  question: str = 'question',
  candidate: str = 'sentence',
  label: str = 'label',
  relevant: str = '1',
  candidates: Count = 2,
) -> Task:
  """The right one of several candidates: a score for each, as of `choice`.

  Args:
    train: a table with a line for each candidate, in any order; dev too.
    dev: judges, by how often the right candidate has the highest score.
    question: a column or a template, the same for all candidates of a question.
    candidate: another.
    label: a column.
    relevant: the label of right candidates; all others are wrong.
    candidates: of a group: a right one and as many wrong ones as are left. A
      question has a group for each right candidate and each further lot of
      wrong ones; those that make up no group are left out, and counted.
  """
  if candidates < 2:
    raise UsageError(
      f'finetune.task: ranking: candidates={candidates}: a group needs a right '
      'one and a wrong one; give 2 or more'
    )
  return Task(
    form='choice',
    paths={'train': train, 'dev': dev},
    texts=('question',),
    answers=('candidates',),
    gather=gather(question, candidate, label, relevant, candidates),
  )


def gather(
  question: str, candidate: str, label: str, relevant: str, count: int
) -> Gather:
  """Groups records; see `ranking` for the arguments."""
  return functools.partial(
    _gathered,
    question=question,
    candidate=candidate,
    label=label,
    relevant=relevant,
    count=count,
  )


def _gathered(
  records: Iterable[Record],
  *,
  question: str,
  candidate: str,
  label: str,
  relevant: str,
  count: int,
) -> Iterator[Record]:
  # Of each question its candidates: whether they are right, and their texts.
  found: dict[str, list[tuple[bool, str]]] = {}
  where: dict[str, str] = {}
  for record in records:
    asked = filled(record, question)
    where.setdefault(asked, record.where)
    check_label(record, label, record[label])
    right = str(record[label]) == relevant
    found.setdefault(asked, []).append((right, filled(record, candidate)))
  total, used = sum(map(len, found.values())), 0
  for asked, of_question in found.items():
    numbers = range(len(of_question))
    right = [i for i in numbers if of_question[i][0]]
    wrong = [i for i in numbers if not of_question[i][0]]
    lots = len(wrong) // (count - 1)
    used += (len(right) + lots * (count - 1)) * bool(right and lots)
    for one in right:
      for lot in range(lots):
        others = wrong[lot * (count - 1) : (lot + 1) * (count - 1)]
        # In the table's order: no place among them gives the right one away.
        group = sorted([one, *others])
        fields = {
          'question': asked,
          'candidates': [of_question[i][1] for i in group],
          'label': group.index(one),
        }
        yield Record(where[asked], fields)
  if used < total:
    log.info(
      '%s of %s candidates make up no group of %d and are left out',
      *(f'{total - used:,}', f'{total:,}', count),
    )
