# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens may come next: as transformers has it, and ids without text."""

import functools
import json

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core.spec import UsageError
from gpt_jax.decoding import constraints as constraints_lib
from gpt_jax.decoding import programs, requests, sampler
from gpt_jax.decoding.beam import search
from gpt_jax.decoding.constraints import ANY, Constraints
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.settings import BeamSettings, Sampler
from gpt_jax.decoding.speculative import Draft
from gpt_jax.hf_tokenizers import generation
from tests.support import golden_io, tiny
from tests.support.decoding import generate

GREEDY, STOPS = Sampler(temperature=0), (2,)
# What transformers 5 generated with one file of generation_config.json after
# another, from the models of gen_beam_*.
RECORDED = golden_io.ROOT / 'constraints/cases.json'
CASES = json.loads(RECORDED.read_text())['cases']


@functools.cache
def loaded(name):
  return programs.for_decoding(*hf.load(str(golden_io.ROOT / name)))


@pytest.mark.parametrize('case', CASES, ids=lambda x: f'{x["model"]}-{x["name"]}-{x["beams"]}')
def test_what_transformers_generated(case):
  """Every hypothesis to the token, and its score to 1e-4."""
  model, params = loaded(case['model'])
  read = generation.read(case['values'], 'f', vocab_size=89, stops=STOPS)
  read = read._replace(stop_ids=STOPS)
  ids, source = case['ids'], None
  if model.num_encoder_layers:
    ids, source = [0], ids
  most = case['max_new_tokens']
  never_V = np.isin(np.arange(89), read.never)
  if case['beams'] == 1:
    (new,) = generate(
      model,
      params,
      [ids],
      max_tokens=most,
      sampler=GREEDY,
      seed=0,
      stop_ids=STOPS,
      sources=None if source is None else [source],
      constraints=read,
      never_V=never_V,
    )
    found = [new]
  else:
    request = Request(ids, most, stop_ids=STOPS, source=source)
    beam = BeamSettings(case['beams'])
    decoder = Decoder(model, params, never_V=never_V, constraints=read)
    ((_, out),) = search(decoder, [request], beam, rows=1)
    found = [hypothesis.ids for hypothesis in out]
    scores = [hypothesis.score for hypothesis in out]
    np.testing.assert_allclose(scores, case['scores'], atol=1e-4)
  expected = [[i for i in row if i not in STOPS] for row in case['sequences']]
  assert found == expected


def models(**fields):
  model = tiny.model(vocab_size=17, context_length=53, num_layers=2, **fields)
  return programs.for_decoding(model, tiny.params(model, 1))


def test_rules_of_runs_are_not_for_drafts():
  with pytest.raises(UsageError, match='no_repeat_ngram_size'):
    generate(
      *models(),
      [[1]],
      max_tokens=3,
      sampler=GREEDY,
      seed=0,
      draft=Draft(*models(), 2),
      constraints=Constraints(no_repeat_ngram=2),
    )


@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize('way', ['drawn', 'greedy', 'proposed', 'searched'])
def test_scores_that_are_no_numbers_are_told(way, value):
  model, params = models()
  broken = jax.tree.map(lambda x: x, params)
  broken['final_norm']['bias'] = np.full(17, value, np.float32)
  with pytest.raises(RuntimeError, match='NaN or infinite'):
    if way == 'searched':
      asked = [Request([1, 5], 7)]
      [*search(Decoder(model, broken), asked, BeamSettings(3), rows=1)]
    else:
      generate(
        model,
        broken,
        [[1, 5]],
        max_tokens=7,
        sampler=Sampler(temperature=0 if way == 'greedy' else 1.0),
        seed=0,
        draft=Draft(model, params, 2) if way == 'proposed' else None,
      )


def test_a_row_without_scores_ends_alone():
  """Its table has one row of NaN, which another prompt does not read."""
  model, params = models(output='untied')
  table = np.array(params['embed']['embedding'])
  table[11] = np.nan
  params['embed']['embedding'] = table
  engine = Engine(Decoder(model, params), slots=2)
  bad = engine.add(Request([11], 5, GREEDY))
  good = engine.add(Request([1, 5], 5, GREEDY, stop_ids={11}))
  tokens = []
  while engine.num_running or engine.num_waiting:
    tokens += engine.step()
  assert [t for t in tokens if t.request == bad] == [requests.Token(bad, None, requests.FAILED)]
  assert [t.finish for t in tokens if t.request == good][-1] in ('stop', 'length')


