# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimisers against the papers' algorithms, tensor by tensor."""

import functools
import itertools

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from gpt_jax.core import spec
from gpt_jax.core.costs import flops
from gpt_jax.core.optim import batch_ramp, muon
from gpt_jax.core.optim.optimizer import OPTIMIZERS, decay_mask
from gpt_jax.core.optim.schedules import SCHEDULES
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import parts as parts_lib
from tests.support import algorithms, tiny
from tests.support.cases import slow

STEPS = 20

# Of each parameter the shape and the logical axes: tensors alone, stacked by
# layer, and by layer and expert.
PARAMETERS = {
  'embed': {'embedding': ((7, 3), ('vocab', 'embed'))},
  'dense': {'kernel': ((2, 3, 5), ('layers', 'embed', 'mlp')), 'bias': ((2, 5), ('layers', 'mlp'))},
  'experts': {'kernel': ((2, 3, 5, 7), ('layers', 'expert', 'embed', 'mlp'))},
  'router': {'kernel': ((2, 5, 3), ('layers', 'embed', 'expert'))},
  'norm': {'scale': ((3,), ('norm',)), 'bias': ((3,), ('norm',))},
}
NUM_STACKED = {
  'embed/embedding': 0,
  'dense/kernel': 1,
  'dense/bias': 1,
  'experts/kernel': 2,
  'router/kernel': 1,
  'norm/scale': 0,
  'norm/bias': 0,
}


def rate(step):
  """cosine(peak=0.03, warmup=5, final=0.1) over 20 steps."""
  if step < 5:
    return 0.03 * (step + 1) / 5
  x = (step - 5) / 15
  return 0.03 * (0.1 + 0.9 * (1 + np.cos(np.pi * x)) / 2)


def schedule():
  text = 'cosine(peak=0.03, warmup=5, final=0.1)'
  ramp = batch_ramp.constant(3, row_tokens=5)
  return spec.build('schedule.name', text, SCHEDULES)(ramp, STEPS)


def of_parameters(function):
  return jax.tree.map(function, PARAMETERS, is_leaf=lambda x: isinstance(x, tuple))


AXES = of_parameters(lambda pair: PartitionSpec(*pair[1]))


def build(text, axes=AXES):
  return spec.build('optim.name', text, OPTIMIZERS)(axes)


@functools.cache
def start_and_gradients():
  rng = np.random.default_rng(0)
  trees = [of_parameters(lambda pair: rng.normal(size=pair[0])) for _ in range(STEPS + 1)]
  # No slice is like another: what acted on the stack would show.
  sizes = jax.tree.map(lambda x: np.exp(rng.normal(size=x.shape)), trees[0])
  start, *gradients = [jax.tree.map(np.multiply, tree, sizes) for tree in trees]
  return start, gradients


def to_float32(tree):
  return jax.tree.map(np.float32, tree)


def run(optimizer, params, gradients):
  """The parameters after the gradients' steps, in float32."""
  rates = schedule()

  @jax.jit
  def step(params, state, gradient, number):
    updates, state = optimizer.update(gradient, state, params, rate=rates(number))
    return optax.apply_updates(params, updates), state

  params = to_float32(params)
  state = jax.jit(optimizer.init)(params)
  for number, gradient in enumerate(gradients):
    params, state = step(params, state, to_float32(gradient), number)
  return params


def at(tree, name):
  group, leaf = name.split('/')
  return tree[group][leaf]


ADAM = {'b1': 0.9, 'b2': 0.95, 'eps': 1e-6}
PALM = {'b1': 0.9, 'factored': False, 'clip': 0.0, 'weight_decay': 1.0, 'weight_decay_power': 2}
CASES = {
  'adam': ('adam', ADAM),
  'adam-l2': ('adam', {**ADAM, 'l2': 0.3}),
  'adagrad': ('adagrad', {'initial': 0.3, 'eps': 0.1}),
  # An eps that tells where it is added.
  'adamax': ('adamax', {**ADAM, 'eps': 0.1}),
  'adamw': ('adamw', {**ADAM, 'weight_decay': 0.3}),
  'lamb': ('lamb', {**ADAM, 'weight_decay': 0.3}),
  'lion': ('lion', {'b1': 0.9, 'b2': 0.99, 'weight_decay': 0.3}),
  'sgd': ('sgd', {}),
  'sgd-l2': ('sgd', {'momentum': 0.9, 'l2': 0.3}),
  'sgd-momentum': ('sgd', {'momentum': 0.9}),
  'sgd-nesterov': ('sgd', {'momentum': 0.9, 'nesterov': True}),
  'adafactor': ('adafactor', {'min_size': 3}),
  'adafactor-large': ('adafactor', {'min_size': 5, 'clip': 0.5, 'decay': 0.7}),
  'adafactor-palm': ('adafactor', PALM),
  'adafactor-absolute': ('adafactor', {'parameter_scale': False, 'weight_decay': 0.3, 'b1': 0.5}),
}


