# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens reach which states: causality, padding, packed documents."""

import contextlib
import functools
import itertools

import jax
import numpy as np
import optax
import pytest

from configs import base
from gpt_jax.core import sharding
from gpt_jax.core.nn import attend as attend_lib
from gpt_jax.core.nn import choices, masks
from gpt_jax.core.nn.caches import init_caches
from gpt_jax.core.nn.row import Row
from gpt_jax.core.spec import UsageError
from tests.support import tiny
from tests.support.cases import slow

B, L = tiny.B, tiny.L


def forward(model, params):
  """The model as a function of tokens and what else is given."""

  def run(tokens, *positions, **given):
    row = Row(tokens, *positions, **given)
    return model.apply({'params': params}, row).hidden_BLD

  return jax.jit(run)


# Positions that turn or wave need even sizes.
EVEN = {'d_model': 22, 'head_size': 8}
PATTERNS = 'full, local(window=3)'
POSITIONS = {
  'alibi': {},
  'learned': {},
  'none': {},
  'rope': EVEN,
  'sinusoidal': EVEN,
  't5_bias(num_buckets=6, max_distance=7)': {},
  'transformer_xl': EVEN,
}
# A turn of what is scored, and a score of its own: the others differ less.
FRAGILE = ('rope', 'transformer_xl')


@pytest.mark.parametrize(
  'attention, num_layers, position',
  [
    ('full', 2, 'learned'),
    slow('local(window=3), full, local(2)', 6, 'learned'),
    *(
      (PATTERNS, 2, position) if position in FRAGILE else slow(PATTERNS, 2, position)
      for position in POSITIONS
    ),
  ],
)
def test_a_later_token_changes_no_earlier_state(attention, num_layers, position, monkeypatch):
  """To the bit, also where queries are taken in blocks."""
  monkeypatch.setattr(attend_lib, 'QUERY_BLOCK', 5)
  changes = {'position': position, **POSITIONS[position]}
  model = tiny.model(attention=attention, num_layers=num_layers, **changes)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  run = forward(model, params)
  before = np.asarray(run(tokens))
  for t in range(L):
    changed = tokens.copy()
    changed[:, t] = (changed[:, t] + 1) % tiny.V
    after = np.asarray(run(changed))
    np.testing.assert_array_equal(after[:, :t], before[:, :t])
    # From t on every state of a full layer above sees it.
    assert np.all(np.any(after[:, t:] != before[:, t:], axis=-1))
    # Rows do not see each other.
    one = tokens.copy()
    one[1] = changed[1]
    after = np.asarray(run(one))
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])


def test_local_layers_see_as_far_as_their_windows():
  """Two layers of window 3 see four tokens back, and no further."""
  model = tiny.model(attention='local(window=3)', num_layers=2)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  run = forward(model, params)
  before = np.asarray(run(tokens))
  changed = tokens.copy()
  changed[:, 4] = (changed[:, 4] + 1) % tiny.V
  after = np.asarray(run(changed))
  differs = np.any(after != before, axis=(0, 2))
  np.testing.assert_array_equal(np.flatnonzero(differs), [4, 5, 6, 7, 8])


