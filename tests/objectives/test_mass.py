# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""MASS: what the encoder reads, what the decoder reads, where, and predicts."""

import jax
import numpy as np
import pytest

from configs import mass as config_file
from gpt_jax import config as config_lib
from gpt_jax import hf
from gpt_jax.objectives import forward
from gpt_jax.objectives.denoise import Mass
from gpt_jax.rows import sides
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.spec import UsageError
from tests.support import tiny
from tests.support.golden_io import ROOT, case

CLS, SEP, MASK, EOS = 3, 4, 2, 1
L, V = 13, tiny.V
FIELDS = dict(num_layers=2, num_encoder_layers=1)
FOLDER = ROOT / 'mass_mini'


class Special:
  mask_id, eos_id, pad_id, prompt_start = MASK, EOS, 0, ()


def words(size=V):
  return type('Words', (), {'special': Special, 'vocab_size': size})


def rows(lengths, length=L, vocab_size=V, seed=0):
  """[CLS] text [SEP], and padding."""
  rng = np.random.default_rng(seed)
  lengths = np.asarray(lengths)
  tokens = rng.integers(5, vocab_size, (len(lengths), length), np.int32)
  real = np.arange(length) < lengths[:, None]
  special = np.zeros_like(real)
  index = np.flatnonzero(lengths)
  special[index, 0] = special[index, lengths[index] - 1] = True
  tokens[special] = SEP
  tokens[:, 0] = CLS
  tokens[~real] = 0
  return Rows(tokens, real, special=special)


def keys(count, first=0):
  numbers = np.arange(first, first + count)
  return Keys(5, numbers, numbers, np.zeros(count, int))


def batch_of(text, *, first=0, vocab_size=V, **arguments):
  model = tiny.model(**FIELDS, vocab_size=vocab_size)
  objective = Mass(**arguments).bind(model, words(vocab_size))
  return objective.make_batch(text, keys(len(text.tokens), first))


def test_all_tokens_are_a_causal_language_model():
  """With k = m the source says nothing, the decoder predicts the text."""
  text = rows([L, L, 7])
  batch = batch_of(text, rate=1.0, mask=1.0, random=0.0)
  first = sides.start_id('eos', Special)
  for i, n in enumerate((L, L, 7)):
    row = text.tokens[i]
    assert batch['weights'][i].tolist() == [1] * (n - 1) + [0] * (L - n)
    assert batch['targets'][i, : n - 1].tolist() == row[1:n].tolist()
    assert batch['inputs'][i, : n - 1].tolist() == [first, *row[1 : n - 1]]
    assert batch['positions'][i, : n - 1].tolist() == [*range(n - 1)]
    assert batch['sources'][i, :n].tolist() == [CLS] + [MASK] * (n - 1)
    np.testing.assert_array_equal(batch['sources'][i, n:], row[n:])
  np.testing.assert_array_equal(batch['source_mask'], text.real)


def test_one_token_is_a_masked_language_model():
  """With k = 1 that token is predicted from the one before and all others."""
  text = rows([L] * 300)
  batch = batch_of(text, rate=1e-3, mask=1.0, random=0.0)
  assert batch['targets'].shape == (300, 1) and np.all(batch['weights'] == 1)
  at = batch['positions'][:, 0] + 1
  index = np.arange(300)
  np.testing.assert_array_equal(text.tokens[index, at], batch['targets'][:, 0])
  before = np.where(at == 1, EOS, text.tokens[index, at - 1])
  np.testing.assert_array_equal(before, batch['inputs'][:, 0])
  expected = text.tokens.copy()
  expected[index, at] = MASK
  np.testing.assert_array_equal(batch['sources'], expected)
  assert {*at.tolist()} == {*range(1, L)}


def test_half_of_each_row_is_hidden_where_the_released_code_hides_it():
  """Over a million tokens: 0.2 at the front, 0.2 at the end, 0.6 anywhere."""
  count, length, size = 12_000, 131, 1009
  rng = np.random.default_rng(1)
  lengths = rng.integers(40, length + 1, count)
  text = rows(lengths, length, size)
  batch = batch_of(text, vocab_size=size)
  assert text.real.sum() > 1e6
  hidden = batch['weights'] > 0
  k = hidden.sum(axis=1)
  np.testing.assert_array_equal(k, [round(n / 2) for n in lengths.tolist()])
  assert batch['targets'].shape[1] == round(length / 2)
  assert np.all(hidden[:, :-1] >= hidden[:, 1:])  # then padding
  at = batch['positions'] + 1
  steps = np.diff(at, axis=1)[hidden[:, 1:]]
  assert np.all(steps == 1) and at.min() == 1 and at.max() <= length - 1
  begin, last = at[:, 0], lengths - k
  assert np.all((begin >= 1) & (begin <= last))
  # Of anywhere, one in `last` is at the front, and one at the end.
  share = 0.6 * np.mean(1 / last)
  assert np.mean(begin == 1) == pytest.approx(0.2 + share, abs=0.015)
  assert np.mean(begin == last) == pytest.approx(0.2 + share, abs=0.015)
  inside = (begin > 1) & (begin < last)
  place = (begin[inside] - 2) / (last[inside] - 3)
  assert place.mean() == pytest.approx(0.5, abs=0.015)
  assert place.std() == pytest.approx(12**-0.5, abs=0.015)
  # What the encoder reads there; and all else is as it was.
  index = np.nonzero(hidden)[0], at[hidden]
  was, now = text.tokens[index], batch['sources'][index]
  np.testing.assert_array_equal(was, batch['targets'][hidden])
  assert np.mean(now == MASK) == pytest.approx(0.8, abs=5e-3)
  assert np.mean(now == was) == pytest.approx(0.1, abs=5e-3)
  rest = batch['sources'].copy()
  rest[index] = was
  np.testing.assert_array_equal(rest, text.tokens)


