# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Features: what a frozen model says of each token, for a head to read.

BERT's section 5.3 compares, for named entities: the embeddings, the second to
last layer, the last, the weighted sum of the last four, their concatenation,
and the weighted sum of all layers. A weighted sum is ELMo's (Peters et al.,
2018, equation 1): gamma sum_j softmax(w)_j h_j.
"""

from typing import Any, NamedTuple

import jax

from gpt_jax.nn.stack import layer_outputs
from gpt_jax.nn.transformer import Transformer
from gpt_jax.ranges import Count, Whole
from gpt_jax.spec import UsageError


class Features(NamedTuple):
  """Which states are read.

  Attributes:
    text: of the call, for messages.
    first: of the embeddings, which are 0, and the layers; from the end if it
      is negative.
    count: how many from there on; 0: all.
    weighted: whether they are added up, with weights that are learned; else
      they stand side by side.
  """

  text: str
  first: int
  count: int
  weighted: bool

  def layers(self, num_layers: int) -> range:
    """Those of a model of `num_layers` layers.

    Raises:
      UsageError: it has not so many.
    """
    first = self.first + (num_layers + 1 if self.first < 0 else 0)
    found = range(first, first + (self.count or num_layers))
    if not 0 <= found.start < found.stop <= num_layers + 1:
      raise UsageError(
        f'finetune.features={self.text!r}: the model has {num_layers} layers'
      )
    return found


def layer(number: int = -1) -> Features:
  """One layer by its number, from 1; 0: the embeddings; -1: the last."""
  return Features(f'layer({number})', number, 1, False)


def concat(count: Count = 4) -> Features:
  """The last `count` layers side by side."""
  return Features(f'concat({count})', -count, count, False)


def weighted_sum(count: Whole = 0) -> Features:
  """The last `count` layers added up; 0: all, without the embeddings."""
  return Features(f'weighted_sum({count})', -count or 1, count, True)


def hidden_states(sown: Any, last_BLD: jax.Array) -> list[jax.Array]:
  """The embeddings, and the output of each layer; after the last its norm.

  Args:
    sown: from `apply(..., mutable=['intermediates'])`.
    last_BLD: what the model gave.
  """
  found = sown['intermediates']
  return [found['embedded'][0], *layer_outputs(found)[:-1], last_BLD]


def width(features: Features | None, model: Transformer) -> int:
  """Of what a head reads of each token."""
  if features is None or features.weighted:
    return model.d_model
  return len(features.layers(model.num_layers)) * model.d_model


FEATURES = {'layer': layer, 'concat': concat, 'weighted_sum': weighted_sum}
