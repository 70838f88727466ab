# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Initialisers, one set for each paper."""

from typing import NamedTuple

import jax
from flax import linen as nn

from gpt_jax.ranges import Count, Positive, Weight

Initializer = jax.nn.initializers.Initializer


class Initializers(NamedTuple):
  """What the parameters of each role start from."""

  embedding: Initializer
  position: Initializer
  kernel: Initializer
  # The projections that add to the residual stream: attention's and the
  # feed-forward layer's last.
  residual: Initializer
  # Those of queries, and a table of its own for the output; None: as `kernel`
  # and as `embedding`.
  query: Initializer | None = None
  output: Initializer | None = None


def normal(stddev: Weight = 0.02):
  """N(0, stddev) for every weight (GPT-1, section 4.1: 0.02)."""

  def build(num_layers: int) -> Initializers:
    del num_layers
    weights = nn.initializers.normal(stddev)
    return Initializers(weights, weights, weights, weights)

  return build


def truncated_normal(stddev: Weight = 0.02):
  """N(0, stddev) for every weight, drawn anew beyond 2 stddev (BERT's code).

  What is left has 0.88 times that deviation.
  """

  def build(num_layers: int) -> Initializers:
    del num_layers
    weights = nn.initializers.truncated_normal(stddev)
    return Initializers(weights, weights, weights, weights)

  return build


def gpt2(stddev: Weight = 0.02):
  """GPT-2, section 2.3: residual weights are scaled by 1/sqrt(N).

  N counts the residual layers, two a block: stddev / sqrt(2 * num_layers).
  """

  def build(num_layers: int) -> Initializers:
    weights = nn.initializers.normal(stddev)
    residual = nn.initializers.normal(stddev * (2 * num_layers) ** -0.5)
    return Initializers(weights, weights, weights, residual)

  return build


def palm():
  """PaLM, section 5: kernels N(0, 1/n_in), embeddings N(0, 1).

  The table that also scores the vocabulary needs `output="tied(scale='rsqrt')"`
  with it. PaLM has no tables of positions; here they start as embeddings do.
  """

  def build(num_layers: int) -> Initializers:
    del num_layers
    table = nn.initializers.normal(1.0)
    kernel = nn.initializers.variance_scaling(1.0, 'fan_in', 'normal')
    return Initializers(table, table, kernel, kernel)

  return build


def t5(head_size: Count = 64):
  """T5's released code: kernels N(0, 1/n_in), embeddings N(0, 1).

  Queries start sqrt(head_size) smaller, since T5 does not scale their products
  with keys. A tied output needs `tied(scale='rsqrt')`.

  Args:
    head_size: `model.head_size`.
  """

  def build(num_layers: int) -> Initializers:
    del num_layers
    table = nn.initializers.normal(1.0)
    kernel, query = (
      nn.initializers.variance_scaling(scale, 'fan_in', 'normal')
      for scale in (1.0, 1 / head_size)
    )
    # The bias of a bucket and a head.
    position = nn.initializers.variance_scaling(1.0, 'fan_avg', 'uniform')
    output = nn.initializers.variance_scaling(
      1.0, 'fan_in', 'normal', in_axis=-1, out_axis=-2
    )
    return Initializers(table, position, kernel, kernel, query, output)

  return build


def switch(scale: Positive = 0.1, embedding: Positive = 0.02):
  """Switch, section 2.4: truncated normal with stddev sqrt(scale / n_in).

  Args:
    scale: a tenth of the usual 1, for stability (table 3).
    embedding: stddev of the tables of tokens and positions. T5's is 1, with
      `output="tied(scale='rsqrt')"`.
  """

  def build(num_layers: int) -> Initializers:
    del num_layers
    table = nn.initializers.normal(embedding)
    kernel = nn.initializers.variance_scaling(
      scale, 'fan_in', 'truncated_normal'
    )
    return Initializers(table, table, kernel, kernel)

  return build


def transformer():
  """The Transformer's released code: tables N(0, 1/d_model), kernels uniform.

  These have the variance 2 / (n_in + n_out) (Glorot and Bengio, 2010, equation
  16); tables that also score go with `input="tokens(scale='sqrt')"`.
  """

  def build(num_layers: int) -> Initializers:
    del num_layers
    # Of a table [V, D] what goes out is d_model.
    table = nn.initializers.variance_scaling(1.0, 'fan_out', 'normal')
    kernel = nn.initializers.variance_scaling(1.0, 'fan_avg', 'uniform')
    return Initializers(table, table, kernel, kernel)

  return build


INITS = {
  'gpt2': gpt2,
  'normal': normal,
  'palm': palm,
  'switch': switch,
  't5': t5,
  'transformer': transformer,
  'truncated_normal': truncated_normal,
}
