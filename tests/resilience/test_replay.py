# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""One flipped bit is found, its device is named, and the run keeps its bits."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.commands import train
from gpt_jax.core import sharding
from gpt_jax.core.checkpoints import restore
from gpt_jax.core.nn import block, layout
from gpt_jax.core.spec import FailedError
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import loop, metrics
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.events import GoBack
from gpt_jax.reports import report
from gpt_jax.resilience import replay as replay_lib
from gpt_jax.resilience.replay import Moved, Replay, Verdict, judged
from tests.support import tiny, whole_runs
from tests.support.cases import slow

BAD = 5  # the place of the device that is wrong, in the mesh
STEPS = 5
BIT = np.uint32(1 << 22)
MESHES = {'data8': (8, 1, 1), 'data4_fsdp2': (4, 2, 1)}

# A device that is wrong ------------------------------------------------------


def flipped_here(x):
  """`x`, with one bit of its first number flipped on one device."""

  def here(x):
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    mask = jnp.zeros(bits.shape, jnp.uint32).at[(0,) * bits.ndim].set(BIT)
    is_bad = jax.lax.axis_index(sharding.AXES) == BAD
    return jax.lax.bitcast_convert_type(bits ^ jnp.where(is_bad, mask, 0), jnp.float32)

  axes = ('batch', *[None] * (x.ndim - 1))
  return layout.per_device(here, (axes,), axes)(x)


@jax.custom_vjp
def wrong_activation(x):
  return flipped_here(x)


wrong_activation.defvjp(lambda x: (flipped_here(x), None), lambda _, dy: (dy,))


@jax.custom_vjp
def wrong_gradient(x):
  return x


wrong_gradient.defvjp(lambda x: (x, None), lambda _, dy: (flipped_here(dy),))
WRONG = {'activation': wrong_activation, 'gradient': wrong_gradient}


def faulty(compile_it, kind):
  """Compiles while each feed-forward layer ends with the fault."""
  call = block.FeedForward.__call__
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      block.FeedForward, '__call__', lambda *args, **named: WRONG[kind](call(*args, **named))
    )
    return compile_it().call


def flipped_at(x, place, mesh):
  """The array, with one bit flipped in what one device holds."""
  device = mesh.devices.flat[place]
  shards = []
  for shard in x.addressable_shards:
    data = np.array(shard.data)
    if shard.device == device:
      data.reshape(-1).view(np.uint32)[0] ^= BIT
    shards.append(jax.device_put(data, shard.device))
  return jax.make_array_from_single_device_arrays(x.shape, x.sharding, shards)


def with_flipped(state, place, mesh):
  """A state with a flipped bit in a norm's scale, of which each has a copy."""

  def of(path, x):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    return flipped_at(x, place, mesh) if name == NORM else x

  return jax.tree_util.tree_map_with_path(of, state)


NORM = 'params/final_norm/scale'


# A run without files but for the evidence ------------------------------------


