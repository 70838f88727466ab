# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training."""

import argparse
import os
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gpt_jax.plain.initial import init_decoder as init_params
from gpt_jax.plain.losses import causal_loss as loss_of
from gpt_jax.plain.optimizers import adam as update
from gpt_jax.plain.optimizers import clip
from gpt_jax.plain.optimizers import init_adam as init_moments
from gpt_jax.plain.recipe import CLIP_NORM, DRAWS, MICRO_ROWS, NUM_STEPS, PADDED, PENALTY, SEED
from gpt_jax.plain.rows import stream_batch as batch_of
from gpt_jax.plain.sampling import sample as sample
from gpt_jax.plain.schedules import cosine as rate_of
from gpt_jax.plain.store import open_store
from gpt_jax.plain.types import Batch, Params, Store


def gradients(params: Params, batch: Batch, step: Array) -> tuple[Array, Params]:
  """The mean loss of a batch and its gradients, summed over a few rows at a time."""
  number = len(batch['inputs']) // MICRO_ROWS
  parts = jax.tree.map(lambda x: x.reshape(number, MICRO_ROWS, *x.shape[1:]), batch)
  if DRAWS:
    parts['key'] = jax.random.split(jax.random.fold_in(jax.random.key(SEED), step), number)

  def add(sums: Any, part: Batch) -> tuple[Any, None]:
    if PENALTY:
      (_, loss), grads = jax.value_and_grad(loss_of, has_aux=True)(params, part)
    else:
      loss, grads = jax.value_and_grad(loss_of)(params, part)
    return jax.tree.map(jnp.add, sums, (loss, grads)), None

  zeros = jnp.float32(0), jax.tree.map(jnp.zeros_like, params)
  sums, _ = jax.lax.scan(add, zeros, parts)
  tokens = jnp.sum(batch['weights']) if PADDED else batch['targets'].size
  return jax.tree.map(lambda x: x / tokens, sums)


name_of = partial(jax.tree_util.keystr, simple=True, separator='/')  # layers/0/ffn/in/kernel


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(
  params: Params, moments: Params, batch: Batch, step: Array, rate: Array
) -> tuple[Params, Params, Array]:
  """One step: new parameters and moments, and the loss of the batch."""
  loss, grads = gradients(params, batch, step)
  if CLIP_NORM:
    grads = clip(grads)
  params, moments = update(params, grads, moments, step, rate)
  return params, moments, loss


def save(file: str, params: Params, moments: Params, step: int) -> None:
  """Writes all that a run resumes from, as one file of NumPy's, or none of it."""
  run = {'params': params, 'moments': moments, 'step': step}
  named: Any = {name_of(k): np.asarray(x) for k, x in jax.tree_util.tree_leaves_with_path(run)}
  if not all(np.isfinite(x).all() for x in named.values()):
    raise SystemExit(f'step {step}: the update is not finite; {file} is of an earlier step')
  with open(f'{file}.new', 'wb') as new:
    np.savez(new, **named)
  os.replace(f'{file}.new', file)


def load(file: str, tree: Params) -> Params:
  """What `save` wrote of a tree; it raises if that had other sizes."""
  with np.load(file) as arrays:
    return jax.tree_util.tree_map_with_path(lambda p, x: arrays[name_of(p)].reshape(x.shape), tree)


def train(
  store: Store, file: str, weights: str | None, stop: int, save_every: int
) -> tuple[Params, list[float]]:
  """Trains up to a step, from where `file` stops if it exists: parameters and losses."""
  params, losses = init_params(jax.random.key(SEED)), []
  if weights:
    params = load(weights, {'params': params})['params']
  run = {'params': params, 'moments': init_moments(params), 'step': np.int32(0)}
  if os.path.exists(file):
    run = load(file, run)
  params, moments = run['params'], run['moments']
  for step in range(int(run['step']), stop):
    began = time.monotonic()
    rate = rate_of(step)
    params, moments, loss = train_step(params, moments, batch_of(store, step), step, rate)
    losses.append(float(loss))
    if not np.isfinite(losses[-1]):
      raise SystemExit(f'step {step + 1}: the loss is {losses[-1]}; {file} is of an earlier step')
    took = time.monotonic() - began
    print(f'step {step + 1} loss {losses[-1]:.6f} rate {rate:.4g} seconds {took:.2f}', flush=True)
    if (step + 1) % save_every == 0 or step + 1 == stop:
      save(file, params, moments, step + 1)
  return params, losses


def main() -> None:
  """Trains, and writes a sample."""
  parser = argparse.ArgumentParser()
  parser.add_argument('store', help='folder that gpt-jax prepare wrote')
  parser.add_argument('--out', default='run.npz', help='the run: saved there, and resumed from it')
  parser.add_argument('--weights', help='file whose parameters a new run starts from')
  parser.add_argument('--stop', type=int, default=NUM_STEPS, help='stop after this step')
  parser.add_argument('--save-every', type=int, default=500, help='steps between two saves')
  parser.add_argument('--sample', type=int, default=100, help='tokens to write at the end')
  parser.add_argument('--temperature', type=float, default=0.8, help='0: the likeliest token')
  args = parser.parse_args()
  store = open_store(args.store)
  params, _ = train(store, args.out, args.weights, args.stop, args.save_every)
  print(sample(params, store, args.sample, args.temperature))


if __name__ == '__main__':
  main()
