# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Embeddings: the input vectors of tokens, and adaptive softmax.

Adaptive embeddings and the adaptive softmax are for large vocabularies. The
vocabulary, sorted by frequency, is cut into clusters, and rare clusters
get narrower vectors: Grave et al. 2017, "Efficient softmax approximation for
GPUs", for the output; Baevski and Auli 2019 for the input. Transformer-XL has
both, with shared tables (Dai et al. 2019, section 4).

P(w) = P(w | first cluster and one entry for each other cluster) in the first
cluster, elsewhere P(cluster) P(w | cluster). Here every cluster is computed
for every token, since shapes are static: only the width is saved.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn import layout
from gpt_jax.nn.characters import CharacterCnn, Characters
from gpt_jax.nn.layers import (
  ACTIVATIONS,
  Dropout,
  Initializer,
  Initializers,
  Rates,
  parameter,
)
from gpt_jax.nn.positions import Position
from gpt_jax.ranges import Count, OneOf, Whole
from gpt_jax.spec import UsageError


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
    for i, (table, (start, stop)) in enumerate(
      zip(self.tables(), bounds, strict=True)
    ):
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
      self.cluster_bias = parameter(
        self, 'cluster_bias', zeros, (num_tails,), ('cluster',)
      )
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

  def __call__(
    self,
    hidden: jax.Array,
    tables: Sequence[jax.Array],
    kernels: Sequence[jax.Array | None],
  ) -> jax.Array:
    """Log-probabilities, [..., D] -> float32 [..., V].

    Args:
      hidden: the last hidden states.
      tables: of each cluster, [V_i, W_i].
      kernels: the embedding's projections [W_i, D], None for none.
    """
    return adaptive_log_probs(self._scores(hidden, tables, kernels))

  def nll(
    self,
    hidden: jax.Array,
    targets: jax.Array,
    tables: Sequence[jax.Array],
    kernels: Sequence[jax.Array | None],
  ) -> jax.Array:
    """-log P of targets [...], float32; other arguments as in `__call__`."""
    scores = self._scores(hidden, tables, kernels)
    return adaptive_nll(scores, targets, self.clusters.bounds(self.vocab_size))

  def _scores(
    self,
    hidden: jax.Array,
    tables: Sequence[jax.Array],
    kernels: Sequence[jax.Array | None],
  ) -> list[jax.Array]:
    """Scores within each cluster, see `adaptive_log_probs`."""
    logits = []
    for i, (table, kernel) in enumerate(zip(tables, kernels, strict=True)):
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
      scores = jnp.einsum(
        '...W,VW->...V', x, table, preferred_element_type=jnp.float32
      )
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
  logits: Sequence[jax.Array],
  targets: jax.Array,
  bounds: Sequence[tuple[int, int]],
) -> jax.Array:
  """-log P of targets [...], as from `adaptive_log_probs`.

  It builds no further array of the vocabulary's size.

  Args:
    logits: see `adaptive_log_probs`.
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


# Token embeddings.


AXES = ('vocab', 'embed')


class Embedding(nn.Module):
  """A table with one row for each token: the first layer, or the last."""

  num_rows: int
  d_model: int
  initializer: Initializer
  dtype: Any

  def setup(self):
    """Creates the table."""
    shape = (self.num_rows, self.d_model)
    self.embedding = parameter(self, 'embedding', self.initializer, shape, AXES)

  def __call__(self, tokens_BL: jax.Array) -> jax.Array:
    """Looks tokens up: [B, L] -> [B, L, D]."""
    x_BLD: Any = look_up(self.embedding, tokens_BL, self.dtype)
    return layout.stream(layout.constrain(x_BLD, ('batch', 'length', None)))

  def table(self) -> jax.Array:
    """The table in the compute dtype, [V, D]: logits are x table^T."""
    return self.embedding.astype(self.dtype)


class Projection(nn.Module):
  """From embeddings of their own width to the model's: x W + b.

  W^T, without the bias, leads back for a tied output.
  """

  d_embed: int
  d_model: int
  initializer: Initializer
  dtype: Any

  def setup(self):
    """Creates the kernel and the bias."""
    axes, zeros = ('cluster', 'embed'), nn.initializers.zeros
    shape = (self.d_embed, self.d_model)
    self._kernel = parameter(self, 'kernel', self.initializer, shape, axes)
    self._bias = parameter(self, 'bias', zeros, shape[1:], axes[1:])

  def __call__(self, x_BLE: jax.Array) -> jax.Array:
    """[B, L, E] -> [B, L, D]."""
    x_BLD = jnp.einsum('BLE,ED->BLD', x_BLE, self._matrix())
    return layout.stream(x_BLD + self._bias.astype(self.dtype)[None, None])

  def narrow(self, hidden: jax.Array) -> jax.Array:
    """[..., D] -> [..., E]."""
    return jnp.einsum('...D,ED->...E', hidden, self._matrix())

  def _matrix(self) -> jax.Array:
    return layout.weight(self._kernel, ('cluster', 'embed'), self.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def look_up(stored_VD: jax.Array, tokens_BL: jax.Array, dtype: Any):
  """Rows of a table in the compute dtype: [B, L] -> [B, L, D].

  The table is sent in that dtype too, but its gradient is summed in float32:
  else the sum for a frequent token would be rounded each time.
  """
  # Whole rows: the TPU compiler fails on a gather from a table that is split
  # over both axes. Each device along the vocabulary's mesh axis then looks up
  # its own rows, so their number has to divide.
  table_VD = layout.pad_rows(stored_VD.astype(dtype), AXES[0])
  return jnp.take(layout.weight(table_VD, AXES, dtype), tokens_BL, axis=0)


def _look_up(stored_VD, tokens_BL, dtype):
  return look_up(stored_VD, tokens_BL, dtype), (stored_VD, tokens_BL)


def _look_up_gradient(dtype, saved, dy_BLD):
  del dtype
  stored_VD, tokens_BL = saved
  zeros_VD = layout.pad_rows(jnp.zeros(stored_VD.shape, jnp.float32), AXES[0])
  zeros_VD = layout.constrain(zeros_VD, (AXES[0], None))
  dy_BLD = layout.constrain(dy_BLD, ('batch', 'length', None))
  dy_VD = zeros_VD.at[tokens_BL].add(dy_BLD.astype(jnp.float32), mode='drop')
  dy_VD = layout.constrain(dy_VD, AXES).astype(stored_VD.dtype)
  return layout.constrain(dy_VD[: len(stored_VD)], AXES), None


look_up.defvjp(_look_up, _look_up_gradient)


class Input(NamedTuple):
  """How tokens become vectors.

  Attributes:
    scale: of the embeddings, by the width: 1 or sqrt(D).
    num_token_types: rows of a second table, for the type of each token; 0:
      none.
    norm: whether `model.norm` follows (BERT).
    clusters: of an adaptive embedding; None: one table.
    d_embed: width of all vectors that are summed, before a projection to the
      model's; 0: the model's, without a projection.
    queries: whether a second stream predicts tokens (XLNet).
    characters: of a network that reads the characters of words; None: the
      vectors are rows of a table.
  """

  scale: Callable[[int], float]
  num_token_types: int
  norm: bool
  clusters: Clusters | None = None
  d_embed: int = 0
  queries: bool = False
  characters: Characters | None = None


Scale = Literal['none', 'rsqrt', 'sqrt']


SCALES: dict[Scale, Callable[[int], float]] = {
  'none': lambda d_model: 1.0,
  'rsqrt': lambda d_model: d_model**-0.5,
  'sqrt': lambda d_model: d_model**0.5,
}


Transform = Annotated[str, OneOf(('none', *ACTIVATIONS))]


def tokens(
  scale: Scale = 'none',
  token_types: Whole = 0,
  norm: bool = False,
  d_embed: Whole = 0,
  queries: bool = False,
) -> Input:
  """A table row for each token.

  Args:
    scale: none; sqrt: times sqrt(d_model) (Vaswani et al., section 3.4).
    token_types: number of types, each with its own vector (BERT: 2).
    norm: normalise the sum of token, type and position vectors (BERT).
    d_embed: width of all these vectors, instead of d_model; a dense layer with
      a bias then leads to d_model, even from the same width (ALBERT, section
      3.1). 0: they are d_model wide, without such a layer.
    queries: a trained vector stands for each token that is predicted by a
      second stream (XLNet, section 2.3).
  """
  by_width = SCALES[scale]
  return Input(by_width, token_types, norm, d_embed=d_embed, queries=queries)


def adaptive(
  cutoffs: tuple, d_embed: Count, div_val: Count = 1, scale: Scale = 'none'
) -> Input:
  """Narrower vectors for rarer tokens (Baevski and Auli 2019).

  Args:
    cutoffs: the first token of each cluster but the first.
    d_embed: width of the first cluster's vectors.
    div_val: factor by which each cluster's are narrower than the one before.
    scale: none; sqrt: times sqrt(d_model).
  """
  clusters = Clusters(tuple(cutoffs), d_embed, div_val)
  return Input(SCALES[scale], 0, False, clusters)


# ELMo's convolutions: width, number of filters.
_FILTERS = (
  *((1, 32), (2, 32), (3, 64), (4, 128)),
  *((5, 256), (6, 512), (7, 1024)),
)


def characters(
  filters: tuple = _FILTERS,
  d_embed: Count = 16,
  num_highways: Whole = 2,
  num_characters: Count = 262,
  length: Count = 50,
) -> Input:
  """Convolutions over the characters of each word (ELMo).

  The sizes are those of ELMo's released code. Words are those of
  tokenizer.name='words(...)', characters the bytes of UTF-8.

  Args:
    filters: the width of each convolution, and its number of filters:
      ((1, 32), (2, 64)).
    d_embed: width of a character's vector.
    num_highways: highway layers after the convolutions, before a projection to
      the model's width.
    num_characters: rows of the table of characters; 262 has all of them.
    length: characters of a word, with its begin and end; longer words are cut.
  """
  pairs = [x for x in filters if isinstance(x, tuple) and len(x) == 2]
  numbers = [n for pair in pairs for n in pair]
  if (
    not filters
    or len(pairs) < len(filters)
    or any(type(n) is not int or n < 1 for n in numbers)
    or max(width for width, _ in pairs) > length
  ):
    raise UsageError(
      f'model.input: characters(filters={filters!r}): must be pairs of a '
      f'width, at most length={length}, and a number of filters, such as '
      '((1, 32), (2, 64))'
    )
  sizes = (d_embed, num_highways, num_characters, length)
  found = Characters(tuple(filters), *sizes)
  return Input(SCALES['none'], 0, False, characters=found)


class Inputs(nn.Module):
  """The input layer: `model.input` and `model.position`, with dropout.

  A tied output reads the token vectors `embed` too. Both sides of an
  encoder-decoder share them, unless `encoder_vocab_size` gives the encoder a
  table of its own; each has its own positions and norm (BART), the encoder's
  under names that begin with `encoder_`.
  """

  choice: Input
  position: Position
  vocab_size: int
  context_length: int
  d_model: int
  norm: Callable[..., nn.Module]
  rates: Rates
  inits: Initializers
  dtype: Any
  encoder: bool = False
  encoder_vocab_size: int = 0

  def setup(self):
    """Creates the parts that the choices need."""
    choice, inits = self.choice, self.inits
    self._width = choice.d_embed or self.d_model
    if choice.characters is not None:
      self.embed = CharacterCnn(
        choice.characters, self.d_model, inits, self.dtype
      )
    elif choice.clusters is None:
      self.embed = self._table(self.vocab_size)
    else:
      self.embed = AdaptiveEmbedding(
        choice.clusters, self.vocab_size, self.d_model, inits, self.dtype
      )
    if self.encoder_vocab_size:
      self.encoder_embed = self._table(self.encoder_vocab_size)
    if choice.num_token_types:
      # The name in checkpoints, from before the term token types was used.
      self.token_types = self._table(choice.num_token_types, name='segments')
    if choice.norm:
      self.embed_norm = self.norm()
      if self.encoder:
        self.encoder_embed_norm = self.norm()
    if self.position.embed:
      make_positions = functools.partial(
        self.position.embed,
        context_length=self.context_length,
        initializer=inits.position,
      )
      self.positions = make_positions()
      if self.encoder:
        self.encoder_positions = make_positions()
    if choice.d_embed:
      self.embed_projection = Projection(
        choice.d_embed, self.d_model, inits.kernel, self.dtype
      )
    if choice.queries:
      self.query_embedding = parameter(
        self, 'query_embedding', inits.embedding, (self.d_model,), ('embed',)
      )
    self.embed_dropout = Dropout(self.rates.embedding)

  def __call__(
    self,
    tokens_BL: jax.Array,
    positions_BL: jax.Array | None,
    token_types_BL: jax.Array | None,
    *,
    side: str = '',
  ) -> jax.Array:
    """[B, L] -> [B, L, D]; see `Transformer.__call__` for the arguments.

    Tokens are [B, L, C] if their characters are read.

    `side='encoder_'` uses the encoder's own parts in an encoder-decoder.
    """
    own = side and self.encoder_vocab_size
    embed, vocab_size = self.embed, self.vocab_size
    if own:
      embed, vocab_size = self.encoder_embed, self.encoder_vocab_size
    x_BLD = self._without_words(embed(tokens_BL), tokens_BL, vocab_size)
    x_BLD *= jnp.asarray(self.choice.scale(self._width), x_BLD.dtype)
    if self.choice.num_token_types:
      if token_types_BL is None:
        token_types_BL = jnp.zeros_like(tokens_BL)
      x_BLD += self.token_types(token_types_BL)
    elif token_types_BL is not None:
      x_BLD += self.embed(token_types_BL)
    x_BLD = self.placed(x_BLD, positions_BL, side=side)
    return self.embed_projection(x_BLD) if self.choice.d_embed else x_BLD

  def placed(
    self, x_BLD: jax.Array, positions_BL: jax.Array | None, *, side: str = ''
  ) -> jax.Array:
    """Adds positions, normalises, applies dropout: [B, L, D]."""
    if self.position.embed:
      x_BLD = getattr(self, f'{side}positions')(x_BLD, positions_BL)
    if self.choice.norm:
      x_BLD = getattr(self, f'{side}embed_norm')(x_BLD)
    return self.embed_dropout(x_BLD, deterministic=not self.has_rng('dropout'))

  def _without_words(
    self, x_BLD: jax.Array, tokens_BL: jax.Array, vocab_size: int
  ) -> jax.Array:
    """Drops the same words in all rows, in training."""
    if not self.rates.words or not self.has_rng('dropout'):
      return x_BLD
    keep = 1 - self.rates.words
    key = self.make_rng('dropout')
    kept_V = jax.random.bernoulli(key, keep, (vocab_size,))
    kept_BL1 = kept_V[tokens_BL][..., None]
    return jnp.where(kept_BL1, x_BLD / keep, jnp.zeros_like(x_BLD))

  def queries(self, predicted_BP: jax.Array) -> jax.Array:
    """The input vectors of a second stream's queries: [B, P] -> [B, P, D]."""
    if not self.choice.queries:
      raise UsageError(
        'predicted_BP: the model has no second stream; set '
        "model.input='tokens(queries=True)'"
      )
    x_D = self.query_embedding.astype(self.dtype)
    x_BPD = jnp.broadcast_to(x_D[None, None], (*predicted_BP.shape, len(x_D)))
    return self.embed_dropout(x_BPD, deterministic=not self.has_rng('dropout'))

  def narrow(self, hidden: jax.Array) -> jax.Array:
    """[..., D] to the width of the tokens' vectors."""
    return (
      self.embed_projection.narrow(hidden) if self.choice.d_embed else hidden
    )

  def _table(self, num_rows: int, name: str | None = None) -> Embedding:
    initializer = self.inits.embedding
    return Embedding(num_rows, self._width, initializer, self.dtype, name=name)
