# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Losses that are no finite number, or too large for their perplexity."""

import json
import math
import types

import numpy as np
import pytest

from gpt_jax.benchmarks.train import random_store
from gpt_jax.commands import plot, train
from gpt_jax.core.objectives.loss import Mean
from gpt_jax.core.rows import row_order
from gpt_jax.core.tokens.eval_sets import EvalSet
from gpt_jax.core.training import held_out, metrics, run
from tests.support import tiny


def every_token_costs(monkeypatch, nats):
  """Whatever the parameters are."""

  def call(params, batch):
    del params
    weight = float(batch['weights'].sum())
    return {'loss': (Mean(nats * weight, weight),)}

  monkeypatch.setattr(
    held_out.compiled_lib, 'compile_eval_step', lambda run: types.SimpleNamespace(call=call)
  )


def measures(monkeypatch, nats):
  """What is said of a held-out set of so many nats a token."""
  every_token_costs(monkeypatch, nats)
  run = tiny.build(tiny.config(**tiny.MESHABLE), (1, 1, 1))
  store = random_store(num_tokens=101, vocab_size=47)
  found = held_out.HeldOut(run, {'validation': EvalSet(store, 31)})(None)
  assert found is not None
  return found


@pytest.mark.parametrize('nats', [2.5, 709.5, 710.0, 1e30, math.inf, math.nan])
def test_a_perplexity_that_no_float_holds_is_left_out(monkeypatch, nats):
  found = measures(monkeypatch, nats)
  key = 'eval/validation/perplexity'
  np.testing.assert_equal(found['eval/validation/loss'], nats)
  assert (key in found) == (nats < 709.7)
  if key in found:
    # By another way than exp.
    assert found[key] == pytest.approx(2.0 ** (nats / math.log(2)), rel=1e-9)
  line = held_out.summary(found)
  assert line.startswith(f'validation loss {nats:.4f}, ')
  assert (', perplexity ' in line.replace('perplexity per', '')) == (nats < 709.7)


@pytest.mark.parametrize('criterion', ['eval/a/x', '-eval/a/x'])
@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_the_best(criterion, value):
  made = run.Run(*[None] * 6, criterion=criterion)
  worst = made.judged({'eval/a/x': value})
  assert worst == math.inf
  assert worst > made.judged({'eval/a/x': 1e300})
  assert made.judged({}) is None
  # Nor does it hide that the others were no better.
  held_out = [(3, 1.0), (6, worst), (9, 1.5)]
  assert run.gave_up(held_out, 2)


@pytest.mark.slow
def test_a_run_of_which_every_step_was_skipped_ends(tmp_path, monkeypatch, capsys):
  """And says so, in JSON; started again it has nothing left to do."""
  batches = row_order.batches

  def poisoned(store, **kwargs):
    for batch in batches(store, **kwargs):
      batch['weights'] = batch['weights'] * np.float32(np.nan)
      yield batch

  monkeypatch.setattr(row_order, 'batches', poisoned)
  every_token_costs(monkeypatch, 800.0)
  changes = {
    **tiny.MESHABLE,
    'model.vocab_size': 264,
    'model.num_layers': 1,
    'data.source': "text('configs/gpt*.py')",
    'data.holdout': 'tail(fraction=0.1)',
    'tokenizer.name': 'bytes',
    'schedule.num_steps': 5,
    'optim.on_spike': 'skip',
    'log.every_steps': 2,
    'eval.every_steps': 3,
    'log.sample_prompt': '',
  }
  workdir = str(tmp_path / 'w')
  for _ in range(2):
    train.train(tiny.config(**changes), workdir)
  lines = [
    json.loads(line, parse_constant=pytest.fail)
    for line in (tmp_path / 'w/metrics.jsonl').read_text().splitlines()
  ]
  skipped = [m['step'] for m in lines if m.get('event') == 'skipped']
  assert skipped == [1, 2, 3, 4, 5]
  logged = {m['step']: m['loss'] for m in lines if 'loss' in m}
  assert logged == {2: 'nan', 4: 'nan', 5: 'nan'}
  evaluated = {m['step']: m[metrics.HELD_OUT] for m in lines if metrics.HELD_OUT in m}
  assert evaluated == {3: 800.0, 5: 800.0}
  capsys.readouterr()
  plot.main(types.SimpleNamespace(config=None, workdir=workdir, out=None, goodput=False))
  assert capsys.readouterr().out == ''
  assert not (tmp_path / 'w/loss.png').exists()
