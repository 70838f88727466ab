# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small files on a local disk, behind a URL, and in a bucket with faults."""

import json
import os
import pathlib
import pwd
import threading

import numpy as np
import pytest
from matplotlib.figure import Figure

from gpt_jax.core.files import arrays, files
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.spec import UsageError
from gpt_jax.hf import checkpoint as hf_checkpoint
from gpt_jax.reports import runs


@pytest.fixture(params=['local', 'url'])
def folder(request, tmp_path):
  """A folder on disk, and one of TensorStore's memory, as gs:// would be."""
  if request.param == 'local':
    yield str(tmp_path / 'f')
    return
  yield f'memory://{tmp_path.name}/f'
  for name in files.names(f'memory://{tmp_path.name}'):
    files.delete(f'memory://{tmp_path.name}', name)


def test_write_read_list_delete(folder):
  assert files.read(folder, 'a') is None and files.names(folder) == []
  for name in ('a', 'a/b', 'ab', 'c/d', 'c/d/e', 'cd'):
    if name != 'a/b' or not files.is_local(folder):
      files.write(folder, name, name.encode()) if name != 'c/d' else None
  files.write(folder, 'ab', b'again')
  assert files.read(folder, 'ab') == b'again'
  files.delete(folder, 'a')
  files.delete(folder, 'c')
  files.delete(folder, 'missing')
  assert files.names(folder) == ['ab', 'cd']


@pytest.mark.parametrize('name', ['a\\b', 'a/b\\', 'a\0', 'a\udc80'])
def test_what_tensorstore_takes_for_another_path_is_refused(tmp_path, name):
  folder = f'{tmp_path}/{name}'

  def exclusive():
    with files.exclusive(folder, 'mark'):
      pass

  for use in (
    lambda: files.write(folder, 'x', b'1'),
    lambda: files.read(folder, 'x'),
    lambda: files.open_array(folder, create=True),
    exclusive,
  ):
    with pytest.raises(UsageError, match='arrays cannot be saved in it; '):
      use()
  assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize('name', ['[a]', '*', '?', '%41', '#', '|', '日', '\n'])
def test_all_other_characters_are_themselves(tmp_path, name):
  files.write(f'{tmp_path}/{name}', 'x', b'1')
  assert (tmp_path / name / 'x').read_bytes() == b'1'
  assert files.names(f'{tmp_path}/{name}') == ['x']


OUTSIDE = [
  '..',
  '../x',
  'a/../../x',
  'a/..',
  '/x',
  '/',
  '',
  '.',
  'a//b',
  'a/',
  './x',
  '..\\x',
  'a\\b',
  'a\0',
  '\0',
  3,
  None,
  ['x'],
]


@pytest.mark.parametrize('name', OUTSIDE, ids=repr)
def test_a_name_from_outside_stays_inside(name):
  with pytest.raises(UsageError, match='index: names the file '):
    files.inside(name, of='index')


@pytest.mark.parametrize('name', ['x', 'a/b', '..a', 'a..', '...', 'a/.b', 'é'])
def test_other_names_are_files(name):
  assert files.inside(name, of='index') == name


def test_no_planted_link_is_followed(tmp_path):
  """Of every function that writes to a name beside the one it is given."""
  target = tmp_path / 'mine'
  target.write_text('mine')
  out = tmp_path / 'out.txt'
  writes = {
    'out.txt': lambda: write_atomically(str(out), 'new'),
    'a.png': lambda: runs.save_figure(Figure(), f'{tmp_path}/a.png'),
    'export/config.json': lambda: hf_checkpoint.write(f'{tmp_path}/export', {}, [[]], {}),
  }
  (tmp_path / 'export').mkdir()
  for name in writes:
    for ending in ('.tmp', '.new', '.partial'):
      (tmp_path / f'{name}{ending}').symlink_to(target)
  for name, write in writes.items():
    write()
    assert (tmp_path / name).is_file() and not (tmp_path / name).is_symlink()
  assert target.read_text() == 'mine'
  left = [p.name for p in tmp_path.iterdir() if not p.is_symlink()]
  assert sorted(left) == ['a.png', 'export', 'mine', 'out.txt']


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
  path = tmp_path / 'a'
  path.write_text('old')
  with pytest.raises(KeyError), files.replacing(str(path)) as temporary:
    raise KeyError
  assert path.read_text() == 'old' and [*tmp_path.iterdir()] == [path]
  with files.replacing(str(path)) as temporary:
    assert temporary != str(path)
    pathlib.Path(temporary).write_text('new')
  assert path.read_text() == 'new' and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize('what', ['nothing', 'ours', 'link', 'file', 'theirs'])
