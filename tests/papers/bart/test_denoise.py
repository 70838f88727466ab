# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BART's corruptions, MASS's hidden parts: what is read and predicted."""

import functools
import json

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core.files.document import Document
from gpt_jax.core.objectives import forward
from gpt_jax.core.rows import sides
from gpt_jax.core.rows.row_makers import blank
from gpt_jax.core.rows.rows import Rows
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.papers.bart import denoise
from gpt_jax.papers.bart.denoise import Denoise, Mass, Piece, Vocabulary, vocabulary_of
from tests.support import tiny
from tests.support.golden_io import ROOT, case
from tests.support.objectives import CLS, EOS, MASK, SEP, Words, keys

TEXT = 'One two three four. Five six seven! Eight nine ten. Eleven'
L = 97


@functools.cache
def tokenizer():
  return tokenizer_lib.build('byte_bpe(265)', [Document('a', TEXT)])


def rows(count=3):
  """Two documents in the first row, one in the others, then padding."""
  made, special = tokenizer(), tokenizer().special
  tokens = np.full((count, L), special.pad_id, np.int32)
  mark, real = np.zeros(tokens.shape, bool), np.zeros(tokens.shape, bool)
  for i in range(count):
    text = made.encode(TEXT[: 40 + 7 * i])
    parts = [[special.cls_id], text, [special.sep_id]]
    if i == 0:
      parts += [made.encode('Some more. And so on.'), [special.sep_id]]
    row = np.concatenate(parts)
    tokens[i, : len(row)], real[i, : len(row)] = row, True
  mark = (tokens == special.cls_id) | (tokens == special.sep_id)
  return Rows(tokens, real, special=mark & real)


def batch_of(noise, given=None):
  model = tiny.model(num_encoder_layers=1, num_layers=1, vocab_size=265)
  made = Denoise(noise).bind(model, tokenizer())
  return made.make_batch(given or rows(), keys(3))


def texts(row, is_open):
  """The documents of a row of ids."""
  cuts = np.flatnonzero(is_open[1:] != is_open[:-1]) + 1
  parts = zip(np.split(row, cuts), np.split(is_open, cuts), strict=True)
  return [part for part, inside in parts if inside[0]]


def test_the_row_is_written_as_it_was():
  given, special = rows(), tokenizer().special
  batch = batch_of('permute, infill(0.3, 3)')
  np.testing.assert_array_equal(batch['targets'], given.tokens)
  np.testing.assert_array_equal(batch['weights'], given.real)
  np.testing.assert_array_equal(batch['inputs'][:, 1:], given.tokens[:, :-1])
  assert {*batch['inputs'][:, 0]} == {special.eos_id}
  assert special.eos_id == special.sep_id
  sources, mask = batch['sources'], batch['source_mask']
  assert sources.shape == given.tokens.shape
  assert np.all(np.diff(mask.astype(int)) <= 0)
  assert np.all(sources[~mask] == special.pad_id)
  assert np.all(mask.sum(axis=1) < given.real.sum(axis=1))
  assert np.all(np.sum(sources == special.mask_id, axis=1) > 0)
  for i, documents in enumerate([2, 1, 1]):
    found = sources[i, mask[i]]
    assert found[0] == special.cls_id and found[-1] == special.sep_id
    assert np.sum(found == special.sep_id) == documents


def test_documents_of_a_row_do_not_mix():
  given = rows()
  for noise in ('permute', 'rotate', 'rotate, permute'):
    sources = batch_of(noise)['sources']
    np.testing.assert_array_equal(sources[given.special], given.tokens[given.special])
    changed = False
    for i in range(len(sources)):
      is_open = given.real[i] & ~given.special[i]
      pairs = zip(texts(sources[i], is_open), texts(given.tokens[i], is_open), strict=True)
      for found, text in pairs:
        np.testing.assert_array_equal(np.sort(found), np.sort(text))
        changed |= not np.array_equal(found, text)
    assert changed