class Rig:
  """A tiny run on a mesh, with sound and faulty programs, compiled once."""

  def __init__(self, sizes):
    fields = {**tiny.MESHABLE, 'model.num_layers': 1, 'replay.every_steps': 2}
    self.parts = tiny.build(tiny.config(**fields), sizes)
    self.shape = self.parts.ramp.stages[-1].shape
    self.batch = tiny.batch(16, 7, 48)
    # A token that does not count has no gradient: no bit of it matters.
    self.batch['weights'] = np.ones_like(self.batch['weights'])
    self.compile_step = functools.partial(compiled_lib.compile_train_step, self.parts, self.shape)
    self.compile_prints = functools.partial(replay_lib.compile_shard_prints, self.parts, self.shape)
    self.sound = self.compile_step()
    self.prints = self.compile_prints()
    self._start = jax.device_get(parts_lib.initial_state(self.parts))
    self._faulty = {}

  def first(self):
    return jax.device_put(self._start, self.parts.shardings)

  def faulty(self, kind, what):
    """The step, or the prints of shards, on a device that is wrong."""
    compile_it = self.compile_step if what == 'step' else self.compile_prints
    if (kind, what) not in self._faulty:
      self._faulty[kind, what] = faulty(compile_it, kind)
    return self._faulty[kind, what]

  def replay(self, folder, prints=None):
    def write(name, step, about):
      assert name == f'replays/{step}_{about["kind"]}.json'
      path = folder / name.removeprefix('replays/')
      path.write_text(json.dumps(about))
      return str(path)

    found = Replay(self.parts, write)
    with pytest.MonkeyPatch.context() as patch:
      prints = self.prints._replace(call=prints or self.prints.call)
      patch.setattr(replay_lib, 'compile_shard_prints', lambda *_: prints)
      found.compiled({self.shape: self.sound})
    found.begin(0)
    return found

  def train(self, replay=None, step_call=None, between=lambda step, x: x):
    """The fingerprints of the state after the last step."""
    state = self.first()
    program = self.sound._replace(call=step_call or self.sound.call)
    for step in range(1, STEPS + 1):
      checked = replay and replay.step(step, state, self.batch, self.shape, program, ())
      if checked:
        state, out = checked
      else:
        arrays = self.parts.put(self.batch, self.shape.rows)
        state, out = self.sound.call(state, arrays)
      state = between(step, state)
    return restore.fingerprint((state, out))

  @functools.cached_property
  def expected(self):
    return self.train()


@pytest.fixture(scope='module')
def rigs():
  return functools.cache(lambda name: Rig(MESHES[name]))


@pytest.fixture(params=['data8', slow('data4_fsdp2')])
def rig(request, rigs):
  return rigs(request.param)


def evidence(folder, name):
  return json.loads((folder / f'{name}.json').read_text())


def once(number, sound, wrong):
  """A program whose call `number`, from 1, is the wrong one."""
  calls = iter(range(1, 99))
  return lambda *args: (wrong if next(calls) == number else sound)(*args)


@pytest.mark.slow
def test_a_sound_run_has_the_same_bits_and_says_nothing(rig, tmp_path, caplog):
  found = rig.train(rig.replay(tmp_path))
  np.testing.assert_array_equal(found, rig.expected)
  assert not caplog.records
  assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize('kind', WRONG)
@pytest.mark.parametrize('number', [1, 2])
def test_one_wrong_run_of_a_step_is_outvoted(rigs, kind, number, tmp_path, caplog):
  """A flipped bit in an activation or a gradient, in either of the two."""
  rig = rigs('data8')
  wrong = rig.faulty(kind, 'step')
  found = rig.train(rig.replay(tmp_path), step_call=once(number, rig.sound.call, wrong))
  np.testing.assert_array_equal(found, rig.expected)
  assert 'step 2: its result differs between runs; two of 3' in caplog.text
  said = evidence(tmp_path, '2_step')
  assert len({*said['runs']}) == 2


def test_a_run_that_is_never_the_same_ends(rigs, tmp_path):
  rig = rigs('data8')
  flips = iter(range(8))

  def call(state, arrays):
    state = with_flipped(state, next(flips), rig.parts.mesh)
    return rig.sound.call(state, arrays)

  with pytest.raises(FailedError, match=r'step 2: .* no two of 3 agree'):
    rig.train(rig.replay(tmp_path), step_call=call)


@pytest.mark.parametrize('kind', WRONG)
def test_a_device_that_is_always_wrong_is_named(rig, kind, tmp_path):
  """The step is wrong in the same way each time; other devices tell."""
  replay = rig.replay(tmp_path, rig.faulty(kind, 'prints'))
  with pytest.raises(FailedError, match=r'step 2: .* did so again') as error:
    rig.train(replay, step_call=rig.faulty(kind, 'step'))
  # A replica of two devices is one, as sums within it mix them.
  size = rig.parts.mesh.size // rig.parts.mesh.shape['data']
  first = BAD // size * size
  expected = [first + i for i in range(size)]
  assert [x['id'] for x in evidence(tmp_path, '2_gradients')['devices']] == (expected)
  for device in expected:
    assert f'device {device} (host 0)' in str(error.value)


