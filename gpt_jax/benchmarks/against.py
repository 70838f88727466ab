# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training and decoding against transformers on torch, LSTMs against torch's.

Both sides load the same random weights, each in its own process with all cores,
and take turns of a few steps or tokens.
"""

import functools
import itertools
import os
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import hf
from gpt_jax.benchmarks import harness, worker
from gpt_jax.benchmarks.decode import random_params
from gpt_jax.benchmarks.harness import MIB, OURS, PRODUCTS, TORCH, WorkerProcess
from gpt_jax.core import config as config_lib
from gpt_jax.core import spec
from gpt_jax.core.config import Config
from gpt_jax.core.costs import flops
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.choices import PATTERNS
from gpt_jax.core.nn.row import Context
from gpt_jax.core.nn.transformer import make_model
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.runtime import peaks as peaks_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.parts import Parts

# Steps or tokens in a turn.
TURN = 4

# Training: both sides take the same steps: the same random tokens, cross
# entropy of all of them, AdamW without decay, clipped gradients, float32, no
# dropout. So their losses must agree, which the result shows.

# Steps that are not timed.
WARM_UP = 3
# Batches, used in rotation.
BATCHES = 8
# The arrays of a batch that both sides read.
_READ = {'inputs', 'targets', 'weights', 'sources', 'source_mask'}


def train(config: Config, steps: int) -> dict:
  """Trains `WARM_UP` + `steps` steps on each side."""
  harness.check_installed('torch', 'transformers')
  config = _comparable(config, WARM_UP + steps)
  parts = parts_lib.build(config)
  shape = parts.ramp.stages[-1].shape
  batches = random_batches(parts, '--against=torch')
  params = parts_lib.initial_state(parts).params
  per_token = flops.per_token(config, params, shape.length)
  # The peak is measured before and after, since the load of the machine varies.
  device = parts.mesh.devices.flat[0]
  peaks = [peaks_lib.of_device(device, again=True)]
  with tempfile.TemporaryDirectory() as folder:
    hf.save(folder, parts.model, jax.device_get(params))
    num_params = sum(x.size for x in jax.tree.leaves(params))
    del params
    write(folder, config, batches)
    with harness.sides('train', folder) as both:
      rounds = train_turns(both, WARM_UP + steps)
  peaks.append(peaks_lib.of_device(device, again=True))
  found = {
    name: _train_result(answers, shape.tokens, per_token, max(peaks)[0])
    for name, answers in rounds.items()
  }
  one, two = found.values()
  losses = np.array([one.pop('losses'), two.pop('losses')])
  return {
    'parameters': num_params,
    'rows': shape.rows,
    'length': shape.length,
    'steps': steps,
    'peak_flops': max(peaks)[0],
    'peak_source': max(peaks)[1],
    'formula': flops.FORMULA,
    **found,
    'speedup': one['tokens_per_second'] / two['tokens_per_second'],
    'cpu_speedup': two['cpu_seconds_a_step'] / one['cpu_seconds_a_step'],
    'loss': losses[:, -1].tolist(),
    'loss_difference': float(np.abs(losses[0] - losses[1]).max()),
  }


def _comparable(config: Config, steps: int) -> Config:
  """The config with the optimizer of `worker`, and without dropout."""
  config = config_lib.unlocked(config)
  config.model.dtype = 'float32'
  config.model.dropout = 'none'
  b1, b2 = worker.BETAS
  config.optim.name = f'adamw(b1={b1}, b2={b2}, eps={worker.EPSILON}, weight_decay=0.0)'
  config.optim.clip_norm = worker.CLIP
  config.optim.ema = 'none'
  config.schedule.name = f'constant(peak={worker.RATE})'
  config.schedule.num_steps = steps
  return config_lib.resolve(config)


def random_batches(parts: Parts, what: str) -> dict[str, np.ndarray]:
  """Batches [BATCHES, B, ...] of random ids, all with weight 1.

  Args:
    parts: of the last stage's shape.
    what: measures them, for the error.

  Raises:
    UsageError: they have arrays that are no ids.
  """
  config = parts.config
  shape, vocab_size = parts.ramp.stages[-1].shape, config.model.vocab_size
  shapes = compiled_lib.abstract_batch(parts, *shape, training=True)
  if unread := sorted(set(shapes) - _READ):
    raise UsageError(
      f'objective.name={config.objective.name!r}, data.rows='
      f'{config.data.rows!r}: give batches with {", ".join(unread)}, which '
      f'{what} does not measure; give --config.objective.name=causal '
      'and --config.data.rows=stream, or T5 with its span objective'
    )
  rng = np.random.default_rng(0)
  out = {}
  for name, like in shapes.items():
    size, kind = (BATCHES, *like.shape), like.dtype
    if name in ('weights', 'source_mask'):
      out[name] = np.ones(size, kind)
    else:
      out[name] = rng.integers(vocab_size, size=size).astype(kind)
  return out


def write(folder: str, config: Config, batches: dict[str, np.ndarray]) -> None:
  """Writes what the sides read beside the parameters."""
  path = os.path.join(folder, worker.CONFIG)
  with open(path, 'w', encoding='utf-8') as file:
    file.write(config_lib.to_json(config))
  path = os.path.join(folder, worker.BATCHES)
  np.savez(path, allow_pickle=False, **batches)


def train_turns(sides: dict[str, WorkerProcess], steps: int) -> dict[str, dict[str, Any]]:
  """The combined answers of each side."""
  out: dict[str, dict[str, Any]] = {
    name: {'seconds': [], 'cpu_seconds': [], 'losses': []} for name in sides
  }
  done = 0
  while done < steps:
    turn = min(TURN, steps - done)
    for name, side in sides.items():
      side.tell(turn)
      answer = side.answer()
      for field in out[name]:
        if field != 'peak_bytes':
          out[name][field] += answer[field]
      out[name]['peak_bytes'] = answer['peak_bytes']
    done += turn
  return out


def _train_result(answers: dict[str, Any], tokens: int, per_token: float, peak: float) -> dict:
  found = medians(answers, tokens)
  return {**found, 'mfu': flops.mfu(found['tokens_per_second'], per_token, peak)}


def medians(answers: dict[str, Any], tokens: int) -> dict:
  seconds = statistics.median(answers['seconds'][WARM_UP:])
  return {
    'step_seconds': seconds,
    'cpu_seconds_a_step': statistics.median(answers['cpu_seconds'][WARM_UP:]),
    'tokens_per_second': tokens / seconds,
    'peak_bytes': answers['peak_bytes'],
    'losses': answers['losses'],
  }


def report_train(result: dict) -> str:
  """Formats the result as a table."""
  row = functools.partial(_row, [result[OURS], result[TORCH]])
  return '\n'.join(
    [
      f'{result["parameters"]:,} parameters, {result["rows"]} rows of '
      f'{result["length"]} tokens, float32; median of {result["steps"]} steps',
      harness.table(
        ('', OURS, TORCH),
        [
          row('tokens/s', 'tokens_per_second', ',.0f'),
          row('step, ms', 'step_seconds', ',.1f', 1e3),
          row('CPU ms a step', 'cpu_seconds_a_step', ',.1f', 1e3),
          row('MFU', 'mfu', '.1%'),
          row('peak memory, MiB', 'peak_bytes', ',.0f', 1 / MIB),
        ],
      ),
      f'speedup {result["speedup"]:.2f}; by CPU time {result["cpu_speedup"]:.2f}',
      f'loss    {result["loss"][0]:.5f} / {result["loss"][1]:.5f} after the '
      f'last step; they differ by {result["loss_difference"]:.1e} at most',
      f'MFU     of {result["peak_flops"]:.3g} FLOP/s ({result["peak_source"]})',
      f'        {result["formula"]}',
    ]
  )


def _row(
  sides: Sequence[dict], name: str, field: str, form: str, scale: float = 1.0
) -> tuple[str, ...]:
  return name, *(f'{side[field] * scale:{form}}' for side in sides)


# LSTM layers alone, ours and `torch.nn.LSTM`: the same parameters, inputs, loss
# and updates (see `worker.lstm`), float32, no dropout. A third side runs only
# the matrix products of our step.


def lstm(config: Config, steps: int) -> dict:
  """Trains `WARM_UP` + `steps` steps of a config's layers on each side."""
  text = config.model.attention
  calls = spec.bind_all('model.attention', text, PATTERNS)
  torchs = {
    'directions': 'forward',
    'residual': False,
    'biases': 2,
    'cell_clip': 0.0,
    'projection_clip': 0.0,
  }
  if any(torchs.items() - call.kwargs.items() for call in calls):
    raise UsageError(
      f'model.attention={text!r}: torch has no such LSTMs; give layers of '
      'lstm(size, projection) with two biases, one direction, no clips and no '
      'residual, as in configs/benchmark.py:awd-lstm'
    )
  harness.check_installed('torch')
  config = _comparable(config, WARM_UP + steps)
  choices = ModelChoices.of(config.model)
  shape = config_lib.ramp(config).stages[-1].shape
  rng, sizes = np.random.default_rng(0), [config.model.d_model]
  arrays = {}
  for i, layer in enumerate(choices.recurrent):
    made = layer.make(inits=choices.init_weights, dtype=jnp.float32)
    token = jnp.zeros((1, 1, sizes[-1]))
    params = made.init(jax.random.key(i), token, Context(), None, 0)['params']
    # The last key of a path is that of the box around an array.
    for (*_, name, _), x in jax.tree_util.tree_leaves_with_path(params):
      arrays[f'{i}/{name.key}'] = x
    sizes.append(layer.width)
  with tempfile.TemporaryDirectory() as folder:
    np.savez(os.path.join(folder, worker.LAYERS), allow_pickle=False, **arrays)
    ends = {'inputs': sizes[0], 'probe': sizes[-1]}
    write(
      folder,
      config,
      {
        name: rng.normal(size=(BATCHES, shape.rows, shape.length, size)).astype(np.float32)
        for name, size in ends.items()
      },
    )
    with harness.sides('lstm', folder, (OURS, TORCH, PRODUCTS)) as sides:
      rounds = train_turns(sides, WARM_UP + steps)
  found = {name: medians(answers, shape.tokens) for name, answers in rounds.items()}
  losses = np.array([found[name].pop('losses') for name in (OURS, TORCH)])
  seconds = {name: side['step_seconds'] for name, side in found.items()}
  cpu = {name: side['cpu_seconds_a_step'] for name, side in found.items()}
  return {
    'sizes': sizes,
    'parameters': sum(x.size for x in arrays.values()),
    'rows': shape.rows,
    'length': shape.length,
    'steps': steps,
    'threads': len(os.sched_getaffinity(0)),
    **found,
    'speedup': seconds[TORCH] / seconds[OURS],
    'cpu_speedup': cpu[TORCH] / cpu[OURS],
    'most': seconds[TORCH] / seconds[PRODUCTS],
    'cpu_most': cpu[TORCH] / cpu[PRODUCTS],
    'loss': losses[:, -1].tolist(),
    'loss_difference': float(np.abs(losses[0] - losses[1]).max()),
  }


