# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pairs of texts: held out, prepared, packed into rows, and in the ledger."""

import itertools
import logging
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from configs import base
from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core.files import files
from gpt_jax.core.rows import batch_rows, ledger, row_makers, row_order
from gpt_jax.core.rows.rows import Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import holdout
from gpt_jax.core.tokens import encode, manifest, prepare
from gpt_jax.core.tokens import store as array_writer
from gpt_jax.core.tokens.store import TokenStore
from gpt_jax.papers.transformer import parallel_rows, seq2seq
from tests.support import tiny

LENGTH, SEED = 61, 5
CALL = "parallel_text('t.en', 't.de')"


@pytest.fixture
def pairs(tmp_path, monkeypatch):
  """Two files of 211 lines; no text is there twice."""
  monkeypatch.chdir(tmp_path)
  rng = np.random.default_rng(7)
  sizes = rng.integers(2, 20, (211, 2))
  sizes[[11, 97], [0, 1]] = 80  # longer than a row
  texts = [
    [f'{i}{mark}' + 'abcdefg'[i % 7] * int(size) for size in both]
    for mark, (i, both) in zip('+' * 211, enumerate(sizes), strict=True)
  ]
  texts = [[a, b.replace('+', '-')] for a, b in texts]
  for side, language in enumerate(('en', 'de')):
    lines = ''.join(f'{both[side]}\n' for both in texts)
    (tmp_path / f't.{language}').write_text(lines)
  return texts


@pytest.fixture
def config(pairs, make_config):
  """With the pairs of both files."""
  made = make_config(CALL, 'documents(fraction=0.2)')
  made.data.rows = 'parallel'
  return made


def decoded(store):
  """The texts of a store, pair after pair."""
  tokenizer = (store._corpus or store).tokenizer()
  starts = [0, *store.document_ends[:-1]]
  texts = [
    tokenizer.decode(store.tokens(int(a), int(b)))
    for a, b in zip(starts, store.document_ends, strict=True)
  ]
  return [list(both) for both in zip(texts[::2], texts[1::2], strict=True)]


@pytest.mark.parametrize('held_out', ['documents(fraction=0.2)', 'tail(fraction=0.2)', 'other'])
def test_pairs_are_held_out_whole(pairs, config, held_out):
  if held_out == 'other':
    pathlib.Path('v.jsonl').write_text('{"a": "left", "b": "right"}\n')
    held_out = "parallel_jsonl('v.jsonl', 'a', 'b')"
  config.data.holdout = held_out
  store = prepare.ensure(config, 'D')
  validation = store.validation()
  assert validation is not None
  found = decoded(store), decoded(validation)
  if 'json' in held_out:
    assert found == (pairs, [['left', 'right']])
  else:
    assert sorted(found[0] + found[1]) == sorted(pairs)
    assert 20 < len(found[1]) < 70
  if 'tail' in held_out:
    assert found[0] + found[1] == pairs
    # The pair at the boundary trains.
    size = sum(len(text) for both in pairs for text in both)
    trained = sum(len(text) for both in found[0] for text in both)
    last = sum(map(len, found[0][-1]))
    assert trained - last < int(size * 0.8) <= trained
  for split in (store, validation):
    assert split.manifest.pairs
    assert split.manifest.num_documents == 2 * len(decoded(split))
  # A pair stays on its side when others come before it or go.
  if 'documents' in held_out:
    shorter = holdout.split(CALL, held_out).parts()
    names = {p.document.name.rpartition('#')[0] for p in shorter if p.held_out}
    assert len(names) == len(found[1])


def test_a_store_without_pairs_keeps_its_fingerprint(corpus, make_config):
  store = prepare.ensure(make_config(), 'D')
  assert not store.manifest.pairs
  entries = manifest.read('D').__dict__ | {'pairs': True}
  assert manifest.Manifest(**entries).fingerprint != store.manifest.fingerprint
  del entries['pairs']  # as a store of earlier versions
  before = manifest.Manifest(**entries)
  assert before.fingerprint == store.manifest.fingerprint


