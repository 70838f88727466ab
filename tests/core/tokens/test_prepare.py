# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Preparing: both splits, whole or none, and the same bytes every time."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tokenizers

from gpt_jax.core.files import files
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import sources
from gpt_jax.core.tokens import encode, manifest, prepare
from gpt_jax.core.tokens import store as array_writer
from gpt_jax.core.tokens.store import ArrayWriter, TokenStore
from tests.support.corpora import contents

ROOT = pathlib.Path(__file__).parents[3]
TRAINED = 'sentencepiece(vocab_size=295)'

# Prepares as a user's process does, in many small pieces.
CHILD = """
import sys
sys.path.insert(0, sys.argv[2])  # this checkout, whatever is installed
from ml_collections import ConfigDict
from gpt_jax.core.tokens import encode, manifest, prepare
from gpt_jax.core.tokens import store as array_writer
if __name__ == '__main__':
  encode._BATCH, encode._ALONE, manifest.BLOCK = 1, 2, 64
  array_writer._CHUNK, array_writer._SHARD_BYTES = 64, 512
config = ConfigDict({
  'data': {'source': "text('docs/*.txt')", 'holdout': 'documents(0.2)',
    'clean': 'none', 'compression': 'none', 'sentences': 'terminal',
    'workers': int(sys.argv[1])},
  'tokenizer': {'name': "hf_tokenizer('tokenizer.json')"},
})
def report(stage, done, total):
  print(stage, done, total, flush=True)
prepare.prepare(config, 'D', report)
print('done', flush=True)
"""


def texts(store, tokenizer):
  ends = store.document_ends
  starts = [0, *ends[:-1]]
  return [tokenizer.decode(store.tokens(int(a), int(b))) for a, b in zip(starts, ends, strict=True)]


@pytest.mark.parametrize('name', ['bytes', 'characters', TRAINED])
@pytest.mark.parametrize('batch', [1, 1 << 22])
def test_both_splits_hold_the_documents(corpus, make_config, name, batch, monkeypatch):
  monkeypatch.setattr(encode, '_BATCH', batch)
  config = make_config(tokenizer=name)
  train = prepare.ensure(config, 'D')
  held_out, tokenizer = train.validation(), train.tokenizer()
  found = texts(train, tokenizer), texts(held_out, tokenizer)
  corpus_texts = [d.text for d in sources.documents('data.source', config.data.source)]
  assert sorted(found[0] + found[1]) == sorted(corpus_texts)
  assert found[0] == [t for t in corpus_texts if t in set(found[0])]
  for split, part in zip((train, held_out), found, strict=True):
    written = split.manifest
    assert written.num_documents == len(part) > 0
    assert written.num_bytes == sum(len(t.encode()) for t in part)
    assert written.num_tokens == len(split) == int(split.document_ends[-1])
    assert written.vocab_size == tokenizer.vocab_size
    assert written.tokenizer_fingerprint == tokenizer.fingerprint
    assert (written.source, written.tokenizer) == (config.data.source, name)
    assert np.max(split.tokens(0, len(split))) < written.vocab_size


def test_tail_trains_on_the_first_characters(corpus, make_config):
  config = make_config("text('docs/36.txt')", 'tail(fraction=0.25)')
  train = prepare.ensure(config, 'D')
  tokenizer = train.tokenizer()
  text = (corpus / 'docs/36.txt').read_text(encoding='utf-8')
  cut = int(len(text) * 0.75)
  assert texts(train, tokenizer) == [text[:cut]]
  assert texts(train.validation(), tokenizer) == [text[cut:]]


def test_the_same_corpus_gives_the_same_bytes(corpus, make_config):
  config = make_config(tokenizer=TRAINED)
  prepare.prepare(config, 'D')
  prepare.prepare(config, 'E')
  assert contents('D') == contents('E')
  (corpus / 'docs' / '00.txt').write_text('changed')
  changed = prepare.prepare(config, 'F')
  assert changed.source_sha256 != TokenStore.open('D').manifest.source_sha256


