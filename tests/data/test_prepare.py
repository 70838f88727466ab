# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Preparing: both splits, whole or none, and the same bytes every time."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from gpt_jax.data import files, prepare, sources
from gpt_jax.data.store import ArrayWriter, TokenStore
from gpt_jax.spec import UsageError

TRAINED = 'sentencepiece(vocab_size=295)'

# Prepares as a user's process does, in many small pieces.
CHILD = """
import sys
from ml_collections import ConfigDict
from gpt_jax.data import manifest, prepare, store
prepare._BATCH, store._CHUNK, manifest.BLOCK = 1, 64, 64
store._SHARD_BYTES = 512
config = ConfigDict({
  'data': {'source': "text('docs/*.txt')", 'holdout': 'documents(0.2)'},
  'tokenizer': {'name': 'sentencepiece(vocab_size=295)'},
})
def report(stage, done, total):
  print(stage, done, total, flush=True)
prepare.prepare(config, 'D', report)
print('done', flush=True)
"""


def contents(folder):
  """All files of a store, but those that TensorStore locks while writing."""
  return {name: files.read(str(folder), name) for name in files.names(folder)}


def texts(store, tokenizer):
  ends = store.document_ends
  starts = [0, *ends[:-1]]
  return [
    tokenizer.decode(store.tokens(int(a), int(b)))
    for a, b in zip(starts, ends, strict=True)
  ]


@pytest.mark.parametrize('name', ['bytes', 'characters', TRAINED])
@pytest.mark.parametrize('batch', [1, 1 << 22])
def test_both_splits_hold_the_documents(
  corpus, make_config, name, batch, monkeypatch
):
  monkeypatch.setattr(prepare, '_BATCH', batch)
  config = make_config(tokenizer=name)
  train = prepare.ensure(config, 'D')
  held_out, tokenizer = train.validation(), train.tokenizer()
  found = texts(train, tokenizer), texts(held_out, tokenizer)
  corpus_texts = [
    d.text for d in sources.documents('data.source', config.data.source)
  ]
  assert sorted(found[0] + found[1]) == sorted(corpus_texts)
  assert found[0] == [t for t in corpus_texts if t in set(found[0])]
  for store, part in zip((train, held_out), found, strict=True):
    written = store.manifest
    assert written.num_documents == len(part) > 0
    assert written.num_bytes == sum(len(t.encode()) for t in part)
    assert written.num_tokens == len(store) == int(store.document_ends[-1])
    assert written.vocab_size == tokenizer.vocab_size
    assert written.tokenizer_fingerprint == tokenizer.fingerprint
    assert (written.source, written.tokenizer) == (config.data.source, name)
    assert np.max(store.tokens(0, len(store))) < written.vocab_size


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
  monkeypatch.setattr(prepare, '_write', None)
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


@pytest.mark.parametrize(
  ('holdout', 'side'),
  [('documents(fraction=1e-9)', 'evaluation'), ('documents(0.999)', 'train')],
)
def test_a_split_without_documents_is_refused(
  corpus, make_config, holdout, side
):
  config = make_config("text('docs/00.txt')", holdout)
  with pytest.raises(UsageError) as e:
    prepare.ensure(config, 'D')
  assert side in str(e.value) and 'tail(fraction=0.1)' in str(e.value)
  assert not (corpus / 'D' / 'manifest.json').exists()


def test_progress_reports_bytes(corpus, make_config):
  seen = []
  config = make_config(tokenizer='characters')
  prepare.prepare(config, 'D', lambda *report: seen.append(report))
  size = sum(p.stat().st_size for p in (corpus / 'docs').iterdir())
  assert seen[-1] == ('tokenizing', size, size)
  assert {stage for stage, *_ in seen} == {
    'reading for the tokenizer',
    'tokenizing',
  }


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
  assert survived > 5
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


def test_a_killed_process_leaves_no_store(corpus):
  def child():
    return subprocess.Popen(
      [sys.executable, '-c', CHILD], stdout=subprocess.PIPE, text=True
    )

  rng = random.Random(7)
  with child() as process:
    lines = list(process.stdout)
  assert process.returncode == 0 and lines[-1] == 'done\n'
  expected = contents('D')
  shutil.rmtree('D')
  for _ in range(3):
    last = rng.randrange(len(lines) - 1)
    with child() as process:
      for _ in range(last):
        process.stdout.readline()
      os.kill(process.pid, signal.SIGKILL)
      process.stdout.read()
    if os.path.exists('D/manifest.json'):
      assert contents('D') == expected  # it ran on to the end before it died
    else:
      with pytest.raises(UsageError):
        TokenStore.open('D')
  with child() as process:
    process.stdout.read()
  assert process.returncode == 0
  assert contents('D') == expected
