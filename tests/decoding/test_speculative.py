# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Proposals of a draft change how fast a text comes, and not its distribution.

The counts are functions of fixed seeds. A sound sampler fails a test with
p-values below 1e-4 for one seed in 10,000; one that draws from the draft, or
forgets to subtract it, gives 1e-100 and less here.
"""

import functools

import jax
import numpy as np
import pytest
import scipy.stats
from scipy import special

from gpt_jax.core.spec import UsageError
from gpt_jax.decoding import programs, speculative
from gpt_jax.decoding import sampler as sampler_lib
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.settings import Sampler
from gpt_jax.decoding.speculative import Draft
from tests.support import tiny
from tests.support.decoding import generate

V, CONTEXT = 7, 53
LEAST = 1e-4


@functools.cache
def pair():
  """A model, and another that knows nothing of it."""
  fields = {'vocab_size': V, 'context_length': CONTEXT}
  one = tiny.model(**fields, num_layers=1, attention='local(window=3)')
  other = tiny.model(**fields, num_layers=1, num_heads=2)
  models = programs.for_decoding(one, tiny.params(one, 1))
  return models, programs.for_decoding(other, tiny.params(other, 2))


def engine(slots, num_tokens, *, own=False):
  model, other = pair()
  draft = Draft(*(model if own else other), num_tokens)
  return Engine(Decoder(*model), slots=slots, draft=draft)


def prompt(length, seed=0):
  return tiny.tokens(length, seed=seed, vocab_size=V).tolist()


def continued(batch, requests):
  """The new ids of each request, the engine's slots being few or many."""
  out = {batch.add(request): [] for request in requests}
  ended = set()
  for token in batch.run():
    assert token.request not in ended
    if token.id is not None:
      out[token.request].append(token.id)
    if token.finish:
      ended.add(token.request)
  return list(out.values())


SOME = Sampler(1.3, min_p=0.05, repetition_penalty=1.5)
ALL = SOME._replace(top_k=6, top_p=0.9)
GREEDY = SOME._replace(temperature=0)
REQUESTS = [
  Request(prompt(1, 1), CONTEXT - 1, SOME._replace(min_p=0.1)),
  Request(prompt(7, 2), 5, SOME._replace(min_p=0), 3),
  Request(prompt(11, 3), 17, SOME._replace(temperature=3.0), 5),
  Request(prompt(2, 5), 13, SOME._replace(repetition_penalty=1.1), 11),
  Request(prompt(5, 1), 1, SOME, 17),
]


@pytest.mark.slow
def test_a_request_does_not_depend_on_its_company():
  """Rows accept different numbers, come and go; two at a time."""
  batch = engine(2, 4)
  together = continued(batch, REQUESTS)
  assert 0 < batch.proposals.accepted < batch.proposals.proposed
  assert batch.cache_bytes == 0
  alone = engine(1, 4)
  for request, found in zip(REQUESTS, together, strict=True):
    assert len(found) == request.max_tokens
    assert continued(alone, [request]) == [found]


@pytest.mark.slow
def test_prompts_are_read_between_rounds(monkeypatch):
  """By both models, eight of eleven tokens in the first of two rounds."""
  first, second = REQUESTS[0], REQUESTS[2]
  alone = engine(1, 4)
  expected = [continued(alone, [request])[0] for request in (first, second)]
  monkeypatch.setattr(programs, 'BLOCK', 8)
  batch = engine(2, 4)
  numbers, tokens = [batch.add(first)], batch.step()
  numbers.append(batch.add(second))
  for came in ([0], [0, 1]):
    step = batch.step()
    assert sorted({numbers.index(token.request) for token in step}) == came
    tokens += step
  tokens += batch.run()
  for number, ids in zip(numbers, expected, strict=True):
    assert [t.id for t in tokens if t.request == number] == ids


