# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Preparing on Apache Beam: the bytes are those of the local path."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from gpt_jax.__main__ import main
from gpt_jax.commands import prepare as commands_prepare
from gpt_jax.core.files import files
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens import encode, manifest, prepare, store
from gpt_jax.core.tokens.store import TokenStore
from tests.support.corpora import TEST, contents, web_pages

HAS_BEAM = importlib.util.find_spec('apache_beam') is not None
needs_beam = pytest.mark.skipif(
  not HAS_BEAM, reason='needs Apache Beam in an environment of its own: make beam'
)
# Beam's own, and those of what it imports.
pytestmark = pytest.mark.filterwarnings('default')

TRAINED = 'sentencepiece(vocab_size=291)'


@pytest.fixture
def small(monkeypatch):
  """Small files and chunks: many of each in a small corpus."""
  monkeypatch.setattr(encode, '_LONGEST', 151)
  monkeypatch.setattr(store, '_CHUNK', 64)
  monkeypatch.setattr(store, '_SHARD_BYTES', 512)
  monkeypatch.setattr(manifest, 'BLOCK', 64)
  monkeypatch.setattr('gpt_jax.core.text.sources._UNIT', 5 << 16)
  if HAS_BEAM:
    monkeypatch.setattr('gpt_jax.preparing_on_beam.executor._CHUNK', 320)


def on(runner):
  """What makes the executor of a runner; '': this machine."""
  return commands_prepare._beam(runner, '') if runner else None


def both(config):
  """The files of the stores that both paths make, which are to be equal."""
  prepare.prepare(config, 'local')
  prepare.prepare(config, 'beam', executor=on('DirectRunner'))
  found = contents('beam')
  assert found == contents('local')
  assert len([name for name in found if name.startswith('tokens/c/')]) > 3
  return found


def test_the_module_that_preparing_imports_is_there():
  # Also where Beam is not: a module that moved would be missed nowhere else.
  assert importlib.util.find_spec('gpt_jax.preparing_on_beam.executor')


@needs_beam
@pytest.mark.parametrize(
  ('holdout', 'tokenizer'),
  [('documents(fraction=0.2)', 'bytes'), ('none', TRAINED), ("text('docs/0*.txt')", 'characters')],
)
def test_the_same_bytes(corpus, make_config, small, holdout, tokenizer):
  config = make_config(holdout=holdout, tokenizer=tokenizer).unlock()
  config.data.compression = 'zstd' if tokenizer == 'bytes' else 'none'
  config.data.sentences = 'none' if tokenizer == 'characters' else 'terminal'
  found = both(config)
  assert ('validation/manifest.json' in found) == (holdout != 'none')
  has_sentences = tokenizer != 'characters'
  assert any('sentence_ends/c/1' in name for name in found) == has_sentences
  # What is there is opened, as on the local path.
  again = prepare.prepare(config, 'local', executor=on('DirectRunner'))
  assert again == manifest.read('beam')


@needs_beam
def test_copies_of_held_out_documents_are_counted(corpus, make_config, small, caplog):
  for path in sorted((corpus / 'docs').iterdir())[:7]:
    for copy in range(3):
      (path.parent / f'{copy}-{path.name}').write_bytes(path.read_bytes())
  both(make_config())
  local, on_beam = (m for m in caplog.messages if 'word for word' in m)
  assert local == on_beam


@needs_beam
def test_the_same_bytes_of_a_mixture_of_many_kinds(corpus, make_config, small):
  lines = [json.dumps({'text': f'{i} δ ' * (i % 13)}) for i in range(211)]
  (corpus / 'a.jsonl').write_text('\n'.join(lines[:97]))
  (corpus / 'b.jsonl').write_text('\n'.join(['{', *lines[97:]]))
  config = make_config(
    'mixture(web:0.6, docs:0.4)',
    sources={'web': "jsonl('*.jsonl', on_error='skip')", 'docs': "text('docs/*.txt')"},
  )
  both(config)
  parts = manifest.read('beam').parts
  assert [*parts] == ['docs', 'web'] and 0 < parts['docs'] < parts['web']


