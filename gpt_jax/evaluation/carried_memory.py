# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The held-out loss with Transformer-XL's memory carried through the text.

The text is read in order, segment by segment, each token once. Memory and
segments may have other lengths than in training (Dai et al. 2019, section 4).
On n devices the text is read in n parts, whose first segments have no memory.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding, spec
from gpt_jax.core.config import Config
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.choices import POSITIONS
from gpt_jax.core.nn.stack import Caches
from gpt_jax.core.objectives.base import TextObjective
from gpt_jax.core.objectives.loss import Batch, Loss
from gpt_jax.core.rows import row_makers
from gpt_jax.core.rows.rows import Keys
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens.eval_sets import EvalSet
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.held_out import of_text
from gpt_jax.core.training.parts import Parts
from gpt_jax.evaluation import figures, validation
from gpt_jax.opening.models import Trained
from gpt_jax.papers.transformer_xl.transformer_xl import init_memories

# Scores of attention held at once on a device: 128 MiB of float32.
_CHUNK_SCORES = 1 << 25


class ReadingPlan(NamedTuple):
  """How the text is read."""

  segment: int | None = None  # tokens of a segment; None: as in training
  clamp: int | None = None  # of `transformer_xl`; None: as in training
  # Whether each token sees as many keys as the memory has; otherwise it sees
  # the whole memory and its segment.
  same_length: bool = False


def measure(
  trained: Trained, workdir: str, memories: Sequence[int], reading: ReadingPlan
) -> dict[str, float]:
  """Measures the held-out sets of a run with each length of memory.

  Returns:
    `eval/NAME/memory_M_loss`, `..._perplexity` and the others of `HeldOut`.
  """
  config = trained.parts.config
  sets, found = validation.held_out_sets(config, workdir), {}
  for memory in memories:
    changed = with_memory(config, memory, reading)
    parts = parts_lib.build(changed, tokenizer=trained.tokenizer)
    for name, held_out in sets.items():
      values = _measure(parts, trained.state.eval_params, held_out)
      prefix = f'eval/{name}/memory_{memory}'
      found |= {f'{prefix}_{key}': value for key, value in values.items()}
      figures.check_finite(found)
  return found


def with_memory(config: Config, memory: int, reading: ReadingPlan) -> Config:
  """The config of a run with another memory."""
  model = config.model
  (call,) = spec.bind_all('model.position', model.position, POSITIONS)
  (objective,) = spec.parse('objective.name', config.objective.name)
  known = {
    'model.position': (call.name, 'transformer_xl'),
    'objective.name': (objective.name, 'causal'),
    'data.rows': (config.data.rows, 'stream'),
  }
  for field, (found, needed) in known.items():
    if found != needed:
      raise UsageError(
        f'--memory={memory}: this run has {field}={found}, and text is read '
        f'segment by segment with {needed}; leave --memory out'
      )
  if reading.same_length and not memory:
    raise UsageError(
      '--memory=0: with --same_length a token would see nothing; leave '
      '--same_length out, or give a longer memory'
    )
  kwargs = {
    **call.kwargs,
    'memory': memory,
    'segment': reading.segment or call.kwargs['segment'] or model.context_length,
  }
  if reading.clamp is not None:
    kwargs['clamp'] = reading.clamp
  config = config_lib.unlocked(config)
  config.model.position = spec.written(call._replace(kwargs=kwargs))
  if reading.same_length:
    config.model.attention = f'local(window={memory})'
  return config.lock()


def _measure(parts: Parts, params: Any, held_out: EvalSet) -> dict[str, float]:
  """Reads a set from its first token to its last, or `eval.num_batches`."""
  config, streams = parts.config, parts.num_shards
  num_heads = parts.model.num_heads
  recurrence = ModelChoices.of(parts.model).position.recurrence
  length = chunk_length(num_heads, recurrence.segment, recurrence.memory)
  num_tokens = len(held_out.store)
  if (most := config.eval.num_batches) is not None:
    asked = most * config.eval.rows * parts.ramp.longest
    num_tokens = min(num_tokens, asked)
  # At most a device's part, in whole segments.
  segments = math.ceil(num_tokens / streams / recurrence.segment)
  length = min(length, segments * recurrence.segment)
  maker = row_makers.load(held_out.store, length)
  of_stream = math.ceil(num_tokens / length / streams)
  step = jax.jit(functools.partial(_step, parts=parts))
  caches, sums = None, []
  with sharding.use(parts.mesh, parts.rules):
    if recurrence.memory:
      caches = jax.jit(lambda: init_memories(parts.model, streams, real=False))()
    for number in range(of_stream):
      rows = np.arange(streams, dtype=np.int64) * of_stream + number
      rows = rows[parts.host_rows(streams)]
      keys = Keys.held_out(rows)
      batch = parts.objective.make_batch(maker.read_held_out(keys), keys)
      places = rows[:, None] * length + np.arange(length)
      batch['weights'] *= places < num_tokens
      loss, caches = step(params, caches, parts.put(batch, streams))
      sums.append((loss.sum, loss.weight))
      sharding.wait_for_earlier(sums)
  total, weight = np.sum(np.asarray(jax.device_get(sums), np.float64), axis=0)
  loss = float(total / weight)
  return {'loss': loss, 'tokens': int(weight), **of_text(loss, held_out)}


def chunk_length(num_heads: int, segment: int, memory: int) -> int:
  """Tokens read at once: whole segments, at least one."""
  of_segment = num_heads * segment * (segment + memory)
  return max(_CHUNK_SCORES // of_segment, 1) * segment


def _step(
  params: Any, caches: Caches | None, batch: Batch, *, parts: Parts
) -> tuple[Loss, Caches | None]:
  """The loss of a chunk after the memory, and the next memory."""
  objective = parts.objective
  assert isinstance(objective, TextObjective)
  out: Any = parts.model.apply({'params': params}, batch['inputs'], caches)
  loss = objective.loss_of_states(params, out.hidden_BLD, batch, evaluating=True)
  return loss, out.caches if caches is not None else caches
