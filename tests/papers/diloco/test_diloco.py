# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""DiLoCo against its equations, data parallelism, other meshes and resumes."""

import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest

from gpt_jax.commands import train
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.nn import layers
from gpt_jax.core.objectives.loss import Loss
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime import preemption
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import metrics
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.opening import models
from gpt_jax.papers.diloco.diloco import DiLoCo
from gpt_jax.planning import collectives, hlo
from tests.support import tiny
from tests.support.cases import slow

ROWS, LENGTH = 16, 7

# The algorithm, on a quadratic.

H, K, STEPS = 3, 2, 8  # the last round has two steps
RATE, B1, B2, EPS, CLIP, DECAY = 0.1, 0.8, 0.9, 1e-8, 0.7, 0.05
OUTER_RATE, MOMENTUM = 0.6, 0.7
OUTER = DiLoCo(H, K, OUTER_RATE, MOMENTUM)
START = np.array([0.5, -1.0, 2.0])


def batch_of(step) -> dict[str, np.ndarray]:
  rng = np.random.default_rng(step)
  x = rng.normal(size=(2 * K + 2, 3))
  return {
    'x': np.float32(x),
    'y': np.float32(x @ [2.0, 0.3, -1.1] + 0.1 * rng.normal(size=len(x))),
    # Replicas have different weights.
    'w': np.float32(rng.random(len(x))),
  }


def loss(params, batch, key):
  del key
  errors = batch['x'] @ params['theta'] - batch['y']
  return Loss((batch['w'] * errors**2).sum(), batch['w'].sum(), 0.0, {})


def expected():
  """Algorithm 1 by NumPy, in float64: theta and gradient after each step."""
  theta, velocity, norm = START.copy(), np.zeros(3), 0.0
  own = [theta.copy() for _ in range(K)]
  mean, square = np.zeros((K, 3)), np.zeros((K, 3))
  for step in range(1, STEPS + 1):
    batch, losses = batch_of(step), []
    for k in range(K):
      x, y, w = (
        np.float64(v).reshape(K, -1, *v.shape[1:])[k] for v in (batch['x'], batch['y'], batch['w'])
      )
      errors = x @ own[k] - y
      losses.append(np.sum(w * errors**2) / w.sum())
      g = 2 * (w * errors) @ x / w.sum()
      g *= min(1, CLIP / (np.linalg.norm(g) + 1e-6))
      mean[k] = B1 * mean[k] + (1 - B1) * g
      square[k] = B2 * square[k] + (1 - B2) * g**2
      unbiased = mean[k] / (1 - B1**step)
      scale = np.sqrt(square[k] / (1 - B2**step)) + EPS
      own[k] = own[k] - RATE * (unbiased / scale + DECAY * own[k])
    if step % H == 0 or step == STEPS:
      delta = theta - np.mean(own, axis=0)
      norm = np.linalg.norm(delta)
      velocity = MOMENTUM * velocity + delta
      theta = theta - OUTER_RATE * (delta + MOMENTUM * velocity)
      own = [theta.copy() for _ in range(K)]
    yield theta, np.array(own), np.mean(losses), norm


def quadratic(function):
  """The first state and the step of a loss."""
  inner = optax.adamw(RATE, B1, B2, EPS, weight_decay=DECAY)
  params = {'theta': np.float32(START)}
  state = TrainState(np.int32(0), params, OUTER.init(params, inner.init(params)))
  step = functools.partial(
    OUTER.train_step,
    objective=tiny.LossOnly(function),
    optimizer=inner,
    schedule=optax.constant_schedule(RATE),  # `inner` has it already
    seed=0,
    clip_norm=CLIP,
    num_micro=1,
    average=None,
    num_steps=STEPS,
  )
  return state, jax.jit(step)


def test_it_is_algorithm_1():
  state, step = quadratic(loss)
  with jax.set_mesh(tiny.make_mesh(1, 1, 1)):
    for number, wanted in enumerate(expected(), start=1):
      state, out = step(state, batch_of(number))
      (out,) = OUTER.pooled([out])
      found = (
        state.params['theta'],
        state.opt_state.params['theta'],
        out['loss'],
        out['outer_grad_norm'],
      )
      for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


def test_replicas_draw_by_themselves():
  def noisy(params, batch, key):
    factors = layers.draw_by_row(jax.random.uniform, key, batch['x'].shape)
    return loss(params, {**batch, 'x': batch['x'] * factors}, key)

  state, step = quadratic(noisy)
  same = {x: np.concatenate([y[: K + 1]] * K) for x, y in batch_of(1).items()}
  with jax.set_mesh(tiny.make_mesh(1, 1, 1)):
    state, _ = step(state, same)
  np.testing.assert_array_equal(state.params['theta'], np.float32(START))
  moments: Any = state.opt_state.opt_state
  first, second = (np.asarray(x) for x in moments[0].mu['theta'])
  assert np.all(first != second)


# A model, on several devices.


def batch(number):
  ids = tiny.tokens(ROWS, LENGTH + 1, seed=number, vocab_size=48)
  weights = np.ones((ROWS, LENGTH), np.float32)
  return {'inputs': ids[:, :-1], 'targets': ids[:, 1:], 'weights': weights}


@functools.cache
def trained(sizes, steps, **fields):
  """Run, program, state and metrics after some steps."""
  fields = {
    **tiny.MESHABLE,
    'batch.micro_rows': 0,
    'schedule.name': 'constant(peak=0.03)',
    **fields,
  }
  run = tiny.build(tiny.config(**fields), sizes)
  program = compiled_lib.compile_train_step(run).call
  state, outputs = parts_lib.initial_state(run), []
  for number in range(steps):
    state, out = program(state, run.put(batch(number), ROWS))
    outputs.append(out)
  outputs = run.outer.pooled(outputs) if run.outer else outputs
  return run, program.as_text(), jax.device_get(state), jax.device_get(outputs)


