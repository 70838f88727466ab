# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Perplexity of a text per token, per byte, character and original word.

The text is one stream, read in sliding windows of the model's context. Each
window scores the `stride` tokens that earlier ones did not, so that every token
after the first window sees at least context - stride tokens. A stride of the
whole context is the cheapest and gives the worst perplexity, since the first
tokens of each window see little.
"""

import io
import logging
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpt_jax.evaluation import figures
from gpt_jax.evaluation.figures import Figures, Make, Setting
from gpt_jax.evaluation.score import Journal, Row, Scorer
from gpt_jax.files.progress import Report
from gpt_jax.spec import UsageError
from gpt_jax.tasks.files import OWN, Files, Split
from gpt_jax.tokenizers import report as tokenizer_report

log = logging.getLogger('gpt_jax')


class Text(NamedTuple):
  """A text in which every token is scored once.

  Attributes:
    files: to find it in.
    path: of the text.
    stride: tokens scored per window; 0: half of the model's context.
  """

  files: Files
  path: str
  stride: int = 0
  takes_shots = False
  takes_sources = False

  def texts(self) -> list[tuple[str, str]]:
    """Its lines, for overlap checks."""
    lines = self._read().split('\n')
    return [
      (f'{self.path}:{n}', x.rstrip('\r')) for n, x in enumerate(lines, start=1)
    ]

  def check(self, shots: int) -> None:
    """See `figures.Task`."""
    assert not shots
    self._read()

  def measure(
    self, scorer: Scorer, setting: Setting, journal: Journal, report: Report
  ) -> Figures:
    """Loss in nats per token, and perplexities.

    Words are separated by white space, and each line end counts as a word, as
    papers count WikiText (245,569 words in WikiText-2's test split).

    Standard errors are those of the loss, a ratio over windows, which count as
    independent; tokens per byte and per word count as fixed.
    """
    assert not setting.shots
    stride = self.stride or max(scorer.context_length // 2, 1)
    if stride > scorer.context_length:
      raise UsageError(
        f'--tasks: stride={stride} exceeds the context of '
        f'{scorer.context_length} tokens'
      )
    # `limit` counts lines, as other tasks' examples.
    text = ''.join(io.StringIO(self._read(), '\n').readlines()[: setting.limit])
    ids = scorer.tokenizer.encode(text)
    if change := tokenizer_report.change(scorer.tokenizer, text):
      log.warning('%s: the tokenizer %s', self.path, change)
    before = scorer.tokenizer.special.before(first_scored=True)
    rows = [
      *windows(
        np.concatenate([before, ids]).astype(np.int32),
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
      """Loss per unit, and its error."""
      scale = len(ids) / units
      return loss['loss'] * scale, loss['loss_stderr'] * scale

    bits, bits_error = nats_per(num_bytes * math.log(2))
    return {
      **loss,
      **figures.exponential('perplexity', *nats_per(len(ids))),
      'bits_per_byte': bits,
      'bits_per_byte_stderr': bits_error,
      'bits_per_character': bits * num_bytes / len(text),
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
  """Yields rows that score ids[1:] once each; the first fills a context."""
  stop = min(context_length, len(ids) - 1)
  yield Row(ids[: stop + 1], stop)
  while stop < len(ids) - 1:
    before, stop = stop, min(stop + stride, len(ids) - 1)
    yield Row(ids[stop - context_length : stop + 1], stop - before)


def wikitext2(path: str = 'test', stride: int = 0) -> Make:
  """WikiText-2's test split as raw, untokenized text.

  Its numbers of words and line ends are those of the word-level file.
  """
  names = 'wikitext2/test.raw.txt', 'wikitext-2-raw/wiki.test.raw'
  files = Files(
    folder='',
    home='fetch WikiText-2 raw (wikitext-2-raw-v1) and unpack it there',
    splits={'test': Split(names)},
  )
  return _text(files, path, stride)


def text(path: str, stride: int = 0) -> Make:
  """A custom text file, as one stream."""
  return _text(OWN, path, stride)


def _text(files: Files, path: str, stride: int) -> Make:
  if stride < 0:
    raise UsageError(
      f'stride={stride}: is negative; give a number of tokens, or 0 for half '
      'of the context'
    )
  return lambda folder: Text(files._replace(folder=folder), path, stride)
