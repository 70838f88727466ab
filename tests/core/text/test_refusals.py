# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sources and splits that cannot be read: the call, the files, the error."""

import gzip
import re

import pytest
import zstandard

from gpt_jax.core.files import lines
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import holdout, sources


def zstd(data):
  return zstandard.ZstdCompressor().compress(data)


def three_parts(tmp_path):
  """The texts of pairs, and a table: each column has another mistake."""
  for name in ('en', 'de', 'a.en', 'b.en', 'a.de'):
    (tmp_path / name).write_text('x\n')
  pa = pytest.importorskip('pyarrow', reason='needs the extra tfds')
  parquet = pytest.importorskip('pyarrow.parquet')
  table = {
    'n': [7, 8, 9],
    'long': ['a', 'b' * 101, 'c'],
    'raw': pa.array([b'ab', b'c', b'\xff'], pa.binary()),
    'meta': [{'body': 'x'}] * 3,
    'list': [['a'], [], ['b']],
    'map': pa.array([[('x', 'a')], None, []], pa.map_(*['string'] * 2)),
  }
  parquet.write_table(pa.table(table), tmp_path / 'a.parquet')
  data = (tmp_path / 'a.parquet').read_bytes()
  (tmp_path / 'b.parquet').write_bytes(b'no')
  (tmp_path / 'c.parquet').write_bytes(data[:4] + bytes(300) + data[304:])
  twice = [pa.array(['a']), pa.array([{'text': 'b'}])]
  twice = pa.Table.from_arrays(twice, ['meta.text', 'meta'])
  parquet.write_table(twice, tmp_path / 'd.parquet')


NO_COLUMN = 'no column of texts .*it holds .*; name'
# Each is a call, files besides those of `three_parts`, and the message.
REFUSED = [
  ("text('no/*.txt')", {}, r'data.source="text\(\'no/\*.txt\'\)".*no f'),
  ("text('a.md')", {'a.md': b''}, 'data.source.*no text'),
  ("text('a.md')", {'a.md': b'ab\xff'}, 'a.md: is not UTF-8: byte 2'),
  ('texts', {}, 'data.source.*texts.*jsonl, mixture, parallel_jsonl, paral'),
  ("passages('books')", {}, 'unknown'),
  # JSON lines.
  *(("jsonl('a.jl')", {'a.jl': data}, message) for data, message in (
    (b'{"text": "a"}\n{', 'a.jl:2.*JSON'),
    (b'{"body": "a"}', "a.jl:1.*'text'.*body"),
    (b'{"text": 3}', "a.jl:1.*'text'"),
    (b'[1]', 'a.jl:1.*list'),
    (b'"\xff"', 'a.jl:1.*byte 1'),
    (b'{"text": "\\ud800"}', 'a.jl:1.*surrogate'),
  )),
  # Compressed files.
  ("jsonl('a.gz')", {'a.gz': b'not gzip'}, 'a.gz.*cannot be read'),
  ("jsonl('a.gz')", {'a.gz': gzip.compress(b'x' * 999, mtime=0)[:-9]},
   'a.gz'),
  ("jsonl('a.zst')", {'a.zst': zstd(b'{"text"') + zstd(b': "a"}')[:-3]},
   'a.zst.*ended before.*fetch the file again'),
  ("jsonl('a.zst')", {'a.zst': b'not zstd'}, 'a.zst: cannot be read'),
  ("text('a.*')", {'a.xz': b'x'}, 'a.xz: is compressed in a way'),
  ("jsonl('a.*')", {'a.bz2': b'x'}, 'a.bz2: is compressed in a way'),
  # Parquet.
  ("parquet('a.parquet', 'n')", {}, r"'n'.*n \(int64\), long \(string\)"),
  ("parquet('a.parquet', 'body')", {}, "'body'.*meta.body"),
  ("parquet('a.parquet', 'raw')", {}, 'a.parquet:2: is not UTF-8: byte 0'),
  ("parquet('a.parquet', 'long')", {}, 'a.parquet:1: has more than 64 MiB'),
  ("parquet('a.parquet', 'list')", {}, NO_COLUMN),
  ("parquet('a.parquet', 'list.list.element')", {}, NO_COLUMN),
  ("parquet('a.parquet', 'map.key_value.key')", {}, NO_COLUMN),
  ("parquet('a.parquet', 'meta')", {}, NO_COLUMN),
  ("parquet('b.parquet', 'n')", {}, 'b.parquet: is not a Parquet file'),
  ("parquet('c.parquet', 'long')", {}, 'c.parquet: cannot be read'),
  ("parquet('d.parquet', 'meta.text')", {}, ', 2 of them, it holds'),
  # Pairs.
  ("parallel_text('en', 'nl')", {}, "no file matches 'nl'"),
  ("parallel_text('*.en', '*.de')", {},
   r"'\*.en' matches 2 files .* matches 1"),
  *(
    (f"parallel_text('en', 'de', on_error='{on_error}')",
     {'en': b'a\n' * english, 'de': b'ein\n' * german},
     f'en has {english} lines and de has {german}: ')
    for english, german in ((5, 3), (3, 5), (4, 0))
    for on_error in ('fail', 'skip')
  ),
  ("parallel_text('en', 'de')",
   {'en': b'one\ntw\xff\n', 'de': b'eins\nzwei\n'},
   'en:2: is not UTF-8: byte 2'),
  ("parallel_jsonl('p.jsonl', 'en', 'fr')", {'p.jsonl': b'{"en": "a"}\n'},
   "p.jsonl:1: has no text under 'fr'"),
  ("passages(\"parallel_text('en', 'de')\")", {}, 'sides of pairs'),
  ("mixture(a:\"parallel_text('en', 'de')\", b:\"text('en')\")", {},
   'data.sources.a holds pairs.*data.sources.b does not'),
]  # fmt: skip


@pytest.mark.parametrize(('call', 'files', 'message'), REFUSED)
def test_sources(tmp_path, monkeypatch, call, files, message):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(lines, 'LONGEST', 100)
  if re.match('par|passages\\("|mixture', call):
    three_parts(tmp_path)
  for name, data in files.items():
    (tmp_path / name).write_bytes(data)
  with pytest.raises(UsageError, match=message) as error:
    [*sources.documents('data.source', call)]
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    ('last', 'last.*documents, hub, jsonl, mixture, none'),
    ("text('gone')", 'no file.*gone'),
    ('none, none', 'give one'),
  ],
)
def test_splits(corpus, call, message):
  with pytest.raises(UsageError, match=f'data.holdout.*{message}'):
    holdout.split("text('docs/*.txt')", call)
