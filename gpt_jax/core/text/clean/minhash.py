# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fuzzy deduplication by MinHash and locality-sensitive hashing.

As for GPT-3 (Brown et al. 2020, appendix A: "Spark's MinHashLSH implementation
with 10 hashes"), documents are candidates if they agree in one of ten hashes,
each of `rows` MinHash values (Spark: of one), of their shingles: `ngram` words
in a row. Candidates count as near-duplicates if the share of all their MinHash
values that agree, which estimates the Jaccard similarity of their shingles, is
at least `threshold`. The first document of each connected component stays.

The result does not depend on how the work is spread. The decision takes 8 bytes
of memory for a document, and 16 for a link between two; the 4 * hashes * rows
bytes of a document's signature (200 by default) stay on the disk.

In a group of documents that agree in a hash, all different signatures are
compared in pairs if they are few. Template pages make groups of many thousands:
there each is compared with representatives only. The first document is one, and
so is each that resembles none before it, up to `_REPRESENTATIVES` of them.
"""

import dataclasses
import functools
import zlib
from typing import Any

import numpy as np
from etils import epy

from gpt_jax.core.ranges import Count, Share
from gpt_jax.core.spec import optional
from gpt_jax.core.text import hashing, ngrams
from gpt_jax.core.text.clean import steps
from gpt_jax.core.text.clean.steps import Document, Findings, Outcome, Rows, Sketches

with epy.lazy_imports():
  import scipy

_RULE = 'near-duplicate document'

# Shingles, and pairs of documents, that are held at a time.
_SHINGLES, _PAIRS = 1 << 14, 1 << 16

# Up to this many different signatures of a group are compared in pairs; larger
# groups have this many representatives.
_REPRESENTATIVES = 256


@dataclasses.dataclass(frozen=True)
class MinHash(steps.Global):
  """Removes all but the first of near-duplicates; a global step.

  A row is one of the hashes: its key is the hash and its number, its value 0. A
  finding in a group is a link from a document to the place of an earlier one;
  the decision is from a document to remove to the one that stays.
  """

  threshold: float
  hashes: int
  num_rows: int  # MinHash values in each hash
  ngram: int
  name = 'minhash'
  concludes = True

  @property
  def sketch_size(self) -> int:
    """The number of MinHash values."""
    return self.hashes * self.num_rows

  def check(self) -> None:
    _library()

  def rows(self, text: str) -> Rows:
    """The hashes; none of a document without words."""
    sketch = signature(text, self.ngram, self.sketch_size)
    if sketch is None:
      empty = np.empty(0, np.uint64)
      return Rows(empty, empty, np.zeros(self.sketch_size, np.uint32))
    numbers = np.arange(self.hashes, dtype=np.uint64)
    columns = sketch.reshape(self.hashes, self.num_rows).T
    keys = hashing.of_columns(numbers, columns)
    return Rows(keys, np.zeros_like(keys), sketch)

  def judge(
    self, keys: np.ndarray, places: np.ndarray, values: np.ndarray, sketches: Sketches
  ) -> Findings:
    """Links the documents of each group that are alike."""
    starts = steps.group_starts(keys)
    stops = np.append(starts[1:], len(keys))
    links = []
    several = stops - starts > 1
    for start, stop in zip(starts[several], stops[several], strict=True):
      group = places[start:stop]
      links.append(group[_alike(sketches(group), self.threshold)])
    found = np.concatenate([np.empty((0, 2), np.uint64), *links])
    return Findings(found[:, 1], found[:, 0])

  def conclude(self, findings: Findings) -> Findings:
    """Each document to remove, with the one that stays instead."""
    places, ends = np.unique(np.concatenate(findings), return_inverse=True)
    links = ends.reshape(2, -1).T
    # `places` ascends, so the first of a component is its first document.
    stays = places[_firsts(links, len(places))]
    gone = stays != places
    return Findings(places[gone], stays[gone])

  def clean(self, document: Document, values: np.ndarray) -> Outcome:
    """Removes a document if another one stays instead."""
    if not len(values):
      return steps.keep(document)
    return steps.remove(document, _RULE, document.text[:200], like=int(values[0]))


def minhash(
  threshold: Share = 0.8, hashes: Count = 10, rows: Count = 5, ngram: Count = 5
) -> MinHash:
  """Removes all but the first of near-duplicate documents.

  Args:
    threshold: the least estimated Jaccard similarity of near-duplicates.
    hashes: near-duplicates agree in at least one of them.
    rows: MinHash values in each hash.
    ngram: words in a shingle.
  """
  return MinHash(threshold, hashes, rows, ngram)


def signature(text: str, ngram: int, size: int) -> np.ndarray | None:
  """The MinHash values of a document; uint32 [size].

  A document of fewer words than a shingle is one shingle; None without words.
  """
  values = _empty(size).copy()
  before: list[str] = []
  for _, block in ngrams.blocks(text):
    words = before + ngrams.words(block)
    for start in range(0, len(words) - ngram + 1, _SHINGLES):
      part = words[start : start + _SHINGLES + ngram - 1]
      shingles = zip(*(part[i:] for i in range(ngram)), strict=False)
      values.update_batch({' '.join(s).encode() for s in shingles})
    before = words[max(len(words) - ngram + 1, 0) :]
  if values.is_empty():
    if not before:
      return None
    values.update(' '.join(before).encode())
  return values.hashvalues.astype(np.uint32)


@functools.cache
def _empty(size: int) -> Any:
  # All arguments that matter, whatever the defaults of a later release.
  return _library().MinHash(num_perm=size, seed=1, hashfunc=zlib.crc32, scheme='affine32')


def _library() -> Any:
  what = 'data.clean: minhash(...) needs datasketch'
  return optional('datasketch', what, 'clean')


def _alike(sketches: np.ndarray, threshold: float) -> np.ndarray:
  """Links similar documents of a group: positions, the earlier first; [N, 2].

  Only as many links as connect the components: see the module's docstring.
  """
  # Exact copies, of which a web corpus has thousands, are compared once.
  distinct, first, of = np.unique(sketches, axis=0, return_index=True, return_inverse=True)
  of = of.reshape(-1)
  copies = np.stack([first[of], np.arange(len(of))], axis=1)
  least = threshold * distinct.shape[1] - 1e-9
  if len(distinct) <= _REPRESENTATIVES:
    linked = first[_all_pairs(distinct, least)]
  else:
    order = np.argsort(first)
    linked = first[order][_with_representatives(distinct[order], least)]
  found = np.sort(np.concatenate([copies, linked]), axis=1)
  found = found[found[:, 0] < found[:, 1]]
  firsts = _firsts(found, len(of))
  gone = np.flatnonzero(firsts != np.arange(len(of)))
  return np.stack([firsts[gone], gone], axis=1)


def _all_pairs(sketches: np.ndarray, least: float) -> np.ndarray:
  """Pairs of sketches that agree in `least` values or more; [N, 2]."""
  pairs = [np.empty((0, 2), np.int64)]
  step = max(_PAIRS // len(sketches), 1)
  for start in range(0, len(sketches), step):
    agree = _num_equal(sketches[start : start + step, None], sketches)
    a, b = np.nonzero(agree >= least)
    pairs.append(np.stack([a + start, b], axis=1)[a + start < b])
  return np.concatenate(pairs)


def _with_representatives(sketches: np.ndarray, least: float) -> np.ndarray:
  """Like `_all_pairs`, but only pairs with a representative; [N, 2]."""
  pairs, unlike = [], np.ones(len(sketches), bool)
  for _ in range(_REPRESENTATIVES):
    number = int(np.argmax(unlike))
    if not unlike[number]:
      break
    # Also with those that resemble another representative: they join the two.
    found = np.flatnonzero(_num_equal(sketches[number], sketches) >= least)
    unlike[found] = False
    pairs.append(np.stack([np.full(len(found), number), found], axis=1))
  return np.concatenate(pairs)


def _num_equal(some: np.ndarray, sketches: np.ndarray) -> np.ndarray:
  """The number of values in which sketches agree."""
  return np.count_nonzero(some == sketches, axis=-1)


def _firsts(links: np.ndarray, size: int) -> np.ndarray:
  """The first number in the connected component of each, by `links` [N, 2]."""
  graph = scipy.sparse.coo_array(
    (np.ones(len(links), np.int8), (links[:, 0], links[:, 1])), shape=(size, size)
  )
  components = scipy.sparse.csgraph.connected_components
  _, component = components(graph, directed=False)
  _, first, of = np.unique(component, return_index=True, return_inverse=True)
  return first[of]
