# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The mean of checkpoints, against NumPy's of what was saved."""

import jax
import numpy as np
import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import parts
from gpt_jax.opening import models
from tests.support import tiny, whole_runs
from tests.support.cases import slow

STEPS = (3, 5, 7, 11)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """Four checkpoints of random parameters, with an average of their own."""
  folder = tmp_path_factory.mktemp('run')
  fields = {**tiny.MESHABLE, 'optim.ema': 'ema(decay=0.9)'}
  fields['model.num_layers'] = 1
  built = parts.build(config_lib.resolve(tiny.config(**fields)))
  abstract = parts.abstract_state(built)
  state, saved = parts.initial_state(built), []
  saver = Checkpointer(str(folder), keep=9)
  for step in STEPS:
    params = tiny.random_like(state.params, seed=step)
    saved.append(params)
    ema = tiny.random_like(state.params, seed=step + 100)
    state = state._replace(step=np.int32(step) + 0 * state.step, params=params, ema=ema)
    saver.save(jax.device_put(state, built.shardings))
  saver.close()
  return str(folder), models.StoredModel(abstract), saved


@pytest.mark.parametrize('number', [slow(1), 3])
def test_the_mean_of_the_last(run, number):
  """Of parameters, never of `ema`; the step is the newest."""
  folder, reads, saved = run
  state, steps = models.average_last(folder, number, reads)
  assert steps == STEPS[-number:]
  assert state.ema is None and int(state.step) == 11
  for found, *trees in zip(
    jax.tree.leaves(state.eval_params), *map(jax.tree.leaves, saved[-number:]), strict=True
  ):
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.mean(trees, axis=0), atol=1e-6)


def test_too_few_and_damaged_ones_are_refused(run):
  folder, reads, _ = run
  with pytest.raises(UsageError) as e:
    models.average_last(folder, 5, reads)
  message = str(e.value)
  assert 'keeps 4 checkpoints, of steps 3, 5, 7, 11;' in message
  assert 'checkpoint.keep=5' in message and '--average=5' in message
  with open(f'{folder}/checkpoints/5/checksums/metadata', 'w') as file:
    file.write('{}')
  with pytest.raises(UsageError, match='checkpoints/5 is damaged'):
    models.average_last(folder, 3, reads)
  assert models.average_last(folder, 2, reads)[1] == (7, 11)


@pytest.mark.slow
def test_evaluations_start_the_mean_as_a_given_step_does(tmp_path):
  """To the last bit, and resumed, when only the evaluations are known."""
  changes = {
    'schedule__num_steps': 12,
    'schedule__name': 'constant(peak=80.0)',
    'eval__every_steps': 1,
  }
  run = whole_runs.trained('ulmfit', tmp_path / 'a', **changes, optim__ema='mean(patience=1)')
  losses = whole_runs.values(run.workdir, 'eval/validation/loss')
  start = next(i + 1 for i in range(2, 12) if losses[i] > min(losses[: i - 1]))
  assert start < 9
  state = whole_runs.assert_resumes(run, tmp_path / 'resumed')
  means, weights = map(jax.tree.leaves, (state.ema, state.params))
  assert any(np.any(a != b) for a, b in zip(means, weights, strict=True))
  fixed = whole_runs.trained('ulmfit', tmp_path / 'b', **changes, optim__ema=f'mean(start={start})')
  whole_runs.same_state(run.workdir, fixed.workdir)
