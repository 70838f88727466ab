# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Candidates of a question, in groups."""

from gpt_jax.core import spec
from gpt_jax.tasks.registry import TUNED
from gpt_jax.tasks.task import read

# Of q1 two right and three wrong, of q2 one and one; q3 has no right one, q4
# no wrong one.
TABLE = """question\tsentence\tlabel
q1\ta\tnot_entailment
q1\tb\tentailment
q2\tc\tentailment
q1\td\tnot_entailment
q3\te\tnot_entailment
q1\tf\tentailment
q2\tg\tnot_entailment
q4\th\tentailment
q1\ti\tnot_entailment
"""


def groups(folder, call):
  for split in ('train', 'dev', 'test'):
    (folder / f'{split}.tsv').write_text(TABLE)
  task = spec.build('finetune.task', call, TUNED)
  assert [*task.paths] == ['train', 'dev']  # a group is made by its labels
  return [(e.texts, e.label) for e in read(task, 'dev')]


def test_each_right_candidate_stands_among_wrong_ones(tmp_path):
  """In the table's order, so that the first is not always the right one."""
  assert groups(tmp_path, f"qnli_ranking('{tmp_path}')") == [
    (('q1', 'a', 'b'), 1),
    (('q1', 'b', 'd'), 0),
    (('q1', 'b', 'i'), 0),
    (('q1', 'a', 'f'), 1),
    (('q1', 'd', 'f'), 1),
    (('q1', 'f', 'i'), 0),
    (('q2', 'c', 'g'), 0),
  ]
  wide = f"qnli_ranking('{tmp_path}', candidates=3)"
  assert groups(tmp_path, wide) == [(('q1', 'a', 'b', 'd'), 1), (('q1', 'a', 'd', 'f'), 2)]