@pytest.mark.parametrize('attention', ['full, local(window=4)', 'bidirectional'])
def test_padding_on_either_side_is_as_if_it_were_not_there(attention):
  model = tiny.model(num_layers=2, attention=attention)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  mask = np.ones((B, L), bool)
  mask[0, :3] = mask[1, 7:] = False
  places = np.broadcast_to(np.arange(L), (B, L)).copy()
  places[0] = np.maximum(places[0] - 3, 0)
  run = forward(model, params)
  found = run(tokens, places, real_BL=mask)
  assert np.isfinite(found).all()
  for b, real in enumerate((slice(3, None), slice(7), slice(None))):
    alone = run(tokens[b : b + 1, real])[0]
    np.testing.assert_allclose(found[b, real], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  'position',
  [
    position if position in FRAGILE else slow(position)
    for position in POSITIONS
    if position not in ('none', 'sinusoidal')
  ],
)
def test_packed_documents_are_as_if_alone(position):
  """And the second one's loss has no gradient to the first one's words."""
  changes = {'position': position, **POSITIONS[position]}
  model = tiny.model(num_layers=2, attention='full, local(window=4)', output='untied', **changes)
  params = tiny.params(model)
  # The documents share no token.
  tokens = np.concatenate(
    [tiny.tokens(B, 5, vocab_size=11), 11 + tiny.tokens(B, 6, vocab_size=tiny.V - 11, seed=1)],
    axis=1,
  )
  ids = np.broadcast_to(np.repeat([4, 7], (5, 6)), tokens.shape)
  places = np.broadcast_to(np.r_[:5, :6], tokens.shape)

  @jax.jit
  def run(params):
    def loss(params):
      hidden = model.apply({'params': params}, Row(tokens, places, segments_BL=ids)).hidden_BLD
      logits = model.apply({'params': params}, hidden[:, 5:-1], method='logits')
      return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 6:]).sum(), hidden

    gradient, hidden = jax.grad(loss, has_aux=True)(params)
    alone = [
      model.apply({'params': params}, part).hidden_BLD for part in (tokens[:, :5], tokens[:, 5:])
    ]
    return gradient['embed']['embedding'], hidden, alone

  gradient, hidden, alone = run(params)
  np.testing.assert_allclose(hidden, np.concatenate(alone, axis=1), rtol=1e-4, atol=1e-5)
  assert not np.any(gradient[:11])
  # The last token is a target only.
  inputs = np.unique(tokens[:, 5:-1])
  assert np.all(np.any(gradient[inputs], axis=-1))


@pytest.mark.parametrize(
  'fields, mesh',
  [({}, None), slow({'remat': 'full', 'share': 'all'}, None), slow({'loop': 'unroll'}, (2, 2, 2))],
)
def test_a_prefix_is_what_its_mask_shows(fields, mesh):
  """Both ways within it, back only after it: by two patterns, and a mask."""
  prefix = np.array([4, 0, 7, 11])
  row, column = np.arange(L)[:, None], np.arange(L)[None]
  mask = np.stack([(column <= row) | (column < size) for size in prefix])
  tokens, model = tiny.tokens(4, L), tiny.model(num_layers=2, **fields)
  params = tiny.params(model)

  def run(params, attention, **given):
    def loss(params):
      changed = model.clone(attention=attention)
      out = changed.apply({'params': params}, Row(tokens, **given))
      return (out.hidden_BLD**2).sum(), out.hidden_BLD

    if not fields:
      return {}, loss(params)[1]
    return jax.grad(loss, has_aux=True)(params)

  @jax.jit
  def both(params):
    return (run(params, 'full', prefix_B=prefix), run(params, 'bidirectional', visible_BLM=mask))

  on_mesh = contextlib.nullcontext()
  if mesh:
    rules = sharding.parse_rules(base.get_config().mesh.rules)
    on_mesh = sharding.use(tiny.make_mesh(*mesh), rules)
  with on_mesh:
    found, expected = jax.device_get(both(params))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), found, expected)
  causal = np.asarray(forward(model, params)(tokens))
  # Row 1 has no prefix.
  np.testing.assert_allclose(found[1][1], causal[1], rtol=1e-4, atol=1e-4)
  assert not np.allclose(found[1][0], causal[0], rtol=1e-2)


@pytest.mark.parametrize('attention', [slow('full'), 'local(window=3)'])
def test_a_prefix_is_read_into_caches(attention):
  """The states are those of whole rows, and what follows sees its keys."""
  model = tiny.model(attention=attention, loop='unroll')
  apply = jax.jit(functools.partial(model.apply, {'params': tiny.params(model)}))
  prefix, read = np.array([2, 5]), 7
  tokens = tiny.tokens(2, 11)
  whole = np.asarray(apply(Row(tokens, prefix_B=prefix)).hidden_BLD)
  places = np.broadcast_to(np.arange(11), (2, 11))
  first = apply(Row(tokens[:, :read], places[:, :read], prefix_B=prefix), init_caches(model, 2, 11))
  rest = apply(Row(tokens[:, read:], places[:, read:]), first.caches)
  found = np.concatenate([first.hidden_BLD, rest.hidden_BLD], axis=1)
  np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-4)
  causal = np.asarray(apply(tokens).hidden_BLD)
  assert not np.allclose(whole[:, 0], causal[:, 0], rtol=1e-2)


