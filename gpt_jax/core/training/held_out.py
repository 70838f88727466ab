# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loss on held-out sets; each of their tokens is scored exactly once."""

import math
import sys
from collections.abc import Callable, Mapping

import jax
import numpy as np

from gpt_jax.core import sharding
from gpt_jax.core.objectives.loss import Mean
from gpt_jax.core.rows import row_order
from gpt_jax.core.tokens.eval_sets import EvalSet
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training.parts import Parts


class HeldOut:
  """The evaluation on held-out sets; implements `run.Evaluation`."""

  def __init__(self, parts: Parts, sets: Mapping[str, EvalSet]):
    """Takes the sets by name, and compiles the evaluation step."""
    self._parts, self._sets = parts, sets
    self._step = compiled_lib.compile_eval_step(parts).call

  def __call__(self, params, stop: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
    """Loss, perplexity and bits per byte under keys `eval/NAME/...`.

    Bits per byte are bits per token times the set's tokens per byte; the
    perplexity per original word is exp(nats per token * tokens per word).
    End-of-document tokens are predicted and counted too.

    Args:
      stop: called after each batch, the same one on every host.

    Returns:
      The metrics; None if it was stopped.
    """
    metrics = {}
    for name, held_out in self._sets.items():
      values = self._measure(params, held_out, stop)
      if values is None:
        return None
      metrics |= {f'eval/{name}/{key}': value for key, value in values.items()}
    return metrics

  def _measure(
    self, params, held_out: EvalSet, stop: Callable[[], bool]
  ) -> dict[str, float] | None:
    config, rows = self._parts.config, self._parts.eval_rows
    objective = self._parts.objective
    # The same number of rows, to whatever the devices round `eval.rows` up.
    most = config.eval.num_batches
    batches = row_order.evaluation_batches(
      held_out.store,
      length=self._parts.ramp.longest,
      rows=rows,
      make_batch=objective.make_batch,
      host_rows=self._parts.host_rows,
      most=most and most * config.eval.rows,
    )
    sums = []
    for batch in batches:
      means = self._step(params, self._parts.put(batch, rows))
      sums.append({name.removeprefix('objective/'): mean for name, mean in means.items()})
      sharding.wait_for_earlier(sums)
      if stop():
        return None
    # In float64, so that order and number of the batches do not matter.
    totals = jax.tree.map(lambda *x: np.sum(x, dtype=np.float64), *jax.device_get(sums))
    values: dict[str, float] = {}
    for name, means in totals.items():
      (total, weight), *added = [means] if isinstance(means, Mean) else means
      if weight or name == 'loss':  # a small set may have no such token
        of_added = sum(mean.sum / mean.weight for mean in added if mean.weight)
        values[name] = float(total / weight + of_added)
    values['tokens'] = int(totals['loss'][0].weight)
    if objective.every_token:
      return {**values, **of_text(values['loss'], held_out)}
    for kind in objective.kinds:
      if f'{kind}_loss' in values:
        values |= exponential(f'{kind}_perplexity', values[f'{kind}_loss'])
    if objective.kinds:
      return values
    names = ('masked_loss', 'hard_loss', 'loss')
    text = next(values[name] for name in names if name in values)
    return {**values, **exponential('perplexity', text)}

  def summary(self, values: dict[str, float]) -> str:
    """A line for people."""
    return summary(values)


def of_text(loss: float, held_out: EvalSet) -> dict[str, float]:
  """Metrics of a text from its mean loss per token, in nats."""
  manifest = held_out.store.manifest
  total = loss * manifest.num_tokens
  values = {
    **exponential('perplexity', loss),
    'bits_per_byte': total / math.log(2) / manifest.num_bytes,
  }
  if words := held_out.num_words:
    values |= exponential('word_perplexity', total / words)
  return values


def exponential(name: str, nats: float) -> dict[str, float]:
  """Exp of a loss under the key `name`; empty if it overflows."""
  if nats < math.log(sys.float_info.max):
    return {name: math.exp(nats)}
  return {}


def summary(values: dict[str, float]) -> str:
  """A line for people."""
  lines = []
  for name in (key.split('/')[1] for key in values if key.endswith('/loss')):
    shown = [
      f'{label} {values[f"eval/{name}/{measure}"]:.{digits}f}'
      for measure, label, digits in _SHOWN
      if f'eval/{name}/{measure}' in values
    ]
    tokens = values[f'eval/{name}/tokens']
    lines.append(f'{name} {", ".join(shown)}, over {tokens:,} tokens')
  return '; '.join(lines)


# Metric, its label in the summary, and its decimals.
_SHOWN = (
  ('loss', 'loss', 4),
  ('perplexity', 'perplexity', 2),
  ('bits_per_byte', 'bits per byte', 4),
  ('word_perplexity', 'perplexity per word', 2),
  ('masked_accuracy', 'accuracy', 4),
  ('bidirectional_loss', 'bidirectional', 4),
  ('left_to_right_loss', 'left to right', 4),
  ('right_to_left_loss', 'right to left', 4),
  ('seq2seq_loss', 'sequence to sequence', 4),
  ('token_accuracy', 'accuracy', 4),
  ('pair_loss', 'loss of pairs', 4),
  ('pair_accuracy', 'accuracy of pairs', 4),
)
