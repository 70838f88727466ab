# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Token embeddings, and the output that scores the vocabulary."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn import layout
from gpt_jax.nn.activations import ACTIVATIONS, Activation
from gpt_jax.nn.adaptive import Clusters
from gpt_jax.nn.dense import parameter
from gpt_jax.nn.init import Initializer
from gpt_jax.ranges import Count, NotNegative, Whole
from gpt_jax.spec import UsageError

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

  Without its bias W has the way back, too, for scores by the embeddings.
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

  The table is sent in that dtype too, but its gradient is summed in float32,
  or those of a frequent token would be rounded each time.
  """
  # Whole rows: the compiler for TPU fails on a gather from a table that is
  # split over both axes. Of the vocabulary's mesh axis each device then looks
  # its own rows up, so that their number has to divide.
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
    d_embed: width of all that is added up, before a projection to the model's;
      0: the model's, without a projection.
    queries: whether tokens may be asked for instead of read.
  """

  scale: Callable[[int], float]
  num_token_types: int
  norm: bool
  clusters: Clusters | None = None
  d_embed: int = 0
  queries: bool = False


def _scale(field: str, name: str) -> Callable[[int], float]:
  scales = {
    'none': lambda d_model: 1.0,
    'rsqrt': lambda d_model: d_model**-0.5,
    'sqrt': lambda d_model: d_model**0.5,
  }
  if name not in scales:
    raise UsageError(
      f'{field}: scale={name!r}: unknown; one of ' + ', '.join(scales)
    )
  return scales[name]


def tokens(
  scale: str = 'none',
  token_types: Whole = 0,
  norm: bool = False,
  d_embed: Whole = 0,
  queries: bool = False,
) -> Input:
  """A table row for each token.

  Args:
    scale: none; sqrt: times sqrt(d_model) (Vaswani et al., section 3.4).
    token_types: how many, with a vector of their own each (BERT: 2).
    norm: normalise the sum of token, type and position vectors (BERT).
    d_embed: width of all these vectors, for which d_model counts above; a
      dense layer with a bias then leads to d_model, even from the same width
      (ALBERT, section 3.1). 0: they are d_model wide, without such a layer.
    queries: a trained vector stands for each token that is predicted by a
      second stream (XLNet, section 2.3).
  """
  by_width = _scale('model.input', scale)
  return Input(by_width, token_types, norm, d_embed=d_embed, queries=queries)


def adaptive(
  cutoffs: tuple, d_embed: Count, div_val: Count = 1, scale: str = 'none'
) -> Input:
  """Narrower vectors for rarer tokens (Baevski and Auli 2019).

  Args:
    cutoffs: the first token of each cluster but the first.
    d_embed: width of the first cluster's vectors.
    div_val: by what each cluster's are narrower than the last's.
    scale: none; sqrt: times sqrt(d_model).
  """
  clusters = Clusters(tuple(cutoffs), d_embed, div_val)
  return Input(_scale('model.input', scale), 0, False, clusters)


class OutputHead(NamedTuple):
  """How hidden states score the vocabulary.

  Attributes:
    tied: by the token embeddings, rather than by a table of their own.
    bias: whether each token has a bias.
    scale: of the hidden states, by the width.
    transform: hidden states go through a dense layer, this activation and
      `model.norm` first; None: they do not.
    own: of an adaptive softmax, the clusters with projections of their own;
      None: a plain softmax.
    softcap: logits x become softcap * tanh(x / softcap); 0: as they are.
  """

  tied: bool
  bias: bool
  scale: Callable[[int], float]
  transform: Activation | None
  own: tuple[int, ...] | None = None
  softcap: float = 0.0


def tied(
  bias: bool = False,
  scale: str = 'none',
  transform: str = 'none',
  softcap: NotNegative = 0.0,
) -> OutputHead:
  """By the token embeddings.

  Args:
    bias: of each token.
    scale: none; rsqrt: hidden states / sqrt(d_model) (T5, PaLM).
    transform: none, or the activation of a dense layer, with a norm after it,
      that the hidden states go through first (BERT's masked language model).
    softcap: logits x become softcap * tanh(x / softcap), within +- softcap
      (Gemma 2: 30); 0: as they are.
  """
  return _output(True, bias, scale, transform, softcap)


def untied(
  bias: bool = False,
  scale: str = 'none',
  transform: str = 'none',
  softcap: NotNegative = 0.0,
) -> OutputHead:
  """By a table of its own; the rest as in `tied`."""
  return _output(False, bias, scale, transform, softcap)


def _output(
  tied: bool, bias: bool, scale: str, transform: str, softcap: float
) -> OutputHead:
  if transform not in ('none', *ACTIVATIONS):
    raise UsageError(
      f'model.output: transform={transform!r}: unknown; one of none, '
      + ', '.join(ACTIVATIONS)
    )
  activation = ACTIVATIONS.get(transform)
  by_width = _scale('model.output', scale)
  return OutputHead(tied, bias, by_width, activation, softcap=softcap)


def adaptive_softmax(own: tuple = ()) -> OutputHead:
  """By the tables of `input='adaptive(...)'` (Grave et al. 2017).

  Args:
    own: clusters with a projection of their own, rather than the input's.
  """
  scale = _scale('model.output', 'none')
  return OutputHead(True, False, scale, None, tuple(own))


INPUTS = {'adaptive': adaptive, 'tokens': tokens}
OUTPUTS = {'adaptive': adaptive_softmax, 'tied': tied, 'untied': untied}