def test_what_was_stopped_is_gone_on_with(config, monkeypatch):
  monkeypatch.setattr(encode, '_BATCH', 1)
  monkeypatch.setattr(array_writer, '_CHUNK', 64)
  monkeypatch.setattr(array_writer, '_SHARD_BYTES', 512)
  monkeypatch.setattr(manifest, 'BLOCK', 64)
  prepare.prepare(config, 'E')

  def stop(stage, done, total):
    if stage == 'tokenizing' and done > 1501:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(config, 'D', stop)
  assert files.read('D', 'unfinished.npz')
  prepare.prepare(config, 'D')
  for name in files.names('E'):
    assert files.read('D', name) == files.read('E', name), name


def test_equal_pairs_are_told(pairs, config, caplog):
  # Copies of whole pairs, and of one side.
  both = [*pairs, *pairs[:60], *([a, 'another'] for a, _ in pairs[60:90])]
  for side, language in enumerate(('en', 'de')):
    lines = ''.join(f'{texts[side]}\n' for texts in both)
    pathlib.Path(f't.{language}').write_text(lines)
  parts = [*holdout.split(CALL, config.data.holdout).parts()]
  sides = {True: set(), False: set()}
  for source, target in zip(parts[::2], parts[1::2], strict=True):
    assert source.held_out == target.held_out
    sides[source.held_out].add((source.document.text, target.document.text))
  expected = len(sides[True] & sides[False])
  with caplog.at_level(logging.INFO):
    prepare.prepare(config, 'D')
  assert expected > 5
  count = sum(part.held_out for part in parts) // 2
  assert f'{expected} of {count} held-out pairs are in' in caplog.text


@pytest.mark.parametrize('length', [17, 61, 1009])
def test_rows_hold_what_fits(pairs, length):
  counts = np.array([[len(a) + 1, len(b) + 1] for a, b in pairs])
  counts = np.minimum(counts, length)
  order, begins = parallel_rows.pack(counts, length)
  assert sorted(order.tolist()) == [*range(len(pairs))]
  assert begins[0] == 0 and begins[-1] == len(pairs)
  rows = [order[a:b] for a, b in itertools.pairwise(begins)]
  assert all(len(row) for row in rows)
  used = np.array([counts[row].sum(axis=0) for row in rows])
  assert used.max() <= length
  # Two neighbouring rows have no room for each other's pairs, on average.
  assert used.max(axis=1).mean() > length * (0.55 if length < 61 else 0.8)
  if length == 61:  # neighbours of the corpus are in different rows
    row_of = np.empty(len(pairs), int)
    for number, row in enumerate(rows):
      row_of[row] = number
    assert np.mean(np.diff(row_of) == 0) < 0.1


def test_rows_written_out(pairs, config, caplog):
  config.data.holdout = 'none'
  store = prepare.ensure(config, 'D')
  with caplog.at_level(logging.INFO):
    source = row_order.RowSource(store, length=LENGTH, seed=SEED)
  assert f'2 of 211 pairs have a side of more than model.context_length={LENGTH}' in caplog.text
  eos, count = store.manifest.eos_id, source.rows_per_epoch
  found = []
  for epoch in range(2):
    rows, _ = source.read(batch_rows.even(count, LENGTH)(epoch))
    found.append(of_rows(rows, eos))
  cut = [[[*text.encode(), eos][:LENGTH] for text in both] for both in pairs]
  # Each pair once in an epoch; rows are the same, in another order.
  for rows in found:
    assert sorted(both for row in rows for both in row) == sorted(cut)
  assert found[0] != found[1] and sorted(found[0]) == sorted(found[1])
  other = row_order.RowSource(store, length=LENGTH, seed=SEED + 1)
  rows, _ = other.read(batch_rows.even(count, LENGTH)(0))
  assert found[0] != of_rows(rows, eos)
  assert sorted(found[0]) == sorted(of_rows(rows, eos))


def of_rows(rows, eos):
  """The ids of each pair of each row, by segments and positions."""
  found = []
  for i in range(len(rows.tokens)):
    sides = []
    for side in (rows.source, rows):
      real, segments = side.real[i], side.segments[i]
      count = int(real.sum())
      assert real[:count].all()
      assert np.all(segments[count:] == segments[:count].max() + 1)
      texts = [side.tokens[i][segments == s] for s in range(segments.max())]
      if count == len(real):
        texts.append(side.tokens[i][segments == segments.max()])
      for s, ids in enumerate(texts):
        places = side.positions[i][segments == s]
        assert places.tolist() == [*range(len(ids))]
      sides.append([ids.tolist() for ids in texts])
    assert len(sides[0]) == len(sides[1])
    found.append([list(both) for both in zip(*sides, strict=True)])
  return found


