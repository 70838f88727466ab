# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norms by layer: their values, on any mesh, in the metrics of a run."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.core import sharding
from gpt_jax.core.nn.stack import layer_outputs
from gpt_jax.core.training import compiled, norm_lines, norms
from gpt_jax.core.training import metrics as metrics_lib
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.reports import norms as reported
from tests.support import tiny
from tests.support.cases import slow

ROWS, LENGTH, LAYERS = 16, 7, 4
FIELDS = {
  **tiny.MESHABLE,
  'model.num_layers': LAYERS,
  'model.attention': 'full, local(window=3)',
  'model.bias': 'none',
  'optim.name': 'sgd',
  'optim.clip_norm': 0.01,
  'schedule.name': 'constant(peak=5)',
  'log.norms_every_steps': 2,
}


def build(sizes=(1, 1, 1), stage=1, **fields):
  return tiny.build(tiny.config(**{**FIELDS, **fields}), sizes, stage=stage)


def step(run, done, params=None, rows=ROWS):
  """A step's next state and metrics, after `done` steps."""
  shape = run.ramp.stages[0].shape
  jitted, _ = compiled.jit_train_step(run, shape)
  given = params or tiny.params(run.model)
  with sharding.use(run.mesh, run.rules):
    state = parts_lib.initial_state(run, {})
    state = state._replace(step=jnp.int32(done), params=jax.device_put(given, run.shardings.params))
    state, metrics = jitted(state, run.put(tiny.batch(rows, LENGTH, 48), rows))
  return jax.device_get((state, metrics))


@functools.cache
def alone():
  return step(build(), 1)


def norm(tree):
  return np.sqrt(sum(np.sum(np.square(x.astype(float))) for x in jax.tree.leaves(tree)))


