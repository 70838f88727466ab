# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What speculative decoding and 8-bit weights cost, and what they gain.

The weights are random, so that no smaller model has learnt what a larger one
would say. The drafts are the first layers of the model itself, with its
embeddings: those of all layers are always right, which is what a perfect draft
of that cost would give; those of few are as quick as a draft of that size.
"""

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.config import Config
from gpt_jax.decoding import programs
from gpt_jax.decoding.engine import Engine, Request
from gpt_jax.decoding.sampler import Sampler
from gpt_jax.decoding.speculative import Draft
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.causal import causal
from gpt_jax.spec import UsageError
from gpt_jax.training.state import init_params

# Rounds before the clock starts, to compile and warm up.
WARM_UP = 2
PROMPT = 32


class _Side(NamedTuple):
  """An engine, and its rounds: how long each took and what it gave."""

  engine: Engine
  seconds: list[float]
  tokens: list[int]

  def round(self) -> None:
    """One step of all rows."""
    start = time.perf_counter()
    tokens = self.engine.step()
    self.seconds.append(time.perf_counter() - start)
    self.tokens.append(len(tokens))


def measure(
  config: Config,
  steps: int,
  batches: Sequence[int],
  layers: Sequence[int],
  num_tokens: int,
  weights: str = 'float',
) -> dict:
  """Greedy rounds without a draft and with each, in turns.

  Args:
    config: of the model.
    steps: rounds to measure.
    batches: numbers of rows.
    layers: of the drafts.
    num_tokens: that they propose in a round.
    weights: 'int8': those of the model are measured, too, without a draft.
  """
  fields: Any = config.model
  most = config.model.num_layers
  if max(layers, default=0) > most:
    raise UsageError(
      f'--draft_layers={max(layers)}: the model has {most}; give as many or '
      'fewer'
    )
  length = (WARM_UP + steps) * (num_tokens + 1 if layers else 1) + 1
  if PROMPT + length > config.model.context_length:
    raise UsageError(
      f'--steps={steps}: up to {PROMPT + length} tokens exceed '
      f'model.context_length={config.model.context_length}; give fewer'
    )
  objective = causal()(Transformer(**fields))
  key = jax.random.key(config.seed)
  params = jax.jit(lambda key: init_params(objective, key))(key)
  stacked, given = Transformer(**fields), params
  model, params = programs.in_place(stacked, given)
  kinds: list[tuple[int | None, str]] = [(None, 'float')]
  kinds += [(size, 'float') for size in layers]
  small = params
  if weights == 'int8':
    kinds.append((None, 'int8'))
    small = programs.in_place(stacked, given, weights)[1]
  cases = []
  for rows in batches:
    sides = {}
    for name in kinds:
      size, kind = name
      draft = size and _draft(model, params, size, num_tokens)
      used = small if kind == 'int8' else params
      engine = Engine(model, used, slots=rows, draft=draft or None)
      _ask(engine, rows, length, config.model.vocab_size)
      sides[name] = _Side(engine, [], [])
    for _, side in itertools.product(range(WARM_UP + steps), sides.values()):
      side.round()
    plain = sides[kinds[0]]
    cases += [_case(rows, name, side, plain) for name, side in sides.items()]
  return {'draft_tokens': num_tokens, 'steps': steps, 'cases': cases}


def _draft(model: Transformer, params: Any, layers: int, num: int) -> Draft:
  """The first layers of a model from `programs.in_place`."""
  each = model.num_layers // len(params['decoder'])
  if layers % each:
    raise UsageError(
      f'--draft_layers={layers}: is no multiple of the {each} layers after '
      'which their kinds repeat'
    )
  names = [f'period_{i}' for i in range(layers // each)]
  decoder = {name: params['decoder'][name] for name in names}
  return Draft(
    model.clone(num_layers=layers), {**params, 'decoder': decoder}, num
  )


def _ask(engine: Engine, rows: int, length: int, vocab_size: int) -> None:
  """Random prompts, which are read, too."""
  rng = np.random.default_rng(0)
  for ids in rng.integers(vocab_size, size=(rows, PROMPT)).tolist():
    engine.add(Request(ids, length, Sampler(temperature=0)))
  engine.step()


def _case(
  rows: int, kind: tuple[int | None, str], side: _Side, plain: _Side
) -> dict:
  seconds = statistics.median(side.seconds[WARM_UP:])
  step = statistics.median(plain.seconds[WARM_UP:])
  tokens = statistics.mean(side.tokens[WARM_UP:])
  proposals = side.engine.proposals
  return {
    'rows': rows,
    'draft_layers': kind[0],
    'weights': kind[1],
    'round_seconds': seconds,
    'round_in_steps': seconds / step,
    'tokens_a_round': tokens / rows,
    'accepted': proposals.accepted / max(proposals.proposed, 1),
    'tokens_per_second': tokens / seconds,
    'speedup': tokens / seconds * step / rows,
  }


def report(result: dict) -> str:
  """Formats the result as a table."""
  lines = [
    f'{result["draft_tokens"]} proposals a round, {result["steps"]} rounds',
    '| rows | weights | layers of the draft | ms a round | in steps without | '
    'accepted | tokens a row and round | tokens/s | gain |',
    '|' + '---|' * 9,
  ]
  for case in result['cases']:
    cells = [
      case['rows'],
      case['weights'],
      case['draft_layers'] or 'no draft',
      f'{case["round_seconds"] * 1e3:,.0f}',
      f'{case["round_in_steps"]:.2f}',
      f'{case["accepted"]:.0%}' if case['draft_layers'] else '',
      f'{case["tokens_a_round"]:.2f}',
      f'{case["tokens_per_second"]:,.1f}',
      f'{case["speedup"]:.2f}',
    ]
    lines.append('| ' + ' | '.join(map(str, cells)) + ' |')
  return '\n'.join(lines)
