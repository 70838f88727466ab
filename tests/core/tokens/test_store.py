# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The token store: what is written is read, and damage is never read."""

import json
import pathlib
import zlib

import numpy as np
import pytest

from gpt_jax.core.files import files
from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.core.tokens import manifest, prepare, store
from gpt_jax.core.tokens.store import ArrayWriter, TokenStore

SHARDS = 5


@pytest.fixture
def small_shards(monkeypatch):
  """Files of 32k two-byte tokens, or 8k document ends."""
  monkeypatch.setattr(store, '_CHUNK', 1 << 12)
  monkeypatch.setattr(store, '_SHARD_BYTES', 1 << 16)
  monkeypatch.setattr(manifest, 'BLOCK', 1 << 12)


@pytest.fixture
def saved(corpus, make_config, small_shards):
  """A store of five files of tokens, and the tokens."""
  text = ''.join(chr(97 + i * i % 23) for i in range(149_993))
  (corpus / 'docs' / 'long.txt').write_text(text)
  config = make_config(holdout='none')
  prepare.prepare(config, 'D')
  assert len(list((corpus / 'D/tokens/c').iterdir())) == SHARDS
  return corpus / 'D', np.array(TokenStore.open('D').tokens(0, 150_000))


def modes():
  return pytest.mark.parametrize('in_memory_bytes', [0, 1 << 30])


@modes()
def test_tokens_and_rows(saved, in_memory_bytes):
  folder, tokens = saved
  opened = TokenStore.open(str(folder), in_memory_bytes=in_memory_bytes)
  opened.verify()
  for start, stop in ((0, 0), (0, 1), (16383, 16385), (32700, 131_100)):
    np.testing.assert_array_equal(opened.tokens(start, stop), tokens[start:stop])
  starts = np.random.default_rng(0).integers(0, 149_000, 101)
  rows = opened.read_many(starts, 997)
  assert rows.dtype == np.uint16 and rows.shape == (101, 997)
  np.testing.assert_array_equal(rows, tokens[starts[:, None] + np.arange(997)])
  assert opened.read_many([], 7).shape == (0, 7)
  last = len(opened)
  np.testing.assert_array_equal(opened.read_many([last - 3], 3)[0], opened.tokens(last - 3, last))
  for wrong in ([-1], [last - 2]):
    with pytest.raises(AssertionError):
      opened.read_many(wrong, 3)


