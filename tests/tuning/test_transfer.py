# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What of pre-trained parameters a fine-tuned model starts from."""

import functools

import jax
import numpy as np
import optax
import pytest

from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import parts as state_lib
from gpt_jax.tuning import transfer
from gpt_jax.tuning.objectives.task import Classification
from tests.support import tiny


def built(**fields):
  return Classification(2, 7).bind(tiny.model(**fields))


@functools.cache
def pretrained():
  return tiny.params(tiny.model(num_layers=4, attention='full, local(window=3)'))


@pytest.mark.parametrize('amount', [None, 0, 3])
def test_what_is_transferred(amount):
  fields = {'num_layers': 4, 'attention': 'full, local(window=3)', 'vocab_size': tiny.V + 3}
  model = tiny.model(**fields)
  fresh = tiny.random_like(tiny.shapes(built(**fields)), seed=7)
  given = {
    params_lib.name_of(path): x for path, x in jax.tree_util.tree_leaves_with_path(pretrained())
  }
  masks = {}
  if amount is not None:
    masks = params_lib.flatten(params_lib.lowest(fresh, amount, model))
  init = state_lib.make_init(
    built(**fields).replaced(init=lambda _: fresh), optax.sgd(1.0), masks=masks
  )
  found = jax.jit(init)(jax.random.key(0), given).params
  table = found['embed']['embedding']
  np.testing.assert_array_equal(table[: tiny.V], pretrained()['embed']['embedding'])
  np.testing.assert_array_equal(table[tiny.V :], fresh['embed']['embedding'][tiny.V :])
  np.testing.assert_array_equal(
    found['positions']['embedding'], pretrained()['positions']['embedding']
  )
  # Layer 2 p + b is place b of period p.
  for layer in range(4):
    period, block = divmod(layer, 2)
    source = pretrained() if amount is None or layer < amount else fresh
    parts = (tree['decoder']['periods'][f'block_{block}'] for tree in (found, source))
    jax.tree.map(lambda a, b, p=period: np.testing.assert_array_equal(a[p], b[p]), *parts)
  last = pretrained() if amount is None else fresh
  jax.tree.map(np.testing.assert_array_equal, found['final_norm'], last['final_norm'])
  jax.tree.map(np.testing.assert_array_equal, found['heads'], fresh['heads'])


def test_a_model_that_does_not_fit_is_refused():
  fresh = tiny.shapes(built(num_layers=4, d_ff=31))
  with pytest.raises(UsageError, match=r'is \(2, 17, 29\), not \(4, 17, 31\)'):
    transfer.check(fresh, pretrained())
