# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The global order: closed form, each row once an epoch, any host count."""

import gc
import itertools
import threading
import time
import types

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt_jax.core import config as config_lib
from gpt_jax.core.objectives import causal
from gpt_jax.core.optim import batch_ramp
from gpt_jax.core.rows import row_order
from gpt_jax.core.rows.batch_rows import BatchRows, even
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens import prepare
from gpt_jax.core.tokens.store import TokenStore

LENGTH = 13
SEED = 5


@pytest.fixture
def store(corpus, make_config):
  config = make_config(holdout='tail(fraction=0.3)')
  return prepare.ensure(config, 'D')


@pytest.fixture(params=[0, 1 << 30])
def either_store(request, store):
  """The same store on disk and in memory."""
  return TokenStore.open(store.folder, in_memory_bytes=request.param)


def windows(source, numbers):
  """Rows of the run with the token before each."""
  rows, _ = source.read(BatchRows(numbers.start, len(numbers), LENGTH, numbers.start))
  return np.column_stack([rows.before, rows.tokens])


five = even(5, LENGTH)


def ramp(step):
  """Three rows at steps 0..3, seven from then on."""
  first = 3 * step if step < 4 else 12 + 7 * (step - 4)
  return BatchRows(first, 3 if step < 4 else 7, LENGTH, first)


