# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Vectors that are added, rotations, biases on scores; hooks of a choice."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax.core import spec
from gpt_jax.core.costs import matmuls
from gpt_jax.core.nn.caches import init_caches
from gpt_jax.core.nn.choices import PATTERNS, POSITIONS
from gpt_jax.core.nn.masks import Pattern, full, local
from gpt_jax.core.nn.positions import SCALINGS, Position, alibi_slopes
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.transformer import parameter_shapes
from gpt_jax.core.spec import UsageError
from tests.support import reference, tiny

B, L, D, CONTEXT = 3, 5, 17, 13
EVEN = 22  # pairs of sine and cosine
# Rows that start elsewhere, go back and repeat.
PLACES = np.array([[0, 1, 2, 3, 4], [8, 9, 10, 11, 12], [7, 0, 7, 1, 12]])
RELATIVE = ('terms', 'block')


def build(text):
  return spec.build('model.position', text, POSITIONS)


def make(text, d_model=D):
  module = build(text).embed(context_length=CONTEXT, initializer=nn.initializers.normal(0.5))
  rng = np.random.default_rng(0)
  x = np.float32(rng.normal(size=(B, L, d_model)))
  params = jax.jit(module.init)(jax.random.key(0), x, None)
  return module, params, x


@pytest.mark.parametrize(
  'text, hooks',
  [
    ('learned', {'embed'}),
    ('sinusoidal', {'embed'}),
    ('rope', {'rotate'}),
    ('rope(local_theta=100)', {'rotate', 'rotate_local'}),
    ('t5_bias', {'bias', 'by_distance'}),
    ('alibi', {'bias', 'by_distance'}),
    ("alibi(dtype='bfloat16')", {'bias'}),
    ('transformer_xl', {*RELATIVE, 'recurrence'}),
    ('deberta', {*RELATIVE, 'model', 'settings'}),
    ('xlnet', {*RELATIVE, 'recurrence', 'model'}),
    ('none', set()),
  ],
)
def test_hooks(text, hooks):
  given = build(text)._asdict()
  defaults = Position._field_defaults
  used = {name for name, hook in given.items() if hook != defaults[name]}
  assert used == hooks


def test_local_layers_turn_by_their_own_theta():
  """And without the scaling of the others (Gemma 3).

  A pattern whose window only bounds what its rule shows is not local.
  """
  scaled = build("rope(theta=5000, scaling='linear(3)')")
  both = build("rope(theta=5000, scaling='linear(3)', local_theta=70)")
  alone = build('rope(theta=70)')
  x = np.float32(np.random.default_rng(0).normal(size=(B, L, 2, 8)))

  def turned(position, pattern):
    return jax.jit(position.rotation(pattern))(x, PLACES)

  windowed = Pattern('windowed', window=3)
  cases = (full(), scaled), (local(3), alone), (windowed, scaled)
  for pattern, same in cases:
    found = turned(both, pattern)
    np.testing.assert_array_equal(found, turned(same, pattern))
  assert scaled.rotation(local(3)) is scaled.rotation(full())


def test_a_cpu_computes_sines_and_cosines_once():
  """Not in the loop over the heads of the queries."""
  rotate = build('rope').rotate

  def run(x_BLHK, positions_BL):
    return rotate(x_BLHK, positions_BL).swapaxes(1, 2)

  shapes = (
    jax.ShapeDtypeStruct((3, 13, 7, 10), np.float32),
    jax.ShapeDtypeStruct((3, 13), np.int32),
  )
  traced = jax.jit(run).trace(*shapes)
  programs = traced.lower().compile().as_text().split('\n\n')
  (waves,) = [part for part in programs if 'cosine(' in part]
  assert 'f32[3,13,7,' not in waves
  assert matmuls.flops(traced.jaxpr) == 0


@pytest.mark.parametrize('offset', [0, 2])
def test_learned_adds_the_vector_of_each_position(offset):
  """OPT's table has two rows before the first position."""
  module, params, x = make(f'learned(offset={offset})')
  boxed = params['params']['embedding']
  assert boxed.names == ('position', 'embed')
  table = np.asarray(boxed.value)
  assert table.shape == (CONTEXT + offset, D)
  table = table[offset:]
  # Without positions: 0, 1, 2, ... in each row.
  expected = [[x[b, i] + table[i] for i in range(L)] for b in range(B)]
  np.testing.assert_array_equal(module.apply(params, x, None), expected)
  # With them, in any order.
  expected = [[x[b, i] + table[PLACES[b, i]] for i in range(L)] for b in range(B)]
  np.testing.assert_array_equal(module.apply(params, x, PLACES), expected)


