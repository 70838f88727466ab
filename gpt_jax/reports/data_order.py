# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws which documents the steps of a run read."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpt_jax.reports import runs


class DocumentRead(NamedTuple):
  """That a step reads from a document.

  Attributes:
    step: as a metrics.jsonl counts them.
    document: its number in the token store.
    kind: what its color says: its source in a mixture, else the epoch.
  """

  step: int
  document: int
  kind: str


def reads(rows: Iterable[Mapping[str, Any]]) -> list[DocumentRead]:
  """What the rows of `store_data.rows` read; a document once in a step."""
  found = {
    DocumentRead(row['step'], span['document'], row['source'] or f'epoch {row["epoch"]}'): None
    for row in rows
    for span in (*row['spans'], *row.get('second', ()))
  }
  return [*found]


def chart(rows: Iterable[Mapping[str, Any]], num_documents: int, out: str) -> str:
  """A point for each document that a step reads.

  Args:
    rows: see `reads`.
    out: the PNG.

  Returns:
    `out`.
  """
  found = reads(rows)
  figure, axes = runs.load_pyplot().subplots(figsize=(7, 4.5), dpi=120)
  kinds = dict.fromkeys(read.kind for read in found)
  size = 12 if len(found) < 1000 else 2
  for i, kind in enumerate(kinds):
    of_kind = [read for read in found if read.kind == kind]
    axes.scatter(
      [read.step for read in of_kind],
      [read.document for read in of_kind],
      size,
      f'C{i % 10}',
      label=runs.label(kind),
      linewidths=0,
    )
  different = len({read.document for read in found})
  axes.set_title(f'{different:,} of {num_documents:,} documents read', fontsize=10)
  axes.set_xlabel('steps')
  axes.set_ylabel('document of the token store')
  axes.set_ylim(-0.5, num_documents - 0.5)
  axes.legend(loc='upper right', fontsize=8)
  return runs.save_figure(figure, out)
