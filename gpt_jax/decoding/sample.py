# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Continues a batch of prompts to its end: the simple call of `Engine`."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from gpt_jax.data.tokenizers.constraints import ANY, Constraints
from gpt_jax.decoding.engine import Engine, Request
from gpt_jax.decoding.programs import in_place as in_place
from gpt_jax.decoding.sampler import Sampler, seeds_of
from gpt_jax.decoding.sampler import never_drawn as never_drawn
from gpt_jax.decoding.speculative import Draft
from gpt_jax.nn.transformer import Transformer


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
  draft: Draft | None = None,
  never_V: np.ndarray | None = None,
  constraints: Constraints = ANY,
) -> list[list[int]]:
  """Continues each prompt.

  Args:
    model: whose context is long enough for prompt and continuation.
    params: its parameters.
    prompts: ids, at least one each; lengths may differ. Of an encoder-decoder
      they are the decoder's: the token that it starts with.
    max_tokens: how many tokens are drawn at most.
    sampler: draws them.
    seed: of the draws; rows draw differently.
    stop_ids: tokens that end a continuation, each; they are not returned.
    stop_when: asked about the new ids of a row after each token; True ends
      the continuation, with that token.
    sources: ids for the encoder, which runs once; as many as prompts.
    draft: proposes tokens to the model.
    never_V: see `sampler.never_drawn`.
    constraints: see `Engine`.

  Returns:
    The new ids of each prompt.
  """
  engine = Engine(
    *(model, params),
    slots=len(prompts),
    draft=draft,
    constraints=constraints,
    never_V=never_V,
  )
  seeds = seeds_of(seed, len(prompts))
  out: dict[int, list[int]] = {}
  for ids, source, own in zip(
    prompts, sources or [None] * len(prompts), seeds, strict=True
  ):
    request = Request(ids, max_tokens, sampler, own, stop_ids, source)
    out[engine.add(request)] = []
  ended = set()
  for token in engine.run():
    if token.id is None or token.request in ended:
      continue
    new = out[token.request]
    new.append(token.id)
    if stop_when is not None and stop_when(new):
      engine.cancel(token.request)
      ended.add(token.request)
  return list(out.values())
