# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Adaptive embeddings and softmax, for large vocabularies.

The vocabulary, sorted by frequency, is cut into clusters, and rare clusters
get narrower vectors: Grave et al. 2017, "Efficient softmax approximation for
GPUs", for the output; Baevski and Auli 2019 for the input. Transformer-XL has
both, with shared tables (Dai et al. 2019, section 4).

P(w) = P(w | first cluster and one entry for each other cluster) in the first
cluster, elsewhere P(cluster) P(w | cluster). Here every cluster is computed
for every token, since shapes are static: only the width is saved.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.embed import SCALES, Input, Scale
from gpt_jax.core.nn.heads import OutputHead
from gpt_jax.core.nn.layers import Initializer, Initializers, parameter
from gpt_jax.core.ranges import Count
from gpt_jax.core.spec import UsageError


class Clusters(NamedTuple):
  """How the vocabulary is cut.

  Attributes:
    cutoffs: the first token of each cluster but the first.
    d_embed: width of the first cluster's vectors.
    div_val: factor by which each cluster's vectors are narrower than those of
      the cluster before.
  """

  cutoffs: tuple[int, ...]
  d_embed: int
  div_val: int

  def bounds(self, vocab_size: int) -> list[tuple[int, int]]:
    """The first token of each cluster, and the first after it."""
    ends = (*self.cutoffs, vocab_size)
    return list(zip((0, *self.cutoffs), ends, strict=True))

  def width(self, cluster: int) -> int:
    """The width of a cluster's vectors."""
    return self.d_embed // self.div_val**cluster

  def num_projections(self, d_model: int) -> int:
    """One for each width; none if the only width is the model's."""
    if self.div_val > 1:
      return len(self.cutoffs) + 1
    return int(self.d_embed != d_model)

  def check(self, vocab_size: int) -> None:
    """Raises UsageError if the cutoffs do not suit the vocabulary."""
    numbers = (*self.cutoffs, self.d_embed, self.div_val)
    if any(not isinstance(n, int) or isinstance(n, bool) for n in numbers):
      raise UsageError('model.input: adaptive(...) takes whole numbers')
    if any(start >= stop for start, stop in self.bounds(vocab_size)):
      raise UsageError(
        f'model.input: cutoffs={self.cutoffs} must increase, from 1 to below '
        f'model.vocab_size={vocab_size}'
      )
    if self.div_val < 1 or self.width(len(self.cutoffs)) < 1:
      raise UsageError(
        f'model.input: d_embed={self.d_embed} is too narrow to divide '
        f'{len(self.cutoffs)} times by div_val={self.div_val}; raise d_embed'
      )


class AdaptiveEmbedding(nn.Module):
  """A table for each cluster, and projections from their widths to D."""

  clusters: Clusters
  num_rows: int
  d_model: int
  inits: Initializers
  dtype: Any

  def setup(self):
    """Creates the tables, and the kernels [W, D] of the projections."""
    clusters = self.clusters
    clusters.check(self.num_rows)
    self._tables = [
      parameter(
        self,
        f'embedding_{i}',
        self.inits.embedding,
        (stop - start, clusters.width(i)),
        ('vocab', 'embed'),
      )
      for i, (start, stop) in enumerate(clusters.bounds(self.num_rows))
    ]
    self._kernels = [
      parameter(
        self,
        f'kernel_{i}',
        self.inits.kernel,
        (clusters.width(i), self.d_model),
        ('cluster', 'embed'),
      )
      for i in range(clusters.num_projections(self.d_model))
    ]

  def __call__(self, tokens_BL: jax.Array) -> jax.Array:
    """Looks tokens up: [B, L] -> [B, L, D]."""
    x_BLD: Any = 0
    bounds = self.clusters.bounds(self.num_rows)
    for i, (table, (start, stop)) in enumerate(zip(self.tables(), bounds, strict=True)):
      # As in `Embedding`: whole rows.
      table = nn.with_logical_constraint(table, ('vocab', None))
      index = jnp.clip(tokens_BL - start, 0, stop - start - 1)
      x_BLW = jnp.take(table, index, axis=0)
      inside_BL = (tokens_BL >= start) & (tokens_BL < stop)
      x_BLD += self._widen(i, jnp.where(inside_BL[..., None], x_BLW, 0))
    return layout.constrain(x_BLD, ('batch', 'length', None))

  def tables(self) -> list[jax.Array]:
    """Each cluster's table in the compute dtype, [V_i, W_i]."""
    return [table.astype(self.dtype) for table in self._tables]

  def kernels(self) -> list[jax.Array | None]:
    """Each cluster's projection [W_i, D]; None if it is as wide as the model.

    One width has one projection for all clusters.
    """
    kernels = [kernel.astype(self.dtype) for kernel in self._kernels]
    missing = len(self._tables) - len(kernels)
    return kernels + [kernels[0] if kernels else None] * missing

  def table(self) -> jax.Array:
    """The vectors of all tokens, [V, D]."""
    tables = enumerate(self.tables())
    return jnp.concatenate([self._widen(i, table) for i, table in tables])

  def _widen(self, cluster: int, x: jax.Array) -> jax.Array:
    """[..., W_i] -> [..., D]."""
    kernel = self.kernels()[cluster]
    return x if kernel is None else jnp.einsum('...W,WD->...D', x, kernel)


