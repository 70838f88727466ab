# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Meshes, rules, and where parameters and batches really lie."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import Mesh, PartitionSpec

from configs import base
from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import parts as parts_lib
from tests.support import quick, tiny


def with_stage(sizes, stage=1):
  return (sizes[0], stage, *sizes[1:])


def mesh_of(*sizes):
  sizes = with_stage(sizes)
  return sharding.make_mesh(dict(zip(sharding.AXES, sizes, strict=True)))


@pytest.mark.parametrize(
  'sizes, shape',
  [
    ((1, -1, 1, 1, 1), (1, 8, 1, 1, 1)),
    ((-1, 2, 1, 1, 2), (2, 2, 1, 1, 2)),
    ((2, 2, 1, 1, -1), (2, 2, 1, 1, 2)),
    ((1, 2, -1, 1, 1), (1, 2, 4, 1, 1)),
    ((1, 2, 1, -1, 2), (1, 2, 1, 2, 2)),
    ((4, -1, 2, 1, 1), (4, 1, 2, 1, 1)),
    ((8, 1, 1, 1, 1), (8, 1, 1, 1, 1)),
  ],
)
def test_make_mesh(sizes, shape):
  mesh = mesh_of(*sizes)
  assert mesh.axis_names == ('data', 'stage', 'fsdp', 'expert', 'context', 'tensor')
  assert mesh.devices.shape == with_stage(shape)
  assert {*mesh.devices.flat} == {*jax.devices()}


@pytest.mark.parametrize(
  'sizes, count, width, expected',
  [
    ((1, -1, 1, 1, 1), 512, 768, [2, 256, 1, 1, 1]),
    ((1, -1, 1, 1, 1), 64, 768, [1, 64, 1, 1, 1]),
    ((2, -1, 1, 1, 4), 512, 5140, [32, 4, 1, 1, 4]),
    ((-1, 2, 1, 2, 1), 8, 3, [2, 2, 1, 2, 1]),
  ],
)
def test_fsdp_takes_what_divides_the_width(sizes, count, width, expected):
  found = sharding.fill_sizes(with_stage(sizes), count, width)
  assert found == [*with_stage(expected)]


@pytest.mark.parametrize(
  'sizes, count, each, width, expected',
  [
    # Seven hosts of eight devices: six split the width over all of theirs.
    ((1, -1, 1, 1, 1), 56, 8, 768, (48, 48)),
    ((1, -1, 1, 1, 1), 48, 8, 768, None),
    ((2, -1, 1, 1, 2), 28, 4, 6, (24, 6)),
    ((1, -1, 1, 1, 1), 3, 1, 7, None),
    # Nothing is open.
    ((-1, 8, 1, 1, 1), 56, 8, 768, None),
  ],
)
def test_fewer_devices_that_split_the_model_more(sizes, count, each, width, expected):
  mesh = dict(zip(sharding.AXES, with_stage(sizes), strict=True))
  found = sharding.fewer_devices(mesh, count, width=width, each=each)
  assert found == expected


@pytest.mark.parametrize(
  'sizes, why',
  [
    ((-1, -1, 1, 1, 1), 'sizes are positive, and one may be -1'),
    ((1, -1, -1, 1, 1), 'sizes are positive, and one may be -1'),
    ((0, -1, 1, 1, 1), 'sizes are positive, and one may be -1'),
    ((-2, 1, 1, 1, 4), 'sizes are positive, and one may be -1'),
    ((1, 1, 1, 1, 1), 'does not match the 8 devices here'),
    ((2, 2, 1, 1, 3), 'does not match the 8 devices here'),
    ((2, 2, 2, 2, 1), 'does not match the 8 devices here'),
    ((16, 1, 1, 1, 1), 'does not match the 8 devices here'),
    ((3, -1, 1, 1, 1), 'does not match the 8 devices here'),
    ((16, -1, 1, 1, 1), 'does not match the 8 devices here'),
  ],
)
def test_bad_mesh(sizes, why):
  with pytest.raises(UsageError) as error:
    mesh_of(*sizes)
  data, fsdp, expert, context, tensor = sizes
  assert str(error.value).startswith(
    f'mesh.data={data}, mesh.stage=1, mesh.fsdp={fsdp}, mesh.expert={expert}, '
    f'mesh.context={context}, mesh.tensor={tensor}: {why}'
  )


