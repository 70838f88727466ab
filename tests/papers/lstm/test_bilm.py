# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""ELMo's language model: recorded values, what each direction sees, samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.stack import layer_outputs
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.cross_entropy import Scores
from gpt_jax.core.rows.rows import Keys, cut
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.papers.bert.task_heads import WeightedSum
from gpt_jax.papers.lstm import bilm
from gpt_jax.papers.lstm.bilm import BiLm
from tests.papers.lstm.test_characters import FOLDER, SIZES, recorded
from tests.support import tiny
from tests.support.golden_io import case, tensors

TOLERANCE = {'rtol': 1e-5, 'atol': 1e-5}
WIDTH, CELLS = SIZES['projection_dim'], SIZES['cell_size']
LAYER = (
  f'lstm({CELLS}, projection={WIDTH}, directions="separate", biases=1, '
  'cell_clip=3.0, projection_clip=3.0'
)
MODEL = tiny.model(
  vocab_size=SIZES['vocab_size'],
  num_layers=2,
  d_model=2 * WIDTH,
  input=f'characters({tuple(map(tuple, SIZES["filters"]))}, '
  f'd_embed={SIZES["char_embedding_dim"]}, num_highways={SIZES["n_highway"]}, '
  f'num_characters={SIZES["n_characters"]}, length={SIZES["max_characters"]})',
  attention=f'{LAYER}), {LAYER}, residual=True)',
  block='plain',
  position='none',
  output='untied(bias=True)',
)


def of_fixture(found):
  """Our parameters from the recorded tensors of the language model."""

  def direction(name):
    return {
      'input': {
        'kernel': found[f'{name}.input_linearity.weight'].T[None],
        'bias': found[f'{name}.state_linearity.bias'][None],
      },
      'kernel_hidden': found[f'{name}.state_linearity.weight'].T[None],
      'kernel_projection': found[f'{name}.state_projection.weight'].T[None],
    }

  blocks = {
    f'block_{i}': {n: direction(f'{n}.{i}') for n in ('forward', 'backward')} for i in range(2)
  }
  return {
    'embed': recorded(found),
    'decoder': {'periods': blocks},
    'head': {'embedding': found['softmax.weight']},
    'head_bias': found['softmax.bias'],
  }


def test_equals_the_recorded_values():
  """Layers, their mix, both losses, and the gradients of all parameters."""
  golden, found = case(FOLDER, 'main'), tensors(FOLDER)
  real = golden.valid['tokens']
  batch = {
    'inputs': golden.inputs['characters'],
    'tokens': golden.inputs['word_ids'],
    'mask': real,
    'cuts': np.zeros_like(real),
    'weights': real[:, 1:].astype(np.float32),
  }
  objective = BiLm(negatives=0).bind(MODEL)
  mix = {'weights': found['scalar_mix.s'], 'scale': found['scalar_mix.gamma']}

  def total(params, mix):
    out, sown = forward.apply(
      MODEL, params, MODEL.row(batch, cuts=batch['cuts']), None, sow=('intermediates',)
    )
    sown = sown['intermediates']
    layers = [sown['embedded'][0], *layer_outputs(sown)]
    layers = [jnp.where(real[..., None], x, 0) for x in layers]
    elmo = WeightedSum().apply({'params': mix}, layers)
    loss = objective.loss(params, batch, None)
    mean = loss.sum / loss.weight
    return mean + 0.1 * jnp.sum(jnp.square(elmo)), (layers, elmo, loss, out)

  gradient = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))
  grads, (layers, elmo, loss, out) = gradient(of_fixture(found), mix)
  expected = golden.outputs
  np.testing.assert_array_equal(layers[-1][real], out.hidden_BLD[real])
  ahead, back = (loss.metrics[f'objective/{x}_loss'] for x in BiLm.kinds)
  for name, array in {
    'layers': np.stack(layers),
    'elmo': elmo,
    'forward_loss': ahead.sum / ahead.weight,
    'backward_loss': back.sum / back.weight,
    'loss': loss.sum / loss.weight,
  }.items():
    np.testing.assert_allclose(array, expected[name], **TOLERANCE, err_msg=name)
  wanted = {n.removeprefix('grad_'): x for n, x in expected.items()}

  def compare(x, y):
    # Both are float32, and summed in another order.
    np.testing.assert_allclose(x, y, atol=3e-5 * max(1, np.abs(y).max()))

  jax.tree.map(
    compare,
    grads,
    (of_fixture(wanted), {'weights': wanted['scalar_mix.s'], 'scale': wanted['scalar_mix.gamma']}),
  )


def params_of(objective):
  boxed = jax.eval_shape(objective.init, jax.random.key(0))
  return tiny.random_like(nn.meta.unbox(boxed), seed=1)


# Each token of a row is another word, so that the gradient of a state has a row
# for each token that it depends on.
L = 7
WORDS = MODEL.clone(input='tokens', vocab_size=L)


