# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scores of continuations, against one unpadded row at a time in NumPy."""

import jax
import numpy as np
import pytest

from gpt_jax.core.nn.choices import POSITIONS
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.evaluation import forward, score
from gpt_jax.evaluation import score as limits
from gpt_jax.evaluation.forward import Forward, ScoredRow
from gpt_jax.evaluation.score import Journal, Scorer, ScoreRequest
from tests.support import tiny

LENGTH = 41
REQUESTS = [
  ('The cat', ' sat', 'f:1'),
  ('', 'A whole text.', 'f:2'),
  ('A context that is longer than the model has room for, ', 'so cut', 'f:3'),
  ('x', 'y', 'f:4'),
  ('The dog', ' barked aloud', 'f:5'),
]


def make(sizes=(1, 1, 1), *, rows=None, tokens=None, **changes) -> Scorer:
  config = tiny.config(
    **{
      **tiny.MESHABLE,
      'model.vocab_size': 264,
      'model.context_length': LENGTH,
      'eval.rows': 2,
      **changes,
    }
  )
  run = tiny.build(config, sizes)
  params = tiny.params(run.model)
  return Scorer(run, params, Bytes(), rows=rows, tokens=tokens)


def short_rows(count: int) -> list[ScoredRow]:
  """Rows of 16 tokens that differ in the last id, the second scored one."""
  return [ScoredRow(np.append(np.arange(16), i).astype(np.int32), 2) for i in range(count)]


def quiet(stage, done, total):
  del stage, done, total


def reference(logits_BLV, ids: np.ndarray, num_scored: int):
  """Sum of log-probabilities, and whether each is the largest."""
  logits = np.asarray(logits_BLV, np.float64)[0, : len(ids) - 1]
  logits = logits[-num_scored:]
  log_z = np.log(np.exp(logits).sum(-1))
  picked = logits[np.arange(num_scored), ids[-num_scored:]]
  return (picked - log_z).sum(), (picked == logits.max(-1)).all()


def logits_of(scorer: Scorer):
  """All logits of a batch, [B, L, V]."""
  model, variables = scorer._parts.model, {'params': scorer.params}

  def run(inputs):
    hidden_BLD = model.apply(variables, inputs).hidden_BLD
    return model.apply(variables, hidden_BLD, method='logits')

  return jax.jit(run)


def expected(logits_of_batch, request):
  """From the bytes of the request; padding changes nothing before it."""
  context, continuation, _ = request
  ids = np.array([256, *(context + continuation).encode()])
  ids = ids[-(LENGTH + 1) :]
  inputs = np.zeros((1, LENGTH), np.int32)
  inputs[0, : len(ids) - 1] = ids[:-1]
  return reference(logits_of_batch(inputs), ids, len(continuation))


@pytest.mark.parametrize('sizes', [(1, 1, 1), (2, 2, 2)])
def test_scores_equal_one_row_at_a_time(sizes):
  scorer = make(sizes)
  scores = scorer.requests([ScoreRequest(*r) for r in REQUESTS], Journal(None, ''), quiet)
  logits_of_batch = logits_of(scorer)
  for request, found in zip(REQUESTS, scores, strict=True):
    log_prob, greedy = expected(logits_of_batch, request)
    np.testing.assert_allclose(found.log_prob, log_prob, rtol=1e-5)
    assert found.greedy == greedy
    assert found.num_tokens == len(request[1])
    whole = 1 + len(request[0] + request[1])
    assert found.cut == max(whole - LENGTH - 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
  'position',
  [
    pytest.param(name, marks=() if name == 'transformer_xl' else pytest.mark.slow)
    # These know whole rows, and have no caches to share.
    for name in sorted({*POSITIONS} - {'deberta', 'xlnet'})
  ],
)
def test_what_rows_share_is_read_once(monkeypatch, position):
  check_shared(monkeypatch, **{'model.position': position})


@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [
    {'model.attention': 'full, local(window=3), local(window=2)'},
    {'model.ffn': 'switch(num_experts=4, eval_capacity_factor="none")'},
    {'model.num_kv_heads': 1, 'model.loop': 'unroll'},
  ],
  ids=['attention', 'experts', 'unroll'],
)
def test_other_models_share_too(monkeypatch, changes):
  check_shared(monkeypatch, **changes)


@pytest.mark.slow  # test_scores_equal_one_row_at_a_time has a mesh, too
def test_rows_over_a_mesh_share_too(monkeypatch):
  check_shared(monkeypatch, (2, 2, 2))


