# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Transformer: embeddings, a stack of blocks, scores for the vocabulary.

One module for decoders, encoders and encoder-decoders. Its fields are the
schema of `config.model`: `Transformer(**config.model)`.
Legend of array suffixes, here and in all of `nn/`: B batch, L length,
M memory length, D model, H heads, G key/value heads, K head size, F hidden,
V vocabulary, R heads for each key/value head, W width of a cluster's vectors;
`moe` has those of experts.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn import layout
from gpt_jax.nn.attend import ByDistance, Context, KVCache, Visibility
from gpt_jax.nn.backends import takes_distances
from gpt_jax.nn.bigbird import ExtraTokens
from gpt_jax.nn.build import (
  ModelChoices,
  decoder_sizes,
  encoder_sizes,
  make_bias,
  make_stack,
  requests,
  source_fields,
)
from gpt_jax.nn.embed import Inputs
from gpt_jax.nn.heads import Head
from gpt_jax.nn.masks import Order
from gpt_jax.nn.positions import Model
from gpt_jax.nn.stack import Caches
from gpt_jax.spec import UsageError

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}


class Output(NamedTuple):
  """The result of a forward pass.

  Attributes:
    hidden_BLD: the last hidden states, after the last norm; with LSTMs of
      `directions='separate'` the forward states, then the backward ones.
    caches: the updated caches, if any were given.
    memory_BMD: the encoder's last hidden states, in an encoder-decoder.
  """

  hidden_BLD: jax.Array
  caches: Caches
  memory_BMD: jax.Array | None = None


