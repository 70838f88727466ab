# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The section `finetune`: what measures a task, and what tells its data."""

from typing import Any

from configs.finetune import base
from gpt_jax.finetuning import fields


def config(folder, more, labels='abc'):
  path = folder / 't.tsv'
  if not path.exists():
    rows = ''.join(f'text {label}\t{label}\n' for label in labels)
    path.write_text(f'text\tlabel\n{rows}')
  found: Any = base.get_config().unlock()
  found.finetune.task = f"classification('{path}', '{path}', {more})"
  return found


def test_two_classes_have_an_f1(tmp_path):
  task, _ = fields.read_task(config(tmp_path, "metrics='f1'", 'ab'))
  assert task.metrics == ('f1',)


def test_the_data_are_told_by_texts_and_labels(tmp_path):
  found = []
  for name, old, new in (
    ('same', '', ''),
    ('again', '', ''),
    ('score', '\t2', '\t50'),
    ('text', 'text 1', 'text 3'),
    ('shorter', 'text 2\t2\n', ''),
    ('order', 'text 1\t1\ntext 2\t2\n', 'text 2\t2\ntext 1\t1\n'),
  ):
    (tmp_path / name).mkdir()
    made = config(tmp_path / name, 'regression=True', '12')
    path = tmp_path / name / 't.tsv'
    path.write_text(path.read_text().replace(old, new))
    fields.read_task(made)
    found.append(made.finetune.data)
  # Where the table lies says nothing.
  assert found[0] == found[1]
  assert len({*found}) == len(found) - 1
  assert found[0].startswith('2 train, 2 dev, sha256 ')
