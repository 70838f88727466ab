# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rollouts of GRPO and PPO beside `generate`, and the parts of their steps.

A window is a rollout of one batch and its update, as in `gpt-jax grpo` and
`ppo`; the reward model has the shape of the policy. After each window the loop
of `generate` continues the same prompts with as many rows. Weights and prompts
are random, and the learning rate is too small to change completions.
"""

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.benchmarks.decode import random_params
from gpt_jax.benchmarks.harness import MIB
from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.config import Config
from gpt_jax.core.rows import batch_rows
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.simple import Characters
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import device_check
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.parts import Parts
from gpt_jax.decoding.chat import ChatTemplate
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.texts import Options, TextGenerator
from gpt_jax.tuning import policy
from gpt_jax.tuning.dialogues import Encoder
from gpt_jax.tuning.objectives.preference import RewardModel
from gpt_jax.tuning.rewards import RewardFunction
from gpt_jax.tuning.rollouts import Plan, RolloutPrompt, Rollouts

PARTS = ('rollout', 'scoring', 'log_probs', 'update')
# Windows before the clock starts: one compiles, and memory is measured from its
# update to the next one's.
WARM_UP = 2
_GROUP = 8


def measure(config: Config, steps: int) -> dict:
  """Times `steps` windows of each method, and as many calls of `generate`."""
  rows, length = config_lib.ramp(config).rows(0), config.model.context_length
  if rows % _GROUP:
    raise UsageError(
      f'batch.size={rows}: GRPO samples {_GROUP} completions of each prompt; give a multiple'
    )
  if config.model.vocab_size > 60_000:
    raise UsageError(
      f'model.vocab_size={config.model.vocab_size}: has a character for each '
      'id here; give at most 60000'
    )
  return {
    'rows': rows,
    'prompt_tokens': length // 2,
    'completion_tokens': length - length // 2,
    'steps': steps,
    'methods': {name: _method(config, name, rows, steps) for name in ('grpo', 'ppo')},
  }


def _method(config: Config, name: str, rows: int, steps: int) -> dict[str, Any]:
  length = config.model.context_length
  new = length - length // 2
  config = config_lib.unlocked(config)
  config.schedule.update(name='constant(peak=1e-9)', num_steps=WARM_UP + steps)
  group, method = 1, policy.PpoMethod('', '')
  config.objective.name = f'ppo(length={length})'
  if name == 'grpo':
    group, method = _GROUP, policy.GrpoMethod('', '', num_generations=_GROUP)
    config.objective.name = f'grpo(length={length}, max_tokens={new})'
  config = config_lib.resolve(config.lock())
  tokenizer = _characters(config.model.vocab_size)
  parts = parts_lib.build(config, device_check.check_devices(config), tokenizer=tokenizer)
  ids = np.random.default_rng(0).integers(tokenizer.eos_id, size=(rows // group, length // 2))
  prompts = [RolloutPrompt('', tokenizer.decode(row), row, {}) for row in ids.tolist()]

  def first():
    return parts_lib.initial_state(parts)

  score, state = _reward_model(parts, tokenizer), first()
  data = Rollouts(
    Plan(
      prompts,
      reward=lambda texts, completions, columns: score(texts, completions),
      estimate=method.estimate,
      num_generations=group,
      minibatches=1,
      epochs=1,
      max_tokens=new,
      temperature=1.0,
      reference=name == 'ppo',
      decode_rows=rows,
    ),
    parts,
    tokenizer,
    first,
    '',
  )
  update = compiled_lib.compile_train_step(parts).call
  taken = batch_rows.even(rows, length)
  speeds, windows, generator = [], [], None
  batches = data.batches(parts, 0, taken, lambda: state)
  for step, batch in enumerate(batches):
    start = time.perf_counter()
    state, _ = update(state, parts.put(batch, rows))
    jax.block_until_ready(state.params)
    seconds = time.perf_counter() - start
    windows.append(data.epochs(taken(step)) | {'time/update': seconds})
    if step < WARM_UP - 1:
      continue
    if generator is None:
      own = {n: x for n, x in state.params.items() if n != 'heads'}
      generator = TextGenerator(
        Decoder.of(parts.model, jax.tree.map(jnp.copy, own), tokenizer),
        tokenizer,
        Options(max_tokens=new, num_samples=group),
        rows=rows,
      )
    requests = [generator.prompt_request(prompt.ids) for prompt in prompts]
    start = time.perf_counter()
    with sharding.use(parts.mesh, parts.rules):
      texts = [x for _, each in generator.complete(requests) for x in each]
    seconds = time.perf_counter() - start
    speeds.append(sum(text.tokens for text in texts) / seconds)
  timed, memory = windows[WARM_UP:], windows[1]
  return {
    'generate_tokens_per_second': statistics.median(speeds[1:]),
    'rollout_tokens_per_second': statistics.median(
      window['rollout/tokens_per_second'] for window in timed
    ),
    'parts': {
      part: {
        'seconds': statistics.median(x[f'time/{part}'] for x in timed),
        'peak_bytes': memory.get(f'memory/{part}'),
      }
      for part in PARTS
    },
  }


def _characters(vocab_size: int) -> Characters:
  """A tokenizer with a character for each id, so that ids survive as text."""
  points = [*range(0x100, 0xD800), *range(0xE000, 0xFFFF)]
  return Characters(''.join(map(chr, points[: vocab_size - 1])))


def _no_chat() -> ChatTemplate:
  raise AssertionError('prompts are texts')


def _reward_model(parts: Parts, tokenizer: Characters) -> RewardFunction:
  """A reward model of the policy's shape, with random weights."""
  # A text to score ends with the end of a document, as in training.
  model = parts.model.clone(context_length=parts.model.context_length + 1)
  objective = RewardModel(1, model.context_length).bind(model)
  params, encoder = random_params(objective, 1), Encoder(tokenizer, _no_chat)
  return RewardFunction(model, params, encoder, parts=parts)


def report(result: dict) -> str:
  """Formats the result."""
  lines = [
    f'{result["rows"]} rows, prompts and completions of '
    f'{result["prompt_tokens"]} and at most {result["completion_tokens"]} '
    f'tokens, medians of {result["steps"]}'
  ]
  for name, found in result['methods'].items():
    ours, theirs = (found[f'{side}_tokens_per_second'] for side in ('rollout', 'generate'))
    lines.append(
      f'{name}: rollouts {ours:,.1f} tokens/s, generate {theirs:,.1f}: {ours / theirs:.0%}'
    )
    for part, cost in found['parts'].items():
      line, peak = f'  {part:9} {cost["seconds"]:.3f} s', cost['peak_bytes']
      lines.append(line if peak is None else f'{line}, {peak / MIB:,.0f} MiB')
  return '\n'.join(lines)
