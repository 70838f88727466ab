# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The commands one after the other, as a user would run them."""

import json
import math
import pathlib

import numpy as np
import pytest

from gpt_jax import metrics
from gpt_jax.__main__ import main

ROOT = pathlib.Path(__file__).parent.parent
STEPS = 21


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A trained run of a tiny model on this project's own configs."""
  folder = tmp_path_factory.mktemp('run') / 'w'
  code = main(
    [
      'train',
      f'--config={ROOT}/configs/smoke.py',
      f"--config.data.source=text('{ROOT}/configs/*.py')",
      '--config.data.holdout=tail(fraction=0.1)',
      '--config.tokenizer.name=bytes',
      '--config.model.num_layers=2',
      '--config.model.d_model=48',
      '--config.model.context_length=61',
      '--config.batch.rows=16',
      f'--config.schedule.num_steps={STEPS}',
      '--config.schedule.name=constant(peak=1e-2)',
      '--config.checkpoint.every_steps=11',
      '--config.eval.every_steps=10',
      '--config.log.every_steps=3',
      '--config.log.sample_tokens=20',
      f'--workdir={folder}',
    ]
  )
  assert code == 0
  return folder


def test_train_leaves_the_workdir_that_the_design_promises(workdir):
  assert {p.name for p in workdir.iterdir()} == {
    *('config.json', 'metrics.jsonl', 'checkpoints', 'tokenizer', 'data'),
    *('loss.png', 'samples.txt', 'tensorboard'),
  }
  lines = metrics.read(str(workdir))
  losses = [m['loss'] for m in lines if 'loss' in m]
  assert losses[0] > losses[-1] + 0.5
  assert {m['step'] for m in lines if 'eval/validation/loss' in m} == {
    *(10, 20, STEPS)
  }
  keys = {'tokens', 'learning_rate', 'batch_rows', 'grad_norm', 'mfu'}
  keys |= {'tokens_per_second', 'data_wait_seconds'}
  assert all(keys <= m.keys() for m in lines if 'loss' in m)
  assert (workdir / 'loss.png').read_bytes().startswith(b'\x89PNG')
  assert (workdir / 'samples.txt').read_text().startswith('def main(')


