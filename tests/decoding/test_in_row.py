# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is written after a source, against whole rows under their mask."""

import functools

import jax
import numpy as np
import pytest

from gpt_jax.core.nn.row import Row
from gpt_jax.decoding import engine
from gpt_jax.decoding.beam import search
from gpt_jax.decoding.in_row import AfterPrefix, ByMask
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.settings import BeamSettings, Sampler
from tests.support import tiny

MASK, END, MOST, LONGEST = 3, 5, 7, 19
TYPES = 4, 5
SOURCES = [[7, 11, 13, 2, 9], [6, 2], [17, 8, 7, 12, 20, 21, 10, 22, 14, 2]]
MODEL = tiny.model(
  attention='bidirectional',
  input='tokens(token_types=6)',
  context_length=LONGEST,
  num_layers=2,
  loop='unroll',
)


@functools.cache
def params():
  return tiny.params(MODEL)


@jax.jit
def scores(tokens, types, seen, last):
  variables = {'params': params()}
  out = MODEL.apply(
    variables, Row(tokens[None], token_types_BL=types[None], visible_BLM=seen[None])
  )
  logits = MODEL.apply(variables, out.hidden_BLD[0, last], method='logits')
  return jax.nn.log_softmax(logits)


def next_scores(source, written):
  """Log-probabilities after some tokens: of a [MASK] behind them."""
  row = [*source, *written, MASK]
  tokens = np.zeros(LONGEST, np.int32)
  tokens[: len(row)] = row
  place = np.arange(LONGEST)
  of_source = place < len(source)
  seen = of_source[None] | (~of_source[:, None] & (place[None] <= place[:, None]))
  types = np.where(of_source, *TYPES)
  return np.asarray(scores(tokens, types, seen, len(row) - 1))


def test_each_token_is_that_of_a_mask_in_its_place():
  """Of sources of three lengths, all at a time."""
  decoder = engine.Engine(Decoder(MODEL, params(), ByMask(MASK, TYPES)), slots=4)
  greedy = Sampler(temperature=0)
  found = {decoder.add(Request(s, MOST, greedy)): [] for s in SOURCES}
  for token in decoder.run():
    found[token.request].append(token.id)
  for source, drawn in zip(SOURCES, found.values(), strict=True):
    expected = []
    while len(expected) < MOST:
      expected.append(int(np.argmax(next_scores(source, expected))))
    assert drawn == expected
  assert len({*map(tuple, found.values())}) == len(SOURCES)


def test_hypotheses_have_the_scores_of_whole_rows():
  asked = [Request(source, 4, stop_ids={END}, num_source=len(source)) for source in SOURCES]
  # What a source says may be said again, once.
  beam = BeamSettings(3, 0.0, no_repeat_ngram=1)
  decoder = Decoder(MODEL, params(), ByMask(MASK, TYPES))
  searched = search(decoder, asked, beam, rows=4)
  finishes, again = set(), set()
  for number, hypotheses in searched:
    for ids, score, finish in hypotheses:
      finishes.add(finish)
      again |= {*ids} & {*SOURCES[number]}
      assert len({*ids}) == len(ids)
      ids = ids + [END] * (finish == 'stop')
      total = sum(next_scores(SOURCES[number], ids[:n])[token] for n, token in enumerate(ids))
      np.testing.assert_allclose(score, total, rtol=1e-4)
  assert 'length' in finishes and again


DECODER = tiny.model(context_length=LONGEST, num_layers=2, loop='unroll')
START = 3


@functools.cache
def decoder_params():
  return tiny.params(DECODER)


@functools.partial(jax.jit, static_argnames='both')
def scores_after(tokens, prefix, last, *, both):
  variables = {'params': decoder_params()}
  seen = {'prefix_B': prefix[None]} if both else {}
  out = DECODER.apply(variables, Row(tokens[None], **seen))
  logits = DECODER.apply(variables, out.hidden_BLD[0, last], method='logits')
  return jax.nn.log_softmax(logits)


def next_after(source, written, both):
  """Log-probabilities after some tokens of a decoder, as it is trained."""
  row = [*source, START, *written]
  tokens = np.zeros(LONGEST, np.int32)
  tokens[: len(row)] = row
  prefix, last = np.int32(len(source)), len(row) - 1
  return np.asarray(scores_after(tokens, prefix, last, both=both))


@pytest.mark.parametrize('both', [True, False])
def test_a_decoder_writes_after_prefixes(both):
  decoder = engine.Engine(Decoder(DECODER, decoder_params(), AfterPrefix(both)), slots=4)
  greedy = Sampler(temperature=0)
  asked = [Request([*s, START], MOST, greedy) for s in SOURCES]
  found = {decoder.add(request): [] for request in asked}
  for token in decoder.run():
    found[token.request].append(token.id)
  differ = 0
  for source, drawn in zip(SOURCES, found.values(), strict=True):
    expected, other = [], []
    while len(expected) < MOST:
      other.append(int(np.argmax(next_after(source, expected, not both))))
      expected.append(int(np.argmax(next_after(source, expected, both))))
    assert drawn == expected
    differ += expected != other
  assert differ  # so that one is not taken for the other


def test_hypotheses_after_a_prefix_have_the_scores_of_whole_rows():
  asked = [
    Request([*source, START], 4, stop_ids={END}, num_source=len(source)) for source in SOURCES
  ]
  decoder = Decoder(DECODER, decoder_params(), AfterPrefix(both=True))
  for number, hypotheses in search(decoder, asked, BeamSettings(3, 0.0), rows=4):
    for ids, score, finish in hypotheses:
      ids = ids + [END] * (finish == 'stop')
      total = sum(
        next_after(SOURCES[number], ids[:n], both=True)[token] for n, token in enumerate(ids)
      )
      np.testing.assert_allclose(score, total, rtol=1e-4)
