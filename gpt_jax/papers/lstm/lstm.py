# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Long short-term memory (Hochreiter and Schmidhuber, 1997), as torch has it.

  i, f, g, o = x W_in + b_in + h W_hidden + b_hidden
  c <- sigmoid(f) c + sigmoid(i) tanh(g)
  h <- sigmoid(o) tanh(c), or that times W_projection

The products with x do not depend on the state: they are one matrix product over
all tokens, before the loop. So are, after the backward loop, the gradients of
the other kernels; hence the gradient of `scan` is written by hand.

Legend: S cells, P width of the hidden state (S without a projection), Z = 4 S
gates. Arrays of the loop have the tokens first: [L, B, ...].
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.caches import LstmState
from gpt_jax.core.nn.kv_cache import KVCache
from gpt_jax.core.nn.layers import Dense, Dropout, Initializers, parameter
from gpt_jax.core.nn.masks import Pattern, Recurrent
from gpt_jax.core.nn.row import Context
from gpt_jax.core.ranges import Count, Fraction, NotNegative, Whole
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.lstm.stacks import TwoDirections, make_stack
from gpt_jax.papers.transformer.encoder_decoder import attend_to_encoded


class Weights(NamedTuple):
  """The kernels within the loop."""

  hidden_PZ: jax.Array
  projection_SP: jax.Array | None = None


class Tokens(NamedTuple):
  """What happens at each token, bool [L, B].

  Attributes:
    real: False for padding, which leaves the state as it is.
    starts: the state before the token is 0.
    cuts: no gradient passes to the state before the token.
  """

  real: jax.Array
  starts: jax.Array
  cuts: jax.Array


class Clips(NamedTuple):
  """Bounds of the cells and of the projected state; 0: none."""

  cell: float = 0.0
  projection: float = 0.0


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def scan(
  gates_LBZ: jax.Array, weights: Weights, state: LstmState, tokens: Tokens, clips: Clips
) -> tuple[jax.Array, LstmState]:
  """Reads the tokens one after the other: hidden states [L, B, P], last state.

  The output at padding is 0.

  Args:
    gates_LBZ: x W_in and the biases.
    state: before the first token.
  """
  return _forward(gates_LBZ, weights, state, tokens, clips)[0]


def _forward(gates_LBZ, weights, state, tokens, clips):
  def step(state, inputs):
    gates_BZ, at = inputs
    old = jax.tree.map(lambda x: jnp.where(at.starts, 0, x), state)
    gates_BZ = gates_BZ + _dot(old.hidden_BP, weights.hidden_PZ)
    cell_BS, hidden_BP = _cell(gates_BZ, old.cell_BS, clips.cell)
    hidden_BP = hidden_BP.astype(old.hidden_BP.dtype)
    if weights.projection_SP is not None:
      hidden_BP = _dot(hidden_BP, weights.projection_SP)
      hidden_BP = _clip(hidden_BP, clips.projection).astype(old.hidden_BP.dtype)
    new = jax.tree.map(lambda n, o: jnp.where(at.real, n, o), LstmState(hidden_BP, cell_BS), old)
    return new, (jnp.where(at.real, hidden_BP, 0), gates_BZ, old)

  last, (y_LBP, gates_LBZ, before) = jax.lax.scan(step, state, (gates_LBZ, _columns(tokens)))
  return (y_LBP, last), (gates_LBZ, weights, before, y_LBP, tokens)


def _backward(clips, saved, grads):
  gates_LBZ, weights, before, y_LBP, tokens = saved
  dy_LBP, last = grads

  def step(dstate, inputs):
    dy_BP, y_BP, gates_BZ, cell_BS, at = inputs
    cell = functools.partial(_cell, clip=clips.cell)
    (_, hidden_BS), pull = jax.vjp(cell, gates_BZ, cell_BS)
    dnew = jax.tree.map(lambda d: jnp.where(at.real, d, 0), dstate)
    dhidden = dnew.hidden_BP + jnp.where(at.real, dy_BP, 0)
    projected = None
    if weights.projection_SP is not None:
      if clips.projection:
        dhidden = jnp.where(jnp.abs(y_BP) < clips.projection, dhidden, 0)
      dprojected_BP = dhidden.astype(y_BP.dtype)
      dhidden = back(dprojected_BP, weights.projection_SP)
      projected = hidden_BS.astype(y_BP.dtype), dprojected_BP
    dgates_BZ, dcell_BS = pull((dnew.cell_BS, dhidden))
    dold = LstmState(back(dgates_BZ.astype(y_BP.dtype), weights.hidden_PZ), dcell_BS)
    passes = ~(at.starts | at.cuts)
    dold = jax.tree.map(
      lambda d, kept: jnp.where(passes, jnp.where(at.real, d, kept), 0), dold, dstate
    )
    return dold, (dgates_BZ, projected)

  dstate, (dgates_LBZ, projected) = jax.lax.scan(
    step,
    jax.tree.map(lambda d: d.astype(jnp.float32), last),
    (dy_LBP, y_LBP, gates_LBZ, before.cell_BS, _columns(tokens)),
    reverse=True,
  )
  dtype = y_LBP.dtype
  dhidden_PZ = summed(before.hidden_BP, dgates_LBZ.astype(dtype))
  dweights = Weights(dhidden_PZ, projected and summed(*projected))
  dweights = jax.tree.map(lambda d, w: d.astype(w.dtype), dweights, weights)
  dstate = dstate._replace(hidden_BP=dstate.hidden_BP.astype(dtype))
  return dgates_LBZ, dweights, dstate, None


