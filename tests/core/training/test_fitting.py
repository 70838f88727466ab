# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Meshes and rows at a time that fit the devices' memory.

`ulimit -m` lowers what CPU devices may take; the system does not enforce it.
"""

import contextlib
import json
import os
import pathlib
import resource
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from configs import bert
from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.costs import topologies
from gpt_jax.core.costs.chips import GIB
from gpt_jax.core.runtime import memory as memory_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import compiled, fitting
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.planning import layouts, search
from tests.support import quick, tiny

ROOT = pathlib.Path(__file__).parents[3]
FLAGS = [
  '--config=configs/smoke.py',
  *tiny.flags(
    data=dict(source="text('configs/t*.py')", holdout='none'),
    tokenizer=dict(name='bytes'),
    model=dict(num_layers=1, d_model=16, context_length=31, remat='none'),
    batch=dict(size=128),
    mesh=dict(fsdp=1, data=8),
    schedule=dict(num_steps=3),
    log=dict(every_steps=1, sample_tokens=0),
  ),
]


@contextlib.contextmanager
def memory(of_device):
  """Limits the memory of each device of this process to `of_device` bytes."""
  soft, hard = resource.getrlimit(resource.RLIMIT_RSS)
  size = int(of_device * jax.local_device_count())
  resource.setrlimit(resource.RLIMIT_RSS, (size, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_RSS, (soft, hard))


def slice_of(chip, *shape):
  """Devices of a TPU slice, as JAX describes them."""
  kind = topologies.CHIPS[chip].kind
  return [
    types.SimpleNamespace(platform='tpu', device_kind=kind, coords=(*at, 0), process_index=0)
    for at in np.ndindex(*shape)
  ]


def test_train_takes_the_mesh_and_the_rows_of_plan():
  """BERT large on v5e:2x4: 38.6 GiB with all rows at once, of 15.75."""
  config = bert.get_config('large').unlock()
  config.model.vocab_size = 30_522
  config = config_lib.resolve(config)
  devices = slice_of('v5e', 2, 4)
  slices = layouts.slices_of(devices)
  assert slices == topologies.parse('v5e:2x4')
  assert memory_lib.of_device(devices[0]) == 15.75 * GIB
  request = search.SearchRequest(config, slices, mesh=True, micro=True)
  planned = search.open_changes(request)
  chosen = fitting.with_mesh(config, devices=devices)
  for field, value in planned.items():
    section, _, axis = field.partition('.')
    assert section == 'batch' or chosen.mesh[axis] == value
  sizes = layouts.mesh_of(chosen, slices)
  state = layouts.state_of(chosen)
  model = layouts.MemoryModel(chosen)
  least = state.bytes(sizes) + state.gradients(sizes)
  rows, size, fits = model.rows_that_fit(sizes, least, slices.hbm)
  assert fits and size <= slices.hbm
  assert 0 < rows == planned['batch.micro_rows'] < 32
  assert model.halved(sizes, rows) <= rows / 2


@pytest.mark.parametrize(('chip', 'shape', 'gone'), [('v5e', (2, 3), 0), ('v5e', (2, 4), 1)])
def test_devices_that_form_no_slice(chip, shape, gone):
  """Their mesh stays open."""
  devices = slice_of(chip, *shape)[gone:]
  assert layouts.slices_of(devices) is None
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE))
  assert fitting.with_mesh(config, devices=devices) is config
  assert layouts.slices_of(jax.devices()) is None


def test_a_mesh_that_is_given_or_was_taken_stays(tmp_path):
  """On as many devices; on others the cost model chooses again."""
  fields = {**tiny.MESHABLE, 'batch.size': 64}
  config = config_lib.resolve(tiny.config(**fields))
  devices = slice_of('v5e', 2, 4)
  given = layouts.apply(config, {'mesh.fsdp': 4, 'mesh.tensor': 2})
  assert fitting.with_mesh(given, devices=devices) is given
  (tmp_path / 'config.json').write_text(config_lib.to_json(given))
  kept = fitting.with_mesh(config, str(tmp_path), devices)
  assert (kept.mesh.fsdp, kept.mesh.tensor) == (4, 2)
  other = fitting.with_mesh(config, str(tmp_path), slice_of('v5e', 4, 4))
  assert np.prod([other.mesh[axis] for axis in fitting.UNSET]) == 16
  # A run of a version that left its mesh open.
  (tmp_path / 'config.json').write_text(config_lib.to_json(config))
  assert fitting.with_mesh(config, str(tmp_path), devices) is config


def test_a_lost_slice_leaves_a_smaller_mesh(tmp_path):
  """Data is over the slices; the same mesh is chosen when it is back."""
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE, **{'seed': 3}))
  both = [
    types.SimpleNamespace(**vars(device), slice_index=i)
    for i in range(2)
    for device in slice_of('v5e', 4, 4)
  ]

  def chosen(devices):
    mesh = fitting.with_mesh(config, str(tmp_path), devices).mesh
    sizes = {axis: mesh[axis] for axis in fitting.UNSET}
    start = {'step': 0, 'event': 'start', 'mesh': sizes, 'micro_rows': 0}
    (tmp_path / 'metrics.jsonl').write_text(json.dumps(start) + '\n')
    assert np.prod([*sizes.values()]) == len(devices)
    return sizes

  (tmp_path / 'config.json').write_text(config_lib.to_json(layouts.apply(config, {'mesh.data': 2})))
  first, alone, again = chosen(both), chosen(both[:16]), chosen(both)
  assert first['data'] % 2 == 0 and first == again != alone


def test_as_many_devices_in_more_slices_are_another_mesh(tmp_path):
  """A mesh of one slice would send between two what stays inside of it."""
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE, **{'seed': 3}))
  one = slice_of('v5e', 4, 8)
  two = [
    types.SimpleNamespace(**vars(device), slice_index=i)
    for i in range(2)
    for device in slice_of('v5e', 4, 4)
  ]
  assert [*map(sharding.num_slices, (one, two, jax.devices()))] == [1, 2, 1]
  given = layouts.apply(config, {'mesh.fsdp': 32})
  (tmp_path / 'config.json').write_text(config_lib.to_json(given))

  def chosen(devices, **start):
    mesh = {axis: given.mesh[axis] for axis in fitting.UNSET}
    line = {'step': 0, 'event': 'start', 'mesh': mesh, 'micro_rows': 0, **start}
    (tmp_path / 'metrics.jsonl').write_text(json.dumps(line) + '\n')
    return fitting.with_mesh(config, str(tmp_path), devices).mesh

  assert chosen(one, slices=1).fsdp == chosen(two, slices=2).fsdp == 32
  # Of a version that did not record the slices.
  assert chosen(two).fsdp == 32
  assert chosen(two, slices=1).data % 2 == 0
  fresh = fitting.with_mesh(config, devices=one).mesh
  assert chosen(one, slices=2) == fresh


def needs(parts):
  """Bytes that the last stage's step needs on a device."""
  return compiled.peak(compiled.compile_train_step(parts).call, 'cpu')


