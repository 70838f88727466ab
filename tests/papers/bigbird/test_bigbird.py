# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BigBird: which blocks are seen, and attention to these alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from gpt_jax.core import sharding, spec
from gpt_jax.core.nn.attend import Request
from gpt_jax.core.nn.attention_dropout import AttentionDropout
from gpt_jax.core.nn.backends import attend_rows
from gpt_jax.core.nn.choices import BACKENDS, PATTERNS
from gpt_jax.core.nn.row import Row, Visibility
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.bigbird import bigbird
from gpt_jax.papers.bigbird.bigbird import random_blocks
from tests.support import learned, tiny
from tests.support.cases import slow

B, L, K, H, G = 2, 41, 7, 6, 2
LAYER = 3
ITC = 'bigbird(block=3, random=2)'
ETC = 'bigbird(block=3, window=1, random=2, extra=7)'
FIRST = "bigbird(block=3, window=5, random=1, draw='first')"


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch):
  """Of at most four blocks each; most rows here have more."""
  monkeypatch.setattr(bigbird, 'CHUNK', 11)


def pattern(text):
  return spec.build('model.attention', text, PATTERNS)


def qkv():
  rng = np.random.default_rng(0)
  q = rng.normal(size=(B, L, H, K))
  k, v = rng.normal(size=(2, B, L, G, K))
  return np.float32(q), np.float32(k), np.float32(v)


def padding():
  mask = np.ones((B, L), bool)
  mask[0, -5:] = mask[1, :4] = mask[1, 20] = False
  return mask


def lists(text):
  """The keys of each head and query, block by block, as section 2 has them."""
  blocks = pattern(text).blocks
  size, extra = blocks.size, blocks.extra
  tokens = [range(i, min(i + size, L)) for i in range(extra, L, size)]
  ends = [range(extra)] if extra else [tokens[0], tokens[-1]]
  middle = tokens if extra else tokens[1:-1]
  drawn = np.asarray(random_blocks(blocks, LAYER, H, len(middle)))
  out = [[list(range(L))] * L for _ in range(H)]
  for h in range(H):
    for i, queries in enumerate(middle):
      seen = [t for end in ends for t in end]
      for j in range(i - blocks.window // 2, i + blocks.window // 2 + 1):
        seen += middle[j] if 0 <= j < len(middle) else []
      for j in drawn[h, i]:
        seen += ends[0] if blocks.first else middle[j]
      for t in queries:
        out[h][t] = seen
  return out


def expected(text, q, k, v, mask, scale, softcap):
  """Softmax over each list, of which a key may be twice."""
  out = np.zeros((B, L, H, K))
  for b, h, t in np.ndindex(B, H, L):
    if mask is not None and not mask[b, t]:
      continue  # zeros
    seen = [j for j in lists_of[text][h][t] if mask is None or mask[b, j]]
    scores = scale * k[b, seen, h // (H // G)] @ q[b, t, h]
    if softcap:
      scores = softcap * np.tanh(scores / softcap)
    probs = np.exp(scores - scores.max())
    out[b, t, h] = probs / probs.sum() @ v[b, seen, h // (H // G)]
  return out


lists_of = {}


@pytest.fixture(autouse=True, scope='module')
def _lists():
  lists_of.update({text: lists(text) for text in (ITC, ETC, FIRST)})


@pytest.mark.parametrize(
  'text, padded, softcap', [(ITC, False, 2.0), (ETC, True, 0.0), (FIRST, True, 2.0)]
)
def test_blocks_and_the_dense_reference_equal_the_lists(text, padded, softcap):
  """And each other's gradients, by queries, keys and values."""
  q, k, v = qkv()
  mask = padding() if padded else None
  wanted = expected(text, *map(np.float64, (q, k, v)), mask, 0.3, softcap)
  weights = np.random.default_rng(1).normal(size=wanted.shape)

  def run(name):
    backend = spec.build('model.attention_backend', name, BACKENDS)

    def loss(q, k, v):
      request = Request(q, k, v, pattern(text), Visibility(mask), 0.3)
      out = attend_rows(request._replace(softcap=softcap, layer=jnp.int32(LAYER)), backend=backend)
      return (out * np.float32(weights)).sum(), out

    return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)

  both = jax.jit(lambda *x: [run(name)(*x) for name in ('blocks', 'reference')])
  (found, out), (reference, dense) = both(q, k, v)
  np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(dense, wanted, rtol=1e-4, atol=1e-5)
  for a, b in zip(found, reference, strict=True):
    assert np.abs(a).max() > 0.1
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_kernel_equals_the_reference():
  """Interpreted: output and gradients, with padding and dropout."""
  rng, length = np.random.default_rng(3), 16 * 8
  q, weights = rng.normal(size=(2, B, length, 4, 7)).astype(np.float32)
  k, v = rng.normal(size=(2, B, length, 2, 7)).astype(np.float32)
  real = np.ones((B, length), bool)
  real[0, 97:] = real[1, 20:60] = False
  numbers_B = np.arange(B, dtype=np.uint32) + 5
  request = Request(
    q,
    k,
    v,
    pattern('bigbird(block=16, window=3, random=1)'),
    Visibility(real),
    0.3,
    dropout=AttentionDropout(0.2, jnp.uint32(3_000_000_019), numbers_B),
    layer=jnp.int32(LAYER),
  )

  def run(name):
    backend = spec.build('model.attention_backend', name, BACKENDS)

    def loss(q, k, v):
      asked = request._replace(q_BLHK=q, k_BLGK=k, v_BLGK=v)
      out = attend_rows(asked, backend=backend)
      return (out * weights).sum(), out

    grad = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))
    return jax.tree.leaves(grad(q, k, v))

  expected = run('reference')
  rules = sharding.parse_rules(base.get_config().mesh.rules)
  with sharding.use(tiny.make_mesh(1, 1, 2), rules):
    found = run('blocks(interpret=True)')
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())