def test_a_start_stands_before_each_source(config):
  config.data.holdout = 'none'
  store = prepare.ensure(config, 'D')
  store.source_special = store.special._replace(prompt_start=(3,))
  rows, _ = row_order.RowSource(store, length=LENGTH, seed=SEED).read(batch_rows.even(5, LENGTH)(0))
  for row in of_rows(rows, store.manifest.eos_id):
    for source, target in row:
      assert source[0] == 3 and target[0] != 3
      assert len(source) <= LENGTH


@pytest.mark.slow
def test_the_loss_of_packed_pairs_is_that_of_each_alone(config):
  config.data.holdout = 'none'
  store = prepare.ensure(config, 'D')
  vocab_size, eos = store.manifest.vocab_size, store.manifest.eos_id
  model = tiny.model(
    **dict(num_layers=1, num_encoder_layers=1, vocab_size=vocab_size),
    **dict(context_length=LENGTH, position='sinusoidal', d_model=16),
  )
  objective = seq2seq.Seq2Seq().bind(model)
  params = objective.init(jax.random.key(0))
  loss = jax.jit(lambda batch: objective.loss(params, batch, None)[:2])
  source = row_order.RowSource(store, length=LENGTH, seed=SEED)
  rows, _ = source.read(batch_rows.even(2, LENGTH)(0))
  packed = loss(seq2seq.parallel_batch(rows, eos))
  pairs = [both for row in of_rows(rows, eos) for both in row]
  assert len(pairs) > 4
  tokens = np.full((2, len(pairs), LENGTH), store.special.pad_id, np.int32)
  for i, both in enumerate(pairs):
    for side, ids in enumerate(both):
      tokens[side, i, : len(ids)] = ids
  lengths = np.array([[len(ids) for ids in both] for both in pairs]).T
  real = np.arange(LENGTH) < lengths[..., None]
  alone = Rows(tokens[1], real[1], source=Rows(tokens[0], real[0]))
  each = loss(seq2seq.parallel_batch(alone, eos))
  np.testing.assert_allclose(packed[0], each[0], rtol=1e-5)
  assert packed[1] == each[1] == lengths[1].sum()


def test_a_store_on_disk_has_the_same_rows(config):
  here = prepare.ensure(config, 'D')
  there = TokenStore.open('D', in_memory_bytes=0).ordered(CALL, 'parallel')
  taken = batch_rows.BatchRows(0, 8, LENGTH, 0)
  (one, _), (other, _) = (
    row_order.RowSource(store, length=LENGTH, seed=SEED).read(taken) for store in (here, there)
  )
  assert one.source is not None and other.source is not None
  np.testing.assert_array_equal(one.tokens, other.tokens)
  np.testing.assert_array_equal(one.source.tokens, other.source.tokens)


def test_evaluation_has_each_pair_once(pairs, config):
  store = prepare.ensure(config, 'D')
  validation = store.validation()
  assert validation is not None
  batches = row_order.evaluation_batches(
    validation, length=LENGTH, rows=3, make_batch=lambda rows, keys: {'x': rows}
  )
  eos, found = store.manifest.eos_id, []
  for batch in batches:
    rows: Any = batch['x']
    assert len(rows.tokens) == 3
    kept = rows.real.any(axis=1)
    only = rows._replace(
      **{n: getattr(rows, n)[kept] for n in FIELDS},
      source=rows.source._replace(**{n: getattr(rows.source, n)[kept] for n in FIELDS}),
    )
    found += [both for row in of_rows(only, eos) for both in row]
  expected = [[[*text.encode(), eos][:LENGTH] for text in both] for both in decoded(validation)]
  assert sorted(found) == sorted(expected)


FIELDS = ('tokens', 'real', 'segments', 'positions')


