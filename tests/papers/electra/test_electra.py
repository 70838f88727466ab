# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replaced tokens: against Hugging Face's two models, and the equations."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax import hf
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.objectives.loss import Batch
from gpt_jax.core.rows.rows import Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training.step import eval_step, mean_gradients
from gpt_jax.papers.electra.electra import SHARED, TABLES, TARGETS, Electra
from tests.support import tiny
from tests.support.cases import slow
from tests.support.golden_io import ROOT, case
from tests.support.objectives import MASK, Words, keys

L, V = 13, tiny.V
SCORES = "tied(bias=True, transform='gelu')"
ENCODER = dict(attention='bidirectional', input='tokens(token_types=2, norm=True)', num_layers=1)


def models(**changes) -> tuple[Transformer, Transformer]:
  """A discriminator, and a narrower generator."""
  width = tiny.D
  narrow = f'tokens(token_types=2, norm=True, d_embed={width})'
  small = dict(d_model=11, num_heads=2, num_kv_heads=2, head_size=5)
  generator = tiny.model(**ENCODER | small | dict(input=narrow, output=SCORES))
  return tiny.model(**ENCODER | changes), generator


def random(objective, seed=1):
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  return tiny.random_like(nn.meta.unbox(shapes), seed=seed)


def rows(number=8):
  rng = np.random.default_rng(0)
  tokens = rng.integers(5, V, size=(number, L), dtype=np.int32)
  lengths = np.array([L, 7, L, 5, 11, L, 3, L])[:number, None]
  real = np.arange(L) < lengths
  types = (np.arange(L)[None] > 4).astype(np.int32)
  special = np.zeros((number, L), bool)
  special[:, 0] = True
  types = types * np.ones((number, 1), np.int32)
  return Rows(tokens, real, token_types=types, special=special)


@functools.cache
def evaluated(objective):
  """The loss of a batch without a key, compiled once."""
  return jax.jit(functools.partial(eval_step, objective=objective))


def total_of(found):
  return sum(float(mean.sum / mean.weight) for mean in found['loss'])


def means(found):
  return {name: float(x.sum / x.weight) for name, x in found.items() if name != 'loss'}


def test_the_step_of_both_models_is_hugging_faces():
  """Its generator says the most probable token."""
  model, params = hf.load(str(ROOT / 'electra_disc'))
  generator, of_generator = hf.load(str(ROOT / 'electra_gen'))
  golden = case(ROOT / 'electra_disc', 'pair')
  with np.load(ROOT / 'electra_disc' / 'golden.npz') as arrays:
    masked, labels, original = (
      arrays[f'pair/in/_{name}'].astype(np.int32)
      for name in ('masked_ids', 'mlm_labels', 'original_ids')
    )
  chosen = labels >= 0
  P = chosen.sum(axis=1).max()
  at = np.argsort(~chosen, axis=1, kind='stable')[:, :P]
  batch: Batch = {
    'inputs': masked,
    'mask': golden.inputs['attention_mask'] > 0,
    'token_types': golden.inputs['token_type_ids'].astype(np.int32),
    'masked_positions': at.astype(np.int32),
    'masked_targets': np.take_along_axis(original, at, axis=1),
    'masked_weights': np.take_along_axis(chosen, at, 1).astype(np.float32),
    'numbers': np.arange(len(at), dtype=np.uint32),
  }  # pyright: ignore[reportAssignmentType]
  for name in SHARED:
    jax.tree.map(np.testing.assert_array_equal, params[name], of_generator[name])
  own = {n: x for n, x in of_generator.items() if n not in (*SHARED, 'heads')}
  both = {**params, 'parts': {'generator': own}}
  objective = Electra(temperature=0.0).bind(model, generator=generator)
  loss = evaluated(objective)(both, batch)
  found, expected = means(loss), golden.outputs
  wanted = {
    'objective/masked_loss': expected['generator_loss'],
    'objective/replaced_loss': expected['loss'],
    'objective/replaced_share': golden.inputs['labels'][batch['mask']].mean(),
  }
  for name, value in wanted.items():
    np.testing.assert_allclose(found[name], value, atol=1e-4, err_msg=name)
  total = expected['total_loss']
  np.testing.assert_allclose(total_of(loss), total, atol=1e-4)


@functools.cache
def of(targets):
  output = SCORES if TARGETS[targets][1] else 'tied'
  model, generator = models(output=output)
  made = Electra(0.3, 7.0, targets)
  tokenizer: Any = Words()
  return made.bind(model, tokenizer, generator=generator), model


