# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The residual block: its sublayers and norms, and feed-forward layers."""

import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
from flax import linen as nn

from gpt_jax import ranges
from gpt_jax.nn import layout
from gpt_jax.nn.attend import Cache, Context, KVCache, SegmentMemory
from gpt_jax.nn.int8 import Int8
from gpt_jax.nn.layers import FORMS, Dense, Dropout, Form, Initializers
from gpt_jax.nn.moe import Router, Switch
from gpt_jax.ranges import Count, Fraction, OneOf, Positive, Weight, Whole
from gpt_jax.spec import UsageError

# The residual block.


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
  """x + sublayer(x), one sublayer after the other, with norms at `places`.

  `cross` adds attention to the encoder's output between the two others.
  """

  places: Places
  norm: Factory
  attention: Factory
  ffn: Factory
  dropout: float
  cross: bool

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    context: Context,
    cache: Cache | None,
    layer: jax.Array,
  ) -> Result:
    """[B, L, D] -> [B, L, D] and the cache with this block's keys, values."""
    if self.cross and self.places.parallel:
      raise UsageError(
        'model.block=parallel: has no cross-attention; take pre or post for an '
        'encoder-decoder, or set model.num_encoder_layers=0'
      )
    drop = Dropout(self.dropout, deterministic=not self.has_rng('dropout'))
    norm = self._before('attention')
    h_BLD = layout.gather(norm(x_BLD))
    memory = cache
    if isinstance(memory, SegmentMemory):
      # The memory holds inputs of blocks, before the norm.
      memory = memory._replace(hidden_BMD=norm(memory.hidden_BMD))
    y_BLD, cache = self.attention(name='attention')(
      h_BLD, context, memory, layer=layer
    )
    decoding = isinstance(cache, KVCache)
    if self.places.parallel:
      if not self.places.shared:
        h_BLD = layout.gather(self._before('ffn')(x_BLD))
      z_BLD = self.ffn(name='ffn')(h_BLD, decoding=decoding)
      return layout.stream(x_BLD + drop(y_BLD) + drop(z_BLD)), cache
    x_BLD = self._add('attention', x_BLD, y_BLD, drop)
    if self.cross:
      h_BLD = layout.gather(self._before('cross')(x_BLD))
      attention = self.attention(name='cross')
      y_BLD, cache = _across(attention, h_BLD, context, cache, layer)
      x_BLD = self._add('cross', x_BLD, y_BLD, drop)
    h_BLD = layout.gather(self._before('ffn')(x_BLD))
    y_BLD = self.ffn(name='ffn')(h_BLD, decoding=decoding)
    return self._add('ffn', x_BLD, y_BLD, drop), cache

  def _before(self, sublayer: str) -> Callable[[jax.Array], jax.Array]:
    """The norm of a sublayer's input."""
    if not self.places.before:
      return lambda x_BLD: x_BLD
    return self.norm(name=f'{sublayer}_norm')

  def _add(
    self, sublayer: str, x_BLD: jax.Array, y_BLD: jax.Array, drop: Dropout
  ) -> jax.Array:
    """Adds a sublayer's output to the residual stream."""
    if self.places.after:
      norm = self.norm(name=f'{sublayer}_output_norm')
      y_BLD = norm(layout.stream(y_BLD))
    x_BLD = layout.stream(x_BLD + drop(y_BLD))
    if self.places.stream:
      x_BLD = layout.stream(self.norm(name=f'{sublayer}_norm')(x_BLD))
    return x_BLD


def _across(
  attention: nn.Module,
  h_BLD: jax.Array,
  context: Context,
  cache: Cache | None,
  layer: jax.Array,
) -> Result:
  """Cross-attention; caches its keys and values if the cache has room."""
  seen = cache.cross if isinstance(cache, KVCache) else None
  y_BLD, seen = attention(h_BLD, context, seen, layer=layer, cross=True)
  if isinstance(cache, KVCache) and cache.cross is not None:
    cache = cache._replace(cross=seen)
  return y_BLD, cache


# The norm of queries and keys, before their rotation: none; of each head by
# itself, with a scale that the heads share; of all heads together.
QkNorm = Literal['none', 'per_head', 'all_heads']


