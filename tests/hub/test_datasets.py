# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Data sets of a hub are read as their files are, and stay at one commit."""

import io
import json
import os
import pathlib
from collections import Counter

import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import sources
from gpt_jax.core.tokens import prepare, store
from gpt_jax.core.tokens.corpus import COMMITS
from gpt_jax.hub import datasets

pytest.importorskip('huggingface_hub', reason='needs the extra hub')
pa = pytest.importorskip('pyarrow', reason='needs the extra hub')
parquet = pytest.importorskip('pyarrow.parquet')

CALL = "hub('org/tales')"


def table(texts, column='text'):
  """A Parquet file, as bytes."""
  out = io.BytesIO()
  parquet.write_table(pa.table({column: texts}), out)
  return out.getvalue()


def tales(start, count):
  return [f'tale {i} of é' if i % 5 else None for i in range(start, start + count)]


FILES = {
  'README.md': b'# Tales',
  'data/train-00000-of-00003.parquet': table(tales(0, 13)),
  'data/train-00001-of-00003.parquet': table(tales(13, 7)),
  'data/train-00002-of-00003.parquet': table(tales(20, 11)),
  'data/validation-00000-of-00001.parquet': table(tales(31, 5)),
}
ALL = [text for text in tales(0, 31) if text]


@pytest.fixture
def repository(hub):
  return hub.add('org/tales', FILES, kind='datasets')


def texts(call):
  return [document.text for document in sources.documents('data.source', call)]


def refused(call):
  with pytest.raises(UsageError) as told:
    texts(call)
  return str(told.value)


def test_rows_are_those_of_the_files(hub, repository, tmp_path):
  found = [*sources.documents('data.source', CALL)]
  assert [document.text for document in found] == ALL
  for path, data in FILES.items():
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_bytes(data)
  local = [*sources.documents('data.source', "parquet('data/train-*.parquet')")]
  assert [f'data/{name}' for name, _ in local] == [name for name, _ in found]
  assert texts("hub('org/tales', split='validation')") == [x for x in tales(31, 5) if x]
  # Any unit by itself; nothing is fetched twice.
  source = sources.load('data.source', CALL)
  units = [[*source.documents(Counter(), i)] for i in range(len(source.units))]
  assert [document for unit in units for document in unit] == found
  assert hub.fetched('train-00000-of-00003.parquet') == ['']
  assert not hub.fetched('README.md')


def test_files_are_fetched_when_they_are_reached(hub, repository):
  stream = sources.documents('data.source', CALL)
  assert not hub.fetched('.parquet')
  next(stream)
  assert len(hub.fetched('.parquet')) == 1
  sources.load('data.source', "hub('org/tales', split='validation')").check()
  assert len(hub.fetched('.parquet')) == 2


def test_places_of_files():
  expected = {
    'data/train-00000-of-00004-2d5a1467fff1081b.parquet': ('default', 'train'),
    'train.parquet': ('default', 'train'),
    'fr/validation_matched-00000-of-00001.parquet': ('fr', 'validation_matched'),
    '20231101.en/train-00003-of-00041.parquet': ('20231101.en', 'train'),
    'data/de/test.parquet': ('de', 'test'),
    'default/partial-train/0003.parquet': ('default', 'partial-train'),
    'sample/10BT/007_00000.parquet': ('sample', '10BT'),
    '0000.parquet': ('default', 'train'),
  }
  assert {path: datasets._place(path) for path in expected} == expected


def test_configs_and_splits_that_are_not_there(hub):
  files = {
    'en/train-00000-of-00001.parquet': table(['a']),
    'fr/train-00000-of-00001.parquet': table(['b']),
    'fr/test-00000-of-00001.parquet': table(['c']),
  }
  repository = hub.add('org/two', files, kind='datasets')
  repository.commit({'default/train/0000.parquet': table(['d'])}, 'refs/convert/parquet')
  hub.add('org/lines', {'a.jsonl': b'{}'}, kind='datasets')
  assert texts("hub('org/two', config='fr')") == ['b']
  assert texts("hub('org/two', split='test')") == ['c']
  assert texts("hub('org/two', revision='refs/convert/parquet')") == ['d']
  splits = "train of config 'en', test of config 'fr', train of config 'fr'"
  assert refused("hub('org/two', split='dev')").endswith(
    f"split='dev': is not there; the splits are {splits}"
  )
  assert 'several configs have it' in refused("hub('org/two')")
  assert "config='de', split='train': is not there" in refused("hub('org/two', config='de')")
  assert 'has no Parquet files' in refused("hub('org/lines')")
  assert 'has no such repository' in refused("hub('org/nothing')")
  assert 'no such revision' in refused("hub('org/two', revision='v9')")
  assert "has no column of texts 'story'" in refused("hub('org/two', 'test', columns='story')")


