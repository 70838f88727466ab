# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which part of the corpus is held out for evaluation."""

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gpt_jax import spec
from gpt_jax.data import sources
from gpt_jax.data.sources import Document, Source
from gpt_jax.spec import UsageError


class Part(NamedTuple):
  """A document, or a piece of one, and the split that it belongs to."""

  document: Document
  held_out: bool


class Split(NamedTuple):
  """The corpus as parts, read as a stream as often as asked.

  Attributes:
    parts: the parts, always in the same order.
    num_bytes: of their text, for progress; None where it is not known.
    holds_out: whether any part is held out.
    files: name -> path of what is read.
    skipped: what was left out, as in `sources.Source`.
  """

  parts: Callable[[], Iterator[Part]]
  num_bytes: int | None
  holds_out: bool
  files: dict[str, str]
  skipped: Callable[[], dict[str, int]] = dict


def split(source: str, holdout: str, corpus: Source | None = None) -> Split:
  """Splits the corpus `source` as the call `holdout` says.

  Args:
    source: call-string.
    holdout: call-string.
    corpus: what is left of the source after cleaning, where it was.

  Raises:
    UsageError: either call is wrong.
  """
  field = 'data.holdout'
  corpus = corpus or sources.load('data.source', source)
  (call,) = spec.parse(field, holdout)[:1]
  if call.name in sources.SOURCES:
    other = sources.load(field, holdout)
    return _other(corpus, other)._replace(
      skipped=lambda: (
        corpus.skipped()
        | {f'holdout: {kind}': n for kind, n in other.skipped().items()}
      )
    )
  choices = HOLDOUTS | sources.SOURCES  # so that an error lists them all
  made = spec.build(field, holdout, choices)(corpus)
  return made._replace(skipped=corpus.skipped)


def documents(fraction: float = 0.02) -> Callable[[Source], Split]:
  """Whole documents, chosen by a hash of their name.

  A document stays on its side when others are added, removed or reordered.
  """
  _check(fraction)

  def build(corpus: Source) -> Split:
    def parts() -> Iterator[Part]:
      for document in corpus.documents():
        digest = hashlib.sha256(document.name.encode()).digest()
        share = int.from_bytes(digest[:8], 'big') / 2**64
        yield Part(document, share < fraction)

    return Split(parts, corpus.num_bytes, True, corpus.files)

  return build


def tail(fraction: float = 0.1) -> Callable[[Source], Split]:
  """The last characters of the corpus, counted over all documents.

  The document at the boundary is cut in two. For one file this is the split
  of nanoGPT's character data: `data[:int(n * 0.9)]` trains.
  """
  _check(fraction)

  def build(corpus: Source) -> Split:
    def parts() -> Iterator[Part]:
      total = sum(len(document.text) for document in corpus.documents())
      left = int(total * (1 - fraction))
      for name, text in corpus.documents():
        if text[:left]:
          yield Part(Document(name, text[:left]), False)
        if text[left:]:
          yield Part(Document(name, text[left:]), True)
        left = max(left - len(text), 0)

    return Split(parts, corpus.num_bytes, True, corpus.files)

  return build


def none() -> Callable[[Source], Split]:
  """Nothing is held out."""

  def build(corpus: Source) -> Split:
    def parts() -> Iterator[Part]:
      return (Part(document, False) for document in corpus.documents())

    return Split(parts, corpus.num_bytes, False, corpus.files)

  return build


def _other(corpus: Source, other: Source) -> Split:
  def parts() -> Iterator[Part]:
    yield from (Part(document, False) for document in corpus.documents())
    yield from (Part(document, True) for document in other.documents())

  named = {f'holdout: {name}': path for name, path in other.files.items()}
  num_bytes = _sum(corpus.num_bytes, other.num_bytes)
  return Split(parts, num_bytes, True, corpus.files | named)


def _sum(a: int | None, b: int | None) -> int | None:
  return None if a is None or b is None else a + b


def _check(fraction: float):
  if not 0 < fraction < 1:
    raise UsageError(
      f'data.holdout: fraction={fraction!r} must lie between 0 and 1; to hold '
      "nothing out write 'none'"
    )


HOLDOUTS = {'documents': documents, 'tail': tail, 'none': none}
