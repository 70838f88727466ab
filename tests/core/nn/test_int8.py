# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Products in int8: in training against NumPy, on meshes, and in decoding."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from gpt_jax.core import sharding
from gpt_jax.core.nn import int8, layers, layout, moe
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn import quantized as quantized_lib
from gpt_jax.core.nn.choices import INITS
from gpt_jax.core.nn.stack import REMATS
from gpt_jax.core.spec import UsageError
from tests.support import tiny

BOTH = int8.Int8('both', 'stochastic')
N, D, F = 13, 7, 5


def arrays(seed=0):
  """x, a kernel, and the gradient of their product, of uneven sizes."""
  rng = np.random.default_rng(seed)

  def draw(*shape):
    sizes = 10.0 ** rng.integers(-2, 3, (shape[0], 1))
    return np.float32(rng.normal(size=shape) * sizes)

  return draw(N, D), draw(D, F), draw(N, F)


# The equations at the top of `int8`, in NumPy.


def expected(x, w, dy, noise):
  """y, dx and dW; noise [N, F] is from 0 to 1."""

  def to_nearest(a, axis):
    scale = np.abs(a).max(axis=axis, keepdims=True) / 127
    return np.round(a / scale), scale

  def at_random(a, axis):
    scale = np.abs(a).max(axis=axis, keepdims=True) / 127
    # Floors of what is between two numbers after its rounding to 2^-16.
    return np.floor(np.round(a / scale * 2**16) / 2**16 + noise), scale

  x, w, dy = np.float64(x), np.float64(w), np.float64(dy)
  xq, s = to_nearest(x, 1)
  wq, t = to_nearest(w, 0)
  gq, r = at_random(dy * t, 1)
  hq, c = at_random(dy * s, 0)
  return xq @ wq * s * t, gq @ wq.T * r, xq.T @ hq * c


