# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches of corrupted rows, and what they are made of."""

import functools

import jax
import numpy as np

from gpt_jax.objectives.denoise import Denoise, vocabulary_of
from gpt_jax.rows.row_makers import blank
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.text.sources import Document
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
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


def test_the_full_stop():
  found = vocabulary_of(tokenizer())
  assert found.stop_id is not None
  assert tokenizer().decode([found.stop_id]) == '.'