def test_a_folder_of_temporary_data_is_the_users_alone(tmp_path, monkeypatch, what):
  folder = tmp_path / 'cleaning'
  if what in ('ours', 'theirs'):
    folder.mkdir()
    folder.chmod(0o777)
  elif what == 'link':
    (tmp_path / 'planted').mkdir()
    folder.symlink_to(tmp_path / 'planted')
  elif what == 'file':
    folder.write_text('')
  if what == 'theirs':
    monkeypatch.setattr(os, 'geteuid', lambda: folder.stat().st_uid + 1)
  if what in ('nothing', 'ours'):
    files.make_own_folder(str(folder), 'a.field')
    assert folder.stat().st_mode & 0o777 == 0o700
    return
  whose = 'one of ' + pwd.getpwuid(os.stat(tmp_path).st_uid).pw_name
  message = f'should be .* yours, and is {whose if what == "theirs" else "none"}'
  with pytest.raises(UsageError, match=rf'{message}; .* by a\.field$'):
    files.make_own_folder(str(folder), 'a.field')


def test_the_mark_stays_after_an_error_only(folder):
  with files.exclusive(folder, 'mark'):
    assert files.read(folder, 'mark') == b''
  assert files.names(folder) == []
  with pytest.raises(KeyError), files.exclusive(folder, 'mark'):
    raise KeyError
  assert files.names(folder) == ['mark']
  with files.exclusive(folder, 'mark'):
    pass
  assert files.names(folder) == []


def test_one_writes_while_the_other_waits(tmp_path):
  folder, events = str(tmp_path), []

  def second():
    with files.exclusive(folder, 'mark'):
      events.append('second')

  thread = threading.Thread(target=second)
  with files.exclusive(folder, 'mark'):
    thread.start()
    thread.join(0.2)
    events.append('first')
  thread.join(10)
  assert events == ['first', 'second']


FAULTS = ('busy', 'many', 'slow', 'partly', 'torn', 'lost')


@pytest.mark.parametrize('kind', ['gs', 's3'])
def test_what_is_written_is_read_through_faults(make_bucket, kind):
  """Two of three requests go wrong, in each way in turn."""
  bucket = make_bucket(lambda i: FAULTS[i // 3 % 6] if i % 3 else '', kind)
  folder = f'{kind}://bucket/a/store'
  data = np.arange(977, dtype=np.uint16)
  array = files.open_array(
    files.join(folder, 'tokens'),
    create=True,
    open=True,
    dtype='uint16',
    metadata={
      'shape': [977],
      'chunk_grid': {'name': 'regular', 'configuration': {'chunk_shape': [401]}},
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


def test_a_bucket_that_does_not_answer_is_named(make_bucket, monkeypatch, caplog):
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


@pytest.mark.parametrize('kind', ['gs', 's3'])
def test_versions_through_faults(make_bucket, kind):
  """What has not changed is not read; a write does not undo another."""
  bucket = make_bucket(lambda i: FAULTS[i % 5] if i % 2 else '', kind)
  folder = f'{kind}://bucket/a'
  first = files.write(folder, 'x', b'1')
  assert files.read_versioned(folder, 'x') == (b'1', first, True)
  found = files.read_versioned(folder, 'x', first)
  assert (found.data, found.changed) == (None, False)
  second = files.write(folder, 'x', b'2')
  assert files.read_versioned(folder, 'x', first) == (b'2', second, True)
  assert files.write_versioned(folder, 'x', b'3', first) is None
  assert bucket.objects['a/x'][1] == b'2'
  files.delete(folder, 'x')
  found = files.read_versioned(folder, 'x', second)
  assert (found.data, found.changed) == (None, True)


@pytest.mark.parametrize('kind', ['gs', 's3'])
def test_credentials_that_are_refused_are_named(make_bucket, kind):
  """At once, not after all attempts; renewed ones are taken."""
  faults = ['']
  bucket = make_bucket(lambda i: faults[0], kind)
  folder = f'{kind}://bucket/a'
  version = files.write(folder, 'x', b'0')
  faults[0] = 'expired'
  how = {'gs': 'gcloud auth', 's3': 'aws sso login'}[kind]
  for ask in (
    lambda: files.read(folder, 'x'),
    lambda: files.write(folder, 'x', b'1'),
    lambda: files.names(folder),
    lambda: files.write_versioned(folder, 'x', b'1', version),
  ):
    before = bucket.faults
    with pytest.raises(files.DeniedError, match=rf'^{folder}: .*\({how}'):
      ask()
    assert bucket.faults <= before + 2
  faults[0] = ''
  files.write(folder, 'x', b'1')
  assert files.read(folder, 'x') == b'1'


def test_an_export_has_the_mode_of_new_files(tmp_path):
  """Also its weights, whose library writes files that only we may read."""
  before = os.umask(0o027)
  try:
    tensors = [('a', np.zeros(3)), ('b', np.ones(2))]
    hf_checkpoint.write(str(tmp_path / 'one'), {}, [tensors], {'x': b''})
    shards = [tensors[:1], tensors[1:]]
    hf_checkpoint.write(str(tmp_path / 'two'), {}, shards, {'x': b''})
    path = tmp_path / 'weights'
    with files.replacing(str(path)) as temporary:
      arrays.write_tensors(temporary, dict(tensors))
  finally:
    os.umask(before)
  written = [path for path in tmp_path.rglob('*') if path.is_file()]
  assert len(written) == 9
  assert {path.stat().st_mode & 0o777 for path in written} == {0o640}
