# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What holds of every run, over the list `whole_runs.RUNS`."""

import functools
import shutil

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training.run import Run
from gpt_jax.core.training.step import mean_gradients
from gpt_jax.opening import models
from tests.core.training.test_expert_parallel import exchanges
from tests.support import golden_io, tiny, whole_runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module', params=[*whole_runs.RUNS])
def run(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp(request.param)
  return whole_runs.trained(request.param, folder)


# What a run logs beside its loss, and what it does not.
LOGGED = {
  'unilm': (
    {'seq2seq_loss', 'seq2seq_perplexity', 'bidirectional_loss'} | {'left_to_right_accuracy'},
    {'perplexity', 'masked_loss', 'bits_per_byte'},
  ),
  'xlnet': ({'perplexity', 'masked_accuracy'}, {'token_accuracy'}),
  'deberta': ({'perplexity', 'masked_accuracy'}, {'token_accuracy'}),
  'mass': ({'perplexity', 'token_accuracy'}, {'masked_accuracy'}),
  'prefix': ({'perplexity'}, {'token_accuracy', 'masked_accuracy'}),
  'ulmfit': ({'perplexity', 'bits_per_byte'}, {'token_accuracy'}),
  'elmo': (
    {'forward_loss', 'forward_perplexity', 'backward_perplexity'},
    {'perplexity', 'forward_sampled_loss'},
  ),
  'switch': ({'token_accuracy'}, set()),
  'cove': ({'token_accuracy', 'perplexity'}, set()),
}


def assert_teacher_stays(run, state, before):
  """It is saved once, as it was, and the config has its own size."""
  config = models.read_config(str(run.workdir))
  assert config.models.teacher.num_layers == 4
  params = models.load_state(str(before))[1].params
  expected = {name: x for name, x in params.items() if name != 'heads'}
  jax.tree.map(np.testing.assert_array_equal, state.params['parts']['teacher'], expected)
  for path, _ in jax.tree_util.tree_leaves_with_path((state.opt_state, state.ema)):
    assert 'teacher' not in jax.tree_util.keystr(path)


def test_a_resume_ends_in_the_same_bits(run, tmp_path):
  before = run.workdir.with_name('before')
  if run.name == 'distilbert':  # its teacher is in its checkpoints
    shutil.move(before, tmp_path / 'away')
  command = whole_runs.RUNS[run.name].command
  state = whole_runs.assert_resumes(run, tmp_path / 'w', command)
  results = [*run.workdir.glob('predictions/**/dev.*')]
  if command != 'train':
    results.append(run.workdir / 'result.json')
  for file in results:
    again = tmp_path / 'w' / file.relative_to(run.workdir)
    assert again.read_text() == file.read_text()
  if run.name == 'classifier':
    assert models.read_config(str(run.workdir)).finetune.backward
    with pytest.raises(UsageError, match='reads texts from right to left'):
      models.open_model(str(before), 'continue')
  losses = whole_runs.values(run.workdir, 'loss')
  assert len(losses) == int(state.step) and np.isfinite(losses).all()
  if run.name == 'electra':  # averages and moments of the generator, too
    for tree in (state.params, state.ema):
      assert {*tree['parts']} == {'generator'}
  if run.name == 'distilbert':
    shutil.move(tmp_path / 'away', before)
    assert_teacher_stays(run, state, before)
  names = {key for line in whole_runs.logged(run.workdir) for key in line}
  if run.name == 'switch':
    stacks = {f'router/{x}/layer_0/dropped' for x in ('encoder', 'decoder')}
    assert stacks <= names
  if run.name == 'char':  # the first of two layers ends at a quarter of the run
    found = np.array(whole_runs.values(run.workdir, 'objective/target_1_loss'))
    assert np.all(found[:2] > 0) and not np.any(found[2:])
  if run.name in ('transformer_xl', 'char'):
    first, last = whole_runs.values(run.workdir, 'eval/validation/loss')
    assert last < first
  held_out = 'eval/validation/'
  measured = {name.removeprefix(held_out) for name in names if name.startswith(held_out)}
  there, missing = LOGGED.get(run.name, (set(), set()))
  assert there <= measured and not missing & measured


def gradients(run, mesh, micro_rows, remat):
  """Loss, metrics and gradients of the first batch, by the trained weights.

  Returns:
    The number of micro-batches, those three, and the compiled program.
  """
  config = config_lib.unlocked(models.read_config(str(run.workdir)))
  config.batch.micro_rows, config.model.remat = micro_rows, remat
  if mesh.shape['context'] > 1:
    config.model.attention_backend = 'ring'
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sharding, 'make_mesh', lambda *_, **__: mesh)
    opened, state = Run.open(config.lock(), str(run.workdir), read_only=True)
  parts = opened.parts
  shape = parts.ramp.shape(0)
  micro = parts.micro_batches(shape)
  batch = next(opened.batches(0, lambda: state))
  args = state.params, parts.put(batch, shape.rows), jax.random.key(3)
  function = functools.partial(
    mean_gradients, objective=parts.objective, rates=parts.rates, num_steps=1, **micro._asdict()
  )
  with sharding.use(parts.mesh, parts.rules):
    compiled = jax.jit(function).lower(*args).compile()
    found = jax.device_get(compiled(*args))
  return micro.num_micro, found, compiled.as_text()


