# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Perplexity of a text per token, per byte and per original word.

The text is one stream. Each window of the model's context predicts the
`stride` tokens that the windows before it have not: with a stride below the
context each token sees at least context - stride tokens, the first window's
aside. A stride of the whole context is the cheapest, and the worst: the first
tokens of each window see little.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpt_jax.data.progress import Report
from gpt_jax.evaluation import figures, files
from gpt_jax.evaluation.figures import Figures
from gpt_jax.evaluation.journal import Journal
from gpt_jax.evaluation.score import Row, Scorer
from gpt_jax.evaluation.task import Setting
from gpt_jax.spec import UsageError


class Text(NamedTuple):
  """A text whose every token is predicted once.

  Attributes:
    files: where it is.
    path: of the text.
    stride: tokens predicted by a window; 0: half of the model's context.
  """

  files: files.Files
  path: str
  stride: int = 0
  takes_shots = False

  def texts(self) -> list[tuple[str, str]]:
    """The lines."""
    lines = self._read().split('\n')
    return [(f'{self.path}:{n}', x) for n, x in enumerate(lines, start=1)]

  def check(self, shots: int) -> None:
    """See `task.Task`."""
    assert not shots
    self._read()

  def measure(
    self, scorer: Scorer, setting: Setting, journal: Journal, report: Report
  ) -> Figures:
    """Loss in nats a token, and perplexities.

    Words are what white space separates, and each end of a line is one more,
    as the papers count the words of WikiText (245,569 in WikiText-2's test).

    The errors are those of the loss, a ratio over the windows, which are taken
    for independent draws; the text's tokens a byte and a word for given.
    """
    assert not setting.shots
    stride = self.stride or max(scorer.context_length // 2, 1)
    if stride > scorer.context_length:
      raise UsageError(
        f'--tasks: stride={stride} exceeds the context of '
        f'{scorer.context_length} tokens'
      )
    text = self._read()
    ids = scorer.tokenizer.encode(text)
    rows = [
      *windows(
        np.concatenate([[scorer.tokenizer.eos_id], ids]).astype(np.int32),
        scorer.context_length,
        stride,
      )
    ]
    scores = scorer.rows(rows, journal, report)
    loss = figures.ratio(
      'loss', [-s.log_prob for s in scores], [s.num_tokens for s in scores]
    )
    num_words = len(text.split()) + text.count('\n')
    num_bytes = len(text.encode())

    def nats_per(units: float) -> tuple[float, float]:
      """And the error."""
      scale = len(ids) / units
      return loss['loss'] * scale, loss['loss_stderr'] * scale

    bits, bits_error = nats_per(num_bytes * math.log(2))
    return {
      **loss,
      **figures.exponential('perplexity', *nats_per(len(ids))),
      'bits_per_byte': bits,
      'bits_per_byte_stderr': bits_error,
      **figures.exponential('byte_perplexity', *nats_per(num_bytes)),
      **figures.exponential('word_perplexity', *nats_per(num_words)),
      'tokens': len(ids),
      'bytes': num_bytes,
      'words': num_words,
      'stride': stride,
    }

  def _read(self) -> str:
    text = self.files.text(self.path)
    if not text.strip():
      raise UsageError(f'{self.path}: holds no text')
    return text


def windows(ids: np.ndarray, context_length: int, stride: int) -> Iterator[Row]:
  """Rows that score ids[1:], each once; the first row up to a whole context."""
  stop = min(context_length, len(ids) - 1)
  yield Row(ids[: stop + 1], stop)
  while stop < len(ids) - 1:
    before, stop = stop, min(stop + stride, len(ids) - 1)
    yield Row(ids[stop - context_length : stop + 1], stop - before)