def test_rows_of_a_stream_have_the_ends_of_documents():
  special = tokenizer().special
  given = rows()._replace(special=None)
  sources = batch_of('rotate', given)['sources']
  at = given.tokens == special.eos_id
  np.testing.assert_array_equal(sources[at], given.tokens[at])


def test_the_loss_of_a_batch_and_of_rows_without_text():
  model = tiny.model(
    **{'num_encoder_layers': 1, 'num_layers': 1, 'vocab_size': 265},
    **{'context_length': L, 'block': 'post', 'input': 'tokens(norm=True)'},
  )
  objective = Denoise().bind(model, tokenizer())
  batch = objective.make_batch(rows(), keys(3))
  params = tiny.params(model)
  loss = jax.jit(lambda p, b: objective.loss(p, b, None))
  found = loss(params, batch)
  assert float(found.weight) == rows().real.sum()
  assert np.isfinite(float(found.sum)) and float(found.sum) > 0
  empty = blank('full_sentences', L)
  made = objective.make_batch(empty, keys(1))
  assert not made['source_mask'].any()
  padded = {n: np.repeat(x, 3, axis=0) for n, x in made.items()}
  assert float(loss(params, padded).sum) == 0


def test_the_full_stop():
  found = vocabulary_of(tokenizer())
  assert found.stop_id is not None
  assert tokenizer().decode([found.stop_id]) == '.'


NOISE = ROOT / 'bart_noise'
VOCAB, MASK_ID, STOP = 1009, 3, 7
VOCABULARY = Vocabulary(VOCAB, MASK_ID, STOP)


def recorded():
  out = {}
  with np.load(NOISE / 'golden.npz') as arrays:
    for key in arrays.files:
      name, kind, array = key.split('/')
      out.setdefault(name, {})[f'{kind}_{array}'] = arrays[key]
  return out


GOLDEN = recorded()
TEXTS = [name for name in GOLDEN if name != 'span_lengths']


def index_of(name, ids, given, stop_id):
  """The corruption of the recorded choices."""
  kind = name.split('_')[0]
  if kind == 'mask':
    return denoise.masked(len(ids), given['in_positions'])
  if kind == 'delete':
    return denoise.deleted(len(ids), given['in_positions'])
  if kind == 'infill':
    return denoise.infilled(len(ids), given['in_starts'], given['in_lengths'])
  if kind == 'rotate':
    return denoise.rotated(len(ids), int(given['in_offset']))
  # There each full stop ends a sentence, even behind another.
  ends = np.flatnonzero(ids == stop_id) + 1
  if ends[-1] < len(ids):
    ends = np.append(ends, len(ids))
  index = denoise.permuted(ends, given['in_order'])
  if name == 'permute_infill':
    infilled = index_of('infill', ids, given, stop_id)
    hidden = infilled == denoise.MASK
    index = np.where(hidden, denoise.MASK, index[infilled])
  return index


@pytest.mark.parametrize('name', TEXTS)
def test_recorded_corruptions(name):
  given, ids_of = GOLDEN[name], json.loads((NOISE / 'config.json').read_text())
  first, *ids, last = given['in_input_ids']
  ids = np.array(ids)
  index = index_of(name, ids, given, ids_of['full_stop'])
  made = np.where(index == denoise.MASK, ids_of['mask_token_id'], ids[index])
  np.testing.assert_array_equal([first, *made, last], given['out_output_ids'])


def test_recorded_lengths_of_spans():
  given = GOLDEN['span_lengths']
  budget = int(given['in_tokens_to_mask'])
  found = denoise.span_lengths(given['in_draws'], budget)
  np.testing.assert_array_equal(found, given['out_lengths'])
  with pytest.raises(ValueError, match='of 11'):
    denoise.span_lengths(given['in_draws'][:5], budget)


