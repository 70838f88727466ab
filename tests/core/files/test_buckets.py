# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The copy of a run's small files, and the lease of a run."""

import gzip
import logging
import os
import pathlib
import shutil
import tempfile

import pytest

from gpt_jax.core.files import buckets, files
from gpt_jax.core.runtime import preemption, watchdog
from gpt_jax.core.spec import FailedError, UsageError

URL = 'gs://bucket/runs/first'
FAULTS = ('busy', 'slow', 'partly')


@pytest.fixture(autouse=True)
def copies(tmp_path, monkeypatch):
  """Where copies are made: one that was not uploaded stays."""
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))


def put(bucket, **contents):
  for name, data in contents.items():
    bucket.objects[f'runs/first/{name}'] = (1000 + len(bucket.objects), data)


def held(bucket):
  """What the bucket has of the run."""
  return {
    name.removeprefix('runs/first/'): data
    for name, (_, data) in bucket.objects.items()
    if name.startswith('runs/first/')
  }


def write(folder, name, data):
  path = pathlib.Path(folder, name)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(data)
  return str(path)


def test_small_files_come_and_go_through_faults(make_bucket):
  """Two of three requests go wrong; folders that stay are not copied."""
  bucket = make_bucket(lambda i: FAULTS[i // 3 % 3] if i % 3 else '')
  there = {
    'config.json': b'{}',
    'tokenizer/pieces': b'a b',
    'checkpoints/7/state/x': b'large',
    'checkpoints_damaged/3/x': b'large',
    'data/tokens/c/0': b'large',
    'tensorboard/events': b'old',
  }
  put(bucket, **there)
  with buckets.copied(f'{URL}/') as folder:
    found = sorted(
      str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob('*') if path.is_file()
    )
    assert found == ['config.json', 'tokenizer/pieces']
    assert os.path.basename(folder) == 'first'
    assert buckets.home(folder) == URL
    write(folder, 'metrics.jsonl', b'1\n2\n')
    write(folder, 'plots/loss.png', b'png')
    write(folder, 'half.tmp', b'x')
    write(folder, '.lock', b'')
    os.unlink(os.path.join(folder, 'tokenizer/pieces'))
  assert bucket.faults > 9
  expected = {**there, 'metrics.jsonl': b'1\n2\n', 'plots/loss.png': b'png'}
  del expected['tokenizer/pieces']
  assert held(bucket) == expected
  assert not os.path.exists(folder)
  assert buckets.home(folder) == folder


@pytest.mark.parametrize(
  'name',
  [
    '../x',
    '../../x',
    'a/../../../x',
    '..',
    '/x',
    './x',
    'a//x',
    '..\\x',
    'tokenizer/../../../x',
    '\0',
  ],
)
def test_no_object_is_written_outside_the_copy(make_bucket, monkeypatch, tmp_path, name):
  """Nor is what the object's name reaches by the way deleted."""
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'tmp'))
  (tmp_path / 'tmp').mkdir()
  (tmp_path / 'x').write_text('mine')
  bucket = make_bucket()
  put(bucket, **{'config.json': b'{}', name: b'theirs'})
  with pytest.raises(UsageError, match=f'^{URL}: names the file '), buckets.copied(URL):
    raise AssertionError
  found = [path for path in tmp_path.rglob('*') if path.is_file()]
  assert found == [tmp_path / 'x']
  assert (tmp_path / 'x').read_text() == 'mine'
  assert not [*(tmp_path / 'tmp').iterdir()]


@pytest.mark.parametrize(
  'url', ['gs://bucket/..', 'gs://bucket/a/../b', 'gs://bucket//a', 'gs://..']
)
def test_no_url_leads_out_of_the_temporary_folder(make_bucket, monkeypatch, tmp_path, url):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  (tmp_path / 'x').write_text('mine')
  make_bucket()
  with pytest.raises(UsageError, match='names the file'), buckets.copied(url):
    raise AssertionError
  assert [*tmp_path.iterdir()] == [tmp_path / 'x']


