# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A token store on gs://, by a stand-in for Cloud Storage that goes wrong."""

import json

import numpy as np
import pytest

from gpt_jax.files import files
from gpt_jax.spec import UsageError

KINDS = ('busy', 'slow', 'partly')


def test_what_is_written_is_read_through_faults(make_bucket):
  """Two of three requests go wrong, each kind in turn."""
  bucket = make_bucket(lambda i: KINDS[i // 3 % 3] if i % 3 else '')
  folder = 'gs://bucket/a/store'
  data = np.arange(977, dtype=np.uint16)
  array = files.open_array(
    files.join(folder, 'tokens'),
    create=True,
    open=True,
    dtype='uint16',
    metadata={
      'shape': [977],
      'chunk_grid': {
        'name': 'regular',
        'configuration': {'chunk_shape': [401]},
      },
    },
  )
  array.write(data).result()
  with files.exclusive(folder, 'unfinished'):
    files.write(folder, 'manifest.json', b'{"format": 1}')
    assert 'unfinished' in files.names(folder)
  names = ['manifest.json', *(f'tokens/c/{i}' for i in range(3))]
  names += ['tokens/zarr.json']
  assert files.names(folder) == names
  assert sorted(bucket.objects) == [f'a/store/{name}' for name in names]
  assert json.loads(files.read(folder, 'manifest.json') or b'') == {'format': 1}
  assert files.read(folder, 'missing') is None
  again = files.open_array(files.join(folder, 'tokens'), keep=False, open=True)
  np.testing.assert_array_equal(again[390:820].read().result(), data[390:820])
  assert bucket.faults > 20
  files.delete(folder, 'tokens')
  assert [*bucket.objects] == ['a/store/manifest.json']


def test_a_bucket_that_does_not_answer_is_named(
  make_bucket, monkeypatch, caplog
):
  make_bucket(lambda i: 'silent')
  monkeypatch.setattr(files, '_REPORTED', 0.1)
  monkeypatch.setattr(files, '_GIVEN_UP', 0.3)
  with pytest.raises(UsageError, match=r'^gs://bucket/store: no answer with'):
    files.read('gs://bucket/store', 'manifest.json')
  assert 'gs://bucket: no answer for 0.1 s' in caplog.text


def test_one_that_did_answer_is_waited_for(make_bucket, monkeypatch):
  make_bucket(lambda i: 'busy' if 0 < i < 20 else '')
  assert files.read('gs://bucket/store', 'manifest.json') is None
  monkeypatch.setattr(files, '_REPORTED', 0.01)
  monkeypatch.setattr(files, '_GIVEN_UP', 0.02)
  files.write('gs://bucket/store', 'x', b'1')
  assert files.read('gs://bucket/store', 'x') == b'1'


def test_a_name_that_no_bucket_has_is_refused():
  with pytest.raises(UsageError, match='Invalid GCS bucket name'):
    files.read('gs://b/store', 'manifest.json')
