# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tiny runs on texts of a few words, of which some are poisoned."""

import random

from gpt_jax.__main__ import main
from tests.support import tiny

STEPS = 24
# Two documents of noise among 30 of the same few words.
POISON = (7, 22)


def write_texts(folder, poison, count):
  """Documents of the same few words, and of random letters where they are poisoned."""
  draw = random.Random(0)
  words = ['the', 'cat', 'sat', 'on', 'a', 'mat', 'and', 'saw', 'one', 'red', 'house', 'tree']
  folder.mkdir()
  for number in range(count):
    text = ' '.join(draw.choices(words, k=50))
    if number in poison:
      text = ''.join(chr(draw.randrange(33, 127)) for _ in text)
    (folder / f'{number:03}.txt').write_text(text)


def fields(texts, **changes):
  """Flags of a tiny run on these texts."""
  given = {
    **tiny.MESHABLE,
    'model.vocab_size': 264,
    'model.num_layers': 2,
    'model.context_length': 63,
    'model.dropout': 'rates(residual=0.1)',
    'batch.size': 'ramp(0:8, 10_steps:16)',
    'data.source': f"text('{texts}/*.txt')",
    'data.holdout': 'none',
    'tokenizer.name': 'bytes',
    'schedule.num_steps': STEPS,
    'schedule.name': 'constant(peak=1e-2)',
    'checkpoint.every_steps': 8,
    'checkpoint.keep': 9,
    'log.every_steps': 3,
    'log.norms_every_steps': 5,
    'log.sample_prompt': '',
    **changes,
  }
  return [f'--config.{name}={value}' for name, value in given.items()]


def train(workdir, texts, **changes):
  """Trains it."""
  config = ['--config=configs/smoke.py', *fields(texts, **changes)]
  assert main(['train', f'--workdir={workdir}', *config]) == 0
  return workdir