@pytest.mark.parametrize('sizes, nearest', [((3, -1, 1, 1, 1), 6), ((16, -1, 1, 1, 1), 16)])
def test_an_open_mesh_names_the_nearest_number_of_devices(sizes, nearest):
  fixed = sizes[0]
  with pytest.raises(UsageError) as error:
    mesh_of(*sizes)
  assert str(error.value).endswith(
    f'; those that are not -1 multiply to {fixed}: start on {nearest}, or change the sizes'
  )


def test_parse_rules():
  rules = {'batch': 'data, fsdp', 'length': '', 'mlp': ' tensor '}
  assert sharding.parse_rules(rules) == (
    ('batch', ('data', 'fsdp')),
    ('length', ()),
    ('mlp', ('tensor',)),
  )


def test_unknown_mesh_axis():
  with pytest.raises(UsageError) as error:
    sharding.parse_rules({'batch': 'data', 'embed': 'data, model'})
  assert str(error.value) == (
    "mesh.rules.embed='data, model': unknown mesh axis 'model'; one of data, "
    'stage, fsdp, expert, context, tensor'
  )


def boxed(shape, names):
  return nn.LogicallyPartitioned(jax.ShapeDtypeStruct(shape, jnp.float32), names)


def test_check_divisible():
  mesh = mesh_of(2, 2, 1, 1, 2)
  rules = sharding.parse_rules({'embed': 'data, fsdp', 'vocab': 'tensor', 'norm': ''})
  tree = {
    'norm': {'scale': boxed((7,), ('norm',))},
    'a': {'kernel': boxed((12, 6), ('embed', 'vocab'))},
    'unruled': boxed((5,), ('length',)),
  }
  sharding.check_divisible(tree, mesh, rules)
  tree['b'] = {'kernel': boxed((6, 6), ('embed', 'vocab'))}
  with pytest.raises(UsageError) as error:
    sharding.check_divisible(tree, mesh, rules)
  assert str(error.value) == (
    "mesh.rules.embed='data, fsdp': 6 of parameter b/kernel does not divide "
    'over 4 devices; change the mesh or the width'
  )


def test_a_vocabulary_or_few_key_value_heads_may_stay_whole():
  mesh = mesh_of(2, 2, 1, 1, 2)
  rules = sharding.parse_rules(
    {'embed': 'fsdp', **dict.fromkeys(('vocab', 'kv_heads', 'heads'), 'tensor')}
  )
  tree = {
    'table': boxed((7, 6), ('vocab', 'embed')),
    'even': boxed((8, 6), ('vocab', 'embed')),
    'key': boxed((6, 3), ('embed', 'kv_heads')),
  }
  sharding.check_divisible(tree, mesh, rules)
  found = sharding.param_shardings(tree, mesh, rules)
  assert {name: found[name].spec for name in tree} == {
    'table': PartitionSpec(None, ('fsdp',)),
    'even': PartitionSpec(('tensor',), ('fsdp',)),
    'key': PartitionSpec(('fsdp',), None),
  }
  tree['query'] = boxed((6, 3), ('embed', 'heads'))
  with pytest.raises(UsageError, match='3 of parameter query does not divide'):
    sharding.check_divisible(tree, mesh, rules)


@pytest.mark.parametrize(
  'change, message',
  [
    (
      {'model.d_model': 20, 'mesh.fsdp': 8},
      "mesh.rules.embed='fsdp, context': 20 of parameter decoder/periods/"
      'block_0/attention/key/kernel does not divide over 8 devices; change the '
      'mesh or the width',
    ),
    (
      {'mesh.context': 0},
      'mesh.data=1, mesh.stage=1, mesh.fsdp=-1, mesh.expert=1, '
      'mesh.context=0, mesh.tensor=1: sizes are positive, and one may be -1',
    ),
    (
      {'mesh.data': 3},
      'mesh.data=3, mesh.stage=1, mesh.fsdp=-1, mesh.expert=1, '
      'mesh.context=1, mesh.tensor=1: does not '
      'match the 8 devices here; those that are not -1 multiply to 3: start on '
      '6, or change the sizes',
    ),
  ],
)
def test_build_says_what_does_not_fit(change, message):
  config = config_lib.resolve(tiny.config(**{**tiny.MESHABLE, **change}))
  with pytest.raises(UsageError) as error:
    parts_lib.build(config)
  assert str(error.value) == message


