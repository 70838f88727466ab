# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prompts continued by an engine of their own."""

from gpt_jax.decoding import engine
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.sampler import seeds_of
from gpt_jax.decoding.settings import Sampler

GREEDY = Sampler(temperature=0)


def generate(
  model,
  params,
  prompts,
  *,
  max_tokens,
  sampler=GREEDY,
  seed=0,
  stop_ids=(),
  sources=None,
  draft=None,
  stop_when=lambda ids: False,
  **rules,
):
  """The new ids of each prompt; rows draw differently.

  `rules` are fields of `Decoder`. Of an encoder-decoder the prompts are what
  the decoder starts with, and there are `sources`.
  """
  requests = [
    Request(ids, max_tokens, sampler, own, stop_ids, source)
    for ids, source, own in zip(
      prompts, sources or [None] * len(prompts), seeds_of(seed, len(prompts)), strict=True
    )
  ]
  found = dict(
    engine.generate(
      Decoder(model, params, **rules),
      requests,
      rows=len(requests),
      draft=draft,
      stop_when=stop_when,
    )
  )
  return [found[number] for number in range(len(requests))]
