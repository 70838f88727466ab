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
from collections.abc import Callable

import jax
import numpy as np
from absl import flags

from gpt_jax import command
from gpt_jax import run as run_lib
from gpt_jax.data import pipeline
from gpt_jax.data.store import TokenStore
from gpt_jax.metrics import HELD_OUT
from gpt_jax.run import Run


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  command.define_workdir(values, 'Folder of a trained run.')
  flags.DEFINE_string(
    'tasks',
    'validation',
    'Comma list of what to measure: validation (the held-out split).',
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
  """The held-out split, evaluated whenever it is called."""

  def __init__(self, run: Run, store: TokenStore):
    """Takes the held-out split, and compiles the evaluation step."""
    self._run, self._store = run, store
    self._step = run_lib.compile_eval_step(run).call

  def __call__(
    self, params, stop: Callable[[], bool] = lambda: False
  ) -> dict[str, float] | None:
    """Loss, perplexity and bits per byte under keys `eval/validation/...`.

    The bits per byte are the bits per token, times the split's tokens per
    byte; the end-of-document tokens are predicted and counted too.

    Args:
      params: of the model.
      stop: asked after each batch, at the same one on every host.

    Returns:
      The measures; None if it was stopped.
    """
    config, rows = self._run.config, self._run.eval_rows
    batches = pipeline.evaluation_batches(
      self._store,
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
    manifest = self._store.manifest
    bits = loss / math.log(2) * manifest.num_tokens / manifest.num_bytes
    return {
      HELD_OUT: loss,
      'eval/validation/perplexity': math.exp(loss),
      'eval/validation/bits_per_byte': bits,
      'eval/validation/tokens': int(weight),
    }

  def summary(self, values: dict[str, float]) -> str:
    """A line for people."""
    return summary(values)


def summary(values: dict[str, float]) -> str:
  """A line for people."""
  return (
    f'validation loss {values[HELD_OUT]:.4f}, perplexity '
    f'{values["eval/validation/perplexity"]:.2f}, bits per byte '
    f'{values["eval/validation/bits_per_byte"]:.4f}, over '
    f'{values["eval/validation/tokens"]:,} tokens'
  )


def _validation(trained: run_lib.Trained, workdir: str) -> dict[str, float]:
  store = TokenStore.open(run_lib.data_folder(trained.run.config, workdir))
  split = store.validation()
  if split is None:
    raise command.UsageError(
      'data.holdout=none: this run held no text out; set data.holdout'
    )
  values = HeldOut(trained.run, split)(trained.state.eval_params)
  assert values is not None  # nothing stopped it
  return values


TASKS = {'validation': _validation}
