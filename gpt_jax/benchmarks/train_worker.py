# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""One side of `train_against`: a process that trains when it is told to.

  python -m gpt_jax.benchmarks.train_worker ours|torch FOLDER

FOLDER has the config, the batches, and the first parameters as a Hugging Face
checkpoint. Each line of standard input is a number of steps; the answer has the
time and the loss of each.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpt_jax.benchmarks import sides, torch_side

CONFIG, BATCHES = 'gpt_jax.json', 'batches.npz'
# Of AdamW, without decay, and the bound of the gradient's norm.
RATE, BETAS, EPSILON, CLIP = 1e-3, (0.9, 0.95), 1e-8, 1.0

# Takes a batch, trains a step on it, and gives the loss.
Step = Callable[[dict[str, np.ndarray]], float]


def _ours(folder: str) -> Step:
  from gpt_jax.runtime import malloc

  # As the commands do, before jax is imported.
  malloc.keep_memory()
  import jax

  from gpt_jax import config as config_lib
  from gpt_jax.training import compiled as compiled_lib
  from gpt_jax.training import parts as parts_lib

  with open(os.path.join(folder, CONFIG), encoding='utf-8') as file:
    config = config_lib.from_json(file.read())
  parts = parts_lib.build(config)
  compiled = compiled_lib.compile_train_step(parts)
  state = parts_lib.init_state(parts)

  def step(batch: dict[str, np.ndarray]) -> float:
    nonlocal state
    rows = len(batch['inputs'])
    state, out = compiled.call(state, parts.put(batch, rows))
    jax.block_until_ready(state)
    return float(out['loss'])

  return step


def _torch(folder: str) -> Step:
  import torch  # pyright: ignore[reportMissingImports]

  model, encoder = torch_side.load(folder)
  model.train()
  optimizer = torch.optim.AdamW(
    *(model.parameters(), RATE, BETAS, EPSILON), weight_decay=0.0, fused=True
  )

  def step(batch: dict[str, np.ndarray]) -> float:
    ids = {
      name: torch.from_numpy(x.astype(np.int64)) for name, x in batch.items()
    }
    given = {'input_ids': ids['inputs']}
    if encoder:
      given = {
        'input_ids': ids['sources'],
        'attention_mask': ids['source_mask'],
        'decoder_input_ids': ids['inputs'],
      }
    optimizer.zero_grad()
    logits = model(**given, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
      logits.flatten(0, 1), ids['targets'].flatten()
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return loss.item()

  return step


SIDES = {sides.OURS: _ours, sides.TORCH: _torch}


def _run(step: Step, batches: list[dict], start: int, steps: int) -> dict:
  """Trains `steps` steps, the first of which is number `start`."""
  found: dict[str, Any] = {'seconds': [], 'cpu_seconds': [], 'losses': []}
  for number in range(start, start + steps):
    wall, cpu = time.perf_counter(), time.process_time()
    found['losses'].append(step(batches[number % len(batches)]))
    found['seconds'].append(time.perf_counter() - wall)
    found['cpu_seconds'].append(time.process_time() - cpu)
  return {**found, 'peak_bytes': sides.peak_bytes()}


def main(side: str, folder: str) -> None:
  """Serves standard input."""
  say = sides.answers()
  with np.load(os.path.join(folder, BATCHES)) as arrays:
    held = {name: arrays[name] for name in arrays.files}
  number = len(held['inputs'])
  batches = [{name: x[i] for name, x in held.items()} for i in range(number)]
  run = functools.partial(_run, SIDES[side](folder), batches)
  say({})
  done = 0
  while line := sys.stdin.readline():
    steps = json.loads(line)
    say(run(done, steps))
    done += steps


if __name__ == '__main__':
  main(*sys.argv[1:])