class AdaptiveSoftmax(nn.Module):
  """Scores of the vocabulary, with the tables of an `AdaptiveEmbedding`.

  Owns the biases, the entries of the clusters, and the projections of the
  clusters `own`; the others use the embedding's, transposed.
  """

  clusters: Clusters
  own: tuple[int, ...]
  vocab_size: int
  d_model: int
  initializer: Initializer
  dtype: Any

  def setup(self):
    """Creates the parameters."""
    clusters, zeros = self.clusters, nn.initializers.zeros
    num_tails = len(clusters.cutoffs)
    if any(i not in range(num_tails + 1) for i in self.own) or (
      self.own and not clusters.num_projections(self.d_model)
    ):
      raise UsageError(
        f'model.output: own={self.own} must be numbers of clusters, from 0 to '
        f'{num_tails}, and there must be projections: div_val above 1, or '
        'd_embed other than model.d_model'
      )
    if num_tails:
      shape = (num_tails, clusters.d_embed)
      self.cluster_embedding = parameter(
        self, 'cluster_embedding', self.initializer, shape, ('cluster', 'embed')
      )
      self.cluster_bias = parameter(self, 'cluster_bias', zeros, (num_tails,), ('cluster',))
    self._biases = [
      parameter(self, f'bias_{i}', zeros, (stop - start,), ('vocab',))
      for i, (start, stop) in enumerate(clusters.bounds(self.vocab_size))
    ]
    self._kernels = {
      str(i): parameter(
        self,
        f'kernel_{i}',
        self.initializer,
        (self.d_model, clusters.width(i)),
        ('embed', 'cluster'),
      )
      for i in self.own
    }

  def __call__(self, hidden: jax.Array, embed: AdaptiveEmbedding) -> jax.Array:
    """Log-probabilities, [..., D] -> float32 [..., V]."""
    return adaptive_log_probs(self._scores(hidden, embed))

  def nll(self, hidden: jax.Array, targets: jax.Array, embed: AdaptiveEmbedding) -> jax.Array:
    """-log P of targets [...], float32."""
    scores = self._scores(hidden, embed)
    return adaptive_nll(scores, targets, self.clusters.bounds(self.vocab_size))

  def _scores(self, hidden: jax.Array, embed: AdaptiveEmbedding) -> list[jax.Array]:
    """Scores within each cluster, see `adaptive_log_probs`."""
    logits, tables = [], embed.tables()
    for i, (table, kernel) in enumerate(zip(tables, embed.kernels(), strict=True)):
      x = hidden
      if i in self.own:
        own = self._kernels[str(i)].astype(self.dtype)
        x = jnp.einsum('...D,DW->...W', x, own)
      elif kernel is not None:
        x = jnp.einsum('...D,WD->...W', x, kernel)
      bias = self._biases[i]
      if i == 0 and len(tables) > 1:
        entries = self.cluster_embedding.astype(self.dtype)
        table = jnp.concatenate([table, entries])
        bias = jnp.concatenate([bias, self.cluster_bias])
      scores = jnp.einsum('...W,VW->...V', x, table, preferred_element_type=jnp.float32)
      logits.append(scores + bias.reshape((1,) * (scores.ndim - 1) + (-1,)))
    return logits