@pytest.fixture
def web(tmp_path, small, monkeypatch):
  """107 pages in two sources, four files, many shards and ranges of keys."""
  pages = web_pages(5)
  pages += pages[:6]  # copies
  lines = [json.dumps({'text': text}) + '\n' for text in pages]
  for i, name in enumerate(('web0', 'web1', 'books0', 'books1')):
    bad = '{broken\n{"text": ""}\n' * (1 + i % 2)
    text = ''.join(lines[i::4]) + bad
    (tmp_path / f'{name}.jsonl').write_text(text)
  (tmp_path / 'test.txt').write_text(TEST)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr('gpt_jax.core.text.clean.stages._SHARD', 1500)
  if HAS_BEAM:
    monkeypatch.setattr('gpt_jax.preparing_on_beam.executor._RANGE', 5000)
  return tmp_path


@needs_beam
@pytest.mark.parametrize(
  ('clean', 'rules'),
  [
    ('c4(words=1, sentences=1)', {'page with', 'sentence of a repeated'}),
    ('minhash(rows=2, ngram=2)', {'near-duplicate'}),
    ("decontaminate('test.txt', n=5, frequent=0)", {'overlap with test.txt'}),
    (
      'c4(words=1, sentences=1), minhash(threshold=0.5, rows=2, ngram=2), '
      "decontaminate('test.txt', n=5, rule='pieces')",
      {'page with', 'sentence of', 'near-duplicate', 'overlap with test.txt'},
    ),
    (
      'minhash(rows=1), quality(high="text(\'test.txt\')", '
      "low=\"jsonl('web0.jsonl', on_error='skip')\", alpha=1), language('zxx', "
      'probability=0.2)',
      {'near-duplicate', 'low quality', 'but not certain'},
    ),
  ],
)
def test_cleaning_leaves_the_same_bytes(web, make_config, clean, rules):
  config = make_config(
    'mixture(web:0.6, books:0.4)',
    clean=clean,
    sources={name: f"jsonl('{name}*.jsonl', on_error='skip')" for name in ('web', 'books')},
  )
  found = both(config)
  made = manifest.read('beam')
  taken = [*made.cleaning['rules']]
  for rule in rules:
    assert any(rule in name for name in taken), (rule, taken)
  assert {*json.loads(found['cleaning.json'])['steps'][0]['sources']} == {'books', 'web'}
  assert made.skipped == {
    f'{name}: {kind}': 3 for name in ('books', 'web') for kind in ('held no text', 'is not JSON')
  }
  assert not (web / 'beam' / 'cleaning').exists()


@pytest.mark.parametrize('runner', ['', pytest.param('DirectRunner', marks=needs_beam)])
@pytest.mark.parametrize('workers', [1, 2])
@pytest.mark.parametrize('mixed', [True, False])
def test_pieces_of_a_document_are_on_one_side(
  tmp_path, make_config, monkeypatch, runner, workers, mixed
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'test.txt').write_text(TEST)
  for i in range(61):  # each is cut in two, every other in three
    text = f' {TEST} '.join([f'd{i}x ' * 180] * (2 + i % 2))
    (tmp_path / f'{i}.md').write_text(text)
  config = make_config(
    'mixture(a:0.5, b:0.5)' if mixed else "text('*.md')",
    'documents(fraction=0.3)',
    workers=workers,
    sources={'a': "text('?.md')", 'b': "text('??.md')"} if mixed else {},
    clean="decontaminate('test.txt', n=5, frequent=0, rule='pieces')",
  )
  prepare.prepare(config, 'out', executor=on(runner))
  train = TokenStore.open('out')
  found = []
  for side in (train, train.validation()):
    assert side is not None
    text = train.tokenizer().decode(side.tokens(0, len(side)).tolist())
    found.append({*re.findall(r'd\d+x', text)})
    assert side.manifest.num_documents > 2 * len(found[-1])
  assert len(found[0]) + len(found[1]) == 61 and not found[0] & found[1]
  assert min(map(len, found)) > 5


@needs_beam
def test_cleaning_of_one_source_beside_one_held_out(web, make_config):
  (web / 'valid.txt').write_text('no sentence { here')
  config = make_config(
    "jsonl('*.jsonl', on_error='skip')",
    "text('valid.txt')",
    TRAINED,
    clean='c4(words=1, sentences=1), minhash',
  )
  both(config)
  assert manifest.read('beam/validation').num_documents == 1
  config.data.clean = 'c4(sentences=99)'
  messages = []
  for folder, runner in (('none', ''), ('none on beam', 'DirectRunner')):
    with pytest.raises(UsageError) as error:
      prepare.prepare(config, folder, executor=on(runner))
    messages.append(str(error.value).replace(folder, 'D'))
  assert messages[0] == messages[1]
  assert 'leaves no document of the corpus' in messages[0]


