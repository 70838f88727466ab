# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From what routers did in each step to metrics, warnings and a picture."""

import functools
import json

import jax
import numpy as np
import pytest

from gpt_jax import config as config_lib
from gpt_jax.plots import runs
from gpt_jax.plots import runs as plot_routers
from gpt_jax.training import compiled as compiled_lib
from gpt_jax.training import metrics
from gpt_jax.training import parts as parts_lib
from gpt_jax.training.metrics import Metrics, TensorBoard
from tests.support import tiny

SWITCH = 'switch(num_experts=3)'


def config(**changes):
  return config_lib.resolve_model(tiny.config(**changes))


@pytest.mark.parametrize(
  'ffn, attention, num_layers, layers',
  [
    (SWITCH, 'full', 3, [0, 1, 2]),
    (f'relu, {SWITCH}', 'full', 6, [1, 3, 5]),
    (f'relu, relu, {SWITCH}', 'full, local(window=5)', 6, [2, 5]),
    (f'{SWITCH}, relu, {SWITCH}', 'full', 3, [0, 2]),
    ('relu', 'full', 3, []),
  ],
)
def test_layers_are_those_of_the_model(ffn, attention, num_layers, layers):
  changes = {
    'model.ffn': ffn,
    'model.attention': attention,
    'model.num_layers': num_layers,
  }
  assert metrics.layers(config(**changes), 'decoder') == layers


def test_layers_of_an_encoder():
  found = config(
    **{
      'model.ffn': f'relu, {SWITCH}',
      'model.num_layers': 2,
      'model.num_encoder_layers': 4,
    }
  )
  assert metrics.layers(found, 'encoder') == [1, 3]


def output(loads, dropped):
  """What a step reports of two layers, whose entropy is as they drop."""
  return {
    'loss': np.float32(2.5),
    'router/decoder/load_E': np.array(loads, np.float32),
    'router/decoder/dropped': np.array(dropped, np.float32),
    'router/decoder/entropy': np.array(dropped, np.float32) / 2,
  }


EVERY_SECOND = {'model.ffn': f'relu, {SWITCH}', 'model.num_layers': 4}
OUTPUTS = [
  output([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], [0.25, 0.0]),
  output([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]], [0.75, 0.0]),
]


def test_metrics_pool_the_steps_of_the_interval():
  found = metrics.metrics(config(**EVERY_SECOND), OUTPUTS)
  assert found == {
    'router/decoder/layer_1/load': [0.5, 0.5, 0.0],
    'router/decoder/layer_1/dead': 1,
    'router/decoder/layer_3/load': [0.5, 0.25, 0.25],
    # Each was without a token in one step, none in both.
    'router/decoder/layer_3/dead': 0,
    'router/decoder/layer_1/dropped': 0.5,
    'router/decoder/layer_3/dropped': 0.0,
    'router/decoder/layer_1/entropy': 0.25,
    'router/decoder/layer_3/entropy': 0.0,
  }
  assert json.loads(json.dumps(found)) == found


def test_no_metrics_without_experts_or_steps():
  assert metrics.metrics(config(), [{'loss': np.float32(1)}]) == {}
  assert metrics.metrics(config(**EVERY_SECOND), []) == {}


def test_one_warning_names_the_dead():
  found = metrics.metrics(config(**EVERY_SECOND), OUTPUTS)
  text = metrics.dead_experts({'loss': 2.5, **found})
  assert text.endswith(': decoder layer 1 expert 2')
  assert metrics.dead_experts({'loss': 0.0}) == ''
  del found['router/decoder/layer_1/load']
  assert metrics.dead_experts(found) == ''


def test_a_warning_stays_short():
  loads = {'router/decoder/layer_0/load': [0.0] * 2000 + [1.0]}
  text = metrics.dead_experts(loads)
  assert text.endswith('layer 0 expert 7, and 1992 more')
  assert len(text) < 400


@pytest.mark.slow
def test_metrics_of_a_training_step():
  """Against the choices that the model sows for the same tokens."""
  changes = {
    **tiny.MESHABLE,
    # The same in training and evaluation.
    'model.ffn': 'relu, switch(num_experts=3, jitter=0.0, capacity_factor=0.5, '
    'eval_capacity_factor=0.5)',
    'model.num_layers': 4,
    'model.context_length': 13,
  }
  run = tiny.build(tiny.config(**changes), (1, 1, 1))
  state = parts_lib.initial_state(run)
  batch = tiny.batch(16, 13, 48)
  apply = functools.partial(run.model.apply, mutable=['intermediates'])
  _, sown = jax.jit(apply)({'params': state.params}, batch['inputs'])
  logits = sown['intermediates']['decoder']['periods']['block_1']['ffn'][
    'router_logits'
  ][0]
  _, out = compiled_lib.compile_train_step(run).call(state, run.put(batch, 16))
  found = metrics.metrics(run.config, [jax.device_get(out)])
  assert len(found) == 2 * 7  # the six of `Stats`, and `dead`
  for period, layer in enumerate((1, 3)):
    chosen = np.argmax(logits[period], axis=-1)
    counts = np.array([np.bincount(row, minlength=3) for row in chosen])
    place = f'router/decoder/layer_{layer}'
    np.testing.assert_allclose(
      found[f'{place}/load'], counts.sum(axis=0) / counts.sum(), rtol=1e-3
    )
    # Two slots: 13 tokens of a row, half of them, by three experts.
    past = np.maximum(counts - 2, 0).sum() / counts.sum()
    np.testing.assert_allclose(found[f'{place}/dropped'], past, rtol=1e-5)


@pytest.mark.parametrize('num_experts', [3, 17])
def test_picture(tmp_path, num_experts):
  board = TensorBoard(str(tmp_path), step=0)
  log = Metrics(str(tmp_path), step=0, active=True, trackers=[board])
  rng = np.random.default_rng(0)
  for step in (5, 10, 15):
    values = {'tokens': step, 'loss': 2.5}
    for layer in (1, 3):
      place = f'router/decoder/layer_{layer}'
      values[f'{place}/load'] = rng.dirichlet(np.ones(num_experts)).tolist()
      values[f'{place}/dropped'] = values[f'{place}/entropy'] = 0.5
    log.write(step, **values)
    log.write(step, **{'eval/validation/loss': 2.0})
  log.close()
  path = plot_routers.router_curves(str(tmp_path))
  assert path == str(tmp_path / 'router.png')
  assert (tmp_path / 'router.png').read_bytes().startswith(b'\x89PNG')
  # Lists are for the JSON lines; TensorBoard has one figure a layer.
  [events] = (tmp_path / 'tensorboard').iterdir()
  assert b'layer_3/dropped' in events.read_bytes()
  assert b'/load' not in events.read_bytes()


def test_no_picture_without_experts(tmp_path):
  log = Metrics(str(tmp_path), step=0, active=True)
  log.write(1, tokens=1, loss=2.5)
  log.close()
  assert plot_routers.router_curves(str(tmp_path)) is None
  assert runs.loss_curves([str(tmp_path)])
  assert not (tmp_path / 'router.png').exists()
