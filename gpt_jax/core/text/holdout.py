# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which part of the corpus is held out for evaluation."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gpt_jax.core import spec
from gpt_jax.core.files.document import Document, Source, pair_name, prefixed
from gpt_jax.core.ranges import Inside
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import sources


class Part(NamedTuple):
  """A document, or a piece of one, and the split that it belongs to."""

  document: Document
  held_out: bool


class Split(NamedTuple):
  """A corpus, and which of its texts are held out; by default none are."""

  source: Source
  # Documents whose names have the same parent stay together: the two sides of
  # a pair, and the pieces that a document was cut into (`sources.parents`).
  parent: Callable[[str], str]
  # Whether parts are pairs, a source and then its target, both on one side.
  pairs: bool
  # Whether the documents of a parent are held out.
  side: Callable[[str], bool] | None = None
  # The fraction of the characters that is held out, at the end of the corpus.
  tail: float = 0.0
  other: Source | None = None  # held out as a whole, after `source`

  @property
  def holds_out(self) -> bool:
    """Whether there is a held-out side."""
    return bool(self.side or self.tail or self.other)

  @property
  def num_bytes(self) -> int | None:
    """About how much text there is; None if unknown."""
    sizes = [source.num_bytes for source in self._sources()]
    return None if None in sizes else sum(filter(None, sizes))

  @property
  def files(self) -> dict[str, str]:
    """Name -> path of what is read."""
    named = self.other.files if self.other else {}
    return self.source.files | {f'holdout: {n}': p for n, p in named.items()}

  def check(self) -> None:
    """Refuses what cannot be read, by the beginnings of the files."""
    for source in self._sources():
      source.check()

  def _sources(self) -> list[Source]:
    return [self.source, *([self.other] if self.other else [])]

  def parts(self, skipped: Counter[str] | None = None) -> Iterator[Part]:
    """All texts, always in the same order; may be read several times.

    Args:
      skipped: what is left out is added to it, at the end.
    """
    if self.tail:
      yield from self._cut(skipped)
      return
    yield from self._sided(skipped)
    if self.other:
      yield from self._held_out(skipped)

  @property
  def num_units(self) -> int:
    """Parts that can be read by themselves.

    0 where the side of a document depends on the documents before it.
    """
    return 0 if self.tail else sum(len(s.units) for s in self._sources())

  def unit(self, number: int, skipped: Counter[str]) -> Iterator[Part]:
    """One of `num_units`; in order, they give `parts`."""
    if (beyond := number - len(self.source.units)) >= 0:
      return self._held_out(skipped, beyond)
    return self._sided(skipped, number)

  def _sided(self, skipped: Counter[str] | None, unit: int | None = None) -> Iterator[Part]:
    for document in self.source.documents(skipped, unit):
      name = self.parent(document.name) if self.side else ''
      yield Part(document, self.side is not None and self.side(name))

  def _held_out(self, skipped: Counter[str] | None, unit: int | None = None) -> Iterator[Part]:
    assert self.other is not None
    counts = Counter[str]()
    for document in self.other.documents(counts, unit):
      yield Part(document, True)
    if skipped is not None:
      skipped.update(prefixed(counts, 'holdout'))

  def _cut(self, skipped: Counter[str] | None) -> Iterator[Part]:
    total = sum(len(document.text) for document in self.source.documents())
    left = int(total * (1 - self.tail))
    documents = self.source.documents(skipped)
    if self.pairs:
      for both in zip(documents, documents, strict=True):
        yield from (Part(document, left <= 0) for document in both)
        left -= sum(len(document.text) for document in both)
      return
    for document in documents:
      text = document.text
      if text[:left]:
        yield Part(document._replace(text=text[:left]), False)
      if text[left:]:
        yield Part(document._replace(text=text[left:]), True)
      left = max(left - len(text), 0)


# Says what is held out of a corpus.
Holdout = Callable[[Split], Split]


def split(source: str, holdout: str, field: str = 'data.source') -> Split:
  """Splits the corpus `source` as the call `holdout` says.

  Args:
    field: the config's field that has `source`.
  """
  pairs = sources.of_pairs(field, source)
  parent = pair_name if pairs else sources.parents(field, source)
  corpus = Split(sources.load(field, source), parent, pairs)
  field = 'data.holdout'
  (call,) = spec.parse(field, holdout)[:1]
  if call.name in sources.SOURCES:
    if sources.of_pairs(field, holdout) != pairs:
      kinds = ('single texts', 'pairs of texts')
      raise UsageError(
        f'{field}={holdout!r}: holds {kinds[not pairs]}, and data.source='
        f'{source!r} {kinds[pairs]}; name a source of the same kind'
      )
    return corpus._replace(other=sources.load(field, holdout))
  # With the sources, so that an error lists them all.
  choices = spec.Table({**HOLDOUTS, **sources.SOURCES.rows})
  build: Holdout = spec.build(field, holdout, choices)
  return build(corpus)


def cleaned(corpus: Split, source: Source) -> Split:
  """The same split of what cleaning left, which may cut any document."""
  return corpus._replace(source=source, parent=sources.without_numbers)


def documents(fraction: Inside = 0.02) -> Holdout:
  """Whole documents or pairs, chosen by a hash of their name.

  A file that is one document stays on its side when others are added, removed
  or reordered; a line of a table is named by its number, and moves with it. All
  passages of a document, and all pieces that cleaning cuts it into, are on the
  same side, because the hash is of the document's own name.
  """
  return lambda corpus: corpus._replace(side=chosen(fraction))


def chosen(fraction: Inside = 0.02) -> Callable[[str], bool]:
  """Whether `documents` holds out the document of this name."""

  def held_out(name: str) -> bool:
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], 'big') / 2**64 < fraction

  return held_out


def tail(fraction: Inside = 0.1) -> Holdout:
  """The last characters of the corpus, counted over all documents.

  The document at the boundary is cut in two; a pair there is for training. With
  one file this is nanoGPT's split of its character data, where
  `data[:int(n * 0.9)]` trains.
  """
  return lambda corpus: corpus._replace(tail=fraction)


def none() -> Holdout:
  """Nothing is held out."""
  return lambda corpus: corpus


HOLDOUTS = {'documents': documents, 'tail': tail, 'none': none}
