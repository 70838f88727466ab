# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Transformer: embeddings, a stack of blocks, scores for the vocabulary.

Its fields are the schema of `config.model`. A paper that changes the flow has a
model of its own, with the same fields, that composes the same parts:
`make_model(**config.model)` takes the class that the fields ask for.
Legend of array suffixes, here and in all of `nn/`: B batch, L length,
M memory length, D model, H heads, G key/value heads, K head size, F hidden,
V vocabulary, R heads for each key/value head, W width of a cluster's vectors;
`moe` has those of experts.
"""

import functools
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn import backends, layers, layout
from gpt_jax.core.nn.attend import ByDistance
from gpt_jax.core.nn.backends import Asked
from gpt_jax.core.nn.build import (
  Layer,
  LayerSizes,
  ModelChoices,
  decoder_sizes,
  make_bias,
  make_stack,
)
from gpt_jax.core.nn.choices import MODELS
from gpt_jax.core.nn.embed import Inputs
from gpt_jax.core.nn.heads import Head
from gpt_jax.core.nn.kv_cache import KVCache
from gpt_jax.core.nn.row import Context, Row
from gpt_jax.core.nn.stack import Caches, Stack
from gpt_jax.core.spec import UsageError

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}


class Output(NamedTuple):
  """The result of a forward pass.

  Attributes:
    hidden_BLD: the last hidden states, after the last norm.
    caches: the updated caches, if any were given.
    memory_BMD: the encoder's last hidden states, in an encoder-decoder.
  """

  hidden_BLD: jax.Array
  caches: Caches
  memory_BMD: jax.Array | None = None


class Transformer(nn.Module):
  """The model; docs/fields.md explains its fields.

  Attributes:
    in_stages: whether a mesh may split the layers over stages.
    cls_place: where a text's [CLS] stands, 'first' or 'last'.
  """

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

  in_stages = True
  cls_place = 'first'

  def __call__(self, row: Row | jax.Array, caches: Caches | None = None) -> Output:
    """Runs the stack.

    Sows `embedded` and the output of each layer into the collection
    `intermediates`: see `stack.layer_outputs`.

    Args:
      row: ids [B, L], or all that is known of them.
      caches: from `caches.init_caches`, when decoding; needs positions. Or a
        paper's, from token to token or from segment to segment.

    Returns:
      The last hidden states, for `logits`, and caches if any were given.

    Raises:
      UsageError: the model's choices do not work with the row.
    """
    row = Row.of(row)
    x_BLD = self.embedded(row)
    context = self.context(row, caches)
    x_BLD, caches = self.decoder(x_BLD, context, caches)
    return self.finished(x_BLD, caches)

  def setup(self):
    """Resolves the call-strings and creates the parts."""
    self._dtype = DTYPES[self.dtype]
    choices = self._choices = ModelChoices.of(self)
    self._inputs = Inputs(
      choice=choices.input,
      position=choices.position,
      vocab_size=self.vocab_size,
      context_length=self.context_length,
      d_model=self.embedding_width,
      norm=choices.norm,
      rates=choices.dropout,
      inits=choices.init_weights,
      dtype=self._dtype,
      encoder=self.num_encoder_layers > 0,
      encoder_vocab_size=0 if self.num_source_layers else self.source_vocab_size,
    )
    self.setup_stacks()
    self._head = Head(
      choice=choices.output,
      input=choices.input,
      vocab_size=self.vocab_size,
      d_model=self.embedding_width,
      norm=choices.norm,
      inits=choices.init_weights,
      dtype=self._dtype,
    )
    # The parameters of the input are direct children of this module.
    nn.share_scope(self, self._inputs)
    nn.share_scope(self, self._head)

  def setup_stacks(self):
    """Creates the decoder, with the bias of its scores and its last norm."""
    choices, sizes = self._choices, decoder_sizes(self)
    self.decoder = self.make_stack(choices.decoder, self.num_layers, sizes)
    if choices.position.bias:
      self.decoder_bias = make_bias(self, choices.decoder, sizes)
    if choices.block.final_norm:
      self.final_norm = choices.norm()

  def make_stack(
    self, layers: tuple[Layer, ...], num_layers: int, sizes: LayerSizes, **fields: Any
  ) -> Stack:
    """A stack that repeats `layers`: see `build.make_stack`."""
    return make_stack(self, self._dtype, layers, num_layers, sizes, **fields)

  @property
  def embedding_width(self) -> int:
    """The width of the vectors of tokens, and of what scores them."""
    return self.d_model

  @classmethod
  def row(cls, batch: Mapping[str, Any], **extra: Any) -> Row:
    """What the model reads of a batch: see `Objective.make_batch`.

    Args:
      batch: `inputs` [B, L], and optionally others of `Row`, by name.
      **extra: of `Row.extra`.
    """
    return Row(
      batch['inputs'],
      positions_BL=batch.get('positions'),
      real_BL=batch.get('mask'),
      segments_BL=batch.get('segments'),
      token_types_BL=batch.get('token_types'),
      prefix_B=batch.get('prefix'),
      order=batch.get('order'),
      places_1L=batch.get('places'),
      extra=extra,
    )

  def embedded(self, row: Row, side: str = '') -> jax.Array:
    """The input vectors of a row's tokens, [B, L, D].

    `side='encoder_'` uses the encoder's own parts in an encoder-decoder.
    """
    x_BLD = self._inputs(row.tokens_BL, row.positions, row.token_types_BL, side=side)
    self.sow('intermediates', f'{side}embedded', x_BLD)
    return x_BLD

  def context(self, row: Row, caches: Caches | None = None, stack: str = 'decoder') -> Context:
    """What all layers of a stack read, beside their input."""
    bias = self._bias(row, caches, stack)
    return Context(row.positions, row.visibility, bias, row.extra)

  def finished(self, x_BLD: jax.Array, caches: Caches) -> Output:
    """The output from that of the last layer."""
    if self._choices.block.final_norm:
      x_BLD = self.final_norm(x_BLD)
    x_BLD = layout.gather(x_BLD)
    if self.is_initializing():
      self.logits(x_BLD[..., : self.embedding_width])
    return Output(x_BLD, caches)

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

  def _bias(self, row: Row, caches: Caches | None, stack: str) -> jax.Array | ByDistance | None:
    """The bias of a stack's scores, if the position has one."""
    if not self._choices.position.bias:
      return None
    bias, L = getattr(self, f'{stack}_bias'), row.tokens_BL.shape[1]
    query = jnp.arange(L)[None] if row.positions is None else row.positions
    if caches is not None and isinstance(caches[0], KVCache):
      return bias(query, jnp.arange(caches[0].num_slots)[None])
    if not self._by_distance(row, stack):
      return bias(query, query)
    # The last token of a row among the keys of one nearly twice as long.
    last_11, keys_1D = jnp.array([[L - 1]]), jnp.arange(2 * L - 1)[None]
    return ByDistance(bias(last_11, keys_1D)[0, :, 0])

  def _by_distance(self, row: Row, stack: str) -> bool:
    """Whether the layers of a stack take a bias as numbers of distances."""
    choices, backend = self._choices, self._choices.attention_backend
    if not choices.position.by_distance or self.is_initializing():
      return False
    # Positions in packed documents are as far apart as places in the row.
    packed = row.segments_BL is not None and not row.visibility.uneven
    if row.places_1L is not None or not (row.positions_BL is None or packed):
      return False
    if backends.only_asks():
      return True
    if backend.choice and layout.platform() == 'cpu':
      return False  # auto takes no kernel there
    method = '__call__' if stack == 'decoder' else 'encode'
    return all(
      backends.takes_distances(backend, request)
      for layer, request in requests(self, row, method)
      if layer[0] in (stack, 'periods') and request.keys is None
    )