def test_folders_that_tools_make_are_no_files(make_bucket):
  bucket = make_bucket()
  there = {'': b'', 'tokenizer/': b'', 'tokenizer/pieces': b'a b'}
  put(bucket, **there)
  with buckets.copied(URL) as folder:
    (found,) = (p for p in pathlib.Path(folder).rglob('*') if p.is_file())
    assert found.read_bytes() == b'a b'
    assert pathlib.Path(folder).parent.stat().st_mode & 0o777 == 0o700
  assert held(bucket) == there


@pytest.mark.parametrize('names', [('a', 'a/b'), ('a/b/c', 'a/b')])
def test_a_file_and_a_folder_of_one_name_are_refused(make_bucket, names):
  put(make_bucket(), **dict.fromkeys(names, b'x'))
  with pytest.raises(UsageError, match='a file and a folder of one name'), buckets.copied(URL):
    raise AssertionError


def test_what_is_uploaded_is_there_when_that_returns(make_bucket):
  bucket = make_bucket()
  with buckets.copied(URL) as folder:
    one = write(folder, 'skips.json', b'[]')
    write(folder, 'metrics.jsonl', b'1\n')
    buckets.uploaded(one)
    assert held(bucket) == {'skips.json': b'[]'}
    buckets.uploaded(folder)
    assert held(bucket) == {'skips.json': b'[]', 'metrics.jsonl': b'1\n'}
    before = dict(bucket.objects)
    buckets.uploaded(folder)  # nothing changed
    assert bucket.objects == before
    write(folder, 'metrics.jsonl', b'1\n2\n')
    buckets.uploaded(folder)
    assert held(bucket)['metrics.jsonl'] == b'1\n2\n'


def test_a_bucket_that_fails_is_told_of_and_tried_again(make_bucket, monkeypatch, caplog):
  faults = ['']
  bucket = make_bucket(lambda number: faults[0])
  monkeypatch.setattr(logging.getLogger('gpt_jax'), 'propagate', True)
  with pytest.raises(RuntimeError, match='not uploaded') as failed, buckets.copied(URL) as folder:
    write(folder, 'metrics.jsonl', b'1\n')
    faults[0] = 'busy'
    buckets.uploaded(folder)
    assert f'{URL}: not uploaded yet, and tried again' in caplog.text
    assert not held(bucket)
  left = str(failed.value).rpartition(' ')[2]
  assert pathlib.Path(left, 'metrics.jsonl').read_bytes() == b'1\n'


def test_the_log_and_errors_name_the_bucket(make_bucket, monkeypatch, caplog):
  make_bucket()
  monkeypatch.setattr(logging.getLogger('gpt_jax'), 'propagate', True)
  with (
    pytest.raises(UsageError, match=f'^{URL}/config.json: is damaged$'),
    buckets.copied(URL) as folder,
  ):
    logging.getLogger('gpt_jax').warning('wrote %s/loss.png', folder)
    assert buckets.shown(f'{folder}/loss.png') == f'{URL}/loss.png'
    raise UsageError(f'{folder}/config.json: is damaged')
  assert caplog.messages == [f'wrote {URL}/loss.png']
  assert not pathlib.Path(folder).parent.exists()


def test_one_process_at_a_time(make_bucket, monkeypatch):
  """A second waits for a sign of the first, and takes over from a dead one."""
  bucket = make_bucket()
  monkeypatch.setattr(buckets, 'LOOK', 0.02)
  monkeypatch.setattr(buckets, 'DEAD', 0.3)
  look = files.read_versioned
  with buckets.copied(URL) as first, buckets.copied(URL) as second:
    with buckets.leased(first):
      assert buckets.LEASE in held(bucket)

      def looked(folder, name):
        buckets._copies[first].renew()
        return look(folder, name)

      monkeypatch.setattr(files, 'read_versioned', looked)
      with (
        pytest.raises(UsageError, match=r'^--workdir=gs:.*another process, on'),
        buckets.leased(second),
      ):
        pass
    assert buckets.LEASE not in held(bucket)
    monkeypatch.setattr(files, 'read_versioned', look)
    buckets._copies[first].take()  # and it gives no sign any more
    with buckets.leased(second):
      write(first, 'config.json', b'late')
      with pytest.raises(RuntimeError, match='another process took the run'):
        buckets.uploaded(first)
      assert 'config.json' not in held(bucket)
    buckets._copies[first]._lease = None
    os.unlink(os.path.join(first, 'config.json'))
  assert not held(bucket)


