# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Datasets without TensorFlow, from files put in place."""

import shutil
import sys

import pytest

from gpt_jax.data import sources
from gpt_jax.spec import UsageError

pytest.importorskip('tensorflow_datasets', reason='needs the extra tfds')


@pytest.fixture(scope='module')
def placed(tmp_path_factory, shared):
  """A folder of TFDS with Shakespeare's download in place."""
  root = tmp_path_factory.mktemp('tfds')
  (root / 'downloads' / 'manual').mkdir(parents=True)
  shutil.copy(
    shared / 'tinyshakespeare' / 'input.txt', root / 'downloads' / 'manual'
  )
  return root


def read(text):
  return list(sources.documents('data.source', text))


def test_a_download_in_place_is_enough(placed, shared):
  whole = (shared / 'tinyshakespeare' / 'input.txt').read_text()
  (train,) = read(f"tfds('tiny_shakespeare', data_dir='{placed}')")
  # TFDS's split is 90/5/5.
  assert train == ('train:0', whole[: int(len(whole) * 0.9)])
  version = placed / 'tiny_shakespeare' / '1.0.0'
  parts = [
    read(f"tfds_dir('{version}', split='{split}')")[0].text
    for split in ('train', 'validation', 'test')
  ]
  assert ''.join(parts) == whole
  assert 'tensorflow' not in sys.modules
  source = sources.load('data.source', f"tfds_dir('{version}')")
  assert 'dataset_info.json' in source.files
  for call, words in {
    f"tfds_dir('{version}', split='trian')": [
      'trian',
      'test, train, validation',
    ],
    f"tfds_dir('{version}', field='body')": ["'body'", "['text']"],
    f"tfds_dir('{placed}')": ['is no prepared set', 'dataset_info.json'],
  }.items():
    with pytest.raises(UsageError) as e:
      read(call)
    for word in words:
      assert word in str(e.value), str(e.value)
    assert '\n' not in str(e.value)


@pytest.mark.parametrize('name', ['lm1b', 'c4/en', 'nosuch'])
def test_a_set_that_is_not_there_says_how_to_get_it(tmp_path, name):
  with pytest.raises(UsageError) as e:
    read(f"tfds('{name}', data_dir='{tmp_path}')")
  assert f'tfds build {name} --data_dir={tmp_path}' in str(e.value)
  assert '.[tf]' in str(e.value) and '\n' not in str(e.value)
