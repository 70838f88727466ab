# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A step that is taken again is the step that was taken."""

import math
import shutil

import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import metrics
from gpt_jax.looking import documents
from gpt_jax.looking.course import Compared, Course
from gpt_jax.looking.layers import Measuring
from tests.support import whole_runs


def test_steps_have_the_bits_of_the_log(run):
  with Course.open(run, 22) as course:
    assert course.start == 16
    course.advance(22)
    logged = {line['step']: line for line in metrics.read(run) if 'loss' in line}
    assert [(x.step, x.name) for x in course.compared] == [
      (step, name) for step in (18, 21) for name in ('loss', 'grad_norm')
    ]
    for one in course.compared:
      assert one.again == one.logged == logged[one.step][one.name]


def test_goes_on_to_the_log_if_none_was_on_the_way(run):
  with Course.open(run, 2) as course:
    assert course.start == 0
    course.advance(2)
    assert not course.compared
    course.compare()
    assert [(x.step, x.same) for x in course.compared] == [(3, True)] * 2
    course.compare()
    assert course.done == 3


def test_another_state_is_told_apart(run):
  with Course.open(run, 18) as course:
    params = course.state.params
    params['final_norm']['scale'] *= 1 + 2**-7
    course.advance(18)
    assert not any(x.same for x in course.compared)
  assert Compared(3, 'loss', math.nan, math.nan).same
  assert not Compared(3, 'loss', 1.0, math.nan).same


def test_goes_back_to_a_checkpoint(run):
  with Course.open(run, 20) as course:
    course.advance(20)
    course.go_back(15)
    assert course.done == course.start == 8
    course.advance(12)
  assert [(x.step, x.same) for x in course.compared] == [
    (s, True) for s in (18, 9, 12) for _ in '12'
  ]


def test_norms_are_those_that_were_logged(run):
  [line] = [x for x in metrics.read(run) if x['step'] == 20 and 'gradient_norm/embed' in x]
  with Course.open(run, 20) as course:
    course.advance(19)
    measured = Measuring(course.parts).of(course.take())
  logged = {name: x for name, x in line.items() if name not in ('step', 'time')}
  assert measured.norms == pytest.approx(logged, rel=1e-5)
  assert len([name for name in logged if '/layer_' in name]) == 10


def test_refusals(run, tmp_path):
  with pytest.raises(UsageError, match=r'^--step=25: the steps of this run are 1 to 24'):
    Course.open(run, 25)
  with pytest.raises(UsageError, match=r'^--rewound: no rewind of the run went back over step 9'):
    Course.open(run, 9, rewound=True)
  copy = tmp_path / 'copy'
  shutil.copytree(run, copy)
  (copy / 'checkpoints/8').rename(copy / 'gone')
  with Course.open(str(copy), 12) as course:
    assert course.start == 0


@pytest.mark.slow  # whole runs
@pytest.mark.parametrize('name', ['electra', 'mass', 'switch', 'transformer_xl', 'elmo', 'albert'])
def test_any_kind_of_pre_training_is_taken_again(tmp_path, name):
  run = whole_runs.trained(name, tmp_path)
  with Course.open(str(run.workdir), 5) as course:
    course.advance(4)
    pieces = documents.pieces(course, 5)
    taken = course.take()
    scored = documents.scored(course.parts, taken, pieces)
  assert [(x.step, x.same) for x in course.compared] == [(step, True) for step in (4, 4, 5, 5)]
  assert {x.piece.row for x in scored} == {*range(taken.batch.shape.rows)}
  assert all(x.loss > 0 and x.gradient > 0 for x in scored)