@pytest.mark.parametrize('offset', [0, 2])
def test_learned_gradient_sums_over_rows(offset):
  module, params, x = make(f'learned(offset={offset})')
  weights = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)

  def loss(params, at):
    return (module.apply(params, x, at) * weights).sum()

  for at in (None, np.broadcast_to(np.arange(L), (B, L))):
    gradient = jax.grad(loss)(params, at)['params']['embedding'].value
    expected = np.zeros((CONTEXT + offset, D))
    expected[offset : offset + L] = weights.sum(0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def waves(places, width, layout):
  """Plain JAX's; of an odd number the last is a sine."""
  plain = reference.of()

  def run(places):
    if layout == 'interleaved':
      return plain.sinusoids(places, width)
    return plain.sines_then_cosines(places.reshape(-1), width).reshape(*places.shape, -1)

  return reference.run(run, places)[..., :width]


@pytest.mark.parametrize('width', [EVEN, EVEN + 1])
@pytest.mark.parametrize('layout', ['interleaved', 'halves'])
@pytest.mark.parametrize(
  'at, error',
  [
    (None, 2e-6),
    (PLACES, 2e-6),
    # The angle itself, up to 2012, is rounded to 24 bits.
    (2000 + PLACES, 2e-4),
  ],
)
def test_sinusoidal(layout, at, error, width):
  module, params, x = make(f'sinusoidal(layout={layout!r})', width)
  assert params == {}
  places = np.broadcast_to(np.arange(L), (B, L)) if at is None else at
  expected = x + waves(places, width, layout)
  found = module.apply(params, x, at)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=error)


def test_sinusoidal_defaults_to_the_paper():
  """Sine and cosine in turn: at position 0 they are 0, 1, 0, 1, ..."""
  module, params, x = make('sinusoidal', EVEN)
  added = module.apply(params, 0 * x, None)[0]
  np.testing.assert_array_equal(added[0], np.arange(EVEN) % 2)
  np.testing.assert_allclose(added[1, :2], [np.sin(1), np.cos(1)], rtol=1e-5)


def test_sinusoidal_is_computed_in_float32():
  """Rounded once: in bfloat16 position 1001 itself would become 1000."""
  module, params, x = make('sinusoidal', EVEN)
  x = jnp.zeros(x.shape, jnp.bfloat16)
  found = module.apply(params, x, np.full((B, L), 1001))
  assert found.dtype == jnp.bfloat16
  expected = waves(np.full((B, L), 1001), EVEN, 'interleaved')
  np.testing.assert_allclose(np.float64(found), expected, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    ("sinusoidal(layout='half')", "layout='half' is unknown; one of"),
    ("rope(layout='quarter')", "layout='quarter'.*half, interleaved"),
    ('rope(fraction=0.0)', 'fraction=0.0 must be above 0'),
    ('rope(fraction=1.5)', 'fraction=1.5 must be at most 1'),
    ('rope(theta=1e999)', 'theta=inf must be a finite number'),
    ("rope(scaling='dynamic')", "unknown 'dynamic'; one of linear, llama3"),
    (
      "rope(scaling='llama3(8, original_context=64, low_freq_factor=4)')",
      'high_freq_factor=4.0 must be above low_freq_factor=4',
    ),
    ("alibi(scale='sqrt')", "scale='sqrt'.*none, rsqrt"),
    ("alibi(dtype='float16')", "dtype='float16'.*float32, bfloat16"),
  ],
)
def test_calls_that_are_refused(call, message):
  with pytest.raises(UsageError, match=message):
    build(call)


H, K = 2, 14
THETA = 500.0
AT = np.array([[0, 1, 2, 3, 4], [11, 7, 3, 90, 1], [0, 0, 63, 64, 65]])


def heads_of(seed=0):
  x = np.random.default_rng(seed).normal(size=(B, L, H, K))
  return x.astype(np.float32)