def test_a_device_that_is_wrong_once_is_named_and_the_run_goes_on(rigs, tmp_path, caplog):
  rig = rigs('data8')
  wrong = rig.faulty('gradient', 'prints')
  found = rig.train(rig.replay(tmp_path, once(2, rig.prints.call, wrong)))
  np.testing.assert_array_equal(found, rig.expected)
  assert f'on device {BAD} (host 0), but not always' in caplog.text


@pytest.mark.parametrize('copy', [1, 2])
def test_a_flipped_bit_of_a_batch(rig, copy, tmp_path, caplog, monkeypatch):
  """On its way to a device, for either run of the step."""
  put, calls = sharding.put_batch, iter(range(99))

  def wrong(batch, split, num_rows):
    arrays = put(batch, split, num_rows)
    # Step 1 has one copy, and the gradients of step 2 one of their own.
    if next(calls) == 1 + copy:
      mesh = rig.parts.mesh
      arrays['weights'] = flipped_at(arrays['weights'], BAD, mesh)
    return arrays

  expected = rig.expected
  monkeypatch.setattr(sharding, 'put_batch', wrong)
  found = rig.train(rig.replay(tmp_path))
  np.testing.assert_array_equal(found, expected)
  assert f'its batch differs between runs, on device {BAD} ' in caplog.text
  assert [x['id'] for x in evidence(tmp_path, '2_batch')['devices']] == [BAD]


def test_a_flipped_bit_of_a_parameter(rig, tmp_path, caplog):
  """It stays on its device, and every later step is wrong."""

  def between(step, state):
    return with_flipped(state, BAD, rig.parts.mesh) if step == 3 else state

  with pytest.raises(GoBack):
    rig.train(rig.replay(tmp_path), between=between)
  assert f'the copies of {NORM} of the state differ, on device {BAD} ' in (caplog.text)
  said = evidence(tmp_path, '3_copies')
  assert (said['arrays'], said['last_check_passed']) == ([NORM], 2)


def test_a_parameter_that_changes_during_the_replays(rigs, tmp_path, caplog):
  """Later runs agree with each other, but start from a wrong state."""
  rig = rigs('data8')
  replay, calls = rig.replay(tmp_path), iter(range(9))
  state = rig.first()

  def call(copy, arrays):
    if next(calls):
      # As if the copies were made of a state that had changed.
      copy = with_flipped(copy, BAD, rig.parts.mesh)
    return rig.sound.call(copy, arrays)

  # What holds the state then is changed too.
  monkey = iter([False, True])
  prints = replay_lib.device_prints

  def changed(tree, mesh):
    if tree is state and next(monkey):
      return prints(with_flipped(state, BAD, mesh), mesh)
    return prints(tree, mesh)

  program = rig.sound._replace(call=call)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(replay_lib, 'device_prints', changed)
    with pytest.raises(GoBack):
      replay.step(2, state, rig.batch, rig.shape, program, ())
  assert f'changed in the memory of device {BAD} ' in caplog.text


# Votes ------------------------------------------------------------------------


def moves(size, places, wrong):
  """Prints of `size` replicas; `wrong(replica, run)` is added to them."""
  found = []
  for run, move in enumerate(places):
    prints = [(r - move) % size + 100 * wrong(r, run) for r in range(size)]
    found.append(Moved(move, np.uint32(prints)[:, None]))
  return judged(found)


PLACES = (0, 1, 0, 1, 2)


@pytest.mark.parametrize('size', [3, 5, 8])
def test_votes_name_the_replica(size):
  assert moves(size, PLACES, lambda *_: 0) == Verdict([], [], True)
  for bad in range(size):
    is_bad = np.arange(size) == bad
    always = moves(size, PLACES, lambda r, _, bad=is_bad: bad[r])
    assert always == Verdict([bad], [], True)
    first = moves(size, PLACES, lambda r, run, bad=is_bad: bad[r] * (not run))
    assert first == Verdict([bad], [], False)


