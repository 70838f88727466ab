# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The stages of cleaning, and sums of counts in any order."""

import json
import random

import numpy as np

from gpt_jax.core.files.document import Document as Raw
from gpt_jax.core.text.clean import report, stages, steps
from gpt_jax.core.text.clean.minhash import MinHash
from gpt_jax.core.text.clean.steps import Document, Outcome, Removal

NAMES = ['first', 'second']


def outcomes(rng, shard):
  """What steps did to the documents of a shard, in order."""
  for i in range(rng.randrange(5)):
    source = rng.choice('abc')
    place = 1000 * shard + i
    document = Document(place, source, f'{source}/{shard}:{i}', 'x' * i)
    rules = rng.sample('pqrs', rng.randrange(4))
    removals = [Removal(rule, 2, i, f'why {i}') for rule in rules]
    yield i % 2, document, Outcome([document][: i % 3], removals)


def test_counts_in_any_order_are_those_in_order():
  rng = random.Random(7)
  in_order, parts = {}, []
  for shard in range(211):
    parts.append({})
    for outcome in outcomes(rng, shard):
      report.count(in_order, *outcome)
      report.count(parts[-1], *outcome)
  expected = report.entries(NAMES, in_order)
  kept = [len(r['examples']) for r in rules(expected)]
  assert max(kept) == report.EXAMPLES
  rng.shuffle(parts)
  saved = json.loads(json.dumps([*map(report.to_json, parts)]))
  parts = [*map(report.of_json, saved)]
  while len(parts) > 1:  # sums of sums, and of none
    number = rng.randrange(2, 9)
    parts = [*parts[number:], report.merge(parts[:number])]
    assert parts[-1] == report.merge([parts[-1], report.merge([])])
  found = report.entries(NAMES, parts[0])
  assert json.dumps(found) == json.dumps(expected)  # in the same order, too
  numbers = [rule['documents_removed'] for rule in rules(found)]
  assert {*map(type, numbers)} == {int}
  assert report.entries(['first'], {}) == [{'step': 'first', 'sources': {}}]


def rules(entries):
  for entry in entries:
    for source in entry['sources'].values():
      yield from source['rules'].values()


def test_places_ascend_and_tell_their_shard(monkeypatch):
  monkeypatch.setattr(stages, '_SHARD', 20)
  monkeypatch.setattr(stages, '_DOCUMENTS', 3)
  texts = ['x' * n for n in (7, 30, 1, 1, 1, 1, 19, 3)]
  raw = [Raw('a/b', text) for text in texts]
  last = (1 << 22) - 1
  found = [
    (number, document)
    for unit in (0, 1, last)
    for number, batch in stages.batches(raw, unit > 0, unit)
    for document in batch
  ]
  assert [d.text for _, d in found] == texts * 3
  assert [d.source for _, d in found] == [''] * 8 + ['a'] * 16
  places = np.array([d.place for _, d in found], np.uint64)
  assert [*places] == sorted({*places.tolist()}) and places[-1] > 1 << 63
  assert np.diff(places).min() == steps.PLACES
  numbers = [number for number, _ in found]
  assert stages.shards_of(places).tolist() == numbers
  assert len({*numbers}) == 4 * 3


def test_a_shard_goes_by_findings_of_large_places(tmp_path):
  """Of neighbouring places that are one as floats, the right one goes."""
  first = 1 << 60
  documents = [Document(first + i * steps.PLACES, '', f'{i}', f'text {i}') for i in range(5)]
  step = MinHash(0.8, 2, 2, 1)
  findings = np.array([[documents[3].place], [documents[1].place]], np.uint64)
  phase = stages.phases([step])[1]
  done = stages.clean_shard(phase, documents, findings)
  stages.write_sealed(str(tmp_path), stages.shard_name(1, 5), done.documents)
  left = [d.name for d in stages.read(str(tmp_path), 1, 5)]
  assert left == ['0', '1', '2', '4']
  assert done.counts[0, '', ''].numbers['documents_in'] == 5
  again = stages.clean_shard(phase, documents, findings)
  assert again.documents == done.documents


def test_findings_of_the_last_shard_are_found():
  """Whose end does not fit into 64 bits."""
  places = np.array([0, 1 << 22, (1 << 64) - 256], np.uint64)
  findings = np.stack([places, np.arange(3, dtype=np.uint64)])
  parts = dict(stages.by_shard(findings))
  assert [*parts] == [0, 1, (1 << 42) - 1]
  for shard, part in parts.items():
    assert np.array_equal(stages.of_shard(findings, shard), part)
  assert not [*stages.by_shard(stages.merged([]))]
