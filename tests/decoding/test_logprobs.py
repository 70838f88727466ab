# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of the engine are those of one forward pass of the text."""

import functools

import jax
import numpy as np
import pytest

from gpt_jax.decoding import programs
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.logprobs import NUM_TOP
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.settings import Sampler
from gpt_jax.decoding.speculative import Draft
from tests.support import tiny
from tests.support.cases import slow

CONTEXT, LONG = 307, 263  # more than a block of a prompt
NEVER = [5, 7]


@functools.cache
def model():
  return tiny.model(num_layers=1, context_length=CONTEXT)


def engine(slots, *, keep=0, draft=False):
  never_V = np.isin(np.arange(tiny.V), NEVER)
  params = tiny.params(model())
  other = None
  if draft:
    small = tiny.model(num_layers=1, context_length=CONTEXT, num_heads=2)
    other = Draft(small, tiny.params(small, 3), num_tokens=3)
  decoder = Decoder(model(), params, never_V=never_V)
  return Engine(decoder, slots=slots, keep=keep, draft=other)


def prompt(length, seed=0):
  return tiny.tokens(length, seed=seed).tolist()


def drawn(batch, requests):
  """All tokens of each request."""
  numbers = [batch.add(request) for request in requests]
  tokens = list(batch.run())
  return [[t for t in tokens if t.request == number] for number in numbers]


@functools.partial(jax.jit, static_argnums=0)
def forward(model, params, ids_BL):
  out = model.apply({'params': params}, ids_BL)
  logits_BLV = model.apply({'params': params}, out.hidden_BLD, method='logits')
  return jax.nn.log_softmax(logits_BLV)


def expected(ids):
  """The log-softmax after each token of a text, [L, V]."""
  return np.asarray(forward(model(), tiny.params(model()), np.array([ids])))[0]


def check(request, tokens):
  """All log-probabilities of a request against one forward pass."""
  prompt = list(request.ids)
  new = [t.id for t in tokens if t.id is not None]
  logprobs_LV = expected([*prompt, *new])
  scores = [t.logprobs for t in tokens if t.id is not None]
  at = len(prompt)
  if request.scores_prompt:
    first, *rest = tokens[0].prompt
    assert first == (prompt[0], None, ())
    scores, at = [*rest, *scores], 1
  assert [s.id for s in scores] == [*prompt, *new][at:]
  for own_V, score in zip(logprobs_LV[at - 1 :], scores, strict=False):
    np.testing.assert_allclose(score.logprob, own_V[score.id], atol=1e-5)
    assert len(score.top) == request.num_top
    order = np.sort(own_V)[::-1][: request.num_top]
    np.testing.assert_allclose([x for _, x in score.top], order, atol=1e-5)
    np.testing.assert_allclose([own_V[i] for i, _ in score.top], order, atol=1e-5)


REQUESTS = [
  Request(prompt(5, 1), 11, Sampler(0), num_top=3),
  Request(prompt(LONG, 2), 5, Sampler(2.0), 3, num_top=0, scores_prompt=True),
  Request(prompt(19, 3), 17, Sampler(0.5, top_k=7), 5),
  Request(prompt(3, 4), 2, Sampler(3.0, top_p=0.9), 7, num_top=NUM_TOP),
  Request(prompt(7, 6), 7, Sampler(0, repetition_penalty=1.7), num_top=2, scores_prompt=True),
  Request(prompt(5, 1), 3, Sampler(2.0), 13, num_top=1, scores_prompt=True),
]


@pytest.mark.parametrize('draft', [False, slow(True)])
def test_they_are_those_of_a_forward_pass(draft):
  """Before temperature and rules, in a batch of requests that differ."""
  found = drawn(engine(3, draft=draft), REQUESTS)
  for request, tokens in zip(REQUESTS, found, strict=True):
    assert len(tokens) == request.max_tokens
    if request.num_top is None:
      assert all(t.logprobs is None and t.prompt == () for t in tokens)
    else:
      check(request, tokens)
    assert not {t.id for t in tokens} & {*NEVER}


def test_the_drawn_tokens_are_the_same_without_them():
  plain = [r._replace(num_top=None, scores_prompt=False) for r in REQUESTS]
  pairs = zip(drawn(engine(3), plain), drawn(engine(3), REQUESTS), strict=True)
  for without, with_ in pairs:
    assert [t.id for t in without] == [t.id for t in with_]


def test_requests_without_them_compile_no_other_program():
  """After the others have run, and before."""
  plain = REQUESTS[2]
  drawn(engine(1), [plain])
  compiled = [
    lambda: programs.decode_step._cache_size(),
    lambda: programs.draw._cache_size(),
    lambda: programs.read_block._cache_size(),
  ]
  before = [size() for size in compiled]
  drawn(engine(1), [plain._replace(seed=7)])
  assert [size() for size in compiled] == before


def test_a_prompt_is_scored_without_drawing():
  request = Request(prompt(CONTEXT, 5), 0, num_top=1, scores_prompt=True)
  ((token,),) = drawn(engine(2), [request])
  assert (token.id, token.finish, len(token.prompt)) == (None, 'length', 307)
  check(request, [token])


def test_a_kept_prefix_is_read_again_to_be_scored():
  batch, ids = engine(1, keep=1), prompt(LONG + 11, 7)
  drawn(batch, [Request(ids, 3, Sampler(0))])
  request = Request(ids, 2, Sampler(0), num_top=2, scores_prompt=True)
  (tokens,) = drawn(batch, [request])
  check(request, tokens)
