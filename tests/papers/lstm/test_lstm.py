# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""LSTMs equal torch's, with their gradients, and the equations in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.caches import LstmState
from gpt_jax.core.nn.choices import PATTERNS
from gpt_jax.core.nn.row import Context, Visibility
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.lstm.lstm import Clips, Direction, Recurrence, Tokens, Weights, scan
from tests.support import tiny
from tests.support.golden_io import ROOT, case, cases, config, tensors

TOLERANCE = {'rtol': 1e-5, 'atol': 1e-5}
TORCH = ROOT / 'torch_lstm'
INITS = ModelChoices.of(tiny.model(init_weights='uniform')).init_weights


def of_torch(found, name):
  """The parameters of a `Direction` from torch's of one direction."""
  params = {
    'input': {'kernel': found[f'weight_ih_{name}'].T},
    'kernel_hidden': found[f'weight_hh_{name}'].T,
  }
  if f'bias_ih_{name}' in found:
    params['input']['bias'] = found[f'bias_ih_{name}']
    params['bias_hidden'] = found[f'bias_hh_{name}']
  if f'weight_hr_{name}' in found:
    params['kernel_projection'] = found[f'weight_hr_{name}'].T
  return params


@pytest.mark.parametrize('name', cases(TORCH, 'values'))
def test_equals_torch(name):
  """Values, last states and gradients, of rows of unequal lengths."""
  golden = case(TORCH, name)
  size, module = config(TORCH)['hidden_size'], golden.static['module']
  weights = {
    key.removeprefix(f'{module}.'): x
    for key, x in tensors(TORCH).items()
    if key.startswith(f'{module}.')
  }
  layers = golden.static['num_layers']
  both = golden.static.get('bidirectional', False)
  biases = 2 if golden.static.get('bias', True) else 0
  own = Recurrence(size, golden.static.get('proj_size', 0), biases, Clips(), 0.0)
  suffixes = ['', '_reverse'][: 1 + both]
  params = {
    f'l{i}{suffix}': of_torch(weights, f'l{i}{suffix}')
    for i in range(layers)
    for suffix in suffixes
  }
  x_BLD, lengths = golden.inputs['input'], golden.inputs['lengths']
  mask_BL = np.arange(x_BLD.shape[1]) < lengths[:, None]
  context = Context(visibility=Visibility(jnp.asarray(mask_BL)))

  def run(params, x_BLD):
    states = []
    for i in range(layers):
      out = []
      for suffix in suffixes:
        state = None
        if 'h0' in golden.inputs:
          n = len(states)
          state = LstmState(golden.inputs['h0'][n], golden.inputs['c0'][n])
        layer = Direction(own, bool(suffix), INITS, jnp.float32)
        y, state = layer.apply({'params': params[f'l{i}{suffix}']}, x_BLD, context, state)
        out.append(y)
        states.append(state)
      x_BLD = jnp.concatenate(out, axis=-1)
    return jnp.sum(x_BLD * golden.inputs['probe']), (x_BLD, states)

  gradient = jax.jit(jax.grad(run, argnums=(0, 1), has_aux=True))
  (dparams, dx), (y_BLP, states) = gradient(params, x_BLD)
  expected = dict(golden.outputs)
  close = {
    'output': y_BLP,
    'h_n': np.stack([state.hidden_BP for state in states]),
    'c_n': np.stack([state.cell_BS for state in states]),
    'grad_input': dx,
  }
  for key, array in close.items():
    np.testing.assert_allclose(array, expected.pop(key), **TOLERANCE)
  wanted = {key.removeprefix('grad_'): x for key, x in expected.items()}
  jax.tree.map(
    lambda found, x: np.testing.assert_allclose(found, x, **TOLERANCE),
    dparams,
    {key: of_torch(wanted, key) for key in params},
  )


