# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every source of documents has to hold, by the table of choices."""

import inspect
import json
import os
from collections import Counter

import pytest

from gpt_jax.core.files.document import SIDES, OnError
from gpt_jax.core.text import holdout, sources

# A call of each source that reads the files of `folder`. Sets of TFDS are
# tested in tests/core/files/test_tfds.py, GLUE's files in tests/tasks, data sets
# of the Hub in tests/hub.
CALLS = {
  'text': "text('*.md')",
  'jsonl': "jsonl('*.jsonl')",
  'parquet': "parquet('*.parquet')",
  'passages': 'passages("text(\'*.md\')", chars=30)',
  'mixture': 'mixture(a:"text(\'*.md\')", b:"jsonl(\'*.jsonl\')")',
  'parallel_text': "parallel_text('*.en', '*.de')",
  'parallel_jsonl': "parallel_jsonl('*.jsonl', 'text', 'other')",
  'stdlib': 'stdlib',
}
OTHERS = {'tfds', 'tfds_dir', 'parallel_tfds', 'parallel_tfds_dir'}
OTHERS |= {'text_to_text', 'hub'}
ON_ERROR = ('text', 'jsonl', 'parquet', 'parallel_text', 'parallel_jsonl')


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Three files of each kind; of their documents some have no text."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sources, '_UNIT', 1)  # a unit for each file
  for i in range(3):
    texts = [f'é{i} paragraph {j}\n' * (j % 4) for j in range(7)]
    (tmp_path / f'{i}.md').write_text('\n\n'.join(texts))
    entries = [{'text': t, 'other': t[::-1]} for t in texts]
    lines = [json.dumps(entry) + '\n' for entry in entries]
    (tmp_path / f'{i}.jsonl').write_text(''.join(lines))
    for end, words in (('en', texts), ('de', texts[::-1])):
      lines = [f'{text.strip()[:9]}\n' for text in words]
      (tmp_path / f'{i}.{end}').write_text(''.join(lines))
  (tmp_path / 'empty.md').write_text('')
  return tmp_path


def load(folder, name):
  if name == 'parquet':
    pa = pytest.importorskip('pyarrow', reason='needs the extra tfds')
    parquet = pytest.importorskip('pyarrow.parquet')
    for i in range(3):
      texts = [f'é{i} {j}' if j % 5 else None for j in range(13)]
      parquet.write_table(pa.table({'text': texts}), folder / f'{i}.parquet')
  return sources.load('data.source', CALLS[name])


def test_every_choice_is_here():
  assert {*CALLS} | OTHERS == {*sources.SOURCES}
  found = {
    name
    for name, make in sources.SOURCES.items()
    if 'on_error' in inspect.signature(make).parameters
  }
  assert found == {*ON_ERROR} | OTHERS - {'text_to_text'}
  for name in found:
    parameter = inspect.signature(sources.SOURCES[name]).parameters['on_error']
    assert (parameter.annotation, parameter.default) == (OnError, 'fail')


@pytest.mark.parametrize('name', CALLS)
def test_a_source_is_a_stream_that_may_be_read_again(folder, name):
  source = load(folder, name)
  skipped = Counter()
  found = [*source.documents(skipped)]
  assert len(found) > 2 and found == [*source.documents()]
  assert all(document.text for document in found)
  assert len({document.name for document in found}) == len(found)
  # Its units, read by themselves, are the same documents.
  left_out, numbers = Counter(), range(len(source.units))
  units = [[*source.documents(left_out, number)] for number in numbers]
  assert [document for unit in units for document in unit] == found
  assert len(units) > 2 and left_out == skipped
  assert source.files and all(map(os.path.isfile, source.files.values()))
  size = sum(len(document.text.encode()) for document in found)
  assert source.num_bytes is None or source.num_bytes > size / 2
  # The same call gives the same documents.
  assert [*load(folder, name).documents()] == found


@pytest.mark.parametrize('name', CALLS)
def test_pairs_are_whole_and_on_one_side(folder, name):
  source = load(folder, name)
  pairs = sources.of_pairs('data.source', CALLS[name])
  ends = [d.name[-7:] for d in source.documents() if d.name.endswith(SIDES)]
  assert bool(ends) == pairs and ends == [*SIDES] * (len(ends) // 2)
  for call in ('documents(fraction=0.4)', 'tail(fraction=0.4)', 'none'):
    split = holdout.split(CALLS[name], call)
    assert split.pairs == pairs
    parts = [*split.parts()]
    assert {part.held_out for part in parts} == {False, call != 'none'}
    if pairs:
      sides = [part.held_out for part in parts]
      assert sides[::2] == sides[1::2]
    units = [[*split.unit(i, Counter())] for i in range(split.num_units)]
    assert call.startswith('tail') == (not units)
    assert not units or [part for unit in units for part in unit] == parts


@pytest.mark.parametrize('name', ON_ERROR)
def test_on_error_skip_counts_bad_documents(folder, name):
  good = [*load(folder, name).documents()]
  end = {'text': 'md', 'parallel_text': 'en', 'parquet': 'parquet'}
  bad = folder / f'9.{end.get(name, "jsonl")}'
  bad.write_bytes(b'\xff\n')
  (folder / '9.de').write_text('x\n')
  with pytest.raises(sources.Bad, match=f'{bad.name}'):
    [*sources.documents('data.source', CALLS[name])]
  call = f"{CALLS[name][:-1]}, on_error='skip')"
  source = sources.load('data.source', call)
  skipped = Counter()
  assert [*source.documents(skipped)] == good
  assert skipped.total() > 0
