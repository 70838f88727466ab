# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`benchmark --what decode --draft_layers`: rounds with and without a draft."""

import json
import pathlib

import pytest

from gpt_jax.__main__ import main

CONFIG = pathlib.Path(__file__).parents[2] / 'configs/benchmark.py'
FLAGS = [
  f'--config={CONFIG}:smollm2-135m',
  *('--config.model.num_layers=3', '--config.model.d_model=24'),
  *('--config.model.num_heads=3', '--config.model.head_size=8'),
  *('--config.model.d_ff=40', '--config.model.vocab_size=97'),
  *('--config.model.context_length=64', '--batches=2', '--steps=3'),
  *('--what=decode', '--draft_tokens=3'),
]


@pytest.mark.long
@pytest.mark.slow
def test_all_layers_are_always_right(capsys):
  """A draft of all layers gives each row four tokens in each round."""
  assert (
    main(
      ['benchmark', *FLAGS, '--draft_layers=1,3', '--weights=int8', '--json']
    )
    == 0
  )
  found = json.loads(capsys.readouterr().out)
  assert (found['draft_tokens'], found['steps']) == (3, 3)
  plain, one, whole, small = found['cases']
  assert [case['weights'] for case in found['cases']] == ['float'] * 3 + [
    'int8'
  ]
  layers = [case['draft_layers'] for case in found['cases']]
  assert layers == [None, 1, 3, None]
  assert plain['tokens_a_round'] == 1
  assert plain['speedup'] == pytest.approx(1)
  assert small['tokens_a_round'] == 1
  assert (whole['tokens_a_round'], whole['accepted']) == (4, 1)
  assert 1 <= one['tokens_a_round'] <= 4
  for case in found['cases']:
    rate = case['rows'] * case['tokens_a_round'] / case['round_seconds']
    assert case['tokens_per_second'] == pytest.approx(rate)


@pytest.mark.parametrize(
  'flags, why',
  [
    (['--draft_layers=5'], '--draft_layers=5: the model has 3'),
    (['--draft_layers=0'], '--draft_layers=0: must be whole numbers from 1'),
    (['--draft_layers=1', '--steps=9'], 'up to 77 tokens exceed model.context'),
    (['--draft_layers=1', '--against=torch'], 'are for decoding; give'),
  ],
)
def test_bad_usage_is_one_line(flags, why, capsys):
  assert main(['benchmark', *FLAGS, *flags]) == 2
  said = capsys.readouterr().err
  assert why in said and said.count('\n') == 1