# The equations, one token at a time, of one row.


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def numpy_lstm(gates, hidden_kernel, projection, tokens, clips):
  """Hidden states of rows, [L, B, P]."""
  L, B, Z = gates.shape
  out = np.zeros((L, B, projection.shape[1]))
  for b in range(B):
    h, c = np.zeros(projection.shape[1]), np.zeros(Z // 4)
    for t in range(L):
      if tokens.starts[t, b]:
        h, c = np.zeros_like(h), np.zeros_like(c)
      if not tokens.real[t, b]:
        continue
      i, f, g, o = np.split(gates[t, b] + h @ hidden_kernel, 4)
      c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
      c = np.clip(c, -clips.cell, clips.cell)
      h = (sigmoid(o) * np.tanh(c)) @ projection
      h = np.clip(h, -clips.projection, clips.projection)
      out[t, b] = h
  return out


L, B, S, P = 7, 3, 5, 2
CLIPS = Clips(0.4, 0.3)


def drawn(seed=0):
  rng = np.random.default_rng(seed)
  gates = 2 * rng.normal(size=(L, B, 4 * S)).astype(np.float32)
  kernel = rng.normal(size=(P, 4 * S)).astype(np.float32)
  projection = rng.normal(size=(S, P)).astype(np.float32)
  real, starts = rng.random((L, B)) < 0.8, rng.random((L, B)) < 0.2
  tokens = Tokens(real, starts, np.zeros((L, B), bool))
  return gates, Weights(kernel, projection), tokens


def run(gates, weights, tokens, clips=CLIPS):
  state = LstmState(jnp.zeros((B, P)), jnp.zeros((B, S)))
  return scan(gates, weights, state, Tokens(*map(jnp.asarray, tokens)), clips)


def test_clips_padding_and_documents_equal_the_equations():
  gates, weights, tokens = drawn()
  found, _ = run(gates, weights, tokens)
  expected = numpy_lstm(gates, *weights, tokens, CLIPS)
  np.testing.assert_allclose(found, expected, **TOLERANCE)
  inside = np.abs(found[tokens.real])
  assert inside.max() == np.float32(0.3) and inside.min() < 0.3


def test_gradient_with_clips_equals_differences():
  gates, weights, tokens = drawn()
  probe = np.random.default_rng(1).normal(size=(L, B, P))

  def loss(gates, kernel, projection):
    return np.sum(numpy_lstm(gates, kernel, projection, tokens, CLIPS) * probe)

  given = [np.float64(x) for x in (gates, *weights)]
  found = jax.grad(
    lambda gates, weights: jnp.sum(run(gates, weights, tokens)[0] * probe), argnums=(0, 1)
  )(gates, weights)
  for i, gradient in enumerate((found[0], *found[1])):
    expected = np.zeros(given[i].shape)
    for place in np.ndindex(expected.shape):
      sides = []
      for step in (1e-6, -1e-6):
        moved = [x.copy() for x in given]
        moved[i][place] += step
        sides.append(loss(*moved))
      expected[place] = (sides[0] - sides[1]) / 2e-6
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


def test_cuts_stop_the_gradient_and_not_the_state():
  gates, weights, tokens = drawn()
  tokens = Tokens(np.ones_like(tokens.real), np.zeros_like(tokens.real), None)
  cuts = np.zeros((L, B), bool)
  cuts[4, 1] = True
  whole = run(gates, weights, tokens._replace(cuts=np.zeros_like(cuts)))
  cut = run(gates, weights, tokens._replace(cuts=cuts))
  jax.tree.map(np.testing.assert_array_equal, cut, whole)
  found = jax.grad(
    lambda gates: jnp.sum(run(gates, weights, tokens._replace(cuts=cuts), Clips())[0][-1])
  )(gates)
  assert not np.any(found[:4, 1]) and np.all(np.any(found[4:], axis=-1))
  assert np.all(np.any(found[:, [0, 2]], axis=-1))


# The layer.


def layer(text):
  recurrent = spec.build('model.attention', text, PATTERNS).recurrent
  return recurrent.make(inits=INITS, dtype=jnp.float32)


def test_both_directions_are_joined():
  """Each is an LSTM of its own; a change reaches only what comes after it."""
  both = layer("lstm(5, directions='both')")
  rng = np.random.default_rng(2)
  x = rng.normal(size=(B, L, 3)).astype(np.float32)
  params = both.init(jax.random.key(0), x, Context(), None, 0)
  changed = x.copy()
  changed[:, 4] += 1
  found, other = (both.apply(params, x, Context(), None, 0)[0] for x in (x, changed))
  moved = np.any(found != other, axis=0)
  assert moved.shape == (L, 10)
  np.testing.assert_array_equal(moved[:, :5].any(1), np.arange(L) >= 4)
  np.testing.assert_array_equal(moved[:, 5:].any(1), np.arange(L) <= 4)


def test_dropout_is_drawn_once_for_all_tokens_of_a_row():
  rng = np.random.default_rng(3)
  x = np.tile(rng.normal(size=(1, 1, 3)).astype(np.float32), (B, L, 1))
  kept = layer('lstm(11, dropout=0.5)')
  params = kept.init(jax.random.key(0), x, Context(), None, 0)
  whole, _ = kept.apply(params, x, Context(), None, 0)
  found, _ = kept.apply(params, x, Context(), None, 0, rngs={'dropout': jax.random.key(1)})
  zero = np.asarray(found == 0)
  assert not np.any(whole == 0)
  assert np.all(zero == zero[:, :1]) and 0 < zero.mean() < 1
  assert np.any(zero[0] != zero[1])
  np.testing.assert_allclose(found, np.where(zero, 0, 2 * whole), **TOLERANCE)


def test_weight_drop_is_drawn_once_for_all_rows():
  """Equal rows stay equal; an LSTM with the dropped kernel equals it."""
  dropping, plain = layer('lstm(5, weight_drop=0.4)'), layer('lstm(5)')
  x = np.random.default_rng(4).normal(size=(1, L, 3)).astype(np.float32)
  x = np.tile(x, (B, 1, 1))
  params = plain.init(jax.random.key(0), x, Context(), None, 0)
  found, _ = dropping.apply(params, x, Context(), None, 0, rngs={'dropout': jax.random.key(1)})
  np.testing.assert_array_equal(found, np.broadcast_to(found[:1], found.shape))
  whole, _ = plain.apply(params, x, Context(), None, 0)
  np.testing.assert_array_equal(found[:, 0], whole[:, 0])
  assert not np.allclose(found[:, 1:], whole[:, 1:])
  np.testing.assert_array_equal(dropping.apply(params, x, Context(), None, 0)[0], whole)


def test_masks_for_each_token_are_refused():
  lstm, x = layer('lstm(5)'), np.zeros((B, L, 3), np.float32)
  context = Context(visibility=Visibility(prefix_B=jnp.ones(B, int)))
  with pytest.raises(UsageError, match='no mask for each'):
    lstm.init(jax.random.key(0), x, context, None, 0)