scan.defvjp(_forward, _backward)


def _cell(gates_BZ: jax.Array, cell_BS: jax.Array, clip: float) -> tuple[jax.Array, jax.Array]:
  """The new cells and, before any projection, the hidden state."""
  i, f, g, o = jnp.split(gates_BZ, 4, axis=-1)
  cell_BS = jax.nn.sigmoid(f) * cell_BS + jax.nn.sigmoid(i) * jnp.tanh(g)
  cell_BS = _clip(cell_BS, clip)
  return cell_BS, jax.nn.sigmoid(o) * jnp.tanh(cell_BS)


def _clip(x: jax.Array, bound: float) -> jax.Array:
  return jnp.clip(x, -bound, bound) if bound else x


def _dot(x: jax.Array, kernel: jax.Array) -> jax.Array:
  return jnp.dot(x, kernel, preferred_element_type=jnp.float32)


def back(dy_BN: jax.Array, kernel_MN: jax.Array) -> jax.Array:
  """The gradient of the left side of a product, [B, M]."""
  if layout.platform() != 'cpu':
    return _dot(dy_BN, kernel_MN.T)
  # XLA on CPU rearranges the right side of each product: here the few rows, not
  # the kernel. Without the barriers it would swap the operands back.
  dy_NB = jax.lax.optimization_barrier(dy_BN.T)
  return jax.lax.optimization_barrier(_dot(kernel_MN, dy_NB)).T


def summed(x_LBM: jax.Array, y_LBN: jax.Array) -> jax.Array:
  """The sum of the outer products of all tokens, [M, N]."""
  if layout.num_parts('batch') > 1:  # such rows cannot be flattened
    return jnp.einsum('LBM,LBN->MN', x_LBM, y_LBN, preferred_element_type=jnp.float32)
  x_UM, y_UN = (x.reshape(-1, x.shape[-1]) for x in (x_LBM, y_LBN))
  return _dot(x_UM.T, y_UN)


def _columns(tokens: Tokens) -> Tokens:
  return jax.tree.map(lambda x: x[..., None], tokens)


# The layer.


Directions = Literal['forward', 'both', 'separate']


class Recurrence(NamedTuple):
  """The settings of a layer: see `lstm`."""

  size: int
  projection: int
  biases: int
  clips: Clips
  weight_drop: float

  @property
  def width(self) -> int:
    """P."""
    return self.projection or self.size


