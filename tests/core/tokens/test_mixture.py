# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mixtures: shares, epochs, phases; the ledger and the batches agree."""

import collections
import dataclasses

import numpy as np
import pytest

from gpt_jax.core.files import files
from gpt_jax.core.objectives import causal
from gpt_jax.core.rows import batch_rows, ledger, row_order
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens import encode, manifest, mixture, prepare, store
from gpt_jax.core.tokens.mixture import Order

LENGTH = 13
SIZES = {'books': 31, 'code': 7, 'web': 997}
TEXT = 'mixture(web:0.6, books:0.3, code:0.1)'
REPLACING = "mixture(web:0.5, books:0.5, draw='with_replacement')"


def order(text, seed=5):
  return Order(mixture.phases(text), SIZES, length=LENGTH, seed=seed)


def places(made, start, stop):
  return [made.place(i) for i in range(start, stop)]


def drawn(made, stop):
  """How many of the rows before `stop` each source gave."""
  return {n: round(e * SIZES[n]) for n, e in made.epochs(stop).items()}


def test_every_stretch_has_the_shares():
  made = order(TEXT)
  for name, weight in {'web': 0.6, 'books': 0.3, 'code': 0.1}.items():
    for block in (1, 2, 3):
      assert drawn(made, 10_000 * block)[name] == round(weight * 1e4) * block
    counts = np.diff([drawn(made, 512 * i)[name] for i in range(60)])
    # A random draw would stray by 3 * sqrt(512 / 4) = 34.
    assert np.all(abs(counts - 512 * weight) < 5) and len({*counts}) > 1
  # Another arrangement in each block: no period.
  patterns = [made._pattern(0, block)[0] for block in (0, 1)]
  assert np.mean(patterns[0] == patterns[1]) < 0.8