def check_shared(monkeypatch, sizes=(1, 1, 1), **changes):
  """Choices of questions after shots that all have, scored one at a time."""
  monkeypatch.setattr(limits, '_PROGRAM_TOKENS', 20)
  monkeypatch.setattr(limits, '_PROGRAM_FLOPS', 0)
  monkeypatch.setattr(forward, '_BLOCK', 7)
  shots = 'Q: one? A: 1; Q: two?'
  texts = [' What is it, so late? A:', ' Who is there, my friend? A:', ' It?']
  ends = [' a choice', ' bb', ' c' * 17 + ' d']
  requests = [
    ScoreRequest(shots + text, end, '')
    for text, choices in zip(texts, (ends, ends[:2], ends[1:2]), strict=True)
    for end in choices
  ]
  # The longest row takes all positions.
  context = max(len(r.context + r.continuation) for r in requests)
  scorer = make(sizes, **{'model.context_length': context, **changes})
  read = []
  score_rows, score_rest = scorer._forward._rows, scorer._forward._rest

  def counted(function):
    def run(params, *args):
      read.append(np.shape(args[-1]['inputs']))
      return function(params, *args)

    return run

  monkeypatch.setattr(scorer._forward, '_rows', counted(score_rows))
  monkeypatch.setattr(scorer._forward, '_rest', counted(score_rest))
  monkeypatch.setattr(scorer._forward, '_read', counted(scorer._forward._read))
  found = scorer.requests(requests, Journal(None, ''), quiet)
  texts = [(r.context + r.continuation).encode() for r in requests]
  # Padding on the right changes nothing before it.
  inputs = np.array([[256, *text.ljust(context)[:-1]] for text in texts])
  logits = np.asarray(logits_of(scorer)(inputs), np.float64)
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  for i, (text, one) in enumerate(zip(texts, found, strict=True)):
    start = len(text) - len(requests[i].continuation)
    at = range(start, len(text)), list(text[start:])
    np.testing.assert_allclose(one.log_prob, log_probs[i][at].sum(), rtol=1e-5)
    best = log_probs[i, start : len(text)].argmax(-1)
    assert one.greedy == (best.tolist() == list(text[start:]))
  # The shots are one row of their own, and no other row holds them.
  common = len([256, *shots, ' '])
  assert (1, common) in read
  assert all(rows == 1 or length <= 40 for rows, length in read)


@pytest.mark.parametrize('sizes, few', [((1, 1, 1), 1), ((2, 2, 2), 4)])
def test_a_batch_is_no_larger_than_its_rows(monkeypatch, sizes, few):
  scorer = make(sizes)
  shapes = []
  score_rows = scorer._forward._rows

  def recorded(params, batch):
    shapes.append(batch['inputs'].shape)
    return score_rows(params, batch)

  monkeypatch.setattr(scorer._forward, '_rows', recorded)
  # eval.rows of the whole context, a multiple of the parts of a batch.
  full = max(2, few) * LENGTH // 16 // few * few
  for number in (1, full, full + 1):
    scorer.rows(short_rows(number), Journal(None, ''), quiet)
  assert full > few
  half = -(-(full + 1) // 2 // few) * few
  assert shapes == [(few, 16), (full, 16), (half, 16), (half, 16)]


@pytest.mark.parametrize('most, shape', [({'rows': 3}, (3, 16)), ({'tokens': 79}, (4, 16))])
def test_a_batch_holds_what_was_asked(most, shape):
  scorer = make(**most)
  batches = []
  score_rows = scorer._forward.score
  scorer._forward.score = lambda params, rows, batch, *common: (
    batches.append(batch) or score_rows(params, rows, batch, *common)
  )
  scorer.rows(short_rows(12), Journal(None, ''), quiet)
  assert {(b.num_rows, b.length) for b in batches} == {shape}


@pytest.mark.slow
def test_greedy_text_is_told_from_another():
  scorer = make()
  (answer,) = scorer.answers(['ab'], 3, Journal(None, ''), quiet)
  ids = [256, *b'ab']
  for _ in range(2):
    row = np.array([*ids, 0])
    hidden = scorer._parts.model.apply({'params': scorer.params}, row[None, :-1])
    logits = scorer._parts.model.apply(
      {'params': scorer.params}, hidden.hidden_BLD, method='logits'
    )
    ids.append(int(np.argmax(logits[0, -1])))
  best, other = np.array(ids, np.int32), np.array([*ids[:-1], ids[-1] ^ 1])
  rows = [ScoredRow(best, 2), ScoredRow(other.astype(np.int32), 2)]
  found = scorer.rows(rows, Journal(None, ''), quiet)
  assert [s.greedy for s in found] == [1, 0]
  assert isinstance(answer, str)


def test_a_token_across_the_boundary_belongs_to_the_continuation():
  class Pairs(Bytes):
    """Two characters a token."""

    def encode(self, text):
      pairs = [text[i : i + 2] for i in range(0, len(text), 2)]
      return np.array([sum(map(ord, p)) for p in pairs], np.int32)

  found = score.row(Pairs(), ScoreRequest('abc', 'def', ''), LENGTH)
  # 'ab' | 'cd' 'ef': the second token spans the boundary.
  np.testing.assert_array_equal(found.ids, [256, 195, 199, 203])
  assert found.num_scored == 2


def test_equal_rows_are_scored_once():
  scorer, told = make(), []
  rows = [short_rows(2)[i] for i in (0, 1, 0, 0, 1)]
  found = scorer.rows(rows, Journal(None, ''), lambda stage, done, total: told.append(total))
  assert set(told) == {2}
  assert found[0] == found[2] == found[3] != found[1] == found[4]


def test_what_does_not_fit_is_refused():
  assert score.row(Bytes(), ScoreRequest('', 'x' * 42, 'f:7'), LENGTH) is None
  requests = [ScoreRequest('', 'x' * 42, ''), ScoreRequest('', 'x' * 41, '')]
  none, found = make().requests(requests, Journal(None, ''), quiet)
  assert none is None
  assert found.num_tokens == 41
  with pytest.raises(UsageError, match=r'^f:8: has no text to score'):
    score.row(Bytes(), ScoreRequest('x', '', 'f:8'), LENGTH)


@pytest.mark.parametrize('torn', ['{"0": [-1.0', '\0\0\0\n'])
def test_a_stopped_evaluation_goes_on(tmp_path, monkeypatch, torn):
  requests = [ScoreRequest(*r) for r in REQUESTS]
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
    f.write(torn)  # what a killed process wrote last, or a crash left
  scored = []
  score = Forward.score
  monkeypatch.setattr(
    Forward,
    'score',
    lambda self, params, rows, batch, *common: (
      scored.extend(batch.rows) or score(self, params, rows, batch, *common)
    ),
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