@pytest.mark.slow
def test_a_turn_reads_what_is_new(monkeypatch):
  """Also what the draft has not read of the turn before."""
  monkeypatch.setattr(programs, 'BLOCK', 4)
  model, other = pair()
  found, starts, read = [], [], programs.read_block

  def noted(params, caches, tokens_BL, start, *args, **kwargs):
    starts.append(start)
    return read(params, caches, tokens_BL, start, *args, **kwargs)

  monkeypatch.setattr(programs, 'read_block', noted)
  for keep in (0, 1):
    batch = Engine(Decoder(*model), slots=1, draft=Draft(*other, 4), keep=keep)
    ids = prompt(5, 1)
    for turn in range(3):
      (new,) = continued(batch, [Request(ids, 6 + turn, SOME, turn)])
      ids = [*ids, *new, 3]
    found.append((ids, batch.proposals))
  assert found[0] == found[1]
  # 5, 12 and 20 tokens, by both models; 11 and 19 of them less two are kept.
  whole = [*range(0, 5, 4), *range(0, 12, 4), *range(0, 20, 4)]
  new = [*range(0, 5, 4), *range(8, 12, 4), *range(16, 20, 4)]
  assert starts == [start for start in whole + new for _ in range(2)]


def test_greedy_ids_are_those_without_a_draft():
  """In rows that end at the context's end, or by a stop."""
  requests = [request._replace(sampler=GREEDY) for request in REQUESTS]
  model, other = pair()
  plain = continued(Engine(Decoder(*model), slots=1), requests)
  batch = engine(1, 4)
  assert continued(batch, requests) == plain
  assert 0 < batch.proposals.accepted < batch.proposals.proposed
  stops = {plain[0][5]}
  stopped = [request._replace(stop_ids=stops) for request in requests]
  expected = [
    ids[: min((i for i, x in enumerate(ids) if x in stops), default=None)] for ids in plain
  ]
  assert continued(batch, stopped) == expected
  # What a round gives after the end that a caller sees is dropped.
  request = requests[0]
  (found,) = generate(
    *model,
    [list(request.ids)],
    max_tokens=request.max_tokens,
    sampler=GREEDY,
    seed=0,
    stop_when=lambda ids: len(ids) == 2,
    draft=Draft(*other, 4),
  )
  assert found == plain[0][:2]


def test_a_draft_that_is_the_model_is_always_right():
  """Whatever the samplers do; each round gives five tokens."""
  batch = engine(1, 4, own=True)
  found = continued(batch, REQUESTS)
  assert [len(ids) for ids in found] == [r.max_tokens for r in REQUESTS]
  assert batch.proposals.accepted == batch.proposals.proposed > 0


@jax.jit
def forward(rows):
  model, params = pair()[0]
  hidden = model.apply({'params': params}, rows).hidden_BLD
  return model.apply({'params': params}, hidden, method='logits')


def logits_of(rows):
  """The model's, after each of some equally long rows."""
  num, length = rows.shape
  padded = np.zeros((V**3, 6), np.int32)  # one shape, to compile once
  padded[:num, :length] = rows
  return np.asarray(forward(padded), np.float64)[:num, length - 1]


def probabilities(rows, sampler):
  """Of what follows each row, from the definitions of the sampler's fields."""
  out = []
  for row, logits in zip(rows, logits_of(rows), strict=True):
    penalty = sampler.repetition_penalty
    scores = np.where(logits > 0, logits / penalty, logits * penalty)
    logits = np.where(np.isin(np.arange(V), row), scores, logits)
    probs = special.softmax(logits / sampler.temperature)
    kept = np.argsort(-probs)[: sampler.top_k or V]
    of_kept = np.cumsum(probs[kept]) / probs[kept].sum()
    kept = kept[: 1 + np.sum(of_kept < sampler.top_p)]
    kept = kept[probs[kept] >= sampler.min_p * probs.max()]
    drawn = np.zeros(V)
    drawn[kept] = probs[kept] / probs[kept].sum()
    out.append(drawn)
  return np.array(out)


def p_value(counts, probs):
  """Of the chi-square test; those expected less than 5 times as one."""
  np.testing.assert_array_equal(counts[probs == 0], 0)
  expected = probs * counts.sum()
  rare = expected < 5
  found = [*counts[~rare], counts[rare].sum()]
  means = [*expected[~rare], expected[rare].sum()]
  if means[-1] < 5:
    found, means = ([*found[:-2], sum(found[-2:])], [*means[:-2], sum(means[-2:])])
  return scipy.stats.chisquare(found, means, sum_check=False).pvalue


