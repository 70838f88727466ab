# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Transformer: embeddings, a stack of blocks, scores for the vocabulary.

One module for decoders, encoders and encoder-decoders. Its fields are the
schema of `config.model`: `Transformer(**config.model)`.
Legend of array suffixes, here and in all of `nn/`: B batch, L length,
M memory length, D model, H heads, G key/value heads, K head size, F hidden,
V vocabulary, R heads for each key/value head, W width of a cluster's vectors;
`routing` and `moe` have those of experts.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax import spec
from gpt_jax.nn import layout
from gpt_jax.nn.adaptive import AdaptiveEmbedding
from gpt_jax.nn.adaptive import Clusters as Clusters
from gpt_jax.nn.attention import Attention
from gpt_jax.nn.backends import BACKENDS
from gpt_jax.nn.bias import BIASES
from gpt_jax.nn.block import BLOCKS
from gpt_jax.nn.context import Context, KVCache
from gpt_jax.nn.context import SegmentMemory as SegmentMemory
from gpt_jax.nn.dot_product import Visibility
from gpt_jax.nn.dropout import DROPOUTS
from gpt_jax.nn.embed import INPUTS, Embedding
from gpt_jax.nn.embed import OUTPUTS as OUTPUTS
from gpt_jax.nn.ffn import FFNS as FFNS
from gpt_jax.nn.head import Head
from gpt_jax.nn.init import INITS
from gpt_jax.nn.masks import PATTERNS as PATTERNS
from gpt_jax.nn.norm import NORMS
from gpt_jax.nn.pattern import period as period
from gpt_jax.nn.positions import POSITIONS
from gpt_jax.nn.scales import SCALES
from gpt_jax.nn.stack import Caches, Stack
from gpt_jax.nn.stack import layer_outputs as layer_outputs
from gpt_jax.nn.stack import layer_routers as layer_routers
from gpt_jax.spec import UsageError

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}


class Output(NamedTuple):
  """What a forward pass gives.

  Attributes:
    hidden_BLD: the last hidden states, after the last norm.
    caches: updated, where caches were given.
    memory_BMD: the encoder's last hidden states, in an encoder-decoder.
  """

  hidden_BLD: jax.Array
  caches: Caches
  memory_BMD: jax.Array | None = None


