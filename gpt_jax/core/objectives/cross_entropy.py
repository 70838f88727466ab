# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Softmax cross-entropy that never holds all logits at once.

With a vocabulary of 50,257 tokens the logits of one batch outweigh the model.
They are computed a chunk of positions at a time, and the forward pass turns
each chunk into its part of the gradients at once, so that the backward pass
only scales them: no logits are stored or computed twice.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.nn import layout
from gpt_jax.core.objectives.loss import Loss, Mean

# Logits of one chunk on one device, in elements: 128 MiB of float32.
CHUNK_LOGITS = 1 << 25
# As many times more on a GPU: each chunk reads and writes the gradient of the
# whole table.
ON_GPU = 4
# A chunk on a TPU has at least this many tokens, for the same reason: multiplying
# fewer takes less time than reading and writing the gradient of the table, 8 bytes
# an element (v6e: 918e12 FLOP/s and 1.64e12 bytes/s give 2,239 tokens).
TOKENS_ON_TPU = 2048
# A GPU's matrix units need rows of logits that begin at a multiple of 16 bytes:
# with GPT-2's 50,257 tokens the products of the output took twice the time.
ROWS_ON_GPU = 64
# A logit whose softmax is zero. (-inf times zero would be NaN.)
NEVER = -1e30
AXES = ('vocab', 'embed')  # of the table
# A batch is split over P devices by rows and by length.
PARTS = ('batch', 'length')


class Scores(NamedTuple):
  """Hidden states and output table: their product, the logits, is large."""

  hidden_BLD: jax.Array
  table_VD: jax.Array
  softcap: float = 0.0


class Sums(NamedTuple):
  """Float32 weighted sums over the positions.

  Attributes:
    total: cross-entropy plus penalty; this is differentiated.
    penalty: z_loss * log(Z)^2 and the smoothing term, so that reports can
      subtract them. Not differentiated.
  """

  total: jax.Array
  penalty: jax.Array


class Measured(NamedTuple):
  """As `Sums`, with two sums that are not differentiated.

  Attributes:
    right: number of targets that have the largest logit.
    entropy: of the predictions, in nats: H = log Z - sum_v p_v logit_v.
  """

  total: jax.Array
  penalty: jax.Array
  right: jax.Array
  entropy: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def penalised_cross_entropy(
  hidden_BLD: jax.Array,
  table_VD: jax.Array,
  targets_BL: jax.Array,
  weights_BL: jax.Array,
  z_loss: float,
  softcap: float = 0.0,
  smoothing: float = 0.0,
  measured: bool = False,
) -> Sums | Measured:
  """Cross-entropy plus z_loss * log(Z)^2, Z = sum exp(logits).

  Z is the softmax's normaliser, which the penalty pulls towards 1 (PaLM,
  section 5). With smoothed labels (Szegedy et al., 2016, section 7)
    (1 - e) nll + e mean_v(-log p_v) = nll + e (logit_target - mean_v logit_v)
  the second term counts as a penalty too.

  Args:
    hidden_BLD: last hidden states.
    table_VD: output table: logits = hidden table^T, in float32.
    targets_BL: token ids.
    weights_BL: float32; 0 leaves a position out. Not differentiated.
    z_loss: factor of the penalty; at 0 it is not computed.
    softcap: logits x become softcap * tanh(x / softcap); 0: no cap.
    smoothing: e, the label mass spread evenly over all V tokens.
    measured: whether to return `Measured`.
  """
  V = len(table_VD)
  table_VD = whole_table(table_VD)

  def add(sums, chunk):
    hidden_PND, targets_PN, weights_PN = chunk
    logits_PNV = chunk_logits(hidden_PND, table_VD, V, softcap)
    log_z_PN = jax.nn.logsumexp(logits_PNV, axis=-1)
    terms = _terms(logits_PNV, log_z_PN, targets_PN, V, z_loss, smoothing)
    sums = _add(sums, *terms, weights_PN)
    return _measured(sums, logits_PNV, log_z_PN, targets_PN, weights_PN), None

  chunks = chunked(V, hidden_BLD, targets_BL, weights_BL)
  return jax.lax.scan(add, _zeros(measured), chunks)[0]


