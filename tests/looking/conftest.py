# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run of eight devices, into whose steps the tests look."""

from typing import NamedTuple

import pytest

from gpt_jax.looking import documents
from gpt_jax.looking.course import Batch, Course, Taken
from gpt_jax.looking.documents import Piece
from tests.support import looked as runs


@pytest.fixture(scope='session')
def run(tmp_path_factory):
  """The workdir of a run with a growing batch and with dropout."""
  folder = tmp_path_factory.mktemp('looking')
  runs.write_texts(folder / 'texts', runs.POISON, 30)
  return str(runs.train(folder / 'run', folder / 'texts'))


class Looked(NamedTuple):
  """Step 20 of the run."""

  course: Course
  taken: Taken
  following: Batch
  pieces: list[Piece]


@pytest.fixture(scope='session')
def looked(run):
  with Course.open(run, 20) as course:
    course.advance(19)
    pieces = documents.pieces(course, 20)
    return Looked(course, course.take(), course.next_batch(), pieces)
