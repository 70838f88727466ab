# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The counts of `report`, added up in any order.

`report.merge` wants shards in their order: that decides which examples are
kept, and in which order sources and rules are told. Here each of them carries
its place instead, so that sums of sums are the same however they are made; what
is held does not grow with the number of shards.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

from gpt_jax.data.clean import report

# Step -> source -> [place, counts, rules], where rules are
# rule -> [place, counts, [(place, example)]]. A place is (shard, number in it).
Sums = list[dict[str, list[Any]]]


def sums(shard: int, entries: list[dict[str, Any]]) -> Sums:
  """Makes `Sums` of the counts of one shard: `report.Counts.entries`."""
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
  """Adds up; what it is given stays as it is."""
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
            report.EXAMPLES, [*kept[2], *examples], key=lambda e: e[0]
          )
  return total


def entries(names: Sequence[str], total: Sums) -> list[dict[str, Any]]:
  """What `report.merge` makes of all shards in their order.

  Args:
    names: of the steps.
    total: of all shards; of none it is empty.
  """
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
