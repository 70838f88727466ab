# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Initial weights."""

import jax
import jax.numpy as jnp
from jax import Array

from gpt_jax.plain.recipe import (
  BIASES,
  CONTEXT_LENGTH,
  D_FF,
  D_MODEL,
  DISTANCE_VECTORS,
  EXPERT_EVERY,
  FINAL_NORM,
  GATED,
  HEAD_SIZE,
  INIT_SCALE,
  INIT_STDDEV,
  NORM_BIASES,
  NORM_SCALES,
  NUM_BUCKETS,
  NUM_ENCODER_LAYERS,
  NUM_EXPERTS,
  NUM_HEADS,
  NUM_KV_HEADS,
  NUM_LAYERS,
  POSITION_TABLE,
  SCORE_BIAS,
  TABLE_STDDEV,
  TIED,
  VOCAB_SIZE,
)
from gpt_jax.plain.types import Params


def normal_kernel(key: Array, inputs: int, outputs: int) -> Array:
  """A kernel of N(0, INIT_STDDEV)."""
  return INIT_STDDEV * jax.random.normal(key, (inputs, outputs))


def residual_kernel(key: Array, inputs: int, outputs: int) -> Array:
  """A kernel whose output is added to the residual stream, 2 of them a layer (section 2.3)."""
  return INIT_STDDEV * (2 * NUM_LAYERS) ** -0.5 * jax.random.normal(key, (inputs, outputs))


def fan_in_kernel(key: Array, inputs: int, outputs: int) -> Array:
  """A kernel of N(0, 1 / inputs)."""
  return inputs**-0.5 * jax.random.normal(key, (inputs, outputs))


def truncated_kernel(key: Array, inputs: int, outputs: int) -> Array:
  """A kernel of N(0, INIT_SCALE / inputs), drawn again beyond two standard deviations."""
  # The cut leaves 0.88 of the standard deviation.
  stddev = (INIT_SCALE / inputs) ** 0.5 / 0.87962566103423978
  return stddev * jax.random.truncated_normal(key, -2, 2, (inputs, outputs))


def small_query_kernel(key: Array, inputs: int, outputs: int) -> Array:
  """A kernel of queries, N(0, 1 / (inputs * HEAD_SIZE)): the scores are not scaled."""
  return (inputs * HEAD_SIZE) ** -0.5 * jax.random.normal(key, (inputs, outputs))


def cut_normal_kernel(key: Array, inputs: int, outputs: int) -> Array:
  """A kernel of N(0, INIT_STDDEV), drawn again beyond two standard deviations."""
  return INIT_STDDEV * jax.random.truncated_normal(key, -2, 2, (inputs, outputs))


def uniform_kernel(key: Array, inputs: int, outputs: int) -> Array:
  """A uniform kernel of variance 2 / (inputs + outputs) (Glorot and Bengio, 2010, eq. 16)."""
  bound = (6 / (inputs + outputs)) ** 0.5
  return jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound)


def normal_table(key: Array, rows: int, width: int) -> Array:
  """A table of vectors of N(0, TABLE_STDDEV)."""
  return TABLE_STDDEV * jax.random.normal(key, (rows, width))


def cut_normal_table(key: Array, rows: int, width: int) -> Array:
  """A table of vectors of N(0, TABLE_STDDEV), drawn again beyond two standard deviations."""
  return TABLE_STDDEV * jax.random.truncated_normal(key, -2, 2, (rows, width))


init_kernel, init_query, init_residual = normal_kernel, normal_kernel, residual_kernel
init_table = normal_table


def init_dense(kernel: Array) -> Params:
  """A dense layer: its kernel, and a bias of zeros."""
  return {'kernel': kernel, 'bias': jnp.zeros(kernel.shape[1])} if BIASES else {'kernel': kernel}


def init_norm() -> Params:
  """A norm: scales of one, and biases of zero."""
  p = {'scale': jnp.ones(D_MODEL)}
  if NORM_BIASES:
    p['bias'] = jnp.zeros(D_MODEL)
  return p


def init_attention(key: Array) -> Params:
  """The projections to queries, keys and values, and back."""
  keys = jax.random.split(key, 5)
  wide, narrow = NUM_HEADS * HEAD_SIZE, NUM_KV_HEADS * HEAD_SIZE
  p = {
    'query': init_dense(init_query(keys[0], D_MODEL, wide)),
    'key': init_dense(init_kernel(keys[1], D_MODEL, narrow)),
    'value': init_dense(init_kernel(keys[2], D_MODEL, narrow)),
    'out': init_dense(init_residual(keys[3], wide, D_MODEL)),
  }
  if DISTANCE_VECTORS:
    p['relative'] = {'kernel': init_kernel(keys[4], D_MODEL, wide)}
    p['content_bias'] = jnp.zeros((NUM_HEADS, HEAD_SIZE))
    p['position_bias'] = jnp.zeros((NUM_HEADS, HEAD_SIZE))
  return p