def test_a_url_holds_the_same_store(corpus, make_config):
  # TensorStore's memory stands for gs://, which needs the network.
  url = f'memory://{corpus.name}'
  config = make_config()
  store = prepare.ensure(config, url)
  prepare.ensure(config, 'D')
  assert contents(url) == contents('D')
  assert texts(store.validation(), store.tokenizer())
  for name in files.names(url):
    files.delete(url, name)


def test_a_second_call_opens_what_is_there(corpus, make_config, monkeypatch):
  prepare.ensure(make_config(), 'D')
  monkeypatch.setattr(prepare.LocalWorkers, 'write', None)
  same = make_config("text( 'docs/*.txt' )", 'documents( fraction=0.2 )')
  assert prepare.ensure(same, 'D').manifest == prepare.prepare(same, 'D')


def test_other_settings_are_named(corpus, make_config):
  prepare.ensure(make_config(), 'D')
  other = make_config(holdout='none', tokenizer='characters')
  for call in (prepare.ensure, prepare.prepare):
    with pytest.raises(UsageError) as e:
      call(other, 'D')
    message = str(e.value)
    assert "data.holdout='documents(fraction=0.2)' where" in message
    assert "has 'none'" in message and "has 'characters'" in message
    assert 'data.source' not in message and 'data.store' in message


def test_foreign_files_are_left_alone(corpus, make_config):
  (corpus / 'mine' / 'tokens').mkdir(parents=True)
  (corpus / 'mine' / 'tokens' / 'secret').write_text('x')
  for _ in range(2):
    with pytest.raises(UsageError, match=r'mine: holds tokens but no token'):
      prepare.prepare(make_config(), 'mine')
  assert files.names('mine') == ['tokens/secret']


def test_progress_reports_bytes(corpus, make_config):
  seen = []
  config = make_config(tokenizer='characters')
  prepare.prepare(config, 'D', lambda *report: seen.append(report))
  size = sum(p.stat().st_size for p in (corpus / 'docs').iterdir())
  assert seen[-1] == ('tokenizing', size, size)
  assert {stage for stage, *_ in seen} == {'reading for the tokenizer', 'tokenizing'}


def test_a_crash_at_any_write_leaves_no_store(corpus, make_config, monkeypatch):
  config = make_config(tokenizer='characters')
  prepare.prepare(config, 'whole')
  expected = contents('whole')
  write, flush = files.write, ArrayWriter._flush
  left = None

  def dying(function):
    def call(*args):
      nonlocal left
      left -= 1
      if left < 0:
        raise KeyboardInterrupt
      return function(*args)

    return call

  monkeypatch.setattr(files, 'write', dying(write))
  monkeypatch.setattr(ArrayWriter, '_flush', dying(flush))
  for survived in range(50):
    left = survived
    try:
      prepare.prepare(config, 'D')
      break
    except KeyboardInterrupt:
      with pytest.raises(UsageError, match='no finished token store'):
        TokenStore.open('D')
  assert survived > 2
  assert contents('D') == expected