def with_rows(parts, micro_rows):
  config = layouts.apply(parts.config, {'batch.micro_rows': micro_rows})
  return parts._replace(config=config)


@pytest.mark.slow
def test_rows_are_halved_until_they_fit():
  """Of 16 on a device 8 fit, and the step is that of all at once."""
  fields = {**tiny.MESHABLE, 'batch.micro_rows': None}
  parts = tiny.build(tiny.config(**fields), (1, 1, 1))
  shapes, results, needed = parts.shapes(), [], 2**30
  for rows in (0, 8):
    with memory(needed - 1):
      found, steps = fitting.fitted(parts, shapes)
    assert found.config.batch.micro_rows == rows
    needed = compiled.peak(steps[shapes[-1]].call, 'cpu')
    state = parts_lib.initial_state(parts)
    batch = parts.put(tiny.batch(16, 7, 48), 16)
    state, out = steps[shapes[-1]].call(state, batch)
    results.append((float(out['loss']), float(out['grad_norm'])))
  np.testing.assert_allclose(*results, rtol=1e-6)


def test_far_too_many_rows_are_not_compiled_half_by_half():
  class Model:
    def halved(self, mesh, rows):
      return (rows or 4096) // 2

  tried = []

  def attempt(rows):
    tried.append(rows)
    needed = 3 + (rows or 4096)
    if needed > 100:
      raise compiled.TooLarge(shape, needed, 100)
    return rows

  shape = tiny.build(tiny.config(**tiny.MESHABLE), (1, 1, 1)).shapes()[-1]
  assert fitting.halving(Model(), {}, 0, attempt) == 64
  assert tried == [0, 128, 64]


def test_a_resume_begins_with_the_rows_of_the_run(tmp_path):
  """On the same mesh; on another one all rows at once are tried first."""
  fields = {**tiny.MESHABLE, 'batch.micro_rows': None}
  parts = tiny.build(tiny.config(**fields), (1, 1, 1))
  changes = {'batch.micro_rows': 4, 'mesh.fsdp': 1}
  for change, taken in ({}, 4), ({'mesh.fsdp': 2}, 0):
    old = layouts.apply(parts.config, changes | change)
    (tmp_path / 'config.json').write_text(config_lib.to_json(old))
    found, _ = fitting.fitted(parts, [], str(tmp_path))
    assert found.config.batch.micro_rows == taken