def report_lstm(result: dict) -> str:
  """Formats the result as a table."""
  names = OURS, TORCH, PRODUCTS
  row = functools.partial(_row, [result[name] for name in names])
  return '\n'.join(
    [
      f'LSTM layers {"-".join(map(str, result["sizes"]))}, '
      f'{result["parameters"]:,} parameters, {result["rows"]} rows of '
      f'{result["length"]} tokens, float32, {result["threads"]} threads; '
      f'median of {result["steps"]} steps',
      harness.table(
        ('', OURS, TORCH, 'our matrix products alone'),
        [
          row('tokens/s', 'tokens_per_second', ',.0f'),
          row('step, ms', 'step_seconds', ',.1f', 1e3),
          row('CPU ms a step', 'cpu_seconds_a_step', ',.1f', 1e3),
          row('peak memory, MiB', 'peak_bytes', ',.0f', 1 / MIB),
        ],
      ),
      f'speedup {result["speedup"]:.2f}, with the products alone '
      f'{result["most"]:.2f}; by CPU time {result["cpu_speedup"]:.2f}, '
      f'{result["cpu_most"]:.2f}',
      f'loss    {result["loss"][0]:.5f} / {result["loss"][1]:.5f} after the '
      f'last step; they differ by {result["loss_difference"]:.1e} at most',
    ]
  )


