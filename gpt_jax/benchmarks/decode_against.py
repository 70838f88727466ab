# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoding speed against Hugging Face transformers on torch.

Both sides load the same random weights, each in a process of its own with all
cores, and decode the same random prompts greedily with a cache: ours with
`Engine`, theirs with `generate` under `torch.inference_mode` and its defaults.
Or by beam search, ours with `Search`: an encoder-decoder reads the prompts as
sources, and a token of each text is one, however many hypotheses are followed.
They alternate every few tokens, so that a busy machine slows both down.
"""

import itertools
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from gpt_jax import hf
from gpt_jax.benchmarks import decode_worker, sides
from gpt_jax.benchmarks.sides import Side
from gpt_jax.config import Config
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.causal import causal
from gpt_jax.spec import UsageError
from gpt_jax.training.state import init_params

# Tokens before it is the other side's turn; the first is a turn by itself.
TURN = 4
# Cases of at most so many prompt tokens are repeated, for the first token's
# sake.
SMALL, REPEATS = 2048, 3
# Hypotheses of a beam search.
BEAMS = 4
_MIB = 2**20


def measure(
  config: Config,
  steps: int,
  batches: Sequence[int],
  prompts: Sequence[int],
  beams: int = 0,
) -> dict:
  """Decodes `steps` tokens after the first, at each batch and prompt length.

  Args:
    config: has the model.
    steps: tokens.
    batches: sizes.
    prompts: lengths; of an encoder-decoder those of sources.
    beams: hypotheses of a beam search; 0: greedily.
  """
  encoder = bool(config.model.num_encoder_layers)
  if encoder and not beams:
    raise UsageError(
      '--what=decode: of an encoder-decoder beam search is measured; give '
      '--what=beam'
    )
  sides.check_installed()
  longest, context = max(prompts) + 1 + steps, config.model.context_length
  if encoder:
    # The decoder has its start before them.
    longest = max(max(prompts), 2 + steps)
  if longest > context:
    raise UsageError(
      f'--prompts: {max(prompts)} and {1 + steps} new tokens exceed '
      f'model.context_length={context}; give --config.model.context_length='
      f'{longest}, shorter prompts or fewer --steps'
    )
  fields: Any = config.model
  model = Transformer(**fields)
  key = jax.random.key(config.seed)
  objective = causal()(model)
  params = jax.jit(lambda key: init_params(objective, key))(key)
  with tempfile.TemporaryDirectory() as folder:
    hf.save(folder, model, jax.device_get(params))
    num_params = sum(x.size for x in jax.tree.leaves(params))
    del params
    with sides.opened(decode_worker.__name__, folder) as both:
      cases = [
        _case(both, batch, prompt, steps, config.model.vocab_size, beams)
        for prompt, batch in itertools.product(prompts, batches)
      ]
  return {
    'parameters': num_params,
    'dtype': config.model.dtype,
    'steps': steps,
    'beams': beams,
    'cases': cases,
  }


def _case(
  both: dict[str, Side],
  batch: int,
  prompt: int,
  steps: int,
  vocab_size: int,
  beams: int,
) -> dict:
  """Both sides in turns, after two tokens that compile and warm up."""
  case = {'batch': batch, 'prompt': prompt, 'vocab_size': vocab_size}
  case['beams'] = beams
  _round(both, {**case, 'tokens': 2})
  repeats = REPEATS if batch * prompt <= SMALL else 1
  rounds = [_round(both, {**case, 'tokens': 1 + steps}) for _ in range(repeats)]
  found: dict[str, Any] = {
    name: _result([r[name] for r in rounds], batch) for name in both
  }
  ours, theirs = (np.array(rounds[0][name]['ids']) for name in both)
  one, two = found.values()
  return {
    'batch': batch,
    'prompt': prompt,
    **found,
    'speedup': one['tokens_per_second'] / two['tokens_per_second'],
    'first_token_speedup': two['first_token_seconds']
    / one['first_token_seconds'],
    'same_ids': float(np.mean(ours == theirs)),
  }


def _round(both: dict[str, Side], case: dict) -> dict[str, dict]:
  """One case of both sides: its times, and the results of the last answer."""
  out: dict[str, dict] = {
    name: {'seconds': [], 'cpu_seconds': []} for name in both
  }
  for side in both.values():
    side.tell(case)
  left, turn = case['tokens'], 1
  while left:
    for name, side in both.items():
      side.tell(turn)
      answer = side.answer()
      for times in ('seconds', 'cpu_seconds'):
        out[name][times] += answer.pop(times)
      out[name] |= answer
    left, turn = left - turn, min(TURN, left - turn)
  return out


def _result(rounds: list[dict], batch: int) -> dict:
  step = statistics.median(s for r in rounds for s in r['seconds'][1:])
  cpu = statistics.median(s for r in rounds for s in r['cpu_seconds'][1:])
  return {
    'tokens_per_second': batch / step,
    'cpu_seconds_a_step': cpu,
    'first_token_seconds': statistics.median(r['seconds'][0] for r in rounds),
    'cache_bytes': rounds[-1]['cache_bytes'],
    'peak_bytes': max(r['peak_bytes'] for r in rounds),
  }


def report(result: dict) -> str:
  """Formats the result as a table."""
  lines = [
    f'{result["parameters"]:,} parameters, {result["dtype"]}, '
    f'{result["steps"]} tokens after the first'
    + (f', {result["beams"]} beams' if result['beams'] else '')
    + '; ours / torch',
    '| batch | prompt | tokens/s | ratio | CPU ms a step | first token, s | '
    'ratio | cache, MiB | peak, MiB | same ids |',
    '|' + '---|' * 10,
  ]
  for case in result['cases']:
    one, two = case['ours'], case['torch']

    def both(field, scale, digits, one=one, two=two):
      return ' / '.join(
        f'{side[field] * scale:,.{digits}f}' for side in (one, two)
      )

    cells = [
      case['batch'],
      case['prompt'],
      both('tokens_per_second', 1, 1),
      f'{case["speedup"]:.2f}',
      both('cpu_seconds_a_step', 1e3, 0),
      both('first_token_seconds', 1, 3),
      f'{case["first_token_speedup"]:.2f}',
      both('cache_bytes', 1 / _MIB, 0),
      both('peak_bytes', 1 / _MIB, 0),
      f'{case["same_ids"]:.0%}',
    ]
    lines.append('| ' + ' | '.join(map(str, cells)) + ' |')
  return '\n'.join(lines)