def pieces(count, length=509, *, one_word_a_token=False):
  rng = np.random.default_rng(0)
  for _ in range(count):
    ids = rng.integers(8, VOCAB, size=length, dtype=np.int32)
    ids[rng.random(length) < 0.06] = STOP
    starts = rng.random(length) < (1.0 if one_word_a_token else 0.7)
    starts[0] = True
    yield Piece(ids, starts)


def spans(monkeypatch, step, given):
  """What `infilled` is asked for, of each text; tokens and lengths."""
  asked, infilled = [], denoise.infilled

  def spy(count, starts, lengths):
    asked.append((count, starts, lengths))
    return infilled(count, starts, lengths)

  monkeypatch.setattr(denoise, 'infilled', spy)
  generator = np.random.default_rng(8)
  made = [step(piece, generator, VOCABULARY) for piece in given]
  return asked, made


def test_a_million_tokens_infilled(monkeypatch):
  """30% in spans, whole words; of the draws exp(-3) = 4.98% are empty."""
  given = list(pieces(2000))
  asked, made = spans(monkeypatch, denoise.infill(0.3, 3), given)
  tokens = sum(count for count, _, _ in asked)
  hidden = sum(int(lengths.sum()) for _, _, lengths in asked)
  empty = sum(int(np.sum(lengths == 0)) for _, _, lengths in asked)
  number = sum(len(lengths) for _, _, lengths in asked)
  assert tokens > 1e6
  assert abs(hidden / tokens - 0.30) < 0.002
  assert abs(empty / number - np.exp(-3)) < 0.002
  for piece, (count, starts, lengths), out in zip(given, asked, made, strict=True):
    assert np.all(starts[1:] >= starts[:-1] + lengths[:-1])
    ends = starts + lengths
    assert piece.starts[starts[starts < count]].all()
    assert piece.starts[ends[ends < count]].all()
    # One [MASK] each, and the rest in its order.
    assert len(out.ids) == count - lengths.sum() + len(lengths) <= count
    kept = np.ones(count, bool)
    for start, end in zip(starts, ends, strict=True):
      kept[start:end] = False
    rest = out.ids[out.ids != MASK_ID]
    np.testing.assert_array_equal(rest, piece.ids[kept])


def test_spans_lie_anywhere(monkeypatch):
  """Of 5 words, 2 in one span: all 4 places are equally likely."""
  step = denoise.infill(0.4, 1000)  # each draw covers the budget
  given = list(pieces(2000, 5, one_word_a_token=True))
  asked, _ = spans(monkeypatch, step, given)
  counts = np.bincount([int(starts[0]) for _, starts, _ in asked])
  assert {int(lengths.sum()) for _, _, lengths in asked} == {2}
  np.testing.assert_allclose(counts / 2000, np.full(4, 0.25), atol=0.03)


def test_no_text_grows():
  """Even where most of the spans are empty."""
  step, generator = denoise.infill(0.3, 0.1), np.random.default_rng(2)
  for length in (1, 2, 5, 31):
    for piece in pieces(20, length):
      assert len(step(piece, generator, VOCABULARY).ids) <= length


def test_some_masks_become_random_tokens():
  generator = np.random.default_rng(3)
  given = list(pieces(100))
  masks = [
    sum(np.sum(step(piece, generator, VOCABULARY).ids == MASK_ID) for piece in given)
    for step in (denoise.infill(0.3, 3), denoise.infill(0.3, 3, 0.1))
  ]
  assert abs(masks[1] / masks[0] - 0.9) < 0.03


@pytest.mark.parametrize('kind', ['mask', 'delete'])
def test_tokens_are_masked_or_deleted(kind):
  step, generator = denoise.NOISES[kind](0.15), np.random.default_rng(4)
  given = list(pieces(500))
  hidden = 0
  for piece in given:
    out = step(piece, generator, VOCABULARY)
    assert len(out.ids) == len(out.starts)
    if kind == 'mask':
      hidden += np.sum(out.ids == MASK_ID)
      same = out.ids != MASK_ID
      np.testing.assert_array_equal(out.ids[same], piece.ids[same])
    else:
      hidden += len(piece.ids) - len(out.ids)
  assert abs(hidden / (500 * 509) - 0.15) < 0.0005


