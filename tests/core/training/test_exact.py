# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""With `batch.exact_over` a run has the same bits on any mesh."""

import functools
import hashlib
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.nn import layers
from gpt_jax.core.objectives.loss import Largest, Loss, Mean
from gpt_jax.core.optim import rounding
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import device_check, exact, metrics
from gpt_jax.core.training.exact import Exact
from gpt_jax.core.training.step import train_step
from tests.core.runtime.test_hosts import ends, reach, start_python
from tests.support import tiny, whole_runs

OVER = 8
D, F = 16, 3
SPECS = {
  'kernel': PartitionSpec('fsdp'),
  'out': PartitionSpec(None, ('fsdp', 'context')),
  'bias': PartitionSpec(None),
}
MESHES = [(1, 1), (2, 1), (8, 1), (1, 2), (1, 4), (1, 8), (2, 4)]
RULES = sharding.parse_rules(tiny.config().mesh.rules)


def sums_of(data, fsdp):
  return Exact(OVER, data, fsdp, SPECS, SPECS)


def placed(sizes, specs):
  mesh = tiny.make_mesh(*sizes, 1)
  return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def on_mesh(function, sizes, *args, **options):
  mesh = tiny.make_mesh(*sizes, 1)
  with sharding.use(mesh, RULES):
    return jax.device_get(jax.jit(function, compiler_options=options)(*args))


def bits(tree):
  return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def normal(seed):
  """Numbers of very different sizes: the order of their sum matters."""
  rng = np.random.default_rng(seed)
  shapes = {'kernel': (D, F), 'out': (F, D), 'bias': (F,)}
  return {
    name: np.float32(rng.normal(size=shape) * 10.0 ** rng.integers(-4, 4, shape))
    for name, shape in shapes.items()
  }


