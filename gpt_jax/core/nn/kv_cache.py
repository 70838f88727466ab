# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keys and values of the tokens so far, and attention to them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.attend import (
  Request,
  float32_einsum,
  for_groups,
  grouped,
  scores,
  ungrouped,
  weighted,
)
from gpt_jax.core.nn.masks import Pattern, Tokens, visible
from gpt_jax.core.spec import UsageError


class KVCache(NamedTuple):
  """Keys and values of the positions seen so far; M is the longest length.

  Only the G key/value heads are kept: one head with multi-query attention.
  `cross` holds the keys and values of the encoder's output. The layout is the
  one that the products in `attend_to_cache` read, with transposed keys and
  heads before slots: otherwise each step would copy them. `seen_N` numbers the
  first N slots, if the new tokens are to attend to no others: an array, since a
  cache is an argument of compiled programs.
  """

  key_BGKM: jax.Array
  value_BGMK: jax.Array
  cross: 'KVCache | None' = None
  seen_N: jax.Array | None = None

  @property
  def num_slots(self) -> int:
    """Slots that new tokens attend to, at most M."""
    if self.seen_N is not None:
      return len(self.seen_N)
    return self.value_BGMK.shape[-2]

  def normed(self, norm: Callable[[jax.Array], jax.Array]) -> 'KVCache':
    """Itself: its keys and values are those of normalised inputs."""
    del norm
    return self

  def keys_and_values(self) -> tuple[jax.Array, jax.Array]:
    """Those of the slots that new tokens attend to."""
    N = self.num_slots
    return self.key_BGKM[..., :N], self.value_BGMK[..., :N, :]

  def written(
    self, positions_BL: jax.Array, key_BLGK: jax.Array, value_BLGK: jax.Array
  ) -> 'KVCache':
    """The cache with keys and values in the slots of their positions."""
    B, _, G, _ = key_BLGK.shape
    # Heads are indexed too: otherwise the update of a single row would not be
    # a scatter, and XLA on CPU would copy the cache.
    rows, heads = jnp.arange(B)[:, None, None], jnp.arange(G)[None, :, None]
    at_BGL = positions_BL[:, None]
    key_BGLK, value_BGLK = key_BLGK.swapaxes(1, 2), value_BLGK.swapaxes(1, 2)
    return self._replace(
      key_BGKM=self.key_BGKM.at[rows, heads, :, at_BGL].set(key_BGLK),
      value_BGMK=self.value_BGMK.at[rows, heads, at_BGL].set(value_BGLK),
    )


def cache_of(key_BMGK: jax.Array, value_BMGK: jax.Array) -> KVCache:
  """A cache filled with these keys and values."""
  return KVCache(jnp.einsum('BMGK->BGKM', key_BMGK), jnp.einsum('BMGK->BGMK', value_BMGK))


# A `KVCache`, or what the layers of a paper carry from token to token.
Cache = Any


def attend_so_far(request: Request, positions_BL: jax.Array, cache: KVCache) -> jax.Array:
  """Attends to a cache, whose slots queries see up to their positions.

  Raises:
    UsageError: the pattern needs tokens that are not there yet.
  """
  pattern, seen = request.pattern, request.visibility
  check_whole(pattern)
  # Padding and documents describe the new tokens only, not those in the cache.
  assert seen.key_mask_BM is None and seen.segments_BL is None
  # A caller that passes its own mask over the cache vouches for it.
  if not pattern.causal and seen.visible_BLM is None:
    raise UsageError(
      'model.attention=bidirectional: cannot decode with a cache, since '
      'each new token would change the states of all before it; take '
      'causal patterns'
    )
  places_1M = jnp.arange(cache.num_slots)[None]
  # Slots past the newest token hold padding or zeros. They are later than every
  # query, so the causal mask hides them.
  mask = visible(pattern, Tokens(positions_BL), Tokens(places_1M), seen.prefix_B, seen.mask_BLM)
  assert not hasattr(request.bias, 'feature')
  key_BGKM, value_BGMK = cache.keys_and_values()
  return attend_to_cache(
    request.q_BLHK,
    key_BGKM,
    value_BGMK,
    mask=mask,
    scale=request.scale,
    bias=request.bias,
    softcap=request.softcap,
  )


def check_whole(pattern: Pattern) -> None:
  """Refuses patterns that need whole rows."""
  if pattern.blocks is not None:
    raise UsageError(
      f'model.attention={pattern.name}: needs whole rows, '
      'without memories, caches and second streams; take bidirectional'
    )


def attend_to_cache(
  q_BLHK: jax.Array,
  k_BGKM: jax.Array,
  v_BGMK: jax.Array,
  *,
  mask: jax.Array,
  scale: float | jax.Array,
  bias: jax.Array | None = None,
  softcap: float = 0.0,
) -> jax.Array:
  """`attend` with keys and values in the layout of `KVCache`."""
  # Transpose the few queries rather than scores or a cache.
  q_BGQK = grouped(q_BLHK, v_BGMK.shape[1])
  mask = for_groups(mask, q_BGQK)
  if bias is not None:
    bias = bias.reshape(-1, *q_BGQK.shape[1:3], bias.shape[-1])

  def run(q_BGQK, k_BGKM, v_BGMK, mask, bias):
    products = float32_einsum('BGQK,BGKM->BGQM', q_BGQK, k_BGKM)
    scores_BGQM = scores(products, scale, bias, softcap)
    return weighted(scores_BGQM, v_BGMK, mask)

  inputs = q_BGQK, k_BGKM, v_BGMK, mask, bias
  out_BGQK = _few_heads_at_a_time(run, inputs)
  return ungrouped(out_BGQK, q_BLHK.shape)


# The most scores of a prompt that a CPU computes at a time, 4 MiB: more would
# not stay in its cache between the two products.
_SCORES = 1 << 20


def _few_heads_at_a_time(run: Callable[..., Any], inputs: tuple[Any, ...]) -> jax.Array:
  """`run(*inputs)`: [B, G, Q, K]; on one CPU device in parts of `_SCORES`.

  Args:
    run: treats all rows and groups of heads alike.
    inputs: queries [B, G, Q, K], keys [B, G, K, M], and others of B or 1 rows
      and G or 1 groups.
  """
  (B, G, Q, K), M = inputs[0].shape, inputs[1].shape[-1]
  most = max(_SCORES // (Q * M), 1)
  alone = jax.sharding.get_abstract_mesh().size <= 1
  # Fewer queries than numbers in a key: copying the keys would take longer.
  if most >= B * G or Q < K or not alone or layout.platform() != 'cpu':
    return run(*inputs)

  size = max(n for n in range(1, G + 1) if G % n == 0 and n <= most)

  def part(i):
    row, group = i // (G // size), i % (G // size) * size

    def own(x):
      rows, groups, *sizes = x.shape
      at = row if rows == B else 0, group if groups == G else 0
      shape = 1, min(size, groups), *sizes
      return jax.lax.dynamic_slice(x, (*at, 0, 0), shape)

    return run(*jax.tree.map(own, inputs))[0]

  out = jax.lax.map(part, jnp.arange(B * G // size))
  return out.reshape(B, G, Q, -1)