def share(host, num_hosts):
  """Parts as equal as they can be."""

  def rows(count):
    return slice(host * count // num_hosts, (host + 1) * count // num_hosts)

  return rows


def run(store, start, stop, rows=five, **kwargs):
  return list(
    row_order.batches(
      store,
      **(dict(seed=SEED, start=start, stop=stop, rows=rows)),
      **(dict(make_batch=causal.make_batch) | kwargs),
    )
  )


def assert_same(batches, others):
  assert len(batches) == len(others)
  for one, other in zip(batches, others, strict=True):
    assert one.keys() == other.keys()
    for key, value in one.items():
      np.testing.assert_array_equal(value, other[key])


def test_each_row_comes_once_an_epoch(store):
  source = row_order.RowSource(store, length=LENGTH, seed=SEED)
  n = source.rows_per_epoch
  assert n == (len(store) - 1) // LENGTH > 100
  orders = [source.row_numbers(range(e * n, e * n + n)) for e in range(3)]
  for order in orders:
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
  assert np.any(orders[0] != orders[1]) and np.any(orders[1] != orders[2])
  other = row_order.RowSource(store, length=LENGTH, seed=SEED + 1)
  # Seeds that are neighbours share no epoch.
  next_epoch = orders[1]
  assert np.any(other.row_numbers(range(n)) != next_epoch)
  assert np.any(other.row_numbers(range(n)) != orders[0])


class Rows:
  """Stands for a store of so many rows."""

  folder, mixture, rows = '', (), 'stream'
  manifest = types.SimpleNamespace(pairs=False)
  parts = TokenStore.parts

  def __init__(self, num_rows):
    self._num_rows = num_rows

  def __len__(self):
    return self._num_rows * LENGTH + 1

  def once(self, key, make):
    return make()


@pytest.mark.slow
@settings(max_examples=25)
@given(
  st.integers(1, 500),
  st.integers(0, 2**31),
  st.integers(1, 5),
  st.integers(1, 97),
  st.integers(1, 97),
)
def test_each_row_comes_once_an_epoch_of_any_size(n, seed, hosts, small, large):
  """Read by any number of hosts, in batches that grow in the second epoch."""
  source = row_order.RowSource(Rows(n), length=LENGTH, seed=seed)
  found, row = [], 0
  while row < 2 * n:
    count = min(small if row < n // 2 else large, 2 * n - row)
    for host in range(hosts):
      numbers = range(row, row + count)[share(host, hosts)(count)]
      found.append(source.row_numbers(numbers))
    row += count
  found = np.concatenate(found).reshape(2, n)
  np.testing.assert_array_equal(np.sort(found), np.tile(np.arange(n), (2, 1)))


def evidence(order):
  """How far an order is from a random one, as |z| of five statistics.

  Each is about standard normal for a random permutation. A shuffle within
  windows, a fixed stride and an order that an epoch shares with the one before
  were seen in other systems, as drifts and phase shifts of the loss.
  """
  n = order.shape[1]
  first, second = order / (n - 1) - 0.5
  scale = 12 * np.sqrt(n)
  # Neighbours of a run, rows a batch and rows 1000 apart, are not alike.
  lags = [scale * np.mean(first[:-lag] * first[lag:]) for lag in (1, 64, 1000)]
  # Nor is a place in one epoch like that in the next.
  lags.append(scale * np.mean(first * second))
  # Each stretch of the run has rows from everywhere in the store.
  size = 64
  table = np.histogram2d(np.arange(n), order[0], bins=size)[0]
  expected = n / size**2
  chi2 = np.sum((table - expected) ** 2) / expected
  free = (size - 1) ** 2
  uniform = (chi2 - free) / np.sqrt(2 * free)
  # No period: the largest peak of the spectrum is that of noise, whose excess
  # over log(number of frequencies) is about exponential.
  power = np.abs(np.fft.rfft(first)[1:-1]) ** 2 * 12 / n
  peak = power.max() - np.log(len(power))
  return np.abs([*lags, uniform, max(peak, 0) / 2])


def test_the_order_is_well_mixed():
  n = 1 << 16
  source = row_order.RowSource(Rows(n), length=LENGTH, seed=SEED)
  order = source.row_numbers(range(2 * n)).reshape(2, n)
  # The chance that a random permutation goes over this is below 1e-3.
  assert np.max(evidence(order)) < 4, evidence(order)


@pytest.mark.parametrize('broken', ['windows', 'stride', 'again', 'sorted', 'wave'])
def test_a_bad_shuffle_would_be_seen(broken):
  n = 1 << 16
  rng = np.random.default_rng(0)
  order = np.stack([rng.permutation(n) for _ in range(2)])
  assert np.max(evidence(order)) < 4
  if broken == 'windows':  # a buffer of 8192 rows, as of tf.data
    order = np.concatenate([rng.permutation(8192) + start for start in range(0, n, 8192)])[
      None
    ].repeat(2, 0)
  elif broken == 'stride':  # an affine shuffle
    order = np.stack([(np.arange(n) * 40_503 + 7) % n, order[1]])
  elif broken == 'again':  # the same order in each epoch
    order[1] = order[0]
  elif broken == 'sorted':
    order[0] = np.arange(n)
  else:  # rows of the store's first half come a little earlier in each batch
    wave = np.sin(2 * np.pi * np.arange(n) / 512)
    order[0] = np.argsort(np.argsort(0.1 * wave + rng.random(n)))
  assert np.max(evidence(order)) > 8


def test_the_order_of_earlier_versions(store):
  # A run is resumed in the order it began with: never change these numbers.
  source = row_order.RowSource(Rows(17), length=LENGTH, seed=SEED)
  assert source.row_numbers(range(20)).tolist() == ORDER


ORDER = [4, 16, 7, 6, 15, 13, 3, 2, 8, 14, 11, 1, 0, 10, 9, 5, 12, 10, 5, 1]


def test_a_row_is_inputs_and_what_follows(either_store):
  tokens = either_store.tokens(0, len(either_store))
  source = row_order.RowSource(either_store, length=LENGTH, seed=SEED)
  (batch,) = run(either_store, 3, 4)
  for b, r in enumerate(source.row_numbers(range(15, 20))):
    begin = r * LENGTH
    np.testing.assert_array_equal(batch['inputs'][b], tokens[begin : begin + LENGTH])
    np.testing.assert_array_equal(batch['targets'][b], tokens[begin + 1 : begin + 1 + LENGTH])
  assert batch['inputs'].dtype == batch['targets'].dtype == np.int32
  assert batch['weights'].dtype == np.float32
  np.testing.assert_array_equal(batch['weights'], np.ones((5, LENGTH)))


@pytest.mark.parametrize('rows', [five, ramp])
def test_a_batch_does_not_depend_on_where_the_run_began(store, rows):
  whole = run(store, 0, 61, rows)
  assert_same(run(store, 0, 61, rows), whole)
  for start in (1, 3, 4, 5, 37, 60, 61):
    assert_same(run(store, start, 61, rows), whole[start:])


def test_a_ramp_repeats_and_skips_no_row(store):
  source = row_order.RowSource(store, length=LENGTH, seed=SEED)
  numbers = range(12 + 7 * 5)
  seen = np.concatenate([b['inputs'] for b in run(store, 0, 9, ramp)])
  np.testing.assert_array_equal(seen, windows(source, numbers)[:, :-1])


@pytest.mark.parametrize('num_hosts', [1, 2, 3, 4, 8])
@pytest.mark.parametrize('rows', [five, ramp])
def test_the_hosts_together_read_the_global_batch(store, rows, num_hosts):
  whole = run(store, 0, 7, rows)
  hosts = [run(store, 0, 7, rows, host_rows=share(h, num_hosts)) for h in range(num_hosts)]
  together = [
    {k: np.concatenate([host[s][k] for host in hosts]) for k in whole[s]} for s in range(7)
  ]
  assert_same(together, whole)


@settings(
  max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
  st.lists(st.integers(1, 9), min_size=1, max_size=4),
  st.integers(1, 7),
  st.sampled_from(['steps', 'tokens']),
  st.integers(1, 5),
  st.lists(st.integers(0, 19), max_size=3),
)
def test_no_row_is_skipped_or_repeated(store, sizes, length, unit, num_hosts, stops):
  """Across any boundary, on any number of hosts, after any resume.

  Each part of the run between two stops is read by another number of hosts.
  """
  text = ', '.join(
    f'{i * length * (9 * LENGTH if unit == "tokens" else 1)}_{unit}:{size}'
    for i, size in enumerate(sizes)
  )
  ramp = batch_ramp.build(f'ramp({text})', row_tokens=LENGTH)
  source = row_order.RowSource(store, length=LENGTH, seed=SEED)
  ends = [0, *sorted(stops), 20]
  for part, (start, stop) in enumerate(itertools.pairwise(ends)):
    count = num_hosts + part
    hosts = [
      run(store, start, stop, config_lib.order(ramp), host_rows=share(h, count))
      for h in range(count)
    ]
    for i, step in enumerate(range(start, stop)):
      found = np.concatenate([host[i]['inputs'] for host in hosts])
      before = sum(ramp.rows(s) for s in range(step))
      rows = windows(source, range(before, before + ramp.rows(step)))
      np.testing.assert_array_equal(found, rows[:, :-1])


def test_an_objective_makes_the_arrays(store):
  def make_batch(rows, keys):
    return {'inputs': rows.tokens[:, ::2], 'run': keys.run, 'row': keys.row}

  made = run(store, 2, 3, make_batch=make_batch)
  (plain,) = run(store, 2, 3)
  assert made[0].keys() == {'inputs', 'run', 'row'}
  np.testing.assert_array_equal(made[0]['inputs'], plain['targets'][:, ::2])
  # Step 2 of the ramp's first batches of a size.
  source = row_order.RowSource(store, length=LENGTH, seed=SEED)
  np.testing.assert_array_equal(made[0]['row'], source.row_numbers(made[0]['run']))


def evaluate(store, length, rows, **kwargs):
  return list(
    row_order.evaluation_batches(
      store, **(dict(length=length, rows=rows, make_batch=causal.make_batch) | kwargs)
    )
  )


@pytest.mark.parametrize(('length', 'rows'), [(13, 5), (1, 97), (7, 1), (2003, 3), (10**5, 2)])
def test_evaluation_covers_each_token_once(either_store, length, rows):
  held_out = either_store
  tokens = held_out.tokens(0, len(held_out))
  made = evaluate(held_out, length, rows)
  assert len(made) == -(-len(tokens) // (length * rows))
  targets = np.concatenate([b['targets'].ravel() for b in made])
  inputs = np.concatenate([b['inputs'].ravel() for b in made])
  weights = np.concatenate([b['weights'].ravel() for b in made])
  n = len(tokens)
  np.testing.assert_array_equal(targets[:n], tokens)
  np.testing.assert_array_equal(inputs[1:n], tokens[:-1])
  assert inputs[0] == held_out.manifest.eos_id
  np.testing.assert_array_equal(weights[:n], 1)
  np.testing.assert_array_equal(weights[n:], 0)
  assert {b['inputs'].shape for b in made} == {(rows, length)}
  assert made[0]['weights'].dtype == np.float32


@pytest.mark.parametrize('num_hosts', [1, 2, 3, 4, 8])
def test_evaluation_on_hosts(store, num_hosts):
  held_out = store.validation()
  assert held_out is not None
  whole = evaluate(held_out, LENGTH, 8)
  hosts = [evaluate(held_out, LENGTH, 8, host_rows=share(h, num_hosts)) for h in range(num_hosts)]
  assert {len(host) for host in hosts} == {len(whole)}
  together = [
    {k: np.concatenate([host[s][k] for host in hosts]) for k in whole[s]} for s in range(len(whole))
  ]
  assert_same(together, whole)


def test_evaluation_keeps_weights_of_the_objective(store):
  def make_batch(rows, keys):
    made = causal.make_batch(rows, keys)
    weights = np.where(rows.real, rows.tokens % 2, 0)
    return made | {'weights': weights.astype(np.float32)}

  made = evaluate(store, LENGTH, 5, make_batch=make_batch)
  total = sum(float(b['weights'].sum()) for b in made)
  assert total == (store.tokens(0, len(store)) % 2).sum()


def test_a_corpus_shorter_than_a_row_is_refused(store):
  n = len(store)
  source = row_order.RowSource(store, length=n - 1, seed=0)
  assert source.rows_per_epoch == 1
  np.testing.assert_array_equal(windows(source, range(2))[1], store.tokens(0, n))
  with pytest.raises(UsageError) as e:
    row_order.batches(
      store, **dict(seed=0, start=0, stop=1, rows=even(5, n)), make_batch=causal.make_batch
    )
  assert f'{n} tokens, a row needs {n + 1}' in str(e.value)
  assert 'context_length' in str(e.value)


def prefetching():
  names = [t.name for t in threading.enumerate()]
  return [name for name in names if name.startswith('grain-prefetch')]


def wait_until_none_prefetches():
  deadline = time.monotonic() + 5
  while prefetching() and time.monotonic() < deadline:
    gc.collect()
    time.sleep(0.01)
  assert not prefetching()


def test_threads_end_with_the_iterator(store):
  wait_until_none_prefetches()
  stream = row_order.batches(
    store, **dict(seed=SEED, start=0, stop=10**9, rows=five), make_batch=causal.make_batch
  )
  next(stream)
  assert prefetching()
  del stream
  wait_until_none_prefetches()
  run(store, 0, 3)
  wait_until_none_prefetches()


def test_slow_reads_run_while_a_step_does(store, monkeypatch):
  """Eight batches are on their way while the first is waited for.

  So a read may take eight steps' time before any step waits for it.
  """
  on_disk = TokenStore.open(store.folder, in_memory_bytes=0)
  read_many = TokenStore.read_many
  begun, answers = threading.Semaphore(0), threading.Event()

  def slow(self, starts, length):
    begun.release()
    assert answers.wait(60)
    return read_many(self, starts, length)

  monkeypatch.setattr(TokenStore, 'read_many', slow)
  made = []
  stream = row_order.batches(
    on_disk, **dict(seed=SEED, start=0, stop=11, rows=five), make_batch=causal.make_batch
  )
  thread = threading.Thread(target=lambda: made.extend(stream))
  thread.start()
  together = sum(begun.acquire(timeout=10) for _ in range(8))
  answers.set()
  thread.join()
  monkeypatch.undo()
  assert together == 8
  assert_same(made, run(store, 0, 11))


def test_an_error_comes_at_its_step(store):
  def rows(step):
    if step == 7:
      raise RuntimeError('no rows')
    return five(step)

  stream = row_order.batches(
    store, **dict(seed=SEED, start=5, stop=10, rows=rows), make_batch=causal.make_batch
  )
  assert_same([next(stream), next(stream)], run(store, 5, 7))
  with pytest.raises(RuntimeError, match='no rows'):
    next(stream)
  del stream
  wait_until_none_prefetches()


def test_damage_found_while_prefetching_is_told_to_the_user(store, corpus):
  on_disk = TokenStore.open(store.folder, in_memory_bytes=0)
  stream = row_order.batches(
    on_disk, **dict(seed=SEED, start=0, stop=9, rows=five), make_batch=causal.make_batch
  )
  (corpus / 'D/tokens/c/0').unlink()
  with pytest.raises(UsageError, match='prepare the data again') as e:
    next(stream)
  assert '\n' not in str(e.value)
