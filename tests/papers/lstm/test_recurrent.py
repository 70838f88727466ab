# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""AWD-LSTM: equal to torch under given masks; segments cut the gradient."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core.nn.caches import LstmState
from gpt_jax.core.nn.row import Row
from gpt_jax.core.objectives import forward
from gpt_jax.core.rows.rows import Keys, cut
from gpt_jax.papers.lstm.recurrent import SHORTEST, Recurrent, last_raw
from tests.support import tiny
from tests.support.golden_io import ROOT, case, config, tensors

FOLDER = ROOT / 'awd_lstm'
TOLERANCE = {'rtol': 1e-5, 'atol': 1e-5}
SIZES = config(FOLDER)
RATES = SIZES['dropout']
CELLS, WIDTH = SIZES['hidden_size'], SIZES['embedding_size']
ATTENTION = (
  'lstm({0}, input_dropout={input}, dropout={hidden}, weight_drop={weight}), '
  'lstm({0}, dropout={hidden}, weight_drop={weight}), '
  'lstm({1}, dropout={output}, weight_drop={weight})'
).format(CELLS, WIDTH, **RATES)
MODEL = tiny.model(
  vocab_size=SIZES['vocab_size'],
  num_layers=3,
  context_length=71,
  d_model=WIDTH,
  attention=ATTENTION,
  block='plain',
  position='none',
  output='tied(bias=True)',
  dropout=f'rates(words={RATES["embedding"]})',
)
OBJECTIVE = Recurrent(alpha=SIZES['alpha'], beta=SIZES['beta']).bind(MODEL)


def of_torch(found):
  """Our parameters from the tensors of the released code."""
  blocks = {
    f'block_{i}': {
      'forward': {
        'input': {
          'kernel': found[f'rnns.{i}.weight_ih_l0'].T[None],
          'bias': found[f'rnns.{i}.bias_ih_l0'][None],
        },
        'kernel_hidden': found[f'rnns.{i}.weight_hh_l0'].T[None],
        'bias_hidden': found[f'rnns.{i}.bias_hh_l0'][None],
      }
    }
    for i in range(3)
  }
  return {
    'embed': {'embedding': found['embedding.weight']},
    'head_bias': found['decoder.bias'],
    'decoder': {'periods': blocks},
  }


@pytest.mark.parametrize('name', ['eval', 'train'])
def test_equals_torch(name, monkeypatch):
  golden = case(FOLDER, name)
  given, expected = golden.inputs, golden.outputs
  params = of_torch(tensors(FOLDER))
  caches = tuple(
    LstmState(given[f'h{i}'].reshape(1, 2, -1), given[f'c{i}'].reshape(1, 2, -1)) for i in range(3)
  )
  shape = given['input_ids'].shape
  batch = {
    'inputs': given['input_ids'],
    'targets': given['labels'],
    'weights': np.ones(shape, np.float32),
    'cuts': np.zeros(shape, bool),
  }
  batch = OBJECTIVE.weighed(batch)
  monkeypatch.setattr(forward, 'apply', functools.partial(forward.apply, caches=caches))
  if name == 'train':
    masks = {}
    for key in (
      'embedding',
      'input',
      'weight_hh_l0',
      'hidden_l0',
      'weight_hh_l1',
      'hidden_l1',
      'weight_hh_l2',
      'output',
    ):
      mask = given[f'mask_{key}'] > 0
      mask = mask.T if mask.ndim == 2 else mask  # kernels, and words [V, 1]
      mask = mask[0] if key == 'embedding' else mask
      masks.setdefault(mask.shape, []).append(mask)
    drawn = {shape: itertools.cycle(found) for shape, found in masks.items()}
    monkeypatch.setattr(jax.random, 'bernoulli', lambda key, keep, shape: next(drawn[shape]))
  else:
    monkeypatch.setattr(jax.random, 'bernoulli', lambda key, keep, shape: jnp.ones(shape, bool))
  objective = OBJECTIVE
  if name == 'eval':  # the recorded loss has the penalties without dropout
    objective = OBJECTIVE.replaced(
      model=MODEL.clone(attention=f'lstm({CELLS}), lstm({CELLS}), lstm({WIDTH})', dropout='none')
    )
  key = jax.random.key(0)
  out, sown = forward.apply(
    objective.model,
    params,
    objective.model.row(batch, cuts=batch['cuts']),
    key,
    sow=('intermediates',),
  )
  found = {'output': out.hidden_BLD, 'raw_output': last_raw(sown['intermediates'])}
  for i, state in enumerate(out.caches):
    found[f'h{i}_n'], found[f'c{i}_n'] = state.hidden_BP, state.cell_BS
  found['logits'] = objective.model.apply({'params': params}, out.hidden_BLD, method='logits')

  def total(params):
    loss = objective.loss(params, batch, key)
    return loss.sum / loss.weight, loss

  run = jax.jit(jax.value_and_grad(total, has_aux=True))
  (found['loss'], loss), gradient = run(params)
  found['cross_entropy'] = (loss.sum - loss.penalty) / loss.weight
  for key, array in found.items():
    np.testing.assert_allclose(array, expected[key], **TOLERANCE, err_msg=key)
  if name == 'train':
    wanted = {n.removeprefix('grad_'): x for n, x in expected.items()}
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, **TOLERANCE), gradient, of_torch(wanted)
    )


