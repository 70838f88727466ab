# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks while training: the figures of `evaluate`, beside the held-out loss."""

import json

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.training import metrics
from tests.support import tiny


def flags(workdir, tasks_dir):
  return [
    'train',
    *tiny.SMOKE,
    *tiny.flags(
      model=dict(num_layers=1, d_model=32, context_length=31),
      schedule=dict(num_steps=3),
      eval=dict(
        every_steps=2,
        tasks="lambada, text('notes.txt'), blimp('pairs.jsonl'), "
        "seq2seq('notes.txt', 'notes.txt', name='copy')",
        tasks_dir=tasks_dir,
      ),
      log=dict(sample_tokens=0),
    ),
    f'--workdir={workdir}',
  ]


@pytest.mark.long
@pytest.mark.slow  # a run; test_evaluate.py has what it calls
def test_tasks_are_evaluated_while_training(tmp_path, capsys):
  workdir = tmp_path / 'w'
  assert main(flags(workdir, tmp_path)) == 2
  assert 'lambada_test.jsonl: no such file; fetch' in capsys.readouterr().err
  (tmp_path / 'lambada').mkdir()
  (tmp_path / 'lambada' / 'lambada_test.jsonl').write_text(
    '{"text": "def get_config"}\n{"text": "return the config"}\n'
  )
  (tmp_path / 'notes.txt').write_text('return the config')
  (tmp_path / 'pairs.jsonl').write_text(
    '{"sentence_good": "import a", "sentence_bad": "a import", "UID": "order"}'
  )
  assert main(flags(workdir, tmp_path)) == 0
  told = capsys.readouterr().err
  assert 'text/notes: loss' in told and 'blimp/pairs: accuracy' in told
  lines = [m for m in metrics.read(str(workdir)) if 'eval_seconds' in m]
  assert [m['step'] for m in lines] == [2, 3]
  assert all(m['eval/lambada/examples'] == 2 for m in lines)
  assert all('eval/validation/loss' in m for m in lines)
  assert all('eval/blimp/pairs/accuracy' in m for m in lines)
  assert not any('eval/blimp/pairs/accuracy/order' in m for m in lines)
  assert all(0 <= m['eval/copy/chrf'] <= 100 for m in lines)
  assert 'eval/copy/chrf_signature' not in lines[0]
  written = workdir / 'evaluations' / 'training-copy.jsonl'
  assert json.loads(written.read_text())['source'] == 'return the config'
  tasks = "--tasks=lambada, text('notes.txt')"
  options = [tasks, f'--tasks_dir={tmp_path}', '--json']
  assert main(['evaluate', f'--workdir={workdir}', *options]) == 0
  found = json.loads(capsys.readouterr().out)
  for name in (
    'lambada/perplexity',
    'lambada/accuracy',
    'lambada/perplexity_stderr',
    'text/notes/loss',
    'text/notes/word_perplexity',
  ):
    key = f'eval/{name}'
    assert found[key] == pytest.approx(lines[-1][key], rel=1e-5)
  files = [f'--{side}={tmp_path}/notes.txt' for side in ('source', 'reference')]
  assert main(['evaluate', f'--workdir={workdir}', *files, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['eval/seq2seq/notes/chrf'] == lines[-1]['eval/copy/chrf']
  assert 'case:mixed' in found['eval/seq2seq/notes/chrf_signature']
  again = workdir / 'evaluations' / 'step-3-seq2seq-notes.jsonl'
  assert again.read_text() == written.read_text()