def frequencies_of(size, theta=THETA):
  return [theta ** (-2 * i / size) for i in range(size // 2)]


def llama3(size, theta, *, factor, original, low=1.0, high=4.0):
  """`apply_scaling` of Meta's LLaMA 3.1, by wavelengths."""
  out = []
  for f in frequencies_of(size, theta):
    wave = 2 * math.pi / f
    if wave < original / high:
      out.append(f)
    elif wave > original / low:
      out.append(f / factor)
    else:
      smooth = (original / wave - low) / (high - low)
      out.append((1 - smooth) * f / factor + smooth * f)
  return out


def yarn(size, theta, *, factor, original, fast=32.0, slow=1.0, truncate=True):
  """YaRN, section 3.2, with the bounds of its released code."""

  def dim(turns):
    return size * math.log(original / (turns * 2 * math.pi)) / (2 * log_theta)

  log_theta = math.log(theta)
  low, high = dim(fast), dim(slow)
  if truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, size - 1)
  if low == high:
    high += 0.001
  out = []
  for i, f in enumerate(frequencies_of(size, theta)):
    ramp = min(max((i - low) / (high - low), 0), 1)
    out.append(f / factor * ramp + f * (1 - ramp))
  return out


@pytest.mark.parametrize('layout', ['half', 'interleaved'])
@pytest.mark.parametrize('fraction, size', [(1.0, 14), (3 / 7, 6), (0.45, 6)])
def test_each_pair_turns(layout, fraction, size):
  x = heads_of()
  rope = POSITIONS['rope'](theta=THETA, fraction=fraction, layout=layout)
  found = jax.jit(rope.rotate)(x, AT)
  plain = reference.of(HEAD_SIZE=size, ROPE_THETA=THETA)
  turn = plain.rotate_halves if layout == 'half' else plain.rotate_pairs
  expected = reference.run(turn, x[..., :size], AT)
  np.testing.assert_allclose(found[..., :size], expected, rtol=0, atol=2e-5)
  np.testing.assert_array_equal(found[..., size:], x[..., size:])


@pytest.mark.parametrize('layout', ['half', 'interleaved'])
@pytest.mark.parametrize('fraction', [1.0, 3 / 7])
@pytest.mark.parametrize(
  'scaling', ['none', 'linear(factor=3)', 'yarn(factor=3, original_context=64)']
)
def test_scores_depend_on_the_distance_alone(layout, fraction, scaling):
  rope = POSITIONS['rope'](theta=THETA, fraction=fraction, layout=layout, scaling=scaling)
  q, k = heads_of(1), heads_of(2)
  rotate = jax.jit(rope.rotate)

  def scores(shift):
    turned = [np.asarray(rotate(x, AT + shift), np.float64) for x in (q, k)]
    return np.einsum('blhk,bmhk->bhlm', *turned)

  np.testing.assert_allclose(scores(0), scores(37), rtol=0, atol=2e-4)
  # Were nothing turned, this would hold trivially.
  plain_scores = np.einsum('blhk,bmhk->bhlm', q, k)
  assert np.abs(scores(0) - plain_scores).max() > 0.5


def test_position_zero_stays():
  x = heads_of()
  rope = POSITIONS['rope']()
  found = jax.jit(rope.rotate)(x, np.zeros((1, L), np.int32))
  np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize(
  'call, expected',
  [
    ('none', lambda size, theta: frequencies_of(size, theta)),
    ('linear(factor=2.5)', lambda size, theta: [f / 2.5 for f in frequencies_of(size, theta)]),
    (
      'llama3(factor=8, original_context=64)',
      lambda size, theta: llama3(size, theta, factor=8, original=64),
    ),
    (
      'llama3(factor=4, original_context=100, low_freq_factor=2, high_freq_factor=16)',
      lambda size, theta: llama3(size, theta, factor=4, original=100, low=2, high=16),
    ),
    (
      'yarn(factor=4, original_context=512)',
      lambda size, theta: yarn(size, theta, factor=4, original=512),
    ),
    (
      'yarn(factor=4, original_context=512, beta_fast=10, beta_slow=2, truncate=False)',
      lambda size, theta: yarn(
        size, theta, factor=4, original=512, fast=10, slow=2, truncate=False
      ),
    ),
    # Fewer than 2 pi tokens: the bounds cross.
    (
      'yarn(factor=4, original_context=3, truncate=False)',
      lambda size, theta: yarn(size, theta, factor=4, original=3, truncate=False),
    ),
  ],
)
@pytest.mark.parametrize('size, theta', [(14, 500.0), (64, 1e4), (10, 5e5)])
def test_scalings(call, expected, size, theta):
  x = np.zeros((1, 1, 1, size), np.float32)
  x[..., : size // 2] = 1
  rotate = jax.jit(POSITIONS['rope'](theta=theta, scaling=call).rotate)
  frequencies = expected(size, theta)
  found = np.asarray(rotate(x, np.array([[1]])))[0, 0, 0]
  angles = np.arctan2(found[size // 2 :], found[: size // 2])
  np.testing.assert_allclose(angles, frequencies, rtol=2e-6, atol=1e-7)
  lengths = np.hypot(found[size // 2 :], found[: size // 2])
  scale = 0.1 * math.log(4) + 1 if call.startswith('yarn') else 1
  np.testing.assert_allclose(lengths, scale, rtol=1e-6)


def test_llama3_keeps_ramps_and_divides():
  # Waves of 2 pi 500^(2 i / 14): 6.3, 15, 37, 90, 219, 532, 1293 tokens.
  found, _ = SCALINGS['llama3'](factor=8.0, original_context=400)(14, THETA)
  ratio = found / frequencies_of(14)
  np.testing.assert_allclose(ratio[:4], 1)  # shorter than 400 / 4
  assert 1 / 8 < ratio[4] < 1
  np.testing.assert_allclose(ratio[5:], 1 / 8)  # longer than 400


@pytest.mark.parametrize(
  'extra, scale', [('', 0.1 * math.log(16) + 1), (', attention_factor=1.25', 1.25)]
)
def test_yarn_scales_queries_and_keys(extra, scale):
  x, call = heads_of(), 'yarn(factor=16, original_context=64'
  found, unscaled = (
    jax.jit(POSITIONS['rope'](theta=THETA, scaling=f'{call}{arguments})').rotate)(x, AT)
    for arguments in (extra, ', attention_factor=1')
  )
  np.testing.assert_allclose(found, scale * unscaled, rtol=0, atol=2e-5)
  np.testing.assert_allclose(
    np.linalg.norm(unscaled, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5
  )


@pytest.mark.parametrize('fraction, size', [(0.5, 7), (0.05, 0)])
def test_pairs_need_an_even_number(fraction, size):
  rope = POSITIONS['rope'](fraction=fraction)
  with pytest.raises(UsageError, match=f'of a head of 14 is {size} features'):
    rope.rotate(heads_of(), AT)


ROWS, HEADS, SIZE = 2, 3, 5
QUERY = np.array([[4, 5, 6, 7], [0, 1, 2, 3]])
KEY = np.array([[0, 1, 2, 3, 4, 5, 6], [7, 6, 5, 4, 2, 1, 0]])


def bias(name, pattern='full', heads=HEADS, **arguments):
  return POSITIONS[name](**arguments).bias(
    num_heads=heads,
    head_size=SIZE,
    pattern=PATTERNS[pattern](),
    initializer=nn.initializers.normal(0.5),
  )


def published_slopes(n):
  """`get_slopes` of the paper's released code."""

  def power_of_two(n):
    start = 2 ** (-(2 ** -(math.log2(n) - 3)))
    return [start * start**i for i in range(n)]

  if math.log2(n).is_integer():
    return power_of_two(n)
  closest = 2 ** math.floor(math.log2(n))
  more = published_slopes(2 * closest)[0::2][: n - closest]
  return power_of_two(closest) + more


def test_alibi_slopes_of_8_heads():
  # Press et al. (2022), section 3: 1/2, 1/4, ..., 1/256.
  expected = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
  np.testing.assert_array_equal(alibi_slopes(8), expected)


def test_alibi_slopes_of_12_heads():
  first = [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8]
  more = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
  np.testing.assert_allclose(alibi_slopes(12), first + more)


@pytest.mark.parametrize('heads', [1, 2, 3, 5, 7, 16, 25, 71])
def test_alibi_slopes_as_published(heads):
  np.testing.assert_allclose(alibi_slopes(heads), published_slopes(heads))


@pytest.mark.parametrize('scale, factor', [('none', 1), ('rsqrt', SIZE**-0.5)])
def test_alibi(scale, factor):
  module = bias('alibi', 'bidirectional', scale=scale)
  found = jax.jit(module.apply)({}, QUERY, KEY)
  assert found.shape == (ROWS, HEADS, 4, 7)
  slopes = published_slopes(HEADS)
  for b, h, i, j in np.ndindex(found.shape):
    distance = abs(QUERY[b, i] - KEY[b, j])
    expected = -slopes[h] * distance * factor
    np.testing.assert_allclose(found[b, h, i, j], expected, rtol=1e-6)


def test_alibi_in_bfloat16_rounds_slopes_positions_and_products():
  module = bias('alibi', scale='rsqrt', dtype='bfloat16')
  key = np.array([[0, 1, 3, 100, 255, 257, 1000]])
  found = jax.jit(module.apply)({}, QUERY[:1], key)
  assert found.shape == (1, HEADS, 4, 7)
  slopes = np.array(published_slopes(HEADS)).astype(ml_dtypes.bfloat16)
  for h, i, j in np.ndindex(found.shape[1:]):
    product = slopes[h] * key[0, j].astype(ml_dtypes.bfloat16)
    assert product.dtype == ml_dtypes.bfloat16
    expected = np.float32(product) * np.float32(SIZE**-0.5)
    np.testing.assert_allclose(found[0, h, i, j], expected, rtol=2e-7)


def test_alibi_in_bfloat16_differs_by_a_constant_for_each_query():
  # 8 heads, and positions below 256: nothing has to be rounded.
  exact = bias('alibi', heads=8).apply({}, QUERY, KEY)
  rounded = bias('alibi', heads=8, dtype='bfloat16').apply({}, QUERY, KEY)
  differences = np.asarray(rounded - exact)
  seen = QUERY[:, :, None] >= KEY[:, None, :]
  for b, h, i in np.ndindex(ROWS, 8, 4):
    difference = differences[b, h, i][seen[b, i]]
    np.testing.assert_array_equal(difference, difference[0])


@pytest.mark.parametrize('position', ['t5_bias', 'alibi'])
def test_causal_and_bidirectional_layers_share_no_bias(position):
  """The buckets and distances of one kind are not those of the other."""
  mixed = {'attention': 'full, bidirectional', 'num_layers': 2}
  with pytest.raises(UsageError, match=r'full, bidirectional.*cannot share'):
    parameter_shapes(tiny.model(position=position, **mixed))
  parameter_shapes(tiny.model(**mixed))
  same = {'attention': 'full, local(window=3)', 'num_layers': 2}
  parameter_shapes(tiny.model(position=position, **same))


def test_each_layer_adds_its_own():
  model = tiny.model(num_layers=2, position='learned_by_layer')
  plain = tiny.model(num_layers=2, position='learned')
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  block = params['decoder']['periods']['block_0']
  assert 'positions' not in params
  tables = block['positions']['embedding']
  assert tables.shape == (2, model.context_length, tiny.D)
  rest = {name: x for name, x in block.items() if name != 'positions'}

  def with_tables(tables):
    changed = {**rest, 'positions': {'embedding': tables}}
    return {**params, 'decoder': {'periods': {'block_0': changed}}}

  without = {
    **with_tables(tables),
    'decoder': {'periods': {'block_0': rest}},
    'positions': {'embedding': tables[0]},
  }

  @jax.jit
  def run(tables, without):
    plain_BLD = plain.apply({'params': without}, tokens).hidden_BLD
    params = {'params': with_tables(tables)}
    positions = np.broadcast_to(np.arange(L), (B, L))
    cached = model.apply(params, Row(tokens, positions), init_caches(model, B, L))
    return model.apply(params, tokens).hidden_BLD, cached.hidden_BLD, plain_BLD

  both, cached, expected = run(tables, without)
  np.testing.assert_allclose(both, cached, rtol=1e-4, atol=1e-5)
  # Where the second layer adds zeros, the first is where models have them.
  first, _, _ = run(tables * np.float32([1, 0])[:, None, None], without)
  np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-5)
  assert np.max(np.abs(both - first)) > 1e-2