@pytest.mark.parametrize(
  'rule, message',
  [
    ('experts', "unknown mesh axis 'experts'; one of data, stage, fsdp, exp"),
    ('data, fsdp, data', "names 'data' twice"),
  ],
)
def test_a_rule_names_mesh_axes_once(rule, message):
  with pytest.raises(UsageError) as error:
    config_lib.resolve(tiny.config(**{'mesh.rules.mlp': rule}))
  assert str(error.value).startswith(f'mesh.rules.mlp={rule!r}: {message}')


def test_every_logical_axis_has_a_rule():
  """An axis without one would silently be copied to every device."""
  rules = base.get_config().mesh.rules
  names = set()
  # Models that together have every kind of parameter.
  for model in (
    tiny.model(input='tokens(token_types=2)', output='untied(bias=True)'),
    tiny.model(num_encoder_layers=2, position='t5_bias', ffn='geglu'),
    tiny.model(ffn='switch(num_experts=2)'),
    tiny.model(d_model=22, position='transformer_xl', norm='rmsnorm'),
    tiny.model(input='adaptive(cutoffs=(7,), d_embed=5, div_val=2)', output='adaptive(own=(0,))'),
  ):
    tokens = np.zeros((1, 1), np.int32)
    tree = jax.eval_shape(model.init, jax.random.key(0), tokens)
    for leaf in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)):
      assert len(leaf.names) == leaf.value.ndim
      names |= {*leaf.names}
  assert names | {'batch', 'group', 'length', 'stream'} == {*rules}


# Shapes of one device's part, for axes (data, fsdp, tensor).
SHARDS = {
  (1, 1, 1): {
    'embed/embedding': (48, 24),
    'query/kernel': (3, 24, 16),
    'key/kernel': (3, 24, 8),
    'out/kernel': (3, 16, 24),
    'in/kernel': (3, 24, 40),
    'in/bias': (3, 40),
    'ffn_norm/scale': (3, 24),
  },
  (2, 2, 2): {
    'embed/embedding': (24, 12),
    'query/kernel': (3, 12, 8),
    'key/kernel': (3, 12, 4),
    'out/kernel': (3, 8, 12),
    'in/kernel': (3, 12, 20),
    'in/bias': (3, 20),
    'ffn_norm/scale': (3, 24),
  },
  (8, 1, 1): {
    'embed/embedding': (48, 24),
    'query/kernel': (3, 24, 16),
    'key/kernel': (3, 24, 8),
    'in/bias': (3, 40),
  },
  (1, 4, 2): {
    'embed/embedding': (24, 6),
    'query/kernel': (3, 6, 8),
    'key/kernel': (3, 6, 4),
    'out/kernel': (3, 8, 6),
    'in/kernel': (3, 6, 20),
    'ffn_norm/scale': (3, 24),
  },
}


@pytest.mark.parametrize('sizes', SHARDS)
def test_each_device_holds_its_part(sizes):
  run = tiny.build(tiny.config(**tiny.MESHABLE), sizes)
  shapes = parts_lib.abstract_state(run)
  state = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), shapes)
  moments = state.opt_state[0]
  found = {}
  for tree in (state.params, moments.mu, moments.nu):
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
      name = '/'.join(key.key for key in path[-2:])
      parts = {s.data.shape for s in leaf.addressable_shards}
      assert len(leaf.addressable_shards) == np.prod(sizes)
      # Parameters and both moments are split alike.
      assert found.setdefault(path, parts) == parts
      if name in SHARDS[sizes] and 'attention_norm' not in str(path):
        wanted = SHARDS[sizes][name]
        if name == 'out/kernel' and 'ffn' in str(path):
          continue
        assert parts == {wanted}, path
  assert {s.data.shape for s in state.step.addressable_shards} == {()}
  assert moments.count.sharding.is_fully_replicated