def test_the_ledger_shows_both_sides(pairs, config):
  config.data.holdout = 'none'
  store = prepare.ensure(config, 'D')
  arguments: Any = dict(seed=SEED, start=1, stop=4, rows=batch_rows.even(5, LENGTH))
  batches = row_order.batches(store, **arguments, make_batch=lambda rows, keys: {'x': rows})
  eos = store.manifest.eos_id
  for step, batch in zip(ledger.steps(store, **arguments), batches, strict=True):
    for row, held in zip(step.rows, of_rows(batch['x'], eos), strict=True):
      assert len(row.spans) == len(row.second) == len(held)
      for source, target, both in zip(row.spans, row.second, held, strict=True):
        assert (source.document % 2, target.document) == (0, source.document + 1)
        for side, (span, ids) in enumerate(zip((source, target), both, strict=True)):
          text = [*pairs[source.document // 2][side].encode(), eos]
          assert ids == text[span.start : span.stop]


def test_a_mixture_packs_each_source_by_itself(pairs, config):
  config.data.sources = {'a': CALL, 'b': "parallel_text('v.en', 'v.de')"}
  config.data.source = 'mixture(a:0.25, b:0.75)'
  config.data.holdout = 'none'
  for language in ('en', 'de'):
    lines = ''.join(f'{i} {language}\n' for i in range(307))
    pathlib.Path(f'v.{language}').write_text(lines)
  store = prepare.ensure(config, 'D')
  source = row_order.RowSource(store, length=LENGTH, seed=SEED)
  rows, _ = source.read(batch_rows.BatchRows(0, 400, LENGTH, 0))
  kinds, eos = [], store.manifest.eos_id
  texts = {'en': 'b', 'de': 'b'}
  for row in of_rows(rows, eos):
    found = {texts.get(bytes(ids[:-1]).decode()[-2:], 'a') for both in row for ids in both}
    assert len(found) == 1
    kinds += found
  assert abs(kinds.count('b') / 400 - 0.75) < 0.03
  maker = row_makers.load(store, LENGTH)
  assert sum(maker.sizes.values()) == maker.num_rows
  assert maker.tokens == {
    'a': sum(min(len(b) + 1, LENGTH) for _, b in pairs),
    'b': sum(len(f'{i} de') + 1 for i in range(307)),
  }


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'rows': 'stream'}, ["data.rows='stream'", CALL, "'parallel'"]),
    ({'rows': 'documents'}, ["data.rows='documents'", 'join the sides']),
    ({'source': "text('t.en')"}, ["data.rows='parallel'", 'parallel_text(']),
    ({'clean': 'minhash'}, ["data.clean='minhash'", 'are pairs', "'none'"]),
    ({'holdout': "text('t.en')"}, ['data.holdout', 'single texts', 'pairs']),
  ],
)
def test_what_does_not_go_together_is_refused_at_once(config, changes, words):
  config.data.update(changes)
  with pytest.raises(UsageError) as e:
    prepare.ensure(config, 'D')
  for word in words:
    assert word in str(e.value), str(e.value)
  assert '\n' not in str(e.value)
  assert not pathlib.Path('D').exists()


def test_sets_and_stores_are_of_the_same_kind(config):
  config.eval.sets = {'more': "text('t.en')"}
  with pytest.raises(UsageError, match=r'eval.sets.more=.* holds none'):
    prepare.ensure(config, 'D')
  config.eval.sets = {'more': CALL}
  store = prepare.ensure(config, 'D')
  assert manifest.read('D/eval/more').pairs
  with pytest.raises(UsageError, match=r"data.rows='stream': would join"):
    row_makers.load(store.ordered(CALL, 'stream'), LENGTH)


def test_inspect_prints_both_sides(config, capsys):
  whole: Any = base.get_config().unlock()
  whole.data.update(config.data.to_dict() | {'holdout': 'none'})
  whole.tokenizer.name = 'bytes'
  whole.model.update(context_length=LENGTH, vocab_size=257)
  whole.batch.size = 3
  whole.schedule.num_steps = 7
  whole = config_lib.resolve_model(whole)
  store = prepare.ensure(whole, 'W/data')
  pathlib.Path('W/config.json').write_text(config_lib.to_json(whole))
  main(['inspect', '--workdir=W', '--steps=4', '--text'])
  lines = iter(capsys.readouterr().out.splitlines())
  (step,) = ledger.steps(store, **dict(seed=0, start=3, stop=4, rows=batch_rows.even(3, LENGTH)))
  for row in step.rows:
    head = next(lines)
    sources, targets = head.partition('documents ')[2].split(' to ')
    for text, spans in ((sources, row.spans), (targets, row.second)):
      assert text == ', '.join(f'{d} [{a}:{b}]' for d, a, b in spans)
    for _ in row.spans:
      source, target = next(lines).split(' => ')
      assert source.partition('+')[0] == target.partition('-')[0]
  assert next(lines, None) is None
