# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A language that two tokens of a sentence explain: progressions mod 97.

Each token is the one before plus d, which a sentence has throughout. Trained as
a user would, it is learnt to the last token; of words in no order nothing is.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODULUS, STEPS, LENGTH = 97, 8, 14

CONFIG = """
from configs import bert


def get_config():
  config = bert.get_config('cpu').unlock()
  config.data.source = "jsonl('{0}/train.jsonl')"
  config.data.holdout = "jsonl('{0}/held_out.jsonl')"
  config.eval.sets = dict(shuffled="jsonl('{0}/shuffled.jsonl')")
  config.tokenizer.name = "wordpiece_file('{0}/vocab.txt')"
  config.data.sentences = 'lines'
  config.data.rows = 'doc_sentences'
  config.objective.name = 'masked(mask=1.0, random=0.0)'
  config.model.vocab_size = 102
  config.model.context_length = 16
  config.batch.length = 'stages(16)'
  config.model.num_layers = 2
  config.model.d_model = 64
  config.model.num_heads = 2
  config.batch.size = config.batch.micro_rows = 128
  config.schedule.num_steps = 2000
  config.eval.every_steps = 2000
  config.eval.rows = 100
  config.eval.num_batches = 10
  return config.lock()
"""


def progressions(rng, count):
  first = rng.integers(MODULUS, size=(count, 1))
  step = rng.integers(1, STEPS + 1, size=(count, 1))
  return (first + step * np.arange(LENGTH)) % MODULUS


def write(path, sentences):
  texts = (' '.join(f'n{i}' for i in row) for row in sentences)
  path.write_text(''.join(json.dumps({'text': t}) + '\n' for t in texts))


@pytest.mark.long
@pytest.mark.slow
def test_progressions_are_learnt_and_no_order_is_chance(tmp_path):
  rng = np.random.default_rng(0)
  held_out = progressions(rng, 1000)
  write(tmp_path / 'train.jsonl', progressions(rng, 40_000))
  write(tmp_path / 'held_out.jsonl', held_out)
  mixed = rng.permutation(held_out.ravel()).reshape(held_out.shape)
  write(tmp_path / 'shuffled.jsonl', mixed)
  words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
  words += [f'n{i}' for i in range(MODULUS)]
  (tmp_path / 'vocab.txt').write_text('\n'.join(words) + '\n')
  (tmp_path / 'config.py').write_text(CONFIG.format(tmp_path))
  flags = [f'--config={tmp_path}/config.py', f'--workdir={tmp_path}/w']
  # Compiled to run fast, not as the tests are, to compile fast.
  env = {**os.environ, 'PYTHONPATH': str(ROOT), 'XLA_FLAGS': ''}
  subprocess.run([sys.executable, '-m', 'gpt_jax', 'train', *flags], env=env, check=True)
  lines = (tmp_path / 'w' / 'metrics.jsonl').read_text().splitlines()
  found = {}
  for line in lines:
    found |= json.loads(line)
  assert found['eval/validation/masked_accuracy'] >= 0.99
  assert found['eval/shuffled/masked_accuracy'] < 3 / MODULUS
