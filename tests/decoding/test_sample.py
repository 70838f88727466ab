# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoding with a cache equals decoding without, and draws as told."""

import functools

import jax
import numpy as np
import pytest

from gpt_jax.decoding import sample
from gpt_jax.decoding.sample import Sampler
from gpt_jax.nn.caches import init_caches
from tests.support import reference, tiny

B, V, CONTEXT = tiny.B, tiny.V, tiny.MODEL['context_length']
GREEDY = Sampler(temperature=0)
ATTENTION = 'full, local(window=3)'
# In lengths that are padded to 1, 4 and 8, and some of which are powers of 2.
PROMPTS = [[5], [3, 1, 4], [2, 7, 1, 8], [1, 4, 14, 2, 13, 5, 6], [9, 9]]


@functools.cache
def model():
  return tiny.model(attention=ATTENTION, num_layers=2, dropout='none')


def params():
  return tiny.params(model())


@functools.cache
def full_logits():
  def run(params, tokens):
    hidden = model().apply({'params': params}, tokens).hidden_BLD
    return model().apply({'params': params}, hidden, method='logits')

  return jax.jit(run)


def continued_without_cache(prompt, num):
  """Greedy, by a whole forward pass for each token (the padding is later)."""
  ids = list(prompt)
  for _ in range(num):
    padded = np.zeros((1, CONTEXT), np.int32)
    padded[0, : len(ids)] = ids
    logits = full_logits()(params(), padded)[0, len(ids) - 1]
    ids.append(int(np.argmax(logits)))
  return ids[len(prompt) :]


def generate(prompts, **kwargs):
  kwargs = {'max_tokens': 5, 'sampler': GREEDY, 'seed': 0, **kwargs}
  return sample.generate(model(), params(), prompts, **kwargs)


def test_token_by_token_equals_the_forward_pass():
  """Each row starts after a prompt of another length."""
  tokens = tiny.tokens(B, CONTEXT)
  whole = np.asarray(full_logits()(params(), tokens))

  @jax.jit
  def step(caches, tokens, positions):
    variables = {'params': params()}
    out = model().apply(variables, tokens, positions, caches)
    logits = model().apply(variables, out.hidden_BLD, method='logits')
    return out.caches, logits

  caches = init_caches(model(), B, CONTEXT)
  # One layer of each pattern, repeated once.
  assert len(caches) == 2
  assert caches[0].key_BMGK.shape == (1, B, CONTEXT, tiny.G, tiny.K)
  every = np.broadcast_to(np.arange(4), (B, 4))
  caches, logits = step(caches, tokens[:, :4], every)
  np.testing.assert_allclose(logits, whole[:, :4], rtol=1e-3, atol=1e-4)
  # From positions 2, 3 and 4 on: what the prompt left there is overwritten.
  start = np.array([[2], [3], [4]])
  for i in range(CONTEXT - 4):
    at = start + i
    now = np.take_along_axis(tokens, at, axis=1)
    caches, logits = step(caches, now, at)
    expected = np.take_along_axis(whole, at[:, :, None], axis=1)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)


def test_greedy_continuations_alone_and_together():
  together = generate(PROMPTS)
  for prompt, found in zip(PROMPTS, together, strict=True):
    assert found == continued_without_cache(prompt, 5)
  assert len({tuple(ids) for ids in together}) > 1
  for i in (0, 2):
    assert generate([PROMPTS[i]]) == [together[i]]