def test_segments_follow_from_seed_and_row():
  """Each is about as long as asked, some half as long; others have others."""
  run = np.arange(11, dtype=np.int64)
  rows = cut(np.zeros((11, 2001), np.int32))
  objective = Recurrent(segment=41, full_share=0.7).bind(MODEL)
  batch, again, other = (
    objective.make_batch(rows, Keys(seed, run, run, run * 0))['cuts'] for seed in (5, 5, 6)
  )
  np.testing.assert_array_equal(batch, again)
  assert np.any(batch != other) and np.any(batch[0] != batch[1])
  assert not np.any(batch[:, 0])
  lengths = np.concatenate([np.diff(np.flatnonzero(row)) for row in batch])
  assert lengths.min() >= SHORTEST
  halves = lengths < 31
  assert abs(halves.mean() - 0.3) < 0.1
  assert abs(lengths[halves].mean() - 20) < 2
  assert abs(lengths[~halves].mean() - 41) < 2


def test_backward_rows_are_read_from_right_to_left():
  """Each token is predicted from the one after it; padding stays at the end."""
  text = np.arange(3 * 7 + 1, dtype=np.int32)
  real = np.arange(7) < [[7], [5], [7]]
  rows = cut(np.stack([text[7 * i : 7 * i + 8] for i in range(3)]), real)
  numbers = np.arange(3, dtype=np.int64)
  objective = Recurrent(segment=3, direction='backward').bind(MODEL)
  batch = objective.make_batch(rows, Keys(0, numbers, numbers, numbers))
  for i, length in enumerate((7, 5, 7)):
    ids = text[7 * i : 7 * i + length + 1][::-1]
    np.testing.assert_array_equal(batch['inputs'][i, :length], ids[:-1])
    np.testing.assert_array_equal(batch['targets'][i, :length], ids[1:])
  np.testing.assert_array_equal(batch['weights'], real)


def test_a_cut_stops_the_gradient_and_the_pair_across_it():
  """What a segment loses, a row that begins with its state loses too."""
  model = MODEL.clone(attention=f'lstm({CELLS}), lstm({CELLS}), lstm({WIDTH})', dropout='none')
  objective = Recurrent(alpha=0.0, beta=3.0).bind(model)
  params = tiny.random_like(tiny.params(model), seed=1)
  tokens = tiny.tokens(2, 12)
  cuts = np.zeros((2, 11), bool)
  cuts[:, 5] = True
  batch = {
    'inputs': tokens[:, :-1],
    'targets': tokens[:, 1:],
    'weights': np.ones((2, 11), np.float32),
    'cuts': cuts,
  }
  key = jax.random.key(0)

  def mean(params, batch):
    loss = objective.loss(params, objective.weighed(batch), key)
    return loss.sum / loss.weight

  found, gradient = jax.jit(jax.value_and_grad(mean))(params, batch)
  apply, sums, caches = jax.jit(model.apply), [], None
  for part in (slice(0, 5), slice(5, 11)):
    given = {name: x[:, part] for name, x in batch.items()}
    given['cuts'] = np.zeros_like(given['cuts'])
    sums.append((given, caches))
    out = apply(
      {'params': params},
      given['inputs'],
      caches
      or tuple(
        LstmState(jnp.zeros((1, 2, n)), jnp.zeros((1, 2, n))) for n in (CELLS, CELLS, WIDTH)
      ),
    )
    caches = out.caches

  def by_hand(params):
    total, squares = 0.0, []
    for given, caches in sums:
      out, sown = forward.apply(
        model, params, Row(given['inputs']), None, sow=('intermediates',), caches=caches
      )
      logits = model.apply({'params': params}, out.hidden_BLD, method='logits')
      logps = jax.nn.log_softmax(logits)
      picked = jnp.take_along_axis(logps, given['targets'][..., None], -1)
      total -= jnp.sum(picked) / 22
      raw = last_raw(sown['intermediates'])
      squares.append(jnp.square(raw[:, 1:] - raw[:, :-1]).reshape(-1))
    return total + 3 * jnp.mean(jnp.concatenate(squares))

  expected, wanted = jax.jit(jax.value_and_grad(by_hand))(params)
  np.testing.assert_allclose(found, expected, **TOLERANCE)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), gradient, wanted
  )
