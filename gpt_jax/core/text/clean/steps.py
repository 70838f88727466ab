# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a step of cleaning is: see the package's docstring."""

import abc
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpt_jax.core.files.document import utf8_size

# Places from one document of the input to the next: the most pieces of one.
PLACES = 256


class Document(NamedTuple):
  """A document on its way."""

  place: int  # its address, unique; see the package's docstring
  source: str  # the name within a mixture, else ''
  name: str  # of the document
  text: str  # never empty


class Removal(NamedTuple):
  """What a rule took from a document."""

  rule: str  # in words, such as 'line without terminal punctuation'
  count: int  # how many times the rule applied
  num_bytes: int  # of UTF-8 that it took
  example: str  # the text, or why; shortened by the report
  # The place of the document that is kept instead of a removed one, if any is.
  like: int | None = None


class Outcome(NamedTuple):
  """What a step leaves of a document."""

  documents: list[Document]  # none, one, or the pieces of one
  removals: list[Removal]  # what it took away


class Rows(NamedTuple):
  """The keys by which a document is grouped."""

  keys: np.ndarray  # uint64 [num_rows]
  values: np.ndarray  # one for each key; uint64 [num_rows]
  # A short description of the document; uint32 [sketch_size].
  sketch: np.ndarray = np.empty(0, np.uint32)


class Findings(NamedTuple):
  """Findings about documents, by place; both uint64 [num_findings]."""

  places: np.ndarray
  values: np.ndarray


# Places [N] -> sketches [N, sketch_size].
Sketches = Callable[[np.ndarray], np.ndarray]


class Step(abc.ABC):
  """A step: a frozen dataclass, whose fields are arguments in `data.clean`."""

  name: str  # what the report calls it

  @property
  def files(self) -> dict[str, str]:
    """Name -> path of the files that the step reads."""
    return {}

  def check(self) -> None:
    """Refuses what cannot work, before any document is read."""
    return None

  def ready(self) -> 'Step':
    """The step after work on no document, such as training a classifier."""
    return self

  def notes(self) -> dict[str, int]:
    """Numbers for the report, besides counts."""
    return {}


class Local(Step):
  """A step that looks at one document."""

  @abc.abstractmethod
  def clean(self, document: Document) -> Outcome: ...


class Global(Step):
  """A step that looks at all documents."""

  sketch_size: int = 0  # numbers in a sketch; 0: none are needed
  concludes: bool = False  # whether `conclude` looks across groups

  @abc.abstractmethod
  def rows(self, text: str) -> Rows:
    """The keys by which a document is grouped."""

  @abc.abstractmethod
  def judge(
    self, keys: np.ndarray, places: np.ndarray, values: np.ndarray, sketches: Sketches
  ) -> Findings:
    """Compares documents that have a key in common.

    Args:
      keys: of whole groups; sorted by key, then place, then value; uint64.
      places: of the documents, uint64.
      values: those of `rows`, uint64.
      sketches: looks up sketches by place.
    """

  def conclude(self, findings: Findings) -> Findings:
    """Turns the findings of all groups into the decision."""
    return findings

  @abc.abstractmethod
  def clean(self, document: Document, values: np.ndarray) -> Outcome:
    """Cleans a document.

    Args:
      document: the one that `rows` saw.
      values: of its findings, sorted, each once.
    """


def keep(document: Document) -> Outcome:
  """The outcome that keeps the document as it is."""
  return Outcome([document], [])


def remove(document: Document, rule: str, example: str, like: int | None = None) -> Outcome:
  """The outcome that removes the whole document."""
  size = utf8_size(document.text)
  return Outcome([], [Removal(rule, 1, size, example, like)])


def group_starts(keys: np.ndarray) -> np.ndarray:
  """Where each group of equal, sorted keys begins; int64 [num_groups]."""
  changes = np.ones(len(keys), bool)
  changes[1:] = keys[1:] != keys[:-1]
  return np.flatnonzero(changes)
