# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Removes what overlaps an evaluation set by 13-grams of words.

GPT-3 (Brown et al. 2020, appendix C): "we removed ... the colliding 13-gram and
a 200 character window around it, splitting the original document into pieces",
without pieces "of less than 200 characters" and documents "split into more than
10 pieces"; n-grams found in more than 10 training documents (phrases,
boilerplate) do not count. So duplicates are best removed before.
"""

import dataclasses
import functools
import logging
from collections.abc import Iterator

import numpy as np

from gpt_jax.data import ngrams
from gpt_jax.data.clean import evaluation_texts, steps
from gpt_jax.data.clean.steps import (
  Document,
  Findings,
  Outcome,
  Removal,
  Rows,
  Sketches,
)
from gpt_jax.data.ngrams import Overlap
from gpt_jax.spec import UsageError

log = logging.getLogger('gpt_jax')

RULES = ('documents', 'pieces')

# GPT-3's, in characters and pieces.
_WINDOW, _LEAST, _MOST = 200, 200, 10


@dataclasses.dataclass(frozen=True)
class Decontaminate:
  """Removes documents or pieces; a global step.

  A row is an n-gram of the evaluation set in a document: key a hash of its
  number, value that number. A finding is one that counts: value its number.
  """

  patterns: tuple[str, ...]
  field: str
  n: int
  rule: str
  frequent: int  # documents that hold an n-gram, above which it is ignored
  name: str = 'decontaminate'
  sketch_size: int = 0
  concludes: bool = False

  def rows(self, text: str) -> Rows:
    """The n-grams of the evaluation set in a document, each once."""
    found = index(self.patterns, self.field, self.n).find(text)
    grams = np.unique(np.array([o.gram for o in found], np.uint64))
    return Rows(grams * steps.FACTOR, grams)

  def judge(
    self,
    keys: np.ndarray,
    places: np.ndarray,
    values: np.ndarray,
    sketches: Sketches,
  ) -> Findings:
    """Finds the n-grams that few enough documents hold."""
    starts = steps.group_starts(keys)
    sizes = np.diff(np.append(starts, len(keys)))
    counts = np.repeat(sizes <= (self.frequent or len(keys)), sizes)
    return Findings(places[counts], values[counts])

  def notes(self) -> dict[str, int]:
    """For the report: how many texts there are, and cannot be found."""
    grams = index(self.patterns, self.field, self.n)
    return {
      'evaluation_texts': len(grams.labels),
      'too_short': grams.num_short,
      'words': self.n,
    }

  def conclude(self, findings: Findings) -> Findings:
    """Each document's findings are its own."""
    return findings

  def clean(self, document: Document, values: np.ndarray) -> Outcome:
    """Drops the document, or cuts it into pieces."""
    if not len(values):
      return steps.keep(document)
    grams = index(self.patterns, self.field, self.n)
    wanted = {*values.tolist()}
    found = [o for o in grams.find(document.text) if o.gram in wanted]
    label = grams.labels[grams.holders(found[0].gram)[0]]
    why = f'{label}: "{grams.text(found[0].gram)}"'
    rule = f'overlap with {label.rpartition(":")[0]}'
    if self.rule == 'documents':
      return steps.remove(document, rule, why)
    pieces = [*_pieces(document.text, found)]
    if len(pieces) > _MOST:
      return steps.remove(document, f'{rule}, in more than {_MOST} places', why)
    kept = [piece for piece in pieces if len(piece) >= _LEAST]
    size = steps.num_bytes(document.text) - sum(map(steps.num_bytes, kept))
    removal = Removal(rule, max(len(pieces) - 1, 1), size, why)
    if len(kept) == 1:
      return Outcome([document._replace(text=kept[0])], [removal])
    return Outcome(
      [
        document._replace(
          place=document.place + i, name=f'{document.name}#{i}', text=text
        )
        for i, text in enumerate(kept)
      ],
      [removal],
    )


def check(step: Decontaminate):
  """Looks whether the step can be taken.

  Raises:
    UsageError: an argument is out of range, or the evaluation set cannot be
      read or has no n-gram.
  """
  if step.rule not in RULES:
    raise UsageError(
      f'data.clean: decontaminate(rule={step.rule!r}) is none of '
      + ', '.join(RULES)
    )
  if not step.patterns:
    raise UsageError(
      'data.clean: name the evaluation files, as in '
      "decontaminate('test/*.jsonl')"
    )
  grams = index(step.patterns, step.field, step.n)
  if not len(grams):
    raise UsageError(
      f'data.clean: {", ".join(step.patterns)}: holds no text of {step.n} '
      'words; give decontaminate a smaller n, or other files'
    )
  if grams.num_short:
    log.warning(
      '%s: %d of %d texts have fewer than %d words and will not be found',
      ', '.join(step.patterns),
      *(grams.num_short, len(grams.labels), step.n),
    )


@functools.cache
def index(patterns: tuple[str, ...], field: str, n: int) -> ngrams.Index:
  """The n-grams of the evaluation files."""
  return ngrams.Index(evaluation_texts.read(patterns, field, n), n)


def _pieces(text: str, found: list[Overlap]) -> Iterator[str]:
  """Cuts the overlaps and the characters around them out."""
  start = 0
  for overlap in found:
    stop = max(overlap.start - _WINDOW, 0)
    # Overlaps ascend; windows that meet are one.
    if stop > start:
      yield text[start:stop].strip()
    start = max(start, overlap.stop + _WINDOW)
  if start < len(text):
    yield text[start:].strip()