def test_a_lease_whose_answer_is_lost_is_kept(make_bucket):
  """The request that is made again finds what the first one wrote."""
  faults = []
  bucket = make_bucket(lambda number: faults.pop() if faults else '')
  with buckets.copied(URL) as folder:
    faults[:] = ['lost', '']  # after the look at it
    with buckets.leased(folder):
      before = bucket.objects[f'runs/first/{buckets.LEASE}']
      faults[:] = ['lost']
      write(folder, 'config.json', b'{}')
      buckets.uploaded(folder)
      after = bucket.objects[f'runs/first/{buckets.LEASE}']
      assert bucket.faults == 2 and after[1] == before[1] and after != before
      assert held(bucket)['config.json'] == b'{}'
  assert [*held(bucket)] == ['config.json']


def test_a_process_that_ends_at_once_leaves_nothing_behind(make_bucket, monkeypatch):
  bucket = make_bucket()
  ended = []
  monkeypatch.setattr(preemption, 'end', lambda *args: ended.append(args))
  monkeypatch.setattr(watchdog, 'now', lambda: watchdog.Phase('prepare', 0.0))
  with preemption.leaving(buckets.leave), buckets.copied(URL) as folder, buckets.leased(folder):
    write(folder, 'config.json', b'{}')
    preemption.ask()
    assert held(bucket) == {'config.json': b'{}'}
    assert not pathlib.Path(folder).parent.exists()
  assert ended


def test_a_bucket_that_refuses_leaves_no_copy(make_bucket, monkeypatch):
  make_bucket()
  made = []

  def fetch(copy):
    made.append(pathlib.Path(copy.folder).parent)
    assert made[0].exists()
    raise UsageError(f'{copy.url}: forbidden')

  monkeypatch.setattr(buckets._Copy, 'fetch', fetch)
  with pytest.raises(UsageError, match='forbidden'), buckets.copied(URL):
    pass
  assert not made[0].exists()


def test_it_says_what_to_install(monkeypatch):
  monkeypatch.setattr(buckets.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UsageError, match=r'pip install .*\[gcs\]'), buckets.copied(URL):
    pass


EVERYTHING = {
  'data/tokens/c/0': b'tokens',
  'data/manifest.json': b'{}',
  'a/0/checkpoints/3/state/x': b'large',
  'a/0/checkpoints/3/commit_success.txt': b'',
  'a/0/metrics.jsonl': b'1\n',
  'compare.json': b'[]',
}


def names_below(folder):
  return {
    str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob('*') if path.is_file()
  }