@pytest.mark.slow
@pytest.mark.parametrize('sampler', [Sampler(), ALL])
def test_counts_of_each_place_follow_the_model(sampler):
  """The first four tokens after one prompt, in 2,048 rows.

  The exact distribution of a place is summed over all that may stand before it.
  The last token is of the second round for some rows.
  """
  start, rows, num_tokens = prompt(3, 7), 2048, 2
  batch = engine(rows, num_tokens)
  found = np.array(continued(batch, [Request(start, 4, sampler, seed) for seed in range(rows)]))
  assert 0.1 < batch.proposals.accepted / batch.proposals.proposed < 0.9
  texts, weights = np.array([start]), np.ones(1)
  for place in range(4):
    next_XV = weights[:, None] * probabilities(texts, sampler)
    counts = np.bincount(found[:, place], minlength=V)
    assert p_value(counts, next_XV.sum(axis=0)) > LEAST
    weights = next_XV.ravel()
    if place == 1:
      # Two places together, one of them proposed.
      both = np.bincount(found[:, 0] * V + found[:, 1], minlength=V * V)
      assert p_value(both, weights) > LEAST
    texts = np.concatenate(
      [np.repeat(texts, V, axis=0), np.tile(np.arange(V), len(texts))[:, None]], axis=1
    )


JUDGE = jax.jit(speculative.judge)
PROPOSE = jax.jit(speculative.propose)


def test_proposals_are_accepted_as_often_as_the_distributions_overlap():
  """A proposal is accepted with sum(min(p, q)) (Leviathan et al., theorem 3.5).

  Both exclude tokens, and not the same.
  """
  rng, rows, N = np.random.default_rng(3), 20_011, 3
  p = rng.normal(size=(N + 1, V)).astype(np.float32) * 1.5
  q = rng.normal(size=(N, V)).astype(np.float32) * 1.5
  p[:, 2] = p[1, 5] = q[0, 6] = q[1, 2] = -np.inf
  stacked = sampler_lib.stack([ALL] * rows, range(rows))
  first = np.full(rows, 5, np.int32)
  every = np.broadcast_to
  proposed = np.stack(
    [PROPOSE(every(q[i], (rows, V)), stacked, first + i) for i in range(N)], axis=1
  )
  accepted, own = JUDGE(
    proposed, every(p, (rows, N + 1, V)), every(q, (rows, N, V)), stacked, first
  )
  probs, proposals = (special.softmax(np.float64(x), axis=-1) for x in (p, q))
  overlaps = np.minimum(probs[:-1], proposals).sum(axis=1)
  reach = np.cumprod([1, *overlaps])
  expected = reach - [*reach[1:], 0]
  assert p_value(np.bincount(accepted, minlength=N + 1), expected) > LEAST
  # Each place that is reached has its own distribution, whatever is before it.
  ids = np.where(
    np.arange(N + 1) == np.asarray(accepted)[:, None],
    np.asarray(own)[:, None],
    np.pad(proposed, ((0, 0), (0, 1))),
  )
  for i in range(N + 1):
    counts = np.bincount(ids[accepted >= i, i], minlength=V)
    assert p_value(counts, probs[i]) > LEAST


@pytest.mark.parametrize(
  'changes, why',
  [
    ({'vocab_size': 13}, "has a vocabulary of 13 and the model's is 7"),
    ({'context_length': 47}, "has a context of 47 tokens and the model's is 53"),
    ({'num_encoder_layers': 1}, 'an encoder-decoder neither proposes'),
    ({'attention': 'lstm(17)', 'block': 'plain'}, 'cannot go back to before'),
  ],
)
def test_a_draft_that_does_not_suit_is_refused(changes, why):
  model, _ = pair()
  fields = {'vocab_size': V, 'context_length': CONTEXT, 'num_layers': 1}
  other = tiny.model(**{**fields, **changes})
  with pytest.raises(UsageError, match=why):
    Engine(Decoder(*model), slots=1, draft=Draft(other, {}, 3))