def always(params, token):
  """The generator says one token only."""
  own = params['parts']['generator']
  bias = np.where(np.arange(V) == token, np.float32(1e6), 0.0)
  return {**params, 'parts': {'generator': {**own, 'head_bias': bias}}}


def three_tokens(chosen):
  """A row of 3, 5, 7 and a place of padding; one of them is chosen."""
  inputs = np.array([[3, 5, 7]], np.int32)
  inputs[0, chosen] = MASK
  return {
    'inputs': np.pad(inputs, [(0, 0), (0, 1)]),
    'mask': np.array([[True, True, True, False]]),
    'numbers': np.zeros(1, np.uint32),
    # A place that no token was chosen for.
    'masked_positions': np.array([[chosen, (chosen + 1) % 3]], np.int32),
    'masked_targets': np.array([[[3, 5, 7][chosen], 11]], np.int32),
    'masked_weights': np.array([[1, 0]], np.float32),
  }


def test_a_sample_that_is_the_original_is_no_replacement():
  objective, _ = of('electra')
  params = always(random(objective), 5)
  for chosen, share in ((1, 0), (0, 1 / 3), (2, 1 / 3)):
    found = means(evaluated(objective)(params, three_tokens(chosen)))
    np.testing.assert_allclose(found['objective/replaced_share'], share)


@pytest.mark.parametrize('targets', TARGETS)
def test_targets(targets):
  """Of 3, 5, 7 with 7 chosen and replaced by 5."""
  objective, model = of(targets)
  params = always(random(objective), 5)
  batch = three_tokens(2)
  loss = evaluated(objective)(params, batch)
  corrupt, real = np.array([[3, 5, 5, 0]]), batch['mask']

  @jax.jit
  def apply(params):
    out: Any = model.apply({'params': params}, Row(corrupt, real_BL=real))
    logits = model.apply({'params': params}, out.hidden_BLD, method='logits')
    return out.hidden_BLD, logits

  hidden, logits = (np.float64(x[0]) for x in apply(params))
  if TARGETS[targets][1]:
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    each = -log_probs[np.arange(3), [3, 5, 7]]
  else:
    heads = jax.tree.map(np.float64, params['heads'])
    x = hidden @ heads['replaced_dense']['kernel']
    x += heads['replaced_dense']['bias'][None]
    # The tanh form of GELU, as the model's layers.
    x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    z = (x @ heads['replaced']['kernel'])[:, 0] + heads['replaced']['bias']
    each = np.log1p(np.exp(np.where([0, 0, 1, 0], -z, z)))
  counts = {
    'electra': [0, 1, 2],
    'electra_15': [2],
    'replace_mlm': [2],
    'all_tokens_mlm': [0, 1, 2],
  }[targets]
  found = means(loss)
  expected = found['objective/masked_loss'] + 7.0 * each[counts].mean()
  np.testing.assert_allclose(total_of(loss), expected, rtol=1e-5)
  share = found['objective/replaced_share']
  np.testing.assert_allclose(share, 1 / len(counts), rtol=1e-6)


@pytest.mark.slow
def test_the_generator_learns_nothing_of_the_replaced():
  """But by what it shares."""
  objective, _ = of('electra')
  params = random(objective)
  batch = objective.make_batch(rows(), keys(8))

  def loss(params, name):
    found = objective.loss(params, batch, jax.random.key(4))
    return found.metrics[f'objective/{name}_loss'].sum

  gradient = jax.jit(jax.grad(loss), static_argnums=1)
  of_replaced, of_masked = (gradient(params, 'replaced'), gradient(params, 'masked'))
  for leaf in jax.tree.leaves(of_replaced['parts']):
    assert not leaf.any()
  for name in SHARED:
    for grads in (of_replaced, of_masked):
      assert all(x.any() for x in jax.tree.leaves(grads[name])), name
  assert all(x.any() for x in jax.tree.leaves(of_replaced['heads']))
  assert not any(x.any() for x in jax.tree.leaves(of_masked['decoder']))


