# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents that are poisoned are named, by their loss."""

import pathlib

import pytest

from gpt_jax.looking import documents
from gpt_jax.looking.course import Course
from tests.support import looked
from tests.support.tiny import one_device  # noqa: F401

# Of the steps of an epoch the last are looked into.
FIELDS = {
  'model.num_layers': 1,
  'model.dropout': 'none',
  'batch.size': 16,
  'batch.micro_rows': 0,
  'log.norms_every_steps': 0,
  'checkpoint.every_steps': 99,
}


def test_names_three_of_three(tmp_path):
  look(tmp_path, range(2, 15, 5), 15, steps=24)


@pytest.mark.slow
def test_names_twenty_of_twenty(tmp_path):
  look(tmp_path, range(3, 103, 5), 110, steps=48)


def look(folder, poison, count, steps):
  """Every poisoned document is named by some step of the last epoch."""
  looked.write_texts(folder / 'texts', poison, count)
  run = looked.train(folder / 'run', folder / 'texts', **FIELDS, **{'schedule.num_steps': steps})
  # A row has 63 targets, and a document some 200 bytes.
  epoch = count * 4 // 16
  assert named(str(run), range(steps - epoch + 1, steps + 1)) == {*poison}


def named(run, steps):
  """The poisoned documents among the five largest losses of some steps, and no others."""
  found, poison = set(), poisoned(run)
  with Course.open(run, steps[0]) as course:
    course.advance(steps[0] - 1)
    for step in steps:
      pieces = documents.pieces(course, step)
      scored = documents.scored(course.parts, course.take(), pieces)
      # A few tokens at the end of a row may be hard by chance.
      long = [x for x in scored if x.weight > 0.2 / course.parts.ramp.shape(step - 1).rows]
      bad = [x for x in long if int(x.piece.name[:3]) in poison]
      worst = sorted(long, key=lambda x: -x.loss)[: len(bad)]
      assert all(x in bad for x in worst)
      found |= {int(x.piece.name[:3]) for x in worst[:5]}
  return found


def poisoned(run):
  """The documents without a space."""
  texts = (pathlib.Path(run).parent / 'texts').iterdir()
  return {int(path.stem) for path in texts if ' ' not in path.read_text()}
