# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Positions: what tells a model the order of its tokens."""

import math

import jax.numpy as jnp
from jax import Array

from gpt_jax.plain.recipe import HEAD_SIZE, MAX_DISTANCE, NUM_BUCKETS, NUM_HEADS, ROPE_THETA


def sinusoids(positions: Array, width: int) -> Array:
  """Sines and cosines side by side (Vaswani et al., 2017, section 3.5), [..., width]."""
  waves = 10_000.0 ** (-jnp.arange(0, width, 2) / width)
  angles = positions[..., None] * waves
  return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*positions.shape, -1)


def sines_then_cosines(distances: Array, width: int) -> Array:
  """Sines, then cosines, of distances (Dai et al., 2019, released code), [M, width]."""
  waves = 10_000.0 ** (-jnp.arange(0, width, 2) / width)
  angles = distances[:, None] * waves
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def rotate_halves(x: Array, positions: Array) -> Array:
  """RoPE (Su et al., 2021, eq. 34) of [B, L, heads, K]; pairs are features i and i + K / 2."""
  angles = positions[..., None, None] * ROPE_THETA ** (-jnp.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def rotate_pairs(x: Array, positions: Array) -> Array:
  """RoPE (Su et al., 2021, eq. 34) of [B, L, heads, K]; pairs are features 2 i and 2 i + 1."""
  angles = positions[..., None, None] * ROPE_THETA ** (-jnp.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  a, b = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
  turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return turned.reshape(x.shape).astype(x.dtype)


def not_rotated(x: Array, positions: Array) -> Array:
  """Nothing: positions enter elsewhere."""
  return x


def distance_buckets(distance: Array, both_ways: bool) -> Array:
  """The bucket of key position - query position (Raffel et al., 2019, section 2.1).

  Near distances have a bucket each; farther ones share buckets that grow logarithmically. If
  tokens see both ways, half of the buckets are for later keys.
  """
  buckets = NUM_BUCKETS // 2 if both_ways else NUM_BUCKETS
  first = jnp.where(both_ways & (distance > 0), buckets, 0)
  distance = jnp.abs(distance) if both_ways else jnp.maximum(-distance, 0)
  near = buckets // 2
  far = jnp.log(jnp.maximum(distance, 1) / near) / math.log(MAX_DISTANCE / near)
  far = jnp.minimum(near + (far * (buckets - near)).astype(jnp.int32), buckets - 1)
  return first + jnp.where(distance < near, distance, far)


def bucket_bias(table: Array, queries: Array, keys: Array, both_ways: bool) -> Array:
  """A number for each head and bucket of distances, added to the scores: [heads, L, M]."""
  buckets = distance_buckets(keys[None, :] - queries[:, None], both_ways)
  return jnp.moveaxis(table[buckets], -1, 0)


def alibi(length: int) -> Array:
  """-slope * distance, slopes 2^(-8 i / heads) (Press et al., 2022, section 3): [heads, L, L]."""
  slopes = 2.0 ** (-8 * jnp.arange(1, NUM_HEADS + 1) / NUM_HEADS)
  return -slopes[:, None, None] * jnp.abs(jnp.arange(length) - jnp.arange(length)[:, None])
