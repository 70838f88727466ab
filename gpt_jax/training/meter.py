# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From the outputs of training steps to the figures of a log line."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from gpt_jax.costs import flops
from gpt_jax.runtime.log import log
from gpt_jax.training import routers
from gpt_jax.training.parts import Parts


class Meter:
  """Turns the outputs of steps into the metrics of a log line."""

  def __init__(self, parts: Parts, params: Any, compiler_flops: float):
    """Measures the peak where it is not known.

    Args:
      parts: gives the schedule and the sizes.
      params: real or abstract.
      compiler_flops: of one token, in the compiled step.
    """
    self._parts = parts
    self._flops = {
      'mfu': flops.per_token(parts.config, params),
      'mfu_causal': flops.per_token_causal(parts.config, params),
      'mfu_compiler': compiler_flops,
    }
    peak, source = flops.peak(parts.mesh.devices.flat[0])
    self._peak = peak * parts.mesh.size
    log.info('peak %.3g FLOP/s (%s)', self._peak, source)
    for formula, per_token in zip(
      (flops.FORMULA, flops.FORMULA_CAUSAL, flops.FORMULA_COMPILER),
      self._flops.values(),
      strict=True,
    ):
      log.info('%s: %.4g FLOPs a token', formula, per_token)
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
    tokens = ramp.tokens(step)
    rate = (tokens - ramp.tokens(step - self._steps)) / seconds
    values = {
      'tokens': tokens,
      'loss': float(outputs[-1]['loss']),
      'grad_norm': float(outputs[-1]['grad_norm']),
      'learning_rate': float(self._parts.schedule(step - 1)),
      'batch_rows': ramp.rows(step - 1),
      'tokens_per_second': rate,
      'data_wait_seconds': self._wait / max(self._steps, 1),
      'step_seconds': seconds / max(self._steps, 1),
      **{
        name: flops.mfu(rate, per_token, self._peak)
        for name, per_token in self._flops.items()
      },
      **{
        name: float(value)
        for name, value in outputs[-1].items()
        if name.startswith('objective/')
      },
      **routers.metrics(self._parts.config, outputs),
    }
    self.restart()
    return values


def summary(values: dict[str, Any]) -> str:
  """A log line for people."""
  return (
    f'loss {values["loss"]:.3f} | {values["tokens_per_second"]:,.0f} tokens/s'
    f' | MFU {values["mfu"]:.0%}'
  )