def test_encoder_decoders():
  """From sources of several lengths, against a forward pass each."""
  both = tiny.model(
    num_layers=2,
    num_encoder_layers=3,
    position='t5_bias',
    init_weights='normal(stddev=1.0)',
  )
  weights = tiny.params(both)

  @jax.jit
  def logits(source, tokens):
    variables = {'params': weights}
    out = both.apply(variables, tokens, encoder_tokens_BM=source)
    return both.apply(variables, out.hidden_BLD, method='logits')

  prompts = [[0], [0], [3, 1]]
  sources = [[5], [2, 7, 1, 8, 3], [9, 9, 4]]
  expected = []
  for source, prompt in zip(sources, prompts, strict=True):
    ids = list(prompt)
    for _ in range(5):
      padded = np.zeros((1, CONTEXT), np.int32)
      padded[0, : len(ids)] = ids
      scores = logits(np.array([source]), padded)
      ids.append(int(np.argmax(scores[0, len(ids) - 1])))
    expected.append(ids[len(prompt) :])
  found = sample.generate(
    both,
    weights,
    prompts,
    sources=sources,
    max_tokens=5,
    sampler=GREEDY,
    seed=0,
  )
  assert found == expected
  assert expected[0] != expected[1]
  with pytest.raises(AssertionError):
    sample.generate(
      both, weights, prompts, max_tokens=5, sampler=GREEDY, seed=0
    )


def test_continuation_may_fill_the_context():
  prompt = PROMPTS[3]
  room = CONTEXT - len(prompt)
  [found] = generate([prompt], max_tokens=room)
  assert len(found) == room
  assert found[:5] == continued_without_cache(prompt, 5)
  with pytest.raises(AssertionError):
    generate([prompt], max_tokens=room + 1)


def test_stop_ids_end_a_row_and_not_the_others():
  """Each by itself, and both together, whichever comes first."""
  plain = generate(PROMPTS)
  one, two = plain[1][1], plain[4][1]
  lengths = set()
  for stops in ((one,), (two,), (one, two)):
    expected = []
    for ids in plain:
      ends = [i for i, token in enumerate(ids) if token in stops]
      expected.append(ids[: min(ends, default=5)])
    assert {len(ids) for ids in expected} != {5}
    lengths.add(tuple(len(ids) for ids in expected))
    compiled = sample.decode_step._cache_size()
    assert generate(PROMPTS, stop_ids=stops) == expected
    assert sample.decode_step._cache_size() == compiled
  assert len(lengths) == 3


def test_stop_when_is_asked_after_each_token():
  plain = generate(PROMPTS)
  asked = []

  def stop_when(ids):
    asked.append(list(ids))
    return len(ids) == 2 and ids[0] == plain[1][0]

  found = generate(PROMPTS, stop_when=stop_when)
  short = [ids[0] == plain[1][0] for ids in plain]
  assert 0 < sum(short) < len(short)
  assert found == [
    ids[:2] if s else ids for ids, s in zip(plain, short, strict=True)
  ]
  # Never of a row that has ended.
  assert len(asked) == sum(len(ids) for ids in found)


def test_draws_are_a_function_of_the_seed():
  warm = Sampler(temperature=3.0)
  one, same, other = (
    generate(PROMPTS, sampler=warm, seed=seed) for seed in (1, 1, 2)
  )
  assert one == same
  assert one != other
  # Rows that hold the same prompt go different ways.
  twins = generate([PROMPTS[0]] * 5, sampler=warm)
  assert len({tuple(ids) for ids in twins}) > 1


def test_each_token_is_a_new_draw():
  """Where all tokens are as likely, ten draws are hardly ever the same."""
  flat = jax.tree.map(np.zeros_like, params())
  found = sample.generate(
    model(), flat, [[1], [2]], max_tokens=10, sampler=Sampler(), seed=0
  )
  assert all(len({*ids}) > 4 for ids in found)


# The sampler -------------------------------------------------------------

DRAWS = 20_011
# Not sorted, the differences large enough to tell the tokens apart.
LOGITS = np.float32([0.3, -1.0, 1.7, 0.9, -0.4, 1.2, -2.2])


def frequencies(sampler, logits=LOGITS):
  rows = np.broadcast_to(logits, (DRAWS, len(logits)))
  ids = jax.jit(sampler.__call__)(rows, jax.random.key(0))
  assert ids.shape == (DRAWS,)
  return np.bincount(ids, minlength=len(logits)) / DRAWS


def assert_drawn_from(found, probs):
  """Nothing outside the support; the rest within 5 standard errors."""
  np.testing.assert_array_equal(found[probs == 0], 0)
  errors = np.sqrt(probs * (1 - probs) / DRAWS)
  assert np.all(np.abs(found - probs) <= 5 * errors + 1e-12)