def write(name, arguments):
  listed = ', '.join(f'{k}={v!r}' for k, v in arguments.items())
  return f'{name}({listed})'


@pytest.mark.parametrize('name, arguments', CASES.values(), ids=CASES)
def test_twenty_steps(name, arguments):
  start, gradients = start_and_gradients()
  found = run(build(write(name, arguments)), start, gradients)
  for leaf, depth in NUM_STACKED.items():
    first, after = at(start, leaf), at(found, leaf)
    for i in itertools.product(*map(range, first.shape[:depth])):
      expected = getattr(algorithms, name)(
        first[i],
        [at(g, leaf)[i] for g in gradients],
        rate,
        leaf.endswith(('kernel', 'embedding')),
        **arguments,
      )
      np.testing.assert_allclose(after[i], expected, rtol=1e-4, atol=2e-5, err_msg=f'{leaf}{i}')


@pytest.mark.parametrize(
  'fields',
  [
    {'nesterov': False, 'rms': 0.2},
    {'nesterov': True, 'rms': 0.0},
    {'nesterov': True, 'rms': 0.2, 'coefficients': 'polar_express'},
  ],
)
def test_twenty_steps_of_muon(fields):
  """Kernels by Muon, and the rest by AdamW."""
  start, gradients = start_and_gradients()
  arguments = {'momentum': 0.9, 'weight_decay': 0.3, **fields}
  found = run(build(write('muon', {**arguments, **ADAM})), start, gradients)
  for leaf, depth in NUM_STACKED.items():
    first, after = at(start, leaf), at(found, leaf)
    kernel, table = leaf.endswith('kernel'), leaf.endswith('embedding')
    algorithm = functools.partial(algorithms.muon, **arguments)
    if not kernel:
      algorithm = functools.partial(algorithms.adamw, weight_decay=0.3, **ADAM)
    for i in itertools.product(*map(range, first.shape[:depth])):
      expected = algorithm(first[i], [at(g, leaf)[i] for g in gradients], rate, kernel or table)
      np.testing.assert_allclose(after[i], expected, rtol=1e-3, atol=1e-4, err_msg=f'{leaf}{i}')


@pytest.mark.parametrize('text', [slow('lamb'), 'adafactor(min_size=3)', slow('muon')])
def test_a_scanned_layer_moves_as_it_would_alone(text):
  start, gradients = start_and_gradients()
  found = run(build(text), start, gradients[:2])
  for leaf, depth in NUM_STACKED.items():
    first = at(start, leaf)
    # Of all the last slice: the others could be a broadcast of the first.
    i = tuple(n - 1 for n in first.shape[:depth])
    alone = {leaf.rpartition('/')[2]: first[i]}
    axes = {k: PartitionSpec(*at(AXES, leaf)[depth:]) for k in alone}
    expected = run(
      build(text, axes), alone, [{k: at(g, leaf)[i] for k in alone} for g in gradients[:2]]
    )
    np.testing.assert_allclose(
      at(found, leaf)[i], *expected.values(), rtol=1e-5, atol=1e-6, err_msg=leaf
    )


def test_the_polar_express_converges():
  """Its table is what Remez's exchange finds; more iterations repeat its last one."""
  x = values = np.geomspace(2e-3, 1, 997)
  for a, b, c in muon.polar_express(11):
    values = a * values + b * values**3 + c * values**5
  np.testing.assert_allclose(values, 1, atol=1e-6)
  found, (first, *rest) = muon.polar_express(7), algorithms.polar_express(7)
  expected = [first / 1.01 ** np.array([1, 3, 5]), *rest]
  np.testing.assert_allclose(found, expected, rtol=1e-9)
  a, b, c = 3.4445, -4.7750, 2.0315
  for _ in range(11):
    x = a * x + b * x**3 + c * x**5
  assert np.ptp(x) > 0.3  # Jordan's


def test_a_factored_moment_is_as_small_as_its_sides():
  shapes = jax.eval_shape(build('adafactor(min_size=3)').init, to_float32(start_and_gradients()[0]))
  kernel = shapes[0]['experts']['kernel'][0]
  assert {kernel.v_row.shape, kernel.v_col.shape} == {(2, 3, 5), (2, 3, 7)}
  assert kernel.v.shape == (2, 3, 1)


