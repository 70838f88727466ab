# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a step would have done."""

import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.looking import what_if


def test_with_its_own_rate_and_bound_it_is_the_step(looked):
  course, taken, following, _ = looked
  before = what_if.as_it_was(course, taken, following)
  config = course.parts.config
  same = what_if.changed(course, taken, following, lr=1e-2, clip=config.optim.clip_norm)
  assert same == before
  assert before.next_loss < before.loss


def test_at_rate_0_nothing_is_added(looked):
  course, taken, following, _ = looked
  outcome = what_if.changed(course, taken, following, lr=0.0)
  assert outcome.update_norm == 0
  assert outcome.loss == what_if.as_it_was(course, taken, None).loss
  assert what_if.as_it_was(course, taken, None).next_loss is None


def test_without_a_document_its_tokens_do_not_count(looked):
  course, taken, _, pieces = looked
  document = pieces[3].documents[0]
  kept = [x for x in pieces if document not in x.documents]
  less = what_if.changed(course, taken, None, batch=pieces, without=[document])
  rest = {d for x in kept for d in x.documents}
  alone = what_if.changed(course, taken, None, batch=pieces, without=rest)
  share = sum(x.targets.stop - x.targets.start for x in pieces if x not in kept)
  share /= taken.batch.shape.tokens
  whole = what_if.as_it_was(course, taken, None)
  assert 0 < share < 1
  assert whole.loss == pytest.approx(share * alone.loss + (1 - share) * less.loss, rel=1e-5)
  with pytest.raises(UsageError, match=r'^--without=999: no row of step 20 has that document'):
    what_if.changed(course, taken, None, batch=pieces, without=[document, 999])