def test_what_each_direction_sees():
  """No later, or no earlier, tokens; no gradient of other segments."""
  params = params_of(BiLm().replaced(model=WORDS))
  tokens = np.arange(L)[None]
  cuts = np.arange(L)[None] % 3 == 0

  def of_place(cuts):
    def states(table):
      given = {**params, 'embed': {'embedding': table}}
      out, _ = forward.apply(WORDS, given, Row(tokens, extra={'cuts': cuts}), None)
      return jnp.stack(jnp.split(out.hidden_BLD[0], 2, axis=-1))

    jacobian = jax.jit(jax.jacobian(states))(params['embed']['embedding'])
    return np.abs(jacobian).sum(axis=(2, 4)) > 0  # [2, state, token]

  seen = np.tri(L, dtype=bool)
  np.testing.assert_array_equal(of_place(None), [seen, seen.T])
  segments = np.arange(L) // 3
  same = segments[:, None] == segments
  np.testing.assert_array_equal(of_place(cuts), [seen & same, seen.T & same])


def test_padding_changes_no_state_and_losses_are_of_their_own_direction():
  objective = BiLm(segment=3, negatives=0).bind(WORDS)
  params = params_of(objective)
  windows = np.random.default_rng(0).integers(0, L, (2, 6)).astype(np.int32)
  real = np.arange(5) < np.array([[5], [3]])
  keys = Keys.held_out(np.arange(2))
  batch = objective.make_batch(cut(windows, real), keys)
  other = {**batch, 'inputs': np.where(batch['mask'], windows, 1 - windows % 2)}
  states, others = (
    forward.states(WORDS, params, x, None, cuts=x['cuts'])[0][batch['mask']] for x in (batch, other)
  )
  np.testing.assert_array_equal(states, others)

  def loss(params, name):
    return objective.loss(params, batch, None).metrics[f'objective/{name}_loss']

  for name, without in (('forward', 'backward'), ('backward', 'forward')):
    grads = jax.jit(jax.grad(lambda p, n=name: loss(p, n).sum))(params)
    moved = jax.tree.map(lambda x: bool(np.any(x)), grads)
    blocks = moved.pop('decoder')['periods']
    assert all(jax.tree.leaves(moved)), 'table and softmax are shared'
    for block in blocks.values():
      assert all(jax.tree.leaves(block[name]))
      assert not any(jax.tree.leaves(block[without]))


# The sampled softmax.


def test_a_sample_is_corrected_by_expected_counts():
  """By the equation, in NumPy; the target itself counts once."""
  V, D, N = 13, 5, 4
  rng = np.random.default_rng(0)
  hidden, table = rng.normal(size=(2, 3, D)), rng.normal(size=(V, D))
  targets = np.array([[0, 1, 12], [2, 0, 7]])
  key = jax.random.key(3)
  scores = Scores(np.float32(hidden), np.float32(table))
  found = bilm.sampled_nll(scores, jnp.asarray(targets), key, N)
  k = np.arange(V)
  p = np.log((k + 2) / (k + 1)) / np.log(V + 1)
  np.testing.assert_allclose(p.sum(), 1)
  tries = bilm.num_tries(V, N)
  count = 1 - (1 - p) ** tries
  np.testing.assert_allclose(count.sum(), N)
  sample = np.argsort(-(np.log(p) + jax.random.gumbel(key, (V,))))[:N]
  logits = hidden @ table.T - np.log(count)
  for place, target in np.ndenumerate(targets):
    words = [target, *(i for i in sample if i != target)]
    of_words = logits[place][words]
    expected = np.log(np.exp(of_words).sum()) - of_words[0]
    np.testing.assert_allclose(found[place], expected, rtol=1e-5)


def test_samples_have_the_expected_counts():
  V, N, draws = 23, 5, 4000
  keys = jax.random.split(jax.random.key(0), draws)
  log_probs = bilm._log_probs(jnp.arange(V), V)

  @jax.jit
  @jax.vmap
  def sample(key):
    return jax.lax.top_k(log_probs + jax.random.gumbel(key, (V,)), N)[1]

  counts = np.bincount(np.asarray(sample(keys)).reshape(-1), minlength=V)
  expected = np.exp(bilm.log_expected(jnp.arange(V), V, N))
  np.testing.assert_allclose(counts / draws, expected, atol=0.03)


@pytest.mark.slow
def test_training_reports_a_sampled_loss_by_that_name():
  """Evaluation has those of the whole vocabulary, and their perplexities."""
  objective = BiLm(negatives=3).bind(WORDS)
  params = params_of(objective)
  rows = cut(np.arange(6, dtype=np.int32)[None])
  batch = objective.make_batch(rows, Keys.held_out(np.arange(1)))
  losses = [objective.loss(params, batch, key) for key in (jax.random.key(0), None)]
  assert [*losses[0].metrics] == [
    'objective/forward_sampled_loss',
    'objective/backward_sampled_loss',
  ]
  assert [*losses[1].metrics] == [f'objective/{name}_loss' for name in BiLm.kinds]


@pytest.mark.parametrize(
  ('changes', 'tokenizer', 'message'),
  [
    ({'attention': 'lstm(12)'}, None, 'trains LSTMs of two directions; take'),
    ({'vocab_size': 5}, None, r'negatives=5\): must be fewer than model'),
    ({}, Bytes(), 'give num_characters=262'),
    (
      {'input': 'characters(((1, 3),))'},
      Bytes(),
      "tokens of this tokenizer are not words; set tokenizer.name='words",
    ),
  ],
)
def test_models_that_are_refused(changes, tokenizer, message):
  with pytest.raises(UsageError, match=message):
    BiLm(negatives=5).bind(MODEL.clone(**changes), tokenizer)
