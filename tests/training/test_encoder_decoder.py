# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Switch's encoder-decoder, shrunk by overrides, from the command line."""

import functools
import json
import pathlib

import jax
import numpy as np
import pytest

from configs import switch
from gpt_jax import config as config_lib
from gpt_jax import sharding
from gpt_jax.__main__ import main
from gpt_jax.objectives import choices
from gpt_jax.rows.rows import Keys, cut
from gpt_jax.tokenizers import special
from gpt_jax.training.step import mean_gradients
from tests.support import tiny, whole_runs
from tests.training.test_expert_parallel import assert_same, exchanges

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
TEXT = 'The cat sat on the mat. A dog ran to the old red house.\n\n'
EXPERTS = "switch(num_experts=4, expert='geglu', capacity_factor=1.25)"
FIELDS = {
  'tokenizer.name': 'sentencepiece(vocab_size=48, byte_fallback=False, '
  "special=['<pad>'], sentinels=8)",
  'model.vocab_size': 64,
  'model.num_layers': 1,
  'model.num_encoder_layers': 1,
  'model.d_model': 32,
  'model.d_ff': 48,
  'model.num_heads': 4,
  'model.head_size': 8,
  'model.context_length': 24,
  'model.ffn': EXPERTS,
  'model.encoder_ffn': EXPERTS,
  'model.dropout': 'rates(embedding=0.1, residual=0.1, attention=0.1)',
  'model.dtype': 'float32',
  'batch.size': 16,
  'batch.micro_rows': 16,
}
TRAINED = {
  **FIELDS,
  'data.holdout': 'tail(fraction=0.1)',
  'optim.ema': 'ema(decay=0.9)',
  'schedule.num_steps': 6,
  'checkpoint.every_steps': 3,
  'eval.every_steps': 3,
  'eval.rows': 8,
  'log.every_steps': 1,
}


class Tokenizer:
  vocab_size = 48
  special = special.of({}, 1, {'<extra_id_0>': 47, '<pad>': 0})


@pytest.fixture
def flags(tmp_path, monkeypatch):
  whole_runs.known_peak(monkeypatch)
  for i in range(20):
    (tmp_path / f'{i}.txt').write_text(TEXT * 9 + f'Number {i}. And so on.\n')
  fields = {**TRAINED, 'data.source': f"text('{tmp_path}/*.txt')"}
  config = f'--config={CONFIGS}/switch.py:t5-base-128'
  return [config, *(f'--config.{k}={v}' for k, v in fields.items())]


def logged(workdir):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


@pytest.mark.long
@pytest.mark.slow
def test_it_trains_and_a_resume_ends_in_the_same_bits(flags, tmp_path):
  first, second = tmp_path / 'a', tmp_path / 'b'
  assert main(['train', *flags, f'--workdir={first}']) == 0
  whole_runs.resumed(first, second, flags, step=6)
  found = logged(first)
  losses = [m['loss'] for m in found if 'loss' in m]
  assert losses[-1] == [m['loss'] for m in logged(second) if 'loss' in m][-1]
  assert np.isfinite(losses).all()
  (last,) = [m for m in found if m.get('step') == 6 and 'loss' in m]
  assert {
    'router/encoder/layer_0/dropped',
    'router/decoder/layer_0/dropped',
  } <= {*last}
  (held_out,) = [
    m for m in found if m.get('step') == 6 and 'eval/validation/loss' in m
  ]
  assert 0 < held_out['eval/validation/token_accuracy'] < 1


def test_a_tokenizer_without_sentinels_is_refused_first(
  flags, tmp_path, capsys
):
  workdir = tmp_path / 'w'
  plain = '--config.tokenizer.name=sentencepiece(vocab_size=300)'
  assert main(['train', *flags, plain, f'--workdir={workdir}']) == 2
  said = capsys.readouterr().err.strip().rpartition('\n')[2]
  assert 'has no <extra_id_0>' in said and 'sentinels=1)' in said
  assert not workdir.exists()


def computed(sizes, expert):
  """Loss, metrics and gradients of a step, and the compiled program."""
  config = switch.get_config('t5-base-128').unlock()
  config.update_from_flattened_dict(FIELDS)
  run = tiny.build(config.lock(), sizes, expert=expert)
  length = config_lib.ramp(run.config).longest
  objective = choices.build(run.config.objective.name, run.model, Tokenizer())
  rows = cut(tiny.tokens(16, length + 1, vocab_size=47))
  batch = objective.make_batch(rows, Keys.held_out(np.arange(16)))
  params = jax.device_put(tiny.params(run.model), run.shardings.params)
  function = functools.partial(mean_gradients, objective=objective, num_micro=1)
  with sharding.use(run.mesh, run.rules):
    compiled = (
      jax.jit(function)
      .lower(params, run.put(batch, 16), jax.random.key(3))
      .compile()
    )
    found = compiled(params, run.put(batch, 16), jax.random.key(3))
  return jax.device_get(found), compiled.as_text()


@pytest.mark.long
@pytest.mark.slow
def test_experts_of_both_stacks_over_two_devices():
  expected, alone = computed((1, 1, 1), 1)
  found, text = computed((1, 2, 1), 2)
  assert_same(found, expected)
  assert exchanges(alone) == 0 and exchanges(text) > 4
