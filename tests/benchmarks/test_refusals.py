# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `benchmark` refuses, in one line."""

import importlib.util
import pathlib

import pytest

from gpt_jax.__main__ import main
from tests.benchmarks import test_against as against

ROOT = pathlib.Path(__file__).parents[2]

SIZES = [*against.SIZES[:-1], '--config.model.context_length=64']
TORCH = [*SIZES, '--against=torch', '--steps=5']
DECODE = [*TORCH, '--what=decode', '--batches=1,3', '--prompts=7,17']
PRODUCTS = ['--what=products', '--config.model.vocab_size=97']
NO_COUNT = "cannot count this model's products"


@pytest.mark.parametrize(
  'config, flags, message',
  [
    (
      'benchmark.py:gpt2',
      [*DECODE, '--what=encode'],
      '--against=torch: does not work with --what=encode',
    ),
    (
      'benchmark.py:gpt2',
      [*DECODE, '--batches=1,0'],
      '--batches=1,0: give distinct whole numbers from 1',
    ),
    (
      'benchmark.py:gpt2',
      [*DECODE, '--what=beam', '--prompts=59'],
      '--prompts: 59 and 6 new tokens exceed model.context_length=64',
    ),
    (
      'benchmark.py:gpt2',
      [*DECODE, '--prompts=59'],
      '--prompts: 59 and 6 new tokens exceed model.context_length=64',
    ),
    ('benchmark.py:gpt2', [*DECODE, '--config.model.num_encoder_layers=1'], 'objective.name='),
    ('benchmark.py:gpt2', [*SIZES, '--what=beam'], 'give --against torch'),
    *(
      ('smoke.py', ['--what=prepare', f'--text={text}'], message)
      for text, message in (
        ('documents(count=-1)', 'count=-1 must be at least 1'),
        ('documents(count=1e999)', 'count=inf must be a finite number'),
        ('documents(words=0)', 'words=0 must be at least 1'),
        ('one(megabytes=-2)', 'megabytes=-2 must be at least 1'),
        ('one(megabytes=1e9)', 'megabytes=1000000000.0 must be at most'),
      )
    ),
    (
      'benchmark.py:gpt2',
      [*SIZES, '--what=train', '--distributed'],
      '--distributed: does not work with --what=train',
    ),
    (
      'benchmark.py:char',
      [*TORCH, '--config.data.rows=documents'],
      'with positions, segments, which --against=torch',
    ),
    ('benchmark.py:awd-lstm', ['--what=lstm'], 'give --against torch'),
    *(
      (
        'benchmark.py:awd-lstm',
        [*TORCH, '--what=lstm', f'--config.model.attention={text}'],
        'torch has no such LSTMs',
      )
      for text in ('lstm(24, cell_clip=3)', 'lstm(24, biases=1)')
    ),
    ('benchmark.py:gpt2', [*TORCH, '--what=lstm'], 'torch has no such LSTMs'),
    ('switch.py:tiny', PRODUCTS, NO_COUNT),  # experts
    ('albert.py:cpu', PRODUCTS, NO_COUNT),  # layers that are shared
    ('gopher.py:44m', PRODUCTS, NO_COUNT),  # kernels of distances
    ('bert.py:cpu', PRODUCTS, NO_COUNT),  # a head that is more than the table
    *(
      ('char.py', ['--what=products', f'--batches={x}'], f'--batches={x}: give')
      for x in ('0', '1,0', '', 'x')
    ),
  ],
)
def test_refusals(config, flags, message, capsys, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
  assert main(['benchmark', f'--config={ROOT}/configs/{config}', *flags]) == 2
  error = capsys.readouterr().err
  assert message in error
  assert error.count('\n') == 1


@pytest.mark.parametrize('what, library', [('decode', 'torch'), ('score', '')])
def test_what_is_not_installed_is_named(what, library, capsys, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  config = f'--config={ROOT}/configs/benchmark.py:gpt2'
  assert main(['benchmark', config, *DECODE, f'--what={what}']) == 2
  error = capsys.readouterr().err
  assert f'{library} is not installed; run pip install -c constraints' in error