@pytest.mark.parametrize(
  ('values', 'said'),
  [
    ({'bad_words_ids': [[1, 'x']]}, 'bad_words_ids'),
    ({'bad_words_ids': [[]]}, 'bad_words_ids'),
    ({'bad_words_ids': [[89]]}, 'below 89'),
    ({'bad_words_ids': 7}, 'bad_words_ids'),
    ({'suppress_tokens': [-1]}, 'suppress_tokens'),
    ({'suppress_tokens': [True]}, 'suppress_tokens'),
    ({'begin_suppress_tokens': 5}, 'begin_suppress_tokens'),
    ({'forced_bos_token_id': 10**9}, 'forced_bos_token_id'),
    ({'forced_eos_token_id': 2.0}, 'forced_eos_token_id'),
    ({'forced_eos_token_id': 2, 'suppress_tokens': [2]}, 'remove one'),
    ({'min_length': -1}, 'min_length'),
    ({'min_new_tokens': 10**9}, 'min_new_tokens'),
    ({'no_repeat_ngram_size': '3'}, 'no_repeat_ngram_size'),
    ({'length_penalty': float('nan')}, 'length_penalty'),
    ({'early_stopping': 'never'}, 'early_stopping'),
    ({'encoder_no_repeat_ngram_size': 3}, 'not supported'),
    ({'forced_decoder_ids': [[1, 5]]}, 'not supported'),
    ({'sequence_bias': [[[5], -2.0]]}, 'not supported'),
    ({'num_beam_groups': 2}, 'not supported'),
  ],
)
def test_what_is_refused_is_named(values, said):
  with pytest.raises(UsageError, match=said) as e:
    generation.read(values, 'f.json', vocab_size=89, stops=STOPS)
  assert str(e.value).startswith(f'f.json: {next(iter(values))}=')


def test_what_changes_nothing_is_taken():
  """The defaults that older files of transformers write out."""
  values = {
    **{'encoder_no_repeat_ngram_size': 0, 'num_beam_groups': 1},
    **{'diversity_penalty': 0.0, 'exponential_decay_length_penalty': None},
    **{'min_length': 0, 'no_repeat_ngram_size': 0, 'bad_words_ids': None},
    **{'do_sample': True, 'temperature': 0.6, 'top_k': 50, 'num_beams': 1},
  }
  read = functools.partial(generation.read, name='f', vocab_size=9, stops=STOPS)
  assert read(values) == ANY
  said = generation.recommended(values)
  assert said == {'do_sample': True, 'temperature': 0.6}


@pytest.mark.parametrize('case', CASES[:14:2], ids=lambda x: x['name'])
def test_there_and_back(case):
  """By special.json, and by a file of Hugging Face's."""
  read = functools.partial(generation.read, name='f', vocab_size=89, stops=STOPS)
  found = read(case['values'])
  entries = json.loads(json.dumps(constraints_lib.written(found)))
  assert constraints_lib.restored(entries) == found != ANY
  options = json.loads(json.dumps(generation.written(found)))
  assert read(options) == found


def scores_of(constraints, ids, V):
  """`sampler.constrain` on equal scores, after each text of one length."""
  length = len(ids[0])
  everywhere = functools.partial(np.full, len(ids))
  padded = np.pad(ids, ((0, 0), (0, 64 - length)))
  return np.asarray(
    jax.jit(sampler.constrain, static_argnums=1)(
      np.zeros((len(ids), V), np.float32),
      constraints,
      length_R=everywhere(length),
      start_R=everywhere(1),
      most_R=everywhere(99),
      ids_RT=padded,
      source_R=everywhere(0),
    )
  )


@pytest.mark.parametrize('length', [1, 2, 3, 7, 23])
def test_many_runs_and_ngrams_are_those_of_transformers(length):
  """Runs of two to thirty tokens, texts that end with the begin of some."""
  torch = pytest.importorskip('torch')
  process = pytest.importorskip('transformers.generation.logits_process')
  rng, V = np.random.default_rng(length), 11
  runs = [tuple(rng.integers(0, V if i % 3 else 2, 2 + i % 4).tolist()) for i in range(60)]
  runs += [tuple(rng.integers(0, 2, 30).tolist()), (1, 1, 1)]
  ids = rng.integers(0, 3, (13, length))
  ids[0] = 1
  for constraints, processor in [
    (
      Constraints(sequences=tuple(runs)),
      process.NoBadWordsLogitsProcessor([[*run] for run in runs]),
    ),
    *(
      (Constraints(no_repeat_ngram=size), process.NoRepeatNGramLogitsProcessor(size))
      for size in (1, 2, 3, 5, 24)
    ),
  ]:
    expected = processor(torch.tensor(ids), torch.zeros(13, V)).numpy()
    np.testing.assert_array_equal(scores_of(constraints, ids, V), expected)


def test_ngrams_longer_than_any_text_forbid_nothing():
  ids = np.ones((2, 23), int)
  for size in (24, 65, 10**6):
    assert not scores_of(Constraints(no_repeat_ngram=size), ids, 5).any()


@pytest.mark.parametrize(
  'constraints',
  [
    Constraints(sequences=tuple((i, i + 1, i + 2) for i in range(5000))),
    Constraints(sequences=(tuple(range(60)),)),
    Constraints(no_repeat_ngram=60),
  ],
)
def test_a_program_does_not_grow_with_its_runs(constraints):
  """With code for each run or token it would compile for minutes."""
  jaxpr = jax.make_jaxpr(
    lambda ids: sampler.constrain(
      np.zeros((2, 7000), np.float32),
      constraints,
      length_R=np.array([3, 5]),
      start_R=np.array([1, 1]),
      most_R=np.array([9, 9]),
      ids_RT=ids,
      source_R=np.array([0, 0]),
    )
  )(np.zeros((2, 64), int))
  assert len(str(jaxpr).splitlines()) < 200