def test_none_keeps_nothing():
  start, gradients = start_and_gradients()
  jax.tree.map(
    np.testing.assert_array_equal, run(build('none'), start, gradients[:1]), to_float32(start)
  )
  assert not jax.tree.leaves(build('none').init(start))


@pytest.mark.parametrize(
  'text, message',
  [
    ('sgd(nesterov=True)', 'needs a momentum'),
    ('adafactor(b1=1.0)', r'b1=1\.0 must be below 1'),
    ('adafactor(decay=0.0)', r'decay=0\.0 must be above 0'),
    ('adafactor(clip=-1.0)', r'clip=-1\.0 must be at least 0'),
    ('adamw(b1=1.5)', r'b1=1\.5 must be below 1'),
    ('adamw(b2=-0.1)', r'b2=-0\.1 must be at least 0'),
    ('adam(eps=-1)', 'eps=-1 must be above 0'),
    ('lamb(weight_decay=1e999)', 'weight_decay=inf must be a finite number'),
    ('lion(b1=1)', 'b1=1 must be below 1'),
    ('muon(num_steps=0)', 'num_steps=0 must be at least 1'),
    ('sgd(momentum=1)', 'momentum=1 must be below 1'),
  ],
)
def test_arguments_that_make_no_sense(text, message):
  with pytest.raises(UsageError, match=message):
    spec.build('optim.name', text, OPTIMIZERS)


# The model ---------------------------------------------------------------


@pytest.mark.parametrize('output', ['tied', 'untied'])
def test_matrices_decay_biases_and_scales_do_not(output):
  params = tiny.params(tiny.model(output=output))
  mask = decay_mask(params)
  names = flops.parameter_table(params)
  decayed = {
    name.rpartition('/')[0]
    for name, decays in zip(names, jax.tree.leaves(mask), strict=True)
    if decays
  }
  block = 'decoder/periods/block_0'
  assert decayed == {
    'embed',
    'positions',
    *(['head'] if output == 'untied' else []),
    *(f'{block}/attention/{p}' for p in ('query', 'key', 'value', 'out')),
    *(f'{block}/ffn/{p}' for p in ('in', 'out')),
  }
  assert sum(jax.tree.leaves(mask)) == len(decayed)


def test_decay_acts_where_there_is_no_gradient():
  """Weights become theta (1 - rate decay); biases and scales stay."""
  params = tiny.params(tiny.model())
  optimizer = build('adamw(weight_decay=0.25)', None)
  zeros = jax.tree.map(np.zeros_like, params)
  updates, _ = jax.jit(optimizer.update)(zeros, optimizer.init(params), params, rate=0.5)
  for path, update in jax.tree_util.tree_leaves_with_path(updates):
    value = params
    for key in path:
      value = value[key.key]
    stays = path[-1].key in ('bias', 'scale')
    expected = np.zeros_like(value) if stays else -0.125 * value
    np.testing.assert_allclose(update, expected, rtol=1e-6)


TINY = {
  'model.num_layers': 2,
  'model.vocab_size': 16,
  'model.context_length': 7,
  'model.d_model': 8,
  'model.num_heads': 2,
  'model.num_kv_heads': 2,
  'model.head_size': 4,
  'model.d_ff': 16,
  'model.bias': 'none',
}


@pytest.mark.parametrize(
  'text, peak',
  [
    ('adam(l2=1e-2)', 1e-2),
    # The next rates are relative to parameters, which start small.
    slow(write('adafactor', PALM), 0.3),
    slow('adafactor(min_size=8, b1=0.9)', 0.3),
    slow('lamb', 0.1),
    slow('lion', 3e-3),
    slow('muon', 1e-2),
    slow('sgd(momentum=0.9, nesterov=True)', 0.1),
  ],
)
def test_every_optimizer_trains(text, peak):
  """Split over a mesh, through the step that `train` takes."""
  fields = {'optim.name': text, 'schedule.name': f'constant(peak={peak})'}
  run = tiny.build(tiny.config(**TINY, **fields), (2, 2, 2))
  state = parts_lib.initial_state(run)
  batch = run.put(tiny.batch(16, 7, 16), 16)
  step = compiled_lib.compile_train_step(run).call
  losses = []
  for _ in range(12):
    state, metrics = step(state, batch)
    losses.append(float(metrics['loss']))
  assert losses[-1] < losses[0] - 0.1
  # Moments lie where their parameters do; the step gave them back there.
  shapes = parts_lib.abstract_state(run).opt_state
  for x, s in zip(jax.tree.leaves(state.opt_state), jax.tree.leaves(shapes), strict=True):
    assert x.sharding.is_equivalent_to(s.sharding, x.ndim)
  split = [x for x in jax.tree.leaves(shapes) if not x.sharding.is_fully_replicated]
  assert split