def test_a_short_row_is_seen_as_a_whole():
  q, k, v = (x[:, :27] for x in qkv())
  request = Request(q, k, v, pattern(ITC), Visibility(), 0.3)
  plain = request._replace(pattern=pattern('bidirectional'))
  for name in ('blocks', 'reference'):
    backend = spec.build('model.attention_backend', name, BACKENDS)
    np.testing.assert_array_equal(
      attend_rows(request, backend=backend), attend_rows(plain, backend=BACKENDS['reference']())
    )


def test_scores_are_as_many_as_the_lists():
  """No product has a length by a length; most have a block by eight blocks."""
  q = jax.ShapeDtypeStruct((1, 1024, 2, 8), jnp.float32)

  def run(q):
    request = Request(q, q, q, pattern('bigbird(block=16)'), Visibility(), 1.0)
    return bigbird.gathered(request._replace(layer=jnp.int32(0)))

  jaxpr = jax.make_jaxpr(jax.grad(lambda q: run(q).sum()))(q)
  sizes = [x.aval.size for e in jaxpr.eqns for x in e.outvars]
  # Two heads of 62 blocks of 16 queries with 8 blocks of 16 keys; 32 global
  # queries with all keys are fewer.
  assert max(sizes) == 2 * 62 * 16 * 8 * 16 < 2 * 1024 * 1024 / 7


def test_dropout_of_probabilities():
  """Its mean is what it is without, and no one draw is."""
  q, k, v = qkv()
  request = Request(q, k, v, pattern(ITC), Visibility(), 0.3)
  request = request._replace(layer=jnp.int32(LAYER))

  rows_B = jnp.arange(len(q), dtype=jnp.uint32)

  @jax.jit
  def run(seeds):
    def one(seed):
      dropout = AttentionDropout(0.5, seed, rows_B)
      return bigbird.gathered(request._replace(dropout=dropout))

    return jax.vmap(one)(seeds), bigbird.gathered(request)

  draws, plain = run(jnp.arange(200, dtype=jnp.uint32))
  assert np.abs(draws[0] - plain).max() > 0.1
  assert np.abs(draws.mean(axis=0) - plain).mean() < 0.05