def test_eight_devices_and_micro_batches_are_one(run):
  """Dropout and masks included, and what layers store is computed again.

  What experts are charged is of each micro-batch: one device has as many. In
  int8 the last bit of a norm changes a rounding, and the gradients of kernels
  have a scale for each micro-batch.
  """
  if whole_runs.RUNS[run.name].command != 'train':
    pytest.skip('its rows are no store: see tuning/test_lora.py')
  experts = run.name == 'switch'
  if experts:
    mesh = tiny.make_mesh(1, 2, 2, expert=2)
  elif run.name == 'prefix':
    mesh = tiny.make_mesh(2, 2, 1, context=2)
  else:
    mesh = tiny.make_mesh(2, 2, 2)
  alone = gradients(run, tiny.make_mesh(1, 1, 1), 8 if experts else 0, 'none')
  many = gradients(run, mesh, 2, 'full')
  assert (alone[0], many[0]) == (1 + experts, 2)
  if experts:
    assert exchanges(alone[2]) == 0 and exchanges(many[2]) > 4
  if run.name == 'prefix':  # keys and values go around the ring
    texts = (x[2] for x in (alone, many))
    assert ['collective-permute' in text for text in texts] == [False, True]

  def compare(a, b):
    scale = float(np.max(np.abs(b)))
    near = 0.1 if run.name == 'int8' else 2e-5
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=near * scale + 2e-7)

  jax.tree.map(compare, many[1], alone[1])


# What Hugging Face calls a run's export, and that of a part of it.
EXPORTS = {
  'unilm': {'': 'BertForPreTraining'},
  'xlnet': {'': 'XLNetLMHeadModel'},
  'prefix': {'': 'OpenAIGPTLMHeadModel'},
  'int8': {'': 'OpenAIGPTLMHeadModel'},
  'ulmfit': {'': 'AwdLstm'},
  'elmo': {'': 'Elmo'},
  'distilbert': {'': 'DistilBertForMaskedLM', 'teacher': 'BertForMaskedLM'},
}


def test_an_export_comes_back(run, tmp_path):
  if run.name not in EXPORTS:
    pytest.skip('has a test of its own, or no family')
  state = models.load_state(str(run.workdir))[1]
  params = jax.device_get(state.eval_params)
  parts = {**jax.device_get(state.params).get('parts', {}), '': params}
  params.pop('parts', None)
  for part, architecture in EXPORTS[run.name].items():
    out = tmp_path / f'out{part}'
    argv = ['convert', f'--workdir={run.workdir}', f'--to_hf={out}']
    assert main([*argv, *([f'--part={part}'] if part else [])]) == 0
    assert golden_io.config(out)['architectures'] == [architecture]
    read = hf.load(str(out))[1]
    jax.tree.map(whole_runs.assert_same_bits, read, parts[part])
