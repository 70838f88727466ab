# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BART's corruptions: recorded ones, counts over a million tokens, inverses."""

import json

import numpy as np
import pytest

from gpt_jax.objectives import denoise
from gpt_jax.objectives.denoise import MASK, Piece, Vocabulary
from tests.support.golden_io import ROOT

FOLDER = ROOT / 'bart_noise'
V, MASK_ID, STOP = 1009, 3, 7
VOCABULARY = Vocabulary(V, MASK_ID, STOP)


def recorded():
  out = {}
  with np.load(FOLDER / 'golden.npz') as arrays:
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
    index = np.where(infilled == MASK, MASK, index[infilled])
  return index


@pytest.mark.parametrize('name', TEXTS)
def test_recorded_corruptions(name):
  given, ids_of = GOLDEN[name], json.loads((FOLDER / 'config.json').read_text())
  first, *ids, last = given['in_input_ids']
  ids = np.array(ids)
  index = index_of(name, ids, given, ids_of['full_stop'])
  made = np.where(index == MASK, ids_of['mask_token_id'], ids[index])
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
    ids = rng.integers(8, V, size=length, dtype=np.int32)
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
  for piece, (count, starts, lengths), out in zip(
    given, asked, made, strict=True
  ):
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
    sum(
      np.sum(step(piece, generator, VOCABULARY).ids == MASK_ID)
      for piece in given
    )
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
    np.testing.assert_array_equal(
      piece.ids[index][np.argsort(index)], piece.ids
    )
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
    counts = np.bincount(piece.ids, minlength=V)
    assert np.all(np.bincount(rest, minlength=V) <= counts)
    assert np.sum(out.ids == MASK_ID) >= 3
