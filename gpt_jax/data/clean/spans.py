# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""C4's three-sentence duplicates (Raffel et al. 2020, section 2.2).

"We discarded all but one of any three-sentence span occurring more than once in
the data set." The first occurrence stays. Sentences are compared in lower case
and without regard to white space, by a hash of 64 bits. The first occurrence of
every sentence stays in any case: one that is removed was in an earlier span.
"""

import dataclasses
import hashlib
import itertools

import numpy as np

from gpt_jax.data.clean import sentences, steps
from gpt_jax.data.clean.steps import (
  Document,
  Findings,
  Outcome,
  Removal,
  Rows,
  Sketches,
)

LENGTH = 3


@dataclasses.dataclass(frozen=True)
class Spans:
  """Removes all but the first of equal spans; a global step.

  A row is a span: key its hash, value the number of its first sentence. A
  finding is a sentence to remove: value its number.
  """

  sentences: int  # a page of fewer, after that, goes
  name: str = 'c4: three-sentence spans'
  sketch_size: int = 0
  concludes: bool = False

  def rows(self, text: str) -> Rows:
    """All spans of a document."""
    hashes = np.fromiter(
      (_hash(text[a:b]) for a, b in sentences.spans(text)), np.uint64
    )
    count = max(len(hashes) - LENGTH + 1, 0)
    keys = np.zeros(count, np.uint64)
    for i in range(LENGTH):
      keys = keys * steps.FACTOR + hashes[i : i + count]
      keys ^= keys >> np.uint64(29)
    return Rows(keys, np.arange(count, dtype=np.uint64))

  def judge(
    self,
    keys: np.ndarray,
    places: np.ndarray,
    values: np.ndarray,
    sketches: Sketches,
  ) -> Findings:
    """Finds the sentences of all spans but the first of each group."""
    starts = steps.group_starts(keys)
    sizes = np.diff(np.append(starts, len(keys)))
    first_place = np.repeat(places[starts], sizes)
    first_value = np.repeat(values[starts], sizes)
    again = np.ones(len(keys), bool)
    again[starts] = False
    found_places, found_values = [], []
    for i in range(LENGTH):
      sentence = values + np.uint64(i)
      # A span that runs into the one that stays takes nothing from that.
      own = (places == first_place) & (sentence < first_value + LENGTH)
      wanted = again & ~own
      found_places.append(places[wanted])
      found_values.append(sentence[wanted])
    return Findings(np.concatenate(found_places), np.concatenate(found_values))

  def conclude(self, findings: Findings) -> Findings:
    """Each document's findings are its own."""
    return findings

  def clean(self, document: Document, values: np.ndarray) -> Outcome:
    """Cuts sentences out."""
    if not len(values):
      return steps.keep(document)
    text, gone = document.text, {*values.tolist()}
    pieces, example, size = [], '', 0
    for i, (start, stop) in enumerate(sentences.spans(text)):
      if i in gone:
        example = example or text[start:stop]
        size += len(text[start:stop].encode())
      else:
        pieces.append(text[start:stop])
    removal = Removal(
      'sentence of a repeated span', len(gone), size, example.strip()
    )
    left = document._replace(text=''.join(pieces).strip())
    enough = itertools.islice(sentences.spans(left.text), self.sentences)
    if left.text and len([*enough]) == self.sentences:
      return Outcome([left], [removal])
    rest = steps.remove(
      left, 'page of too few sentences after removing spans', text
    )
    return Outcome([], [removal, *rest.removals])


def _hash(sentence: str) -> int:
  plain = ' '.join(sentence.lower().split()).encode()
  return int.from_bytes(
    hashlib.blake2b(plain, digest_size=8).digest(), 'little'
  )
