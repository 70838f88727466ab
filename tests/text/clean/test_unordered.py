# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What cleaning on many machines needs, without Beam."""

import copy
import json
import random

import numpy as np

from gpt_jax.files import files
from gpt_jax.files.document import Document as Raw
from gpt_jax.files.document import Source
from gpt_jax.text.clean import report, shards, shared, steps
from gpt_jax.text.clean.minhash import MinHash
from gpt_jax.text.clean.steps import Document, Outcome, Removal


def counts(rng, shard):
  found = report.Counts(['first', 'second'])
  for i in range(rng.randrange(5)):
    source = rng.choice('abc')
    document = Document(i, source, f'{source}/{shard}:{i}', 'x' * i)
    rules = rng.sample('pqrs', rng.randrange(4))
    removals = [Removal(rule, 2, i, f'why {i}') for rule in rules]
    found.add(i % 2, document, Outcome([document][: i % 3], removals))
  return found.entries


def merged(total, more):
  """Adds the entries of later documents to those of earlier ones."""
  for into, entry in zip(total, more, strict=True):
    for source, counts in entry['sources'].items():
      known = into['sources'].setdefault(
        source, dict.fromkeys(report.COUNTS, 0) | {'rules': {}}
      )
      for key in report.COUNTS:
        known[key] += counts[key]
      for rule, found in counts['rules'].items():
        kept = known['rules'].setdefault(
          rule, dict.fromkeys(report.RULE_COUNTS, 0) | {'examples': []}
        )
        for key in report.RULE_COUNTS:
          kept[key] += found[key]
        kept['examples'] += found['examples']
        del kept['examples'][report.EXAMPLES :]


def test_counts_in_any_order_are_those_in_order():
  rng = random.Random(7)
  parts = [counts(rng, shard) for shard in range(211)]
  expected = report.Counts(['first', 'second']).entries
  for part in parts:
    merged(expected, copy.deepcopy(part))
  kept = [len(r['examples']) for r in rules(expected)]
  assert max(kept) == report.EXAMPLES
  mixed = [report.sums(i, part) for i, part in enumerate(parts)]
  rng.shuffle(mixed)
  while len(mixed) > 1:  # sums of sums, and of none
    count = rng.randrange(2, 9)
    mixed = [*mixed[count:], report.merge(mixed[:count])]
    mixed.append(report.merge([]))
    mixed = [m for m in mixed if m] or mixed
  total = report.merge([[], *mixed])
  found = report.entries(['first', 'second'], total)
  assert json.dumps(found) == json.dumps(expected)  # in the same order, too
  empty = report.entries(['first'], report.merge([]))
  assert empty == report.Counts(['first']).entries


def rules(entries):
  for entry in entries:
    for source in entry['sources'].values():
      yield from source['rules'].values()


def test_places_ascend_and_tell_their_shard(monkeypatch):
  monkeypatch.setattr(shared, '_SHARD', 20)
  monkeypatch.setattr(shared, '_DOCUMENTS', 3)
  texts = ['x' * n for n in (7, 30, 1, 1, 1, 1, 19, 3)]
  source = Source(lambda: (Raw('a/b', text) for text in texts), None, {})
  last = (1 << 22) - 1
  found = [
    (number, document)
    for unit in (0, 1, last)
    for number, batch in shared.batches(unit, source, unit > 0)
    for document in batch
  ]
  assert [d.text for _, d in found] == texts * 3
  assert [d.source for _, d in found] == [''] * 8 + ['a'] * 16
  places = np.array([d.place for _, d in found], np.uint64)
  assert [*places] == sorted({*places.tolist()}) and places[-1] > 1 << 63
  assert np.diff(places).min() == steps.PLACES
  numbers = [number for number, _ in found]
  assert shared.shards_of(places).tolist() == numbers
  assert len({*numbers}) == 4 * 3


def test_a_shard_goes_by_findings_of_large_places(tmp_path):
  """Of neighbouring places that are one as floats, the right one goes."""
  first = 1 << 60
  documents = [
    Document(first + i * steps.PLACES, '', f'{i}', f'text {i}')
    for i in range(5)
  ]
  step = MinHash(0.8, 2, 2, 1)
  findings = np.array([[documents[3].place], [documents[1].place]], np.uint64)
  phases = shards.phases([step])
  folder = str(tmp_path)
  written = shared.write(phases, 1, documents, findings, folder, 5)
  left = [d.name for d in shared.read(folder, 1, 5)]
  assert left == ['0', '1', '2', '4']
  assert written.counts[0]['sources']['']['documents_in'] == 5
  before = {n: files.read(folder, n) for n in files.names(folder)}
  shared.write(phases, 1, documents, findings, folder, 5)
  assert before == {n: files.read(folder, n) for n in files.names(folder)}