def test_texts_of_several_columns_are_joined(hub):
  rows = {'title': ['one', None, 'three', None], 'text': ['1', '2', None, None]}
  out = io.BytesIO()
  parquet.write_table(pa.table(rows), out)
  hub.add('org/titled', {'train.parquet': out.getvalue()}, kind='datasets')
  assert texts("hub('org/titled', columns='title, text')") == ['one\n\n1', '2', 'three']
  assert texts("hub('org/titled', columns='text,title')") == ['1\n\none', '2', 'three']
  told = refused("hub('org/titled', columns='text, story')")
  assert "has no column of texts 'story'" in told


def test_a_full_disk_is_told_before_a_byte_is_fetched(hub, repository):
  repository.sizes['data/train-00002-of-00003.parquet'] = 10**18
  assert '1.0 EB are to be fetched' in refused(CALL)
  assert not hub.fetched('.parquet')


def test_a_moved_branch_is_a_commit_in_any_call(hub, repository):
  commit = repository.refs['main']
  (bound,) = sources.spec.parse('data.source', sources.at_commit('data.source', CALL))
  assert bound.kwargs['revision'] == commit and bound.kwargs['name'] == 'org/tales'
  for call in (f'passages({CALL!r})', f'mixture(a:{CALL!r}, b:"stdlib")'):
    fixed = sources.at_commit('data.source', call)
    assert commit in fixed and fixed == sources.at_commit('data.source', fixed)
    repository.commit({'README.md': b'# moved'})
    a, b = (next(iter(sources.documents('data.source', x))) for x in (call, fixed))
    assert a == b
    repository.refs['main'] = commit
  for call in ('stdlib', 'documents(fraction=0.5)', 'mixture(a:"stdlib")', 'passages("stdlib")'):
    assert sources.at_commit('data.source', call) == call


def tokens(folder):
  opened = store.TokenStore.open(folder)
  return opened.tokens(0, len(opened)).tolist()


def test_a_store_keeps_its_commit(hub, repository, make_config):
  config = make_config(CALL, holdout='none')
  prepare.prepare(config, 'whole')
  commit = repository.refs['main']
  recorded = json.loads(pathlib.Path('whole', COMMITS).read_text())
  assert [*recorded] == [CALL] and commit in recorded[CALL]
  repository.commit({'data/train-00000-of-00003.parquet': table(['moved'])})
  before = tokens('whole')
  prepare.ensure(config, 'whole')
  assert tokens('whole') == before
  prepare.prepare(config, 'new')
  assert tokens('new') != before


def test_a_store_goes_on_at_its_commit(hub, repository, make_config, monkeypatch):
  """One that was begun before the branch moved is that of the first commit."""
  config = make_config(CALL, holdout='none')
  prepare.prepare(config, 'whole')
  real = datasets._Files.fetched

  def dies(self, path):
    if path.endswith('00002-of-00003.parquet') and not os.path.exists('moved'):
      raise KeyboardInterrupt
    return real(self, path)

  monkeypatch.setattr(datasets._Files, 'fetched', dies)
  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(config, 'begun')
  repository.commit({'data/train-00002-of-00003.parquet': table(['moved'])})
  pathlib.Path('moved').touch()
  prepare.prepare(config, 'begun')
  assert tokens('begun') == tokens('whole')


def test_offline_the_cache_is_read(hub, repository, monkeypatch):
  from huggingface_hub import constants

  before = texts(CALL)
  hub.requests.clear()
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  assert texts(CALL) == before
  assert 'in the cache' in refused("hub('org/tales', split='validation')")
  assert 'in the cache' in refused("hub('org/others')")
  assert not hub.requests