def test_two_processes_make_one_store(corpus, make_config):
  config = make_config(tokenizer=TRAINED)
  made = []

  def work():
    made.append(prepare.ensure(config, 'D').manifest)

  threads = [threading.Thread(target=work) for _ in range(3)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(made) == 3 and made[0] == made[1] == made[2]
  prepare.prepare(config, 'E')
  assert contents('D') == contents('E')


@pytest.mark.slow
def test_prepare_resumes_after_a_kill(corpus, hf_tokenizer):
  """Nothing that was on disk is encoded again, and the store is the same."""

  def child(workers):
    return subprocess.Popen(
      [sys.executable, '-c', CHILD, f'{workers}', str(ROOT)], stdout=subprocess.PIPE, text=True
    )

  with child(workers=2) as process:
    lines = list(process.stdout)
  assert process.returncode == 0 and lines[-1] == 'done\n'
  expected = contents('D')
  assert 'unfinished.npz' not in expected
  shutil.rmtree('D')
  rng = random.Random(7)
  for workers in (2, 1):
    left = rng.randrange(7, 12)
    with child(workers) as process:
      while left:
        left -= process.stdout.readline().startswith('tokenizing')
      os.kill(process.pid, signal.SIGKILL)
      process.stdout.read()
    with pytest.raises(UsageError):
      TokenStore.open('D')
  with child(workers=1) as process:
    lines = [line.rsplit(maxsplit=2) for line in process.stdout]
  assert process.returncode == 0
  assert contents('D') == expected
  read = [int(done) for stage, done, _ in lines[:-1] if stage.startswith('rea')]
  made = [int(done) for stage, done, _ in lines[:-1] if stage == 'tokenizing']
  assert lines[0][0] == 'reading what was done'
  assert 0 < read[-1] < made[0] and len(made) < 30


@pytest.fixture
def small(monkeypatch):
  """Small shards: many of them in a small corpus."""
  monkeypatch.setattr(encode, '_BATCH', 1)
  monkeypatch.setattr(array_writer, '_CHUNK', 64)
  monkeypatch.setattr(array_writer, '_SHARD_BYTES', 512)
  monkeypatch.setattr(manifest, 'BLOCK', 64)


def stop_at(config, num_bytes):
  """Prepares D until so many bytes are done."""

  def report(stage, done, total):
    if stage == 'tokenizing' and done > num_bytes:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(config, 'D', report)


@pytest.mark.parametrize('change', ['a file', 'tokens'])
def test_an_unresumable_state_starts_over(corpus, make_config, small, change):
  config = make_config(tokenizer='characters', sentences='terminal')
  stop_at(config, 3000)
  assert files.read('D', 'unfinished.npz')
  if change == 'tokens':
    shutil.rmtree('D/tokens')
  else:
    (corpus / 'docs' / '36.txt').write_text('other')
  prepare.prepare(config, 'D')
  prepare.prepare(config, 'E')
  assert contents('D') == contents('E')


def test_the_digest_of_what_was_done_is_compared(corpus, make_config, small, monkeypatch, caplog):
  # As if the samples had not told that the file is another.
  monkeypatch.setattr('gpt_jax.core.text.inputs.look', lambda paths: {})
  caplog.set_level('INFO')
  config = make_config()
  stop_at(config, 3000)
  path = corpus / 'docs' / '00.txt'
  path.write_text(path.read_text().replace('a', 'b'))
  prepare.prepare(config, 'D')
  assert 'starting over: the corpus has changed' in caplog.text
  prepare.prepare(config, 'E')
  assert contents('D') == contents('E')


@pytest.mark.parametrize('tokenizer', [TRAINED, 'bytes', "hf_tokenizer('tokenizer.json')"])
def test_workers_make_the_same_store(corpus, hf_tokenizer, make_config, monkeypatch, tokenizer):
  settings = {'tokenizer': tokenizer, 'sentences': 'terminal'}
  prepare.prepare(make_config(**settings), 'D')
  monkeypatch.setattr(encode, '_BATCH', 100)
  monkeypatch.setattr(encode, '_ALONE', 1)
  prepare.prepare(make_config(**settings, workers=2), 'E')
  assert contents('D') == contents('E')


def test_long_documents_are_encoded_in_pieces(corpus, make_config, monkeypatch):
  config = make_config(tokenizer=TRAINED)
  prepare.prepare(config, 'D')
  monkeypatch.setattr(encode, '_LONGEST', 23)
  monkeypatch.setattr(encode, '_BATCH', 50)
  train = prepare.ensure(config, 'E')
  expected = TokenStore.open('D')
  found = texts(train, train.tokenizer())
  assert found == texts(expected, expected.tokenizer())
  assert len(train) > len(expected)


def test_changed_files_are_named(corpus, make_config, caplog):
  (corpus / 'valid.md').write_text('held out')
  config = make_config(holdout="text('valid.md')")
  before = prepare.ensure(config, 'D').manifest
  # A copy of another age is the same.
  os.utime('docs/03.txt', (1, 1))
  assert prepare.prepare(config, 'D') == before
  text = (corpus / 'docs/03.txt').read_text()
  (corpus / 'docs/03.txt').write_text(text[:-1] + '!')
  (corpus / 'docs/40.txt').write_text('new')
  (corpus / 'docs/05.txt').unlink()
  (corpus / 'valid.md').write_text('held OUT')
  with pytest.raises(UsageError) as e:
    prepare.prepare(config, 'D')
  for words in (
    '2 changed: 03.txt, holdout: valid.md',
    '1 added: 40.txt',
    '1 removed: 05.txt',
    'remove this one',
  ):
    assert words in str(e.value)
  assert not caplog.text
  assert prepare.ensure(config, 'D').manifest == before
  assert '2 changed: 03.txt' in caplog.text
  # Where the corpus is not, the store does without.
  shutil.rmtree(corpus / 'docs')
  assert prepare.prepare(config, 'D') == before


@pytest.mark.parametrize('longest', [21, 22])
def test_too_few_ends_of_documents_are_told(corpus, make_config, monkeypatch, caplog, longest):
  monkeypatch.setattr(prepare, '_LONG', longest)
  (corpus / 'books.md').write_text(('x' * 21 + '\n\n') * 3)
  source = 'passages("text(\'books.md\')", chars=5)'
  prepare.prepare(make_config(source=source, holdout='none'), 'D')
  # 21 bytes and an end each.
  told = 'a document has 22 tokens on average' in caplog.text
  assert told == bool(caplog.text) == (longest == 21), caplog.text


def without_an_unknown_token():
  """A tokenizer.json that fails on words of letters but a."""
  pieces = ['</s>', 'a', 'aa', '##a']
  model = tokenizers.models.WordPiece({p: i for i, p in enumerate(pieces)})
  made = tokenizers.Tokenizer(model)
  made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  made.add_special_tokens(['</s>'])
  made.save('tokenizer.json')
  return "hf_tokenizer('tokenizer.json')"


@pytest.mark.parametrize('longest', [1 << 20, 4])
@pytest.mark.parametrize('call', ['{}', 'passages({!r}, chars=1)'])
def test_a_text_that_cannot_be_tokenized(tmp_path, make_config, monkeypatch, caplog, longest, call):
  """One line that names it, or left out and counted."""
  monkeypatch.chdir(tmp_path)
  lines = ['a aa\na aa', 'a aa\nb aa\na', 'aa']
  with open('a.jsonl', 'w', encoding='utf-8') as file:
    file.writelines(json.dumps({'text': line}) + '\n' for line in lines)
  monkeypatch.setattr(encode, '_LONGEST', longest)
  name = without_an_unknown_token()
  source = call.format("jsonl('a.jsonl')")
  config = make_config(source, 'none', name)
  with pytest.raises(UsageError, match=r'a\.jsonl:2(#1)?: cannot be tokenized'):
    prepare.prepare(config, 'D')
  source = call.format("jsonl('a.jsonl', on_error='skip')")
  config = make_config(source, 'none', name)
  store = prepare.ensure(config, 'D')
  assert store.manifest.skipped == {'cannot be tokenized': 1}
  assert 'skipping documents that cannot be tokenized; the first' in caplog.text
  # Of a document that is read in pieces those before the bad one stay.
  cut = [] if longest > 4 else [[1, 2]]
  found = [
    store.tokens(int(a), int(b)).tolist()
    for a, b in zip([0, *store.document_ends[:-1]], store.document_ends, strict=True)
  ]
  assert found == [x + [0] for x in ([1, 2, 1, 2], *cut, [2])]
  whole = sum(len(line) for i, line in enumerate(lines) if i != 1)
  assert store.manifest.num_bytes == whole