def test_permutation_is_a_bijection_of_sentences():
  generator = np.random.default_rng(5)
  moved = 0
  for piece in pieces(50, 211):
    ends = denoise.sentence_ends(piece.ids, STOP)
    order = generator.permutation(len(ends))
    index = denoise.permuted(ends, order)
    np.testing.assert_array_equal(piece.ids[index][np.argsort(index)], piece.ids)
    # The sentences are those that were there, in that order.
    before = np.split(piece.ids, ends[:-1])
    now = [before[i] for i in order]
    np.testing.assert_array_equal(np.concatenate(now), piece.ids[index])
    out = denoise.permute()(piece, generator, VOCABULARY)
    assert sorted(out.ids) == sorted(piece.ids)
    assert out.starts.sum() == piece.starts.sum()
    moved += not np.array_equal(out.ids, piece.ids)
  assert moved > 45


def test_rotation_is_a_bijection():
  generator, offsets = np.random.default_rng(6), []
  piece = Piece(np.arange(10, 27, dtype=np.int32), np.ones(17, bool))
  for _ in range(3400):
    out = denoise.rotate()(piece, generator, VOCABULARY)
    offset = int(out.ids[0]) - 10
    np.testing.assert_array_equal(np.roll(out.ids, offset), piece.ids)
    offsets.append(offset)
  counts = np.bincount(offsets, minlength=17) / 3400
  np.testing.assert_allclose(counts, np.full(17, 1 / 17), atol=0.02)


def test_a_full_stop_behind_another_ends_nothing():
  ids = np.array([9, STOP, STOP, 8, 11, STOP, 12])
  np.testing.assert_array_equal(denoise.sentence_ends(ids, STOP), [2, 6, 7])
  np.testing.assert_array_equal(denoise.sentence_ends(ids[:6], STOP), [2, 6])


def test_steps_follow_one_another():
  """Sentences stay whole where they are permuted first, and words too."""
  generator = np.random.default_rng(7)
  (piece,) = pieces(1, 101)
  for kinds in (['permute', 'infill'], ['infill', 'permute', 'rotate']):
    out = piece
    for kind in kinds:
      out = denoise.NOISES[kind]()(out, generator, VOCABULARY)
    rest = out.ids[out.ids != MASK_ID]
    counts = np.bincount(piece.ids, minlength=VOCAB)
    assert np.all(np.bincount(rest, minlength=VOCAB) <= counts)
    assert np.sum(out.ids == MASK_ID) >= 3


LENGTH, V = 13, tiny.V
FIELDS = dict(num_layers=2, num_encoder_layers=1)
MASS_FOLDER = ROOT / 'mass_mini'


def mass_rows(lengths, length=LENGTH, vocab_size=V, seed=0):
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


def mass_batch(text, *, first=0, vocab_size=V, **arguments):
  model = tiny.model(**FIELDS, vocab_size=vocab_size)
  objective = Mass(**arguments).bind(model, Words(vocab_size))
  return objective.make_batch(text, keys(len(text.tokens), first))


def test_all_tokens_are_a_causal_language_model():
  """With k = m the source says nothing, the decoder predicts the text."""
  text = mass_rows([LENGTH, LENGTH, 7])
  batch = mass_batch(text, rate=1.0, mask=1.0, random=0.0)
  first = sides.start_id('eos', Words.special)
  for i, n in enumerate((LENGTH, LENGTH, 7)):
    row = text.tokens[i]
    assert batch['weights'][i].tolist() == [1] * (n - 1) + [0] * (LENGTH - n)
    assert batch['targets'][i, : n - 1].tolist() == row[1:n].tolist()
    assert batch['inputs'][i, : n - 1].tolist() == [first, *row[1 : n - 1]]
    assert batch['positions'][i, : n - 1].tolist() == [*range(n - 1)]
    assert batch['sources'][i, :n].tolist() == [CLS] + [MASK] * (n - 1)
    np.testing.assert_array_equal(batch['sources'][i, n:], row[n:])
  np.testing.assert_array_equal(batch['source_mask'], text.real)


