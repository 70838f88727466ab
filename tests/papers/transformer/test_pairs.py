# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pairs of texts: which there are, and what is said of files that are none."""

import gzip
import json
import types
from collections import Counter

import pytest
import zstandard

from gpt_jax.core.files import tfds
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import sources

FIELD = 'data.source'


def read(text):
  return list(sources.documents(FIELD, text))


def compressed(data, ending):
  if ending == '.gz':
    return gzip.compress(data)
  return zstandard.compress(data) if ending == '.zst' else data


@pytest.mark.parametrize('endings', [('', ''), ('.gz', '.zst')])
def test_lines_go_together_by_their_number(tmp_path, monkeypatch, endings):
  monkeypatch.chdir(tmp_path)
  # A line separator of Unicode and a form feed end no line; '\r\n' does.
  english = 'a dog\r\nhas\u2028two\x0clines\n\n three \nfive'
  german = 'ein Hund\nhat zwei\nleer\n\t\nfünf\n'
  for language, text, end in zip(('en', 'de'), (english, german), endings, strict=True):
    data = compressed(b'\xef\xbb\xbf' + text.encode(), end)
    (tmp_path / f't.{language}{end}').write_bytes(data)
  call = f"parallel_text('t.en{endings[0]}', 't.de{endings[1]}')"
  source = sources.load(FIELD, call)
  skipped = Counter()
  name = f't.en{endings[0]}'
  assert [*source.documents(skipped)] == [
    (f'{name}:1#source', 'a dog'),
    (f'{name}:1#target', 'ein Hund'),
    (f'{name}:2#source', 'has\u2028two\x0clines'),
    (f'{name}:2#target', 'hat zwei'),
    (f'{name}:5#source', 'five'),
    (f'{name}:5#target', 'fünf'),
  ]
  assert skipped == {'had an empty side': 2}
  assert len(source.files) == 2
  sizes = len(english.encode()) + len(german.encode()) + 6
  assert source.num_bytes == (None if endings[0] else sizes)


def test_files_go_together_in_the_order_of_their_names(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for part in ('b', 'a'):
    for language in ('en', 'de'):
      (tmp_path / f'{part}.{language}').write_text(f'{part} {language}\n')
  call = "parallel_text('*.en', '*.de')"
  assert [d.text for d in read(call)] == ['a en', 'a de', 'b en', 'b de']
  source = sources.load(FIELD, call)
  assert [[d.text for d in source.documents(unit=i)] for i in (0, 1)] == [
    ['a en', 'a de'],
    ['b en', 'b de'],
  ]


def test_a_bad_side_takes_its_pair_along(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'en').write_bytes(b'one\ntw\xff\nthree\n')
  (tmp_path / 'de').write_bytes(b'eins\nzwei\ndrei\n')
  source = sources.load(FIELD, "parallel_text('en', 'de', on_error='skip')")
  skipped = Counter()
  assert [d.text for d in source.documents(skipped)] == ['one', 'eins', 'three', 'drei']
  assert skipped == {'is not UTF-8': 1}
  # What comes before a file breaks off is paired.
  lines = b''.join(b'%d\n' % i for i in range(99_999))
  (tmp_path / 'en').write_bytes(lines)
  (tmp_path / 'de.gz').write_bytes(gzip.compress(lines)[:-5000])
  call = "parallel_text('en', 'de.gz', on_error='skip')"
  source = sources.load(FIELD, call)
  skipped = Counter()
  found = [d.text for d in source.documents(skipped)]
  assert 1000 < len(found) < 199_998 and found[::2] == found[1::2]
  assert skipped == {'cannot be read': 1}


def test_json_lines_with_two_fields(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  entries = [{'en': 'a', 'de': 'ein', 'id': 3}, {'en': 'b', 'de': ''}, {'en': 'c', 'de': 'drei'}]
  lines = [json.dumps(entry) for entry in entries]
  (tmp_path / 'p.jsonl').write_text('\n'.join([lines[0], '', *lines[1:]]))
  source = sources.load(FIELD, "parallel_jsonl('*.jsonl', 'de', 'en')")
  skipped = Counter()
  assert [*source.documents(skipped)] == [
    ('p.jsonl:1#source', 'ein'),
    ('p.jsonl:1#target', 'a'),
    ('p.jsonl:4#source', 'drei'),
    ('p.jsonl:4#target', 'c'),
  ]
  assert skipped == {'had an empty side': 1}


def test_tfds_with_two_fields(tmp_path, monkeypatch):
  class Examples(list):
    def __getitems__(self, numbers):
      return [self[number] for number in numbers]

  examples = Examples(
    {'en': f'text {i}'.encode(), 'more': {'de': f'Text {i}' if i else ''}} for i in range(3)
  )
  builder = types.SimpleNamespace(
    as_data_source=lambda split: {'train': examples}[split], data_dir=tmp_path
  )
  asked = []
  monkeypatch.setattr(tfds, 'by_name', lambda name, folder: asked.append(name) or builder)
  source = sources.load(FIELD, "parallel_tfds('wmt/de-en', 'en', 'more/de')")
  skipped = Counter()
  assert asked == ['wmt/de-en']
  assert [*source.documents(skipped)] == [
    ('train:1#source', 'text 1'),
    ('train:1#target', 'Text 1'),
    ('train:2#source', 'text 2'),
    ('train:2#target', 'Text 2'),
  ]
  assert skipped == {'had an empty side': 1}
  with pytest.raises(UsageError, match=r"train:0: has no text under 'fr'"):
    read("parallel_tfds('wmt/de-en', 'en', 'fr')")
