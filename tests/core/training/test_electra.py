# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run of two models from the command line: exported, fine-tuned."""

import json
import pathlib

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.__main__ import main
from gpt_jax.opening import models as pretrained_lib
from gpt_jax.opening import models as trained_lib
from gpt_jax.papers.electra.electra import TABLES
from tests.support import whole_runs
from tests.support.golden_io import config, tensors

pytestmark = pytest.mark.slow

CONFIGS = pathlib.Path(__file__).parents[3] / 'configs'


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('electra')
  return whole_runs.trained('electra', folder, schedule__num_steps=2).workdir


def test_both_models_are_exported(workdir, tmp_path, capsys):
  out, generator = tmp_path / 'model', tmp_path / 'generator'
  assert main(['convert', f'--workdir={workdir}', f'--to_hf={out}']) == 0
  given = ['convert', f'--workdir={workdir}', f'--to_hf={generator}']
  assert main([*given, '--part=teacher']) == 2
  assert 'has no such model; one of generator' in capsys.readouterr().err
  assert main([*given, '--part=generator']) == 0
  assert config(out)['architectures'] == ['ElectraForPreTraining']
  assert config(generator)['architectures'] == ['ElectraForMaskedLM']
  # Nothing of the generator lies beside the discriminator.
  names = {*tensors(out)}
  assert not any(name.startswith('generator') for name in names)
  _, state = trained_lib.load_state(str(workdir))
  params = jax.device_get(state.ema)
  own = params['parts']['generator']
  # Tables are kept as differences from the generator's.
  table = own['embed']['embedding'] + params['embed']['embedding']
  assert params['embed']['embedding'].any()
  source = pretrained_lib.open_model(str(workdir), 'tune', '--init').params
  assert source is not None
  np.testing.assert_array_equal(source()['embed']['embedding'], table)
  ids = np.array([[2, 9, 11, 4, 7, 3]])
  model, read = hf.load(str(out))
  for name in TABLES:
    expected = jax.tree.map(np.add, own[name], params[name])
    jax.tree.map(np.testing.assert_array_equal, read[name], expected)
  jax.tree.map(np.testing.assert_array_equal, read['heads'], params['heads'])
  assert hf.forward(model, read, input_ids=ids)['logits'].shape == ids.shape
  _, read = hf.load(str(generator))
  assert {*read} == {*own}
  jax.tree.map(np.testing.assert_array_equal, read, own)
  # The discriminator scores no vocabulary.
  text = ['fill', f'--workdir={workdir}', '--text=The [MASK] sat.']
  assert main(text) == 2
  assert 'scores no vocabulary; export its generator' in capsys.readouterr().err
  assert main(['convert', f'--from_hf={generator}', f'--workdir={tmp_path}/g']) == 0
  assert main(['fill', f'--workdir={tmp_path}/g', text[2]]) == 0


def test_the_discriminator_is_fine_tuned(workdir, tmp_path):
  rng = np.random.default_rng(0)
  table = tmp_path / 'a.tsv'
  lines = ['text\tlabel']
  for _ in range(64):
    label = int(rng.integers(2))
    lines.append(f'the {["cat", "dog"][label]} sat\t{label}')
  table.write_text('\n'.join(lines) + '\n')
  tuned, out = tmp_path / 'w', tmp_path / 'out'
  task = f"classification('{table}', '{table}', text='text', label='label')"
  argv = [
    'finetune',
    f'--config={CONFIGS}/finetune/base.py',
    f'--init={workdir}',
    f'--workdir={tuned}',
    f'--config.finetune.task={task}',
    '--config.finetune.model.dropout=none',
    '--config.finetune.dropout=0.0',
    '--config.schedule.num_steps=2',
    '--config.eval.rows=16',
  ]
  assert main(argv) == 0
  run = json.loads((tuned / 'config.json').read_text())
  assert run['models'] == {} and run['finetune']['pooler'] == 'gelu'
  assert main(['convert', f'--workdir={tuned}', f'--to_hf={out}']) == 0
  # One as wide as its embeddings is no BERT: its pooler has GELU.
  assert config(out)['architectures'] == ['ElectraForSequenceClassification']
  parts, state = trained_lib.load_state(str(tuned))
  ids, L = np.array([[2, 9, 11, 4, 3]]), run['finetune']['length']
  padded = np.pad(ids, [(0, 0), (0, L - 5)])
  batch = {'inputs': padded[None], 'lengths': np.full((1, 1), 5), 'second': np.full((1, 1), L)}
  assert parts.objective.outputs is not None
  ours = parts.objective.outputs(state.params, batch)
  model, params = hf.load(str(out))
  theirs = hf.forward(model, params, input_ids=ids)['logits']
  np.testing.assert_allclose(theirs, ours, atol=1e-5)
