# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several processes post-train as one with all their devices does."""

import json

import numpy as np
import pytest

from gpt_jax.core.training import metrics
from tests.core.runtime.test_hosts import ends, start_command, start_python
from tests.support import tiny, whole_runs

SIZES = [
  '--init=none',
  *tiny.flags(
    model=dict(num_layers=1, d_model=32, num_heads=4, context_length=32),
    tokenizer=dict(name='bytes'),
    mesh=dict(data=2, fsdp=2),
    batch=dict(size=8),
    schedule=dict(name='constant(peak=1e-2)', num_steps=6),
    log=dict(every_steps=1),
  ),
]
# The reward model of the first scores the completions of the last.
TASKS = {
  'reward': "reward('', '')",
  'grpo': "grpo('', '', max_completion_length=5, num_generations=4, beta=0.1)",
  'ppo': "ppo('', '', max_completion_length=5, num_ppo_epochs=2)",
}
FUNCTION = """
import random

def letters(prompts, completions):
  draw = random.Random(completions[0])
  return [draw.random() + sum(c < 'm' for c in x) / 4 for x in completions]
"""


@pytest.fixture
def folder(tmp_path):
  pairs = [
    {'prompt': 'say ' + x, 'chosen': x * n, 'rejected': 'z' * n} for n, x in enumerate('abcdefg', 1)
  ]
  prompts = [{'prompt': x['prompt']} for x in pairs]
  for name, rows in ('pairs', pairs), ('prompts', prompts):
    text = ''.join(json.dumps(row) + '\n' for row in rows)
    (tmp_path / f'{name}.jsonl').write_text(text)
  (tmp_path / 'rewards.py').write_text(FUNCTION)
  return tmp_path


def run(folder, method, num_processes):
  """Trains; returns the metrics of each step, and result.json."""
  workdir = folder / f'{method}_{num_processes}'
  prompts = f'--prompts={folder}/prompts.jsonl'
  data = {
    'reward': [f'--train={folder}/pairs.jsonl'],
    'grpo': [prompts, f'--reward={folder}/rewards.py:letters'],
    'ppo': [prompts, f'--reward={folder}/reward_{num_processes}'],
  }[method]
  command = [
    method,
    f'--config=configs/finetune/{method}.py',
    f'--workdir={workdir}',
    f'--config.finetune.task={TASKS[method]}',
    *data,
    *SIZES,
  ]
  codes, said = ends(start_command(command, num_processes, devices=4))
  assert codes == [0] * num_processes, said
  result = json.loads((workdir / 'result.json').read_text())
  return metrics.read(str(workdir)), result


# Sends SIGTERM to one process at the second reward, or in the second rollout of
# its start, and waits until JAX has noticed; the processes then have drawn
# different numbers of tokens.
PREEMPTED = """
import os, signal, sys, time
from gpt_jax.__main__ import main
from gpt_jax.tuning import rollouts

moment, process = sys.argv[1], int(os.environ['JAX_PROCESS_ID'])
generate, score = rollouts.generate, rollouts.Rollouts._score
calls = {'draw': 0, 'score': 0}

def pause(name, sender):
  calls[name] += 1
  if name == moment and calls[name] == 2:
    if process == sender:
      os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(4)

def generated(*args, **options):
  for i, one in enumerate(generate(*args, **options)):
    if i == 1:
      pause('draw', sender=1)
    yield one

def scored(*args):
  pause('score', sender=0)
  return score(*args)

rollouts.generate, rollouts.Rollouts._score = generated, scored
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.long
@pytest.mark.slow  # eight processes; tests/core/runtime/test_hosts.py stops two
def test_processes_stop_together_in_a_rollout(folder):
  """And while one of them scores; the run ends in the same bits."""
  whole, stopped = folder / 'whole', folder / 'stopped'
  command = [
    'ppo',
    '--config=configs/finetune/ppo.py',
    f'--config.finetune.task={TASKS["ppo"]}',
    f'--prompts={folder}/prompts.jsonl',
    f'--reward={folder}/rewards.py:letters',
    *SIZES,
  ]
  codes, said = ends(start_command([*command, f'--workdir={whole}'], 2, 4))
  assert codes == [0, 0], said
  command.append(f'--workdir={stopped}')
  program = folder / 'preempted.py'
  program.write_text(PREEMPTED)
  for moment, step in ('draw', 2), ('score', 5):
    given = [str(program), moment, *command, '--distributed']
    codes, said = ends(start_python(given, 2, 4))
    assert codes == [75, 75], said
    saved = max(int(x.name) for x in (stopped / 'checkpoints').iterdir())
    assert saved == step, said
  codes, said = ends(start_command(command, 2, 4))
  assert codes == [0, 0], said
  assert whole_runs.logged(whole) == whole_runs.logged(stopped)
  whole_runs.same_state(whole, stopped, step=6)


def close(a, b, name):
  # Float32 sums in another order, over the steps.
  np.testing.assert_allclose(b, a, rtol=2e-3, atol=1e-4, err_msg=name)


@pytest.mark.slow  # runs in processes of their own
@pytest.mark.parametrize('methods', [['grpo'], ['reward', 'ppo']], ids=str)
def test_processes_equal_one(methods, folder):
  for method in methods:
    (one, first), (two, second) = (run(folder, method, n) for n in (1, 2))
    for a, b in zip(one, two, strict=True):
      for name in ('loss', 'grad_norm', 'reward', 'objective/scores'):
        if name in a:
          close(a[name], b[name], name)
    part = 'dev' if 'dev' in first else 'train'
    for name, x in first[part].items():
      if isinstance(x, float) and not name.startswith('memory/'):
        close(x, second[part][name], name)
