# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""UniLM, XLNet, DeBERTa, MASS, prefix LMs by command: resumed, exported."""

import json
import pathlib

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.__main__ import main
from gpt_jax.training import models as trained_lib
from tests.support import whole_runs
from tests.support.golden_io import config

pytestmark = pytest.mark.slow

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
TEXT = 'The cat sat on the mat. A dog ran to the old red house.\n\n'
FLAGS = [
  '--config.data.holdout=tail(fraction=0.1)',
  '--config.model.num_layers=1',
  '--config.model.d_model=32',
  '--config.model.num_heads=4',
  '--config.model.context_length=24',
  '--config.model.dropout=rates(embedding=0.1)',
  '--config.batch.size=24',
  '--config.batch.micro_rows=0',
  '--config.optim.name=adamw',
  '--config.schedule.num_steps=6',
  '--config.schedule.name=constant(peak=1e-3)',
  '--config.checkpoint.every_steps=3',
  '--config.eval.every_steps=3',
  '--config.eval.rows=8',
  '--config.log.every_steps=1',
]
OWN = {
  'unilm': [
    '--config.tokenizer.name=wordpiece(vocab_size=80)',
    '--config.model.vocab_size=96',
    '--config.batch.length=stages(24)',
  ],
  'xlnet': [
    '--config.tokenizer.name=wordpiece(vocab_size=80)',
    '--config.model.vocab_size=96',
    '--config.batch.length=stages(24)',
  ],
  'deberta': [
    '--config.tokenizer.name=wordpiece(vocab_size=80)',
    '--config.model.vocab_size=96',
    '--config.batch.length=stages(24)',
  ],
  'mass': [
    '--config.tokenizer.name=byte_bpe(vocab_size=270)',
    '--config.model.vocab_size=270',
    '--config.model.num_encoder_layers=1',
    '--config.batch.length=stages(24)',
  ],
  'prefix': [
    '--config.tokenizer.name=bytes',
    '--config.model.vocab_size=264',
    '--config.objective.name=prefix()',
    '--config.data.rows=stream',
    '--config.log.sample_prompt=',
  ],
}
FILES = {**{name: name for name in OWN}, 'prefix': 'gpt1'}


@pytest.fixture(scope='module', params=[*OWN])
def run(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp(request.param)
  for i in range(20):
    (folder / f'{i}.txt').write_text(TEXT * 5 + f'Number {i}. And so on.\n')
  flags = [
    f'--config={CONFIGS}/{FILES[request.param]}.py:cpu',
    *FLAGS,
    *OWN[request.param],
    f"--config.data.source=text('{folder}/*.txt')",
  ]
  with pytest.MonkeyPatch.context() as patch:
    whole_runs.known_peak(patch)
    assert main(['train', *flags, f'--workdir={folder}/w']) == 0
  return request.param, folder / 'w', flags


def test_a_resume_ends_in_the_same_bits(run, tmp_path, monkeypatch):
  whole_runs.known_peak(monkeypatch)
  name, first, flags = run
  second = tmp_path / 'w'
  whole_runs.resumed(first, second, flags, step=6)
  keys = ['loss', 'eval/validation/loss']
  if name == 'unilm':
    keys += [
      f'eval/validation/{mask}_loss' for mask in ('seq2seq', 'bidirectional')
    ]
  for key in keys:
    found = whole_runs.logged(first, key)
    assert found and found == whole_runs.logged(second, key), key
  measured = {
    key.removeprefix('eval/validation/')
    for line in (first / 'metrics.jsonl').read_text().splitlines()
    for key in json.loads(line)
  }
  if name == 'unilm':
    assert {'seq2seq_perplexity', 'left_to_right_accuracy'} <= measured
    assert not {'perplexity', 'masked_loss', 'bits_per_byte'} & measured
  else:
    assert {'perplexity'} <= measured
    assert ('token_accuracy' in measured) == (name == 'mass')
    masked = name in ('xlnet', 'deberta')
    assert ('masked_accuracy' in measured) == masked


def test_a_run_goes_on_where_a_bert_does(run, tmp_path, capsys):
  """Exported as a BERT with both heads, imported again, and filled in."""
  name, workdir, _ = run
  if name != 'unilm':
    pytest.skip('no BERT')
  out, back = tmp_path / 'out', tmp_path / 'back'
  assert main(['convert', f'--workdir={workdir}', f'--to_hf={out}']) == 0
  assert config(out)['architectures'] == ['BertForPreTraining']
  assert config(out)['type_vocab_size'] == 2
  params = jax.device_get(trained_lib.load_state(str(workdir))[1].params)
  _, read = hf.load(str(out))
  jax.tree.map(np.testing.assert_array_equal, read, params)
  assert main(['convert', f'--from_hf={out}', f'--workdir={back}']) == 0
  found = []
  for folder in (workdir, back):
    capsys.readouterr()
    text = '--text=The [MASK] sat.'
    assert main(['fill', f'--workdir={folder}', text]) == 0
    found.append(capsys.readouterr().out)
  assert found[0] == found[1] and found[0]
  # Its bidirectional rows learned of next sentences.
  flags = [f'--workdir={workdir}', '--pairs=next', '--json']
  assert main(['evaluate', *flags]) == 0
  measured = json.loads(capsys.readouterr().out)
  assert measured['eval/validation/pairs_next_loss'] > 0