def test_one_token_is_a_masked_language_model():
  """With k = 1 that token is predicted from the one before and all others."""
  text = mass_rows([LENGTH] * 300)
  batch = mass_batch(text, rate=1e-3, mask=1.0, random=0.0)
  assert batch['targets'].shape == (300, 1) and np.all(batch['weights'] == 1)
  at = batch['positions'][:, 0] + 1
  index = np.arange(300)
  np.testing.assert_array_equal(text.tokens[index, at], batch['targets'][:, 0])
  before = np.where(at == 1, EOS, text.tokens[index, at - 1])
  np.testing.assert_array_equal(before, batch['inputs'][:, 0])
  expected = text.tokens.copy()
  expected[index, at] = MASK
  np.testing.assert_array_equal(batch['sources'], expected)
  assert {*at.tolist()} == {*range(1, LENGTH)}


def test_half_of_each_row_is_hidden_where_the_released_code_hides_it():
  """Over a million tokens: 0.2 at the front, 0.2 at the end, 0.6 anywhere."""
  count, length, size = 12_000, 131, 1009
  rng = np.random.default_rng(1)
  lengths = rng.integers(40, length + 1, count)
  text = mass_rows(lengths, length, size)
  batch = mass_batch(text, vocab_size=size)
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
  text = mass_rows([LENGTH, 4, 5, 2, 0, 9])
  whole = mass_batch(text)
  assert whole['weights'].sum(axis=1).tolist() == [6, 0, 2, 0, 0, 4]
  np.testing.assert_array_equal(whole['sources'][[1, 3, 4]], text.tokens[[1, 3, 4]])
  part = Rows(text.tokens[2:5], text.real[2:5], special=text.special[2:5])
  for name, value in mass_batch(part, first=2).items():
    np.testing.assert_array_equal(value, whole[name][2:5], name)
  assert (mass_batch(text, first=6)['sources'] != whole['sources']).any()


def test_a_part_at_its_own_place_is_as_if_the_rest_were_hidden():
  """A decoder of whole rows whose other tokens nobody sees says the same."""
  text = mass_rows([LENGTH, LENGTH, 9, 6])
  batch = mass_batch(text)
  model = tiny.model(**FIELDS)
  count, at = len(text.tokens), batch['positions']
  place = np.arange(count)[:, None], at
  used = batch['weights'] > 0
  inputs = np.zeros((count, LENGTH), np.int32)
  seen = np.zeros((count, LENGTH), bool)
  inputs[place[0].repeat(at.shape[1], 1)[used], at[used]] = batch['inputs'][used]
  seen[place[0].repeat(at.shape[1], 1)[used], at[used]] = True

  @jax.jit
  def both(params):
    compact, _ = forward.states(model, params, batch, None)
    whole = model.apply(
      {'params': params}, model.row({**batch, 'inputs': inputs, 'mask': seen, 'positions': None})
    )
    return compact, whole.hidden_BLD

  compact, whole = map(np.asarray, both(tiny.params(model)))
  np.testing.assert_allclose(compact[used], whole[place][used], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', ['main', 'previous', 'one', 'all'])
def test_logits_are_those_of_hugging_face(name):
  """BART's body, whose decoder reads the part at its own places alone."""
  model, params = hf.load(str(MASS_FOLDER))
  golden = case(MASS_FOLDER, name)
  with np.load(MASS_FOLDER / 'golden.npz') as arrays:
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
  np.testing.assert_allclose(found.sum / found.weight, golden.outputs['loss'], rtol=1e-5)