def test_other_devices_choose_again_and_say_so(tmp_path, caplog):
  """The last start counts, not the config, which leaves the mesh open."""
  fields = {**tiny.MESHABLE, 'batch.micro_rows': None}
  parts = tiny.build(tiny.config(**fields), (1, 1, 1))
  assert parts.config.mesh.fsdp == -1
  text = config_lib.to_json(layouts.apply(parts.config, {}))
  (tmp_path / 'config.json').write_text(text)
  assert fitting.before(str(tmp_path)).mesh['fsdp'] == -1
  shape = parts.shapes()[-1]

  def goes_on(was, micro_rows):
    sizes = dict.fromkeys(parts.mesh.shape, 1) | was
    start = {'step': 0, 'event': 'start', 'mesh': sizes}
    first, last = start | {'micro_rows': 1}, start | {'micro_rows': micro_rows}
    (tmp_path / 'metrics.jsonl').write_text(''.join(json.dumps(m) + '\n' for m in (first, last)))
    caplog.clear()
    with caplog.at_level('INFO', 'gpt_jax'):
      found, _ = fitting.fitted(parts, [shape], str(tmp_path))
    return found.config.batch.micro_rows, [r.message for r in caplog.records]

  # As before: the rows are kept, and nothing is said of the mesh.
  rows, said = goes_on({}, 4)
  assert rows == 4 and not [line for line in said if ' now' in line]
  # Of 16 rows each of three devices had 6, 2 at a time.
  rows, said = goes_on({'data': 3, 'tensor': 2}, 2)
  assert rows == 0
  assert said[-1] == (
    '6 devices (data=3, tensor=2) before, 1 device now; micro-batches: 3 '
    'before, 1 now; the 16 rows of a step are the same, and only rounding '
    'differs'
  )


def test_too_many_devices_for_the_width_name_fewer():
  """Of seven devices each would hold all; six split a width of 24."""
  parts = tiny.build(tiny.config(**tiny.MESHABLE), (7, 1, 1))
  config = layouts.apply(parts.config, {'batch.micro_rows': None})
  parts = parts._replace(config=config)
  assert config.model.d_model % 7 and not config.model.d_model % 6
  with memory(1), pytest.raises(UsageError) as error:
    fitting.check_state(parts)
  assert str(error.value).endswith(
    '; or start on 6 of these 7 devices: over them mesh.fsdp=-1 is 6, and not 1'
  )


def test_the_state_is_counted_without_making_it():
  """Parameters and two moments of AdamW, 4 bytes each, and three counts."""
  parts = tiny.build(tiny.config(**tiny.MESHABLE), (1, 1, 1))
  count = sum(x.size for x in jax.tree.leaves(parts_lib.param_shapes(parts.objective)))
  needed = parts_lib.on_device(parts_lib.abstract_state(parts))
  assert 0 <= needed - 3 * 4 * count < 64
  with memory(needed):
    fitting.check_state(parts)
  said = f'model: {count:,} parameters and the state of optim.name='
  with memory(needed - 1), pytest.raises(UsageError, match=said):
    fitting.check_state(parts)


def test_rows_that_are_given_and_do_not_fit_are_refused():
  """At once, and not after the kernel ended the process."""
  parts = with_rows(tiny.build(tiny.config(**tiny.MESHABLE), (1, 1, 1)), 8)
  said = r'batch\.micro_rows=8: the step of 16 rows of .* give fewer, or leave'
  with memory(needs(parts) - 1), pytest.raises(UsageError, match=said):
    fitting.fitted(parts, parts.shapes())


def test_the_memory_of_a_step_is_told_before_the_first(monkeypatch, caplog):
  """And that other processes have what it needs."""
  parts = with_rows(tiny.build(tiny.config(**tiny.MESHABLE), (1, 1, 1)), 8)
  step = needs(parts) * jax.local_device_count()
  for left, warned in ((step, False), (step - 1, True)):
    monkeypatch.setattr(memory_lib, 'left_on_host', lambda left=left: left)
    caplog.clear()
    with caplog.at_level('INFO', 'gpt_jax'):
      fitting.fitted(parts, parts.shapes())
    said = [r.message for r in caplog.records]
    assert any(line.startswith('the step of 16 rows of') for line in said)
    found = [line for line in said if line.startswith('other processes leave')]
    assert bool(found) == warned
    assert not warned or 'give --config.batch.micro_rows=4, ' in found[0]