@pytest.mark.parametrize('kind', ['gs', 's3'])
def test_rows_in_a_bucket_through_faults(saved, make_bucket, kind):
  """The same tokens; a bucket's fault is not taken for damage of the store."""
  folder, tokens = saved
  faults = ('busy', 'many', 'slow', 'partly', 'torn', 'lost')
  always = ['']
  bucket = make_bucket(lambda i: always[0] or (faults[i // 3 % 6] if i % 3 else ''), kind)
  for path in folder.rglob('*'):
    if path.is_file():
      name = f'x/{path.relative_to(folder)}'
      bucket.objects[name] = next(bucket._generations), path.read_bytes()
  opened = TokenStore.open(f'{kind}://bucket/x', in_memory_bytes=0)
  starts = np.random.default_rng(0).integers(0, 149_000, 31)
  np.testing.assert_array_equal(
    opened.read_many(starts, 97), tokens[starts[:, None] + np.arange(97)]
  )
  assert bucket.faults > 20
  always[0] = 'expired'
  with pytest.raises(files.DeniedError, match='credentials'):
    opened.read_many(starts, 97)
  always[0] = 'busy'
  with pytest.raises(FailedError, match='does not answer'):
    opened.read_many(starts, 97)
  always[0] = ''
  np.testing.assert_array_equal(opened.tokens(0, 150_000), tokens)


@modes()
def test_documents_end_with_eos(saved, in_memory_bytes):
  folder, _ = saved
  opened = TokenStore.open(str(folder), in_memory_bytes=in_memory_bytes)
  ends = opened.document_ends
  everything = opened.tokens(0, len(opened))
  np.testing.assert_array_equal(ends, np.flatnonzero(everything == opened.manifest.eos_id) + 1)
  assert len(ends) == opened.manifest.num_documents == 38
  assert ends[-1] == len(opened)
  assert opened.manifest.num_bytes == len(opened) - 38
  first = opened.tokens(0, int(ends[0]))
  text = pathlib.Path('docs/00.txt').read_text(encoding='utf-8')
  assert opened.tokenizer().decode(first) == text
  assert opened.validation() is None


def read_all(folder, in_memory_bytes):
  opened = TokenStore.open(str(folder), in_memory_bytes=in_memory_bytes)
  rows = opened.read_many(range(0, len(opened) - 101, 101), 101)
  return rows, opened.document_ends


def damage_flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 3] ^= 1
  path.write_bytes(data)


def damage_truncate(path):
  path.write_bytes(path.read_bytes()[:-7])


def damage_delete(path):
  path.unlink()


@modes()
@pytest.mark.parametrize('damage', [damage_flip, damage_truncate, damage_delete])
@pytest.mark.parametrize('name', ['tokens/c/0', 'tokens/c/4', 'document_ends/c/0'])
def test_damage_is_never_read(saved, in_memory_bytes, damage, name):
  folder, _ = saved
  read_all(folder, in_memory_bytes)
  damage(folder / name)
  with pytest.raises(UsageError) as e:
    read_all(folder, in_memory_bytes)
  message = str(e.value)
  assert name.split('/')[0] in message and str(folder) in message
  assert 'prepare the data again' in message and '\n' not in message


@pytest.mark.parametrize('damage', [damage_flip, damage_truncate, damage_delete])
def test_damage_after_opening_is_never_read(saved, damage):
  folder, _ = saved
  opened = TokenStore.open(str(folder), in_memory_bytes=0)
  damage(folder / 'tokens/c/2')
  opened.read_many([0], 101)
  with pytest.raises(UsageError, match=r'tokens: .*prepare the data again'):
    opened.read_many([2 * (1 << 15) + 11_111], 997)
  with pytest.raises(UsageError, match=r'tokens: .*prepare the data again'):
    opened.verify()


def test_a_missing_file_is_found_at_once(saved):
  folder, _ = saved
  (folder / 'tokens/c/3').unlink()
  with pytest.raises(UsageError, match='D/tokens/c/3: is missing'):
    TokenStore.open(str(folder), in_memory_bytes=0)


@pytest.mark.parametrize('damage', [damage_flip, damage_truncate])
def test_a_damaged_manifest_is_named(saved, damage):
  folder, _ = saved
  damage(folder / 'manifest.json')
  with pytest.raises(UsageError, match=r'manifest.json: is damaged'):
    TokenStore.open(str(folder))


def test_an_edited_manifest_is_refused(saved):
  folder, _ = saved
  path = folder / 'manifest.json'
  entries = json.loads(path.read_text())
  path.write_text(json.dumps(entries | {'eos_id': 5}))
  with pytest.raises(UsageError, match=r'is damaged'):
    TokenStore.open(str(folder))
  path.write_text(json.dumps(entries | {'format_version': 7}))
  with pytest.raises(UsageError, match=r'format version 7'):
    TokenStore.open(str(folder))


@pytest.mark.parametrize('name', ['zarr.json'])
def test_missing_metadata_is_named(saved, name):
  folder, _ = saved
  (folder / 'tokens' / name).unlink()
  with pytest.raises(UsageError, match=r'D/tokens: cannot be opened'):
    TokenStore.open(str(folder))


def test_no_store_says_how_to_make_one(tmp_path):
  with pytest.raises(UsageError, match=r'none: is missing|none/manifest.json'):
    TokenStore.open(str(tmp_path / 'none'))


def test_files_of_another_store_are_told_apart(saved):
  # Whole in itself, each chunk with its checksum, but not what was prepared.
  folder, _ = saved
  (folder / 'tokens/c/1').write_bytes((folder / 'tokens/c/2').read_bytes())
  with pytest.raises(UsageError, match='differs from the manifest'):
    TokenStore.open(str(folder))
  with pytest.raises(UsageError, match='differs from the manifest'):
    TokenStore.open(str(folder), in_memory_bytes=0).verify()


def test_another_tokenizer_is_told_apart(saved, make_config):
  folder, _ = saved
  prepare.prepare(make_config(tokenizer='characters'), 'other')
  for path in pathlib.Path('other/tokenizer').iterdir():
    (folder / 'tokenizer' / path.name).write_bytes(path.read_bytes())
  with pytest.raises(UsageError, match='is not the tokenizer that wrote'):
    TokenStore.open(str(folder)).tokenizer()


@pytest.mark.parametrize(
  ('dtype', 'sizes'),
  [
    ('uint16', [1, 32767, 1, 40_000, 0, 3]),
    ('uint32', [16384, 16384, 70_001]),
    ('int64', [5]),
    ('uint16', []),
  ],
)
def test_a_stream_of_any_sizes_is_written(tmp_path, small_shards, dtype, sizes):
  rng = np.random.default_rng(3)
  top = min(np.iinfo(dtype).max, 2**40)
  parts = [rng.integers(0, top, n).astype(dtype) for n in sizes]
  writer = ArrayWriter(str(tmp_path), 'a', dtype)
  for part in parts:
    writer.add(part)
  everything = np.concatenate([np.zeros(0, dtype), *parts])
  written = writer.close()
  assert written.length == len(everything)
  assert written.crc32 == manifest.checksums(everything)
  array = files.open_array(str(tmp_path / 'a'), open=True)
  np.testing.assert_array_equal(array.read().result(), everything)


@modes()
def test_compressed_tokens_are_the_same(saved, make_config, in_memory_bytes):
  folder, tokens = saved
  config = make_config(holdout='none').unlock()
  config.data.compression = 'zstd(level=1)'
  prepare.prepare(config, 'Z')
  opened = TokenStore.open('Z', in_memory_bytes=in_memory_bytes)
  np.testing.assert_array_equal(opened.tokens(0, 150_000), tokens)
  np.testing.assert_array_equal(opened.read_many([3, 140_000], 997)[1], tokens[140_000:140_997])
  sizes = [
    sum(path.stat().st_size for path in (place / 'tokens/c').iterdir())
    for place in (folder, pathlib.Path('Z'))
  ]
  assert 2 <= sizes[0] / len(opened) < 2.1 and sizes[1] < sizes[0] / 2
  damage_flip(pathlib.Path('Z/tokens/c/2'))
  with pytest.raises(UsageError, match='prepare the data again'):
    read_all('Z', in_memory_bytes)


def test_zeros_are_stored(tmp_path, small_shards):
  # Zarr leaves chunks of the fill value out unless told not to; here a file
  # that is missing must be an error.
  writer = ArrayWriter(str(tmp_path), 'a', 'uint16')
  writer.add(np.zeros(100_000, np.uint16))
  writer.close()
  assert len(list((tmp_path / 'a/c').iterdir())) == 4


@pytest.mark.parametrize(
  ('vocab_size', 'dtype'), [(257, 'uint16'), (65536, 'uint16'), (65537, 'uint32')]
)
def test_the_smallest_type_is_chosen(vocab_size, dtype):
  assert store.token_dtype(vocab_size) == dtype


# What a file may be after an accident.
ACCIDENTS = {
  'empty': b'',
  'half': None,
  'zeros': b'\0' * 211,
  'list': b'[]',
  'null': b'null',
  'other keys': b'{"a": 1}',
  'other types': b'{"kind": [1], "files": 5, "fingerprint": null}',
  'not UTF-8': b'\xff\xfe\x00{',
  'deep': b'[' * 100_000,
}


@pytest.mark.parametrize('accident', [*ACCIDENTS, 'folder', 'gone'])
@pytest.mark.parametrize(
  'name',
  [
    'manifest.json',
    'inputs.json',
    'tokenizer/tokenizer.json',
    'tokenizer/characters.json',
    'tokens/zarr.json',
    'tokens/c/0',
    'document_ends/zarr.json',
    'validation/manifest.json',
  ],
)
def test_an_accident_is_one_line_or_harmless(corpus, make_config, name, accident):
  config = make_config(tokenizer='characters')
  expected = prepare.ensure(config, 'D').manifest
  path = corpus / 'D' / name
  data = path.read_bytes()
  path.unlink()
  if accident == 'folder':
    (path / 'x').mkdir(parents=True)
  elif accident == 'half':
    path.write_bytes(data[: len(data) // 2])
  elif accident != 'gone':
    path.write_bytes(ACCIDENTS[accident])
  try:
    opened = prepare.ensure(config, 'D')
    held_out = opened.validation()
    assert held_out is not None
    opened.tokenizer()
    for part in (opened, held_out):
      part.tokens(0, len(part))
  except UsageError as e:
    assert '\n' not in str(e) and 'D' in str(e)
    assert name != 'inputs.json' or accident != 'gone'
  else:
    # Nothing but whether the corpus has changed hangs on it.
    assert name == 'inputs.json' and opened.manifest == expected


def test_a_sealed_manifest_of_another_version_is_refused(saved):
  folder, _ = saved
  path = folder / 'manifest.json'
  entries = json.loads(path.read_text())
  del entries['manifest_sha256']
  entries['more'] = 1
  entries['manifest_sha256'] = manifest._digest(entries)
  path.write_text(json.dumps(entries))
  with pytest.raises(UsageError, match='another version'):
    manifest.read(str(folder))


@pytest.mark.parametrize('accident', ACCIDENTS)
def test_a_damaged_state_of_a_preparation_starts_over(corpus, make_config, accident):
  expected = prepare.prepare(make_config(), 'E')
  data = ACCIDENTS[accident] or b'PK\3\4' + b'x' * 41
  (corpus / 'D').mkdir()
  for name, content in (('unfinished.npz', data), ('unfinished', b'')):
    (corpus / 'D' / name).write_bytes(content)
  assert prepare.prepare(make_config(), 'D') == expected


def test_a_checksum_for_each_block(monkeypatch):
  monkeypatch.setattr(manifest, 'BLOCK', 7)
  values = np.arange(17, dtype=np.uint16)
  expected = [
    zlib.crc32(values[:7].astype('<u2').tobytes()),
    zlib.crc32(values[7:14].astype('<u2').tobytes()),
    zlib.crc32(values[14:].astype('<u2').tobytes()),
  ]
  assert manifest.checksums(values) == expected
  assert manifest.checksums(values.astype('>u2')) == expected
  assert manifest.checksums(values[:0]) == []
