# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""UniLM's encoder is a BERT with both heads."""

import json

import pytest

from gpt_jax.__main__ import main
from tests.support import whole_runs
from tests.support.golden_io import config


@pytest.mark.slow
def test_a_run_goes_on_where_a_bert_does(tmp_path, capsys):
  """Exported as a BERT with both heads, imported again, and filled in."""
  changes = {'schedule__num_steps': 1}
  workdir = whole_runs.trained('unilm', tmp_path / 'run', **changes).workdir
  out, back = tmp_path / 'out', tmp_path / 'back'
  assert main(['convert', f'--workdir={workdir}', f'--to_hf={out}']) == 0
  assert config(out)['type_vocab_size'] == 2
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