def test_evaluate_prints_what_training_measured_last(workdir, capsys):
  assert main(['evaluate', f'--workdir={workdir}', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  lines = metrics.read(str(workdir))
  last = [m for m in lines if 'eval/validation/loss' in m][-1]
  assert found == last
  # Bits per byte with a byte tokenizer: one token a byte, one end a document.
  manifest = json.loads((workdir / 'data/validation/manifest.json').read_text())
  bits = found['eval/validation/loss'] / math.log(2)
  np.testing.assert_allclose(
    found['eval/validation/bits_per_byte'],
    bits
    * (manifest['num_bytes'] + manifest['num_documents'])
    / manifest['num_bytes'],
  )


def test_generate_is_a_function_of_the_seed(workdir, capsys):
  def run(*flags):
    assert main(['generate', f'--workdir={workdir}', *flags]) == 0
    return capsys.readouterr().out

  prompt = ('--prompt=import ', '--max_tokens=20')
  assert run(*prompt, '--seed=1') == run(*prompt, '--seed=1')
  assert run(*prompt, '--seed=1') != run(*prompt, '--seed=2')
  assert run(*prompt, '--temperature=0').startswith('import ')
  several = run(*prompt, '--num_samples=3', '--top_k=7', '--top_p=0.9')
  assert several.count('import ') >= 3


@pytest.mark.parametrize(
  'flags, field',
  [
    (['--prompt='], '--prompt'),
    ([], '--prompt'),
    (['--prompt=' + 'x' * 61], '--prompt'),
    (['--prompt=abc', '--max_tokens=59'], '--max_tokens'),
  ],
)
def test_generate_refuses_what_does_not_fit(workdir, capsys, flags, field):
  assert main(['generate', f'--workdir={workdir}', *flags]) == 2
  error = capsys.readouterr().err
  assert error.count('\n') == 1 and field in error


def test_another_config_is_refused_and_nothing_changes(workdir, capsys):
  before = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
  code = main(
    ['train', f'--config={ROOT}/configs/smoke.py', f'--workdir={workdir}']
  )
  assert code == 2
  error = capsys.readouterr().err
  assert 'model.num_layers: 2 -> 4' in error
  assert before == {
    p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()
  }


def test_plot_compares_runs(workdir, tmp_path, capsys):
  out = tmp_path / 'two.png'
  both = f'--workdir={workdir},{workdir}'
  assert main(['plot', both, f'--out={out}']) == 0
  assert out.read_bytes().startswith(b'\x89PNG')


def test_plot_needs_metrics(tmp_path, capsys):
  assert main(['plot', f'--workdir={tmp_path}']) == 2
  assert 'metrics.jsonl' in capsys.readouterr().err


def test_inspect_counts_gpt2(capsys):
  config = f'--config={ROOT}/configs/gpt2.py:medium'
  assert main(['inspect', config, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['parameters'] == 354_823_168
  # 6 * (24 layers of 12 d^2, and the output table) + 12 L d T.
  d, layers, vocab, context = 1024, 24, 50_257, 1024
  assert (
    found['flops_per_token']
    == 6 * (layers * 12 * d * d + vocab * d) + 12 * layers * d * context
  )
  assert main(['inspect', config]) == 0
  assert '354,823,168' in capsys.readouterr().out


def test_benchmark_measures_a_step(capsys):
  flags = [
    f'--config={ROOT}/configs/benchmark.py:char',
    '--config.model.num_layers=1',
    '--config.batch.rows=8',
    '--steps=3',
    '--json',
  ]
  assert main(['benchmark', *flags]) == 0
  found = json.loads(capsys.readouterr().out)
  tokens = 8 * 64
  np.testing.assert_allclose(
    found['tokens_per_second'], tokens / found['step_seconds']
  )
  np.testing.assert_allclose(
    found['mfu'],
    found['tokens_per_second'] * found['flops_per_token'] / found['peak_flops'],
  )
  assert 0 <= found['data_wait_fraction'] < 1


def test_benchmark_of_saving(capsys):
  flags = [
    f'--config={ROOT}/configs/benchmark.py:char',
    '--config.model.num_layers=1',
    '--config.batch.rows=8',
    '--config.log.every_steps=1',
    '--what=checkpoint',
    '--steps=1',
    '--json',
  ]
  assert main(['benchmark', *flags]) == 0
  result = json.loads(capsys.readouterr().out)
  # An embedding, positions, a layer, a norm; Adam keeps two more of each, and
  # there are three counts of steps.
  layer = 12 * 128**2 + 13 * 128
  assert result['parameters'] == (65 + 64) * 128 + layer + 2 * 128
  assert result['state_gib'] * 2**30 == 12 * result['parameters'] + 12
  assert 0 < result['blocked_seconds'] < result['save_seconds']
  assert 0 < result['checksum_seconds'] < result['save_seconds']
  assert result['bare_step_seconds'] > 0 < result['loop_step_seconds']


def test_benchmark_of_decoding(capsys):
  flags = [
    f'--config={ROOT}/configs/benchmark.py:decode',
    '--config.model.num_layers=3',
    '--config.model.d_model=32',
    '--config.model.num_heads=4',
    '--config.model.context_length=26',
    '--config.batch.rows=5',
    '--what=decode',
    '--steps=3',
    '--json',
  ]
  assert main(['benchmark', *flags]) == 0
  found = json.loads(capsys.readouterr().out)
  many, one = found['kv_heads']['4'], found['kv_heads']['1']
  # Keys and values, layers, rows, slots, heads, head size, float32.
  assert many['cache_bytes'] == 2 * 3 * 5 * 26 * 4 * 8 * 4
  assert one['cache_bytes'] == many['cache_bytes'] / 4
  assert one['tokens_per_second'] > 0


def test_benchmark_of_attention_patterns(capsys):
  flags = [
    f'--config={ROOT}/configs/benchmark.py:long',
    '--config.model.context_length=1024',
    '--what=attention',
    '--steps=1',
    '--json',
  ]
  assert main(['benchmark', *flags]) == 0
  found = json.loads(capsys.readouterr().out)['patterns']
  # 4 blocks of 256 queries see at most 511 keys each; the full pattern's 8
  # blocks of 128 see 576 keys on average, but keep all of them.
  assert found['local(window=256)']['bytes'] < found['full']['bytes']


def test_decoding_compiles_once(capsys):
  # The steps before the clock starts, and those after, of two models.
  from gpt_jax.decoding import sample

  before = sample.decode_step._cache_size()
  flags = [
    f'--config={ROOT}/configs/benchmark.py:decode',
    '--config.model.num_layers=2',
    '--config.model.d_model=48',
    '--config.model.num_heads=6',
    '--config.model.context_length=34',
    '--config.batch.rows=3',
    '--what=decode',
    '--steps=7',
  ]
  assert main(['benchmark', *flags]) == 0
  assert sample.decode_step._cache_size() == before + 2
  assert 'one head: ' in capsys.readouterr().out


def test_doctor_finds_this_machine_sound(capsys):
  assert main(['doctor']) == 0
  assert 'failed' not in capsys.readouterr().out


@pytest.mark.parametrize('name', ['text', 'missing', 'encoding', 'short'])
def test_bad_corpus_leaves_nothing_behind(tmp_path, capsys, name):
  path = tmp_path / 'corpus.txt'
  path.write_bytes(
    {
      'text': b'',
      'missing': b'',
      'encoding': b'abc\xff\xfe',
      'short': b'far too short',
    }[name]
  )
  if name == 'missing':
    path.unlink()
  workdir = tmp_path / 'w'
  code = main(
    [
      'train',
      f'--config={ROOT}/configs/smoke.py',
      f"--config.data.source=text('{path}')",
      '--config.data.holdout=none',
      '--config.tokenizer.name=bytes',
      f'--workdir={workdir}',
    ]
  )
  error = capsys.readouterr().err
  assert code == 2, error
  # What was logged on the way ends with the one line that says what to mend.
  said = [s for s in error.splitlines() if s.startswith('gpt-jax train: ')]
  assert said == error.splitlines()[-1:] and str(tmp_path) in said[0]
  assert 'Traceback' not in error
  assert not workdir.exists()
