# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ids that the tokenizer cannot decode are never generated, whatever draws."""

import functools
import itertools
import json

import jax
import numpy as np
import pytest
import tokenizers

from gpt_jax.core.nn.row import Row
from gpt_jax.core.tokenizers import hf as hf_tokenizers
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.tokenizers.simple import Characters
from gpt_jax.decoding import constraints, fill, sampler
from gpt_jax.decoding.beam import search
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.in_row import ByMask
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.settings import BeamSettings, Sampler
from gpt_jax.decoding.speculative import Draft
from gpt_jax.decoding.texts import Options, TextGenerator
from gpt_jax.evaluation import forward
from tests.support import tiny
from tests.support.cases import slow

V, CONTEXT, MOST = 23, 31, 11
# Seven ids of 23, one of which is forbidden.
TOKENIZER = Characters('abcdef')
FORBIDDEN = 2
TOKENIZER.special = TOKENIZER.special._replace(
  never_ids=frozenset([FORBIDDEN, V + 8]), stop_ids=frozenset()
)
ALLOWED = {*range(7)} - {FORBIDDEN}
PROMPTS = [[1, 5, 0], [6], [3, 4, 4, 1, 0]]
NEVER = constraints.never_drawn(TOKENIZER, V)


@functools.cache
def model(seed=1, **fields):
  # Wide logits: what is most probable is mostly forbidden.
  made = tiny.model(
    vocab_size=V,
    context_length=CONTEXT,
    num_layers=1,
    loop='unroll',
    init_weights='normal(stddev=0.5)',
    **fields,
  )
  return made, tiny.params(made, seed)


def logits_after(ids):
  made, params = model()
  padded = np.zeros((1, CONTEXT), np.int32)
  padded[0, : len(ids)] = ids
  return np.asarray(_logits(made, params, padded)[len(ids) - 1], np.float64)


@functools.partial(jax.jit, static_argnums=0)
def _logits(made, params, tokens):
  hidden = made.apply({'params': params}, tokens).hidden_BLD
  return made.apply({'params': params}, hidden, method='logits')[0]


def greedy(prompt):
  """By a whole forward pass for each token, among the allowed ones."""
  ids = list(prompt)
  for _ in range(MOST):
    logits = logits_after(ids)
    ids.append(max(ALLOWED, key=lambda i: logits[i]))
  return ids[len(prompt) :]


def log_prob(prompt, new):
  """Of the whole table, as the training loss is."""
  total, ids = 0.0, [*prompt, *new]
  for at in range(len(prompt), len(ids)):
    logits = logits_after(ids[:at])
    total += logits[ids[at]] - np.logaddexp.reduce(logits)
  return total


@functools.cache
def with_a_gap():
  """A tokenizer.json without the ids 2 and 3."""
  made = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({'a': 0, 'b': 1, '<eos>': 4}, unk_token='a')
  )
  made.add_special_tokens(['<eos>'])
  return hf_tokenizers.HfTokenizer(
    {hf_tokenizers.FILE: made.to_str().encode(), hf_tokenizers.EOS: json.dumps('<eos>').encode()}
  )


@pytest.mark.parametrize(
  'make, vocab_size, expected',
  [
    (lambda: Characters('abc'), 4, None),
    (lambda: Characters('abc'), 7, [4, 5, 6]),
    (lambda: TOKENIZER, 9, [2, 7, 8]),
    (with_a_gap, 5, [2, 3]),
    (with_a_gap, 7, [2, 3, 5, 6]),
  ],
)
def test_what_has_no_token_is_never_drawn(make, vocab_size, expected):
  found = constraints.never_drawn(make(), vocab_size)
  if expected is None:
    assert found is None
  else:
    assert np.flatnonzero(found).tolist() == expected


GREEDY = {'greedy': Sampler(temperature=0)}
WAYS = GREEDY | {
  'plain': Sampler(),
  'hot': Sampler(temperature=50.0),
  'top_k': Sampler(temperature=3.0, top_k=9),
  'top_p': Sampler(temperature=3.0, top_p=0.9, min_p=0.001),
  'penalty': Sampler(temperature=2.0, repetition_penalty=5.0),
  'greedy penalty': Sampler(temperature=0, repetition_penalty=3.0),
}


@pytest.mark.parametrize('ways', [GREEDY, slow(WAYS)], ids=['greedy', 'all'])
@pytest.mark.parametrize('with_draft', [False, True])
def test_no_sampler_draws_them(ways, with_draft):
  draft = Draft(*model(2), 2) if with_draft else None

  def drawn(never_V):
    engine = Engine(Decoder(*model(), never_V=never_V), slots=32, draft=draft)
    asked = itertools.product(ways, PROMPTS)
    found = {
      engine.add(Request(ids, MOST, ways[way], i)): (way, []) for i, (way, ids) in enumerate(asked)
    }
    for token in engine.run():
      found[token.request][1].append(token.id)
    out = {way: [] for way in ways}
    for way, new in found.values():
      out[way].append(new)
    return out

  before, found = drawn(None), drawn(NEVER)
  for way in ways:  # without the mask each way draws some
    assert {*itertools.chain(*before[way])} - ALLOWED, way
    assert {*itertools.chain(*found[way])} <= ALLOWED, way
  assert found['greedy'] == [greedy(prompt) for prompt in PROMPTS]