def restricted(probs, kept):
  out = np.zeros_like(probs)
  out[kept] = probs[kept] / probs[kept].sum()
  return out


@pytest.mark.parametrize('temperature', [0.5, 1.0, 2.5])
def test_temperature(temperature):
  probs = reference.softmax(np.float64(LOGITS) / temperature)
  assert_drawn_from(frequencies(Sampler(temperature)), probs)


@pytest.mark.parametrize('top_k', [1, 3, 7, 100])
def test_top_k(top_k):
  probs = reference.softmax(np.float64(LOGITS) / 0.7)
  kept = np.argsort(-LOGITS)[:top_k]
  found = frequencies(Sampler(0.7, top_k=top_k))
  assert_drawn_from(found, restricted(probs, kept))


# The sorted probabilities sum to .42, .67, .86, .97 and so on.
@pytest.mark.parametrize(
  'top_p, num_kept', [(0.0, 1), (0.3, 1), (0.5, 2), (0.8, 3), (0.9, 4), (1, 7)]
)
def test_top_p(top_p, num_kept):
  probs = reference.softmax(np.float64(LOGITS))
  order = np.argsort(-probs)
  reached = np.cumsum(probs[order])
  assert num_kept == 7 or num_kept == 1 + np.sum(reached < top_p)
  found = frequencies(Sampler(top_p=top_p))
  assert_drawn_from(found, restricted(probs, order[:num_kept]))


def test_top_p_is_taken_of_what_top_k_left():
  """Of the best three, renormalised to .49, .29 and .22, two reach 0.75."""
  probs = reference.softmax(np.float64(LOGITS))
  order = np.argsort(-probs)
  of_three = probs[order[:3]] / probs[order[:3]].sum()
  assert of_three[:1].sum() < 0.75 < of_three[:2].sum()
  assert probs[order[:2]].sum() < 0.75
  found = frequencies(Sampler(top_k=3, top_p=0.75))
  assert_drawn_from(found, restricted(probs, order[:2]))


def test_temperature_zero_takes_the_best():
  rows = np.random.default_rng(0).normal(size=(5, V)).astype(np.float32)
  found = GREEDY(rows, jax.random.key(0))
  np.testing.assert_array_equal(found, np.argmax(rows, axis=-1))


def test_rows_are_restricted_each_by_itself():
  rows = np.stack([LOGITS, LOGITS[::-1]])
  for seed in range(7):
    found = Sampler(top_k=1)(rows, jax.random.key(seed))
    np.testing.assert_array_equal(found, [2, 4])


# Caches ------------------------------------------------------------------


@pytest.mark.parametrize(
  'length, longest, slots',
  [
    *((1, 8192, 64), (64, 8192, 64), (65, 8192, 128), (512, 8192, 512)),
    *((513, 8192, 1024), (1025, 8192, 1536), (8000, 8192, 8192)),
    *((70, 100, 100), (13, 13, 13)),
  ],
)
def test_a_cache_has_the_size_of_what_it_holds(length, longest, slots):
  assert sample.bucket(length, longest) == slots


def test_the_declared_context_costs_nothing():
  """The programs of a model that could read far more are no larger."""
  long = model().clone(context_length=4099, position='none')
  form, weights = sample.in_place(long, tiny.params(long))
  _, caches = sample.prefill(
    weights,
    np.array([[5, 3, 1]]),
    np.array([3]),
    jax.random.key(0),
    model=form,
    sampler=GREEDY,
    capacity=sample.bucket(3 + 5, long.context_length),
  )
  assert {x.shape[-3] for x in jax.tree.leaves(caches)} == {64}


def test_prompts_are_read_in_blocks(monkeypatch):
  """Rows end in the first, the second and the third block of three tokens."""
  expected = generate(PROMPTS)
  monkeypatch.setattr(sample, 'BLOCK', 3)
  assert generate(PROMPTS) == expected