def hashed(seed, numbers, columns):
  """The noise, by a hash written anew, one number at a time."""

  def mix(x):
    x = (x + 0x9E3779B9) & 0xFFFFFFFF
    x = ((x ^ x >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ x >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ x >> 16

  def one(n, f):
    return mix(mix(mix(seed) ^ n) ^ f) >> 16

  return np.array([[one(n, f) for f in range(columns)] for n in numbers])


def found(how, x, w, dy, tokens):
  @jax.jit
  def run(x, w, dy, tokens):
    y, back = jax.vjp(lambda x, w: how.product(x, w, tokens), x, w)
    return y, *back(dy)

  return [np.asarray(a) for a in run(x, w, dy, tokens)]


@pytest.mark.parametrize('shape', [(N,), (1, N)])
def test_products_and_gradients_are_those_of_the_equations(shape):
  x, w, dy = arrays()
  key, numbers = jax.random.key(3), np.arange(N) * 17
  tokens = layers.hash_of(key, jnp.asarray(numbers, jnp.uint32))
  seed = int(jax.random.bits(key, (), jnp.uint32))
  noise = hashed(seed, numbers.tolist(), F) / 2**16
  y, dx, dw = found(BOTH, x.reshape(*shape, D), w, dy.reshape(*shape, F), tokens.reshape(shape))
  one, two, three = expected(x, w, dy, noise)
  near = functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-30)
  near(y.reshape(N, F), one)
  near(dx.reshape(N, D), two)
  near(dw, three)
  # `inputs` leaves the kernel's gradient alone.
  how = BOTH._replace(gradients='inputs')
  _, same, plain = found(how, x, w, dy, tokens)
  np.testing.assert_array_equal(same, dx.reshape(N, D))
  np.testing.assert_allclose(plain, x.T @ dy, rtol=1e-4, atol=1e-4)


def test_the_mean_of_gradients_rounded_at_random_is_that_before_rounding():
  """Rounding to the nearest loses what is below half a step."""
  x, w, dy = np.eye(N, D, dtype=np.float32), *arrays(1)[1:]
  dy = np.float32(dy * 0 + 0.3 / 127)
  dy[0] = 1
  keys = jax.random.split(jax.random.key(0), 4000)
  numbers = jnp.arange(N)

  def dw(key):
    tokens = layers.hash_of(key, numbers)
    _, back = jax.vjp(lambda w: BOTH.product(x, w, tokens), w)
    return back(dy)[0]

  drawn = np.asarray(jax.jit(jax.vmap(dw))(keys))
  error = drawn.mean(axis=0) - x.T @ dy
  deviation = np.sqrt(0.3 * 0.7 / 4000) / 127
  assert np.abs(error).max() < 4 * deviation
  nearest = BOTH._replace(rounding='nearest')
  lost = found(nearest, x, w, dy, np.zeros(N, np.uint32))[2]
  assert not lost[1:].any() and (drawn[:, 1:] > 0).any()


@pytest.mark.parametrize('bad', [np.nan, np.inf])
def test_what_is_not_finite_stays_so(bad):
  x, w, dy = arrays()
  x[2, 3] = bad
  tokens = np.zeros(N, np.uint32)
  y, _, dw = found(BOTH, x, w, dy, tokens)
  assert not np.isfinite(y[2]).any() and np.isfinite(y[:2]).all()
  assert not np.isfinite(dw).all()
  x[2, 3], dy[4, 1] = 0, bad
  assert not np.isfinite(found(BOTH, x, w, dy, tokens)[1][4]).any()


@pytest.mark.parametrize('place', [(2, 3), (2, 1008), (12, 500)])
def test_a_nan_among_many_is_not_lost(place):
  # XLA's maximum of many floats on CPUs leaves it out.
  x = np.random.default_rng(0).normal(size=(13, 1009)).astype(np.float32)
  x[place] = np.nan
  scale_N = jax.jit(lambda x: quantized_lib.rounded(x, (1,))[1])(x)[:, 0]
  rows = np.arange(13)
  np.testing.assert_array_equal(np.isnan(scale_N), rows == place[0])
  others = rows != place[0]
  largest_N = np.abs(x[others]).max(axis=1)
  np.testing.assert_array_equal(scale_N[others], largest_N / np.float32(127))


# The layers: where bits come from, and what they depend on.


def step(how, micro, kind=layers.Dense, axes=('embed', 'mlp'), **fields):
  """Outputs and gradients of a layer, of rows in interleaved micro-batches."""
  rng = np.random.default_rng(0)
  x_BLD = np.float32(rng.normal(size=(16, 3, 16)))
  dy_BLF = np.float32(rng.normal(size=(16, 3, 24)))
  init = nn.initializers.normal(1.0)
  layer = kind(24, axes, init, False, jnp.float32, matmul=how, **fields)
  variables = nn.meta.unbox(layer.init(jax.random.key(0), x_BLD[:1]))
  key = jax.random.key(5)

  @jax.jit
  def run(variables, x_BLD, dy_BLF, numbers_B):
    def apply(variables, x_BLD):
      with layers.use_rows(layers.Rows(numbers_B, 16, False)):
        return layer.apply(variables, x_BLD, rngs={'dropout': key})

    y_BLF, back = jax.vjp(apply, variables, x_BLD)
    return y_BLF, *back(dy_BLF)

  def part(i):
    every = slice(i, None, micro)
    return run(variables, x_BLD[every], dy_BLF[every], np.arange(16)[every])

  return [jax.tree.map(np.asarray, part(i)) for i in range(micro)]


MESHES = [{'data': 8}, {'fsdp': 8}, {'tensor': 8}, {'data': 2, 'fsdp': 2, 'tensor': 2}]


def on(sizes):
  """The mesh with these sizes, and its rules."""
  shape = [sizes.get(axis, 1) for axis in sharding.AXES]
  mesh = jax.sharding.Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), sharding.AXES)
  rules = tiny.config().mesh.rules
  return sharding.use(mesh, sharding.parse_rules(rules))


@functools.cache
def alone():
  return step(BOTH, 1)[0]


