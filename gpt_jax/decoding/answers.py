# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Answers to texts that were given: printed, or written to a file."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpt_jax.decoding.continuations import Continuation
from gpt_jax.decoding.prompt_files import Results
from gpt_jax.files import progress
from gpt_jax.tokenizers.tokenizer import Tokenizer


class Asked(NamedTuple):
  """A text as the model is given it.

  Attributes:
    fields: what a file of results says of it.
    ids: the prompt; of an encoder-decoder the token that the decoder starts
      with.
    source: ids for the encoder; None: there is none.
    cut: tokens of the source that did not fit: see `sourced`.
  """

  fields: Mapping[str, Any]
  ids: list[int]
  source: list[int] | None = None
  cut: int = 0

  def shown(self, tokenizer: Tokenizer) -> str:
    """What is printed before an answer: a prompt, which it continues."""
    return tokenizer.decode(self.ids) if self.source is None else ''


# Gives the place of each text with its answers, in any order.
Complete = Callable[[Sequence[Asked]], Iterator[tuple[int, list[Continuation]]]]


def show(
  asked: Sequence[Asked],
  complete: Complete,
  tokenizer: Tokenizer,
  *,
  printed: bool,
) -> list[dict[str, Any]]:
  """What `generate --json` says of the texts, in their order.

  Args:
    asked: the texts.
    complete: answers them.
    tokenizer: of the model.
    printed: whether the answers are printed.
  """
  found, entries = dict(complete(asked)), []
  for number, text in enumerate(asked):
    start = text.shown(tokenizer)
    samples = [start + sample.text for sample in found[number]]
    finish = [sample.finish for sample in found[number]]
    entry = {**text.fields, 'samples': samples, 'finish': finish}
    scores = [x.score for x in found[number] if x.score is not None]
    entries.append(entry | ({'scores': scores} if scores else {}))
    if printed:
      apart = ['\n'] if number and text.source is None else []
      print(*apart, '\n\n'.join(samples), sep='')
  return entries


def write(
  asked: Sequence[Asked], complete: Complete, results: Results, name: str
) -> None:
  """Writes the results that are not there yet.

  Args:
    asked: the texts.
    complete: answers them.
    results: closed at the end, in order where all were answered.
    name: of the texts, for the bar of progress.
  """
  todo = [i for i in range(len(asked)) if i not in results.rows]
  with contextlib.closing(results), progress.bar(name) as report:
    for number, found in complete([asked[i] for i in todo]):
      index = todo[number]
      entries = [continuation.fields for continuation in found]
      fields = {**asked[index].fields, 'continuations': entries}
      results.add(index, fields)
      report('answering', len(results.rows), len(asked))
  results.finish()
