# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""DeBERTa's enhanced mask decoder against its fixture, and the convolution."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import hf, spec
from gpt_jax.hf import heads
from gpt_jax.nn.attend import Visibility
from gpt_jax.nn.build import POSITIONS, without_mask_decoder
from gpt_jax.nn.deberta import Convolution
from gpt_jax.nn.layers import INITS, NORMS
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError
from tests.support import tiny
from tests.support.golden_io import ROOT, case, tensors

FOLDER = ROOT / 'deberta_emd'


@functools.cache
def fixture(times, **changes):
  """The fixture's model with its absolute positions, and their parameters."""
  imported, params = hf.load(str(FOLDER))
  fields = {n: getattr(imported, n) for n in hf.transformer_fields()}
  fields['position'] = imported.position[:-1] + f', mask_decoder={times})'
  name = 'deberta.embeddings.position_embeddings.weight'
  positions = {'embedding': tensors(FOLDER)[name]}
  model = Transformer(**{**fields, **changes})
  return model, {**params, 'late_positions': positions}


@pytest.mark.parametrize('times', [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_fixture(times):
  model, params = fixture(times, loop='scan' if times == 1 else 'unroll')
  golden = case(FOLDER, 'emd')
  ids, mask = (golden.inputs[n] for n in ('input_ids', 'attention_mask'))

  @jax.jit
  def run(params):
    out, sown = model.apply(
      *({'params': params}, ids),
      mask_BL=mask.astype(bool),
      mutable=['intermediates'],
    )
    hidden = out.hidden_BLD
    logits = model.apply({'params': params}, hidden, method='logits')
    states = sown['intermediates']['decoder']['periods']['hidden_0'][0]
    return states, hidden, logits

  states, hidden, logits = run(params)
  loss = heads.cross_entropy(logits, jnp.asarray(golden.inputs['labels']))
  found = {'keys': states[0], f'z{times}': hidden}
  found |= {f'logits_n{times}': logits, f'loss_n{times}': loss}
  for name, value in found.items():
    assert golden.max_error(name, value) < 1e-4, name


@pytest.mark.parametrize(
  'option, message',
  [
    ('mask_decoder=1', 'model.block=post, or mask_decoder=0'),
    ('convolution=3', 'sees later tokens; take bidirectional'),
  ],
)
def test_models_that_have_none(option, message):
  model = tiny.model(position=f'deberta({option})', block='pre')
  with pytest.raises(UsageError) as error:
    tiny.params(model)
  assert message in str(error.value)


def test_fine_tuning_leaves_the_mask_decoder_out():
  found = without_mask_decoder('deberta(7, mask_decoder=2, shared=True)')
  same = 'deberta(max_distance=7, shared=True)'
  bound = [
    spec.bind_all('model.position', text, POSITIONS) for text in (found, same)
  ]
  assert bound[0] == bound[1]
  for text in ('learned(offset=2)', 'deberta(3)'):
    assert without_mask_decoder(text) == text


def test_convolution_of_packed_rows():
  """Documents and padding that stand beside a token are zeros to it."""
  module = Convolution(
    *(3, 'gelu', NORMS['layernorm']()),
    *(INITS['normal']()(1).kernel, jnp.float32),
  )
  rng = np.random.default_rng(0)
  x = np.float32(rng.normal(size=(1, 7, 5)))
  segments, mask = np.array([[1, 1, 1, 2, 2, 2, 2]]), np.arange(7)[None] < 6
  kernel = np.float32(rng.normal(size=(3, 5, 5)))
  bias = np.float32(rng.normal(size=5))
  norm = {'scale': np.ones(5), 'bias': np.zeros(5)}
  params = {'kernel': kernel, 'bias': bias, 'norm': norm}
  run = jax.jit(module.apply)
  whole, parts = (
    np.asarray(run({'params': params}, x, v).x_BLD)
    for v in (Visibility(), Visibility(mask, segments))
  )
  padded = np.concatenate([0 * x[:, :1], x, 0 * x[:, :1]], axis=1)
  sums = sum(padded[:, t : t + 7] @ kernel[t] for t in range(3)) + bias
  gelu = functools.partial(jax.nn.gelu, approximate=False)
  np.testing.assert_allclose(whole, gelu(sums), atol=1e-5)
  for stop, document in ((3, slice(0, 3)), (6, slice(3, 6))):
    alone = np.concatenate([0 * x[:, :1], x[:, document], 0 * x[:, :1]], axis=1)
    sums = sum(alone[:, t : t + 3] @ kernel[t] for t in range(3)) + bias
    np.testing.assert_allclose(parts[:, stop - 3 : stop], gelu(sums), atol=1e-5)