def model_class(fields: Any) -> type[Transformer]:
  """The class of a model with these fields, those of `config.model`."""
  choices = ModelChoices.of(fields)
  named = (choices.position.model, *(x.model for x in choices.attention))
  kinds: set[Any] = {kind for kind in named if kind}
  if fields.num_encoder_layers:
    kinds.add(MODELS['encoder_decoder'])
  if len(kinds) > 1:
    raise UsageError(
      f'model.position={fields.position!r}, model.attention='
      f'{fields.attention!r} and model.num_encoder_layers='
      f'{fields.num_encoder_layers} ask for different models; leave one out'
    )
  return kinds.pop() if kinds else Transformer


def make_model(**fields: Any) -> Transformer:
  """The model of these fields, those of `config.model`."""
  section = types.SimpleNamespace(**{'pipeline': 'circular', **fields})
  return model_class(section)(**fields)


# What the layers of a model ask of their backends, before anything runs.


def requests(model: Transformer, row: Row, method: str = '__call__') -> list[Asked]:
  """What each kind of layer asks for rows of these shapes, in training."""
  leaves, form = jax.tree.flatten(row)
  shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
  # Not those of layers that are unstacked.
  scanned: Any = model.clone(loop='scan', remat='none', parent=None, name=None)
  return _requests(scanned, form, shapes, method)


@functools.lru_cache(64)
def _requests(model: Any, form: Any, shapes: Any, method: str) -> list[Asked]:
  def run(params: Any, row: Row) -> Any:
    rngs = {'dropout': jax.random.key(0)}
    return model.apply({'params': params}, row, method=method, rngs=rngs)

  no_mesh = jax.sharding.AbstractMesh((), ())
  with jax.sharding.use_abstract_mesh(no_mesh), nn.logical_axis_rules(()):
    params = parameter_shapes(model)
    with layers.use_rows(None), backends.asked() as asked:
      jax.eval_shape(run, params, jax.tree.unflatten(form, shapes))
  # The layers of a scan are traced twice.
  different: list[Asked] = []
  for x in asked:
    if x not in different:
      different.append(x)
  return different


def parameter_shapes(model: Transformer) -> Any:
  """Shapes and dtypes of the parameters, as a plain tree; allocates nothing.

  Traced once for each model; the tree is shared, so do not modify it.
  """
  # Flax modules are hashable, which their type does not say.
  hashable: Any = model
  return _traced_shapes(hashable)


@functools.cache
def _traced_shapes(model: Any) -> Any:
  def init(tokens: jax.Array) -> Any:
    # The key is traced too: the mesh in context may be of devices that are not
    # here.
    return model.init(jax.random.key(0), tokens)

  shapes = jax.eval_shape(init, jax.ShapeDtypeStruct((1, 1), jnp.int32))
  return nn.meta.unbox(shapes['params'])