class Transformer(nn.Module):
  """The model; docs/fields.md explains its fields."""

  vocab_size: int
  context_length: int
  num_layers: int
  num_encoder_layers: int
  num_source_layers: int
  source_vocab_size: int
  d_model: int
  num_heads: int
  num_kv_heads: int
  head_size: int
  value_size: int
  encoder_num_heads: int
  d_ff: int
  encoder_d_ff: int
  input: str
  position: str
  attention: str
  encoder_attention: str | None
  attention_scale: str
  attention_backend: str
  ffn: str
  encoder_ffn: str | None
  norm: str
  block: str
  bias: str
  output: str
  dropout: str
  matmul: str
  init_weights: str
  dtype: str
  remat: str
  loop: str
  share: str
  pipeline: str = 'circular'

  def setup(self):
    """Resolves the call-strings and creates the parts."""
    self._dtype = DTYPES[self.dtype]
    choices = self._choices = ModelChoices.of(self)
    norm, inits = choices.norm, choices.init_weights
    # Of two language models in one, which share the tables.
    self._width = self.d_model // (2 if choices.separate else 1)
    self._inputs = Inputs(
      choices.input,
      choices.position,
      self.vocab_size,
      self.context_length,
      self._width,
      norm,
      choices.dropout,
      inits,
      self._dtype,
      encoder=self.num_encoder_layers > 0,
      encoder_vocab_size=0
      if self.num_source_layers
      else self.source_vocab_size,
    )
    if choices.position.shared:
      sizes = self._dtype, self.num_layers
      self._shared = choices.position.shared(
        Model(self, norm, inits, *sizes, choices.causal)
      )
      nn.share_scope(self, self._shared)
    self._setup_stacks()
    self._head = Head(
      choices.output,
      choices.input,
      self.vocab_size,
      self._width,
      norm,
      inits,
      self._dtype,
    )
    # The parameters of the input are direct children of this module.
    nn.share_scope(self, self._inputs)
    nn.share_scope(self, self._head)

  def _setup_stacks(self):
    """Creates the decoder and, in an encoder-decoder, the encoder."""
    make = functools.partial(make_stack, self, self._dtype)
    choices, sizes = self._choices, decoder_sizes(self)
    position = choices.position
    self.decoder = make(
      choices.decoder,
      self.num_layers,
      sizes,
      cross=self.num_encoder_layers > 0,
    )
    if choices.num_extra:
      if position.terms:
        raise UsageError(
          f'model.position={self.position!r}: scores by distance, and the '
          f'extra tokens of model.attention={self.attention!r} have no place; '
          'take learned, sinusoidal, rope or none'
        )
      self.extra_tokens = ExtraTokens(
        choices.num_extra, choices.init_weights.embedding, self._dtype
      )
    if position.bias:
      self.decoder_bias = make_bias(self, choices.decoder, sizes)
    if choices.block.final_norm:
      self.final_norm = choices.norm()
    if self.num_encoder_layers:
      sizes = encoder_sizes(self)
      self.encoder = make(
        choices.encoder,
        self.num_encoder_layers,
        sizes,
        cross=False,
      )
      if position.bias:
        self.encoder_bias = make_bias(self, choices.encoder, sizes)
      if choices.block.final_norm:
        self.encoder_norm = choices.norm()
    if self.num_source_layers:
      fields = {n: getattr(self, n) for n in Transformer.__annotations__}
      self.source = Transformer(**source_fields(fields, sizes))

  def __call__(
    self,
    tokens_BL: jax.Array,
    positions_BL: jax.Array | None = None,
    caches: Caches | None = None,
    *,
    mask_BL: jax.Array | None = None,
    segments_BL: jax.Array | None = None,
    token_types_BL: jax.Array | None = None,
    encoder_tokens_BM: jax.Array | None = None,
    encoder_mask_BM: jax.Array | None = None,
    encoder_segments_BM: jax.Array | None = None,
    encoder_positions_BM: jax.Array | None = None,
    memory_BMD: jax.Array | None = None,
    prefix_B: jax.Array | None = None,
    visible_BLM: jax.Array | None = None,
    order: Order | None = None,
    predicted_BP: jax.Array | None = None,
    places_1L: jax.Array | None = None,
    cuts_BL: jax.Array | None = None,
  ) -> Output:
    """Runs the stack, or both stacks.

    Sows `embedded` and, in the stacks, the output of each layer into the
    collection `intermediates`: see `layer_outputs`.

    Args:
      tokens_BL: int32 ids; the decoder's, in an encoder-decoder. With
        `input='characters(...)'` those of each word's characters, [B, L, C].
      positions_BL: int32, position of each token; None means 0, 1, 2, ...
      caches: from `caches.init_caches`, when decoding; needs `positions_BL`.
        If they have room for `memory_BMD`, only the first call needs it. Or
        from `caches.init_memories` or the segment before; not with positions
        or packed rows.
      mask_BL: bool, False for padding.
      segments_BL: the document of each token of a packed row.
      token_types_BL: of each token, for `input='tokens(token_types=2)'`;
        without these, a token of the vocabulary whose vector is added (GPT-1
        and GPT-2 in Hugging Face).
      encoder_tokens_BM: ids for the encoder.
      encoder_mask_BM: bool, False for padding.
      encoder_segments_BM: of packed rows, with `segments_BL`: each token sees
        the encoder's output for its own segment. Not with caches.
      encoder_positions_BM: int32, as `positions_BL`.
      memory_BMD: from `encode`, instead of `encoder_tokens_BM`.
      prefix_B: int, number of tokens at the start of each row that see each
        other both ways; with caches of `init_caches`, one call must read the
        whole prefix.
      visible_BLM: bool, a mask on top of `attention`: which tokens of its row,
        or slots of the caches of `init_caches`, each token sees. All real
        tokens of a memory are visible.
      order: the same by numbers of each token, which kernels take too.
      predicted_BP: int32, the places of tokens that a second stream predicts
        (XLNet), which no token sees. Their states follow those of the row:
        `hidden_BLD` has L + P tokens, and so have the queries of
        `visible_BLM`, [B, L + P, L], and of `order`. With that, places differ.
      places_1L: int32 [1, L], the place of each token in its row, if they are
        not in order: see `build.zigzag`. All token arguments, and the hidden
        states, are in that order.
      cuts_BL: bool, tokens from which no gradient passes to the state before
        them, in recurrent layers: truncated back-propagation through time.

    Returns:
      The last hidden states, for `logits`, and caches if any were given.

    Raises:
      UsageError: the model's choices do not work with the arguments given.
    """
    if positions_BL is None:
      positions_BL = places_1L
    if memory_BMD is None and encoder_tokens_BM is not None:
      memory_BMD = self.encode(
        encoder_tokens_BM,
        encoder_mask_BM,
        segments_BM=encoder_segments_BM,
        positions_BM=encoder_positions_BM,
      )
    if self.is_initializing() and self.num_encoder_layers:
      memory_BMD = self.encode(tokens_BL)
    types_BL = token_types_BL
    if self._choices.position.segments:
      token_types_BL = None  # the layers use them instead
    x_BLD = self._embed('embedded', tokens_BL, positions_BL, token_types_BL)
    if predicted_BP is not None:
      if not self._choices.position.segments:
        raise UsageError(
          f'model.position={self.position!r}: a second stream knows places by '
          "distances alone; set model.position='xlnet'"
        )
      x_BLD = jnp.concatenate(
        [x_BLD, self._inputs.queries(predicted_BP)], axis=1
      )
      if types_BL is not None:
        of_predicted = jnp.take_along_axis(types_BL, predicted_BP, axis=1)
        types_BL = jnp.concatenate([types_BL, of_predicted], axis=1)
    visibility = Visibility(
      mask_BL, segments_BL, prefix_B, visible_BLM, places_1L, order
    )
    context = Context(
      positions_BL,
      visibility,
      token_types_BL=types_BL if self._choices.position.segments else None,
      predicted_BP=predicted_BP,
      bias=self._bias_of(
        'decoder_bias', tokens_BL, positions_BL, visibility, caches
      ),
      memory_BMD=memory_BMD,
      memory_mask_BM=encoder_mask_BM,
      memory_segments_BM=encoder_segments_BM,
      cuts_BL=cuts_BL,
    )
    if self._choices.position.shared:
      context = context._replace(shared=self._shared(x_BLD, context))
    if self._choices.num_extra:
      x_BLD, context = self.extra_tokens(x_BLD, context)
    x_BLD, new_caches = self.decoder(x_BLD, context, caches)
    x_BLD = x_BLD[:, self._choices.num_extra :]
    if self._choices.block.final_norm:
      x_BLD = self.final_norm(x_BLD)
    x_BLD = layout.gather(x_BLD)
    if self.is_initializing():
      self.logits(x_BLD[..., : self._width])
    return Output(x_BLD, new_caches, memory_BMD)

  def encode(
    self,
    tokens_BM: jax.Array,
    mask_BM: jax.Array | None = None,
    *,
    segments_BM: jax.Array | None = None,
    positions_BM: jax.Array | None = None,
  ) -> jax.Array:
    """Runs the encoder of an encoder-decoder: ids to [B, M, D].

    With `num_source_layers` its input is the output of a source encoder instead
    of the tokens' vectors (BART, section 3.4).

    The arguments are the `encoder_...` ones of `__call__`.
    """
    if self.num_source_layers:
      given = self.source(
        tokens_BM, positions_BM, mask_BL=mask_BM, segments_BL=segments_BM
      )
      x_BMD = self._inputs.placed(
        given.hidden_BLD, positions_BM, side='encoder_'
      )
      self.sow('intermediates', 'encoder_embedded', x_BMD)
    else:
      x_BMD = self._embed('encoder_embedded', tokens_BM, positions_BM, None)
    visibility = Visibility(mask_BM, segments_BM)
    bias = self._bias_of(
      'encoder_bias', tokens_BM, positions_BM, visibility, None
    )
    context = Context(positions_BM, visibility, bias)
    params = None
    if self.encoder.mirrored:
      params = self.decoder.variables.get('params')
    x_BMD, _ = self.encoder(x_BMD, context, None, params)
    if self._choices.block.final_norm:
      x_BMD = self.encoder_norm(x_BMD)
    return layout.gather(x_BMD)

  @property
  def output_softcap(self) -> float:
    """The bound of the logits: see `heads.OutputHead`."""
    return ModelChoices.of(self).output.softcap

  def output_table(self) -> jax.Array:
    """The matrix [V, D] that scores the vocabulary: logits = x table^T.

    With a bias it is [V, D + 1], for hidden states followed by a one; a tied
    one is as wide as the embeddings: see `output_hidden`. `output_softcap` then
    bounds the products. An adaptive softmax is not such a product: see
    `logits`.
    """
    return self._head.table(self._inputs)

  def output_hidden(self, hidden: jax.Array) -> jax.Array:
    """Hidden states [..., D] as `output_table` expects them."""
    return self._head.hidden(hidden, self._inputs)

  def logits(self, hidden: jax.Array) -> jax.Array:
    """[..., D] -> float32 logits [..., V]; log-probabilities if adaptive.

    Args:
      hidden: `Output.hidden_BLD`, or some of it.

    Returns:
      float32 [..., V].

    Raises:
      TypeError: the last dimension of `hidden` is not the model's width.
    """
    return self._head.logits(hidden, self._inputs)

  def nll(self, hidden: jax.Array, targets: jax.Array) -> jax.Array:
    """-log P of an adaptive softmax: [..., D] and ids [...] to [...]."""
    return self._head.nll(hidden, targets, self._inputs)

  def _bias_of(
    self,
    name: str,
    tokens_BL: jax.Array,
    positions_BL: jax.Array | None,
    visibility: Visibility,
    caches: Caches | None,
  ) -> jax.Array | ByDistance | None:
    if not self._choices.position.bias:
      return None
    L = tokens_BL.shape[1]
    query = jnp.arange(L)[None] if positions_BL is None else positions_BL
    key = query
    if caches is not None and isinstance(caches[0], KVCache):
      key = jnp.arange(caches[0].num_slots)[None]
    elif self._takes_distances(name, tokens_BL, positions_BL, visibility):
      # The last token of a row among the keys of one nearly twice as long.
      last_11, keys_1D = jnp.array([[L - 1]]), jnp.arange(2 * L - 1)[None]
      strip_1H1D = getattr(self, name)(last_11, keys_1D)
      return ByDistance(strip_1H1D[0, :, 0])
    return getattr(self, name)(query, key)

  def _takes_distances(
    self,
    name: str,
    tokens_BL: jax.Array,
    positions_BL: jax.Array | None,
    visibility: Visibility,
  ) -> bool:
    """Whether the layers of a stack take a bias as numbers of distances."""
    choices = self._choices
    if not choices.position.by_distance or self.is_initializing():
      return False
    # Positions in packed documents are as far apart as places in the row.
    packed = visibility.segments_BL is not None and not visibility.uneven
    if visibility.places_1L is not None or not (positions_BL is None or packed):
      return False
    sizes, patterns = decoder_sizes(self), choices.attention
    if name == 'encoder_bias':
      sizes, patterns = encoder_sizes(self), choices.encoder_attention
    B, L = tokens_BL.shape[:2]
    return all(
      takes_distances(choices.attention_backend, request)
      for request in requests(self, sizes, patterns, (B, L))
    )

  def _embed(
    self,
    name: str,
    tokens_BL: jax.Array,
    positions_BL: jax.Array | None,
    token_types_BL: jax.Array | None,
  ) -> jax.Array:
    side = name.removesuffix('embedded')
    x_BLD = self._inputs(tokens_BL, positions_BL, token_types_BL, side=side)
    if self._choices.separate:
      x_BLD = jnp.concatenate([x_BLD, x_BLD], axis=-1)
    self.sow('intermediates', name, x_BLD)
    return x_BLD


def parameter_shapes(model: Transformer) -> Any:
  """Shapes and dtypes of the parameters, as a plain tree; allocates nothing.

  Traced once for each model; the tree is shared, so do not modify it.
  """
  # Flax modules are hashable, which their type does not say.
  known: Any = model
  return _traced_shapes(known)


@functools.cache
def _traced_shapes(model: Any) -> Any:
  tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  shapes: Any = jax.eval_shape(model.init, jax.random.key(0), tokens)
  return nn.meta.unbox(shapes['params'])