def adaptive_log_probs(logits: Sequence[jax.Array]) -> jax.Array:
  """Log-probabilities from the scores within clusters (Grave et al., 4.1).

  Args:
    logits: float32; the first holds the tokens of the first cluster and then
      one entry for each other cluster, the others hold their tokens.

  Returns:
    [..., V], in the order of the tokens.
  """
  head, *tails = [jax.nn.log_softmax(x, axis=-1) for x in logits]
  size = head.shape[-1] - len(tails)
  parts = [head[..., :size]]
  for i, tail in enumerate(tails):
    parts.append(head[..., size + i, None] + tail)
  return jnp.concatenate(parts, axis=-1)


def adaptive_nll(
  logits: Sequence[jax.Array], targets: jax.Array, bounds: Sequence[tuple[int, int]]
) -> jax.Array:
  """-log P of targets [...], as from `adaptive_log_probs`.

  It builds no further array of the vocabulary's size.

  Args:
    targets: ids.
    bounds: of the clusters, see `Clusters.bounds`.
  """
  size, nll = bounds[0][1], jnp.zeros(targets.shape, jnp.float32)
  entry = targets
  for i, (start, stop) in enumerate(bounds[1:]):
    inside = (targets >= start) & (targets < stop)
    entry = jnp.where(inside, size + i, entry)
    at = jnp.clip(targets - start, 0, stop - start - 1)
    nll += jnp.where(inside, _nll(logits[i + 1], at), 0)
  return nll + _nll(logits[0], entry)


def _nll(logits: jax.Array, at: jax.Array) -> jax.Array:
  """Cross-entropy of a plain softmax, [..., V] and [...] to [...]."""
  picked = jnp.take_along_axis(logits, at[..., None], axis=-1)[..., 0]
  return jax.nn.logsumexp(logits, axis=-1) - picked


def adaptive(cutoffs: tuple, d_embed: Count, div_val: Count = 1, scale: Scale = 'none') -> Input:
  """Narrower vectors for rarer tokens (Baevski and Auli 2019).

  Args:
    cutoffs: the first token of each cluster but the first.
    d_embed: width of the first cluster's vectors.
    div_val: factor by which each cluster's are narrower than the one before.
    scale: none; sqrt: times sqrt(d_model).
  """
  clusters = Clusters(tuple(cutoffs), d_embed, div_val)
  return Input(
    SCALES[scale],
    embedding=functools.partial(AdaptiveEmbedding, clusters),
    widths=tuple(clusters.width(i) for i in range(len(clusters.cutoffs) + 1)),
  )


def adaptive_softmax(own: tuple = ()) -> OutputHead:
  """Scores by the tables of `input='adaptive(...)'` (Grave et al. 2017).

  Args:
    own: clusters with their own projection instead of the input's.
  """
  make = functools.partial(_softmax, tuple(own))
  return OutputHead(True, False, SCALES['none'], None, make)


def _softmax(own: tuple[int, ...], input: Input, **sizes: Any) -> nn.Module:
  clusters = clusters_of(input)
  if clusters is None:
    raise UsageError(
      'model.output: an adaptive softmax needs adaptive embeddings; set '
      "model.input='adaptive(...)', or take tied or untied"
    )
  return AdaptiveSoftmax(clusters, own, **sizes)


def clusters_of(input: Input) -> Clusters | None:
  """Those of an adaptive input; None: another input."""
  make: Any = input.embedding
  return make.args[0] if getattr(make, 'func', None) is AdaptiveEmbedding else None
