# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What layers report of their activations, in steps that measure them.

The numbers are sown for each row, so that neither micro-batches nor stages of a
mesh change them. Nothing is computed in the other steps: see `Rows.measure`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn import layers, masks
from gpt_jax.core.nn.attend import Request, scores, tokens_of
from gpt_jax.core.nn.masks import Tokens

# The collection, and its entries: of a block's output, and of its attention.
SOWN = 'activations'
MEAN_SQUARE = 'mean_square'
LARGEST_LOGIT = 'largest_logit'
# Queries whose scores are computed at once.
_QUERIES = 128


class Activations(NamedTuple):
  """The activations of the layers of a stack, for each row.

  Attributes:
    mean_square_NB: of the residual stream after each of the N layers.
    largest_logit_NB: of all heads: see `largest_logits`; -inf in layers whose
      attention does not report it. None: no layer does.
  """

  mean_square_NB: jax.Array
  largest_logit_NB: jax.Array | None


def is_asked() -> bool:
  """Whether the layers report at all: see `Rows.measure`."""
  rows = layers.rows_here()
  return rows is not None and rows.measure is not None


def sow(module: nn.Module, name: str, measure: Callable[[], jax.Array]) -> None:
  """Sows what `measure` returns, [B], or zeros if this step does not measure."""
  rows = layers.rows_here()
  if rows is not None and rows.measure is not None and not module.is_initializing():
    module.sow(SOWN, name, rows.measure.compute(measure))


def mean_square(x_BLD: jax.Array) -> jax.Array:
  """The mean square of each row's vectors, float32 [B]."""
  x_BLD = jax.lax.stop_gradient(x_BLD).astype(jnp.float32)
  return jnp.mean(jnp.square(x_BLD), axis=(1, 2))


def largest_logits(request: Request) -> jax.Array:
  """The largest attention logit of each row, float32 [B].

  Over all heads, queries and the keys that they see: scale * q k + bias, before
  any softcap. It grows before a loss diverges (Dehghani et al., 2023, section
  2.1; Wortsman et al., 2023, section 3.1).
  """
  query, key, prefix_B, mask_BLM = _tokens(request)
  q_BLHK, k_BMGK = jax.lax.stop_gradient((request.q_BLHK, request.k_BLGK))
  B, L, H, K = q_BLHK.shape
  G = k_BMGK.shape[2]
  q_LBGRK = q_BLHK.reshape(B, L, G, H // G, K).swapaxes(0, 1)
  bias, scale = request.bias, jax.lax.stop_gradient(request.scale)
  if hasattr(bias, 'feature'):
    bias = bias.whole(request)
  bias = jax.lax.stop_gradient(bias)

  def of_query(at: jax.Array) -> jax.Array:
    one = jax.tree.map(lambda x: jnp.take(x, at[None], axis=1), query)
    given = None if mask_BLM is None else jnp.take(mask_BLM, at[None], axis=1)
    seen_B1M = masks.visible(
      request.pattern if request.keys is None else None, one, key, prefix_B, given
    )
    if one.real is not None:
      seen_B1M &= one.real[..., None]
    products_BGRM = jnp.einsum(
      'BGRK,BMGK->BGRM', q_LBGRK[at], k_BMGK, preferred_element_type=jnp.float32
    )
    of_heads = None if bias is None else jnp.take(bias, at, axis=2)
    logits_BGRM = scores(products_BGRM, scale, of_heads, softcap=0.0)
    logits_BGRM = jnp.where(seen_B1M[:, :, None], logits_BGRM, -jnp.inf)
    return jnp.max(logits_BGRM, axis=(1, 2, 3))

  return jnp.max(jax.lax.map(of_query, jnp.arange(L), batch_size=_QUERIES), axis=0)


def _tokens(request: Request) -> tuple[Tokens, Tokens, Any, Any]:
  """Tokens of queries and of keys, the prefix, and the explicit mask."""
  seen, L = request.visibility, request.q_BLHK.shape[1]
  if request.keys is not None:
    return Tokens(jnp.arange(L)[None], seen.segments_BL), request.keys, None, None
  if request.num_before or request.places_BL is not None:
    places_1M = jnp.arange(request.k_BLGK.shape[1])[None]
    places = places_1M[:, -L:] if request.places_BL is None else request.places_BL
    return Tokens(places), Tokens(places_1M, real=seen.key_mask_BM), None, seen.mask_BLM
  tokens = tokens_of(request)
  return tokens, tokens, seen.prefix_B, seen.mask_BLM


def of_stacks(sown: Any) -> dict[str, Activations]:
  """The activations of each stack, from the collection `activations`."""
  return {stack: _of_stack(parts['periods']) for stack, parts in sown.items()}


def _of_stack(period: Any) -> Activations:
  number = sum(name.startswith(MEAN_SQUARE) for name in period)
  squares = [period[f'{MEAN_SQUARE}_{i}'][0] for i in range(number)]
  logits = [_largest(period.get(f'block_{i}', {})) for i in range(number)]
  missing = jnp.full_like(squares[0], -jnp.inf)

  def by_layer(blocks: list[jax.Array]) -> jax.Array:
    return jnp.stack(blocks, axis=1).reshape(-1, missing.shape[-1])

  largest = None
  if any(x is not None for x in logits):
    largest = by_layer([missing if x is None else x for x in logits])
  return Activations(by_layer(squares), largest)


def _largest(block: Any) -> jax.Array | None:
  """The largest of a block's attentions, such as to itself and to a source."""
  found = [
    x
    for path, x in jax.tree_util.tree_leaves_with_path(block)
    if any(getattr(key, 'key', None) == LARGEST_LOGIT for key in path)
  ]
  return jnp.max(jnp.stack(found), axis=0) if found else None