def token_loss(
  scores: Scores,
  targets_BL: jax.Array,
  weights_BL: jax.Array,
  *,
  z_loss: float = 0.0,
  smoothing: float = 0.0,
) -> Loss:
  """The loss of targets by `penalised_cross_entropy`, without metrics."""
  hidden_BLD, table_VD, softcap = scores
  sums: Sums = penalised_cross_entropy(
    hidden_BLD, table_VD, targets_BL, weights_BL, z_loss, softcap, smoothing
  )
  return Loss(sums.total, jnp.sum(weights_BL), sums.penalty)


def map_logits(of_logits: Callable[..., Any], scores: Scores, *arrays: jax.Array) -> Any:
  """Computes something of each position's logits, a chunk at a time.

  The backward pass computes the logits of each chunk again.

  Args:
    of_logits: from logits [P, N, V'] and chunks [P, N, ...] of the arrays to
      arrays [P, N, ...]; ids past the vocabulary score `NEVER`.
    *arrays: [B, L, ...].

  Returns:
    The results of `of_logits` as [B, L, ...].
  """
  V, (B, L) = len(scores.table_VD), scores.hidden_BLD.shape[:2]
  table_VD = whole_table(scores.table_VD)

  @jax.checkpoint
  def step(_, chunk):
    hidden_PND, *rest = chunk
    logits_PNV = chunk_logits(hidden_PND, table_VD, V, scores.softcap)
    return None, of_logits(logits_PNV, *rest)

  chunks = chunked(V, scores.hidden_BLD, *arrays)
  found = jax.lax.scan(step, None, chunks)[1]
  return jax.tree.map(lambda x: joined(x, B, L), found)


def token_log_probs(
  scores: Scores, targets_BL: jax.Array, temperature: float = 1.0, never_V: Any = None
) -> jax.Array:
  """The log-probability of each target, float32 [B, L], differentiable.

  Args:
    temperature: divides the logits, as in a decoder's sampling.
    never_V: bool, ids that are left out; None: none.
  """

  def log_probs(logits_PNV, targets_PN):
    logits_PNV = logits_PNV / temperature
    if never_V is not None:
      more = logits_PNV.shape[-1] - len(never_V)
      never = jnp.pad(jnp.asarray(never_V), (0, more), constant_values=True)
      logits_PNV = jnp.where(never[None, None], NEVER, logits_PNV)
    log_z_PN = jax.nn.logsumexp(logits_PNV, axis=-1)
    return _at(logits_PNV, targets_PN) - log_z_PN

  return map_logits(log_probs, scores, targets_BL)


def right(scores: Scores, targets_BL: jax.Array) -> jax.Array:
  """Whether each target has the largest logit, bool [B, L]; no gradient."""
  return map_logits(
    lambda logits_PNV, targets_PN: jnp.argmax(logits_PNV, -1) == targets_PN,
    Scores(*jax.lax.stop_gradient(scores[:2]), scores.softcap),
    targets_BL,
  )


def accuracy(scores: Scores, targets_BL: jax.Array, weights_BL: jax.Array) -> Mean:
  """The weighted share of the targets that have the largest logit."""
  return Mean.of(right(scores, targets_BL), weights_BL)


