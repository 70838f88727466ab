# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Beam search: what transformers found, and a search written as its rules."""

import functools

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core import sharding
from gpt_jax.core.nn.row import Row
from gpt_jax.decoding import beam as beam_lib
from gpt_jax.decoding import programs
from gpt_jax.decoding.beam import Search, search
from gpt_jax.decoding.constraints import ANY
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.requests import Request, Slot
from gpt_jax.decoding.settings import BeamSettings, Sampler
from tests.support import beam_reference, checkpoints, golden_io, tiny
from tests.support.decoding import generate

# gen_beam_bart and gen_beam_marian: by adding their names here.
FOLDERS = [golden_io.ROOT / f'gen_beam_{name}' for name in ('t5', 'gpt2', 'bart', 'marian')]
# The rules are the same for all; other families only compile anew.
CASES = [
  pytest.param(folder, name, marks=[pytest.mark.slow] * (i > 1))
  for i, folder in enumerate(FOLDERS)
  for name in golden_io.cases(folder, 'beam')
]
CONTEXT = 97


@functools.cache
def loaded(folder):
  return programs.for_decoding(*hf.load(str(folder)))


def found(model, params, asked, beam, rows=8):
  """What a search gives, in the order of the texts."""
  out = dict(search(Decoder(model, params), asked, beam, rows=rows))
  return [out[i] for i in range(len(asked))]


@pytest.mark.parametrize('folder, name', CASES, ids=lambda x: getattr(x, 'name', x))
def test_what_transformers_found(folder, name):
  """Sequences and lengths exactly, scores to 1e-4."""
  model, params = loaded(folder)
  golden, config = golden_io.case(folder, name), golden_io.config(folder)
  rows = [
    ids[kept == 1].tolist()
    for ids, kept in zip(golden.inputs['input_ids'], golden.inputs['attention_mask'], strict=True)
  ]
  start = config.get('decoder_start_token_id')
  eos, static = config['eos_token_id'], golden.static
  beam = BeamSettings(
    static['num_beams'],
    length_penalty=static['length_penalty'],
    penalty=static['length_penalty_kind'],
    early_stopping=static['early_stopping'],
    no_repeat_ngram=static.get('no_repeat_ngram_size', 0),
    # The start token or the prompt counts there.
    min_tokens=max(
      0, static.get('min_length', 0) - (1 if model.num_encoder_layers else len(rows[0]))
    ),
  )
  most = static['max_new_tokens']
  asked = [Request(ids, most, stop_ids={eos}) for ids in rows]
  if model.num_encoder_layers:
    asked = [Request([start], most, stop_ids={eos}, source=ids) for ids in rows]
  for text, hypotheses in enumerate(found(model, params, asked, beam)):
    assert len(hypotheses) == beam.size
    for i, hypothesis in enumerate(hypotheses):
      ids = hypothesis.ids + [eos] * (hypothesis.finish == 'stop')
      size = golden.outputs['lengths'][text, i]
      assert len(ids) == size
      expected = golden.outputs['sequences'][text, i]
      whole = [*asked[text].ids, *ids]
      np.testing.assert_array_equal(expected[: len(whole)], whole)
      assert np.abs(hypothesis.score - golden.outputs['sequences_scores'][text, i]) < 1e-4


T5, GPT2, *_ = FOLDERS
# Both end with 1; the other is one that they often give.
STOP = {1, 53}
SOURCES = [tiny.tokens(n, seed=n, vocab_size=89).tolist() for n in (5, 11)]
LONGEST = 89


def asked_of(folder, most, stop=STOP):
  """What is asked: the texts are sources, or prompts of two lengths."""
  if folder is T5:
    return [Request([0], most, stop_ids=stop, source=ids) for ids in SOURCES]
  return [Request(ids, most + i, stop_ids=stop) for i, ids in enumerate(SOURCES)]


@functools.cache
def logits_fn(folder):
  """Logits after some ids, without a cache, in rows of one length."""
  model, params = loaded(folder)
  L = LONGEST if folder is T5 else model.context_length

  @jax.jit
  def apply(ids_1L, source_1M, mask_1M, at):
    row = Row(ids_1L)
    if folder is T5:
      source = Row(source_1M, real_BL=mask_1M)
      row = row._replace(extra={'source': source})
    out = model.apply({'params': params}, row)
    return model.apply({'params': params}, out.hidden_BLD[0, at], method='logits')

  def logits_of(ids, source):
    ids_1L, source_1M = np.zeros((1, L), int), np.zeros((1, 17), int)
    ids_1L[0, : len(ids)] = ids
    source_1M[0, : len(source)] = source
    mask_1M = np.arange(17)[None] < len(source)
    return apply(ids_1L, source_1M, mask_1M, len(ids) - 1)

  return logits_of