MODEL = {
  **{'d_model': 24, 'head_size': 4, 'num_heads': 8, 'num_kv_heads': 4},
  **{'num_layers': 2, 'd_ff': 40, 'vocab_size': 48, 'context_length': 29},
}


def gradients(extra, **fields):
  """Of each parameter, and the states of tokens that are no padding."""
  attention = f'bigbird(block=2, random=2, extra={extra})'
  model = tiny.model(**MODEL, attention=attention, **fields)
  tokens = tiny.tokens(8, 29, vocab_size=48)
  mask = np.ones((8, 29), bool)
  mask[1, 20:] = False

  @jax.jit
  def run(params):
    def loss(params):
      out = model.apply({'params': params}, Row(tokens, real_BL=mask)).hidden_BLD
      return (out**2 * mask[:, :, None]).mean(), out * mask[:, :, None]

    return jax.grad(loss, has_aux=True)(params)

  plain = tiny.model(**MODEL, attention=attention)
  return jax.device_get(run(tiny.params(plain)))


@pytest.mark.slow
@pytest.mark.parametrize(
  'extra, fields', [(0, {'loop': 'unroll', 'remat': 'full'}), slow(5, {'remat': 'full'})]
)
def test_a_model_is_the_same_by_any_loop_and_mesh(extra, fields):
  """Of each layer the same random blocks, on eight devices as on one."""
  expected = gradients(extra)
  rules = sharding.parse_rules(base.get_config().mesh.rules)
  with sharding.use(tiny.make_mesh(2, 2, 2), rules):
    found = gradients(extra, **fields)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, expected)


