# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/posttraining.md do what it says, one after another."""

import json
import shlex

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.decoding.chat import TEMPLATES
from tests.support import tiny
from tests.support.stdin import stdin_of
from tests.test_docs import ROOT, fenced
from tests.test_own_tables import HERE_DOCUMENT

RUNS = ('sft', 'reward', 'dpo', 'grpo', 'ppo')


@pytest.mark.slow  # five runs: each method has its own fast tests
def test_the_page_does_what_it_says(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr('sys.stdin', stdin_of('Name a colour.\n'))
  sizes = {'d_model': 32, 'num_heads': 4, 'num_kv_heads': 4, 'head_size': 8}
  sizes |= {'d_ff': 64, 'num_layers': 1, 'context_length': 96}
  fields = {f'model.{name}': size for name, size in sizes.items()}
  tiny.save(tmp_path / 'W', tokenizer.build('bytes', []), **fields)
  done = []
  for block in fenced(ROOT / 'docs/posttraining.md'):
    if 'gpt-jax lamda' in block:  # test_lamda.py runs it
      continue
    for name, text in HERE_DOCUMENT.findall(block):
      (tmp_path / name).write_text(text)
    commands = HERE_DOCUMENT.sub('', block).replace('\\\n', ' ')
    for line in commands.replace('configs/', f'{ROOT}/configs/').splitlines():
      _, name, *argv = shlex.split(line)
      if name in RUNS:  # one update of each is enough
        argv.append('--config.schedule.num_steps=1')
      assert main([name, *argv]) == 0, line
      done.append(name)
  assert done == ['sft', 'generate', 'convert', *RUNS[1:]]
  template = (tmp_path / 'HF_FOLDER/chat_template.jinja').read_text()
  assert template == TEMPLATES['zephyr']
  reward = json.loads((tmp_path / 'R/result.json').read_text())
  assert reward['train']['pairs'] == 4
  assert (tmp_path / 'P/reference.npz').exists()
  assert all((tmp_path / run / 'result.json').exists() for run in 'GA')