@needs_beam
@pytest.mark.parametrize('change', ['', 'clean', 'file'])
def test_finished_cleaning_is_not_repeated(web, make_config, monkeypatch, change):
  config = make_config("jsonl('web*.jsonl', on_error='skip')", clean='minhash')
  config.tokenizer.name = 'sentencepiece(vocab_size=30000)'
  with pytest.raises(UsageError, match='at most'):
    prepare.prepare(config, 'beam', executor=on('DirectRunner'))
  config.tokenizer.name = 'bytes'
  if change == 'clean':
    config.data.clean = 'minhash(rows=1, ngram=1)'
  elif change == 'file':
    lines = (web / 'web0.jsonl').read_text().splitlines(keepends=True)
    (web / 'web0.jsonl').write_text(''.join(lines[1:]))
  else:
    monkeypatch.setattr('gpt_jax.preparing_on_beam.executor._lay_out_cleaning', None)
  both(config)


@needs_beam
def test_workers_with_other_libraries_are_refused(web, make_config, monkeypatch):
  config = make_config("jsonl('web1.jsonl', on_error='skip')", clean='minhash')
  releases = iter(range(100))
  monkeypatch.setattr(
    'gpt_jax.core.text.clean.choices.versions', lambda: {'datasketch': f'2.0.{next(releases)}'}
  )
  with pytest.raises(UsageError, match=r'a worker has .*2\.0\.1.* has .*2\.0\.0'):
    prepare.prepare(config, 'beam', executor=on('DirectRunner'))


@needs_beam
def test_a_tokenizer_file_is_no_file_of_the_corpus(corpus, make_config, hf_tokenizer, small):
  both(make_config(tokenizer=hf_tokenizer))


@needs_beam
def test_what_is_wrong_is_said_as_without_beam(corpus, make_config):
  (corpus / 'a.jsonl').write_text('{"text": "x"}\n{"text": 7}\n')
  config = make_config("jsonl('a.jsonl')", 'none')
  with pytest.raises(UsageError) as local:
    prepare.prepare(config, 'local')
  with pytest.raises(UsageError) as beam:
    prepare.prepare(config, 'beam', executor=on('DirectRunner'))
  assert str(beam.value) == str(local.value)
  assert 'a.jsonl:2: has no text' in str(beam.value)
  assert not manifest.exists('beam')
  config = make_config(holdout='tail(fraction=0.1)')
  with pytest.raises(UsageError, match=r'tail.*leave --runner out'):
    prepare.prepare(config, 'other', executor=on('DirectRunner'))
  with pytest.raises(UsageError, match=r'--runner=Fastest: .* DirectRunner'):
    prepare.prepare(make_config(), 'other', executor=on('Fastest'))
  config = make_config("text('docs/00.txt')", 'documents(fraction=1e-9)')
  with pytest.raises(UsageError, match=r'no document .* for evaluation'):
    prepare.prepare(config, 'other', executor=on('DirectRunner'))


@needs_beam
def test_what_a_killed_process_left_is_written_again(corpus, make_config, small):
  def report(stage, done, total):
    if stage == 'tokenizing' and done > 3000:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(make_config(), 'beam', report)
  assert files.read('beam', 'unfinished.npz')
  both(make_config())


@pytest.mark.skipif(HAS_BEAM, reason='Apache Beam is here')
def test_without_beam_it_says_how_to_install_it(capsys, tmp_path):
  args = ['--config=configs/smoke.py', f'--out={tmp_path}/D']
  assert main(['prepare', *args, '--runner=DirectRunner']) == 2
  error = capsys.readouterr().err
  assert re.search(r'beam.txt .*\[beam,clean\]', error)
  assert not (tmp_path / 'D').exists()


def test_the_command_names_a_runner_that_is_missing(capsys, tmp_path):
  args = ['--config=configs/smoke.py', f'--out={tmp_path}/D']
  assert main(['prepare', *args, '--beam_options=--region=x']) == 2
  assert 'needs --runner' in capsys.readouterr().err


@needs_beam
def test_beam_is_imported_only_when_asked():
  code = 'import sys, gpt_jax.commands.prepare; '
  code += 'assert "apache_beam" not in sys.modules'
  subprocess.run([sys.executable, '-c', code], check=True)
