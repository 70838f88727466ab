# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The documents of a batch, each scored alone."""

import math
import pathlib

import jax
import numpy as np
import optax
import pytest

from gpt_jax.looking import documents


@pytest.fixture(scope='module')
def scored(looked):
  return documents.scored(looked.course.parts, looked.taken, looked.pieces)


def test_pieces_are_the_targets_of_their_documents(run, looked):
  targets = jax.device_get(looked.taken.batch.arrays['targets'])
  texts = pathlib.Path(run).parent / 'texts'
  seen = np.zeros(targets.shape, int)
  for piece in looked.pieces:
    seen[piece.row, piece.targets] += 1
    said = bytes(x for x in targets[piece.row, piece.targets].tolist() if x < 256).decode()
    assert said in (texts / piece.name).read_text()
    # The first token of a row is an input only.
    assert piece.text[:20] in (said[:20], (piece.text[:1] + said)[:20])
  assert np.all(seen == 1)


def test_losses_add_up_to_that_of_the_batch(looked, scored):
  """Without dropout, as an evaluation computes it."""
  taken, parts = looked.taken, looked.course.parts
  means = parts.objective.loss(taken.before.params, taken.batch.arrays, None).means({})
  assert sum(x.weight for x in scored) == pytest.approx(1)
  expected = float(means[0].sum / means[0].weight)
  assert sum(x.weight * x.loss for x in scored) == pytest.approx(expected, rel=1e-5)


def test_a_gradient_is_what_a_document_adds_to_that_of_the_batch(looked, scored):
  """With the whole batch at once, of which nothing else counts."""
  taken, parts = looked.taken, looked.course.parts
  one = scored[5]
  arrays = taken.batch.arrays
  weights = np.zeros(arrays['weights'].shape, np.float32)
  weights[one.piece.row, one.piece.targets] = 1

  @jax.jit
  def gradient(params):
    loss = parts.objective.loss(params, {**arrays, 'weights': weights}, None)
    return loss.sum / arrays['weights'].size

  expected = optax.tree.norm(jax.grad(gradient)(taken.before.params))
  assert one.gradient == pytest.approx(float(expected), rel=1e-4)
  assert one.weight == pytest.approx(weights.sum() / weights.size)


def test_what_is_not_a_number_is_first():
  piece = documents.Piece(0, (0,), '', '', None)
  scored = [documents.Scored(piece, 0.2, x, 1.0) for x in (2.0, math.nan, 3.0)]
  assert [x.loss for x in documents.ranked(scored, 'loss')][1:] == [3.0, 2.0]
