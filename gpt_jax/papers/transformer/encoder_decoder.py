# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder (Vaswani et al., 2017), of T5 and BART too.

`Row.extra` has `source`, the `Row` of the encoder; or, where the encoder ran
before, `encoded` [B, M, D], and a source without tokens.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.attend import Request, attend_across
from gpt_jax.core.nn.attention import Attention
from gpt_jax.core.nn.attention_dropout import AttentionDropout
from gpt_jax.core.nn.block import Block, Result
from gpt_jax.core.nn.build import encoder_sizes, make_bias
from gpt_jax.core.nn.kv_cache import Cache, KVCache, attend_to_cache, cache_of
from gpt_jax.core.nn.masks import Tokens, bidirectional, visible
from gpt_jax.core.nn.row import Context, Row, Visibility
from gpt_jax.core.nn.stack import Caches, Sharing, Stack
from gpt_jax.core.nn.transformer import Output, Transformer
from gpt_jax.core.spec import UsageError


class EncoderDecoderModel(Transformer):
  """An encoder, and a decoder that attends to its output."""

  in_stages = False

  def __call__(self, row: Row | jax.Array, caches: Caches | None = None) -> Output:
    """Runs both stacks.

    Args:
      row: of the decoder, with a `source`: see above. With documents, each
        token sees the encoder's output for its own segment; not with caches.
      caches: if they have room for the encoder's output, only the first call
        needs it.
    """
    row = Row.of(row)
    source = row.extra.get('source', Row(None))
    encoded_BMD = row.extra.get('encoded')
    if self.is_initializing():
      encoded_BMD = self.encode(Row(row.tokens_BL))
    elif encoded_BMD is None and source.tokens_BL is not None:
      encoded_BMD = self.encode(source)
    seen = {
      'encoded': encoded_BMD,
      'source_real': source.real_BL,
      'source_segments': source.segments_BL,
    }
    out = super().__call__(row._replace(extra=seen), caches)
    return out._replace(memory_BMD=encoded_BMD)

  @classmethod
  def row(cls, batch: Mapping[str, Any], **extra: Any) -> Row:
    """The decoder's row, with the `sources` of a batch."""
    source = Row(
      batch['sources'],
      positions_BL=batch.get('source_positions'),
      real_BL=batch.get('source_mask'),
      segments_BL=batch.get('source_segments'),
    )
    return super().row(batch, source=source, **extra)

  def encode(self, row: Row | jax.Array) -> jax.Array:
    """Runs the encoder: ids to [B, M, D].

    With `num_source_layers` its input is the output of a source encoder instead
    of the tokens' vectors (BART, section 3.4).
    """
    row = Row.of(row)
    if self.num_source_layers:
      states_BMD = self.source(row).hidden_BLD
      x_BMD = self._inputs.placed(states_BMD, row.positions, side='encoder_')
      self.sow('intermediates', 'encoder_embedded', x_BMD)
    else:
      x_BMD = self.embedded(row, side='encoder_')
    context = self.context(row, stack='encoder')
    if isinstance(self.encoder, MirroredStack):
      params = self.decoder.variables.get('params')
      x_BMD = self.encoder(x_BMD, context, params)
    else:
      x_BMD, _ = self.encoder(x_BMD, context, None)
    if self._choices.block.final_norm:
      x_BMD = self.encoder_norm(x_BMD)
    return layout.gather(x_BMD)

  def setup_stacks(self):
    """Creates both stacks, and the source encoder if there is one."""
    choices, sizes = self._choices, encoder_sizes(self)
    super().setup_stacks()
    self.encoder = super().make_stack(
      choices.encoder,
      self.num_encoder_layers,
      sizes,
      stack=MirroredStack if choices.share.stacks else Stack,
    )
    if choices.position.bias:
      self.encoder_bias = make_bias(self, choices.encoder, sizes)
    if choices.block.final_norm:
      self.encoder_norm = choices.norm()
    if self.num_source_layers:
      fields = {n: getattr(self, n) for n in Transformer.__annotations__}
      self.source = Transformer(
        **fields
        | {
          **sizes._asdict(),
          'encoder_num_heads': 0,
          'encoder_d_ff': 0,
          'vocab_size': self.source_vocab_size or self.vocab_size,
          'num_layers': self.num_source_layers,
          'num_encoder_layers': 0,
          'num_source_layers': 0,
          'source_vocab_size': 0,
          'attention': 'bidirectional',
          'encoder_attention': None,
          'ffn': self.encoder_ffn or self.ffn,
          'output': 'tied',
        }
      )

  def make_stack(self, *args: Any, **fields: Any) -> Stack:
    """The decoder, of blocks with cross-attention."""
    return super().make_stack(*args, block=CrossBlock, **fields)


class CrossBlock(Block):
  """A block with attention to the encoder's output between its sublayers."""

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, cache: Cache | None, layer: jax.Array
  ) -> Result:
    """[B, L, D] -> [B, L, D] and the cache, as `Block`."""
    if self.places.parallel:
      raise UsageError(
        'model.block=parallel: has no cross-attention; take pre or post for an '
        'encoder-decoder, or set model.num_encoder_layers=0'
      )
    drop = self.residual_dropout()
    h_BLD = layout.gather(self.norm_before('attention')(x_BLD))
    y_BLD, cache = self.attention(name='attention')(h_BLD, context, cache, layer=layer)
    x_BLD = self.add('attention', x_BLD, y_BLD, drop)
    h_BLD = layout.gather(self.norm_before('cross')(x_BLD))
    attention: Any = self.attention
    across = CrossAttention(*attention.args, **attention.keywords, name='cross')
    before = cache.cross if isinstance(cache, KVCache) else None
    y_BLD, of_encoder = across(h_BLD, context, before, layer=layer)
    if isinstance(cache, KVCache) and cache.cross is not None:
      cache = cache._replace(cross=of_encoder)
    x_BLD = self.add('cross', x_BLD, y_BLD, drop)
    h_BLD = layout.gather(self.norm_before('ffn')(x_BLD))
    decoding = isinstance(cache, KVCache)
    y_BLD = self.ffn(name='ffn')(h_BLD, decoding=decoding)
    return self.add('ffn', x_BLD, y_BLD, drop), cache


