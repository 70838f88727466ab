# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""An encoder before the encoder, as two models that are put together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.nn import params as params_lib
from gpt_jax.nn import stack
from gpt_jax.spec import UsageError
from tests.support import tiny

M = 7
FIELDS = dict(num_layers=1, num_encoder_layers=1, block='post')


def encode(model, params, ids, mask):
  def run(params):
    return model.apply({'params': params}, ids, mask, method='encode')

  return jax.jit(run)(params)


def test_its_output_stands_for_the_vectors_of_tokens():
  """Of an encoder-decoder whose table has a row for each place."""
  given = {'input': 'tokens(norm=True)', **FIELDS}
  model = tiny.model(num_source_layers=2, **given)
  params = tiny.params(model)
  ids = tiny.tokens(1, M, seed=1)
  mask = np.arange(M)[None] < 5
  first = tiny.model(
    **{'num_layers': 2, 'attention': 'bidirectional'},
    **{'input': 'tokens(norm=True)', 'block': 'post'},
  )

  @jax.jit
  def alone(params):
    return first.apply({'params': params}, ids, mask_BL=mask).hidden_BLD

  table = np.zeros((tiny.V, tiny.D), np.float32)
  table[:M] = alone(params['source'])[0]
  rest = {name: x for name, x in params.items() if name != 'source'}
  assert not np.array_equal(
    params['source']['embed']['embedding'], rest['embed']['embedding']
  )
  rest['embed'] = {'embedding': jnp.asarray(table)}
  expected = encode(tiny.model(**given), rest, np.arange(M)[None], mask)
  found = encode(model, params, ids, mask)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  # As it is decoded with.
  apart = model.clone(loop=stack.SEPARATE)
  again = encode(apart, params_lib.separate(params), ids, mask)
  np.testing.assert_allclose(found, again, rtol=1e-5, atol=1e-6)


def test_the_decoder_reads_and_scores_by_the_old_table():
  model = tiny.model(num_source_layers=1, **FIELDS)
  shapes = jax.tree.map(jnp.shape, tiny.params(model))
  assert shapes['source']['embed'] == shapes['embed']
  assert shapes['source'].keys() == {
    *('embed', 'positions', 'decoder'),
  }


def test_no_family_of_hugging_face_has_one(tmp_path):
  fields = {'num_kv_heads': tiny.H, 'input': 'tokens(norm=True)', **FIELDS}
  model = tiny.model(num_source_layers=1, **fields)
  with pytest.raises(UsageError, match=r'model.num_source_layers=1'):
    hf.save(str(tmp_path), model, tiny.params(model))
