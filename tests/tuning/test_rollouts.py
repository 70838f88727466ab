# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`gpt-jax grpo` and `gpt-jax ppo`, as a user would run them."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.runtime import preemption
from gpt_jax.core.training import metrics, report
from gpt_jax.opening import models
from gpt_jax.tuning import rollouts
from tests.support import tiny, whole_runs
from tests.support.cases import slow
from tests.support.tiny import one_device  # noqa: F401 (of eight, programs compile for longer)

ROOT = pathlib.Path(__file__).parents[2]
REWARDS = """
def arms(prompts, completions):
  return [(1.0 if x == "9" else 0.05 * int(x)) if x in tuple("0123456789")
          else 0.0 for x in completions]

calls = []

def fails_once(prompts, completions):
  calls.append(1)
  return [float('nan') if len(calls) == 3 else 0.5 * (x < 'm')
          for x in completions]

def letters(prompts, completions, letter, mark=None, **columns):
  assert len(letter) == len(prompts) == len(completions)
  assert not columns
  # The other line has none, whichever prompts are in a rollout.
  assert mark == [dict(b="B", c="C").get(x) for x in letter]
  return [sum(c < 'm' for c in x) / 4 for x in completions]
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('files')
  (folder / 'rewards.py').write_text(REWARDS)
  rows = [
    {'prompt': 'say ' + x * n, 'letter': x, **({'mark': x.upper()} if n > 1 else {})}
    for n, x in enumerate('abc', 1)
  ]
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  (folder / 'prompts.jsonl').write_text(text)
  (folder / 'texts.jsonl').write_text('{"text": "a b c"}\n{"text": "say d"}\n')
  return folder


def flags(folder, task, reward, *fields, steps, init='none'):
  method, _, arguments = task.partition('(')
  sizes = [
    *tiny.flags(
      model=dict(num_layers=1, d_model=32, num_heads=4, context_length=32, dtype='float32'),
      tokenizer=dict(name='bytes'),
    )
  ]
  return [
    f'--config={ROOT}/configs/finetune/{method}.py',
    f'--init={init}',
    *(sizes if init == 'none' else []),
    f"--config.finetune.task={method}('', '', {arguments}",
    f'--prompts={folder}/prompts.jsonl',
    f'--reward={folder}/rewards.py:{reward}',
    '--config.schedule.name=constant(peak=1e-2)',
    f'--config.schedule.num_steps={steps}',
    *(f'--config.{field}' for field in fields),
  ]


def trained(folder, workdir, task, reward, *fields, **more):
  method, _, _ = task.partition('(')
  argv = flags(folder, task, reward, *fields, **more)
  assert main([method, *argv, f'--workdir={workdir}']) == 0
  return whole_runs.Trained(method, workdir, argv)


# An update per rollout, and several; 100 of 200 updates are enough.
BANDITS = {
  'grpo': 'grpo(max_completion_length=1, num_generations=16)',
  'ppo': 'ppo(max_completion_length=1, num_ppo_epochs=2, kl_coef=0.0)',
}


@pytest.mark.long
@pytest.mark.slow  # a hundred rollouts
@pytest.mark.parametrize('method', BANDITS)
def test_a_bandit_is_solved(method, folder, tmp_path):
  """Of ten arms the best is drawn in 95 of 100 completions of one token."""
  fields = 'batch.size=64', 'log.every_steps=20'
  task = BANDITS[method]
  run = trained(folder, tmp_path / 'w', task, 'arms', *fields, steps=120)
  result = json.loads((run.workdir / 'result.json').read_text())
  found = result['train']['reward' if method == 'grpo' else 'objective/scores']
  # The second best gives 0.4.
  assert found >= 0.95 + 0.05 * 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
  ('task', 'key'),
  [
    ('grpo(max_completion_length=1, beta=20.0)', 'kl'),
    ("ppo(max_completion_length=1, kl_coef=20.0, kl_estimator='k3')", 'objective/kl'),
  ],
)
def test_a_large_beta_holds_the_policy(task, key, folder, tmp_path):
  fields = 'batch.size=32', 'schedule.name=constant(peak=2e-3)'
  run = trained(folder, tmp_path / 'w', task, 'arms', *fields, steps=16)
  found = whole_runs.values(run.workdir, key)
  assert max(found[-3:]) < 0.05


# A window has four updates, and checkpoints fall into its middle.
WINDOWS = {
  'grpo': 'grpo(max_completion_length=5, num_generations=4, beta=0.1, '
  'steps_per_generation=2, num_iterations=2)',
  'ppo': 'ppo(max_completion_length=5, num_mini_batches=2, num_ppo_epochs=2, '
  "ptx=2.0, ptx_text='{folder}/texts.jsonl', whiten_rewards=True, "
  'missing_eos_penalty=0.5)',
}
EVERY_3 = ('batch.size=8', 'checkpoint.every_steps=3', 'checkpoint.keep=3', 'log.every_steps=1')


@pytest.fixture(scope='module', params=['grpo', slow('ppo')])
def run(request, folder, tmp_path_factory):
  """A run of seven updates, with checkpoints after 3, 6 and 7."""
  workdir = tmp_path_factory.mktemp(request.param) / 'w'
  task = WINDOWS[request.param].format(folder=folder)
  lines = []
  with pytest.MonkeyPatch.context() as patch:
    show = report.Progress.show
    patch.setattr(
      report.Progress, 'show', lambda self, *args: (lines.append(args), show(self, *args))
    )
    done = trained(folder, workdir, task, 'letters', *EVERY_3, steps=7)
  (workdir.parent / 'shown.json').write_text(json.dumps(lines))
  return done


def test_columns_that_some_prompts_lack_are_told(folder, tmp_path, capfd):
  """Before the refusal, so that nothing needs to be trained."""
  argv = flags(
    folder, 'grpo(max_completion_length=4)', 'letters', 'batch.size=ramp(0:8, 1_steps:16)', steps=2
  )
  assert main(['grpo', *argv, f'--workdir={tmp_path}/w']) == 2
  said = "not all 3 prompts have the columns 'mark' (in 2); for the others"
  assert said in capfd.readouterr().err


def test_the_run_is_told(run):
  lines = metrics.read(str(run.workdir))
  logged = [line for line in lines if 'completions/mean_length' in line]
  assert [line['step'] for line in logged] == [1, 5]
  for name in ('time/rollout', 'time/scoring', 'time/log_probs'):
    assert all(line[name] > 0 for line in logged)
  assert logged[1]['time/update'] > 0
  memory = {n: x for n, x in logged[1].items() if n.startswith('memory/')}
  parts = 'rollout', 'scoring', 'log_probs', 'update'
  assert memory.keys() == {f'memory/{part}' for part in parts}
  assert min(memory.values()) > 0
  (first,) = [x for x in lines if x['step'] == 1 and 'loss' in x]
  # The first update is of the policy that drew the completions.
  assert first['val/ratio'] == pytest.approx(1, abs=1e-6)
  result = json.loads((run.workdir / 'result.json').read_text())
  assert result['train']['prompts'] == 3
  assert memory.items() <= result['train'].items()
  name = 'reward' if run.name == 'grpo' else 'objective/scores'
  assert result['train'][name] == logged[1][name]
  assert result['first'].items() >= {'step': 1, name: logged[0][name]}.items()


def test_log_lines_show_the_reward(run, capsys):
  """Also of the steps that take a part of an earlier rollout."""
  name = 'reward' if run.name == 'grpo' else 'objective/scores'
  first, last = whole_runs.values(run.workdir, name)
  shown = json.loads((run.workdir.parent / 'shown.json').read_text())
  rewards = {step: text.split()[1].strip(',') for step, text in shown}
  assert [*rewards] == [1, 2, 3, 4, 5, 6, 7]
  assert {*map(rewards.get, (1, 2, 3, 4))} == {f'{first:.3f}'}
  assert {*map(rewards.get, (5, 6, 7))} == {f'{last:.3f}'}
  assert all(' | loss ' in text for _, text in shown)
  assert main([run.name, *run.flags, f'--workdir={run.workdir}']) == 0
  said = capsys.readouterr().out.splitlines()
  assert said[1].startswith(f'from step 1 to step 7: reward {first:.4f} to {last:.4f}')


def test_a_complete_run_without_its_log_has_no_rewards(run, tmp_path, capsys):
  workdir = tmp_path / 'w'
  shutil.copytree(run.workdir, workdir)
  (workdir / 'metrics.jsonl').unlink()
  assert main([run.name, *run.flags, f'--workdir={workdir}']) == 0
  assert capsys.readouterr().out == 'step 7: metrics.jsonl has no rollouts\n'


@pytest.mark.slow
@pytest.mark.parametrize('run', ['grpo', slow('ppo')], indirect=True)
def test_a_kill_within_a_window_resumes_with_the_same_bits(run, tmp_path):
  """Goes on in the first of two windows, and draws the second again."""
  rollouts = {x.name for x in (run.workdir / 'rollouts').iterdir()}
  assert rollouts == {'0.npz', '4.npz'}
  earlier = tmp_path / 'earlier'
  shutil.copytree(run.workdir, earlier)
  shutil.rmtree(earlier / 'checkpoints/6')
  (earlier / 'rollouts/4.npz').write_bytes(b'of a run that was ahead')
  whole_runs.assert_resumes(run._replace(workdir=earlier), tmp_path / 'again', run.name)
  whole_runs.same_state(run.workdir, tmp_path / 'again', step=7)


@pytest.mark.slow  # trains twice
def test_adapters(run, folder, tmp_path, monkeypatch):
  """Completions come from the merged model, and the base is the reference."""
  drew, generate = [], rollouts.generate

  def seen(decoder, *args, **options):
    drew.append(params_lib.flatten(jax.device_get(decoder.params)))
    yield from generate(decoder, *args, **options)

  monkeypatch.setattr(rollouts, 'generate', seen)
  task = WINDOWS[run.name].format(folder=folder)
  lora = "finetune.lora=lora(rank=3, on='query')"
  adapted = trained(
    folder,
    tmp_path / 'w',
    task,
    'letters',
    *EVERY_3,
    lora,
    'checkpoint.every_steps=4',
    steps=5,
    init=run.workdir,
  )
  # The windows begin at steps 0 and 4.
  for step, found in zip((None, 4), drew, strict=True):
    workdir = adapted.workdir if step else run.workdir
    _, state = models.load_state(str(workdir), at_most=step)
    own = {n: x for n, x in state.params.items() if n != 'heads'}
    expected = params_lib.flatten(jax.device_get(own))
    assert found.keys() == expected.keys()
    for name, x in expected.items():
      np.testing.assert_allclose(found[name], x, atol=1e-7, err_msg=name)
  changed = {n for n, x in drew[0].items() if not np.array_equal(x, drew[1][n])}
  assert changed and all('query/kernel' in n for n in changed)
  key = 'kl' if run.name == 'grpo' else 'objective/kl'
  first, *_, last = whole_runs.values(adapted.workdir, key)
  assert abs(first) < 1e-6 < abs(last)
  ratios = whole_runs.values(adapted.workdir, 'val/ratio')
  assert ratios[0] == pytest.approx(1, abs=1e-6)
  whole_runs.assert_resumes(adapted, tmp_path / 'again', run.name)
  argv = ['convert', f'--workdir={adapted.workdir}', '--adapter']
  assert main([*argv, f'--to_hf={tmp_path}/peft']) == 0
  assert (tmp_path / 'peft/adapter_config.json').is_file()


# What follows is the same for both methods: one of them is enough.


@pytest.mark.slow
@pytest.mark.parametrize('run', ['grpo'], indirect=True)
def test_sigterm_in_a_rollout(run, tmp_path, monkeypatch):
  """The updates before are saved; the same command draws it again."""
  calls, generate = [], rollouts.generate

  def interrupted(*args, **options):
    calls.append(1)
    preemption._State.asked = len(calls) == 2
    yield from generate(*args, **options)

  workdir = tmp_path / 'w'
  argv = [run.name, *run.flags, f'--workdir={workdir}']
  with monkeypatch.context() as patch:
    patch.setattr(rollouts, 'generate', interrupted)
    assert main(argv) == preemption.EXIT_CODE
  assert (workdir / 'checkpoints/4').is_dir()
  assert not (workdir / 'rollouts/4.npz').exists()
  assert main(argv) == 0
  whole_runs.same_state(run.workdir, workdir, step=7)


@pytest.mark.parametrize('run', ['grpo'], indirect=True)
@pytest.mark.parametrize('damage', ['lost', 'cut', 'changed'])
def test_a_lost_rollout_is_refused(run, damage, tmp_path, capsys):
  workdir = tmp_path / 'w'
  shutil.copytree(run.workdir, workdir)
  shutil.rmtree(workdir / 'checkpoints/7')
  path = workdir / 'rollouts/4.npz'
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  if damage == 'lost':
    path.unlink()
  else:
    path.write_bytes(data if damage == 'changed' else data[: len(data) // 2])
  assert main([run.name, *run.flags, f'--workdir={workdir}']) == 2
  error = capsys.readouterr().err.strip().splitlines()[-1]
  assert '4.npz: is missing or damaged' in error
  assert 'delete the checkpoints after step 4' in error


@pytest.mark.slow
def test_a_bad_reward_loses_no_update(folder, tmp_path, capsys):
  """The updates before it are saved, and the same command goes on."""
  task = 'grpo(max_completion_length=2, num_generations=4)'
  fields = 'batch.size=8', 'log.every_steps=1'
  argv = flags(folder, task, 'fails_once', *fields, steps=4)
  argv = ['grpo', *argv, f'--workdir={tmp_path}/w']
  assert main(argv) == 2
  error = capsys.readouterr().err.strip().splitlines()[-1]
  assert 'gives completion 0 of 8 the reward nan' in error
  assert [x.name for x in (tmp_path / 'w/checkpoints').iterdir()] == ['2']
  # It fails in the third call of a process, which now has two.
  assert main(argv) == 0
  assert len(whole_runs.values(tmp_path / 'w', 'reward')) == 4


@pytest.mark.parametrize('run', ['ppo'], indirect=True)
def test_the_model_goes_out(run, tmp_path):
  """Without the value head, which transformers has no class for."""
  out = tmp_path / 'hf'
  assert main(['convert', f'--workdir={run.workdir}', f'--to_hf={out}']) == 0
  config = json.loads((out / 'config.json').read_text())
  assert config['architectures'][0].endswith('LMHeadModel')
