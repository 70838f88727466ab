# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sampling token by token, with a cache of keys and values."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.nn.caches import init_caches
from gpt_jax.nn.transformer import Transformer


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
  stop_id: int | None = None,
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
    stop_id: ends a continuation (not returned); None: nothing does.
    sources: ids for the encoder, which runs once; as many as prompts.

  Returns:
    The new ids of each prompt.
  """
  lengths_B = np.array([len(p) for p in prompts])
  assert lengths_B.min() > 0
  assert lengths_B.max() + max_tokens <= model.context_length
  assert (sources is not None) == (model.num_encoder_layers > 0)
  # The padding's keys are overwritten as decoding reaches their positions, and
  # are later than every query until then, hence never seen.
  tokens_BL, _ = _padded(prompts, model.context_length)
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
  )
  out = [[] for _ in prompts]
  running = [True] * len(prompts)
  for i in range(max_tokens):
    for b, token in enumerate(np.asarray(token_B).tolist()):
      running[b] = running[b] and token != stop_id
      if running[b]:
        out[b].append(token)
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


def _padded(rows: list[list[int]], longest: int) -> tuple[Any, Any]:
  """Ids [B, L] and which of them are none of the padding.

  L is a power of two, so that few lengths are ever compiled.
  """
  lengths_B = np.array([len(row) for row in rows])
  assert lengths_B.min() > 0 and lengths_B.max() <= longest
  width = min(1 << int(lengths_B.max() - 1).bit_length(), longest)
  ids = np.zeros((len(rows), width), np.int32)
  for padded, row in zip(ids, rows, strict=True):
    padded[: len(row)] = row
  return ids, np.arange(width)[None] < lengths_B[:, None]


@functools.partial(jax.jit, static_argnames='model')
def encode(params, tokens_BM, mask_BM, *, model):
  """Runs the encoder of an encoder-decoder."""
  return model.apply({'params': params}, tokens_BM, mask_BM, method='encode')


@functools.partial(jax.jit, static_argnames=('model', 'sampler'))
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
):
  """Fills new caches with the prompts and draws each first token.

  The caches take the keys and values of `memory_BMD`, too.
  """
  B, L = tokens_BL.shape
  variables = {'params': params}
  positions_BL = jnp.broadcast_to(jnp.arange(L)[None], (B, L))
  M = 0 if memory_BMD is None else memory_BMD.shape[1]
  caches = init_caches(model, B, model.context_length, M)
  out = model.apply(
    variables,
    tokens_BL,
    positions_BL,
    caches,
    memory_BMD=memory_BMD,
    encoder_mask_BM=mask_BM,
  )
  last_BD = jnp.take_along_axis(
    out.hidden_BLD, (lengths_B - 1)[:, None, None], axis=1
  )[:, 0]
  logits_BV = model.apply(variables, last_BD, method='logits')
  return sampler(logits_BV, key), out.caches


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