class Direction(nn.Module):
  """An LSTM that reads rows from left to right, or from right to left."""

  settings: Recurrence
  reverse: bool
  inits: Initializers
  dtype: Any

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, state: LstmState | None
  ) -> tuple[jax.Array, LstmState]:
    """[B, L, D] -> [B, L, P] and the state after the last token."""
    own, (B, L, _) = self.settings, x_BLD.shape
    gates = 4 * own.size
    dense = Dense(
      gates, ('embed', 'mlp'), self.inits.kernel, own.biases > 0, self.dtype, name='input'
    )
    if layout.num_parts('batch') > 1:  # such rows come first: see `Dense`
      gates_LBZ = dense(x_BLD).swapaxes(0, 1)
    else:
      gates_LBZ = dense(x_BLD.swapaxes(0, 1))
    gates_LBZ = gates_LBZ.astype(jnp.float32)
    if own.biases == 2:
      zeros = nn.initializers.zeros
      bias_Z = parameter(self, 'bias_hidden', zeros, (gates,), ('mlp',))
      gates_LBZ += bias_Z[None, None]
    hidden_PZ = self._kernel('kernel_hidden', (own.width, gates), ('embed', 'mlp'))
    weights = Weights(self._dropped(hidden_PZ))
    if own.projection:
      kernel = self._kernel('kernel_projection', (own.size, own.width), ('mlp', 'embed'))
      weights = weights._replace(projection_SP=kernel)
    if state is None:
      state = LstmState(jnp.zeros((B, own.width), self.dtype), jnp.zeros((B, own.size)))
    tokens = _tokens(context, (L, B), reverse=self.reverse)
    # From right to left the padding at the end of a row comes first, and leaves
    # the state: reading begins at the row's own last token.
    order = slice(None, None, -1 if self.reverse else 1)
    out: Any = scan(gates_LBZ[order], weights, state, tokens, own.clips)
    y_LBP, last = out
    return y_LBP[order].swapaxes(0, 1), last

  def _kernel(self, name: str, shape: tuple[int, int], axes: tuple[str, str]) -> jax.Array:
    kernel = parameter(self, name, self.inits.kernel, shape, axes)
    return layout.weight(kernel, axes, self.dtype)

  def _dropped(self, kernel: jax.Array) -> jax.Array:
    """In training a part of the kernel is zero, for all rows and tokens."""
    rate = self.settings.weight_drop
    if not rate or not self.has_rng('dropout'):
      return kernel
    kept = jax.random.bernoulli(self.make_rng('dropout'), 1 - rate, kernel.shape)
    return jnp.where(kept, kernel / (1 - rate), 0).astype(kernel.dtype)


def _tokens(context: Context, shape_LB: tuple[int, int], *, reverse: bool) -> Tokens:
  """What the loop does at each token, in the order that it reads them."""
  mask_BL = context.visibility.key_mask_BM
  segments_BL = context.visibility.segments_BL
  real, starts, cuts = (jnp.ones(shape_LB, bool), *[jnp.zeros(shape_LB, bool)] * 2)
  if mask_BL is not None:
    real = mask_BL.T
  if segments_BL is not None:
    changes = segments_BL[:, 1:] != segments_BL[:, :-1]
    sides = [(0, 0), (0, 1) if reverse else (1, 0)]
    starts = jnp.pad(changes, sides).T
  cuts_BL = context.extra.get('cuts')
  if cuts_BL is not None:
    # From right to left a segment is entered at its last token.
    cuts = (jnp.pad(cuts_BL[:, 1:], [(0, 0), (0, 1)]) if reverse else cuts_BL).T
  tokens = Tokens(real, starts, cuts)
  return jax.tree.map(lambda x: x[::-1], tokens) if reverse else tokens


class GlobalAttention(nn.Module):
  """h~ = tanh(W_2 [sum_m a_m z_m; h] + b_2), a = softmax(z (W_1 h + b_1)).

  z is the encoder's output: McCann et al. 2017, section 3, without input
  feeding; the scores are `general` of Luong et al. 2015, equation 8.
  """

  inits: Initializers
  dtype: Any

  @nn.compact
  def __call__(
    self, h_BLP: jax.Array, context: Context, cache: KVCache | None
  ) -> tuple[jax.Array, KVCache]:
    """[B, L, P] -> [B, L, P] and the encoder's output as a cache."""
    memory_BMD, values = context.extra.get('encoded'), None
    if memory_BMD is not None:
      width = memory_BMD.shape[-1]
      values = memory_BMD[:, :, None], memory_BMD[:, :, None]
    else:
      assert cache is not None
      width = cache.value_BGMK.shape[-1]
    dense = functools.partial(Dense, initializer=self.inits.kernel, bias=True, dtype=self.dtype)
    q_BLK = dense(width, ('embed', 'heads'), name='query')(h_BLP)
    seen, cache = attend_to_encoded(q_BLK[:, :, None], values, context, cache)
    both = jnp.concatenate([seen[:, :, 0], h_BLP], axis=-1)
    out = dense(h_BLP.shape[-1], ('heads', 'embed'), name='out')
    return jnp.tanh(out(both)), cache