@pytest.mark.parametrize('kind', ['gs', 's3'])
def test_all_of_a_folder_comes_and_goes_through_faults(make_bucket, kind):
  bucket = make_bucket(lambda i: FAULTS[i // 3 % 3] if i % 3 else '', kind)
  url = f'{kind}://bucket/runs/first'
  put(bucket, **EVERYTHING, **{'tensorboard/x': b'old'})
  with buckets.copied(url, everything=True) as folder:
    assert names_below(folder) == {*EVERYTHING}
    assert buckets.is_copy(folder) and buckets.home(folder) == folder
    write(folder, 'a/0/checkpoints/5.orbax-checkpoint-tmp/state/x', b'half')
    write(folder, 'data/tokens/c/1.__lock', b'half')
    write(folder, 'tensorboard/y', b'new')
    shutil.rmtree(f'{folder}/a/0/checkpoints/3')
    write(folder, 'a/0/checkpoints/4/state/x', b'larger')
    buckets.uploaded(f'{folder}/a/0')
    assert 'a/0/checkpoints/4/state/x' in held(bucket)
    assert 'a/0/checkpoints/3/state/x' not in held(bucket)
    assert 'tensorboard/y' not in held(bucket)  # not in that folder
  expected = EVERYTHING | {'a/0/checkpoints/4/state/x': b'larger'}
  expected |= {'tensorboard/x': b'old', 'tensorboard/y': b'new'}
  gone = [name for name in expected if 'checkpoints/3' in name]
  assert held(bucket) == {n: x for n, x in expected.items() if n not in gone}


@pytest.mark.parametrize('kind', ['gs', 's3'])
def test_only_what_changed_is_fetched_again(make_bucket, kind):
  bucket = make_bucket(kind=kind)
  put(bucket, a=b'1', b=b'2', c=b'3')
  with buckets.copied(f'{kind}://bucket/runs/first', everything=True) as folder:
    times = {n: os.stat(f'{folder}/{n}').st_mtime_ns for n in 'abc'}
    put(bucket, b=b'two', d=b'4')
    del bucket.objects['runs/first/c']
    write(folder, 'e', b'mine alone')
    buckets.refetched(folder)
    assert names_below(folder) == {'a', 'b', 'd'}
    assert pathlib.Path(folder, 'b').read_bytes() == b'two'
    assert os.stat(f'{folder}/a').st_mtime_ns == times['a']
    write(folder, 'a', b'changed here')
    buckets.refetched(folder)
    assert pathlib.Path(folder, 'a').read_bytes() == b'1'
  assert held(bucket) == {'a': b'1', 'b': b'two', 'd': b'4'}


@pytest.mark.parametrize('done', range(9))
def test_an_upload_that_ends_anywhere_leaves_nothing_half(make_bucket, done):
  """What says that others are whole comes after them; the rest is here."""
  bucket = make_bucket(lambda i: 'expired' if i >= start + done else '', kind='s3')
  start = 10**9
  url = 's3://bucket/runs/first'
  with (
    pytest.raises(UsageError, match='last files were not uploaded') as failed,
    buckets.copied(url) as folder,
  ):
    for name, data in EVERYTHING.items():
      write(folder, name, data)
    write(folder, 'data/unfinished.npz', b'state')
    start = next(bucket._numbers) + 1
    if done >= 7:  # all of them: then what was deleted
      buckets.uploaded(folder)
      shutil.rmtree(f'{folder}/a/0/checkpoints/3')
  there = held(bucket)
  for name, others in {
    'data/manifest.json': ['data/tokens/c/0'],
    'data/unfinished.npz': ['data/tokens/c/0'],
    'a/0/checkpoints/3/commit_success.txt': ['a/0/checkpoints/3/state/x', 'a/0/metrics.jsonl'],
  }.items():
    assert name not in there or {*others} <= {*there}
  assert len(there) == min(done, 7)
  left = str(failed.value).rpartition(' ')[2]
  assert names_below(left) >= {'compare.json', 'data/unfinished.npz'}


def test_a_checkpoint_that_is_being_deleted_does_not_count(make_bucket, monkeypatch):
  bucket = make_bucket(kind='s3')
  send = buckets._Copy.send

  def sent(copy, name):
    if name.endswith('state/x'):
      os.unlink(os.path.join(copy.folder, name))
    send(copy, name)

  monkeypatch.setattr(buckets._Copy, 'send', sent)
  with buckets.copied('s3://bucket/runs/first') as folder:
    for name, data in EVERYTHING.items():
      write(folder, name, data)
  assert {*EVERYTHING} - {*held(bucket)} == {
    'a/0/checkpoints/3/state/x',
    'a/0/checkpoints/3/commit_success.txt',
  }


def test_half_a_checkpoint_is_not_fetched(make_bucket):
  """A reader leaves it, as it may be being uploaded; who trains removes it."""
  bucket = make_bucket(kind='s3')
  half = {'a/0/checkpoints/5/state/x': b'half', 'a/0/checkpoints/5/state/commit_success.txt': b''}
  put(bucket, **EVERYTHING, **half)
  with buckets.copied('s3://bucket/runs/first') as folder:
    assert names_below(folder) == {*EVERYTHING}
  assert held(bucket) == EVERYTHING | half
  with buckets.copied('s3://bucket/runs/first') as folder, buckets.leased(folder):
    buckets.refetched(folder)
    assert names_below(folder) == {*EVERYTHING}
  assert held(bucket) == EVERYTHING


def test_checkpoints_are_uploaded_one_after_the_other():
  names = [
    'checkpoints/10/state/x',
    'checkpoints/10/commit_success.txt',
    'checkpoints/9/state/x',
    'checkpoints/9/commit_success.txt',
    'metrics.jsonl',
    'data/manifest.json',
    'data/tokens/c/0',
  ]
  assert sorted(names, key=buckets._order) == [
    'data/tokens/c/0',
    'data/manifest.json',
    'metrics.jsonl',
    'checkpoints/9/state/x',
    'checkpoints/9/commit_success.txt',
    'checkpoints/10/state/x',
    'checkpoints/10/commit_success.txt',
  ]


@pytest.mark.parametrize('kind', ['gs', 's3'])
@pytest.mark.parametrize('size', [0, 1, 6, 7, 8, 17, 18, 40])
def test_files_come_in_parts(make_bucket, monkeypatch, kind, size):
  monkeypatch.setattr(files, '_FIRST', 7)
  monkeypatch.setattr(files, '_BLOCK', 11)
  bucket, data = make_bucket(kind=kind), bytes(range(size))
  put(bucket, a=data)
  read = []
  part = files._part

  def counted(*args):
    read.append(part(*args))
    return read[-1]

  monkeypatch.setattr(files, '_part', counted)
  with buckets.copied(f'{kind}://bucket/runs/first', everything=True) as folder:
    assert pathlib.Path(folder, 'a').read_bytes() == data
    assert names_below(folder) == {'a'}
    assert max(len(one.value) for one in read if one) <= 11


def test_a_file_that_changes_while_it_is_read_is_not_mixed(make_bucket, monkeypatch):
  monkeypatch.setattr(files, '_FIRST', 3)
  monkeypatch.setattr(files, '_BLOCK', 3)
  bucket = make_bucket()
  put(bucket, a=b'old' * 9)
  part = files._part

  def overwritten(*args):
    result = part(*args)
    bucket.objects['runs/first/a'] = (7777, b'new' * 9)
    return result

  monkeypatch.setattr(files, '_part', overwritten)
  with pytest.raises(FailedError, match='first/a: was written while'), buckets.copied(URL):
    pass


@pytest.mark.parametrize('kind', ['gs', 's3'])
def test_a_compressed_answer_is_refused(make_bucket, monkeypatch, kind):
  """It is small, and would be of any size in memory."""
  bucket = make_bucket(kind=kind)
  answer = bucket._answer
  whole = []

  def compressed(request, body):
    code, headers, data = answer(request, body)
    if request.command == 'GET' and request.path.partition('?')[0][-1] == 'a':
      headers = {**headers, 'Content-Encoding': 'gzip'}
      whole.append('Range' not in request.headers)
    return code, headers, data

  monkeypatch.setattr(bucket, '_answer', compressed)
  put(bucket, a=gzip.compress(bytes(1 << 24)))
  with (
    pytest.raises(UsageError, match='first/a: is not answered as it is stored'),
    buckets.copied(f'{kind}://bucket/runs/first', everything=True),
  ):
    pass
  assert whole and not any(whole)
