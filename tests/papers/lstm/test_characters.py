# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Characters of words, and convolutions over them, are those of ELMo's code."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.choices import INPUTS
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.hf import FILE, HfTokenizer
from gpt_jax.core.tokenizers.simple import END_OF_WORDS, Bytes, WordList
from gpt_jax.hf_tokenizers import in_library
from gpt_jax.papers.lstm import word_characters as characters
from gpt_jax.papers.lstm.characters import CharacterCnn, Characters
from tests.support import tiny
from tests.support.golden_io import ROOT, case, config, tensors


def test_words_and_ends_of_texts():
  """The released code's ids, which it raises by 1; 261 pads."""
  words = WordList(['cat', 'é', '<S>', 'abcdefgh'])
  found = characters.table(words, length=7)
  assert found.dtype == np.int16
  np.testing.assert_array_equal(
    found,
    [
      [259, 258, 260, 261, 261, 261, 261],  # the end of a document is </S>
      [259, 61, 118, 111, 108, 63, 260],  # <unk>
      [259, 100, 98, 117, 260, 261, 261],
      [259, 196, 170, 260, 261, 261, 261],  # two bytes
      [259, 257, 260, 261, 261, 261, 261],
      [259, 98, 99, 100, 101, 102, 260],  # cut
    ],
  )


def test_words_of_an_import_are_read():
  words = WordList(['cat', 'dog'])
  library = in_library.of(words).to_str().encode()
  files = {FILE: library, 'eos.json': json.dumps(END_OF_WORDS).encode()}
  found = characters.table(HfTokenizer(files))
  np.testing.assert_array_equal(found, characters.table(words))


@pytest.mark.parametrize(
  ('tokenizer', 'sizes', 'message'),
  [
    (Bytes(), (262, 50), r'tokens of this tokenizer are not words; set .*words'),
    (WordList(['a']), (261, 50), r'give num_characters=262'),
    (WordList(['a']), (262, 2), r'length=2\): .* a length of 3 or more'),
  ],
)
def test_what_is_refused(tokenizer, sizes, message):
  with pytest.raises(UsageError, match=message):
    characters.table(tokenizer, *sizes)


FOLDER = ROOT / 'elmo_mini'
SIZES = config(FOLDER)
INITS = ModelChoices.of(tiny.model(init_weights='transformer')).init_weights
CNN = CharacterCnn(
  Characters(
    tuple(map(tuple, SIZES['filters'])),
    SIZES['char_embedding_dim'],
    SIZES['n_highway'],
    SIZES['n_characters'],
    SIZES['max_characters'],
  ),
  SIZES['projection_dim'],
  INITS,
  jnp.float32,
)


def recorded(found=None):
  """The parameters of the recorded network, or their gradients."""
  found = found or tensors(FOLDER)
  params = {'embedding': found['char_embedding.weight']}
  for i in range(len(SIZES['filters'])):
    params[f'kernel_{i}'] = found[f'conv.{i}.weight'].transpose(2, 1, 0)
    params[f'bias_{i}'] = found[f'conv.{i}.bias']
  for ours, theirs in (
    *((f'highway_{i}', f'highway.{i}') for i in range(SIZES['n_highway'])),
    ('projection', 'projection'),
  ):
    params[ours] = {'kernel': found[f'{theirs}.weight'].T, 'bias': found[f'{theirs}.bias']}
  return params


def test_equals_the_recorded_values():
  golden = case(FOLDER, 'main')
  apply = jax.jit(CNN.apply)
  out = apply({'params': recorded()}, golden.inputs['characters'])
  expected = golden.outputs['layers'][0]
  np.testing.assert_array_equal(*np.split(expected, 2, axis=-1))
  real = golden.valid['tokens']
  np.testing.assert_allclose(
    out[real], np.split(expected, 2, axis=-1)[0][real], rtol=1e-5, atol=1e-5
  )


def test_a_new_highway_passes_its_input():
  """The gate's bias is 2, as in the released code; other biases are 0."""
  init = jax.jit(CNN.init)
  params = init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))['params']
  shapes = jax.tree.map(np.shape, recorded())
  for x in jax.tree.leaves(params, is_leaf=_boxed):
    assert len({*x.names}) == x.value.ndim, 'a mesh takes each name once'
  params = jax.tree.map(lambda x: np.asarray(x.value), params, is_leaf=_boxed)
  assert jax.tree.map(np.shape, params) == shapes
  first, second = np.split(params['highway_0']['bias'], 2)
  assert (first == 0).all()
  assert (second == 2).all()


def _boxed(x):
  return hasattr(x, 'names')


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    ('characters(filters=())', r'filters=\(\)\): must be pairs'),
    ('characters(filters=((1, 2), 3))', 'must be pairs'),
    ('characters(filters=((1, 0.5),))', 'must be pairs'),
    ('characters(filters=((9, 5),), length=7)', 'at most length=7'),
    ('characters(num_highways=-1)', 'num_highways=-1 must be at least 0'),
  ],
)
def test_calls_that_are_refused(call, message):
  with pytest.raises(UsageError, match=message):
    spec.build('model.input', call, INPUTS)


def test_ids_of_tokens_are_refused():
  with pytest.raises(UsageError, match='is given ids of tokens'):
    CNN.apply({'params': recorded()}, jnp.zeros((2, 3), jnp.int32))