class Lstm(nn.Module):
  """A layer of one direction or both; sows its output before dropout as `raw`.

  Attributes:
    residual: whether the input, after its dropout, is added to the output.
    dropout: of the outputs, one draw for all tokens of a row (Gal and
      Ghahramani, 2016).
    input_dropout: likewise of the inputs.
    attends: whether `GlobalAttention` follows, before dropout.
  """

  settings: Recurrence
  directions: Directions
  residual: bool
  attends: bool
  dropout: float
  input_dropout: float
  inits: Initializers
  dtype: Any

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, cache: LstmState | None, layer: jax.Array
  ) -> tuple[jax.Array, LstmState | None]:
    """[B, L, D] -> [B, L, P], or 2 P of both; the state if one is given."""
    del layer
    if context.visibility.uneven:
      raise UsageError(
        "model.attention='lstm(...)': reads all tokens before its own, and no "
        'mask for each of them, as the objective has; take an attention pattern'
      )
    x_BLD = self._locked(self.input_dropout, x_BLD)
    make = functools.partial(Direction, self.settings, inits=self.inits, dtype=self.dtype)
    forward_BLD = backward_BLD = x_BLD
    if self.directions == 'separate':
      forward_BLD, backward_BLD = jnp.split(x_BLD, 2, axis=-1)
    run = make(reverse=False, name='forward')
    state = None if cache is None else cache._replace(cross=None)
    y_BLP, state = run(forward_BLD, context, state)
    if self.directions != 'forward':
      run = make(reverse=True, name='backward')
      z_BLP, _ = run(backward_BLD, context, None)
      y_BLP = jnp.concatenate([y_BLP, z_BLP], axis=-1)
    if self.residual:
      y_BLP += x_BLD
    if self.attends:
      attention = GlobalAttention(self.inits, self.dtype, name='attention')
      y_BLP, seen = attention(y_BLP, context, cache and cache.cross)
      if cache is not None and cache.cross is not None:
        state = state._replace(cross=seen)
    self.sow('intermediates', 'raw', y_BLP)
    y_BLP = self._locked(self.dropout, y_BLP)
    return y_BLP, None if cache is None else state

  def _locked(self, rate: float, x_BLD: jax.Array) -> jax.Array:
    if not rate or not self.has_rng('dropout'):
      return x_BLD
    drop = Dropout(rate)
    B, _, D = x_BLD.shape
    kept_B1D = drop.kept((B, 1, D))
    return jnp.where(kept_B1D, x_BLD / drop.keep, jnp.zeros_like(x_BLD))


def lstm(
  size: Count,
  projection: Whole = 0,
  directions: Directions = 'forward',
  residual: bool = False,
  biases: Literal[0, 1, 2] = 2,
  cell_clip: NotNegative = 0.0,
  projection_clip: NotNegative = 0.0,
  dropout: Fraction = 0.0,
  input_dropout: Fraction = 0.0,
  weight_drop: Fraction = 0.0,
  attends: bool = False,
) -> Pattern:
  """An LSTM in place of attention; needs model.block='plain'.

  Its layers need not be equally wide; the decoder's last is d_model wide.

  Args:
    size: number of cells, in each direction.
    projection: width that the hidden state is projected to (ELMo: 512); 0:
      none.
    directions: forward, for decoders; both, for encoders: their outputs are
      joined; separate: each reads its own outputs of the layer below, so that
      they are two language models, of half of d_model each (ELMo).
    residual: the input is added to the output.
    biases: of the gates; torch has two, which are added.
    cell_clip: bound of the cells (ELMo: 3); 0: none.
    projection_clip: bound of the projected hidden state (ELMo: 3); 0: none.
    dropout: of the outputs; one draw for all tokens of a row.
    input_dropout: of the inputs, likewise.
    weight_drop: fraction of the recurrent kernel that is dropped, one draw for
      all rows and tokens of a step (Merity et al. 2017, section 2).
    attends: attention to the output of an encoder follows (McCann et al. 2017,
      section 3).
  """
  clips = Clips(cell_clip, projection_clip)
  if projection_clip and not projection:
    raise UsageError(
      f'model.attention: lstm(projection_clip={projection_clip}): nothing is '
      'projected; give a projection, or leave it out'
    )
  settings = Recurrence(size, projection, biases, clips, weight_drop)
  make = functools.partial(
    Lstm, settings, directions, residual, attends, dropout=dropout, input_dropout=input_dropout
  )
  both = directions != 'forward'
  width = settings.width * (1 + both)
  return Pattern(
    'lstm',
    causal=not both,
    count=np.zeros_like,  # no keys, hence no scores
    recurrent=Recurrent(
      make=make,
      make_stack=make_stack,
      width=width,
      cells=size,
      directions=directions,
      residual=residual,
      attends=attends,
    ),
    model=TwoDirections if directions == 'separate' else None,
  )