def test_each_row_once_before_any_twice():
  found = places(order(TEXT), 0, 400)
  for name, size in SIZES.items():
    rows = [(p.epoch, p.row) for p in found if p.source == name]
    assert [e for e, _ in rows] == [j // size for j in range(len(rows))]
    for start in range(0, len(rows) - size + 1, size):
      epoch = [row for _, row in rows[start : start + size]]
      assert sorted(epoch) == [*range(size)]
  counts = collections.Counter(p.source for p in found)
  assert order(TEXT).epochs(400) == {name: counts[name] / size for name, size in SIZES.items()}


def test_with_replacement_rows_come_as_chance_has_it():
  found = places(order(REPLACING), 0, 1000)
  counts = np.bincount([p.row for p in found if p.source == 'books'])
  # 500 draws of 31 rows: chi-squared with 30 degrees, 99.9% below 59.7.
  assert len(counts) == 31 and len({*counts}) > 3
  assert ((counts - 500 / 31) ** 2 / (500 / 31)).sum() < 59.7


def test_a_phase_goes_on_where_the_last_one_was():
  begin = 12_345  # within a block
  later = f'mixture(web:0.2, books:0.8, from_token={begin * LENGTH - 1})'
  before, both = order(TEXT), order(f'{TEXT}, {later}')
  for i in (*range(0, begin, 997), begin - 1):
    assert both.place(i) == before.place(i)
  assert both.epochs(begin) == before.epochs(begin)
  counts = drawn(before, begin)
  after = places(both, begin, begin + 300)
  assert abs(sum(p.source == 'books' for p in after) - 240) < 5
  assert all(p.source != 'code' for p in after)
  for name in ('web', 'books'):
    epochs = [p.epoch for p in after if p.source == name]
    draws = range(counts[name], counts[name] + len(epochs))
    assert epochs == [j // SIZES[name] for j in draws]
  assert mixture.extends(TEXT, f'{TEXT}, {later}', begin * LENGTH - 1)
  assert not mixture.extends(TEXT, f'{TEXT}, {later}', begin * LENGTH)
  assert not mixture.extends(TEXT, 'stdlib', 0)


def test_the_order_of_earlier_versions():
  # A run is resumed in the order it began with: never change these.
  found = places(order(TEXT), 9_996, 10_002)
  assert [(p.source, p.row) for p in found] == ORDER
  assert [p.row for p in places(order(REPLACING), 0, 5)] == REPLACED


ORDER = [('web', 204), ('web', 370), ('books', 19), ('web', 391), ('web', 47), ('web', 419)]
REPLACED = [743, 6, 600, 1, 692]


@pytest.fixture
def config(corpus, make_config):
  return make_config(
    source='mixture(low:0.25, high:0.75)',
    sources={
      'low': "text('docs/0*.txt')",
      'high': "text('docs/[123]*.txt')",
      'unused': "text('gone')",
    },
  )


def test_the_ledger_names_the_documents_in_the_batches(config):
  made = prepare.ensure(config, 'D')
  ends = made.manifest.parts
  assert list(ends) == ['high', 'low'] and ends['low'] == len(made)
  tokens = np.split(made.tokens(0, len(made)), made.document_ends[:-1])
  arguments = dict(seed=5, start=1, stop=40, rows=batch_rows.even(7, LENGTH))
  found = [*ledger.steps(made, **arguments)]
  batches = [*row_order.batches(made, **arguments, make_batch=causal.make_batch)]
  for step, batch in zip(found, batches, strict=True):
    for b, row in enumerate(step.rows):
      claimed = np.concatenate([tokens[d][i:j] for d, i, j in row.spans])
      np.testing.assert_array_equal(claimed[:-1], batch['inputs'][b])
      np.testing.assert_array_equal(claimed[1:], batch['targets'][b])
      low = row.begin >= ends['high']
      assert row.source == ('low' if low else 'high')
      # No row crosses from one source into the other.
      assert low or row.begin + LENGTH + 1 <= ends['high']
  names = [row.source for step in found for row in step.rows]
  assert abs(names.count('low') - len(names) / 4) <= 3
  epochs = row_order.RowSource(made, length=LENGTH, seed=5).epochs(280)
  assert set(epochs) == {'epochs', 'epochs/high', 'epochs/low'}
  # Its documents are short: it is drawn more often than its size has it.
  assert epochs['epochs/low'] > epochs['epochs'] > epochs['epochs/high'] > 0


def test_weights_are_no_part_of_the_store(config):
  before = prepare.ensure(config, 'D')
  config.data.source = 'mixture(high:0.5, low:0.5), mixture(low:1.0, from_token=100)'
  after = prepare.ensure(config, 'D')
  assert after.manifest == before.manifest
  assert before.mixture != after.mixture
  assert store.TokenStore.open('D').ordered('stdlib').mixture == []
  config.data.sources.low = "text('docs/1*.txt')"
  with pytest.raises(UsageError, match='was prepared with'):
    prepare.ensure(config, 'D')


def test_preparing_a_mixture_is_gone_on_with(config, monkeypatch):
  monkeypatch.setattr(encode, '_BATCH', 1)
  monkeypatch.setattr(store, '_CHUNK', 64)
  monkeypatch.setattr(store, '_SHARD_BYTES', 1024)
  monkeypatch.setattr(manifest, 'BLOCK', 64)

  def report(stage, done, total):
    if stage == 'tokenizing' and done > 5000:
      raise KeyboardInterrupt

  expected = prepare.prepare(config, 'E')
  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(config, 'D', report)
  assert files.read('D', 'unfinished.npz')
  assert prepare.prepare(config, 'D') == expected and len(expected.parts) == 2


def test_tokens_of_full_rows_are_shared_as_rows_are():
  tokens = order(f"{TEXT[:-1]}, shares='tokens')")
  assert places(tokens, 0, 300) == places(order(TEXT), 0, 300)


def test_examples_in_proportion_up_to_a_limit():
  # T5's rate of a task is min(e, K) / sum of these; its rows hold so many
  # examples each.
  examples = {'web': 5000, 'books': 31 * 3, 'code': 7 * 2}
  calls = 'mixture(web:1, books:1, code:1, shares="examples", limit=500)'
  made = Order(mixture.phases(calls), SIZES, length=LENGTH, seed=5, examples=examples)
  rates = {'web': 500, 'books': 93, 'code': 14}
  wanted = {n: rates[n] * SIZES[n] / examples[n] for n in SIZES}
  rows = drawn(made, 10_000)
  seen = {n: rows[n] * examples[n] / SIZES[n] for n in SIZES}
  for name in SIZES:
    share = wanted[name] / sum(wanted.values())
    assert abs(rows[name] - 1e4 * share) <= 1
    # A row of web is 5 examples: that much is lost to rounding.
    assert seen[name] / seen['web'] == pytest.approx(rates[name] / 500, rel=0.02)
  twice = calls.replace('code:1', 'code:2')
  more = Order(mixture.phases(twice), SIZES, length=LENGTH, seed=5, examples=examples)
  ratio = drawn(more, 10_000)['code'] / drawn(more, 10_000)['books']
  assert ratio == pytest.approx(2 * rows['code'] / rows['books'], rel=0.02)


def test_a_store_counts_the_examples_of_its_sources(config):
  config.data.source = "mixture(high:1, low:1, shares='examples', limit=9)"
  made = prepare.ensure(config, 'D')
  border = made.manifest.parts['high']
  after = sum(end > border for end in made.document_ends.tolist())
  counts = {'high': len(made.document_ends) - after, 'low': after}
  assert min(counts.values()) > 9
  assert made.num_examples() == counts
  texts = made.manifest
  made.manifest = dataclasses.replace(texts, pairs=True)
  assert made.num_examples() == {name: count // 2 for name, count in counts.items()}
  made.manifest = texts
  assert made.ordered('mixture(high:1.0)').num_examples() == {}
  source = made.ordered(config.data.source)
  shares = row_order.RowSource(source, length=LENGTH, seed=5)
  rows = shares._maker.sizes
  drawn = collections.Counter(shares.place(i).source for i in range(2003))
  wanted = {n: min(9, counts[n]) * rows[n] / counts[n] for n in counts}
  assert drawn['low'] == pytest.approx(2003 * wanted['low'] / sum(wanted.values()), abs=1)


@pytest.mark.parametrize('size', [2**16 - 1, 2**16, 2**16 + 1, 2**16 + 2])
def test_each_epoch_has_every_row_once(size):
  """Grain's cipher alone repeats a row of one more than a power of four."""
  order = mixture.Shuffle(size, 3)
  for epoch in range(2):
    found = np.array([order[epoch * size + i] for i in range(size)])
    np.testing.assert_array_equal(np.sort(found), np.arange(size))