def tree(numbers):
  """Neighbours first, in float32."""
  numbers = list(numbers)
  while len(numbers) > 1:
    numbers = [np.float32(a + b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
  return numbers[0]


# The sums themselves.


@pytest.mark.parametrize('sizes', MESHES)
@pytest.mark.parametrize('rows', [OVER, 7])
def test_sums_are_those_of_the_tree(sizes, rows):
  given = [normal(seed) for seed in range(rows)]
  batch = jax.tree.map(lambda *x: np.stack(x), *given)

  def function(params, part):
    assert {n: x.shape for n, x in params.items()} == {n: x.shape for n, x in given[0].items()}
    own = jax.tree.map(lambda x: x[0], part)
    (number,) = layers.rows_here().numbers_B
    return own, (part['bias'][0, 0], Largest(part['bias'][0, 1]), number)

  def run(params, batch):
    return sums_of(*sizes).gradients(function, params, batch)

  grads, (total, largest, numbers) = on_mesh(run, sizes, normal(99), batch)
  nothing = jax.tree.map(np.zeros_like, given[0])
  filled = given + [nothing] * (OVER - rows)
  wanted = jax.tree.map(lambda *x: tree(x), *filled)
  assert bits(grads) == bits(wanted)
  assert bits(total) == bits(wanted['bias'][0])
  assert largest.value == max(x['bias'][1] for x in filled)
  assert numbers == sum(range(OVER))
  in_turn = jax.tree.map(lambda *x: sum(x[1:], x[0]), *filled)
  assert bits(in_turn) != bits(wanted)


def test_the_norm_of_split_arrays():
  """Compiled as users do: XLA's own sum of a block depends on the whole array's shape."""
  rng = np.random.default_rng(3)
  specs = {f'out_{i}': SPECS['out'] for i in range(6)} | {'kernel': SPECS['kernel']}
  given = {name: np.float32(rng.normal(size=(31, 32))) for name in specs}
  given['kernel'] = given['kernel'].T
  found = {}
  for sizes in MESHES:

    def norms(tree, sizes=sizes):
      squares = Exact(OVER, *sizes, specs, specs).squares(tree)
      return squares, exact.norm(squares)

    split = jax.device_put(given, placed(sizes, specs))
    found[sizes] = on_mesh(norms, sizes, split, xla_backend_optimization_level=3)
  squares, norm = found[1, 1]
  exactly = {name: np.sum(np.float64(x) ** 2) for name, x in given.items()}
  for name, value in exactly.items():
    np.testing.assert_allclose(squares[name], value, rtol=1e-6)
  np.testing.assert_allclose(norm, np.sqrt(sum(exactly.values())), rtol=1e-6)
  assert len({tuple(bits(x)) for x in found.values()}) == 1


# Steps: dropout, clipping, a skipped update, an average.


def loss(params, batch, key):
  """Of a network whose hidden layer is dropped at random."""
  hidden = jnp.tanh(batch['x'] @ params['kernel'] + params['bias'][None])
  hidden *= layers.draw_by_row(jax.random.uniform, key, hidden.shape)
  errors = jnp.sum(jnp.square(hidden @ params['out'] - batch['x']), axis=1)
  counted = jnp.sum(batch['w'])
  mean = Mean.of(errors, batch['w'])
  return Loss(mean.sum, counted, metrics={'error': mean})


STEPS, SKIPPED = 3, 1


def stepped(places, exactly=True):
  """States and metrics of the steps, each on its own mesh."""

  @functools.cache
  def program(sizes):
    step = functools.partial(
      train_step,
      objective=tiny.LossOnly(loss),
      optimizer=optimizer,
      schedule=lambda step: 1e-2,
      seed=0,
      clip_norm=0.3,
      num_micro=1,
      average=rounding.ema(decay=0.9),
      exact=sums_of(*sizes) if exactly else None,
    )
    return jax.jit(step)

  optimizer = optax.inject_hyperparams(optax.adam)(1e-2)
  params = jax.tree.map(lambda x: np.float32(0.1 * np.sin(x)), normal(1))
  state, found = TrainState(np.int32(0), params, optimizer.init(params), params), []
  for number, sizes in enumerate(places):
    rng = np.random.default_rng(number)
    weights = rng.random(21) + (np.nan if number == SKIPPED else 0)
    batch = jax.tree.map(np.float32, {'x': rng.normal(size=(21, D)), 'w': weights})
    with sharding.use(tiny.make_mesh(*sizes, 1), RULES):
      given = state._replace(params=jax.device_put(state.params, placed(sizes, SPECS)))
      state, out = jax.device_get(program(sizes)(given, batch))
    found.append((state, out))
  return found


def test_steps_have_the_same_bits():
  """Also of a run that moves from mesh to mesh."""
  found = [stepped([sizes] * STEPS) for sizes in ((1, 1), (2, 4))]
  found.append(stepped([(8, 1), (1, 1), (2, 4)]))
  assert bits(found[0]) == bits(found[1]) == bits(found[2])
  before, (skipped, _), *_, (last, out) = found[0]
  assert bits(before[0].params) == bits(skipped.params) != bits(last.params)
  assert out['grad_norm'] > 0.3
  # As without, but for rounding.
  tiny.assert_close(found[0][-1], stepped([(1, 1)] * STEPS, exactly=False)[-1])


# Whole runs, compiled as users do: dropout, rows that grow and do not fill the
# virtual shards, a skipped update, an average.

LAST = 100
RUN = """
import os, sys
import numpy as np

os.environ['XLA_FLAGS'] = os.environ['XLA_FLAGS'].split()[0]  # the devices alone
from gpt_jax.__main__ import main
from gpt_jax.core.rows import row_order

batches = row_order.batches

def poisoned(store, *, start, **more):
  for step, batch in enumerate(batches(store, start=start, **more), start):
    if step == 30:
      batch['weights'] = batch['weights'] * np.float32(np.nan)
    yield batch

row_order.batches = poisoned
sys.exit(main(sys.argv[1:]))
"""
FLAGS = [
  *tiny.SMOKE,
  *tiny.flags(
    model=dict(
      num_layers=2,
      d_model=32,
      context_length=31,
      dropout='rates(embedding=0.1, residual=0.1, attention=0.1)',
    ),
    batch=dict(size=f'ramp(0:13, {LAST // 2}_steps:24)', exact_over=OVER),
    optim=dict(ema='ema(decay=0.9)', on_spike='skip', clip_norm=0.5),
    schedule=dict(num_steps=LAST, name='cosine(peak=2e-3, warmup=10)'),
    checkpoint=dict(every_steps=7),
    eval=dict(every_steps=40, rows=8),
    log=dict(every_steps=1, sample_prompt=''),
  ),
]
# Devices, processes, and other flags.
SETTINGS = {
  'one device': (1, 1, {}),
  'fsdp=8': (8, 1, dict(mesh=dict(fsdp=8))),
  'data=2': (2, 1, dict(mesh=dict(data=2, fsdp=1))),
  'data=4': (4, 1, dict(mesh=dict(data=4, fsdp=1))),
  'data=8': (8, 1, dict(mesh=dict(data=8, fsdp=1))),
  'fsdp=2': (2, 1, dict(mesh=dict(fsdp=2))),
  'fsdp=4': (4, 1, dict(mesh=dict(fsdp=4))),
  'data=2 fsdp=4': (8, 1, dict(mesh=dict(data=2, fsdp=4))),
  'data=4 fsdp=2': (8, 1, dict(mesh=dict(data=4, fsdp=2))),
  'two processes': (4, 2, dict(mesh=dict(fsdp=4))),
  'two processes, data=2': (4, 2, dict(mesh=dict(data=2, fsdp=2))),
  'four processes': (8, 4, dict(mesh=dict(data=2, fsdp=4))),
  'micro-batches of 3 rows': (2, 1, dict(mesh=dict(fsdp=2), batch=dict(micro_rows=3))),
  'micro-batches of 6 rows': (2, 1, dict(mesh=dict(fsdp=2), batch=dict(micro_rows=6))),
  'whole batches': (2, 1, dict(mesh=dict(data=2, fsdp=1), batch=dict(micro_rows=0))),
}


@pytest.fixture(autouse=True)
def threads(monkeypatch):
  monkeypatch.setenv('PJRT_NPROC', '8')


def begin(workdir, setting, dtype='float32'):
  devices, processes, flags = SETTINGS[setting]
  flags = [*FLAGS, *tiny.flags(**flags), f'--config.model.dtype={dtype}']
  command = ['-c', RUN, 'train', *flags, f'--workdir={workdir}']
  command += ['--distributed'] * (processes > 1)
  return start_python(command, processes, devices)


def finish(processes):
  codes, said = ends(processes)
  assert codes == [0] * len(codes), said


def digest(workdir):
  """SHA-256 of all that a run ends with: parameters, moments, average, metrics."""
  state, logged = whole_runs.state_of(workdir), whole_runs.logged(workdir)
  assert int(state.step) == LAST and len(logged) >= LAST
  return hashlib.sha256(b''.join(bits(state)) + repr(logged).encode()).hexdigest()


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
  """Of the run on one device, by dtype."""

  @functools.cache
  def alone(dtype='float32'):
    workdir = tmp_path_factory.mktemp('one')
    with pytest.MonkeyPatch.context() as patch:
      patch.setenv('PJRT_NPROC', '8')
      finish(begin(workdir, 'one device', dtype))
    assert [m['step'] for m in metrics.read(str(workdir)) if m.get('event') == 'skipped'] == [31]
    return digest(workdir)

  return alone


@pytest.mark.long
@pytest.mark.slow  # above, a few steps of a smaller model
@pytest.mark.parametrize('setting', [name for name in SETTINGS if name != 'one device'])
def test_runs_have_the_same_bits(tmp_path, expected, setting):
  finish(begin(tmp_path, setting))
  assert digest(tmp_path) == expected()


@pytest.mark.long
@pytest.mark.slow  # on eight devices gathered weights are rounded to it, on one none are
@pytest.mark.parametrize('setting', ['fsdp=8', 'data=4 fsdp=2', 'two processes, data=2'])
def test_runs_in_bfloat16_have_the_same_bits(tmp_path, expected, setting):
  finish(begin(tmp_path, setting, 'bfloat16'))
  assert digest(tmp_path) == expected('bfloat16') != expected()


@pytest.mark.long
@pytest.mark.slow  # above, in one process
def test_a_run_that_moves_and_is_killed_has_the_same_bits(tmp_path, expected):
  """At random steps; between the kills it has fewer devices, and more hosts."""
  draw = random.Random(0)
  places = ['fsdp=8', 'two processes', 'one device', 'four processes']
  for setting, last in zip(places, (20, 45, 70, None), strict=True):
    processes = begin(tmp_path, setting)
    if last is None:
      finish(processes)
      break
    reach(tmp_path, last + draw.randrange(15), processes)
    for process in processes:
      process.kill()
    ends(processes)
  assert digest(tmp_path) == expected()


# What is refused.


@pytest.mark.parametrize(
  'changes, said',
  [
    ({'batch.exact_over': 12}, 'batch.exact_over=12: must be a power of two; give 16'),
    ({'optim.name': 'adafactor'}, "optim.name='adafactor': sums over whole arrays"),
    ({'optim.name': 'lamb'}, "optim.name='lamb': sums over whole arrays"),
    ({'optim.name': 'muon'}, "optim.name='muon': sums over whole arrays"),
    ({'optim.state': 'host'}, "optim.state='host': updates layers in a program"),
    ({'optim.outer': 'diloco(replicas=2)'}, 'optim.outer=.*trains replicas apart'),
    ({'model.ffn': 'switch(num_experts=4)'}, 'model.ffn=.*balances experts'),
    ({'log.norms_every_steps': 5}, 'log.norms_every_steps=5: sums over split arrays'),
    ({'replay.every_steps': 5}, 'replay.every_steps=5: compares replicas'),
    ({'batch.micro_rows': 1}, 'batch.micro_rows=1: .* the 2 rows of a virtual shard at once'),
    ({'mesh.tensor': 2}, 'mesh.tensor=2: splits what one row sums'),
    ({'mesh.context': 2, 'model.context_length': 8}, 'mesh.context=2: splits what one row sums'),
    ({'mesh.stage': 3}, 'mesh.stage=3: splits what one row sums'),
    ({'mesh.fsdp': 3}, 'mesh.fsdp=3: .* adds in a binary tree; give a power of two, such as 2'),
    ({'mesh.data': 4, 'mesh.fsdp': 2, 'batch.exact_over': 4}, 'fewer virtual shards than the 8'),
    ({'mesh.rules.batch': 'fsdp, data'}, 'mesh.rules.batch=.*rows that are split by data, then'),
    ({'mesh.rules.mlp': 'data'}, 'mesh.rules.mlp=.*parameters by fsdp alone'),
    ({'mesh.rules.vocab': 'fsdp'}, 'mesh.rules.vocab=.*in their width'),
  ],
)
def test_refused(changes, said):
  fields = {**tiny.MESHABLE, 'batch.exact_over': OVER, 'mesh.data': 2, 'mesh.fsdp': 2, **changes}
  with pytest.raises(UsageError, match=re.compile(said)):
    config = config_lib.resolve(tiny.config(**fields))
    sizes = {axis: config.mesh[axis] for axis in sharding.AXES}
    device_check.check_mesh(config, sizes, dict(sharding.parse_rules(config.mesh.rules)))


@pytest.mark.parametrize(
  'given, said', [('', 'set PJRT_NPROC=8 for'), ('2', 'set PJRT_NPROC=8 for')]
)
def test_threads_are_set(monkeypatch, given, said):
  fields = {**tiny.MESHABLE, 'batch.micro_rows': None, 'batch.exact_over': OVER, 'mesh.fsdp': 8}
  config = config_lib.resolve(tiny.config(**fields))
  monkeypatch.setenv('PJRT_NPROC', given)
  with pytest.raises(UsageError, match=said):
    device_check.check_devices(config, jax.devices())
  monkeypatch.setenv('PJRT_NPROC', '16')
  assert device_check.check_devices(config, jax.devices()).size == 8


def test_rows_at_a_time_follow():
  config = config_lib.resolve(
    tiny.config(
      **{
        **tiny.MESHABLE,
        **{'batch.size': 'ramp(0:16, 5:40)', 'batch.micro_rows': None, 'batch.exact_over': OVER},
      }
    )
  )
  assert config.batch.micro_rows == 5
  run = tiny.build(config, (2, 2, 1))
  assert [run.micro_batches(shape).num_micro for shape in run.shapes()] == [2, 2]
  assert run.eval_rows % OVER == 0
