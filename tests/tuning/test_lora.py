# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs that train adapters: what they save, and the base that they need."""

import csv
import json
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints import restore
from gpt_jax.core.files import buckets
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.step import mean_gradients
from gpt_jax.opening import models
from gpt_jax.tuning import rewards
from gpt_jax.tuning.objectives import adapters
from gpt_jax.tuning.objectives.lora import Lora
from tests.support import tiny

ROOT = pathlib.Path(__file__).parents[2]
BYTES = tokenizer_lib.build('bytes', [])
SIZES = {
  **{'model.d_model': 16, 'model.num_heads': 2, 'model.head_size': 8},
  **{'model.num_kv_heads': 2, 'model.num_layers': 2, 'model.d_ff': 32},
  **{'model.vocab_size': BYTES.vocab_size, 'model.context_length': 16},
  **{'model.init_weights': 'normal(stddev=0.2)', 'tokenizer.name': 'bytes'},
}
LORA = "lora(rank=3, alpha=6.0, on='query, value, ffn', dropout=0.1)"


def table(path, count):
  """Sentences with and without an x."""
  rng, rows = np.random.default_rng(count), ['text\tlabel']
  for _ in range(count):
    text = ''.join(rng.choice([*'abcdefgx '], size=rng.integers(5, 12)))
    rows.append(f'{text}\t{("no", "yes")["x" in text]}')
  path.write_text('\n'.join(rows) + '\n')


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  """The base, the task and a run on it."""
  folder = tmp_path_factory.mktemp('lora')
  (folder / 'base').mkdir()
  tiny.save(folder / 'base', BYTES, **SIZES, seed=1)
  table(folder / 'train.tsv', 67)
  table(folder / 'dev.tsv', 19)
  assert main(flags(folder, folder / 'run')) == 0
  return folder


def flags(folder, workdir, *more):
  task = f"classification('{folder}/train.tsv', '{folder}/dev.tsv')"
  given = {
    '--config': f'{ROOT}/configs/finetune/sst2.py',
    '--init': folder / 'base',
    '--workdir': workdir,
    '--config.finetune.task': task,
    '--config.finetune.lora': LORA,
    '--config.finetune.peak': '1e-2',
    '--config.optim.ema': 'ema(decay=0.9)',
    '--config.batch.size': '8',
    '--config.schedule.num_steps': '4',
    '--config.eval.every_steps': '2',
    '--config.eval.rows': '8',
    '--config.checkpoint.every_steps': '2',
    '--config.checkpoint.keep': '9',
    '--config.log.every_steps': '1',
  }
  given |= dict(text.split('=', 1) for text in more)
  return ['finetune', *(f'{name}={value}' for name, value in given.items())]


def params(workdir):
  parts, state = models.load_state(str(workdir))
  return parts, jax.device_get(state)


@pytest.mark.slow
def test_an_adapted_classifier_rewards_completions(folders):
  """By the probabilities that finetune predicted."""
  score = rewards.open_reward(str(folders / 'run'))

  def columns(name, column):
    with open(folders / name, encoding='utf-8') as file:
      return [x[column] for x in csv.DictReader(file, delimiter='\t')]

  predicted = [float(x) for x in columns('run/predictions/dev.tsv', 'p(yes)')]
  texts = columns('dev.tsv', 'text')
  found = score([x[:2] for x in texts], [x[2:] for x in texts])
  np.testing.assert_allclose(found, predicted, rtol=1e-4)


def test_a_checkpoint_holds_adapters_and_heads(folders):
  step = restore.folder_of(str(folders / 'run')) / '4'
  names = {*restore.contents(step).arrays}
  assert {n.split('/')[1] for n in names if n.startswith('params/')} == {
    'adapters',
    'heads',
    'new_rows',
  }
  rest = [n for n in names if not n.startswith('params/') and '/' in n]
  assert rest and not [n for n in rest if 'base' in n]
  moments = [n for n in rest if n.startswith('opt_state/') and 'kernel_A' in n]
  # Two moments of query, value, ffn/in and ffn/out.
  assert len(moments) == 8


def test_what_is_loaded_is_the_base_with_adapters(folders):
  base = jax.device_get(models.open_model(str(folders / 'base'), 'tune').params())
  parts, state = params(folders / 'run')
  shapes = parts_lib.abstract_state(parts).params
  jax.tree.map(lambda a, b: a.shape == b.shape or 1 / 0, state.params, shapes)
  loaded, before = map(params_lib.flatten, (state.eval_params, base))
  adapted = re.compile(r'.*/(query|value|ffn/in|ffn/out)/kernel')
  for name, x in before.items():
    same = np.array_equal(loaded[name][: len(x)], x)
    assert same != bool(adapted.fullmatch(name)), name
  # Kernel by kernel the difference has the adapters' rank.
  kernel = 'decoder/periods/block_0/attention/query/kernel'
  for layer in range(2):
    difference = loaded[kernel][layer] - before[kernel][layer]
    assert np.linalg.matrix_rank(difference, tol=1e-5) == 3
  # Another run starts from these parameters, without the task's head.
  found = models.open_model(str(folders / 'run'), 'tune').params()
  jax.tree.map(
    np.testing.assert_array_equal,
    found,
    {n: x for n, x in state.eval_params.items() if n != 'heads'},
  )


