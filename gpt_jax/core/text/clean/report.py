# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What cleaning removed: counts by step, source and rule, with examples.

D/cleaning.json, in the folder of a token store, holds

  {'steps': [{'step': name, 'sources': {source: {
    'documents_in', 'bytes_in', 'documents_out', 'bytes_out',
    'rules': {rule: {'documents', 'documents_removed', 'count', 'bytes',
      'examples': [{'document', 'why', 'like'?}]}}}},
    'notes'?: {'evaluation_texts', 'too_short', 'words'}}],
   'skipped': {kind: count}}
"""

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gpt_jax.core.files import files
from gpt_jax.core.files.document import utf8_size
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text.clean.steps import Document, Outcome

NAME = 'cleaning.json'

# Examples of each rule, and characters of one.
EXAMPLES, _EXAMPLE = 20, 300

COUNTS = ('documents_in', 'bytes_in', 'documents_out', 'bytes_out')
RULE_COUNTS = ('documents', 'documents_removed', 'count', 'bytes')


class Tally(NamedTuple):
  """What a rule of a step did to the documents of a source.

  Attributes:
    first: where it first occurs: a document's place, a removal's number.
    numbers: `RULE_COUNTS`; of the rule '', all documents, `COUNTS`.
    examples: the first ones, each with where it is.
  """

  first: list[int]
  numbers: Counter[str]
  examples: list[tuple[list[int], dict[str, Any]]]


# By step, source and rule. They add up in any order: see `merge`.
Counts = dict[tuple[int, str, str], Tally]


def count(counts: Counts, step: int, document: Document, outcome: Outcome):
  """Counts what a step did to a document, which comes after those before."""
  left = outcome.documents
  whole = {
    'documents_in': 1,
    'bytes_in': utf8_size(document.text),
    'documents_out': len(left),
    'bytes_out': sum(utf8_size(d.text) for d in left),
  }
  _add(counts, (step, document.source, ''), [document.place, 0], whole, [])
  last = len(outcome.removals)
  for number, removal in enumerate(outcome.removals, start=1):
    where = [document.place, number]
    numbers = {
      'documents': 1,
      'documents_removed': int(number == last and not left),
      'count': removal.count,
      'bytes': removal.num_bytes,
    }
    why = removal.example
    why = why[:_EXAMPLE] + '...' * (len(why) > _EXAMPLE)
    example: dict[str, Any] = {'document': document.name, 'why': why}
    if removal.like is not None:
      example['like'] = removal.like
    key = step, document.source, removal.rule
    _add(counts, key, where, numbers, [(where, example)])


def merge(parts: Iterable[Counts]) -> Counts:
  """Adds up, without changing `parts`."""
  total: Counts = {}
  for part in parts:
    for key, tally in part.items():
      _add(total, key, *tally)
  return total


def _add(counts: Counts, key: Any, first: Any, numbers: Any, examples: Any):
  tally = counts.setdefault(key, Tally(first, Counter(), []))
  tally.numbers.update(numbers)
  both = [*tally.examples, *examples]
  both = heapq.nsmallest(EXAMPLES, both, key=lambda example: example[0])
  counts[key] = Tally(min(tally.first, first), tally.numbers, both)


def to_json(counts: Counts) -> list[Any]:
  """The counts of a shard, for `of_json`."""
  return [[*key, *tally] for key, tally in counts.items()]


def of_json(rows: list[Any]) -> Counts:
  """The inverse of `to_json`."""
  return {
    (step, source, rule): Tally(first, Counter(numbers), examples)
    for step, source, rule, first, numbers, examples in rows
  }


def entries(names: Sequence[str], counts: Counts) -> list[dict[str, Any]]:
  """The report, sources and rules in the order in which they first occur."""
  report = [{'step': name, 'sources': {}} for name in names]
  for (step, source, rule), tally in sorted(counts.items(), key=lambda item: item[1].first):
    sources = report[step]['sources']
    if rule:
      examples = [example for _, example in tally.examples]
      numbers = {name: tally.numbers[name] for name in RULE_COUNTS}
      sources[source]['rules'][rule] = numbers | {'examples': examples}
    else:
      numbers = {name: tally.numbers[name] for name in COUNTS}
      sources[source] = numbers | {'rules': {}}
  return report


def examples(entries: list[dict]):
  """Yields all examples, which the caller may change in place."""
  for entry in entries:
    for counts in entry['sources'].values():
      for rule in counts['rules'].values():
        yield from rule['examples']


def summary(entries: list[dict]) -> dict[str, Any]:
  """The manifest's entry: sizes before and after, and removals by rule."""
  if not entries:
    return {}
  first, last = (entries[i]['sources'].values() for i in (0, -1))
  removed = {}
  for entry in entries:
    for counts in entry['sources'].values():
      for rule, found in counts['rules'].items():
        name = f'{entry["step"]}: {rule}'
        known = removed.setdefault(name, {'documents_removed': 0, 'bytes': 0})
        for key in known:
          known[key] += found[key]
  return {
    'documents_in': sum(c['documents_in'] for c in first),
    'bytes_in': sum(c['bytes_in'] for c in first),
    'documents_out': sum(c['documents_out'] for c in last),
    'bytes_out': sum(c['bytes_out'] for c in last),
    'rules': removed,
  }


def read(folder: str) -> list[dict[str, Any]]:
  """The entries of a token store's report; [] where nothing was cleaned."""
  data = files.read(folder, NAME)
  if data is None:
    return []
  try:
    return json.loads(data)['steps']
  except (ValueError, RecursionError, KeyError, TypeError) as e:
    raise _damaged(folder) from e


def check(folder: str, entries: list[dict[str, Any]], expected: dict[str, Any]) -> None:
  """Refuses a report whose counts are not those of the store's manifest."""
  try:
    found = summary(entries)
  except (KeyError, TypeError, AttributeError) as e:
    raise _damaged(folder) from e
  if found != expected:
    raise _damaged(folder)


def _damaged(folder: str) -> UsageError:
  return UsageError(
    f'{files.join(folder, NAME)}: is damaged; remove it, the token store does not need it'
  )


def table(entries: list[dict]) -> list[str]:
  """Lines of a table: step and source, in, out; below each its rules."""
  rows = [['cleaning', 'documents', 'bytes', '-> documents', 'bytes']]
  for entry in entries:
    for source, counts in entry['sources'].items():
      name = f'{entry["step"]} [{source}]' if source else entry['step']
      rows.append([name, *(f'{counts[key]:,}' for key in COUNTS)])
      for rule, found in sorted(counts['rules'].items()):
        gone = found['documents_removed']
        changed = found['documents'] - gone
        rows.append(
          [
            f'  {rule}',
            f'{changed:,} changed' if changed else '',
            '',
            f'-{gone:,}' if gone else '',
            f'-{found["bytes"]:,}',
          ]
        )
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    '  '.join(
      [row[0].ljust(widths[0])]
      + [cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True)]
    ).rstrip()
    for row in rows
  ] + [
    f'{entry["step"]}: {notes["too_short"]:,} of '
    f'{notes["evaluation_texts"]:,} evaluation texts have fewer than '
    f'{notes["words"]} words and were not looked for'
    for entry in entries
    if (notes := entry.get('notes'))
  ]