def test_a_control_group_limits_the_memory(tmp_path, monkeypatch):
  """Files in its page cache are given up, so they are not counted."""
  monkeypatch.setattr(memory_lib, '_CGROUPS', tmp_path)
  machine = memory_lib.of_host()
  (tmp_path / 'memory.max').write_text('max\n')
  (tmp_path / 'memory.current').write_text('7000\n')
  (tmp_path / 'memory.stat').write_text('anon 5\ninactive_file 2000\n')
  assert memory_lib.of_host() == machine > memory_lib.left_on_host()
  (tmp_path / 'memory.max').write_text('11000\n')
  assert memory_lib.of_host() == 11_000
  assert memory_lib.left_on_host() == 6_000
  old = tmp_path / 'memory'  # version 1 has a folder for each controller
  old.mkdir()
  (old / 'memory.limit_in_bytes').write_text('9000\n')
  (old / 'memory.usage_in_bytes').write_text('7000\n')
  (old / 'memory.stat').write_text('total_inactive_file 1000\n')
  assert memory_lib.of_host() == 9_000
  assert memory_lib.left_on_host() == 3_000


def test_groups_of_several_rows_are_not_divided():
  """Which tokens an expert drops would depend on the division."""
  fields = {**tiny.MESHABLE, 'batch.micro_rows': None}
  fields['model.ffn'] = 'switch(num_experts=8, group_size=14)'
  parts = tiny.build(tiny.config(**fields), (1, 1, 1))
  held = parts_lib.on_device(parts_lib.abstract_state(parts))
  with memory(held + 1), pytest.raises(UsageError, match=r'several rows.*micro_rows=8, or group_s'):
    fitting.fitted(parts, parts.shapes())


def lines(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  found = [json.loads(line) for line in text.splitlines()]
  return [line['loss'] for line in found if 'loss' in line]


@pytest.mark.slow
def test_a_run_keeps_the_rows_that_it_took(tmp_path, monkeypatch, capsys):
  """Also where more would fit when it goes on."""
  monkeypatch.chdir(ROOT)
  small, large = tmp_path / 'small', tmp_path / 'large'

  def train(workdir, *more):
    return main(['train', *FLAGS, f'--workdir={workdir}', *more])

  def rows(workdir):
    config = json.loads((workdir / 'config.json').read_text())
    return config['batch']['micro_rows']

  assert train(large) == 0
  assert rows(large) == 0
  with memory(1):  # not even the state
    assert train(small) == 2
  # A token store stays; it may have taken days.
  assert [path.name for path in small.iterdir()] == ['data']
  said = capsys.readouterr().err.splitlines()[-1]
  assert 'parameters and the state of optim.name=' in said
  assert 'give a smaller model, a mesh that splits the model' in said
  for command in (['generate', '--prompt=x'], ['evaluate']):
    with memory(1):
      assert main([*command, f'--workdir={large}']) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f'{large}: its parameters take 0.00 GiB on a device' in said
  parts = parts_lib.build(
    config_lib.set_vocab_size(config_lib.resolve(tiny_config(large)), 256, 'bytes')
  )
  with memory(needs(with_rows(parts, 4)) + 1):
    assert train(small, '--config.schedule.num_steps=2') == 0
  assert rows(small) == 4
  assert train(small) == 0
  assert rows(small) == 4
  np.testing.assert_allclose(lines(small), lines(large), rtol=1e-5)


def tiny_config(workdir):
  text = (workdir / 'config.json').read_text()
  return config_lib.from_json(text)


NO_ROOM = """
import resource
import jax
import jax.numpy as jnp
from gpt_jax.core.training import compiled, fitting
from tests.support import tiny

fields = {**tiny.MESHABLE, 'batch.micro_rows': 0}
parts = tiny.build(tiny.config(**fields), (1, 1, 1))
step = compiled.compile_train_step(parts)
# A product with 2 GiB of temporaries.
x = jnp.ones(1 << 13)
large = jax.jit(lambda x: (x[:, None] * jnp.ones((1, 1 << 16)) + x[0]).T @ x)
large = large.lower(x).compile()
with open('/proc/self/statm') as file:
  here = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (here + (1 << 30), -1))
with fitting.explaining(parts, step, parts.shapes()[-1]):
  large(x).block_until_ready()
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_a_step_without_memory_says_what_it_needs():
  """A process of its own, which may map 1 GiB more and needs 2 GiB.

  Threads that start meanwhile map some of it.
  """
  done = subprocess.run(
    [sys.executable, '-c', NO_ROOM],
    env={**os.environ, 'XLA_FLAGS': quick.xla_flags(devices=1)},
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  said = done.stderr.splitlines()[-1]
  assert done.returncode == 1, done.stderr
  assert said.startswith('gpt_jax.core.spec.FailedError: RESOURCE_EXHAUSTED: Out of')
  assert 'the step of 16 rows of 7 tokens needs 0.00 GiB on a device' in said
  assert 'give --config.batch.micro_rows=8, --config.model.remat=full' in said