class Transformer(nn.Module):
  """`gpt_jax/config/defaults.py` says what each field means."""

  vocab_size: int
  context_length: int
  num_layers: int
  num_encoder_layers: int
  d_model: int
  num_heads: int
  num_kv_heads: int
  head_size: int
  d_ff: int
  input: str
  position: str
  attention: str
  attention_scale: str
  attention_backend: str
  ffn: str
  encoder_ffn: str | None
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
    build = spec.build
    self._dtype = DTYPES[self.dtype]
    self._inits = build('model.init_weights', self.init_weights, INITS)(
      self.num_layers
    )
    self._rates = build('model.dropout', self.dropout, DROPOUTS)
    self._input = build('model.input', self.input, INPUTS)
    self._block = build('model.block', self.block, BLOCKS)
    self._norm = build('model.norm', self.norm, NORMS)
    self._position = build('model.position', self.position, POSITIONS)
    inits, position = self._inits, self._position

    table = functools.partial(
      Embedding,
      d_model=self.d_model,
      initializer=inits.embedding,
      dtype=self._dtype,
    )
    if self._input.clusters is None:
      self.embed = table(self.vocab_size)
    else:
      self.embed = AdaptiveEmbedding(
        self._input.clusters, self.vocab_size, self.d_model, inits, self._dtype
      )
    if self._input.num_token_types:
      # The name in checkpoints since before token types were called so.
      self.token_types = table(self._input.num_token_types, name='segments')
    if self._input.norm:
      self.embed_norm = self._norm()
    if position.embed:
      self.positions = position.embed(
        context_length=self.context_length, initializer=inits.position
      )
    self.embed_dropout = nn.Dropout(self._rates.embedding)
    self.decoder = self._stack(
      self.attention,
      self.ffn,
      self.num_layers,
      cross=self.num_encoder_layers > 0,
    )
    if position.bias:
      self.decoder_bias = self._bias(self.attention)
    if self._block.final_norm:
      self.final_norm = self._norm()
    if self.num_encoder_layers:
      self.encoder = self._stack(
        'bidirectional',
        self.encoder_ffn or self.ffn,
        self.num_encoder_layers,
        cross=False,
      )
      if position.bias:
        self.encoder_bias = self._bias('bidirectional')
      if self._block.final_norm:
        self.encoder_norm = self._norm()
    self._head = Head(
      self.output,
      self._input.clusters,
      self.vocab_size,
      self.d_model,
      self._norm,
      inits,
      self._dtype,
    )
    # Its parameters stand beside the others.
    nn.share_scope(self, self._head)

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
    memory_BMD: jax.Array | None = None,
  ) -> Output:
    """Runs the stack, or both stacks.

    Sows `embedded` and, in the stacks, the output of each layer into the
    collection `intermediates`: see `layer_outputs`.

    Args:
      tokens_BL: int32 ids; the decoder's, in an encoder-decoder.
      positions_BL: int32, where each token stands; None means 0, 1, 2, ...
      caches: of `caches.init_caches`, when decoding; needs `positions_BL`.
        After a call with `memory_BMD` those with room for it do without. Or
        of `caches.init_memories`, or the segment before; takes no positions
        or masks.
      mask_BL: bool, False for padding.
      segments_BL: the document of each token of a packed row.
      token_types_BL: of each token, for `input='tokens(token_types=2)'`;
        without these, a token of the vocabulary whose vector is added (GPT-1
        and GPT-2 in Hugging Face).
      encoder_tokens_BM: ids for the encoder.
      encoder_mask_BM: bool, False for padding.
      memory_BMD: from `encode`, instead of `encoder_tokens_BM`.
    """
    if memory_BMD is None and encoder_tokens_BM is not None:
      memory_BMD = self.encode(encoder_tokens_BM, encoder_mask_BM)
    if self.is_initializing() and self.num_encoder_layers:
      memory_BMD = self.encode(tokens_BL)
    x_BLD = self._embed('embedded', tokens_BL, positions_BL, token_types_BL)
    context = Context(
      positions_BL,
      Visibility(mask_BL, segments_BL),
      self._bias_of('decoder_bias', tokens_BL, positions_BL, caches),
      memory_BMD,
      encoder_mask_BM,
    )
    x_BLD, caches = self.decoder(x_BLD, context, caches)
    if self._block.final_norm:
      x_BLD = self.final_norm(x_BLD)
    x_BLD = layout.gather(x_BLD)
    if self.is_initializing():
      self.logits(x_BLD)
    return Output(x_BLD, caches, memory_BMD)

  def encode(
    self, tokens_BM: jax.Array, mask_BM: jax.Array | None = None
  ) -> jax.Array:
    """Runs the encoder of an encoder-decoder: ids to [B, M, D]."""
    x_BMD = self._embed('encoder_embedded', tokens_BM, None, None)
    bias = self._bias_of('encoder_bias', tokens_BM, None, None)
    context = Context(None, Visibility(mask_BM), bias)
    x_BMD, _ = self.encoder(x_BMD, context, None)
    if self._block.final_norm:
      x_BMD = self.encoder_norm(x_BMD)
    return layout.gather(x_BMD)

  @property
  def output_softcap(self) -> float:
    """What bounds the logits: see `embed.OutputHead`."""
    return spec.build('model.output', self.output, OUTPUTS).softcap

  def output_table(self) -> jax.Array:
    """The matrix [V, D] that scores the vocabulary: logits = x table^T.

    With a bias it is [V, D + 1], for hidden states followed by a one: see
    `output_hidden`. The products are bounded by `output_softcap` then. An
    adaptive softmax is no such product: see `logits`.
    """
    return self._head.table(self.embed)

  def output_hidden(self, hidden: jax.Array) -> jax.Array:
    """Hidden states [..., D] as `output_table` expects them."""
    return self._head.hidden(hidden)

  def logits(self, hidden: jax.Array) -> jax.Array:
    """[..., D] -> float32 logits [..., V]; log-probabilities if adaptive."""
    return self._head.logits(hidden, self.embed)

  def _stack(
    self, attention: str, ffn: str, num_layers: int, *, cross: bool
  ) -> Stack:
    """A stack whose layers follow both lists and the fields of the model."""
    biases = spec.build('model.bias', self.bias, BIASES)
    of_ffn = {
      'd_ff': self.d_ff,
      'bias': biases.ffn,
      'inits': self._inits,
      'dtype': self._dtype,
    }
    make_attention = functools.partial(
      Attention,
      position=self._position,
      num_heads=self.num_heads,
      num_kv_heads=self.num_kv_heads,
      head_size=self.head_size,
      scale=spec.build('model.attention_scale', self.attention_scale, SCALES),
      backend=spec.build(
        'model.attention_backend', self.attention_backend, BACKENDS
      ),
      bias_in=biases.qkv,
      bias_out=biases.out,
      dropout=self._rates.attention,
      inits=self._inits,
      dtype=self._dtype,
      norm=self._norm,
      qk_norm=self._block.qk_norm,
    )
    blocks = tuple(
      functools.partial(
        self._block.make,
        norm=self._norm,
        attention=functools.partial(make_attention, layer.attention),
        ffn=functools.partial(layer.ffn.make, **of_ffn),
        dropout=self._rates.residual,
        cross=cross,
      )
      for layer in period(attention, ffn)
    )
    return Stack(blocks, num_layers, self.remat, self.loop)

  def _bias(self, attention: str) -> nn.Module:
    """The module that gives all layers of a stack their bias on the scores."""
    patterns = [layer.attention for layer in period(attention, self.ffn)]
    if any(p.causal != patterns[0].causal for p in patterns):
      raise UsageError(
        f'model.attention={attention!r}: mixes causal and bidirectional layers,'
        f' which cannot share the bias of model.position={self.position!r}; '
        'take one kind, or another position'
      )
    return self._position.bias(
      num_heads=self.num_heads,
      head_size=self.head_size,
      pattern=patterns[0],
      initializer=self._inits.position,
    )

  def _bias_of(
    self,
    name: str,
    tokens_BL: jax.Array,
    positions_BL: jax.Array | None,
    caches: Caches | None,
  ) -> jax.Array | None:
    if not self._position.bias:
      return None
    query = jnp.arange(tokens_BL.shape[1])[None]
    if positions_BL is not None:
      query = positions_BL
    key = query
    if caches is not None and isinstance(caches[0], KVCache):
      key = jnp.arange(caches[0].key_BMGK.shape[-3])[None]
    return getattr(self, name)(query, key)

  def _embed(
    self,
    name: str,
    tokens_BL: jax.Array,
    positions_BL: jax.Array | None,
    token_types_BL: jax.Array | None,
  ) -> jax.Array:
    x_BLD = self.embed(tokens_BL)
    x_BLD *= jnp.asarray(self._input.scale(self.d_model), x_BLD.dtype)
    if self._input.num_token_types:
      if token_types_BL is None:
        token_types_BL = jnp.zeros_like(tokens_BL)
      x_BLD += self.token_types(token_types_BL)
    elif token_types_BL is not None:
      x_BLD += self.embed(token_types_BL)
    if self._position.embed:
      x_BLD = self.positions(x_BLD, positions_BL)
    if self._input.norm:
      x_BLD = self.embed_norm(x_BLD)
    x_BLD = self.embed_dropout(x_BLD, deterministic=not self.has_rng('dropout'))
    self.sow('intermediates', name, x_BLD)
    return x_BLD


def parameter_shapes(model: Transformer) -> Any:
  """Shapes and dtypes of the parameters, as a plain tree; no memory."""
  tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  shapes: Any = jax.eval_shape(model.init, jax.random.key(0), tokens)
  return nn.meta.unbox(shapes['params'])
