# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A teacher's outputs are written, gone on with, and read by row."""

import dataclasses

import numpy as np
import pytest

from gpt_jax.core.rows.rows import Keys
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.distilbert import teacher_outputs
from gpt_jax.papers.distilbert.teacher_outputs import OutputRows, TeacherOutputs, Writer

N, TIMES, P, K = 5, 2, 3, 7
ROWS = OutputRows(
  store='a' * 64,
  rows='stream',
  length=11,
  text='masked(static=2)',
  places='chosen',
  temperature=2.0,
  top_k=K,
  times=TIMES,
  positions=P,
  num_rows=N,
  seed=3,
)
WANTED = {'rows': dataclasses.asdict(ROWS)}
ABOUT = {'teacher': 'T', 'teacher_sha256': 'b' * 64, 'vocab_size': 70_000}


def outputs():
  rng = np.random.default_rng(0)
  ids = rng.integers(0, 70_000, size=(N * TIMES, P, K))
  log_probs = np.log(rng.dirichlet(np.ones(K + 1), size=(N * TIMES, P)))
  return ids, log_probs, np.ones((N * TIMES, P))


def written(folder):
  writer = Writer(folder, WANTED, 70_000)
  writer.add(*outputs())
  return writer.finish(ROWS, **ABOUT)


def test_rows_are_read_by_their_numbers(tmp_path):
  folder = str(tmp_path / 'o')
  contents = written(folder)
  ids, log_probs, _ = outputs()
  kept = 1 - np.exp(log_probs[..., -1]).mean()
  np.testing.assert_allclose(contents.kept, kept)
  found = TeacherOutputs(folder, ROWS).batch(
    Keys(0, np.array([90, 91, 92]), np.array([4, 0, 2]), np.array([1, 2, 3]))
  )
  at = [4 * 2 + 1, 0 * 2 + 0, 2 * 2 + 1]
  np.testing.assert_array_equal(found['teacher_ids'], ids[at])
  np.testing.assert_array_equal(found['teacher_log_probs'], log_probs[at].astype(np.float16))


def test_a_killed_writer_is_gone_on_with(tmp_path):
  whole, folder = str(tmp_path / 'w'), str(tmp_path / 'o')
  expected = written(whole)
  parts = [x[:4] for x in outputs()], [x[4:] for x in outputs()]
  writer = Writer(folder, WANTED, 70_000)
  writer.add(*parts[0])
  writer.note()
  writer.add(*parts[1])  # and dies
  again = Writer(folder, WANTED, 70_000)
  assert again.done == 4
  again.add(*parts[1])
  assert again.finish(ROWS, **ABOUT) == expected


def test_what_another_teacher_left_is_not(tmp_path):
  folder = str(tmp_path)
  wanted = WANTED | {'teacher_sha256': 'b'}
  writer = Writer(folder, wanted, 70_000)
  writer.add(*outputs())
  writer.note()
  assert Writer(folder, wanted | {'teacher_sha256': 'c'}, 70_000).done == 0


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'store': 'd'}, f'written for store={"a" * 64}, and this run has d;'),
    ({'top_k': 5}, 'top_k=7, and this run has 5; write it again'),
    ({'temperature': 1.0}, 'temperature=2.0, and this run has 1.0'),
  ],
)
def test_outputs_of_other_rows_are_refused(change, message, tmp_path):
  folder = str(tmp_path / 'o')
  written(folder)
  with pytest.raises(UsageError) as error:
    TeacherOutputs(folder, dataclasses.replace(ROWS, **change))
  assert message in str(error.value)


def test_damage_is_one_line(tmp_path):
  folder = tmp_path / 'o'
  with pytest.raises(UsageError, match='holds no finished outputs'):
    TeacherOutputs(str(folder), ROWS)
  written(str(folder))
  TeacherOutputs(str(folder), ROWS).verify()
  shard = folder / 'ids/c/0'
  data = bytearray(shard.read_bytes())
  data[9] ^= 1
  shard.write_bytes(data)
  with pytest.raises(UsageError, match='ids: is damaged'):
    TeacherOutputs(str(folder), ROWS).verify()
  shard.write_bytes(data[:-9])
  key = np.zeros(1, np.int64)
  with pytest.raises(UsageError, match='is damaged'):
    TeacherOutputs(str(folder), ROWS).batch(Keys(0, key, key, key))
  manifest = folder / teacher_outputs.NAME
  manifest.write_text(manifest.read_text().replace('"seed": 3', '"seed": 4'))
  with pytest.raises(UsageError, match=r'manifest\.json: is damaged'):
    TeacherOutputs(str(folder), ROWS)