@pytest.mark.parametrize('processes', [1, 2])
def test_batches_are_split_over_their_rows(monkeypatch, processes):
  monkeypatch.setattr(jax, 'process_count', lambda: processes)
  run = tiny.build(tiny.config(**tiny.MESHABLE), (2, 2, 2))
  assert run.num_shards == 4
  assert run.host_rows(16) == slice(0, 16)
  batch = tiny.batch(16, 7, 48)
  placed = run.put(batch, 16)
  for name, x in placed.items():
    assert x.sharding.spec == PartitionSpec(('data', 'stage', 'fsdp', 'expert'))
    np.testing.assert_array_equal(x, batch[name])
    assert {s.data.shape for s in x.addressable_shards} == {(4, 7)}


class Host:
  """Stands for the sharding of a batch as one of several hosts sees it."""

  def __init__(self, *spans):
    """`spans`: start and stop of each device's rows."""
    self._spans = spans

  def addressable_devices_indices_map(self, shape):
    """As `jax.sharding.NamedSharding` does, devices being numbers."""
    assert shape == (12,)
    return {i: (slice(*span),) for i, span in enumerate(self._spans)}


@pytest.mark.parametrize(
  'spans, rows',
  [
    ([(0, 3), (3, 6)], slice(0, 6)),
    ([(9, 12), (6, 9)], slice(6, 12)),
    # Two devices that hold the same rows, as the tensor axis makes them.
    ([(6, 9), (6, 9), (9, 12)], slice(6, 12)),
    ([(None, None)], slice(0, 12)),
    ([(9, None)], slice(9, 12)),
    # Those of another host are between them.
    ([(6, 9), (0, 3)], slice(0, 9)),
  ],
)
def test_host_rows(spans, rows):
  assert sharding.host_rows(Host(*spans), 12) == rows


def test_logical_constraints_act_inside_use():
  mesh = mesh_of(2, 2, 1, 1, 2)
  rules = sharding.parse_rules({'batch': 'data, fsdp', 'mlp': 'tensor'})

  @jax.jit
  def constrain(x):
    return nn.with_logical_constraint(x, ('batch', 'mlp'))

  with sharding.use(mesh, rules):
    y = constrain(jnp.zeros((8, 6)))
  assert {s.data.shape for s in y.addressable_shards} == {(2, 3)}


def test_one_device_mesh_by_hand():
  """What `tiny.build` relies on: shardings follow the mesh they are given."""
  run = tiny.build(tiny.config(**tiny.MESHABLE), (1, 1, 1))
  assert isinstance(run.mesh, Mesh)
  assert {d for s in jax.tree.leaves(run.shardings) for d in s.device_set} == {jax.devices()[0]}


# Loops start programs without waiting for them, and not too many.

# More programs than XLA takes, on more devices than most machines have cores.
# A process without `wait_for_earlier` never ends here.
LOOP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from gpt_jax.core import sharding

@jax.jit
def program(x):
  for _ in range(20):
    x = jnp.tanh(x + jnp.sum(x))
  return jnp.sum(x)

mesh = Mesh(np.array(jax.devices()), ('data',))
split = NamedSharding(mesh, PartitionSpec('data'))
outputs = []
for i in range(150):
  x = jax.device_put(np.full((8 * 64, 64), i, np.float32), split)
  outputs.append(program(x))
  sharding.wait_for_earlier(outputs)
print(sum(jax.device_get(outputs)))
"""


@pytest.mark.slow
def test_many_programs_on_many_devices_end(monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', quick.xla_flags(8))
  out = subprocess.run(
    [sys.executable, '-c', LOOP],
    capture_output=True,
    text=True,
    check=False,
    timeout=300,  # not of the speed: a deadlock
  )
  assert out.returncode == 0, out.stderr
  # Zeros stay zeros, and tanh of a large sum is 1.
  assert float(out.stdout) == 149 * 8 * 64 * 64


@pytest.mark.parametrize('started', [1, 7, 8, 9, 23])
def test_what_is_waited_for(monkeypatch, started):
  waited = []
  monkeypatch.setattr(jax, 'block_until_ready', waited.append)
  outputs = []
  for i in range(started):
    outputs.append(i)
    sharding.wait_for_earlier(outputs)
  assert waited == outputs[: -sharding.MOST_STARTED]
