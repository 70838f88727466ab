# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run takes more steps where that changes nothing of those it has done."""

import pathlib

import jax
import numpy as np
import pytest

from gpt_jax.commands import train
from gpt_jax.core import config as config_lib
from gpt_jax.core.runtime import preemption
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import metrics
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.opening import models as trained_lib
from tests.support import tiny, whole_runs


def config(folder, **changes):
  return tiny.config(
    **{
      **tiny.MESHABLE,
      'seed': 5,
      'model.vocab_size': 264,
      'model.num_layers': 1,
      'model.dropout': 'rates(residual=0.1)',
      'optim.ema': 'ema(decay=0.7)',
      'data.source': f"text('{folder}/*.txt')",
      'data.holdout': 'none',
      'data.store': f'{folder}/data',
      'tokenizer.name': 'bytes',
      'checkpoint.every_steps': 4,
      'eval.every_steps': 0,
      'log.every_steps': 1,
      'log.sample_prompt': '',
      **changes,
    }
  )


def end(workdir: pathlib.Path):
  """The state, bit for bit, and what was logged of each step."""
  state = whole_runs.state_of(workdir)
  logged = [
    (m['step'], m['loss'], m['learning_rate'], m['tokens'])
    for m in metrics.read(str(workdir))
    if 'loss' in m
  ]
  return [np.asarray(x).tobytes() for x in jax.tree.leaves(state)], logged


@pytest.mark.slow  # three runs; the fast ones check what may change
@pytest.mark.parametrize(
  ('schedule', 'first', 'stopped'),
  [
    # Stopped after 5 of 8 steps, whose decay has 3; complete after 5.
    ("wsd(peak=1e-3, cooldown=3, warmup=2, shape='sqrt')", 8, 5),
    ('constant(peak=1e-3, warmup=2)', 5, None),
  ],
)
def test_it_ends_as_if_it_had_them_from_the_beginning(
  tmp_path, monkeypatch, schedule, first, stopped
):
  words = np.random.default_rng(0).integers(1000, size=2000)
  (tmp_path / 'a.txt').write_text(' '.join(map(str, words)))

  def run(name, num_steps):
    changes = {'schedule.name': schedule, 'schedule.num_steps': num_steps}
    train.train(config(tmp_path, **changes), f'{tmp_path}/{name}')

  run('whole', 11)
  if stopped:
    steps = iter(range(1, 100))
    with monkeypatch.context() as m:
      m.setattr(preemption, 'reached', lambda: next(steps) == stopped)
      with pytest.raises(preemption.Preempted):
        run('more', first)
  else:
    run('more', first)
  run('more', 11)
  state, logged = end(tmp_path / 'more')
  whole, logged_whole = end(tmp_path / 'whole')
  assert len(logged_whole) == 11
  assert logged == logged_whole
  assert state == whole
  # The longer run is the run now.
  read = trained_lib.read_config(str(tmp_path / 'more'))
  assert read.schedule.num_steps == 11
  with pytest.raises(UsageError, match='num_steps: 11 -> 8; 11 steps are done'):
    run('more', 8)


DONE = 7
COSINE = 'cosine(peak=1e-3, warmup=2)'
WSD = 'wsd(peak=1e-3, cooldown=3, warmup=2)'


def check(folder, before, after, **changes):
  made = [
    config_lib.resolve(
      tiny.config(**{'schedule.name': name, 'schedule.num_steps': steps, **changes})
    )
    for name, steps in (before, after)
  ]
  (folder / 'config.json').write_text(config_lib.to_json(made[0]))
  (folder / 'metrics.jsonl').write_text(f'{{"step": {DONE}}}\n')
  workdir_lib.check_same_run(made[1], str(folder))


@pytest.mark.parametrize(
  ('schedule', 'before', 'after'),
  [
    ('constant(peak=1e-3)', DONE, 8),
    ('constant(peak=1e-3)', 100, DONE),
    (WSD, 10, 11),
    (WSD, 12, 10),
    ('rsqrt(peak=1e-3, hold=2)', 7, 90),
    ('cosine(peak=1e-3, warmup=2, decay=5)', DONE, 9),
    ('noam(d_model=17, warmup=3)', 8, 9),
    # No step of the decay is done: both are in their warm-up.
    ('linear(peak=1e-3, warmup=7)', 8, 9),
  ],
)
def test_steps_may_change_where_the_past_does_not(tmp_path, schedule, before, after):
  check(tmp_path, (schedule, before), (schedule, after))


@pytest.mark.parametrize(
  ('before', 'after', 'changes', 'why'),
  [
    ((COSINE, 8), (COSINE, 9), {}, 'the learning rate of step 4, which is done'),
    # Of 8 steps the sixth has the peak still.
    ((WSD, 8), (WSD, 20), {}, 'the learning rate of step 7, which is done'),
    ((WSD, 20), (WSD, 8), {}, 'the learning rate of step 7, which is done'),
    (('constant(peak=1e-3)', 9), ('constant(peak=1e-3)', 6), {}, '7 steps are'),
    (
      ('constant(peak=1e-3)', 10),
      ('constant(peak=1e-3)', 20),
      {'batch.size': 'ramp(8, 50%:16)'},
      r'batch\.size or batch\.length of the 7 steps done would differ',
    ),
    (
      ('constant(peak=1e-3)', 10),
      ('constant(peak=1e-3)', 20),
      {'objective.name': 'auxiliary()'},
      r'auxiliary\(\).* depends on the last step',
    ),
    *(
      (
        ('constant(peak=1e-3)', before),
        ('constant(peak=1e-3)', after),
        {'optim.outer': 'diloco(steps=2, replicas=4)'},
        'step 7, which is done, ends a round of optim.outer=',
      )
      for before, after in ((DONE, 9), (9, DONE))
    ),
    (('constant(peak=1e-3)', 9), ('constant(peak=2e-3)', 9), {}, 'schedule.name'),
  ],
)
def test_a_refusal_says_why_and_names_optim_start(tmp_path, before, after, changes, why):
  with pytest.raises(UsageError, match=why) as error:
    check(tmp_path, before, after, **changes)
  assert str(error.value).endswith(
    '); give the same values, or another --workdir, where '
    f'--config.optim.start={tmp_path} starts from its weights'
  )
