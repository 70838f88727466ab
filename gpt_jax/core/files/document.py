# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents, sources of them, and what happens to bad ones.

A source is a stream that may be read several times, always in the same order.
Anything that cannot be read becomes a `Bad`, which the stream hands to a
`Skip`.
"""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from gpt_jax.core.spec import UsageError

log = logging.getLogger('gpt_jax')

_BLOCK = 1 << 20  # characters encoded at once


# How the names of the two documents of a pair end, a source and its target.
SIDES = ('#source', '#target')


class Document(NamedTuple):
  """A named text; within a source no two documents have the same name."""

  name: str
  text: str


class Skippable(Document):
  """A document that is left out if it turns out to be bad later on."""


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


def pair_name(document: str) -> str:
  """The name of the pair that a document is a side of."""
  return document.rpartition('#')[0]


class Bad(UsageError):
  """A file, or a part of one, that cannot be read."""

  def __init__(self, where: str, kind: str, detail: str = ''):
    """`kind` says what is wrong; bad documents are counted by it."""
    super().__init__(f'{where}: {kind}{detail}')
    self.where, self.kind, self.detail = where, kind, detail


def unreadable(where: str, error: Exception) -> Bad:
  """The error of a file that is there and cannot be read."""
  why = getattr(error, 'strerror', None) or f'{error}'.partition('\n')[0]
  remedy = 'fetch the file again'
  if isinstance(error, PermissionError):
    remedy = 'give yourself the right to read it'
  return Bad(where, 'cannot be read', f': {why}; {remedy}')


# What becomes of a bad document: an error, or a count of those left out.
OnError = Literal['fail', 'skip']


# Gets each bad document.
OnBad = Callable[[Bad], None]


class Skip:
  """What a stream of documents does with what is bad.

  Attributes:
    counts: what was left out: kind -> count.
  """

  def __init__(self, on_error: OnError | None = None):
    self._on_error: OnError | None = on_error
    self.counts: Counter[str] = Counter()
    self.examples: dict[str, Bad] = {}

  def __call__(self, bad: Bad) -> None:
    """Raises, or counts it, where the call says `on_error='skip'`."""
    if self._on_error != 'skip':
      raise _failing(bad, self._on_error) from bad
    self.counts[bad.kind] += 1
    self.examples.setdefault(bad.kind, bad)


# Starts a stream of documents, some of which may hold no text.
Stream = Callable[[Skip], Iterator[Document]]


@dataclasses.dataclass(kw_only=True)
class Source:
  """Documents that may be read several times: what `data.source` names.

  Attributes:
    units: parts that can be read by themselves; in order, they give all.
    files: name -> path of what is read, for noticing changes.
    num_bytes: about how much text there is; None if unknown.
    on_error: None: the call has no such argument.
    empty: what messages say of a document without text.
    look: raises `Bad` if the beginning of a file cannot be read.
    inner: sources that it reads.
    whole: all documents, where that is not just the units one after the other.
    call: how messages name it: `data.source='...'`.
  """

  units: Sequence[Stream]
  files: dict[str, str] = dataclasses.field(default_factory=dict)
  num_bytes: int | None = None
  on_error: OnError | None = None
  empty: str = 'held no text'
  look: Callable[[str], None] | None = None
  inner: Sequence['Source'] = ()
  whole: Stream | None = None
  call: str = ''
  _logged: bool = dataclasses.field(default=False, init=False)

  def documents(
    self, skipped: Counter[str] | None = None, unit: int | None = None
  ) -> Iterator[Document]:
    """All documents that hold text, in the same order each time.

    Args:
      skipped: what is left out is added to it, at the end.
      unit: only those of this unit.
    """
    skip, num_documents, num_empty = Skip(self.on_error), 0, 0
    streams = [self.whole] if self.whole else self.units
    for stream in streams if unit is None else [self.units[unit]]:
      for document in stream(skip):
        if not document.text:
          num_empty += 1
          continue
        num_documents += 1
        if self.on_error == 'skip':
          document = Skippable(*document)
        yield document
    if unit is None:
      self._log(skip, num_empty)
      if not num_documents:
        raise UsageError(f'{self.call}: its files hold no text; name other files')
    if num_empty:
      skip.counts[self.empty] = num_empty
    if skipped is not None:
      skipped.update(skip.counts)

  def check(self) -> None:
    """Raises what reading would raise of the beginning of a file.

    Before long work: a tokenizer's training may take hours.
    """
    for source in self.inner:
      source.check()
    if self.look is None or self.on_error == 'skip':
      return
    for path in self.files.values():
      try:
        self.look(path)
      except Bad as e:
        raise _failing(e, self.on_error) from e

  def _log(self, skip: Skip, num_empty: int) -> None:
    """Logs what was left out, once, though it is read several times."""
    if self._logged:
      return
    self._logged = True
    for kind, example in skip.examples.items():
      log.warning(
        '%s: skipped %d that %s; the first: %s', self.call, skip.counts[kind], kind, example
      )
    if num_empty:
      log.info('%s: left out %d that %s', self.call, num_empty, self.empty)


def prefixed(counts: Counter[str], prefix: str) -> dict[str, int]:
  """The counts of a source within another one."""
  return {f'{prefix}: {kind}': count for kind, count in counts.items()}


def _failing(bad: Bad, on_error: OnError | None) -> Bad:
  """The error of what is bad, with the other remedy, if the call has it."""
  if on_error is None:
    return bad
  return Bad(
    bad.where, bad.kind, f"{bad.detail}; or write on_error='skip' in the call, to leave it out"
  )
