# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scores of continuations, against one unpadded row at a time in NumPy."""

import numpy as np
import pytest

from gpt_jax.data.tokenizers.tokenizer import Bytes
from gpt_jax.evaluation import score
from gpt_jax.evaluation.journal import Journal
from gpt_jax.evaluation.score import Request, Row, Scorer
from gpt_jax.spec import UsageError
from tests.support import tiny

LENGTH = 41
REQUESTS = [
  ('The cat', ' sat', 'f:1'),
  ('', 'A whole text.', 'f:2'),
  ('A context that is longer than the model has room for, ', 'so cut', 'f:3'),
  ('x', 'y', 'f:4'),
  ('The dog', ' barked aloud', 'f:5'),
]


def make(sizes=(1, 1, 1)) -> Scorer:
  config = tiny.config(
    **{
      **tiny.MESHABLE,
      'model.vocab_size': 264,
      'model.context_length': LENGTH,
      'eval.rows': 2,
    }
  )
  run = tiny.build(config, sizes)
  return Scorer(run, tiny.params(run.model), Bytes())


def quiet(stage, done, total):
  del stage, done, total


def reference(scorer: Scorer, ids: np.ndarray, num_scored: int):
  """Sum of log-probabilities, and whether each is the largest."""
  model = scorer._parts.model
  hidden = model.apply({'params': scorer.params}, ids[None, :-1]).hidden_BLD
  logits = model.apply({'params': scorer.params}, hidden, method='logits')
  logits = np.asarray(logits, np.float64)[0, -num_scored:]
  log_z = np.log(np.exp(logits).sum(-1))
  picked = logits[np.arange(num_scored), ids[-num_scored:]]
  return (picked - log_z).sum(), (picked == logits.max(-1)).all()


def expected(scorer: Scorer, request):
  """From the bytes of the request."""
  context, continuation, _ = request
  ids = np.array([256, *(context + continuation).encode()])
  ids = ids[-(LENGTH + 1) :]
  return reference(scorer, ids, len(continuation))


@pytest.mark.parametrize('sizes', [(1, 1, 1), (2, 2, 2)])
def test_scores_equal_one_row_at_a_time(sizes):
  scorer = make(sizes)
  scores = scorer.requests(
    [Request(*r) for r in REQUESTS], Journal(None, ''), quiet
  )
  for request, found in zip(REQUESTS, scores, strict=True):
    log_prob, greedy = expected(scorer, request)
    np.testing.assert_allclose(found.log_prob, log_prob, rtol=1e-5)
    assert found.greedy == greedy
    assert found.num_tokens == len(request[1])
    whole = 1 + len(request[0] + request[1])
    assert found.cut == max(whole - LENGTH - 1, 0)


@pytest.mark.parametrize('sizes, few', [((1, 1, 1), 1), ((2, 2, 2), 4)])
def test_a_batch_is_no_larger_than_its_rows(monkeypatch, sizes, few):
  scorer = make(sizes)
  shapes = []
  score_rows = scorer._score

  def recorded(params, batch, *, width):
    shapes.append(batch['inputs'].shape)
    return score_rows(params, batch, width=width)

  scorer._score = recorded
  ids = np.arange(17, dtype=np.int32)
  full = scorer._num_rows(16)
  for number in (1, full, full + 1):
    scorer.rows([Row(ids, 2)] * number, Journal(None, ''), quiet)
  assert full > few
  assert shapes == [(few, 16), (full, 16), (full, 16), (few, 16)]
  monkeypatch.setattr(score, '_MOST_TOKENS', 16)
  assert scorer._num_rows(16) == few


def test_greedy_text_is_told_from_another():
  scorer = make()
  (answer,) = scorer.answers(['ab'], 3, Journal(None, ''), quiet)
  ids = [256, *b'ab']
  for _ in range(2):
    row = np.array([*ids, 0])
    hidden = scorer._parts.model.apply(
      {'params': scorer.params}, row[None, :-1]
    )
    logits = scorer._parts.model.apply(
      {'params': scorer.params}, hidden.hidden_BLD, method='logits'
    )
    ids.append(int(np.argmax(logits[0, -1])))
  best, other = np.array(ids, np.int32), np.array([*ids[:-1], ids[-1] ^ 1])
  rows = [Row(best, 2), Row(other.astype(np.int32), 2)]
  found = scorer.rows(rows, Journal(None, ''), quiet)
  assert [s.greedy for s in found] == [1, 0]
  assert isinstance(answer, str)


def test_a_token_across_the_boundary_belongs_to_the_continuation():
  class Pairs(Bytes):
    """Two characters a token."""

    def encode(self, text):
      pairs = [text[i : i + 2] for i in range(0, len(text), 2)]
      return np.array([sum(map(ord, p)) for p in pairs], np.int32)

  found = score.row(Pairs(), Request('abc', 'def', ''), LENGTH)
  # 'ab' | 'cd' 'ef': the second token spans the boundary.
  np.testing.assert_array_equal(found.ids, [256, 195, 199, 203])
  assert found.num_scored == 2


def test_what_does_not_fit_is_refused():
  assert score.row(Bytes(), Request('', 'x' * 42, 'f:7'), LENGTH) is None
  requests = [Request('', 'x' * 42, ''), Request('', 'x' * 41, '')]
  none, found = make().requests(requests, Journal(None, ''), quiet)
  assert none is None
  assert found.num_tokens == 41
  with pytest.raises(UsageError, match=r'^f:8: has no text to score'):
    score.row(Bytes(), Request('x', '', 'f:8'), LENGTH)


def test_a_stopped_evaluation_goes_on(tmp_path, monkeypatch):
  requests = [Request(*r) for r in REQUESTS]
  path = str(tmp_path / 'scores' / 'a.jsonl')
  scorer = make()
  whole = scorer.requests(requests, Journal(None, ''), quiet)

  calls = []

  def stop(stage, done, total):
    calls.append(done)
    if len(calls) == 2:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    scorer.requests(requests, Journal(path, 'm'), stop)
  with open(path, 'a', encoding='utf-8') as f:
    f.write('{"0": [-1.0')  # what a killed process wrote last
  scored = []
  batch = Scorer._batch
  monkeypatch.setattr(
    Scorer,
    '_batch',
    lambda self, rows: scored.extend(rows) or batch(self, rows),
  )
  assert scorer.requests(requests, Journal(path, 'm'), quiet) == whole
  assert len(scored) == len(requests) - calls[1]
  # All of them are there; those of another model, or of other rows, are not.
  scored.clear()
  assert scorer.requests(requests, Journal(path, 'm'), quiet) == whole
  assert not scored
  scorer.requests(requests, Journal(path, 'other'), quiet)
  assert len(scored) == len(requests)
  scored.clear()
  scorer.requests(requests[1:], Journal(path, 'other'), quiet)
  assert len(scored) == len(requests) - 1
