# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures a trained model on the held-out split of its corpus.

  gpt-jax evaluate --workdir workdirs/smoke
  gpt-jax evaluate --workdir workdirs/smoke --json

Every held-out token is predicted exactly once, in rows of the training
context. Prints the loss (nats a token), the perplexity and the bits a UTF-8
byte of text.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping

import jax
import numpy as np
from absl import flags

from gpt_jax import command
from gpt_jax import run as run_lib
from gpt_jax.data import eval_sets, pipeline
from gpt_jax.data.eval_sets import EvalSet
from gpt_jax.data.store import TokenStore
from gpt_jax.run import Run


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  command.define_workdir(values, 'Folder of a trained run.')
  flags.DEFINE_string(
    'tasks',
    'validation',
    'Comma list of what to measure: validation (the held-out split, and the '
    'sets of eval.sets).',
    flag_values=values,
  )
  flags.DEFINE_bool('json', False, 'Print one JSON object.', flag_values=values)


def main(args: command.Args) -> None:
  """Runs the command."""
  command.required(args, 'workdir')
  workdir = args.workdir
  for task in args.tasks.split(','):
    if task not in TASKS:
      raise command.UsageError(
        f'--tasks={task}: unknown; one of ' + ', '.join(TASKS)
      )
  trained = run_lib.load(workdir)
  result: dict[str, float] = {'step': int(trained.state.step)}
  for task in args.tasks.split(','):
    result.update(TASKS[task](trained, workdir))
  if args.json:
    print(json.dumps(result))
  else:
    print(f'step {result["step"]}: {summary(result)}')


class HeldOut:
  """The held-out sets, evaluated whenever it is called."""

  def __init__(self, run: Run, sets: Mapping[str, EvalSet]):
    """Takes the sets by name, and compiles the evaluation step."""
    self._run, self._sets = run, sets
    self._step = run_lib.compile_eval_step(run).call

  def __call__(
    self, params, stop: Callable[[], bool] = lambda: False
  ) -> dict[str, float] | None:
    """Loss, perplexity and bits per byte under keys `eval/NAME/...`.

    The bits per byte are the bits per token, times the set's tokens per byte;
    the perplexity per original word is exp of the nats per token, times its
    tokens per word. The end-of-document tokens are predicted and counted too.

    Args:
      params: of the model.
      stop: asked after each batch, at the same one on every host.

    Returns:
      The measures; None if it was stopped.
    """
    found = {}
    for name, held_out in self._sets.items():
      values = self._measure(params, held_out, stop)
      if values is None:
        return None
      found |= {f'eval/{name}/{key}': value for key, value in values.items()}
    return found

  def _measure(
    self, params, held_out: EvalSet, stop: Callable[[], bool]
  ) -> dict[str, float] | None:
    config, rows = self._run.config, self._run.eval_rows
    batches = pipeline.evaluation_batches(
      held_out.store,
      length=config.model.context_length,
      rows=rows,
      host_rows=self._run.host_rows,
    )
    sums = []
    for i, batch in enumerate(batches):
      if i == config.eval.num_batches:
        break
      loss = self._step(params, self._run.put(batch, rows))
      sums.append((loss.sum, loss.weight))
      if stop():
        return None
    # In float64: the order and the number of the batches do not matter.
    sums = np.asarray(jax.device_get(sums), np.float64)
    total, weight = np.sum(sums, axis=0)
    loss = float(total / weight)
    manifest = held_out.store.manifest
    total = loss * manifest.num_tokens
    values = {
      'loss': loss,
      'perplexity': math.exp(loss),
      'bits_per_byte': total / math.log(2) / manifest.num_bytes,
      'tokens': int(weight),
    }
    words = held_out.num_words
    # An untrained model's may be too large for a float: then it is left out.
    if words and total / words < math.log(sys.float_info.max):
      values['word_perplexity'] = math.exp(total / words)
    return values


def summary(values: dict[str, float]) -> str:
  """A line for people."""
  names = [
    key.split('/')[1] for key in values if key.endswith('/bits_per_byte')
  ]
  return '; '.join(_summary(name, values) for name in names)


def _summary(name: str, values: dict[str, float]) -> str:
  key = f'eval/{name}'
  words = ''
  if f'{key}/word_perplexity' in values:
    words = f', perplexity per word {values[f"{key}/word_perplexity"]:.2f}'
  return (
    f'{name} loss {values[f"{key}/loss"]:.4f}, perplexity '
    f'{values[f"{key}/perplexity"]:.2f}, bits per byte '
    f'{values[f"{key}/bits_per_byte"]:.4f}{words}, over '
    f'{values[f"{key}/tokens"]:,} tokens'
  )


def _validation(trained: run_lib.Trained, workdir: str) -> dict[str, float]:
  config = trained.run.config
  store = TokenStore.open(run_lib.data_folder(config, workdir))
  sets = eval_sets.held_out(config, store.ordered('stdlib', config.data.rows))
  if not sets:
    raise command.UsageError(
      'data.holdout=none: this run held no text out; set data.holdout'
    )
  values = HeldOut(trained.run, sets)(trained.state.eval_params)
  assert values is not None  # nothing stopped it
  return values


TASKS = {'validation': _validation}
