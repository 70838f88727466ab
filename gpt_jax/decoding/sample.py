# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sampling token by token, with a cache of keys and values."""

import functools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.nn.caches import init_caches
from gpt_jax.nn.stack import SEPARATE, separate
from gpt_jax.nn.transformer import DTYPES, Transformer

# Prompts are read in blocks of this many tokens: a longer one takes more calls
# of one program, not a program of its own.
BLOCK = 256


class Sampler(NamedTuple):
  """How the next token is drawn from the scores.

  Attributes:
    temperature: divides the logits; 0 takes the most probable token.
    top_k: only the k most probable tokens are drawn; 0 means all.
    top_p: only the fewest tokens whose probabilities reach p are drawn
      (Holtzman et al., 2020, section 3.1).
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0

  def __call__(self, logits_BV: jax.Array, key: jax.Array) -> jax.Array:
    """[B, V] -> ids [B]."""
    if self.temperature == 0:
      return jnp.argmax(logits_BV, axis=-1)
    logits_BV = logits_BV / self.temperature
    if self.top_k:
      k = min(self.top_k, logits_BV.shape[-1])
      least = jax.lax.top_k(logits_BV, k)[0][:, -1:]
      logits_BV = jnp.where(logits_BV < least, -jnp.inf, logits_BV)
    if self.top_p < 1:
      sorted_BV = jnp.sort(logits_BV, axis=-1, descending=True)
      probs_BV = jax.nn.softmax(sorted_BV, axis=-1)
      # Kept as long as the more probable tokens have not reached p; the most
      # probable one always.
      kept_BV = jnp.cumsum(probs_BV, axis=-1) - probs_BV < self.top_p
      kept_BV = kept_BV.at[:, 0].set(True)
      least = jnp.min(
        jnp.where(kept_BV, sorted_BV, jnp.inf), axis=-1, keepdims=True
      )
      logits_BV = jnp.where(logits_BV < least, -jnp.inf, logits_BV)
    return jax.random.categorical(key, logits_BV, axis=-1)


def generate(
  model: Transformer,
  params: Any,
  prompts: list[list[int]],
  *,
  max_tokens: int,
  sampler: Sampler,
  seed: int,
  stop_ids: Collection[int] = (),
  stop_when: Callable[[list[int]], bool] | None = None,
  sources: list[list[int]] | None = None,
) -> list[list[int]]:
  """Continues each prompt.

  Args:
    model: whose context is long enough for prompt and continuation.
    params: its parameters.
    prompts: ids, at least one each; lengths may differ. Of an encoder-decoder
      they are the decoder's: the token that it starts with.
    max_tokens: how many tokens are drawn at most.
    sampler: draws them.
    seed: of the draws.
    stop_ids: tokens that end a continuation, each; they are not returned.
    stop_when: asked about the new ids of a row after each token; True ends
      the continuation, with that token.
    sources: ids for the encoder, which runs once; as many as prompts.

  Returns:
    The new ids of each prompt.
  """
  lengths_B = np.array([len(p) for p in prompts])
  assert lengths_B.min() > 0
  longest = int(lengths_B.max()) + max_tokens
  assert longest <= model.context_length
  assert (sources is not None) == (model.num_encoder_layers > 0)
  model, params = in_place(model, params)
  # The padding's keys are overwritten as decoding reaches their positions, and
  # are later than every query until then, hence never seen.
  capacity = bucket(longest, model.context_length)
  tokens_BL, _ = _padded(prompts, capacity)
  memory_BMD = mask_BM = None
  if sources is not None:
    assert len(sources) == len(prompts)
    tokens_BM, mask_BM = _padded(sources, model.context_length)
    memory_BMD = encode(params, tokens_BM, mask_BM, model=model)

  key = jax.random.key(seed)
  token_B, caches = prefill(
    params,
    tokens_BL,
    lengths_B,
    key,
    memory_BMD,
    mask_BM,
    model=model,
    sampler=sampler,
    capacity=capacity,
  )
  out = [[] for _ in prompts]
  running = [True] * len(prompts)
  for i in range(max_tokens):
    for b, token in enumerate(np.asarray(token_B).tolist()):
      running[b] = running[b] and token not in stop_ids
      if running[b]:
        out[b].append(token)
        running[b] = stop_when is None or not stop_when(out[b])
    if i + 1 == max_tokens or not any(running):
      break
    token_B, caches = decode_step(
      params,
      caches,
      token_B,
      lengths_B + i,
      jax.random.fold_in(key, i + 1),
      mask_BM,
      model=model,
      sampler=sampler,
    )
  return out


def in_place(model: Transformer, params: Any) -> tuple[Transformer, Any]:
  """The model and its parameters in the form that `decode_step` is fast in.

  A stack of layers would be sliced, and its caches copied, in each step. Called
  with what it returned, it returns that.
  """
  if model.loop == SEPARATE:
    return model, params
  return model.clone(loop=SEPARATE, remat='none'), jax.jit(separate)(params)


def bucket(length: int, longest: int) -> int:
  """Slots of a cache for `length` tokens: few sizes are ever compiled.

  Powers of two from 64 to 512, and multiples of 512; at most `longest`.
  """
  size = 1 << max(6, (length - 1).bit_length())
  if size > 512:
    size = -(-length // 512) * 512
  return min(size, longest)


def _padded(rows: list[list[int]], longest: int) -> tuple[Any, Any]:
  """Ids [B, L] and which of them are none of the padding.

  L is a power of two, or whole blocks, so that few lengths are ever compiled.
  """
  lengths_B = np.array([len(row) for row in rows])
  assert lengths_B.min() > 0 and lengths_B.max() <= longest
  width = 1 << int(lengths_B.max() - 1).bit_length()
  if width > BLOCK:
    width = -(-int(lengths_B.max()) // BLOCK) * BLOCK
  width = min(width, longest)
  ids = np.zeros((len(rows), width), np.int32)
  for padded, row in zip(ids, rows, strict=True):
    padded[: len(row)] = row
  return ids, np.arange(width)[None] < lengths_B[:, None]


@functools.partial(jax.jit, static_argnames='model')
def encode(params, tokens_BM, mask_BM, *, model):
  """Runs the encoder of an encoder-decoder."""
  return model.apply({'params': params}, tokens_BM, mask_BM, method='encode')


def prefill(
  params,
  tokens_BL,
  lengths_B,
  key,
  memory_BMD=None,
  mask_BM=None,
  *,
  model,
  sampler,
  capacity,
):
  """Fills new caches with the prompts and draws each first token.

  The caches have room for `capacity` tokens a row, and take the keys and
  values of `memory_BMD`, too.
  """
  B, L = tokens_BL.shape
  M = 0 if memory_BMD is None else memory_BMD.shape[1]
  caches = init_caches(model, B, capacity, M)
  last_BD = jnp.zeros((B, model.d_model), DTYPES[model.dtype])
  for start in range(0, L, BLOCK):
    last_BD, caches = _read_block(
      params,
      caches,
      tokens_BL[:, start : start + BLOCK],
      start,
      lengths_B,
      last_BD,
      # Later blocks find its keys and values in the caches.
      None if start else memory_BMD,
      mask_BM,
      model=model,
    )
  return _draw(params, last_BD, key, model=model, sampler=sampler), caches


@functools.partial(
  jax.jit, static_argnames='model', donate_argnames=('caches', 'last_BD')
)
def _read_block(
  params,
  caches,
  tokens_BL,
  start,
  lengths_B,
  last_BD,
  memory_BMD,
  mask_BM,
  *,
  model,
):
  """Reads tokens from `start` on; keeps the state where a row ends."""
  B, L = tokens_BL.shape
  positions_BL = jnp.broadcast_to(start + jnp.arange(L)[None], (B, L))
  out = model.apply(
    {'params': params},
    tokens_BL,
    positions_BL,
    caches,
    memory_BMD=memory_BMD,
    encoder_mask_BM=mask_BM,
  )
  at_B = lengths_B - 1 - start
  inside_B = (at_B >= 0) & (at_B < L)
  index = jnp.clip(at_B, 0, L - 1)[:, None, None]
  found_BD = jnp.take_along_axis(out.hidden_BLD, index, axis=1)[:, 0]
  return jnp.where(inside_B[:, None], found_BD, last_BD), out.caches


@functools.partial(jax.jit, static_argnames=('model', 'sampler'))
def _draw(params, last_BD, key, *, model, sampler):
  logits_BV = model.apply({'params': params}, last_BD, method='logits')
  return sampler(logits_BV, key)


@functools.partial(
  jax.jit, static_argnames=('model', 'sampler'), donate_argnames='caches'
)
def decode_step(
  params, caches, token_B, position_B, key, mask_BM=None, *, model, sampler
):
  """Appends one token to each row and draws the next."""
  variables = {'params': params}
  tokens_BL, positions_BL = token_B[:, None], position_B[:, None]
  out = model.apply(
    variables, tokens_BL, positions_BL, caches, encoder_mask_BM=mask_BM
  )
  logits_BV = model.apply(variables, out.hidden_BLD[:, 0], method='logits')
  return sampler(logits_BV, key), out.caches
