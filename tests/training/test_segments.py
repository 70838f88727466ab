# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL and T64: on meshes, resumed, and read with memory."""

import json
import pathlib

import jax
import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.evaluation import memory as memory_lib
from gpt_jax.tokens.store import TokenStore
from gpt_jax.training import compiled as compiled_lib
from gpt_jax.training import models as trained_lib
from gpt_jax.training import parts as parts_lib
from tests.support import tiny, whole_runs

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
SIZE, MEMORY = 3, 2
XL = f"transformer_xl(memory={MEMORY}, segment={SIZE}, biases='shared')"
CHANGES = {
  'transformer_xl': {
    'model.position': XL,
    'model.input': 'adaptive((8,), d_embed=24)',
    'model.output': 'adaptive',
    'model.num_kv_heads': 8,
  },
  'char': {
    'model.position': 'learned_by_layer',
    'model.output': 'untied',
    'objective.name': 'auxiliary',
  },
}


def trained(name, sizes):
  fields = {**tiny.MESHABLE, 'model.num_layers': 2, 'model.block': 'post'}
  run = tiny.build(tiny.config(**fields | CHANGES[name]), sizes)
  step = compiled_lib.compile_train_step(run).call
  batch = tiny.batch(16, 7, run.config.model.vocab_size)
  _, metrics = step(parts_lib.initial_state(run), run.put(batch, 16))
  return [float(metrics[key]) for key in ('loss', 'grad_norm')]


@pytest.mark.slow
@pytest.mark.parametrize('name', [*CHANGES])
def test_eight_devices_train_as_one(name):
  found, expected = trained(name, (2, 2, 2)), trained(name, (1, 1, 1))
  np.testing.assert_allclose(found, expected, rtol=1e-5)


# From the command line -----------------------------------------------------

FLAGS = [
  '--config.data.holdout=tail(fraction=0.1)',
  '--config.model.d_model=16',
  '--config.model.num_heads=2',
  '--config.model.head_size=8',
  '--config.model.d_ff=32',
  '--config.model.dropout=rates(embedding=0.1)',
  '--config.model.dtype=float32',
  '--config.model.loop=scan',
  '--config.model.context_length=12',
  '--config.batch.size=16',
  '--config.optim.name=adamw',
  '--config.schedule.num_steps=8',
  '--config.schedule.name=constant(peak=1e-2)',
  '--config.checkpoint.every_steps=4',
  '--config.eval.every_steps=4',
  '--config.eval.rows=8',
  '--config.log.every_steps=1',
]
OWN = {
  'transformer_xl': [
    '--config.model.position=transformer_xl(memory=5, segment=4, '
    "biases='shared')",
    '--config.model.num_layers=1',
    '--config.eval.num_batches=2',
  ],
  'char': ['--config.model.num_layers=2'],
}
# Its vocabulary is the paper's, and its tokenizer's is no larger.
SIZES = {'transformer_xl': 'enwik8-12', 'char': 'cpu'}


@pytest.fixture(scope='module', params=[*OWN])
def run(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp(request.param)
  for i in range(20):
    text = 'The cat sat on the mat. A dog ran to the old red house.\n' * 5
    (folder / f'{i}.txt').write_text(f'{text}Number {i}. And so on.\n')
  flags = [
    f'--config={CONFIGS}/{request.param}.py:{SIZES[request.param]}',
    *FLAGS,
    *OWN[request.param],
    f"--config.data.source=text('{folder}/*.txt')",
  ]
  with pytest.MonkeyPatch.context() as patch:
    whole_runs.known_peak(patch)
    assert main(['train', *flags, f'--workdir={folder}/w']) == 0
  return request.param, folder / 'w', flags


@pytest.mark.slow
def test_a_resume_ends_in_the_same_bits(run, tmp_path, monkeypatch):
  whole_runs.known_peak(monkeypatch)
  name, first, flags = run
  second = tmp_path / 'w'
  whole_runs.resumed(first, second, flags, step=8)
  losses = whole_runs.logged(first, 'eval/validation/loss')
  assert losses == whole_runs.logged(second, 'eval/validation/loss')
  vocab_size = trained_lib.read_config(str(first)).model.vocab_size
  assert losses[-1] < losses[0] < np.log(vocab_size)
  if name == 'char':
    # Of two layers the first ends at a quarter of the run: step 2 of 8.
    found = whole_runs.logged(first, 'objective/target_1_loss')[:8]
    assert np.all(np.array(found[:2]) > 0) and not np.any(found[2:])


def by_hand(trained, workdir, memory):
  """Each device's part of the text is one row, under a mask."""
  store = TokenStore.open(f'{workdir}/data').validation()
  assert store is not None and len(store) > 192
  # Two batches of eight rows of 12 tokens; eight devices.
  ids = np.concatenate([[store.manifest.eos_id], store.tokens(0, 192)])
  rows = np.stack([ids[start : start + 25] for start in range(0, 192, 24)])
  seen = np.zeros((24, 24), bool)
  for query in range(24):
    seen[query, max(query // 6 * 6 - memory, 0) : query + 1] = True
  model = trained.parts.model.clone(position="transformer_xl(biases='shared')")
  variables = {'params': trained.state.eval_params}
  out = model.apply(
    variables,
    rows[:, :-1].astype(np.int32),
    visible_BLM=np.broadcast_to(seen, (8, 24, 24)),
  )
  logits = model.apply(variables, out.hidden_BLD, method='logits')
  log_probs = np.asarray(jax.nn.log_softmax(logits))
  picked = np.take_along_axis(log_probs, rows[:, 1:, None], -1)
  return -np.mean(picked, dtype=np.float64), 192


@pytest.mark.slow
def test_text_is_read_with_memory(run, capsys, monkeypatch):
  """As one row, under the mask that is equivalent."""
  name, workdir, _ = run
  # Two segments of 6 at a time, of 2 heads and 13 keys.
  monkeypatch.setattr(memory_lib, '_CHUNK_SCORES', 2 * 2 * 6 * 13)
  capsys.readouterr()
  command = ['evaluate', f'--workdir={workdir}', '--json', '--segment=6']
  if name == 'char':
    assert main([*command, '--memory=7']) == 2
    assert 'model.position=learned_by_layer' in capsys.readouterr().err
    return
  assert main([*command, '--memory=7']) == 0
  found = json.loads(capsys.readouterr().out)
  assert main(command) == 2
  assert 'say how --memory reads' in capsys.readouterr().err
  trained = trained_lib.load(str(workdir))
  loss, tokens = by_hand(trained, workdir, 7)
  assert found['eval/validation/memory_7_tokens'] == tokens
  measured = found['eval/validation/memory_7_loss']
  np.testing.assert_allclose(measured, loss, rtol=1e-4)
