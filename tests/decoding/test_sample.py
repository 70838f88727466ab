# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoding with a cache equals decoding without, and draws as told."""

import functools

import jax
import numpy as np
import pytest

from gpt_jax.core.nn.caches import init_caches
from gpt_jax.core.nn.row import Row
from gpt_jax.decoding import programs
from gpt_jax.decoding.settings import Sampler
from tests.support import decoding, tiny
from tests.support.cases import slow

B, CONTEXT = tiny.B, tiny.MODEL['context_length']
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
  return decoding.generate(model(), params(), prompts, **kwargs)


def test_token_by_token_equals_the_forward_pass():
  """Each row starts after a prompt of another length."""
  tokens = tiny.tokens(B, CONTEXT)
  whole = np.asarray(full_logits()(params(), tokens))

  @jax.jit
  def step(caches, tokens, positions):
    variables = {'params': params()}
    out = model().apply(variables, Row(tokens, positions), caches)
    logits = model().apply(variables, out.hidden_BLD, method='logits')
    return out.caches, logits

  caches = init_caches(model(), B, CONTEXT)
  # One layer of each pattern, repeated once.
  assert len(caches) == 2
  assert caches[0].value_BGMK.shape == (1, B, tiny.G, CONTEXT, tiny.K)
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
    num_layers=2, num_encoder_layers=3, position='t5_bias', init_weights='normal(stddev=1.0)'
  )
  weights = tiny.params(both)

  @jax.jit
  def logits(source, tokens):
    variables = {'params': weights}
    out = both.apply(variables, Row(tokens, extra={'source': Row(source)}))
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
  found = decoding.generate(
    both, weights, prompts, sources=sources, max_tokens=5, sampler=GREEDY, seed=0
  )
  assert found == expected
  assert expected[0] != expected[1]
  with pytest.raises(AssertionError):
    decoding.generate(both, weights, prompts, max_tokens=5, sampler=GREEDY, seed=0)


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
    assert generate(PROMPTS, stop_ids=stops) == expected
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
  assert found == [ids[:2] if s else ids for ids, s in zip(plain, short, strict=True)]
  # Never of a row that has ended.
  assert len(asked) == sum(len(ids) for ids in found)


def test_draws_are_a_function_of_the_seed():
  warm = Sampler(temperature=3.0)
  one, same, other = (generate(PROMPTS, sampler=warm, seed=seed) for seed in (1, 1, 2))
  assert one == same
  assert one != other
  # Rows that hold the same prompt go different ways.
  twins = generate([PROMPTS[0]] * 5, sampler=warm)
  assert len({tuple(ids) for ids in twins}) > 1


def test_each_token_is_a_new_draw():
  """Where all tokens are as likely, ten draws are hardly ever the same."""
  flat = jax.tree.map(np.zeros_like, params())
  found = decoding.generate(model(), flat, [[1], [2]], max_tokens=10, sampler=Sampler(), seed=0)
  assert all(len({*ids}) > 4 for ids in found)


@pytest.mark.parametrize('block', [3, slow(1)])
def test_prompts_are_read_in_blocks(monkeypatch, block):
  """Rows end in the first, the second and the third block of three tokens.

  In blocks of one token the sixth and the eighth attend to later slots, too.
  """
  expected = generate(PROMPTS)
  monkeypatch.setattr(programs, 'BLOCK', block)
  assert generate(PROMPTS) == expected


def test_a_block_attends_to_what_was_read_so_far():
  """Blocks of 256 tokens; few sizes for many of them."""
  sizes = [programs.seen(length, 8192) for length in range(256, 8193, 256)]
  assert sizes[:10] == [256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 2560]
  assert len({*sizes}) == 16
  for length, size in zip(range(256, 8193, 256), sizes, strict=True):
    assert length <= size < 1.25 * length
  assert programs.seen(16, 64) == programs.seen(64, 64) == 64
  assert programs.seen(900, 913) == 913
