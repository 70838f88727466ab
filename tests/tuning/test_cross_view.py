# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cross-view training as a user starts it."""

import csv
import json

import numpy as np
import pytest

from gpt_jax.opening import models
from tests.support import whole_runs

WIDTH = 24


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A run of two steps that do not move it, from word vectors."""
  folder = tmp_path_factory.mktemp('cvt')
  numbers = ' '.join(str(i / 8) for i in range(1, WIDTH + 1))
  (folder / 'vectors.txt').write_text(f'Unheard {numbers}\ncats {numbers}\n')
  (folder / 'new.conll').write_text('Old O\ncats O\n\ncats O\n')
  whole_runs.trained(
    'cvt',
    folder,
    predict=str(folder / 'new.conll'),
    optim__vectors=str(folder / 'vectors.txt'),
    schedule__name='constant(peak=1e-30)',
    schedule__num_steps=2,
    checkpoint__every_steps=2,
    eval__every_steps=2,
  )
  return folder


@pytest.mark.slow
def test_words_start_from_vectors(folder):
  trained = models.load(str(folder / 'w'))
  table = np.asarray(trained.state.params['embed']['embedding'])
  (known,) = trained.tokenizer.encode('cats')
  given = np.arange(1, WIDTH + 1) / 8
  np.testing.assert_array_equal(table[known], given)
  # A word of the unlabelled text alone, which has no vector.
  (other,) = trained.tokenizer.encode('mat.')
  assert other != trained.tokenizer.encode('Unheard')[0]
  assert np.all(np.abs(table[other]) < 3)
  assert not np.array_equal(table[other], table[known])


@pytest.mark.slow
def test_files_are_judged_and_predicted(folder):
  result = json.loads((folder / 'w/result.json').read_text())
  assert {*result['dev']} >= {'f1', 'accuracy', 'loss'}
  assert 'unlabelled' not in result
  assert {p.name for p in (folder / 'w/predictions').iterdir()} == {'dev.tsv', 'new.tsv'}
  text = (folder / 'w/predictions/new.tsv').read_text()
  rows = [*csv.DictReader(text.splitlines(), delimiter='\t')]
  assert [len(row['prediction'].split()) for row in rows] == [2, 1]
  assert [row['label'] for row in rows] == ['O O', 'O']