def test_a_row_does_not_depend_on_its_company_and_short_ones_do_not_count():
  text = rows([L, 4, 5, 2, 0, 9])
  whole = batch_of(text)
  assert whole['weights'].sum(axis=1).tolist() == [6, 0, 2, 0, 0, 4]
  np.testing.assert_array_equal(
    whole['sources'][[1, 3, 4]], text.tokens[[1, 3, 4]]
  )
  part = Rows(text.tokens[2:5], text.real[2:5], special=text.special[2:5])
  for name, value in batch_of(part, first=2).items():
    np.testing.assert_array_equal(value, whole[name][2:5], name)
  assert (batch_of(text, first=6)['sources'] != whole['sources']).any()


def test_a_part_at_its_own_place_is_as_if_the_rest_were_hidden():
  """A decoder of whole rows whose other tokens nobody sees says the same."""
  text = rows([L, L, 9, 6])
  batch = batch_of(text)
  model = tiny.model(**FIELDS)
  count, at = len(text.tokens), batch['positions']
  place = np.arange(count)[:, None], at
  used = batch['weights'] > 0
  inputs = np.zeros((count, L), np.int32)
  seen = np.zeros((count, L), bool)
  inputs[place[0].repeat(at.shape[1], 1)[used], at[used]] = batch['inputs'][
    used
  ]
  seen[place[0].repeat(at.shape[1], 1)[used], at[used]] = True

  @jax.jit
  def both(params):
    compact, _ = forward.states(model, params, batch, None)
    whole = model.apply(
      {'params': params},
      inputs,
      mask_BL=seen,
      encoder_tokens_BM=batch['sources'],
      encoder_mask_BM=batch['source_mask'],
    )
    return compact, whole.hidden_BLD

  compact, whole = map(np.asarray, both(tiny.params(model)))
  np.testing.assert_allclose(
    compact[used], whole[place][used], rtol=1e-4, atol=1e-5
  )


@pytest.mark.parametrize('name', ['main', 'previous', 'one', 'all'])
def test_logits_are_those_of_hugging_face(name):
  """BART's body, whose decoder reads the part at its own places alone."""
  model, params = hf.load(str(FOLDER))
  golden = case(FOLDER, name)
  with np.load(FOLDER / 'golden.npz') as arrays:
    inputs = arrays[f'{name}/in/_compact_decoder_input_ids']
    positions = arrays[f'{name}/in/_compact_position_ids']
  labels, hidden = golden.inputs['labels'], golden.valid['dec_tokens']
  P = inputs.shape[1]
  at = np.argsort(~hidden, axis=1, kind='stable')[:, :P]
  weights = np.take_along_axis(hidden, at, axis=1)
  targets = np.where(weights, np.take_along_axis(labels, at, axis=1), 0)
  batch = {
    'sources': golden.inputs['input_ids'],
    'source_mask': golden.inputs['attention_mask'] == 1,
    'inputs': inputs,
    'targets': targets,
    'weights': weights.astype(np.float32),
    # Past the end a place does not matter.
    'positions': positions,
  }
  objective = Mass().bind(model)
  found = jax.jit(lambda p, b: objective.loss(p, b, None))(params, batch)
  np.testing.assert_allclose(
    found.sum / found.weight, golden.outputs['loss'], rtol=1e-5
  )


def test_what_does_not_go_together_is_refused():
  config = config_file.get_config('cpu').unlock()
  config_lib.resolve(config)
  config.model.num_encoder_layers = 0
  with pytest.raises(UsageError, match=r'trains encoder-decoders; give 1'):
    config_lib.resolve(config)
  config.model.num_encoder_layers = 2
  config.data.rows = 'stream'
  with pytest.raises(UsageError, match='made from full_sentences or doc_sent'):
    config_lib.resolve(config)