@pytest.mark.parametrize(
  'attention, backend, context',
  [('bidirectional', 'ring', 2), ('bigbird(block=2, window=1, random=1, extra=3)', 'auto', 1)],
)
def test_an_order_is_the_mask_that_it_gives(attention, backend, context):
  """Where kernels do not read it: split rows, blocks and extra tokens."""
  rng, length = np.random.default_rng(0), 14
  numbers = rng.integers(5, size=(2, B, length)).astype(np.int32)
  order = masks.Order(np.maximum(*numbers), numbers[1])  # each sees itself
  model = tiny.model(
    attention=attention, attention_backend=backend, num_layers=1, context_length=length
  )
  run, tokens = forward(model, tiny.params(model)), tiny.tokens(B, length)
  rules = sharding.parse_rules(base.get_config().mesh.rules)
  with sharding.use(tiny.make_mesh(1, 1, 1, context=context), rules):
    found, expected, without = (
      np.asarray(run(tokens, **given))
      for given in ({'order': order}, {'visible_BLM': order.visible()}, {})
    )
  np.testing.assert_array_equal(found, expected)
  assert not np.allclose(found, without, rtol=1e-2)


def test_a_prefix_does_not_look_back_only():
  model = tiny.model(position='transformer_xl', **EVEN)
  run = functools.partial(model.apply, {'params': tiny.params(model)})
  with pytest.raises(UsageError, match='position=transformer_xl: needs'):
    jax.eval_shape(run, Row(tiny.tokens(B, L), prefix_B=np.ones(B)))


ARGUMENTS = {'local': '(window=3)', 't5_bias': '(num_buckets=6, max_distance=7)'}


# Recurrent layers have no mask.
MASKED = [name for name in choices.PATTERNS if name != 'lstm']
PAIRS = [*itertools.product(MASKED, choices.POSITIONS)]
# Positions that do not follow from the documents.
GIVEN = ('learned', 'learned_by_layer', 'sinusoidal')


def is_quick(pattern, position):
  """Every pattern with one position, and every position with one pattern."""
  return position == 'rope' or pattern == 'full'


@pytest.mark.parametrize(
  'pattern, position, follows',
  [
    *((a, b, b not in GIVEN) for a, b in PAIRS if is_quick(a, b)),
    *(slow(a, b, False) for a, b in PAIRS if not is_quick(a, b)),
    *(slow(a, b, True) for a, b in PAIRS if b not in GIVEN and not is_quick(a, b)),
  ],
)
def test_every_pattern_and_position_in_a_packed_row(pattern, position, follows):
  """Three documents of five tokens in a row: blocks of three fit neither."""
  model = tiny.model(
    num_layers=2,
    context_length=17,
    attention=pattern + ARGUMENTS.get(pattern, ''),
    position=position + ARGUMENTS.get(position, ''),
    **EVEN,
  )
  both_ways = pattern in ('bidirectional', 'bigbird')
  if both_ways and position == 'transformer_xl':
    with pytest.raises(UsageError, match='position=transformer_xl'):
      tiny.params(model)
    return
  params, tokens = tiny.params(model), tiny.tokens(3, 5)
  run = forward(model, params)
  ids, places = np.repeat([4, 7, 9], 5)[None], np.tile(np.arange(5), 3)[None]
  if pattern == 'bigbird':  # whose blocks are those of a row
    with pytest.raises(UsageError, match='cannot hold packed documents'):
      run(tokens.reshape(1, 15), places, segments_BL=ids)
    return
  alone = run(tokens)
  packed = run(tokens.reshape(1, 15), places, segments_BL=ids)
  np.testing.assert_allclose(np.reshape(packed, alone.shape), alone, rtol=1e-4, atol=1e-5)
  if follows:
    # Without positions they follow from the documents.
    packed = run(tokens.reshape(1, 15), segments_BL=ids)
    np.testing.assert_allclose(np.reshape(packed, alone.shape), alone, rtol=1e-4, atol=1e-5)
