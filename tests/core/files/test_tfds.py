# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Datasets without TensorFlow, from files put in place."""

import shutil
import sys
import types

import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.files import records, tfds, tfds_build
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import sources
from gpt_jax.tasks import task as tasks
from gpt_jax.tasks.registry import TUNED

pytest.importorskip('tensorflow_datasets', reason='needs the extra tfds')


@pytest.fixture(scope='module')
def placed(tmp_path_factory, shared):
  """A folder of TFDS with Shakespeare's download in place."""
  root = tmp_path_factory.mktemp('tfds')
  (root / 'downloads' / 'manual').mkdir(parents=True)
  shutil.copy(shared / 'tinyshakespeare' / 'input.txt', root / 'downloads' / 'manual')
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
    f"tfds_dir('{version}', split='trian')": ['trian', 'test, train, validation'],
    f"tfds_dir('{version}', field='body')": ["'body'", "['text']"],
    f"tfds_dir('{placed}')": ['is not a prepared set', 'dataset_info.json'],
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


def test_a_set_is_a_table(placed, shared, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(placed))
  (record,) = records.read('tfds:tiny_shakespeare:1.0.0:train[:100%]')
  whole = (shared / 'tinyshakespeare' / 'input.txt').read_text()
  assert record['text'] == whole[: int(len(whole) * 0.9)]
  assert record.where == "tfds('tiny_shakespeare:1.0.0'): train[:100%]:0"
  with pytest.raises(UsageError, match="split='trian'"):
    list(records.read('tfds:tiny_shakespeare:trian'))


def test_the_numbers_of_classes_are_understood(monkeypatch):
  """As TFDS gives them: without TensorFlow no set with classes can be made."""

  class Examples(list):
    def __getitems__(self, numbers):
      return [self[number] for number in numbers]

  def example(text, label):
    return {'sentence': text.encode(), 'label': np.int64(label)}

  splits = {
    'train': Examples([example('ein Satz', 1), example('noch é', 0)]),
    'validation': Examples([example('x', 2)]),
    'test': Examples([example('y', -1)]),
  }
  builder = types.SimpleNamespace(as_data_source=splits.get)
  monkeypatch.setattr(tfds, 'by_name', lambda name, folder: builder)
  task = spec.build('finetune.task', 'sst2()', TUNED)
  found = tasks.read(task, 'train')
  assert [(*e.texts, e.label) for e in found] == [('ein Satz', 1), ('noch é', 0)]
  assert found[1].where == "tfds('glue/sst2'): train:1"
  with pytest.raises(UsageError, match=r'validation:0: the label 2 is none of'):
    tasks.read(task, 'dev')
  assert tasks.read(task, 'test')[0].label is None


def test_damaged_records_are_named_or_skipped(placed, tmp_path):
  read(f"tfds('tiny_shakespeare', data_dir='{placed}')")
  folder = tmp_path / '1.0.0'
  shutil.copytree(placed / 'tiny_shakespeare' / '1.0.0', folder)
  (file,) = folder.glob('*train*')
  data = bytearray(file.read_bytes())
  data[len(data) // 2] ^= 1
  file.write_bytes(data)
  with pytest.raises(UsageError, match=r'train:0: cannot be read: .*on_error='):
    read(f"tfds_dir('{folder}')")
  with pytest.raises(UsageError, match='hold no text'):
    read(f"tfds_dir('{folder}', on_error='skip')")
  with pytest.raises(UsageError, match='cannot be read'):
    read(f"parallel_tfds_dir('{folder}', 'text', 'text')")


def test_a_set_imports_nothing_but_tfds(placed, tmp_path, monkeypatch):
  """A features.json names classes, whose modules TFDS imports."""
  read(f"tfds('tiny_shakespeare', data_dir='{placed}')")
  folder = tmp_path / 'tiny_shakespeare' / '1.0.0'
  shutil.copytree(placed / 'tiny_shakespeare' / '1.0.0', folder)
  (tmp_path / 'planted.py').write_text("open('ran', 'w')")
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  features = folder / 'features.json'
  text = features.read_text().replace('tensorflow_datasets.core.features.text_feature', 'planted')
  features.write_text(text)
  message = "features.json names the class 'planted.Text', which is not of"
  other = tmp_path / 'another_set' / '1.0.0'
  shutil.copytree(folder, other)
  info = other / 'dataset_info.json'
  info.write_text(info.read_text().replace('tiny_shakespeare', 'another_set'))
  for call in (
    f"tfds_dir('{folder}')",
    f"parallel_tfds_dir('{folder}', 'text', 'text')",
    f"tfds('another_set', data_dir='{tmp_path}')",
  ):
    with pytest.raises(UsageError, match=message):
      read(call)
  assert not (tmp_path / 'ran').exists()
  feature = sys.modules['tensorflow_datasets.core.features.feature']
  assert 'checked' not in str(feature.FeatureConnector.cls_from_name)


@pytest.mark.parametrize('folder', ['[a]', 'b*', 'plain'])
def test_a_folder_may_look_like_a_pattern(tmp_path, folder):
  for name in (folder, 'a', 'bc'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'one.txt').touch()
  (tmp_path / folder / 'two.json').touch()
  pattern = str(tmp_path / folder / '*.txt')
  assert tfds_build._FILES.glob(pattern) == [str(tmp_path / folder / 'one.txt')]


def test_a_folder_may_be_a_pattern(tmp_path):
  for name in ('x1', 'x2'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'one.txt').touch()
  assert len(tfds_build._FILES.glob(str(tmp_path / 'x*' / '*.txt'))) == 2