def compare(folder, beam, most, stop=STOP):
  """Searches, and compares each text with the reference."""
  asked = asked_of(folder, most, stop)
  out = found(*loaded(folder), asked, beam)
  for request, hypotheses in zip(asked, out, strict=True):
    expected = beam_reference.search(
      functools.partial(logits_fn(folder), source=request.source or []),
      list(request.ids),
      max_tokens=request.max_tokens,
      stop_ids=stop,
      **{k: v for k, v in beam._asdict().items() if v is not None},
    )
    assert len(hypotheses) == len(expected) > 0
    for hypothesis, (ids, score) in zip(hypotheses, expected, strict=True):
      stops = ids[-1] in stop
      assert hypothesis.ids == ids[: len(ids) - stops]
      assert hypothesis.finish == ('stop' if stops else 'length')
      assert abs(hypothesis.score - score) < 1e-4
  return out


@pytest.mark.parametrize(
  'beam',
  [
    BeamSettings(4, length_penalty=0.7),
    BeamSettings(4, penalty='gnmt', early_stopping=True, min_tokens=5),
    BeamSettings(4, length_penalty=-0.5, no_repeat_ngram=1),
    BeamSettings(3, length_penalty=1.7, no_repeat_ngram=4, min_tokens=3),
    BeamSettings(3, length_penalty=0, early_stopping=True),
  ],
)
def test_a_decoders_texts_are_those_of_the_rules(beam):
  """Prompts of different lengths in a batch, two tokens that end."""
  compare(GPT2, beam, 13)


def test_an_lstm_searches_by_the_rules():
  """Each hypothesis carries its own state; prompts of unequal lengths."""
  model = tiny.model(
    num_layers=2,
    attention=f'lstm(7, projection=5), lstm({tiny.D})',
    block='plain',
    position='none',
    context_length=CONTEXT,
  )
  params = tiny.random_like(tiny.params(model), seed=1)

  @jax.jit
  def logits_at(ids_1L, at):
    out = model.apply({'params': params}, ids_1L)
    return model.apply({'params': params}, out.hidden_BLD[0, at], method='logits')

  def logits_of(ids):
    ids_1L = np.zeros((1, CONTEXT), int)
    ids_1L[0, : len(ids)] = ids
    return logits_at(ids_1L, len(ids) - 1)

  beam, stop = BeamSettings(3, length_penalty=0.7), {1, 5}
  asked = [Request(tiny.tokens(n, seed=n).tolist(), 9, stop_ids=stop) for n in (5, 19)]
  for request, hypotheses in zip(asked, found(model, params, asked, beam), strict=True):
    expected = beam_reference.search(
      logits_of,
      list(request.ids),
      max_tokens=9,
      stop_ids=stop,
      **{k: v for k, v in beam._asdict().items() if v is not None},
    )
    assert len(hypotheses) == len(expected) > 0
    for hypothesis, (ids, score) in zip(hypotheses, expected, strict=True):
      assert hypothesis.ids == ids[: len(ids) - (ids[-1] in stop)]
      assert abs(hypothesis.score - score) < 1e-4


@pytest.mark.slow
def test_ids_and_caches_grow_with_the_texts():
  """Past the first bucket; none ends before the limit."""
  out = compare(T5, BeamSettings(3, no_repeat_ngram=3), 71, set())
  assert {len(h.ids) for text in out for h in text} == {71}


@pytest.mark.slow
def test_a_text_does_not_depend_on_its_company():
  """Seven in batches of three and alone, in the order of the texts."""
  lengths = (3, 14, 5, 2, 7, 9, 11)
  asked = [
    Request([0], 5 + n, stop_ids={1}, source=tiny.tokens(n, seed=n, vocab_size=89).tolist())
    for n in lengths
  ]
  model, params = loaded(T5)
  beam = BeamSettings(4, length_penalty=0.6)
  whole = found(model, params, asked, beam, rows=3)
  assert len({len(h.ids) for text in whole for h in text}) > 4
  for one, expected in zip(asked, whole, strict=True):
    (alone,) = found(model, params, [one], beam)
    assert [h.ids for h in alone] == [h.ids for h in expected]
    assert [h.finish for h in alone] == [h.finish for h in expected]
    np.testing.assert_allclose([h.score for h in alone], [h.score for h in expected], atol=1e-5)