# Decoding the same random prompts greedily with a cache: ours with `Engine`,
# torch's with `generate` under `torch.inference_mode` and its defaults. Or by
# beam search, ours with `Search`: an encoder-decoder reads the prompts as
# sources, and a token of a text counts once, whatever the number of hypotheses.

# Cases of at most SMALL prompt tokens are repeated, to time the first token.
SMALL, REPEATS = 2048, 3
# Hypotheses of a beam search.
BEAMS = 4


def decode(
  config: Config, steps: int, batches: Sequence[int], prompts: Sequence[int], beams: int = 0
) -> dict:
  """Decodes `steps` tokens after the first, at each batch and prompt length.

  With an encoder-decoder, `prompts` are lengths of sources. `beams` is the
  number of hypotheses of a beam search; 0: greedy.
  """
  encoder = bool(config.model.num_encoder_layers)
  if encoder and not beams:
    raise UsageError(
      '--what=decode: for an encoder-decoder only beam search is measured; give --what=beam'
    )
  harness.check_installed('torch', 'transformers')
  longest, context = max(prompts) + 1 + steps, config.model.context_length
  if encoder:
    # The decoder's start token comes first.
    longest = max(max(prompts), 2 + steps)
  if longest > context:
    raise UsageError(
      f'--prompts: {max(prompts)} and {1 + steps} new tokens exceed '
      f'model.context_length={context}; give --config.model.context_length='
      f'{longest}, shorter prompts or fewer --steps'
    )
  model = make_model(**config.model)
  params = random_params(Causal().bind(model), config.seed)
  with tempfile.TemporaryDirectory() as folder:
    hf.save(folder, model, jax.device_get(params))
    num_params = sum(x.size for x in jax.tree.leaves(params))
    del params
    with harness.sides('decode', folder) as both:
      fixed = {'vocab_size': config.model.vocab_size, 'beams': beams}
      cases = [
        _case(both, steps, {'batch': batch, 'prompt': prompt, **fixed})
        for prompt, batch in itertools.product(prompts, batches)
      ]
  return {
    'parameters': num_params,
    'dtype': config.model.dtype,
    'steps': steps,
    'beams': beams,
    'cases': cases,
  }


