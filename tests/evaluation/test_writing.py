# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a model writes for sources, against forward passes without a cache."""

import functools

import jax
import numpy as np
import pytest

from gpt_jax.core.nn.row import Row
from gpt_jax.core.objectives import choices
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.decoding.settings import BeamSettings
from gpt_jax.decoding.texts import Options, source_request
from gpt_jax.evaluation.score import GREEDY, Journal, Scorer
from tests.support import checkpoints, tiny
from tests.support.cases import slow

LENGTH, EOS = 19, 256
SOURCES = ['a', 'the cat', '', 'naïve', 'longer than the nineteen that fit']


def make(layers, objective='seq2seq'):
  """A run of a decoder, or with encoder layers of an encoder-decoder."""
  config = tiny.config(
    **{
      **tiny.MESHABLE,
      'model.vocab_size': 264,
      'model.context_length': LENGTH,
      'model.num_layers': 1,
    }
  )
  run = tiny.build(config, (1, 1, 1))
  if layers:
    model = checkpoints.plain(run.model, num_encoder_layers=layers)
    config = run.config.copy_and_resolve_references().unlock()
    config.model.num_encoder_layers = layers
    config.objective.name = objective
    built = choices.build(objective, model, Bytes())
    run = run._replace(model=model, objective=built, config=config.lock())
  return run, tiny.params(run.model)


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params, inputs_BL, **source):
  variables = {'params': params}
  out = model.apply(variables, Row(inputs_BL, extra=source))
  return model.apply(variables, out.hidden_BLD, method='logits')


def padded(ids):
  row = np.zeros((1, LENGTH), np.int32)
  row[0, : len(ids)] = ids
  return row


def by_hand(run, params, prompt, source, most):
  """Greedy ids, one whole pass for each."""
  ids, more = [*prompt], {}
  if source is not None:
    mask = np.arange(LENGTH)[None] < len(source)
    more = {'source': Row(padded(source), real_BL=mask)}
  while len(ids) - len(prompt) < most:
    scores = logits(run.model, params, padded(ids), **more)
    # The table is larger: ids without a token are never generated.
    scores = scores[..., : Bytes().vocab_size]
    best = int(scores[0, len(ids) - 1].argmax())
    if best == EOS:
      break
    ids.append(best)
  return ids[len(prompt) :]


@pytest.mark.parametrize('layers', [slow(0), 1])
def test_texts_are_the_most_probable(layers):
  run, params = make(layers)
  most = 5
  scorer = Scorer(run, params, Bytes(), rows=2)
  pairs = [scorer.source_request(source, most) for source in SOURCES]
  requests, cuts = zip(*pairs, strict=True)
  found = dict(scorer.generate(requests))
  assert [*sorted(found)] == [0, 1, 2, 3, 4]
  for i, source in enumerate(SOURCES):
    ids = [*source.encode()]
    if layers:  # the end is read too, and starts the decoder
      read, prompt = [*ids[: LENGTH - 1], EOS], [EOS]
    else:
      read, prompt = None, [EOS, *ids[: LENGTH - most - 2], EOS]
    wanted = by_hand(run, params, prompt, read, most)
    assert found[i] == Bytes().decode(wanted).strip()
    kept = len(read) - 1 if read else len(prompt) - 2
    assert cuts[i] == len(ids) - kept
  assert dict(scorer.generate(requests, BeamSettings(1))) == found
  assert cuts[4] > 0 == cuts[3]


def test_the_decoder_starts_as_the_objective_says():
  run, _ = make(1, "seq2seq(start='pad')")
  tokenizer = Bytes()
  tokenizer.special = tokenizer.special._replace(pad_id=7)
  request, _ = Scorer(run, None, tokenizer).source_request('b', 0)
  assert (request.ids, request.source) == ([7], [98, EOS])
  assert request.max_tokens == LENGTH - 1  # its start is the first


def test_a_text_in_its_sources_row_has_at_most_half_of_it():
  """By default, both in `evaluate` and in `generate`, which passes Options."""
  run, params = make(0)
  scorer = Scorer(run, params, Bytes())
  for source in ('b', 'c' * (LENGTH // 2), 'd' * LENGTH):
    request, cut = scorer.source_request(source, 0)
    assert request.max_tokens == LENGTH // 2
    ids = Bytes().encode(source)
    of = scorer._decoder, scorer._source_format
    generated, also_cut = source_request(ids, *of, Options(sampler=GREEDY))
    assert (generated.max_tokens, also_cut) == (request.max_tokens, cut)
    np.testing.assert_array_equal(generated.ids, request.ids)


def test_a_stopped_evaluation_goes_on(tmp_path):
  run, params = make(1)
  scorer = Scorer(run, params, Bytes(), rows=2)
  path, told = str(tmp_path / 'texts.jsonl'), []

  class Stop(Exception):
    pass

  def stop(stage, done, total):
    told.append((stage, done, total))
    if done == 3:
      raise Stop

  with pytest.raises(Stop):
    scorer.texts(SOURCES, 5, Journal(path, 'm'), stop)
  assert told == [('writing', n, 5) for n in (1, 2, 3)]
  whole = scorer.texts(SOURCES, 5, Journal(None, ''), lambda *_: None)
  rest = scorer.texts(SOURCES, 5, Journal(path, 'm'), lambda *_: None)
  assert (rest.new, whole.new) == (2, 5)
  assert rest.texts == whole.texts and rest.cut == whole.cut == 1


def test_a_journal_of_one_search_is_none_of_another(tmp_path):
  run, params = make(1)
  scorer = Scorer(run, params, Bytes(), rows=2)
  path = str(tmp_path / 'texts.jsonl')
  beams = (None, BeamSettings(3, length_penalty=0.0), BeamSettings(3, length_penalty=2.0))
  for beam in beams:
    asked = SOURCES[:1], 3, Journal(path, 'm'), lambda *_: None
    assert scorer.texts(*asked, beam).new == 1
    asked = SOURCES[:1], 3, Journal(path, 'm'), lambda *_: None
    assert scorer.texts(*asked, beam).new == 0