def test_what_has_ended_never_changes():
  """It stays, or gives way to better ones, until its text is done."""
  model, params = loaded(T5)
  rows = [Slot(i, r, [0]) for i, r in enumerate(asked_of(T5, 23))]
  running = Search(Decoder(model, params), rows, BeamSettings(4, length_penalty=2.0), slots=8)
  before, changes = {0: [], 1: []}, 0
  while running.rows:
    state = jax.device_get(running._state)
    for at, row in enumerate(running._batch):
      if row is None:
        continue
      parts = state.ended_BNT[at], state.sizes_BN[at], state.scores_BN[at]
      now = [
        (ids[1 : 1 + size].tolist(), score)
        for ids, size, score in zip(*parts, strict=True)
        if score > -np.inf
      ]
      lost = [x for x in before[row.number] if x not in now]
      assert not lost or len(now) == 4
      assert all(score <= now[-1][1] for _, score in lost)
      changes += now != before[row.number]
      before[row.number] = now
    for text, hypotheses in running.step():
      assert [h.score for h in hypotheses] == [x[1] for x in before[text]]
      for hypothesis, (ids, _) in zip(hypotheses, before[text], strict=True):
        assert hypothesis.ids == ids[: len(hypothesis.ids)]
  assert changes > 4


def test_one_beam_is_greedy_and_more_find_no_worse():
  """Of six random models."""
  model, params = loaded(T5)
  asked = asked_of(T5, 11)
  better = 0
  for seed in range(6):
    drawn = tiny.random_like(params, seed=seed, size=0.5)
    one = found(model, drawn, asked, BeamSettings(1))
    greedy = generate(
      model,
      drawn,
      [[0], [0]],
      max_tokens=11,
      sampler=Sampler(temperature=0),
      seed=0,
      stop_ids=STOP,
      sources=SOURCES,
    )
    assert [[h.ids for h in text] for text in one] == [[ids] for ids in greedy]
    many = found(model, drawn, asked, BeamSettings(4))
    for (single,), several in zip(one, many, strict=True):
      assert several[0].score >= single.score - 1e-5
      better += several[0].score > single.score + 1e-3
  assert better


@pytest.mark.slow
def test_over_a_mesh():
  """The texts are those of one device, and the caches are split."""
  fields = {'model.context_length': 41, 'model.num_layers': 1}
  run = tiny.build(tiny.config(**{**tiny.MESHABLE, **fields}), (2, 2, 2))
  model = checkpoints.plain(run.model, num_encoder_layers=1)
  model, params = programs.for_decoding(model, tiny.params(model))
  asked = [
    Request([1], 9, stop_ids={3}, source=tiny.tokens(n, seed=n).tolist()) for n in (5, 7, 11, 13)
  ]
  beam = BeamSettings(3, no_repeat_ngram=2)
  expected = found(model, params, asked, beam)
  with sharding.use(run.mesh, run.rules):
    out = found(model, params, asked, beam)
    rows = [Slot(i, r, [1]) for i, r in enumerate(asked)]
    one = Search(Decoder(model, params), rows, beam, slots=4)
    one.step()
    lies = [x.sharding.spec for x in one._caches[0][:2]]
  for ours, theirs in zip(out, expected, strict=True):
    assert [h.ids for h in ours] == [h.ids for h in theirs]
    np.testing.assert_allclose([h.score for h in ours], [h.score for h in theirs], atol=1e-4)
  assert [spec[:2] for spec in lies] == [(('data', 'fsdp'), 'tensor')] * 2


def test_penalties():
  """Wu et al., equation 14, of 7 tokens: ((5 + 7) / 6)^0.5; and 7^0.5."""
  for penalty, expected in (('gnmt', -3 / 2**0.5), ('length', -3 / 7**0.5)):
    constraints = beam_lib.constrained(BeamSettings(2, 0.5), ANY)
    rules = beam_lib.rules(BeamSettings(2, 0.5, penalty), constraints)
    np.testing.assert_allclose(rules.score(np.float32(-3), 7), expected, 1e-6)
