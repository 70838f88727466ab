# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL and T64 read held-out text with a memory."""

import json

import jax
import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.nn.row import Row
from gpt_jax.core.tokens.store import TokenStore
from gpt_jax.evaluation import carried_memory as memory_lib
from gpt_jax.opening import models as trained_lib
from tests.support import whole_runs


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
    variables, Row(rows[:, :-1].astype(np.int32), visible_BLM=np.broadcast_to(seen, (8, 24, 24)))
  )
  logits = model.apply(variables, out.hidden_BLD, method='logits')
  log_probs = np.asarray(jax.nn.log_softmax(logits))
  picked = np.take_along_axis(log_probs, rows[:, 1:, None], -1)
  return -np.mean(picked, dtype=np.float64), 192


@pytest.mark.slow
@pytest.mark.parametrize('name', ['transformer_xl', 'char'])
def test_text_is_read_with_memory(name, tmp_path, capsys, monkeypatch):
  """As one row, under the mask that is equivalent."""
  changes = {'schedule__num_steps': 1}
  workdir = whole_runs.trained(name, tmp_path / 'run', **changes).workdir
  # Two segments of 6 at a time, of 4 heads and 13 keys.
  monkeypatch.setattr(memory_lib, '_CHUNK_SCORES', 2 * 4 * 6 * 13)
  capsys.readouterr()
  command = ['evaluate', f'--workdir={workdir}', '--json', '--segment=6']
  if name == 'char':
    assert main([*command, '--memory=7']) == 2
    assert 'model.position=learned_by_layer' in capsys.readouterr().err
    return
  assert main([*command, '--memory=7']) == 0
  found = json.loads(capsys.readouterr().out)
  assert main(command) == 2
  assert 'need --memory' in capsys.readouterr().err
  trained = trained_lib.load(str(workdir))
  loss, tokens = by_hand(trained, workdir, 7)
  assert found['eval/validation/memory_7_tokens'] == tokens
  measured = found['eval/validation/memory_7_loss']
  np.testing.assert_allclose(measured, loss, rtol=1e-4)
