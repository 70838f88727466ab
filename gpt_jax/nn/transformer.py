# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Transformer: embeddings, a stack of blocks, scores for the vocabulary.

Its fields are the schema of `config.model`: `Transformer(**config.model)`.
Legend of array suffixes, here and in all of `nn/`: B batch, L length,
M memory length, D model, H heads, G key/value heads, K head size, F hidden,
V vocabulary, R heads for each key/value head.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax import spec
from gpt_jax.nn.attention import Attention, KVCache
from gpt_jax.nn.block import BLOCKS
from gpt_jax.nn.dropout import DROPOUTS
from gpt_jax.nn.embed import Embedding
from gpt_jax.nn.ffn import FFNS
from gpt_jax.nn.init import INITS
from gpt_jax.nn.masks import PATTERNS
from gpt_jax.nn.norm import NORMS
from gpt_jax.nn.positions import POSITIONS
from gpt_jax.nn.stack import Stack

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}
OUTPUTS = ('tied', 'untied')
BIASES = {'all': True, 'none': False}

Caches = tuple[KVCache | None, ...]


class Output(NamedTuple):
  """What a forward pass gives: the last hidden states and the caches."""

  hidden_BLD: jax.Array
  caches: Caches


class Transformer(nn.Module):
  """A decoder. `configs/base.py` says what each field means."""

  vocab_size: int
  context_length: int
  num_layers: int
  d_model: int
  num_heads: int
  num_kv_heads: int
  head_size: int
  d_ff: int
  position: str
  attention: str
  ffn: str
  norm: str
  block: str
  bias: str
  output: str
  dropout: str
  init_weights: str
  dtype: str
  remat: str
  loop: str

  def setup(self):
    """Resolves the call-strings and creates the parts."""
    dtype = DTYPES[self.dtype]
    bias = BIASES[self.bias]
    inits = spec.build('model.init_weights', self.init_weights, INITS)(
      self.num_layers
    )
    rates = spec.build('model.dropout', self.dropout, DROPOUTS)
    norm = spec.build('model.norm', self.norm, NORMS)
    ffn = spec.build('model.ffn', self.ffn, FFNS)
    block = spec.build('model.block', self.block, BLOCKS)
    embedding = functools.partial(
      Embedding, self.vocab_size, self.d_model, inits.embedding, dtype
    )
    self.embed = embedding()
    self.positions = spec.build('model.position', self.position, POSITIONS)(
      context_length=self.context_length, initializer=inits.position
    )
    self.embed_dropout = nn.Dropout(rates.embedding)
    ffn = functools.partial(
      ffn, d_ff=self.d_ff, bias=bias, inits=inits, dtype=dtype
    )
    attention = functools.partial(
      Attention,
      num_heads=self.num_heads,
      num_kv_heads=self.num_kv_heads,
      head_size=self.head_size,
      bias=bias,
      dropout=rates.attention,
      inits=inits,
      dtype=dtype,
    )
    self.stack = Stack(
      blocks=tuple(
        functools.partial(
          block,
          norm=norm,
          attention=functools.partial(attention, pattern),
          ffn=ffn,
          dropout=rates.residual,
        )
        for pattern in self.patterns()
      ),
      num_layers=self.num_layers,
      remat=self.remat,
      loop=self.loop,
    )
    if block.final_norm:
      self.final_norm = norm()
    if self.output == 'untied':
      self.head = embedding()

  def patterns(self):
    """The attention pattern of each layer of one period."""
    return spec.build_all('model.attention', self.attention, PATTERNS)

  def __call__(
    self,
    tokens_BL: jax.Array,
    positions_BL: jax.Array | None = None,
    caches: Caches | None = None,
  ) -> Output:
    """Runs the stack on `tokens_BL`.

    Args:
      tokens_BL: int32 ids.
      positions_BL: int32, where each token stands; None means 0, 1, 2, ...
      caches: from `init_caches`, when decoding; needs `positions_BL`.

    Returns:
      Hidden states after the last norm, and the updated caches.
    """
    x_BLD = self.positions(self.embed(tokens_BL), positions_BL)
    x_BLD = self.embed_dropout(x_BLD, deterministic=not self.has_rng('dropout'))
    if caches is None:
      caches = (None,) * len(self.patterns())
    x_BLD, caches = self.stack(x_BLD, positions_BL, caches)
    if hasattr(self, 'final_norm'):
      x_BLD = self.final_norm(x_BLD)
    if self.is_initializing():
      self.output_table()
    return Output(x_BLD, caches)

  def output_table(self) -> jax.Array:
    """The matrix [V, D] that scores the vocabulary: logits = x table^T."""
    return (self.embed if self.output == 'tied' else self.head).table()

  def logits(self, hidden: jax.Array) -> jax.Array:
    """[..., D] -> float32 logits [..., V]."""
    return jnp.einsum(
      '...D,VD->...V',
      hidden,
      self.output_table(),
      preferred_element_type=jnp.float32,
    )

  def init_caches(self, batch_size: int, length: int) -> Caches:
    """Empty caches for `batch_size` rows of at most `length` tokens."""
    period = len(self.patterns())
    shape = (self.num_layers // period, batch_size, length)
    shape += (self.num_kv_heads, self.head_size)

    def zeros() -> Any:
      return jnp.zeros(shape, DTYPES[self.dtype])

    return tuple(KVCache(zeros(), zeros()) for _ in range(period))
