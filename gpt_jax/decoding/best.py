# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The most probable continuations as text, by beam search."""

from collections.abc import Iterator, Sequence
from typing import Any

from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding import constraints as constraints_lib
from gpt_jax.decoding import continuations
from gpt_jax.decoding.beam import Beam
from gpt_jax.decoding.continuations import Continuation, Options, Speed
from gpt_jax.decoding.in_row import InRow
from gpt_jax.decoding.sampler import never_drawn
from gpt_jax.decoding.search import Hypothesis, search
from gpt_jax.decoding.text import Stream
from gpt_jax.nn.transformer import Transformer


def complete(
  model: Transformer,
  params: Any,
  tokenizer: Tokenizer,
  prompts: Sequence[Sequence[int]],
  options: Options,
  beam: Beam,
  *,
  rows: int,
  sources: Sequence[Sequence[int] | None] | None = None,
  in_row: InRow | None = None,
  speed: Speed,
) -> Iterator[tuple[int, list[Continuation]]]:
  """As `continuations.complete`: the best `num_samples` of each prompt.

  Args:
    model: searches.
    params: its parameters.
    tokenizer: its tokenizer.
    prompts: that `continuations.fitted` returned.
    options: whose sampler, seed and stop texts say nothing.
    beam: how to search.
    rows: texts that are searched at a time.
    sources: of an encoder-decoder, as many as prompts; or of `in_row`.
    in_row: see `Engine`.
    speed: counts a token of each text a step, however many hypotheses it has.
  """
  more: Any = {'rows': rows, 'sources': sources, 'in_row': in_row}
  for number, every in hypotheses(
    *(model, params, tokenizer, prompts, options, beam), **more, speed=speed
  ):
    source = sources[number] if sources else None
    shown = prompts[number] if source is None else ()
    found = []
    for ids, score, finish in every[: options.num_samples]:
      stream = Stream(tokenizer, shown)
      text = ''.join(map(stream.push, ids)) + stream.finish()
      found.append(Continuation(text, len(ids), finish, score))
    yield number, found


def hypotheses(
  model: Transformer,
  params: Any,
  tokenizer: Tokenizer,
  prompts: Sequence[Sequence[int]],
  options: Options,
  beam: Beam,
  *,
  rows: int,
  sources: Sequence[Sequence[int] | None] | None = None,
  in_row: InRow | None = None,
  speed: Speed,
) -> Iterator[tuple[int, list[Hypothesis]]]:
  """As `complete`: all that was found of each prompt, in ids."""
  asked = []
  for ids, source in zip(
    prompts, sources or [None] * len(prompts), strict=True
  ):
    (row,) = continuations.rows(
      ids,
      tokenizer,
      options._replace(num_samples=1, stop=()),
      context_length=model.context_length,
      source=source,
      in_row=in_row is not None,
    )
    asked.append(row.request)
  speed.begin()
  return search(
    *(model, params, asked, beam),
    rows=rows,
    in_row=in_row,
    never_V=never_drawn(tokenizer, model.vocab_size),
    constraints=constraints_lib.of(tokenizer),
    count=speed.count,
  )