def layer(tree, index):
  """The parameters of one layer, of periods of two."""
  block = tree['decoder']['periods'][f'block_{index % 2}']
  return jax.tree.map(lambda x: x[index // 2], block)


def test_norms_are_of_each_layer():
  run = build()
  params, batch = tiny.params(run.model), tiny.batch(ROWS, LENGTH, 48)

  def loss(params):
    found = run.objective.loss(params, batch, None)
    return found.sum / found.weight

  gradient = jax.jit(jax.grad(loss))(params)
  state, metrics = alone()
  found = metrics['norms']
  update = jax.tree.map(np.subtract, state.params, params)
  for kind, tree in (('gradient', gradient), ('parameter', params), ('update', update)):
    expected = [norm(layer(tree, i)) for i in range(LAYERS)]
    np.testing.assert_allclose(found[f'{kind}_norm/decoder'], expected, rtol=2e-4)
    for part in {*params} - {'decoder'}:
      np.testing.assert_allclose(found[f'{kind}_norm/{part}'], norm(tree[part]), rtol=2e-4)
  # The update is clipped, the gradient is not.
  total = norm([found[name] for name in found if name.startswith('gradient')])
  np.testing.assert_allclose(total, metrics['grad_norm'], rtol=1e-5)
  assert total > 0.05
  _, sown = run.model.apply({'params': params}, batch['inputs'], mutable=['intermediates'])
  outputs = layer_outputs(sown['intermediates'])
  expected = [np.sqrt(np.mean(np.square(x))) for x in outputs]
  np.testing.assert_allclose(found['activation_rms/decoder'], expected, rtol=1e-5)


def test_the_largest_logit_grows_with_the_queries_of_its_layer():
  """The first layer's input does not depend on them."""
  params = tiny.params(build().model)
  grown = jax.tree.map(np.copy, params)
  query = grown['decoder']['periods']['block_0']['attention']['query']['kernel']
  query[0] *= 3
  _, metrics = step(build(), 1, grown)
  found, before = (m['norms']['largest_logit/decoder'] for m in (metrics, alone()[1]))
  assert before[0] > 0.1
  np.testing.assert_allclose(found[0], 3 * before[0], rtol=1e-5)
  assert before.shape == (LAYERS,) and len({*before}) == LAYERS


@pytest.mark.parametrize(
  'sizes, stage, micro_rows',
  [
    # Of 16 rows in six parts, two are padding.
    ((1, 1, 1), 1, 3),
    ((2, 2, 1), 1, 2),
    slow((1, 4, 2), 1, 4),
    slow((8, 1, 1), 1, 1),
    slow((1, 1, 1), 2, 4),
    slow((2, 1, 2), 2, 2),
  ],
)
def test_norms_do_not_depend_on_the_mesh_or_on_micro_batches(sizes, stage, micro_rows):
  run = build(sizes, stage, **{'batch.micro_rows': micro_rows})
  _, metrics = step(run, 1)
  tiny.assert_close(metrics['norms'], alone()[1]['norms'])


def test_only_their_steps_measure_and_all_have_the_same_bits():
  """In other steps they are zeros; without the field there is nothing."""
  _, metrics = step(build(), 2)
  assert not any(np.any(x) for x in jax.tree.leaves(metrics['norms']))
  off = build(**{'log.norms_every_steps': 0})
  state, metrics = step(off, 1)
  assert 'norms' not in metrics
  jax.tree.map(np.testing.assert_array_equal, state, alone()[0])
  shape = off.ramp.stages[0].shape
  for run, is_there in ((off, False), (build(), True)):
    jitted, args = compiled.jit_train_step(run, shape)
    with sharding.use(run.mesh, run.rules):
      traced = jitted.trace(*args)
      # By which `plan` counts them in every second step.
      named = traced.lower().as_text(debug_info=True)
      assert ('cond[' in str(traced.jaxpr)) == ('every_2_steps' in named) == is_there


def test_shared_parameters_count_in_each_layer_that_takes_them():
  rng = np.random.default_rng(0)

  def draw(*shape):
    return np.float32(rng.normal(size=shape))

  tree = {
    'decoder': {'periods': {'block_0': {'attention': draw(2, 3), 'ffn': draw(6, 5, 7)}}},
    'embed': draw(11),
    'parts': {'generator': {'encoder': {'periods': {'block_0': draw(3, 2)}}, 'head': draw(5)}},
  }
  found = norms.by_part(tree)
  block = tree['decoder']['periods']['block_0']
  # Six layers in two groups of three.
  expected = [norm([block['attention'][i // 3], block['ffn'][i]]) for i in range(6)]
  np.testing.assert_allclose(found['decoder'], expected, rtol=1e-6)
  np.testing.assert_allclose(found['embed'], norm(tree['embed']), rtol=1e-6)
  generator = tree['parts']['generator']
  expected = [norm(x) for x in generator['encoder']['periods']['block_0']]
  np.testing.assert_allclose(found['generator.encoder'], expected, rtol=1e-6)
  np.testing.assert_allclose(found['generator.head'], norm(generator['head']), rtol=1e-6)
  assert len(found) == 4


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run of 14 steps that was stopped after the tenth and went on."""
  folder = str(tmp_path_factory.mktemp('norms') / 'run')
  for steps in (10, 14):
    fields = tiny.flags(
      model=dict(num_layers=2, d_model=24, num_heads=2, num_kv_heads=2, head_size=12, d_ff=40),
      schedule=dict(num_steps=steps, name='constant(peak=1e-3)'),
      batch=dict(size=4),
      checkpoint=dict(every_steps=5),
      log=dict(every_steps=5, norms_every_steps=3, sample_tokens=0),
      eval=dict(num_batches=1, rows=4),
    )
    command = ['train', *tiny.SMOKE, '--config.model.context_length=16', '--workdir', folder]
    assert main([*command, *fields]) == 0
  return folder


def read(workdir):
  with open(f'{workdir}/metrics.jsonl', encoding='utf-8') as f:
    return [json.loads(line) for line in f]


def test_a_run_logs_them_at_their_own_steps(workdir):
  lines = [x for x in read(workdir) if any(map(metrics_lib.NORM.fullmatch, x))]
  assert [line['step'] for line in lines] == [3, 6, 9, 12]
  names = {name for name in lines[0] if metrics_lib.NORM.fullmatch(name)}
  assert all({*line} == names | {'step', 'time'} for line in lines)
  kinds = {name.split('/')[0] for name in names}
  assert kinds == {*norm_lines.KINDS}
  for kind in kinds:
    assert {f'{kind}/decoder/layer_0', f'{kind}/decoder/layer_1'} <= names
  # In the order of the steps, before the line of losses of their interval.
  steps = [line['step'] for line in read(workdir) if 'event' not in line]
  assert steps == sorted(steps)


def test_trackers_get_them(workdir):
  names = {name for line in read(workdir) for name in line if metrics_lib.NORM.fullmatch(name)}
  shown = b''.join(path.read_bytes() for path in pathlib.Path(workdir, 'tensorboard').iterdir())
  assert names and all(name.encode() in shown for name in names)


def test_plot_and_report_draw_them(workdir, capsys):
  main(['plot', '--workdir', workdir])
  assert f'{workdir}/norms.png' in capsys.readouterr().out
  main(['report', '--workdir', workdir])
  with open(f'{workdir}/report.html', encoding='utf-8') as f:
    page = f.read()
  for told in norm_lines.KINDS.values():
    assert told.replace("'", '&#39;') in page or told in page


def test_a_table_has_a_row_for_each_part(workdir):
  steps, parts, values_PS = reported.table(read(workdir), 'update_norm')
  assert steps == [3, 6, 9, 12]
  assert parts[-2:] == ['decoder/layer_0', 'decoder/layer_1'] and 'embed' in parts
  assert values_PS.shape == (len(parts), 4) and np.all(values_PS > 0)


def test_replicas_that_train_apart_are_refused(capsys):
  fields = tiny.flags(optim=dict(outer='diloco(replicas=2)'), log=dict(norms_every_steps=3))
  assert main(['inspect', *tiny.SMOKE, *fields]) == 2
  assert 'log.norms_every_steps' in capsys.readouterr().err
