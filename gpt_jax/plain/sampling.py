# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sampling."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gpt_jax.plain.decoder import hidden_states as states_of
from gpt_jax.plain.decoder import logits
from gpt_jax.plain.encoder import encoder_states, masked_logits
from gpt_jax.plain.encoder_decoder import seq2seq_states as written_states_of
from gpt_jax.plain.recipe import CONTEXT_LENGTH, PACKED, SEED
from gpt_jax.plain.rows import stream_batch as batch_of
from gpt_jax.plain.tokenizer import text_of, wordpiece_ids
from gpt_jax.plain.types import Batch, Params, Store


@jax.jit
def next_scores(params: Params, tokens: Array, count: Array) -> Array:
  """Scores of the token after the first `count` of a row, [V]; what follows them is not seen."""
  batch = {'inputs': tokens[None]}
  if PACKED:
    batch['segments'] = jnp.zeros_like(tokens[None])
    batch['positions'] = jnp.arange(len(tokens))[None]
  return logits(params, states_of(params, batch)[0, count - 1])


def drawn(scores: Array, temperature: float, key: Array) -> int:
  """A token from softmax(scores / temperature); at temperature 0 the likeliest."""
  if temperature:
    scores = scores / temperature + jax.random.gumbel(key, scores.shape)
  return int(jnp.argmax(scores))


def sample(params: Params, store: Store, number: int, temperature: float) -> str:
  """Samples a new text of `number` tokens."""
  ids, key = [store['eos_id']], jax.random.key(SEED)
  for i in range(number):
    seen = ids[-CONTEXT_LENGTH:]
    row = np.pad(np.array(seen, np.int32), (0, CONTEXT_LENGTH - len(seen)))
    scores = next_scores(params, row, len(seen))[: store['vocab_size']]
    ids.append(drawn(scores, temperature, jax.random.fold_in(key, i)))
  return text_of(store['folder'], ids[1:])


@jax.jit
def next_written(params: Params, batch: Batch, count: Array) -> Array:
  """Scores of the token after the first `count` that the decoder wrote, [V]."""
  return logits(params, written_states_of(params, batch)[0, count])


def write(params: Params, store: Store, number: int, temperature: float) -> str:
  """Samples at most `number` tokens for the first source of the run."""
  batch = {name: x[:1] for name, x in batch_of(store, 0).items()}
  source = batch['sources'][0]
  inputs = np.full_like(batch['inputs'], batch['inputs'][0, 0])
  if PACKED:
    # The first text of its row.
    batch['source_mask'] = batch['source_mask'] & (batch['source_segments'] == 0)
    source = source[batch['source_mask'][0]]
    batch['segments'] = np.zeros_like(inputs)
    batch['positions'] = np.arange(inputs.shape[1], dtype=np.int32)[None]
  ids, key = [], jax.random.key(SEED)
  for i in range(min(number, inputs.shape[1])):
    inputs[0, 1 : i + 1] = ids
    scores = next_written(params, batch | {'inputs': inputs}, i)[: store['vocab_size']]
    ids.append(drawn(scores, temperature, jax.random.fold_in(key, i)))
    if ids[-1] == store['eos_id']:
      break
  texts = (text_of(store['folder'], part) for part in (source.tolist(), ids))
  return ' => '.join(texts)


def fill(params: Params, store: Store, number: int, temperature: float) -> str:
  """A few masked tokens of the first row of the run: their pieces, and what the model says."""
  batch = {name: x[:1] for name, x in batch_of(store, 0).items()}
  scores = masked_logits(params, encoder_states(params, batch), batch['masked_positions'])
  names = {i: piece for piece, i in wordpiece_ids(store['folder']).items()}
  keys = jax.random.split(jax.random.key(SEED), number)
  lines = []
  for target, score, key in zip(batch['targets'][0].tolist(), scores[0], keys, strict=False):
    lines.append(f'{names[target]}: {names.get(drawn(score, temperature, key), "?")}')
  return '\n'.join(lines)