def test_frequencies_are_those_of_what_is_left():
  """4,096 first draws against the renormalised softmax."""
  logits = logits_after(PROMPTS[0])
  rows = 4096
  samplers = sampler.stack([Sampler()] * rows, range(rows))
  shown = np.broadcast_to(logits.astype(np.float32), (rows, V))
  found = sampler.draw(sampler.suppress(shown, NEVER), samplers, np.zeros(rows, np.int32))
  probs = np.exp(logits - logits.max())
  probs[[i for i in range(V) if i not in ALLOWED]] = 0
  probs /= probs.sum()
  counts = np.bincount(found, minlength=V) / rows
  np.testing.assert_allclose(counts, probs, atol=0.03)
  assert not counts[probs == 0].any()


@pytest.mark.parametrize('size', [1, 4])
def test_beam_search_passes_them_by_and_scores_as_before(size):
  made, params = model()
  beam = BeamSettings(size, length_penalty=0.0)
  asked = [Request(ids, MOST) for ids in PROMPTS]
  generator = TextGenerator(
    Decoder.of(made, params, TOKENIZER), TOKENIZER, Options(num_samples=size), rows=3, beam=beam
  )
  found = dict(generator.complete(asked))
  for number, prompt in enumerate(PROMPTS):
    assert len(found[number]) == size
    for continuation in found[number]:
      new = TOKENIZER.encode(continuation.text).tolist()
      assert {*new} <= ALLOWED
      if len(new) == MOST:  # else it holds the end of a document
        np.testing.assert_allclose(continuation.score, log_prob(prompt, new), rtol=1e-4)
    if size == 1:
      assert found[number][0].text == TOKENIZER.decode(greedy(prompt))


@pytest.mark.parametrize('size', [0, 3])
def test_what_writes_behind_a_source_draws_none(size):
  made, params = model(attention='bidirectional', input='tokens(token_types=6)')
  rows = [
    Request(ids, MOST, Sampler(temperature=0))._replace(num_source=len(ids)) for ids in PROMPTS
  ]

  def ids(never_V):
    decoder = Decoder(made, params, ByMask(3, (4, 5)), never_V)
    if size:
      searched = search(decoder, rows, BeamSettings(size), rows=3)
      return {i for _, found in searched for h in found for i in h.ids}
    engine = Engine(decoder, slots=3)
    for row in rows:
      engine.add(row)
    return {token.id for token in engine.run()}

  assert ids(None) - ALLOWED
  assert ids(NEVER) <= ALLOWED


def test_nothing_of_them_fills_a_mask(tmp_path):
  """The others keep the probabilities of the whole table."""
  words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', 'b']
  (tmp_path / 'vocab.txt').write_text('\n'.join(words) + '\n')
  name = f"wordpiece_file('{tmp_path}/vocab.txt')"
  tokenizer = tokenizer_lib.build(name, [])
  made, params = model(attention='bidirectional')
  row = fill.encode(tokenizer, 'a [MASK] b', CONTEXT)
  (((*found,),),) = fill.fill(made, params, tokenizer, [row], top=99)
  assert sorted(f.id for f in found) == [*range(len(words))]
  out = made.apply(
    {'params': params},
    Row(np.pad(row, (0, 16 - len(row)))[None], real_BL=np.arange(16)[None] < len(row)),
  )
  logits = made.apply({'params': params}, out.hidden_BLD[0, 2], method='logits')
  shares = np.asarray(jax.nn.softmax(logits))
  for filler in found:
    np.testing.assert_allclose(filler.probability, shares[filler.id], rtol=1e-4)
  assert sum(f.probability for f in found) < 0.99


def test_a_greedy_answer_is_judged_as_it_is_drawn():
  """`evaluate` calls an answer the most probable one that is generated."""
  made, params = model()
  prompt = PROMPTS[0]
  new = greedy(prompt)
  assert new != _unmasked(prompt)
  row = np.array([*prompt, *new], np.int32)
  batch = {
    'inputs': row[None, :-1],
    'targets': np.array([[*new, *[0] * (len(prompt) - 1)]], np.int32),
    'starts': np.array([len(prompt) - 1]),
    'counts': np.array([len(new)]),
  }
  for never_V, expected in ((None, False), (NEVER, True)):
    sums, best_B = forward.score_rows(params, batch, model=made, never_V=never_V)
    assert bool(best_B[0]) == expected
    np.testing.assert_allclose(sums[0], log_prob(prompt, new), rtol=1e-4)


def _unmasked(prompt):
  ids = list(prompt)
  for _ in range(MOST):
    ids.append(int(np.argmax(logits_after(ids))))
  return ids[len(prompt) :]
