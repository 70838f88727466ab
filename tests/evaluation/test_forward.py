# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which rows are scored together, against trying every way."""

import itertools

import numpy as np
import pytest

from gpt_jax.evaluation import forward
from gpt_jax.evaluation.forward import BatchLimits, ScoredRow

LIMITS = BatchLimits(tokens=211, rows=13, cached=499, shards=1, program=17, padded=lambda n: n)


def cost(sizes, lengths, counts):
  """Tokens with the padding, and a program for each size."""
  padded = [min(s for s in sizes if s >= length) for length in lengths]
  return np.dot(padded, counts) + LIMITS.program * len(sizes)


@pytest.mark.parametrize('most', [1, 2, 3, 7])
def test_lengths_cost_least(most):
  rng = np.random.default_rng(most)
  for _ in range(19):
    lengths = rng.choice(np.arange(1, 61), 7, replace=False)
    counts = rng.integers(1, 11, 7)
    found = forward.choose_lengths(lengths, counts, LIMITS, most)
    assert len(found) <= most
    ways = [
      [*way, max(lengths)]
      for count in range(min(most, 7))
      for way in itertools.combinations(sorted(lengths)[:-1], count)
    ]
    best = min(cost(way, lengths, counts) for way in ways)
    assert cost(found, lengths, counts) == best


def row(*ids, scored=1):
  return ScoredRow(np.array(ids, np.int32), scored)


def questions(rng, begin, num_questions, num_choices, length):
  """Rows of questions that all begin alike, each with choices."""
  out = []
  for _ in range(num_questions):
    context = rng.integers(1000, size=length)
    for _ in range(num_choices):
      choice = rng.integers(1000, size=rng.integers(2, 6))
      out.append(row(*begin, *context, *choice, scored=len(choice)))
  return out


def test_what_is_shared_is_read_once():
  rng = np.random.default_rng(0)
  begin = rng.integers(1000, size=31)
  rows = questions(rng, begin, 5, 3, 19)
  rows = [rows[i] for i in rng.permutation(len(rows))]
  common, found = forward.plan(rows, LIMITS)
  assert common == len(begin)
  groups = [group for batch in found for group in batch.groups]
  assert sorted(i for g in groups for i in g.rows) == [*range(15)]
  for group in groups:
    # The last token of the context predicts the first of each choice.
    assert (len(group.rows), group.shared) == (3, 19 - 1)
    shared = {tuple(rows[i].ids[: 31 + 19]) for i in group.rows}
    assert len(shared) == 1
  for batch in found:
    tokens = batch.num_groups * batch.prefix_length
    assert tokens + batch.num_rows * batch.length <= LIMITS.tokens
    assert batch.num_rows <= LIMITS.rows
    held = common + batch.prefix_length + batch.length
    assert batch.num_rows * held <= LIMITS.cached


def test_an_article_is_shared_where_that_reads_less():
  """Two questions of an article: by themselves they would share more."""
  rng = np.random.default_rng(0)
  article, other = rng.integers(1000, size=(2, 40))
  rows = questions(rng, article, 2, 2, 3) + questions(rng, other, 2, 2, 3)
  limits = LIMITS._replace(cached=10**6)
  common, found = forward.plan(rows, limits)
  groups = [group for batch in found for group in batch.groups]
  assert common == 0
  found = sorted(sorted(g.rows) for g in groups)
  assert found == [[0, 1, 2, 3], [4, 5, 6, 7]]
  assert {g.shared for g in groups} == {40}


def test_little_is_not_shared():
  rng = np.random.default_rng(0)
  begin = rng.integers(1000, size=31)
  rows = questions(rng, begin, 5, 3, 19)
  for limits in (LIMITS._replace(cached=0), LIMITS._replace(program=10**4)):
    common, found = forward.plan(rows, limits)
    assert common == 0
    assert {g.shared for batch in found for g in batch.groups} == {0}
    assert sorted(i for batch in found for i in batch.rows) == [*range(15)]
  assert forward.plan([], LIMITS) == (0, [])


def test_what_is_scored_is_never_shared():
  ids = np.arange(41)
  rows = [row(*ids, scored=23), row(*ids, scored=3), row(*ids, scored=24)]
  _, found = forward.plan(rows, LIMITS._replace(program=0))
  for batch in found:
    for group in batch.groups:
      assert all(group.shared <= rows[i].start for i in group.rows)
