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
from collections.abc import Iterable, Sequence
from typing import Any

from gpt_jax.files import files
from gpt_jax.files.document import utf8_size
from gpt_jax.spec import UsageError
from gpt_jax.text.clean.steps import Document, Outcome

NAME = 'cleaning.json'

# Examples of each rule, and characters of one.
EXAMPLES, _EXAMPLE = 20, 300

COUNTS = ('documents_in', 'bytes_in', 'documents_out', 'bytes_out')
RULE_COUNTS = ('documents', 'documents_removed', 'count', 'bytes')


class Counts:
  """Counts what each step did to some documents."""

  def __init__(self, names: Sequence[str]):
    """`names` are the names of the steps."""
    self.entries: list[dict[str, Any]] = [
      {'step': step, 'sources': {}} for step in names
    ]

  def add(self, step: int, document: Document, outcome: Outcome):
    """Counts what a step did to a document."""
    sources = self.entries[step]['sources']
    counts = sources.setdefault(
      document.source, dict.fromkeys(COUNTS, 0) | {'rules': {}}
    )
    counts['documents_in'] += 1
    counts['bytes_in'] += utf8_size(document.text)
    counts['documents_out'] += len(outcome.documents)
    counts['bytes_out'] += sum(utf8_size(d.text) for d in outcome.documents)
    for i, removal in enumerate(outcome.removals):
      rule = counts['rules'].setdefault(
        removal.rule, dict.fromkeys(RULE_COUNTS, 0) | {'examples': []}
      )
      rule['documents'] += 1
      last = i == len(outcome.removals) - 1
      rule['documents_removed'] += last and not outcome.documents
      rule['count'] += removal.count
      rule['bytes'] += removal.num_bytes
      if len(rule['examples']) < EXAMPLES:
        example: dict[str, Any] = {'document': document.name}
        why = removal.example
        example['why'] = why[:_EXAMPLE] + '...' * (len(why) > _EXAMPLE)
        if removal.like is not None:
          example['like'] = removal.like
        rule['examples'].append(example)


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
    raise UsageError(
      f'{files.join(folder, NAME)}: is damaged; remove it, the token store '
      'does not need it'
    ) from e


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
            *(f'  {rule}', f'{changed:,} changed' if changed else '', ''),
            *(f'-{gone:,}' if gone else '', f'-{found["bytes"]:,}'),
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


# Counts of shards that can be added in any order: each source, rule and example
# has its place, (shard, number in it), so that all ways to add give one result.
# Step -> source -> [place, counts, rules], where rules are
# rule -> [place, counts, [(place, example)]].
Sums = list[dict[str, list[Any]]]


def sums(shard: int, entries: list[dict[str, Any]]) -> Sums:
  """Turns the counts of one shard, `Counts.entries`, into `Sums`."""
  return [
    {
      source: [
        (shard, i),
        {key: n for key, n in counts.items() if key != 'rules'},
        {
          rule: [
            (shard, j),
            {key: n for key, n in found.items() if key != 'examples'},
            [((shard, k), e) for k, e in enumerate(found['examples'])],
          ]
          for j, (rule, found) in enumerate(counts['rules'].items())
        },
      ]
      for i, (source, counts) in enumerate(entry['sources'].items())
    }
    for entry in entries
  ]


def merge(parts: Iterable[Sums]) -> Sums:
  """Adds up, without changing `parts`."""
  total: Sums = []
  for part in parts:
    total = total or [{} for _ in part]
    for into, step in zip(total, part, strict=True):
      for source, (place, counts, rules) in step.items():
        known = into.setdefault(source, [place, {}, {}])
        known[0] = min(known[0], place)
        _add(known[1], counts)
        for rule, (place, found, examples) in rules.items():
          kept = known[2].setdefault(rule, [place, {}, []])
          kept[0] = min(kept[0], place)
          _add(kept[1], found)
          kept[2] = heapq.nsmallest(
            EXAMPLES, [*kept[2], *examples], key=lambda e: e[0]
          )
  return total


def entries(names: Sequence[str], total: Sums) -> list[dict[str, Any]]:
  """The entries of the report, sources and rules in the order of the shards."""
  found = [
    {
      source: counts
      | {
        'rules': {
          rule: sums_of | {'examples': [example for _, example in examples]}
          for rule, (_, sums_of, examples) in _in_order(rules)
        }
      }
      for source, (_, counts, rules) in _in_order(step)
    }
    for step in total
  ]
  return [
    {'step': name, 'sources': sources}
    for name, sources in zip(names, found or [{} for _ in names], strict=True)
  ]


def _add(into: dict[str, int], counts: dict[str, int]):
  for key, n in counts.items():
    into[key] = into.get(key, 0) + n


def _in_order(parts: dict[str, list[Any]]) -> list[tuple[str, list[Any]]]:
  return sorted(parts.items(), key=lambda part: part[1][0])