@pytest.mark.slow
def test_predictions_are_those_of_the_merged_export(folders, tmp_path):
  """Within the run the base and its adapters were added in every step."""
  out = tmp_path / 'hf'
  argv = ['convert', f'--workdir={folders}/run', f'--to_hf={out}']
  assert main([*argv, '--tokenizer=false']) == 0
  model, exported = hf.load(str(out))
  _, state = params(folders / 'run')
  assert model.origin.kind == 'classification'
  # transformers' class has no language model's output.
  found = params_lib.flatten(exported)
  ours = params_lib.flatten(state.eval_params)
  for name, x in found.items():
    np.testing.assert_array_equal(x, ours[name], name)
  result = json.loads((folders / 'run/result.json').read_text())
  rows = (folders / 'run/predictions/dev.tsv').read_text().splitlines()[1:]
  texts = (folders / 'dev.tsv').read_text().splitlines()[1:]
  assert result['step'] == 4 and len(rows) == len(texts) == 19
  start, extract = BYTES.vocab_size, BYTES.vocab_size + 2
  ids = np.full((19, 16), BYTES.eos_id)  # which pads
  for i, text in enumerate(texts):
    row = [start, *text.split('\t')[0].encode(), extract]
    ids[i, : len(row)] = row
  logits = hf.forward(model, exported, input_ids=ids)['logits']
  chances = [[float(x) for x in row.split('\t')[3:]] for row in rows]
  np.testing.assert_allclose(chances, jax.nn.softmax(logits), atol=1e-4)


@pytest.mark.slow
def test_an_adapter_goes_to_peft_and_comes_back(folders, tmp_path, capsys):
  """Of a run without new tokens, in whose base the export is merged again."""
  out, run = tmp_path / 'out', tmp_path / 'run'
  to = f'--to_hf={out}'
  argv = ['convert', f'--workdir={folders}/run', to, '--adapter']
  assert main(argv) == 2
  assert 'the run added tokens to the table' in capsys.readouterr().err
  argv = ['convert', f'--workdir={folders}/base', to, '--adapter']
  assert main(argv) == 2
  assert 'trained no adapters' in capsys.readouterr().err
  task = f"target('{folders}/train.tsv', '{folders}/dev.tsv', "
  task += "prompt='{text} =', target=' {label}')"
  more = [f'--config.finetune.task={task}', '--config.schedule.num_steps=2']
  assert main(flags(folders, run, *more)) == 0
  argv = ['convert', f'--workdir={folders}/base', f'--to_hf={tmp_path}/base']
  assert main([*argv, '--tokenizer=false']) == 0
  assert main(['convert', f'--workdir={run}', to, '--adapter']) == 0
  assert 'export its base' in capsys.readouterr().err
  path = out / 'adapter_config.json'
  config = json.loads(path.read_text())
  assert config['lora_dropout'] == 0.1
  assert config['base_model_name_or_path'] is None
  config['base_model_name_or_path'] = f'{tmp_path}/base'
  path.write_text(json.dumps(config))
  argv = ['convert', f'--from_hf={out}', f'--workdir={tmp_path}/again']
  assert main(argv) == 0
  found, expected = params(tmp_path / 'again')[1], params(run)[1]
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found.params, expected.eval_params
  )


def test_the_base_is_in_the_bucket_before_a_checkpoint_is(tmp_path, monkeypatch):
  sent = []
  monkeypatch.setattr(buckets, 'uploaded', sent.append)
  base = adapters.Base(str(tmp_path / 'base'), 'abc')
  adapters.write(str(tmp_path), base)
  assert sent == [str(tmp_path / 'base.json')]
  assert adapters.read(str(tmp_path)) == base


def test_another_base_is_refused(folders, tmp_path, capsys):
  """By a resume, and by whatever reads the run; with its name and step."""
  there = tmp_path / 'lora'
  shutil.copytree(folders, there)
  shutil.rmtree(there / 'base')
  path = there / 'run/base.json'
  known = json.loads(path.read_text())
  assert known['folder'] == str(folders / 'base')
  known['folder'] = str(there / 'base')
  path.write_text(json.dumps(known))
  with pytest.raises(UsageError, match=r'the base=.*base: holds no config.json'):
    models.load_state(str(there / 'run'))
  (there / 'base').mkdir()
  tiny.save(there / 'base', BYTES, **SIZES, seed=2)
  with pytest.raises(UsageError, match=r'base.json: folder=.* fingerprint of'):
    models.load_state(str(there / 'run'))
  assert tiny.change_config(there / 'run', str(folders), str(there))
  assert main(flags(there, there / 'run')) == 2
  assert 'has adapters of the model with fingerprint' in capsys.readouterr().err


@pytest.mark.slow
def test_eight_devices_are_one():
  config = tiny.config(**tiny.MESHABLE, **{'optim.name': 'adamw'})
  built = parts_lib.build(config_lib.resolve(config))
  lora = Lora(rank=3, on='all')
  objective = lora.objective(built.objective, 48)
  found = []
  for sizes in ((1, 1, 1), (2, 2, 2)):
    parts = tiny.build(config, sizes, objective=objective)
    state = parts_lib.initial_state(parts)
    whole = tiny.random_like(state.params, seed=5)
    whole = jax.device_put(whole, parts.shardings.params)
    batch = parts.put(tiny.batch(16, 7, 48), 16)
    with parts_lib.sharding.use(parts.mesh, parts.rules):
      step = jax.jit(
        lambda p, b: mean_gradients(p, b, jax.random.key(3), objective=objective, num_micro=1)
      )
      found.append(jax.device_get(step(whole, batch)))
  (loss, _, one), (other, _, many) = found
  np.testing.assert_allclose(loss, other, rtol=1e-6)
  assert {*one} == {'adapters'}
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), one, many)
