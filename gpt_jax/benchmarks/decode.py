# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoding speed: multi-head against multi-query attention."""

import statistics
import time
from typing import Any

import jax
import numpy as np

from gpt_jax import config as config_lib
from gpt_jax.config import Config
from gpt_jax.decoding import programs
from gpt_jax.decoding.engine import Engine, Request
from gpt_jax.decoding.sampler import Sampler
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.causal import causal
from gpt_jax.training.state import init_params

# Tokens decoded before the clock starts, to compile and warm up.
WARM_UP = 3


class Decoder:
  """Decodes a batch of random prompts with random weights."""

  def __init__(self, config: Config, num_kv_heads: int):
    """Fills half of the context with the prompts."""
    model: Any = {**config.model, 'num_kv_heads': num_kv_heads}
    decoder = Transformer(**model)
    key = jax.random.key(config.seed)
    objective = causal()(decoder)
    params = jax.jit(lambda key: init_params(objective, key))(key)
    rows = config_lib.ramp(config).stages[-1].rows
    self._engine = Engine(decoder, params, slots=rows)
    length = config.model.context_length // 2
    prompts = np.random.default_rng(0).integers(
      config.model.vocab_size, size=(rows, length)
    )
    for ids in prompts.tolist():
      self._engine.add(Request(ids, length, Sampler(temperature=0)))
    self._engine.step()
    self.cache_bytes = self._engine.cache_bytes
    self.seconds: list[float] = []

  def step(self) -> None:
    """Decodes one token per row and fetches the ids."""
    start = time.perf_counter()
    self._engine.step()
    self.seconds.append(time.perf_counter() - start)


def measure(config: Config, steps: int) -> dict:
  """Times `steps` tokens with each number of key/value heads, in turn."""
  decoders = {
    kv_heads: Decoder(config, kv_heads)
    for kv_heads in (config.model.num_heads, 1)
  }
  for _ in range(WARM_UP + steps):
    for decoder in decoders.values():
      decoder.step()
  rows = config_lib.ramp(config).stages[-1].rows
  decode_step: Any = programs.decode_step
  return {
    'rows': rows,
    'prompt_tokens': config.model.context_length // 2,
    'steps': steps,
    'compilations': decode_step._cache_size(),
    'kv_heads': {
      str(kv_heads): {
        'tokens_per_second': rows / statistics.median(d.seconds[WARM_UP:]),
        'first_tokens_per_second': rows
        / statistics.median(d.seconds[WARM_UP : WARM_UP + steps // 2 + 1]),
        'last_tokens_per_second': rows
        / statistics.median(d.seconds[-(steps // 2 + 1) :]),
        'cache_bytes': d.cache_bytes,
      }
      for kv_heads, d in decoders.items()
    },
  }


def report(result: dict) -> str:
  """Formats the result."""
  lines = [
    f'{result["rows"]} rows, prompts of {result["prompt_tokens"]} tokens, '
    f'{result["steps"]} tokens each; {result["compilations"]} compilations'
  ]
  for kv_heads, found in result['kv_heads'].items():
    lines.append(
      f'{kv_heads:>3} key/value heads: '
      f'{found["tokens_per_second"]:,.1f} tokens/s (first half '
      f'{found["first_tokens_per_second"]:,.1f}, second '
      f'{found["last_tokens_per_second"]:,.1f}), cache '
      f'{found["cache_bytes"] / 2**20:,.0f} MiB'
    )
  most, one = result['kv_heads'].values()
  ratio = one['tokens_per_second'] / most['tokens_per_second']
  smaller = most['cache_bytes'] / one['cache_bytes']
  lines.append(f'one head: {ratio:.2f}x the speed, cache {smaller:g}x smaller')
  return '\n'.join(lines)
