# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which part of the corpus is held out for evaluation."""

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gpt_jax import spec
from gpt_jax.ranges import Inside
from gpt_jax.spec import UsageError
from gpt_jax.text import sources
from gpt_jax.text.pairs import name_of
from gpt_jax.text.sources import Document, Source


class Part(NamedTuple):
  """A document, or a piece of one, and the split that it belongs to."""

  document: Document
  held_out: bool


class Unit(NamedTuple):
  """A part of the corpus that can be read by itself."""

  parts: Callable[[], Iterator[Part]]
  skipped: Callable[[], dict[str, int]]  # as in `Source`


class Split(NamedTuple):
  """The corpus, split: a stream of parts that may be read several times."""

  parts: Callable[[], Iterator[Part]]  # always in the same order
  num_bytes: int | None  # about how much text there is; None if unknown
  holds_out: bool  # whether there is a held-out side
  files: dict[str, str]  # name -> path of what is read
  # In order, they give the parts; None where the side of a document depends on
  # the documents before it.
  units: Sequence[Unit] | None = None
  skipped: Callable[[], dict[str, int]] = dict  # as in `Source`
  # Whether parts are pairs, a source and then its target, both on one side.
  pairs: bool = False


class Corpus(NamedTuple):
  """A corpus to split."""

  source: Source
  # Documents whose names have the same parent stay together: the two sides of
  # a pair, and the pieces that a document was cut into (`sources.parents`).
  parent: Callable[[str], str]
  pairs: bool  # see `Split`


Build = Callable[[Corpus], Split]


def split(
  source: str,
  holdout: str,
  corpus: Source | None = None,
  field: str = 'data.source',
) -> Split:
  """Splits the corpus `source` as the call `holdout` says.

  Args:
    corpus: the source after cleaning; None: it was not cleaned.
    field: the config's field that has `source`.
  """
  found = corpus or sources.load(field, source)
  pairs = sources.of_pairs(field, source)
  parent = name_of
  if not pairs:
    parent = sources.parents(field, source, cleaned=corpus is not None)
  field = 'data.holdout'
  (call,) = spec.parse(field, holdout)[:1]
  if call.name in sources.SOURCES:
    if sources.of_pairs(field, holdout) != pairs:
      kinds = ('single texts', 'pairs of texts')
      raise UsageError(
        f'{field}={holdout!r}: holds {kinds[not pairs]}, and data.source='
        f'{source!r} {kinds[pairs]}; name a source of the same kind'
      )
    other = sources.load(field, holdout)
    return _beside(found, other)._replace(pairs=pairs)
  choices = HOLDOUTS | sources.SOURCES  # so that an error lists them all
  build: Build = spec.build(field, holdout, choices)
  made = build(Corpus(found, parent, pairs))
  return made._replace(skipped=found.skipped, pairs=pairs)


def documents(fraction: Inside = 0.02) -> Build:
  """Whole documents or pairs, chosen by a hash of their name.

  A file that is one document stays on its side when others are added, removed
  or reordered; a line of a table is named by its number, and moves with it. All
  passages of a document, and all pieces that cleaning cuts it into, are on the
  same side, because the hash is of the document's own name.
  """
  held_out = chosen(fraction)

  def build(corpus: Corpus) -> Split:
    return _sided(lambda d: held_out(corpus.parent(d.name)), corpus.source)

  return build


def chosen(fraction: Inside = 0.02) -> Callable[[str], bool]:
  """Whether `documents` holds out the document of this name."""

  def held_out(name: str) -> bool:
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], 'big') / 2**64 < fraction

  return held_out


def tail(fraction: Inside = 0.1) -> Build:
  """The last characters of the corpus, counted over all documents.

  The document at the boundary is cut in two; a pair there is for training. With
  one file this is nanoGPT's split of its character data, where
  `data[:int(n * 0.9)]` trains.
  """

  def build(corpus: Corpus) -> Split:
    source = corpus.source

    def parts() -> Iterator[Part]:
      total = sum(len(document.text) for document in source.documents())
      left = int(total * (1 - fraction))
      found = source.documents()
      if corpus.pairs:
        for both in zip(found, found, strict=True):
          yield from (Part(document, left <= 0) for document in both)
          left -= sum(len(document.text) for document in both)
        return
      for name, text in found:
        if text[:left]:
          yield Part(Document(name, text[:left]), False)
        if text[left:]:
          yield Part(Document(name, text[left:]), True)
        left = max(left - len(text), 0)

    return Split(parts, source.num_bytes, True, source.files)

  return build


def none() -> Build:
  """Nothing is held out."""

  def build(corpus: Corpus) -> Split:
    split = _sided(lambda document: False, corpus.source)
    return split._replace(holds_out=False)

  return build


def _sided(held_out: Callable[[Document], bool], source: Source) -> Split:
  """Splits a source by its documents, each by itself."""

  def parts(part: Source) -> Iterator[Part]:
    return (Part(d, held_out(d)) for d in part.documents())

  return Split(
    functools.partial(parts, source),
    *(source.num_bytes, True, source.files),
    units=[Unit(functools.partial(parts, u), u.skipped) for u in source.units],
    skipped=source.skipped,
  )


def _beside(corpus: Source, other: Source) -> Split:
  """A corpus that trains, and another source that is held out."""

  def skipped(part: Source) -> dict[str, int]:
    return {f'holdout: {kind}': n for kind, n in part.skipped().items()}

  def parts() -> Iterator[Part]:
    yield from train.parts()
    yield from held.parts()

  renamed = [
    part._replace(skipped=functools.partial(skipped, part))
    for part in (other, *other.units)
  ]
  train = _sided(lambda document: False, corpus)
  held = _sided(lambda document: True, renamed[0]._replace(units=renamed[1:]))
  assert train.units is not None and held.units is not None
  sizes = corpus.num_bytes, other.num_bytes
  named = {f'holdout: {name}': path for name, path in other.files.items()}
  return Split(
    *(parts, None if None in sizes else sum(filter(None, sizes)), True),
    corpus.files | named,
    [*train.units, *held.units],
    skipped=lambda: train.skipped() | held.skipped(),
  )


HOLDOUTS = {'documents': documents, 'tail': tail, 'none': none}