@pytest.mark.slow
def test_a_table_of_sums_has_one_loss_for_each_term():
  """DeBERTaV3, section 3.2: E_G follows the generator's, E_Delta the other."""
  model, generator = models()
  tokenizer: Any = Words()
  made = {sharing: Electra(0.3, 7.0, sharing=sharing) for sharing in ('es', 'nes', 'gdes')}
  objectives = {
    sharing: one.bind(model, tokenizer, generator=generator) for sharing, one in made.items()
  }
  objective = objectives['gdes']
  # What the generator says does not follow from its table.
  params = always(random(objective), 5)
  batch = objective.make_batch(rows(), keys(8))

  @jax.jit
  def gradients(params):
    def losses(params):
      found = objective.loss(params, batch, jax.random.key(4))
      names = ('masked', 'replaced')
      return [found.metrics[f'objective/{n}_loss'].sum for n in names]

    values, back = jax.vjp(losses, params)
    return values[1], *(back([*x])[0] for x in np.eye(2, dtype=np.float32))

  loss, masked, replaced = gradients(params)
  for name in TABLES:
    for mine, others in (
      (masked['parts']['generator'], masked),
      (replaced, replaced['parts']['generator']),
    ):
      assert all(x.any() for x in jax.tree.leaves(mine[name])), name
      assert not any(x.any() for x in jax.tree.leaves(others[name])), name
  # The model reads the sum, whichever of the two has it.
  sums = made['gdes'].needs.merged(params)
  own = params['parts']['generator']
  zeros = {n: jax.tree.map(np.zeros_like, own[n]) for n in TABLES}
  again = {**sums, 'parts': {'generator': {**own, **zeros}}}
  assert not np.array_equal(*(x['embed']['embedding'] for x in (sums, params)))
  np.testing.assert_allclose(gradients(again)[0], loss, rtol=1e-6)
  assert abs(gradients({**params, **zeros})[0] - loss) > 1e-3 * loss
  # It starts as the generator's; norms are of each alone.
  shapes = {sharing: tiny.shapes(one) for sharing, one in objectives.items()}

  def count(tree):
    return sum(x.size for x in jax.tree.leaves(tree))

  of_tables = count([shapes['gdes'][name] for name in SHARED])
  assert count(shapes['gdes']) == count(shapes['nes'])
  assert count(shapes['nes']) == count(shapes['es']) + of_tables
  # What is one for both is in either's tree.
  one = shapes['es']
  trees = made['es'].needs.trees(made['es'].needs.merged(one))
  for name in SHARED:
    assert trees['generator'][name] is trees[''][name] is one[name]


@pytest.mark.slow
@pytest.mark.parametrize('targets', ['electra', slow('all_tokens_mlm')])
def test_parts_with_other_numbers_of_tokens_add_up(targets):
  objective, _ = of(targets)
  # What parts draw is not what the whole draws.
  params = always(random(objective), 5)
  batch = objective.make_batch(rows(), keys(8))
  batch['mask'][-1] = batch['masked_weights'][-1] = 0
  # There is no dropout.
  whole, parts = (
    jax.jit(functools.partial(mean_gradients, objective=objective, num_micro=number))(
      params, batch, jax.random.key(4)
    )[:2]
    for number in (1, 4)
  )
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), parts, whole)


def test_what_is_drawn_follows_from_the_key():
  objective, _ = of('electra')
  params = random(objective)
  batch = objective.make_batch(rows(), keys(8))
  loss = jax.jit(objective.loss)

  def drawn(seed):
    return float(loss(params, batch, jax.random.key(seed)).terms['second'].sum())

  assert drawn(5) == drawn(5)
  assert len({drawn(seed) for seed in (5, 6, 7)}) == 3


@pytest.mark.parametrize('rate, length, most', [(0.15, 128, 19), (0.15, 512, 79), (0.25, 512, 130)])
def test_no_more_are_chosen_than_in_the_released_code(rate, length, most):
  model, generator = models()
  tokenizer: Any = Words()
  objective = Electra(rate).bind(model, tokenizer, generator=generator)
  tokens = np.full((8, length), 7, np.int32)
  made = objective.make_batch(Rows(tokens, np.ones(tokens.shape, bool)), keys(8))
  assert made['masked_positions'].shape == (8, most)
  counts = made['masked_weights'].sum(axis=1)
  np.testing.assert_allclose(counts, rate * length, atol=1)
  # All of them are [MASK].
  np.testing.assert_array_equal((made['inputs'] == MASK).sum(axis=1), counts)


@pytest.mark.parametrize(
  'targets, changes, message',
  [
    ('electra', dict(output=SCORES), r"model\.output=.*give 'tied'"),
    (
      'electra',
      dict(context_length=7),
      r'models\.generator: its positions is .*\(13, 17\).*\(7, 17\)',
    ),
    ('electra', dict(vocab_size=19), r'models\.generator: its embed is'),
    ('electra', dict(input='tokens(norm=True)'), r'models\.generator: its segments is'),
  ],
)
def test_models_that_do_not_go_together(targets, changes, message):
  model, generator = models(**changes)
  with pytest.raises(UsageError, match=message):
    Electra(targets=targets).bind(model, generator=generator)