@pytest.mark.parametrize('sizes', MESHES, ids=str)
@pytest.mark.parametrize('axes', [('embed', 'mlp'), ('mlp', 'embed')], ids=str)
def test_a_mesh_changes_no_bit_but_of_sums_over_tensor(sizes, axes):
  """Of the result, of the kernel's gradient, and of that of inputs."""
  with on(sizes):
    (split,) = step(BOTH, 1, axes=axes)
  names = ['result', 'kernel', 'inputs']
  added = {('embed', 'mlp'): 'inputs', ('mlp', 'embed'): 'result'}[axes]
  for name, found, expected in zip(names, split, alone(), strict=True):
    if name == added and 'tensor' in sizes:
      # Eight numbers are added in another order.
      error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
      assert 0 < error < 1e-6
    else:
      jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
  ('axes', 'features'), [(('embed', 'mlp'), 16), (('mlp', 'embed'), 24)], ids=str
)
def test_sums_over_tensor_are_sent_in_the_compute_dtype(axes, features):
  """Not in int32, which is as large as two numbers in bfloat16."""
  x_ND, kernel_DF, tokens = jnp.ones((5, 16)), jnp.ones((16, 24)), jnp.zeros(5, jnp.uint32)

  @jax.jit
  def run(x_ND, kernel_DF):
    y_NF, back = jax.vjp(lambda x: BOTH.product(x, kernel_DF, tokens, axes), x_ND)
    return y_NF, back(jnp.ones_like(y_NF))

  with on({'tensor': 8}):
    text = run.lower(x_ND, kernel_DF).compile().as_text()
  # Of the gradient of the inputs, or of the result. Maxima are vectors.
  sent = re.findall(r'= (\w+)\[(\d+),(\d+)\]\S* (?:all-reduce|reduce-scatter)\(', text)
  assert sent == [('f32', '5', str(features))]


@pytest.mark.parametrize('sizes', [MESHES[0], MESHES[1], MESHES[3]], ids=str)
def test_a_layer_whose_devices_add_in_float_has_the_same_gradients(sizes, monkeypatch):
  """As if an int32 held no more than 24 of the 48 tokens."""
  exact = alone()
  monkeypatch.setattr(int8, 'LONGEST', 24)
  with on(sizes):
    (split,) = step(BOTH, 1)
  near = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
  jax.tree.map(near, split, exact)
  with pytest.raises(UsageError, match='sums 48 tokens of a device at once'):
    step(BOTH, 1)


WIDE = [*MESHES[:2], {'data': 2, 'fsdp': 4}, {'data': 2, 'context': 4}]