def sampled(scores: Scores, keys_B: jax.Array, temperature: float) -> jax.Array:
  """Samples a token for each position from softmax(logits / temperature).

  Takes the argmax of logits / temperature + Gumbel noise. Each position has
  its own key, so that neither chunking nor a row's place in the batch matters.
  There is no gradient.

  Args:
    keys_B: one key per row.
    temperature: 0 takes the largest logit.

  Returns:
    Ids, int32 [B, L].
  """
  V, L = len(scores.table_VD), scores.hidden_BLD.shape[1]
  keys_BL = jax.vmap(lambda key: jax.random.split(key, L))(keys_B)

  def noise(key_2):
    return jax.random.gumbel(jax.random.wrap_key_data(key_2), (V,))

  def draw(logits_PNV, keys_PN2):
    if temperature:
      more = ((0, 0), (0, 0), (0, logits_PNV.shape[-1] - V))
      noise_PNV = jnp.pad(jax.vmap(jax.vmap(noise))(keys_PN2), more)
      logits_PNV = logits_PNV / temperature + noise_PNV
    return jnp.argmax(logits_PNV, axis=-1).astype(jnp.int32)

  return map_logits(
    draw, Scores(*jax.lax.stop_gradient(scores[:2]), scores.softcap), jax.random.key_data(keys_BL)
  )


def _forward(hidden_BLD, table_VD, targets_BL, weights_BL, z_loss, softcap, smoothing, measured):
  """The sums, with the gradients of their total as residuals."""
  V, D = table_VD.shape
  dtype = table_VD.dtype
  table_VD = whole_table(table_VD)

  def add(carry, chunk):
    return _with_gradients(carry, chunk, table_VD, V, z_loss, softcap, smoothing)

  B, L = hidden_BLD.shape[:2]
  chunks = chunked(V, hidden_BLD, targets_BL, weights_BL)
  P = chunks[0].shape[1]
  zeros = _zeros(measured)
  # Each device sums its own rows over the chunks, so that the sum over devices
  # is taken once, not once per chunk.
  start_PVD = jnp.zeros((P, len(table_VD), D), jnp.float32)
  start_PVD = layout.constrain_tokens(start_PVD, (PARTS, 'vocab', None))
  (sums, grad_PVD), grads = jax.lax.scan(add, (zeros, start_PVD), chunks)
  grad_VD = layout.constrain(jnp.sum(grad_PVD, axis=0), AXES).astype(dtype)
  grad_VD = layout.constrain(grad_VD[:V], AXES)
  gradients = joined(grads, B, L), grad_VD
  if layout.num_parts('embed') > 1:
    # Else the compiler adds the devices' gradients of the table after the layers
    # have gone backwards, and each keeps a whole one in float32 until then.
    gradients = jax.lax.optimization_barrier(gradients)
  return sums, gradients


