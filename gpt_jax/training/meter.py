# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From the outputs of training steps to the figures of a log line."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from gpt_jax.costs import flops
from gpt_jax.costs import peak as peak_lib
from gpt_jax.optim.consumption import Shape
from gpt_jax.runtime.log import log
from gpt_jax.training import routers
from gpt_jax.training.compiled import Stages
from gpt_jax.training.parts import Parts


class Meter:
  """Turns the outputs of steps into the metrics of a log line."""

  def __init__(self, parts: Parts, params: Any, train_steps: Stages):
    """Measures the peak where it is not known.

    Args:
      parts: gives the schedule and the sizes.
      params: real or abstract.
      train_steps: compiled; a rewind may add to them.
    """
    self._parts, self._train_steps = parts, train_steps
    # A fine-tuned example is counted as if it filled the context.
    tuned = parts.config.get('finetune')
    # Of one token, by the length of its row.
    self._flops = {
      length: tuple(
        count(parts.config, params, None if tuned else length)
        for count in (flops.per_token, flops.per_token_causal)
      )
      for length in {stage.length for stage in parts.ramp.stages}
    }
    peak, source = peak_lib.of_device(parts.mesh.devices.flat[0])
    self._peak = peak * parts.mesh.size
    largest = max(train_steps, key=lambda shape: shape.tokens)
    log.info(
      'MFU = tokens/s * %.4g FLOPs a token / %.3g FLOP/s (%s); gpt-jax inspect '
      '--mfu says how they are counted',
      self._per_token(largest)['mfu'],
      *(self._peak, source),
    )
    self.taken = 0  # steps of this process
    self.resume([])

  def resume(self, unlogged: list[dict[str, Any]]) -> None:
    """Drops the steps not read yet, and takes up what `unlogged` gave."""
    self._outputs, self._fetched = [], [*unlogged]
    self.restart()

  def unlogged(self) -> list[dict[str, Any]]:
    """What routers did in each step fetched since the last log line, as JSON.

    Kept with a checkpoint, so that the next line has the same means after a
    resume. Empty without experts.
    """
    found = [routers.plain(output) for output in self._fetched]
    return found if any(found) else []

  def restart(self) -> None:
    """Starts the clock again: what was done meanwhile is not training."""
    self._start, self._wait, self._steps = time.perf_counter(), 0.0, 0

  def waiting(self, batches: Iterable) -> Iterator:
    """Passes batches on, and counts the time spent waiting for them."""
    batches = iter(batches)
    while True:
      start = time.perf_counter()
      batch = next(batches, None)
      self._wait += time.perf_counter() - start
      if batch is None:
        return
      yield batch

  def add(self, output: dict[str, Any]) -> None:
    """Keeps the outputs of one step; does not wait for them."""
    self._outputs.append(output)
    self._steps += 1
    self.taken += 1

  def fetch(self) -> list[dict[str, Any]]:
    """The outputs of the steps since the last call; waits for them."""
    outputs, self._outputs = jax.device_get(self._outputs), []
    self._fetched += outputs
    return outputs

  def read(self, step: int) -> dict[str, Any]:
    """The metrics of step `step`, fetched last, and speeds since `restart`.

    Those of routers are means over all steps since the last call.
    """
    outputs, self._fetched = self._fetched, []
    ramp = self._parts.ramp
    seconds = time.perf_counter() - self._start
    by_shape = ramp.tokens_by_shape(step - self._steps, step)
    values = {
      'tokens': ramp.tokens(step),
      'loss': float(outputs[-1]['loss']),
      'grad_norm': float(outputs[-1]['grad_norm']),
      'learning_rate': float(self._parts.schedule(step - 1)),
      'batch_rows': ramp.rows(step - 1),
      **self._rows(step),
      **self._task(step),
      'tokens_per_second': sum(by_shape.values()) / seconds,
      'data_wait_seconds': self._wait / max(self._steps, 1),
      'step_seconds': seconds / max(self._steps, 1),
      **self._utilisation(by_shape, seconds),
      **{
        name: float(value)
        for name, value in outputs[-1].items()
        if name.startswith('objective/')
      },
      **routers.metrics(self._parts.config, outputs),
    }
    self.restart()
    return values

  def _per_token(self, shape: Shape) -> dict[str, float]:
    """FLOPs of a token in a batch of some shape, in three ways of counting."""
    model, causal = self._flops[shape.length]
    compiler = self._train_steps[shape].flops / shape.tokens
    return {'mfu': model, 'mfu_causal': causal, 'mfu_compiler': compiler}

  def _utilisation(
    self, by_shape: dict[Shape, int], seconds: float
  ) -> dict[str, float]:
    """Three kinds of MFU, of tokens by the shape of their batch."""
    found: dict[str, float] = {}
    for shape, tokens in by_shape.items():
      for name, per_token in self._per_token(shape).items():
        part = flops.mfu(tokens / seconds, per_token, self._peak)
        found[name] = found.get(name, 0.0) + part
    return found

  def _rows(self, step: int) -> dict[str, int]:
    """Length and number of the rows so far, where their length changes."""
    ramp = self._parts.ramp
    if len(self._flops) == 1:
      return {}
    return {
      'row_tokens': ramp.shape(step - 1).length,
      'rows': ramp.offset(step),
    }

  def _task(self, step: int) -> dict[str, str]:
    """Whose loss it is, where there are several tasks."""
    task = self._parts.ramp.shape(step - 1).task
    return {'task': task} if task else {}


def summary(values: dict[str, Any]) -> str:
  """A log line for people."""
  task = f' of {values["task"]}' if 'task' in values else ''
  return (
    f'loss {values["loss"]:.3f}{task} | {values["tokens_per_second"]:,.0f} '
    f'tokens/s | MFU {values["mfu"]:.0%}'
  )