def test_what_is_1500_tokens_back_is_found():
  """Through global or random blocks after a few layers, never the window."""
  length, question, answer = 2048, 1800, 300
  blocks = pattern('bigbird').blocks
  draw = jax.jit(lambda layer: random_blocks(blocks, layer, 2, 30))
  drawn = np.array([draw(layer) for layer in range(12)])

  def found(layers, *, random=False, ends=False):
    """Whether the question's block, of 32, has seen the answer's."""
    reach = np.eye(32, dtype=bool)[question // 64]
    for layer in reversed(range(layers)):
      sees = np.abs(np.arange(32)[:, None] - np.arange(32)) <= 1
      sees[[0, -1]] = sees[:, [0, -1]] = ends
      for i, seen in np.ndindex(30, 6):
        head, j = divmod(seen, 3)
        sees[i + 1, drawn[layer, head, i, j] + 1] |= random
      reach = (reach[:, None] & sees).any(axis=0)
    return reach[answer // 64]

  # In twelve layers the window sees twelve blocks back; the answer is 24.
  assert not found(12)
  assert found(12, random=True) and found(6, random=True)
  assert found(2, ends=True)

  # And so it is computed: what is listed has a gradient, and nothing else.
  @jax.jit
  def weights(v):
    def at_question(v):
      request = Request(v, v, v, pattern('bigbird'), Visibility(), 0.5)
      request = request._replace(q_BLHK=q, k_BLGK=k, layer=jnp.int32(0))
      return attend_rows(request, backend=BACKENDS['auto']())[0, question].sum()

    return jax.grad(at_question)(v)

  q, k, v = np.float32(np.random.default_rng(0).normal(size=(3, 1, length, 2, 2)))
  seen = np.abs(weights(v)).max(axis=(0, 2, 3)).reshape(32, 64) > 0
  i = question // 64
  expected = {0, 31, i - 1, i, i + 1, *(drawn[0, :, i - 1].ravel() + 1)}
  assert set(np.flatnonzero(seen.any(axis=1))) == expected
  assert (seen.all(axis=1) == seen.any(axis=1)).all()


@pytest.mark.parametrize('layers', [1, 2])
def test_extra_tokens_carry_what_the_window_does_not(layers):
  """Tokens far from each other meet through them, after two layers."""
  model = tiny.model(
    **{**MODEL, 'num_layers': layers}, attention='bigbird(block=2, window=1, random=0, extra=5)'
  )
  params, tokens = tiny.params(model), tiny.tokens(1, 29, vocab_size=48)

  @jax.jit
  def state(positions):
    changed = {**params, 'positions': {'embedding': positions}}
    out = model.apply({'params': changed}, tokens).hidden_BLD
    assert out.shape == (1, 29, 24)
    return out[0]

  before = params['positions']['embedding']
  moved = before.copy()
  moved[3] = -moved[3]
  change = np.abs(state(moved) - state(before)).max(axis=1)
  others = np.delete(change, [2, 3])  # but for its own block
  assert change[2] > 0.1 and change[3] > 0.1
  assert (others > 1e-4).all() if layers == 2 else (others == 0).all()


def test_refused():
  model = tiny.model(**MODEL, attention='bigbird(block=2, random=0, extra=3)')

  def run(model, **given):
    params = tiny.params(model)
    apply = functools.partial(model.apply, {'params': params})
    jax.eval_shape(apply, Row(tiny.tokens(2, 29), **given))

  with pytest.raises(UsageError, match='bigbird: its blocks span a whole row'):
    run(model, segments_BL=np.zeros((2, 29), np.int32))
  with pytest.raises(UsageError, match=r'position=.*scores by distance'):
    run(model.clone(position='alibi'))
  with pytest.raises(UsageError, match=r'attention=.*different numbers of extra'):
    run(model.clone(attention='bigbird, bigbird(extra=3)'))


# In the eighth of thirteen blocks of two, of which the first and the last are
# global.
ASKED, DRAWN = 15, 1


def far_places():
  """Of the blocks that the query's draws, further than two windows away."""
  blocks = pattern(f'bigbird(block=2, random={DRAWN})').blocks
  drawn = {int(x) for x in np.ravel(random_blocks(blocks, 0, 2, 11)[:, 6])}
  far = [1 + x for x in drawn if abs(x - 6) > 2]
  return [2 * block + i for block in far for i in range(2)]


def far_away(places, key):
  """Which of eight tokens stands in one of these places?"""
  keys = jax.random.split(key, 3)
  tokens = 10 + jax.random.randint(keys[0], (26,), 0, 3)
  place = jax.random.choice(keys[1], jnp.asarray(places))
  answer = 1 + jax.random.randint(keys[2], (), 0, 8)
  tokens = tokens.at[place].set(answer).at[ASKED].set(9)
  return tokens, jnp.int32(ASKED), answer


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
  'random, num_layers, found',
  [(DRAWN, 1, True), (0, 2, True), (0, 1, False)],
  ids=['random blocks', 'global blocks', 'window'],
)
def test_what_is_far_away_is_found(random, num_layers, found):
  """By random blocks at once, by global ones in two layers, or not at all."""
  share = learned.accuracy(
    functools.partial(far_away, far_places()),
    steps=400,
    vocab_size=13,
    context_length=26,
    num_layers=num_layers,
    attention=f'bigbird(block=2, random={random})',
    input='tokens(norm=True)',
  )
  assert share > 0.95 if found else share < 0.25


# BigBird's blocks: which there are, how many keys they are, how they are


def mixed(x):
  """MurmurHash3's last step, in whole numbers of Python."""
  x = (x + 0x9E3779B9) % 2**32
  x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
  x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
  return x ^ (x >> 16)


def test_random_blocks_by_hand():
  """The r highest of what is left beside the window, and the lower of two."""
  seed, layer, heads, number = 5, 7, 3, 11
  blocks = pattern(f'bigbird(block=4, random=2, seed={seed})').blocks
  draw = jax.jit(lambda layer: random_blocks(blocks, layer, heads, number))
  found = np.asarray(draw(layer))
  for h in range(heads):
    for i in range(number):
      key = mixed(mixed(mixed(layer ^ mixed(seed)) ^ h) ^ i)
      rank = {j: mixed(key ^ j) >> 1 for j in range(number) if abs(i - j) > 1}
      expected = sorted(rank, key=lambda j, rank=rank: (-rank[j], j))[:2]
      assert found[h, i].tolist() == expected


def test_random_blocks_follow_from_seed_and_layer():
  """The same in a loop over layers, and spread evenly over the row."""
  blocks = pattern('bigbird(random=3)').blocks
  draw = jax.jit(lambda i: random_blocks(blocks, i, 12, 62))
  alone = [draw(i) for i in range(12)]
  looped = jax.jit(lambda: jax.lax.map(draw, jnp.arange(12)))()
  np.testing.assert_array_equal(looped, alone)
  table = np.asarray(looped)
  assert len({x.tobytes() for layer in table for x in layer}) == 12 * 12
  query = np.arange(62)[:, None]
  assert (np.abs(table - query) > 1).all()
  assert (np.diff(np.sort(table, -1)) > 0).all()  # none twice
  counts = np.bincount(table.ravel(), minlength=62)
  # 12 * 12 * 62 * 3 draws: 432 of each block, plus or minus 21.
  assert abs(counts - 432).max() < 5 * 21
  other = jax.jit(lambda: random_blocks(blocks._replace(seed=1), 0, 12, 62))()
  assert (np.asarray(other) != table[0]).mean() > 0.9


def test_512_of_4096_keys():
  """Three blocks of the window, two global and three random ones: 1/8."""
  seen = pattern('bigbird').num_visible(4096)
  # Of the blocks beside the global ones the window is one block shorter.
  np.testing.assert_array_equal(
    seen.reshape(64, 64), np.repeat([4096, 448, *[512] * 60, 448, 4096], 64).reshape(64, 64)
  )


@pytest.mark.parametrize(
  'text, length, last_whole',
  [
    ('bigbird(block=3, random=2)', 41, 27),
    ('bigbird(block=3, window=5, random=1)', 29, 27),
    ("bigbird(block=3, random=2, draw='first')", 29, 27),
    ('bigbird(block=3, window=1, random=2, extra=5)', 41, 20),
  ],
)
def test_counts_are_the_lists_lengths(text, length, last_whole):
  blocks = pattern(text).blocks
  run = jax.jit(lambda: bigbird.listed(blocks, 3, 2, length))
  lists = np.asarray(run())
  assert lists.max() == (3 if 'first' in text else 1)
  expected = np.minimum(lists, 1).sum(axis=-1)
  for head in expected:
    np.testing.assert_array_equal(pattern(text).num_visible(length), head)
  # Global tokens see all and are seen by all; the others not.
  np.testing.assert_array_equal((lists[0] > 0).all(axis=1), (lists[0] > 0).all(axis=0))
  assert not (lists[0, length // 2] > 0).all()
  # Up to window + global + 2 * random blocks all see all.
  whole = pattern(text).num_visible(last_whole)
  np.testing.assert_array_equal(whole, last_whole)
  assert pattern(text).num_visible(last_whole + 1).min() < last_whole


@pytest.mark.parametrize(
  'arguments, why',
  [
    ('window=4', 'window=4 is even.*take 5'),
    ("draw='last'", "draw='last' is unknown; one of uniform, first"),
    ("draw='first', extra=7", "draw='first' with extra=7"),
    ('block=0', 'block=0 must be at least 1'),
  ],
)
def test_arguments(arguments, why):
  with pytest.raises(UsageError, match=f'model.attention.*{why}'):
    pattern(f'bigbird({arguments})')