class CrossAttention(Attention):
  """Queries from `x_BLD`, keys and values from the encoder's output."""

  def __call__(
    self, x_BLD: jax.Array, context: Context, cache: Cache | None = None, *, layer: jax.Array
  ) -> tuple[jax.Array, KVCache]:
    """[B, L, D] and the encoder's keys and values, or those in `cache`."""
    q_BLHK = self.projections.queries(x_BLD)
    keys_and_values, encoded_BMD = None, context.extra['encoded']
    if encoded_BMD is not None:
      keys_and_values = (self.projections.keys(encoded_BMD), self.projections.values(encoded_BMD))
    y_BLHK, cache = attend_to_encoded(
      q_BLHK,
      keys_and_values,
      context,
      cache,
      scale=self.scale(q_BLHK.shape[-1], layer),
      softcap=self.scale.softcap,
      dropout=self.drawn_dropout(len(q_BLHK)),
      run=self.attend,
    )
    return self.project_out(y_BLHK, x_BLD), cache


def attend_to_encoded(
  q_BLHK: jax.Array,
  keys_and_values: tuple[jax.Array, jax.Array] | None,
  context: Context,
  cache: Cache | None,
  *,
  scale: float | jax.Array = 1.0,
  softcap: float = 0.0,
  dropout: AttentionDropout | None = None,
  run: Callable[[Request], jax.Array] = attend_across,
) -> tuple[jax.Array, KVCache]:
  """Attends to the encoder's output: [B, L, H, K], and its cache.

  Args:
    q_BLHK: queries; several rows may share a row of the cache.
    keys_and_values: of the encoder's output, [B, M, G, K] each; None: `cache`
      has them.
    context: says which of its tokens are seen.
    cache: ignored with `keys_and_values`.
    run: computes the request for `keys_and_values`.
  """
  shape = q_BLHK.shape
  if keys_and_values is not None:
    cache = cache_of(*keys_and_values)
  assert isinstance(cache, KVCache)
  # Beams share a row of keys and values: they count as further queries.
  B = len(cache.value_BGMK)
  q_BLHK = q_BLHK.reshape(B, -1, *shape[2:])
  keys = Tokens(
    jnp.arange(cache.num_slots)[None],
    segments=context.extra.get('source_segments'),
    real=context.extra.get('source_real'),
  )
  segments_BL = context.visibility.segments_BL
  if keys_and_values is None:
    places_1L = jnp.arange(q_BLHK.shape[1])[None]
    queries = Tokens(places_1L, segments=segments_BL)
    y_BLHK = attend_to_cache(
      q_BLHK,
      cache.key_BGKM,
      cache.value_BGMK,
      mask=visible(None, queries, keys),
      scale=scale,
      softcap=softcap,
    )
  else:
    k_BMGK, v_BMGK = keys_and_values
    request = Request(
      q_BLHK=q_BLHK,
      k_BLGK=k_BMGK,
      v_BLGK=v_BMGK,
      pattern=bidirectional(),
      visibility=Visibility(segments_BL=segments_BL),
      scale=scale,
      dropout=dropout,
      softcap=softcap,
      keys=keys,
    )
    y_BLHK = run(request)
  return y_BLHK.reshape(*shape[:3], -1), cache


# An encoder with the decoder's parameters.


def stacks() -> Sharing:
  """Attention, ffn and their norms, shared by encoder and decoder.

  Layer i of one has the parameters of layer i of the other (T5, section 3.2.2).
  """
  return Sharing(stacks=True)


class MirroredStack(Stack):
  """Has no parameters, but is called with those of the decoder's layers."""

  @nn.compact
  def __call__(self, x_BLD: jax.Array, context: Context, params: Any) -> jax.Array:
    """Runs without the decoder's cross-attention: [B, L, D] -> [B, L, D]."""
    if self.is_initializing():  # the decoder has none yet
      return x_BLD
    rngs = {}
    if self.has_rng('dropout'):
      rngs = {'dropout': self.make_rng('dropout')}
    # Unattached, with the name that it has in messages.
    fields = {n: getattr(self, n) for n in Stack.__annotations__}
    stack = Stack(**fields | {'parent': None, 'name': 'encoder'})
    (x_BLD, _), sown = stack.apply(
      {'params': _without_cross(nn.meta.unbox(params))},
      x_BLD,
      context,
      None,
      rngs=rngs,
      mutable=self.sown(),
    )
    for collection, values in sown.items():
      for name, value in values.items():
        self.put_variable(collection, name, value)
    return x_BLD


def _without_cross(params: Any) -> Any:
  """The parts of all blocks without cross-attention."""
  return {
    period: {
      block: {n: x for n, x in parts.items() if not n.startswith('cross')}
      for block, parts in blocks.items()
    }
    for period, blocks in params.items()
  }
