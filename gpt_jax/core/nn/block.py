# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The residual block: its sublayers and norms, and feed-forward layers."""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
from flax import linen as nn

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.kv_cache import Cache, KVCache
from gpt_jax.core.nn.layers import FORMS, Dense, Dropout, Form, Initializers, Matmul
from gpt_jax.core.nn.row import Context

Factory = Callable[..., nn.Module]
Result = tuple[jax.Array, Cache | None]


class Places(NamedTuple):
  """Where a block has norms, and whether its sublayers follow each other.

  Attributes:
    before: norm of each sublayer's input.
    after: norm of its output, before it is added.
    stream: norm of the sum.
    parallel: attention and the feed-forward layer read the block's input.
    shared: they do so through one norm.
  """

  before: bool = False
  after: bool = False
  stream: bool = False
  parallel: bool = False
  shared: bool = False


class Block(nn.Module):
  """x + sublayer(x), one sublayer after the other, with norms at `places`."""

  places: Places
  norm: Factory
  attention: Factory
  ffn: Factory
  dropout: float

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, cache: Cache | None, layer: jax.Array
  ) -> Result:
    """[B, L, D] -> [B, L, D] and the cache with this block's keys, values."""
    drop = self.residual_dropout()
    norm = self.norm_before('attention')
    h_BLD = layout.gather(norm(x_BLD))
    if cache is not None:
      cache = cache.normed(norm)
    y_BLD, cache = self.attention(name='attention')(h_BLD, context, cache, layer=layer)
    decoding = isinstance(cache, KVCache)
    if self.places.parallel:
      if not self.places.shared:
        h_BLD = layout.gather(self.norm_before('ffn')(x_BLD))
      z_BLD = self.ffn(name='ffn')(h_BLD, decoding=decoding)
      return layout.stream(x_BLD + drop(y_BLD) + drop(z_BLD)), cache
    x_BLD = self.add('attention', x_BLD, y_BLD, drop)
    h_BLD = layout.gather(self.norm_before('ffn')(x_BLD))
    y_BLD = self.ffn(name='ffn')(h_BLD, decoding=decoding)
    return self.add('ffn', x_BLD, y_BLD, drop), cache

  def residual_dropout(self) -> Dropout:
    """The dropout of the sublayers' outputs."""
    return Dropout(self.dropout, deterministic=not self.has_rng('dropout'))

  def norm_before(self, sublayer: str) -> Callable[[jax.Array], jax.Array]:
    """The norm of a sublayer's input."""
    if not self.places.before:
      return lambda x_BLD: x_BLD
    return self.norm(name=f'{sublayer}_norm')

  def add(self, sublayer: str, x_BLD: jax.Array, y_BLD: jax.Array, drop: Dropout) -> jax.Array:
    """Adds a sublayer's output to the residual stream."""
    if self.places.after:
      norm = self.norm(name=f'{sublayer}_output_norm')
      y_BLD = norm(layout.stream(y_BLD))
    x_BLD = layout.stream(x_BLD + drop(y_BLD))
    if self.places.stream:
      x_BLD = layout.stream(self.norm(name=f'{sublayer}_norm')(x_BLD))
    return x_BLD


# The norm of queries and keys, before their rotation: none; of each head by
# itself, with a scale that the heads share; of all heads together.
QkNorm = Literal['none', 'per_head', 'all_heads']


class BlockChoice(NamedTuple):
  """The form of the blocks.

  If the blocks do not normalise the residual stream itself, another norm
  follows the last block. Without `places` the layers are blocks themselves.
  """

  places: Places | None
  qk_norm: QkNorm

  @property
  def final_norm(self) -> bool:
    """Whether a norm follows the last block."""
    return self.places is not None and not self.places.stream


def pre(qk_norm: QkNorm = 'none') -> BlockChoice:
  """Norms of the inputs, x + sublayer(norm(x)): GPT-2 (2.3), LLaMA, T5.

  With qk_norm='per_head' Qwen3.
  """
  return BlockChoice(Places(before=True), qk_norm)


def sandwich(qk_norm: QkNorm = 'none') -> BlockChoice:
  """Norms of inputs and outputs, x + norm(sublayer(norm(x))): Gemma 2.

  With qk_norm='per_head' Gemma 3.
  """
  return BlockChoice(Places(before=True, after=True), qk_norm)


def reordered(qk_norm: QkNorm = 'none') -> BlockChoice:
  """Norms of the outputs, x + norm(sublayer(x)): OLMo 2.

  OLMo 2 (section 2.2) calls it reordered, and has qk_norm='all_heads'.
  """
  return BlockChoice(Places(after=True), qk_norm)


def post(qk_norm: QkNorm = 'none') -> BlockChoice:
  """Norms of the sums, norm(x + sublayer(x)): the Transformer, GPT-1, BERT."""
  return BlockChoice(Places(stream=True), qk_norm)


def parallel(num_norms: Literal[1, 2] = 1, qk_norm: QkNorm = 'none') -> BlockChoice:
  """Both sublayers at once: x + attention(norm(x)) + ffn(norm(x)).

  PaLM (section 2), GPT-J, Falcon 7B; with two norms each sublayer has its own:
  GPT-NeoX, Falcon 40B.
  """
  places = Places(before=True, parallel=True, shared=num_norms == 1)
  return BlockChoice(places, qk_norm)


def plain() -> BlockChoice:
  """Recurrent layers alone, y = lstm(x): no norms, residuals or ffn."""
  return BlockChoice(None, 'none')


class FeedForward(nn.Module):
  """FFN(x) = act(x W_in + b) W_out + b, or, gated, (act(x W_gate) * x W_in)
  W_out (Shazeer 2020, GLU Variants Improve Transformer, eq. 6).
  """

  form: Form
  d_ff: int
  bias: bool
  inits: Initializers
  dtype: Any
  matmul: Matmul | None = None

  @nn.compact
  def __call__(self, x_BLD: jax.Array, decoding: bool = False) -> jax.Array:
    """[B, L, D] -> [B, L, D]; `decoding` matters to experts only."""
    del decoding
    dense = functools.partial(Dense, bias=self.bias, dtype=self.dtype, matmul=self.matmul)
    widen = functools.partial(dense, self.d_ff, ('embed', 'mlp'), self.inits.kernel)
    h_BLF = widen(name='in')(x_BLD)
    gate_BLF = widen(name='gate')(x_BLD) if self.form.gated else None
    h_BLF = self.form(h_BLF, gate_BLF)
    narrow = dense(x_BLD.shape[-1], ('mlp', 'embed'), self.inits.residual, name='out')
    return narrow(h_BLF)


class FfnChoice(NamedTuple):
  """A feed-forward layer, and its `moe.Router` if it has experts."""

  make: Callable[..., nn.Module]
  router: Any = None


def dense(form: str) -> FfnChoice:
  """A dense layer of a form of `FORMS`."""
  return FfnChoice(functools.partial(FeedForward, FORMS[form]))
