# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks of source texts, for each of which a model writes a text."""

import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpt_jax.data.progress import Report
from gpt_jax.decoding.beam import Beam
from gpt_jax.evaluation import figures
from gpt_jax.evaluation.figures import Figures
from gpt_jax.evaluation.journal import Journal
from gpt_jax.evaluation.score import Scorer
from gpt_jax.evaluation.task import Setting
from gpt_jax.training.metrics import write_atomically

log = logging.getLogger('gpt_jax')

# Texts that the log shows.
_SHOWN = 3


class Example(NamedTuple):
  """What a model reads, and what it should write.

  Attributes:
    where: 'file:line'.
    source: read.
    target: to write.
    label: what the target says, where it is a label.
  """

  where: str
  source: str
  target: str
  label: Any = None


class Written(NamedTuple):
  """A task of examples for which a model writes.

  Attributes:
    examples: reads them, one or more.
    figures: computes results from examples and the texts written.
    targets: all that may be right, if nothing else may: a text that is longer
      need not be finished. (): anything may.
    max_tokens: of a text at most, where anything may be right; 0: see
      `Writer.asked`.
    beam: how to search for a text; None: each token is the most probable one.
  """

  examples: Callable[[], Sequence[Example]]
  figures: Callable[[Sequence[Example], Sequence[str]], Figures]
  targets: tuple[str, ...] = ()
  max_tokens: int = 0
  beam: Beam | None = None
  takes_shots = False
  takes_sources = True

  def texts(self) -> list[tuple[str, str]]:
    """Each source with its target, for overlap checks."""
    return [(e.where, f'{e.source}\n{e.target}') for e in self.examples()]

  def check(self, shots: int) -> None:
    """See `task.Task`."""
    assert not shots
    self.examples()

  def measure(
    self, scorer: Scorer, setting: Setting, journal: Journal, report: Report
  ) -> Figures:
    """See `task.Task`; `cut` counts sources that lost their last tokens."""
    examples = self.examples()[: setting.limit]
    most = self.max_tokens
    if self.targets:
      encode = scorer.tokenizer.encode
      most = 1 + max(len(encode(text)) for text in self.targets)
    started = time.perf_counter()
    sources = [e.source for e in examples]
    texts, cut, new = scorer.texts(sources, most, journal, report, self.beam)
    seconds = time.perf_counter() - started
    if new:
      log.info(
        'wrote %d texts in %.1f s, %.1f texts/s',
        *(new, seconds, new / seconds),
      )
    for example, text in itertools.islice(
      zip(examples, texts, strict=True), _SHOWN
    ):
      log.info(
        '%s\n  source:    %.200s\n  written:   %.200s\n  reference: %.200s',
        *(example.where, example.source, text, example.target),
      )
    if setting.outputs:
      _write(setting.outputs, examples, texts)

    def measured(numbers: Sequence[int]) -> Figures:
      return self.figures(
        [examples[n] for n in numbers], [texts[n] for n in numbers]
      )

    everything = range(len(examples))
    return {
      **measured(everything),
      'examples': len(examples),
      'cut': cut,
      **figures.clean(everything, setting.seen, measured),
    }


def _write(path: str, examples: Sequence[Example], texts: Sequence[str]):
  """A JSON line for each example."""
  lines = [
    json.dumps(
      {
        'where': example.where,
        'source': example.source,
        'text': text,
        'reference': example.target,
      },
      ensure_ascii=False,
    )
    for example, text in zip(examples, texts, strict=True)
  ]
  os.makedirs(os.path.dirname(path), exist_ok=True)
  write_atomically(path, '\n'.join(lines) + '\n')
  log.info('wrote %s', path)