def _case(both: dict[str, WorkerProcess], steps: int, case: dict[str, int]) -> dict:
  """Both sides in turns, after a round of two tokens to compile and warm up."""
  batch, prompt = case['batch'], case['prompt']
  _round(both, {**case, 'tokens': 2})
  repeats = REPEATS if batch * prompt <= SMALL else 1
  rounds = [_round(both, {**case, 'tokens': 1 + steps}) for _ in range(repeats)]
  found: dict[str, Any] = {name: _decode_result([r[name] for r in rounds], batch) for name in both}
  ours, theirs = (np.array(rounds[0][name]['ids']) for name in both)
  one, two = found.values()
  return {
    'batch': batch,
    'prompt': prompt,
    **found,
    'speedup': one['tokens_per_second'] / two['tokens_per_second'],
    'first_token_speedup': two['first_token_seconds'] / one['first_token_seconds'],
    'same_ids': float(np.mean(ours == theirs)),
  }


def _round(both: dict[str, WorkerProcess], case: dict) -> dict[str, dict]:
  """One case on both sides: times, and the results in the last answer."""
  out: dict[str, dict] = {name: {'seconds': [], 'cpu_seconds': []} for name in both}
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


def _decode_result(rounds: list[dict], batch: int) -> dict:
  step = statistics.median(s for r in rounds for s in r['seconds'][1:])
  cpu = statistics.median(s for r in rounds for s in r['cpu_seconds'][1:])
  return {
    'tokens_per_second': batch / step,
    'cpu_seconds_a_step': cpu,
    'first_token_seconds': statistics.median(r['seconds'][0] for r in rounds),
    'cache_bytes': rounds[-1]['cache_bytes'],
    'peak_bytes': max(r['peak_bytes'] for r in rounds),
  }


def beam(config: Config, steps: int, batches: Sequence[int], prompts: Sequence[int]) -> dict:
  """Like `decode`, by a beam search with `BEAMS` hypotheses."""
  return decode(config, steps, batches, prompts, BEAMS)


def report_decode(result: dict) -> str:
  """Formats the result as a table."""
  rows = []
  for case in result['cases']:
    one, two = case[OURS], case[TORCH]

    def pair(field, scale, digits, one=one, two=two):
      return ' / '.join(f'{side[field] * scale:,.{digits}f}' for side in (one, two))

    rows.append(
      (
        case['batch'],
        case['prompt'],
        pair('tokens_per_second', 1, 1),
        f'{case["speedup"]:.2f}',
        pair('cpu_seconds_a_step', 1e3, 0),
        pair('first_token_seconds', 1, 3),
        f'{case["first_token_speedup"]:.2f}',
        pair('cache_bytes', 1 / MIB, 0),
        pair('peak_bytes', 1 / MIB, 0),
        f'{case["same_ids"]:.0%}',
      )
    )
  header = (
    'batch',
    'prompt',
    'tokens/s',
    'ratio',
    'CPU ms a step',
    'first token, s',
    'ratio',
    'cache, MiB',
    'peak, MiB',
    'same ids',
  )
  beams = f', {result["beams"]} beams' if result['beams'] else ''
  return (
    f'{result["parameters"]:,} parameters, {result["dtype"]}, '
    f'{result["steps"]} tokens after the first{beams}; ours / torch\n'
    f'{harness.table(header, rows)}'
  )