@pytest.mark.parametrize('sizes', WIDE, ids=str)
def test_devices_sum_their_tokens_in_int32_and_add_them_in_float(sizes):
  """Against NumPy in int64, at the ends of the range.

  Each of eight devices has as many tokens as an int32 sums, so that the sum over
  the devices would overflow.
  """
  rng = np.random.default_rng(0)
  L = 8  # of which each device has a part, where rows are split
  count, d, f = 8 * int8.LONGEST, 3, 2
  assert 127**2 * int8.LONGEST < 2**31 - 1 < 127**2 * (int8.LONGEST + 1)
  # A column of the largest numbers, and one with signs.
  xq = np.full((count, d), 127)
  hq = np.full((count, f), 127)
  xq[:, 1] *= rng.choice([-1, 1], count)
  hq[:, 1] *= rng.choice([-1, 1], count)
  exact = xq.astype(np.int64).T @ hq.astype(np.int64)
  assert exact[0, 0] > 2**31 - 1
  x, dy = (np.float32(a.reshape(count // L, L, -1)) for a in (xq, hq))
  how = BOTH._replace(rounding='nearest')
  axes = ('embed', 'mlp')

  @jax.jit
  def run(x, dy):
    lead = (-1,) if 'context' not in sizes else (count // L, L)
    x, dy = (layout.constrain(a, ('batch', 'length', None)) for a in (x, dy))
    tokens = jnp.zeros(lead if len(lead) > 1 else (count,), jnp.uint32)
    product = functools.partial(how.product, x.reshape(*lead, d), tokens=tokens, axes=axes)
    _, back = jax.vjp(lambda w: product(w), jnp.ones((d, f), jnp.float32))
    return back(dy.reshape(*lead, f))[0]

  with on(sizes):
    compiled = run.lower(x, dy).compile()
    dw = np.asarray(compiled(x, dy))
  # x is 127 times a scale of 1, and dy too.
  np.testing.assert_allclose(dw, exact, rtol=1e-6, atol=1e-6 * exact.max())
  sent = re.findall(r'= (\w+)\[[\d,]*\]\S* (?:all-reduce|reduce-scatter)\(', compiled.as_text())
  assert 'f32' in sent
  # Maxima of columns are sent as integers, sums are not.
  assert not re.search(rf's32\[{d},{f}\]\S* (all-reduce|reduce-scatter)\(', compiled.as_text())


def test_micro_batches_change_no_bit_of_a_row():
  """A kernel's gradient has a scale for the tokens of its micro-batch."""
  y, dw, dx = alone()
  for i, (part_y, part_dw, part_dx) in enumerate(parts := step(BOTH, 2)):
    np.testing.assert_array_equal(part_y, y[i::2])
    np.testing.assert_array_equal(part_dx, dx[i::2])
    del part_dw
  total = sum(part[1]['params']['kernel'] for part in parts)
  np.testing.assert_allclose(total, dw['params']['kernel'], atol=0.4)


def test_plain_is_what_it_was_and_so_is_int8_without_random_numbers():
  layer = layers.Dense(5, (None, 'mlp'), nn.initializers.normal(), True, 'f4')
  x = np.float32(np.random.default_rng(0).normal(size=(3, 7)))
  variables = layer.init(jax.random.key(0), x)
  given = {'dropout': jax.random.key(1)}
  plain = layer.apply(variables, x, rngs=given)
  quantized = layer.clone(matmul=BOTH)
  np.testing.assert_array_equal(plain, quantized.apply(variables, x))
  assert np.any(plain != quantized.apply(variables, x, rngs=given))


def test_low_rank_products_beside_the_kernel_are_exact():
  layer = layers.Dense(5, (None, 'mlp'), nn.initializers.normal(), False, 'f4', BOTH)
  rng = np.random.default_rng(0)
  x, w, _ = arrays()
  a, b = (np.float32(rng.normal(size=s)) for s in ((D, 2), (2, F)))
  given = {'dropout': jax.random.key(1)}
  params = {'kernel': w, 'kernel_A': a, 'kernel_B': b}
  both = layer.apply({'params': params}, x, rngs=given)
  base = layer.apply({'params': {'kernel': w}}, x, rngs=given)
  np.testing.assert_allclose(both, base + x @ a @ b, rtol=1e-5, atol=1e-4)


def experts(how):
  """Gradients of two experts' kernels, inputs and the output."""
  router = moe.Router(2, 1, 2.0, 2.0, 0, 0, 0.0, 0.0, 0.0, False)
  form = layers.FORMS['relu']
  inits = INITS['normal'](stddev=1.0)(1)
  layer = moe.Switch(router, form, 11, False, inits, jnp.float32, how)
  x_BLD = np.float32(np.random.default_rng(0).normal(size=(2, 5, 7)))
  variables = nn.meta.unbox(jax.jit(layer.init)(jax.random.key(0), x_BLD))
  rngs = {'dropout': jax.random.key(1)}

  @jax.jit
  def run(variables, x_BLD):
    def loss(variables, x_BLD):
      y = layer.apply(variables, x_BLD, rngs=rngs)
      return jnp.sum(jnp.square(y)), y

    return jax.grad(loss, has_aux=True)(variables, x_BLD)

  return run(variables, x_BLD)


def test_experts_are_nearly_those_of_plain_products():
  grads, y = experts(BOTH)
  exact, z = experts(None)
  errors = jax.tree.map(
    lambda a, b: np.linalg.norm(a - b) / np.linalg.norm(b),
    (grads['params'], y),
    (exact['params'], z),
  )
  for error in jax.tree.leaves(errors):
    assert 1e-4 < error < 5e-2, errors


def test_dots_keeps_the_result_and_not_its_sums():
  """Of a layer whose result is read again: float32, not int32."""
  x, w, _ = arrays()

  def layer(x):
    y = BOTH.product(x, w, jnp.zeros(N, jnp.uint32))
    return jnp.sin(checkpoint_name(y, layers.PRODUCT))

  for name, kept in (('dots', {(N, F)}), ('full', set())):
    run = jax.checkpoint(layer, policy=REMATS[name])
    arrays_kept = jax.tree.leaves(jax.vjp(run, x)[1])
    shapes = {(a.shape, str(a.dtype)) for a in arrays_kept}
    assert {s for s, kind in shapes if kind == 'float32'} - {x.shape, w.shape} == kept
    assert not any(kind == 'int32' for _, kind in shapes)


@pytest.mark.parametrize(
  'shapes, text',
  [
    (((3, 140_000), (140_000, 2)), 'a kernel of 140000 x 2: 32-bit sums hold'),
    (((140_000, 3), (3, 2)), "or int8(gradients='inputs')"),
  ],
)
def test_sums_that_int32_does_not_hold_are_refused(shapes, text):
  x, w = (jax.ShapeDtypeStruct(s, np.float32) for s in shapes)
  tokens = jax.ShapeDtypeStruct(shapes[0][:1], np.uint32)

  def gradient(x, w, tokens):
    y, back = jax.vjp(lambda w: BOTH.product(x, w, tokens), w)
    return back(y)

  with pytest.raises(UsageError) as e:
    jax.eval_shape(gradient, x, w, tokens)
  assert text in str(e.value)
  if w.shape[0] == 3:  # only the gradient sums tokens
    jax.eval_shape(BOTH.product, x, w, tokens)


# Decoding: products of 8-bit weights and activations are what their definition
# says.


def rounded(x, axis):
  """Integers of at most 127 and their scale, in float64."""
  scale = np.abs(x).max(axis=axis, keepdims=True) / 127
  scale[scale == 0] = 1
  return np.round(x / scale), scale


def quantized(kernel):
  found = params_lib.quantize({'decoder': {'in': {'kernel': kernel}}})
  return found['decoder']['in']['kernel'], found['decoder']['in']['scale']


@pytest.mark.parametrize('rows', [1, 2, 7])
def test_products_are_those_of_the_rounded_numbers(rows):
  """One row of x and one column of the kernel are zero."""
  rng = np.random.default_rng(rows)
  x = rng.normal(size=(rows, 131)) * 10.0 ** rng.integers(-3, 4, (rows, 1))
  kernel = rng.normal(size=(131, 19)) * 10.0 ** rng.integers(-3, 4, (1, 19))
  x[rows // 2], kernel[:, 5] = (0 if rows > 1 else x[0]), 0
  x, kernel = np.float32(x), np.float32(kernel)
  one, by_row = rounded(np.float64(x), 1)
  two, by_column = rounded(np.float64(kernel), 0)
  found = quantized_lib.dot(x, *quantized(kernel))
  # The rounding of x / scale may differ by one where it is between two.
  expected = one @ two * by_row * by_column
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-30)


def test_a_row_does_not_depend_on_the_others():
  """To the last bit, alone and among many."""
  rng = np.random.default_rng(0)
  x = np.float32(rng.normal(size=(37, 131)))
  small = quantized(np.float32(rng.normal(size=(131, 19))))
  dot = jax.jit(quantized_lib.dot)
  together = np.asarray(dot(x, *small))
  for start, stop in ((0, 1), (5, 7), (9, 22)):
    np.testing.assert_array_equal(dot(x[start:stop], *small), together[start:stop])
