# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which head of a model of several tasks a task goes on from."""

from typing import Any

from gpt_jax import spec
from gpt_jax.finetuning import task_forms
from gpt_jax.training.pretrained import Pretrained


def head_of(tuned: Any, init: Pretrained) -> str:
  """Of the tasks of `init` the one whose head a task goes on from; '': none.

  That is a published task of the same name, or the same call of one's own
  tables, with the same classes or scores.

  Args:
    tuned: `finetune`, of one task, resolved.
    init: what is fine-tuned.
  """
  name = spec.parse('finetune.task', tuned.task)[0].name
  for other, known in init.tasks.items():
    of_known = spec.parse('finetune.tasks', known['task'])[0].name
    same = tuned.task == known['task'] or (
      name == of_known and name not in task_forms.FORMS
    )
    learned = known['labels'] or known['scores']
    if same and learned == (tuned.labels or tuned.scores):
      return other
  return ''


def init_name(tuned: Any, init: Pretrained) -> str:
  """What `finetune.init` is, of one task; see `head_of`."""
  head = head_of(tuned, init)
  return init.name + f', head of {head}' * bool(head)