class BlockChoice(NamedTuple):
  """Makes a block from the rest of its fields.

  If the blocks do not normalise the residual stream itself, another norm
  follows the last block. Without `places` the layers are blocks themselves.
  """

  places: Places | None
  qk_norm: QkNorm

  @property
  def make(self) -> Factory:
    """A `Block`, given the rest of its fields."""
    assert self.places is not None
    return functools.partial(Block, self.places)

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


def parallel(
  num_norms: Literal[1, 2] = 1, qk_norm: QkNorm = 'none'
) -> BlockChoice:
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
  matmul: Int8 | None = None

  @nn.compact
  def __call__(self, x_BLD: jax.Array, decoding: bool = False) -> jax.Array:
    """[B, L, D] -> [B, L, D]; `decoding` matters to experts only."""
    del decoding
    dense = functools.partial(
      Dense, bias=self.bias, dtype=self.dtype, matmul=self.matmul
    )
    widen = functools.partial(
      dense, self.d_ff, ('embed', 'mlp'), self.inits.kernel
    )
    h_BLF = widen(name='in')(x_BLD)
    if self.form.gated:
      h_BLF *= self.form.activation(widen(name='gate')(x_BLD))
    else:
      h_BLF = self.form.activation(h_BLF)
    narrow = dense(
      x_BLD.shape[-1], ('mlp', 'embed'), self.inits.residual, name='out'
    )
    return narrow(h_BLF)


class FfnChoice(NamedTuple):
  """A feed-forward layer, and its router if it has experts."""

  make: Callable[..., nn.Module]
  router: Router | None = None


def dense(form: str) -> FfnChoice:
  """A dense layer of a form of `FORMS`."""
  return FfnChoice(functools.partial(FeedForward, FORMS[form]))


def switch(
  num_experts: Count,
  expert: Annotated[str, OneOf((*FORMS,))] = 'relu',
  top_k: Count = 1,
  capacity_factor: Any = 1.25,
  eval_capacity_factor: Any = 'none',
  capacity: Whole = 0,
  group_size: Whole = 0,
  jitter: Fraction = 0.01,
  balance: Weight = 0.01,
  z_loss: Weight = 0.0,
  renormalize: bool | None = None,
  router_bias: bool = False,
) -> FfnChoice:
  """A mixture of experts in place of a feed-forward layer.

  Args:
    num_experts: each has its own matrices, of width d_ff.
    expert: the form of each: the name of a feed-forward layer.
    top_k: experts of each token: 1 is Switch, 2 GShard and Mixtral.
    capacity_factor: in training an expert takes at most
      tokens of a group / num_experts * capacity_factor of them, in token
      order; the others skip the layer. 'none': it takes all.
    eval_capacity_factor: the same for evaluation. Generation drops nothing.
    capacity: the most tokens that an expert takes, instead of both factors.
    group_size: tokens of a group; 0: a row.
    jitter: in training the router's input is multiplied by random numbers
      from 1 - jitter to 1 + jitter.
    balance: alpha, the factor of the load-balancing loss.
    z_loss: factor of the router's z-loss (Zoph et al., 2022: ST-MoE, eq. 5).
    renormalize: the gates of a token sum to one, instead of being
      probabilities; None: if there are several.
    router_bias: whether the router has a bias.
  """
  if top_k > num_experts:
    most = f'must be from 1 to num_experts={num_experts}'
    raise _nonsense('top_k', top_k, most)
  router = Router(
    num_experts,
    top_k,
    _factor('capacity_factor', capacity_factor),
    _factor('eval_capacity_factor', eval_capacity_factor),
    capacity,
    group_size,
    jitter,
    balance,
    z_loss,
    top_k > 1 if renormalize is None else renormalize,
    router_bias,
  )
  return FfnChoice(functools.partial(Switch, router, FORMS[expert]), router)


def _factor(name: str, value: Any) -> float | None:
  """A capacity factor; None: no bound."""
  if value == 'none':
    return None
  if ranges.declared(Positive).problem(value):
    raise _nonsense(name, value, "must be a positive number or 'none'")
  return float(value)


def _nonsense(name: str, value: Any, remedy: str) -> UsageError:
  return UsageError(f'model.ffn: switch({name}={value!r}): {remedy}')