SGD = {'optim.name': 'sgd', 'optim.clip_norm': 0.0}


def test_with_one_step_and_sgd_it_is_data_parallelism():
  one = 'diloco(steps=1, replicas=4, learning_rate=1.0, momentum=0.0)'
  _, _, alone, logged = trained((1, 1, 1), 5, **SGD)
  _, _, state, pooled = trained((4, 2, 1), 5, **SGD, **{'optim.outer': one})
  tiny.assert_close(state.params, alone.params)
  losses = [[out['loss'] for out in outs] for outs in (logged, pooled)]
  np.testing.assert_allclose(*losses, rtol=1e-5)
  # The gradient of the mean is that which the outer step took.
  np.testing.assert_allclose(
    pooled[-1]['outer_grad_norm'], 0.03 * logged[-1]['grad_norm'], rtol=1e-4
  )


TWO = {
  'optim.outer': 'diloco(steps=2, replicas=4)',
  # Adam would turn gradients that are nothing but rounding into whole steps.
  'optim.name': 'adamw(eps=1e-2)',
  'optim.clip_norm': 0.5,
}


# On two devices of `data` each has two of the replicas.
@pytest.mark.parametrize('sizes', [(4, 2, 1), slow((2, 2, 2))])
def test_a_mesh_changes_nothing_and_replicas_send_in_outer_steps_alone(sizes):
  # The step after the second outer one.
  _, _, alone, _ = trained((1, 1, 1), 5, **TWO)
  run, text, state, _ = trained(sizes, 5, **TWO)
  tiny.assert_close(state.params, alone.params)
  tiny.assert_close(state.opt_state.params, alone.opt_state.params)

  program = hlo.parse(text)
  (outer,) = [
    way.name
    for computation in program.computations.values()
    for x in computation.instructions.values()
    if x.opcode == 'conditional'
    for way, share in [hlo.taken(program, x)]
    if share < 1
  ]
  over = [x for x in collectives.read(program, run.mesh) if 'data' in x.axes]
  assert {x.at[0] for x in over} == {outer}
  assert {(x.axes, x.kind, x.trips) for x in over} == {(('data',), 'all-reduce', 1 / 2)}
  # Each device sends its part of the parameters, in float32, as a ring does;
  # of what is whole along `tensor`, it may send a share.
  data = run.mesh.shape['data']
  part = parts_lib.on_device(parts_lib.abstract_state(run).params)
  sent = 2 * sum(x.bytes for x in over)
  assert sent == pytest.approx(2 * (data - 1) / data * part, rel=0.1)


# Whole runs.


@pytest.mark.slow  # three runs
def test_a_run_resumes_within_a_round_and_is_read_by_its_outer_parameters(tmp_path, monkeypatch):
  words = np.random.default_rng(0).integers(1000, size=2000)
  (tmp_path / 'a.txt').write_text(' '.join(map(str, words)))
  config = tiny.config(
    **{
      **tiny.MESHABLE,
      'model.vocab_size': 264,
      'model.num_layers': 1,
      'model.dropout': 'rates(residual=0.1)',
      'optim.outer': 'diloco(steps=3, replicas=4)',
      'optim.precision': 'bfloat16',
      'optim.ema': 'ema(decay=0.7)',
      'data.source': f"text('{tmp_path}/*.txt')",
      'data.holdout': 'none',
      'data.store': f'{tmp_path}/data',
      'tokenizer.name': 'bytes',
      'schedule.num_steps': 7,
      'checkpoint.every_steps': 100,
      'eval.every_steps': 0,
      'log.every_steps': 1,
      'log.sample_prompt': '',
      'mesh.data': 4,
      'mesh.fsdp': 2,
    }
  )

  def end(name):
    config = models.read_config(f'{tmp_path}/{name}')
    run = parts_lib.build(config)
    checkpointer = Checkpointer(f'{tmp_path}/{name}', read_only=True)
    state = checkpointer.restore(parts_lib.abstract_state(run))
    checkpointer.close()
    logged = [
      (m['step'], m['loss'], m['grad_norm'], m['outer_grad_norm'])
      for m in metrics.read(f'{tmp_path}/{name}')
      if 'loss' in m
    ]
    return jax.device_get(state), logged

  def same(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: x.tobytes() == y.tobytes(), a, b))

  train.train(config, f'{tmp_path}/whole')
  steps = iter(range(1, 100))
  with monkeypatch.context() as m:
    m.setattr(preemption, 'reached', lambda: next(steps) == 5)
    with pytest.raises(preemption.Preempted):
      train.train(config, f'{tmp_path}/stopped')
  middle, logged = end('stopped')
  assert (int(middle.step), len(logged)) == (5, 5)
  # In its second round: the replicas are not where the outer parameters are.
  assert not same(middle.params, jax.tree.map(lambda x: x[0], middle.opt_state.params))
  _, read = models.load_state(f'{tmp_path}/stopped')
  assert same(jax.device_get(read.params), middle.params)

  train.train(config, f'{tmp_path}/stopped')
  (state, logged), (whole, wanted) = end('stopped'), end('whole')
  assert len(wanted) == 7
  assert logged == wanted
  assert same(state, whole)
  # The last step ends a round.
  assert same(state.params, jax.tree.map(lambda x: x[0], state.opt_state.params))
  norms = [norm for *_, norm in logged]
  assert norms[:2] == [0, 0]
  assert norms[2] == norms[3] != norms[5] != norms[6]
