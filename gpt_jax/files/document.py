# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents, sources of them, and what happens to bad ones.

A source is a stream that may be read several times, always in the same order.
Anything that cannot be read becomes a `Bad`: the stream hands it to `skip`,
which raises it, or counts it where the call says `on_error='skip'`.
"""

import collections
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from gpt_jax.spec import UsageError

log = logging.getLogger('gpt_jax')

_BLOCK = 1 << 20  # characters encoded at once


# How the names of the two documents of a pair end: see `text.pairs`.
SIDES = ('#source', '#target')


class Document(NamedTuple):
  """A named text; within a source no two documents have the same name."""

  name: str
  text: str


def encoded(text: str) -> Iterator[bytes]:
  """A text in UTF-8, in blocks, so that a long one is not copied whole."""
  for start in range(0, len(text), _BLOCK):
    yield text[start : start + _BLOCK].encode()


def utf8_size(text: str) -> int:
  """The length of a text in UTF-8."""
  return sum(map(len, encoded(text)))


def of_source(name: str) -> bool:
  """Whether a document is the source of a pair, by its name."""
  return name.endswith(SIDES[0])


class Bad(UsageError):
  """A file, or a part of one, that cannot be read."""

  def __init__(self, where: str, kind: str, detail: str = ''):
    """`kind` says what is wrong; bad documents are counted by it."""
    super().__init__(f'{where}: {kind}{detail}')
    self.kind = kind


Skip = Callable[[Bad], None]
# What becomes of a bad document: an error, or a count of those left out.
OnError = Literal['fail', 'skip']

# Starts a stream of documents, some of which may hold no text.
Stream = Callable[[Skip], Iterator[Document]]


class Unit(NamedTuple):
  """A part of a source that can be read by itself, for instance a file."""

  stream: Stream  # starts the stream of its documents
  skipped: Callable[[], dict[str, int]] = dict  # see `Source`


class Reader(NamedTuple):
  """What a function of `sources.SOURCES` returns."""

  units: Sequence[Unit]  # in order, they give the stream of documents
  files: dict[str, str]  # name -> path of what is read, for noticing changes
  # About how much text there is; None where files are compressed.
  num_bytes: int | None = None
  on_error: OnError = 'fail'
  empty: str = 'held no text'  # what messages say of a document without text
  # The stream of documents, where it is not just the units one after the other.
  stream: Stream | None = None
  # What the sources that it reads left out; see `Source`.
  skipped: Callable[[], dict[str, int]] = dict


class Source(NamedTuple):
  """A stream of documents that hold text, and that may be read again."""

  documents: Callable[[], Iterator[Document]]  # starts the stream
  num_bytes: int | None  # about how much text there is; None if unknown
  files: dict[str, str]  # name -> path of what is read
  units: 'Sequence[Source]' = ()  # its parts; a part may hold no document
  # What the last complete reading left out: kind -> count.
  skipped: Callable[[], dict[str, int]] = dict


def build(call: str, reader: Reader) -> Source:
  """Leaves out documents that are bad or hold no text, and logs how many.

  Args:
    call: how messages name the source: `data.source='...'`.
    reader: what is read.
  """
  streams = [unit.stream for unit in reader.units]
  if reader.stream:
    streams = [reader.stream]
  documents, skipped = _stream(call, reader, streams, whole=True)
  units = []
  for unit in reader.units:
    stream, of_unit = _stream(call, reader, [unit.stream], whole=False)
    units.append(
      Source(stream, None, {}, skipped=_together(unit.skipped, of_unit))
    )
  return Source(
    *(documents, reader.num_bytes, reader.files, units),
    skipped=_together(reader.skipped, skipped),
  )


def _stream(
  call: str, reader: Reader, streams: Sequence[Stream], *, whole: bool
) -> tuple[Callable[[], Iterator[Document]], dict[str, int]]:
  """Joins streams; the second result is filled by reading them to the end."""
  logged = False  # a source is read several times
  skipped: dict[str, int] = {}

  def documents() -> Iterator[Document]:
    nonlocal logged
    counts, examples = collections.Counter(), {}
    num_documents = num_empty = 0

    def skip(bad: Bad):
      if reader.on_error == 'fail':
        raise bad
      counts[bad.kind] += 1
      examples.setdefault(bad.kind, str(bad))

    for stream in streams:
      for document in stream(skip):
        if document.text:
          num_documents += 1
          yield document
        else:
          num_empty += 1
    skipped.clear()
    skipped.update(counts)
    if num_empty:
      skipped[reader.empty] = num_empty
    if not logged:
      logged = True
      for kind, count in counts.items():
        log.warning(
          '%s: skipped %d that %s; the first: %s',
          *(call, count, kind, examples[kind]),
        )
      if num_empty:
        log.info('%s: left out %d that %s', call, num_empty, reader.empty)
    if whole and not num_documents:
      raise UsageError(f'{call}: its files hold no text; name other files')

  return documents, skipped


def _together(
  inner: Callable[[], dict[str, int]], own: dict[str, int]
) -> Callable[[], dict[str, int]]:
  return lambda: inner() | own