def test_of_two_replicas_no_vote_tells_which_is_always_wrong():
  found = moves(2, PLACES[:4], lambda r, _: r)
  assert found == Verdict([0, 1], [0, 1], True)


def test_results_that_depend_on_the_place_have_no_majority():
  found = moves(5, PLACES, lambda r, _: r)
  assert found.undecided == [*range(5)] and found.again


# Whole runs -------------------------------------------------------------------

RUN = {
  **tiny.MESHABLE,
  'model.vocab_size': 264,
  'model.num_layers': 1,
  'data.source': "text('configs/*.py')",
  'data.holdout': 'none',
  'tokenizer.name': 'bytes',
  'schedule.num_steps': 11,
  'schedule.name': 'constant(peak=1e-3)',
  'optim.on_spike': 'skip',
  'optim.ema': 'ema(decay=0.9)',
  'mesh.data': 4,
  'mesh.fsdp': 2,
  'checkpoint.every_steps': 4,
  'log.every_steps': 1,
  'log.sample_prompt': '',
}


@pytest.mark.slow
def wrong_at(left):
  """A `loop.compile_stages` whose programs are wrong at these steps, once each.

  One of the two runs of step 3, which is checked, has a wrong parameter; the
  result of step 7, which is not, has one; the loss of any other is no number.
  """
  compile_stages, known = loop.compile_stages, []

  def wrong(parts, done, found, *rest):
    compile_stages(parts, done, found, *rest)
    for shape, program in found.items():
      if program.call not in known:
        known.append(wrapped(program.call, parts.mesh))
        found[shape] = program._replace(call=known[-1])

  def wrapped(sound, mesh):
    def call(state, arrays, *rest):
      step = int(state.step) + 1
      if step not in left:
        return sound(state, arrays, *rest)
      left.remove(step)
      if step == 3:
        return sound(with_flipped(state, BAD, mesh), arrays, *rest)
      state, out = sound(state, arrays, *rest)
      if step == 7:
        return with_flipped(state, BAD, mesh), out
      return state, {**out, 'loss': jnp.float32(np.nan)}

    return call

  return wrong


@pytest.mark.slow
def test_a_run_with_faults_ends_as_one_without(tmp_path, monkeypatch, caplog):
  """A wrong step; a parameter that flips; a loss that is not a number."""
  config = {**RUN, 'data.store': str(tmp_path / 'data')}
  train.train(tiny.config(**config), str(tmp_path / 'sound'))

  left = {3, 7, 11}
  monkeypatch.setattr(loop, 'compile_stages', wrong_at(left))
  checked = {**config, 'replay.every_steps': 3}
  train.train(tiny.config(**checked), str(tmp_path / 'faults'))
  assert not left
  states, logged = [], []
  for name in 'sound', 'faults':
    workdir = str(tmp_path / name)
    state = whole_runs.state_of(tmp_path / name)
    states.append(restore.fingerprint(state))
    lines = metrics.read(workdir)
    logged.append([(x['step'], x['loss']) for x in lines if 'loss' in x])
  np.testing.assert_array_equal(*states)
  assert logged[0] == logged[1]
  assert len(logged[0]) == 11
  folder = tmp_path / 'faults' / 'replays'
  assert sorted(x.name for x in folder.iterdir()) == [
    '11_spike.json',
    '3_step.json',
    '8_copies.json',
  ]
  assert evidence(folder, '11_spike')['runs'][0]['loss'] == 'nan'
  said = evidence(folder, '3_step')
  assert (said['step'], said['first_row'], said['num_rows']) == (3, 32, 16)
  page = report.page(workdir)
  assert f'copies differs on device {BAD} of host 0' in page
  assert 'some device was wrong' in caplog.text
  # Nothing was skipped.
  assert not [x for x in metrics.read(workdir) if x.get('event') == 'skipped']