def joined(chunks: jax.Array, B: int, L: int) -> jax.Array:
  """[chunks, P, N, ...] to [B, L, ...]: the inverse of `chunked`."""
  (number, _, _, *rest), (P, C) = chunks.shape, _parts(B, L)
  x = chunks.reshape(number, P, C, B // P, -1, *rest)
  # From [chunk, part of rows, part of length, row, token of the chunk].
  x = jnp.moveaxis(x, (1, 3, 2, 0), (0, 1, 2, 3))
  x = x.reshape(B, C, -1, *rest)[:, :, : L // C].reshape(B, L, *rest)
  if C == 1:
    return x
  return layout.constrain(x, ('batch', 'length', *(None,) * len(rest)))


def _with_gradients(carry, chunk, table_VD, V, z_loss, softcap, smoothing):
  """Adds a chunk to the carry; returns its gradient of the hidden states."""
  sums, grad_PVD = carry
  hidden_PND, targets_PN, weights_PN = chunk
  logits_PNV = chunk_logits(hidden_PND, table_VD, V, softcap)
  top_PN = jnp.max(logits_PNV, axis=-1)
  exp_PNV = jnp.exp(logits_PNV - top_PN[..., None])
  sum_PN = jnp.sum(exp_PNV, axis=-1)
  log_z_PN = jnp.log(sum_PN) + top_PN
  terms = _terms(logits_PNV, log_z_PN, targets_PN, V, z_loss, smoothing)
  # d nll / d logits = softmax - onehot(target), and
  # d log(Z)^2 / d logits = 2 log(Z) softmax; smoothed labels are
  # (1 - e) onehot + e / V.
  ids_V = jnp.arange(len(table_VD))
  hit_PNV = ids_V[None, None] == targets_PN[..., None]
  softmax_weights_PN = weights_PN
  if z_loss:
    softmax_weights_PN = weights_PN * (1 + 2 * z_loss * log_z_PN)
  delta_PNV = exp_PNV * (softmax_weights_PN / sum_PN)[..., None]
  delta_PNV -= jnp.where(hit_PNV, (1 - smoothing) * weights_PN[..., None], 0)
  if smoothing:
    even_V = jnp.where(ids_V < V, smoothing / V, 0)
    delta_PNV -= even_V[None, None] * weights_PN[..., None]
  if softcap:
    # d tanh(x) / d x = 1 - tanh(x)^2; NEVER is not capped: clip its square.
    tanh_PNV = jnp.maximum(logits_PNV / softcap, -1)
    delta_PNV *= 1 - jnp.square(tanh_PNV)
  delta_PNV = delta_PNV.astype(hidden_PND.dtype)
  grad_PND = jnp.einsum('PNV,VD->PND', delta_PNV, table_VD)
  grad_PVD += jnp.einsum('PNV,PND->PVD', delta_PNV, hidden_PND, preferred_element_type=jnp.float32)
  grad_PVD = layout.constrain_tokens(grad_PVD, (PARTS, 'vocab', None))
  sums = _add(sums, *terms, weights_PN)
  sums = _measured(sums, logits_PNV, log_z_PN, targets_PN, weights_PN)
  return (sums, grad_PVD), grad_PND


def _backward(z_loss, softcap, smoothing, measured, gradients, cotangents):
  del z_loss, softcap, smoothing, measured
  grads = [(g * cotangents.total).astype(g.dtype) for g in gradients]
  return (*grads, None, None)


penalised_cross_entropy.defvjp(_forward, _backward)


def _terms(
  logits_PNV: jax.Array,
  log_z_PN: jax.Array,
  targets_PN: jax.Array,
  vocab_size: int,
  z_loss: float,
  smoothing: float,
) -> tuple[jax.Array, jax.Array | None]:
  """Cross-entropy and penalty (None if there is none) of each position."""
  at_PN = _at(logits_PNV, targets_PN)
  nll_PN = log_z_PN - at_PN
  if not (z_loss or smoothing):
    return nll_PN, None
  penalty_PN = z_loss * jnp.square(log_z_PN)
  if smoothing:
    real_V = jnp.arange(logits_PNV.shape[-1]) < vocab_size
    sum_PN = jnp.sum(jnp.where(real_V[None, None], logits_PNV, 0), axis=-1)
    penalty_PN += smoothing * (at_PN - sum_PN / vocab_size)
  return nll_PN, penalty_PN


def _zeros(measured: bool) -> Sums | Measured:
  """The sums over no positions."""
  zero = jnp.float32(0)
  return Measured(zero, zero, zero, zero) if measured else Sums(zero, zero)


def _add(
  sums: Sums | Measured, nll_PN: jax.Array, penalty_PN: jax.Array | None, weights_PN: jax.Array
) -> Sums | Measured:
  """Adds a chunk to the sums."""
  total = sums.total + jnp.sum(nll_PN * weights_PN)
  if penalty_PN is None:
    return sums._replace(total=total)
  penalty = jnp.sum(penalty_PN * weights_PN)
  return sums._replace(total=total + penalty, penalty=sums.penalty + penalty)


def _measured(
  sums: Sums | Measured,
  logits_PNV: jax.Array,
  log_z_PN: jax.Array,
  targets_PN: jax.Array,
  weights_PN: jax.Array,
) -> Sums | Measured:
  """Adds a chunk to `right` and `entropy`, if they are measured."""
  if not isinstance(sums, Measured):
    return sums
  right_PN = jnp.argmax(logits_PNV, axis=-1) == targets_PN
  probs_PNV = jnp.exp(logits_PNV - log_z_PN[..., None])
  entropy_PN = log_z_PN - jnp.sum(probs_PNV * logits_PNV, axis=-1)
  return sums._replace(
    right=sums.right + jnp.sum(right_PN * weights_PN),
    entropy=sums.entropy + jnp.sum(entropy_PN * weights_PN),
  )


def whole_table(table_VD: jax.Array) -> jax.Array:
  """The table, split by rows over the vocabulary axis, columns whole.

  On a GPU the rows are padded to a multiple of `ROWS_ON_GPU`.
  """
  multiple = ROWS_ON_GPU if layout.platform() == 'gpu' else 1
  table_VD = layout.pad_rows(table_VD, AXES[0], multiple)
  return layout.weight(table_VD, AXES, table_VD.dtype)


def chunk_logits(
  hidden_PND: jax.Array, table_VD: jax.Array, vocab_size: int, softcap: float
) -> jax.Array:
  """Logits of a chunk; the table's padding rows score `NEVER`."""
  logits_PNV = jnp.einsum('PND,VD->PNV', hidden_PND, table_VD, preferred_element_type=jnp.float32)
  logits_PNV = layout.constrain_tokens(logits_PNV, (PARTS, None, 'vocab'))
  if softcap:
    logits_PNV = softcap * jnp.tanh(logits_PNV / softcap)
  if len(table_VD) == vocab_size:
    return logits_PNV
  real_V = jnp.arange(len(table_VD)) < vocab_size
  return jnp.where(real_V[None, None], logits_PNV, NEVER)


def _at(logits_PNV: jax.Array, targets_PN: jax.Array) -> jax.Array:
  """The logit of each target."""
  index = targets_PN[..., None]
  return jnp.take_along_axis(logits_PNV, index, axis=-1)[..., 0]


def most_logits(vocab_here: int, platform: str) -> int:
  """Elements of the largest chunk on one device, which has `vocab_here` of the ids."""
  if platform == 'tpu':
    return max(CHUNK_LOGITS, TOKENS_ON_TPU * vocab_here)
  return CHUNK_LOGITS * (ON_GPU if platform == 'gpu' else 1)


def chunked(vocab_size: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
  """[B, L, ...] to chunks [number, P, N, ...] of `most_logits` at most.

  Splits each device's part along the length, so that batches stay split over
  their P devices. The last chunk is padded with zeros, weights included.
  """
  B, L = arrays[0].shape[:2]
  P, C = _parts(B, L)
  logits = B * L * vocab_size // (P * C * layout.num_parts('vocab'))
  here = L // C
  most = most_logits(vocab_size // layout.num_parts('vocab'), layout.platform())
  num = min(-(-logits // most), here)
  size = -(-here // num)
  num = -(-here // size)

  def split(x: jax.Array) -> jax.Array:
    rest = x.shape[2:]
    x = x.reshape(P, B // P, C, here, *rest)
    more = [(0, 0)] * 3 + [(0, num * size - here)] + [(0, 0)] * len(rest)
    x = jnp.pad(x, more).reshape(P, B // P, C, num, size, *rest)
    x = jnp.moveaxis(x, (3, 0, 2, 1), (0, 1, 2, 3))
    x = x.reshape(num, P * C, B // P * size, *rest)
    return layout.constrain_tokens(x, (None, PARTS, *(None,) * (x.ndim - 2)))

  return tuple(split(x) for x in arrays)


def _parts(B: int, L: int) -> tuple[int, int]:
  """Number of parts that rows, and their length, are split into."""
  P, C = (layout.num_parts(name) for name in PARTS)
  return 1 if B % P else P, 1 if L % C else C
