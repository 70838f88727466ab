# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches of corrupted rows, and what they are made of."""

import functools

import jax
import numpy as np
import pytest

from gpt_jax.objectives import choices
from gpt_jax.objectives.denoise import Denoise, vocabulary_of
from gpt_jax.rows.row_makers import blank
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.spec import UsageError
from gpt_jax.text.sources import Document
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokenizers.simple import Bytes
from tests.support import tiny

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


def keys(count=3, seed=5):
  numbers = np.arange(count)
  return Keys(seed, numbers, numbers, np.zeros(count, int))


def batch_of(noise, given=None, **changes):
  model = tiny.model(num_encoder_layers=1, num_layers=1, vocab_size=265)
  made = Denoise(noise).bind(model, tokenizer())
  return made.make_batch(given or rows(), keys(**changes))


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
    np.testing.assert_array_equal(
      sources[given.special], given.tokens[given.special]
    )
    changed = False
    for i in range(len(sources)):
      is_open = given.real[i] & ~given.special[i]
      pairs = zip(
        texts(sources[i], is_open), texts(given.tokens[i], is_open), strict=True
      )
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


def test_choices_follow_from_the_key_alone():
  one, two = batch_of('infill'), batch_of('infill')
  np.testing.assert_array_equal(one['sources'], two['sources'])
  other = batch_of('infill', seed=6)['sources']
  assert np.any(other != one['sources'])
  last = Rows(*(None if x is None else x[2:] for x in rows()))
  numbers = np.arange(2, 3)
  made = Denoise('infill').bind(tiny.model(num_encoder_layers=1), tokenizer())
  alone = made.make_batch(last, Keys(5, numbers, numbers, numbers * 0))
  np.testing.assert_array_equal(alone['sources'][0], one['sources'][2])


def test_the_loss_of_a_batch_and_of_rows_without_text():
  model = tiny.model(
    **{'num_encoder_layers': 1, 'num_layers': 1, 'vocab_size': 265},
    **{'context_length': L, 'block': 'post', 'input': 'tokens(norm=True)'},
  )
  objective = Denoise().bind(model, tokenizer())
  batch = objective.make_batch(rows(), keys())
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
  without = Denoise().bind(model).make_batch(empty, keys(1))
  assert {n: x.shape for n, x in without.items()} == {
    n: x.shape for n, x in made.items()
  }


def test_the_full_stop():
  found = vocabulary_of(tokenizer())
  assert found.stop_id is not None
  assert tokenizer().decode([found.stop_id]) == '.'


@pytest.mark.parametrize(
  'name, message',
  [
    ("denoise('shuffle')", r"noise='shuffle': unknown 'shuffle'; one of"),
    ("denoise('mask')", r'mask takes \(rate'),
    ("denoise('infill(1.0)')", 'rate=1.0 must be below 1'),
    ("denoise('infill(0.3, 0)')", 'mean=0 must be at least 0.1'),
    ("denoise('')", 'is empty'),
  ],
)
def test_bad_arguments(name, message):
  with pytest.raises(UsageError, match=message):
    choices.needs(name)


def test_a_tokenizer_without_a_mask_is_refused():
  model = tiny.model(num_encoder_layers=1)
  with pytest.raises(UsageError, match=r'needs a \[MASK\]'):
    choices.build('denoise()', model, Bytes())