def init_ffn(key: Array) -> Params:
  """A feed-forward layer."""
  keys = jax.random.split(key, 3)
  p = {
    'in': init_dense(init_kernel(keys[0], D_MODEL, D_FF)),
    'out': init_dense(init_residual(keys[1], D_FF, D_MODEL)),
  }
  if GATED:
    p['gate'] = init_dense(init_kernel(keys[2], D_MODEL, D_FF))
  return p


def init_experts(key: Array) -> Params:
  """The router, and as many feed-forward layers as experts, their arrays stacked."""
  keys = jax.random.split(key, 2)
  p = jax.vmap(init_ffn)(jax.random.split(keys[0], NUM_EXPERTS))
  return p | {'router': {'kernel': router_kernel(keys[1], D_MODEL, NUM_EXPERTS)}}


def router_kernel(key: Array, inputs: int, outputs: int) -> Array:
  """Truncated normal of variance 0.1 / inputs (Fedus et al., 2021, section 2.4)."""
  stddev = (0.1 / inputs) ** 0.5 / 0.87962566103423978
  return stddev * jax.random.truncated_normal(key, -2, 2, (inputs, outputs))


def init_layer(key: Array, number: int) -> Params:
  """One block."""
  keys = jax.random.split(key)
  p = {'attention': init_attention(keys[0]), 'ffn': init_ffn(keys[1])}
  if NUM_EXPERTS and number % EXPERT_EVERY == EXPERT_EVERY - 1:
    p['ffn'] = init_experts(keys[1])
  if NORM_SCALES:
    p |= {'attention_norm': init_norm(), 'ffn_norm': init_norm()}
  return p


def init_decoder_layer(key: Array, number: int) -> Params:
  """One block of an encoder-decoder's decoder."""
  keys = jax.random.split(key)
  p = init_layer(keys[0], number) | {'cross': init_attention(keys[1]), 'cross_norm': init_norm()}
  return p


def init_encoder_decoder(key: Array) -> Params:
  """All parameters, float32."""
  keys = jax.random.split(key, 6)
  layers = jax.random.split(keys[0], NUM_LAYERS)
  encoder_layers = jax.random.split(keys[1], NUM_ENCODER_LAYERS)
  p: Params = {
    'embed': {'embedding': init_table(keys[2], VOCAB_SIZE, D_MODEL)},
    'encoder_layers': [init_layer(k, number) for number, k in enumerate(encoder_layers)],
    'layers': [init_decoder_layer(k, number) for number, k in enumerate(layers)],
  }
  if SCORE_BIAS:
    for side, k in (('encoder_bias', keys[3]), ('decoder_bias', keys[4])):
      p[side] = {'embedding': uniform_kernel(k, NUM_BUCKETS, NUM_HEADS)}
  if FINAL_NORM:
    p |= {'encoder_norm': init_norm(), 'final_norm': init_norm()}
  if not TIED:
    p['head'] = {'embedding': D_MODEL**-0.5 * jax.random.normal(keys[5], (VOCAB_SIZE, D_MODEL))}
  return p


def init_encoder(key: Array) -> Params:
  """All parameters, float32, with the heads of both tasks."""
  keys = jax.random.split(key, NUM_LAYERS + 6)
  return {
    'embed': {'embedding': init_table(keys[0], VOCAB_SIZE, D_MODEL)},
    'segments': {'embedding': init_table(keys[1], 2, D_MODEL)},
    'positions': {'embedding': init_table(keys[2], CONTEXT_LENGTH, D_MODEL)},
    'embed_norm': init_norm(),
    'layers': [init_layer(key, number) for number, key in enumerate(keys[6:])],
    'output_dense': init_dense(init_kernel(keys[3], D_MODEL, D_MODEL)),
    'output_norm': init_norm(),
    'head_bias': jnp.zeros(VOCAB_SIZE),
    'heads': {
      'pooler': init_dense(init_kernel(keys[4], D_MODEL, D_MODEL)),
      'pair': init_dense(init_kernel(keys[5], D_MODEL, 2)),
    },
  }


def init_decoder(key: Array) -> Params:
  """All parameters, float32."""
  keys = jax.random.split(key, NUM_LAYERS + 3)
  p: Params = {
    'embed': {'embedding': init_table(keys[0], VOCAB_SIZE, D_MODEL)},
    'layers': [init_layer(key, number) for number, key in enumerate(keys[3:])],
  }
  if POSITION_TABLE:
    p['positions'] = {'embedding': init_table(keys[1], CONTEXT_LENGTH, D_MODEL)}
  if FINAL_NORM and NORM_SCALES:
    p['final_norm'] = init_norm()
  if not TIED:
    p['head'] = {'embedding': init_table(keys[2], VOCAB_SIZE, D_MODEL)}
  return p
