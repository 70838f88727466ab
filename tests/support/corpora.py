# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small corpora and configs for the tests of the data modules."""

import json
import pathlib
import random

import pytest
import tensorstore as ts
import tokenizers
from ml_collections import ConfigDict

from gpt_jax.core.files import files
from tests.support import fake_gcs, fake_s3

# Public data sets that some machines have in a folder above the checkout.
SHARED = next(
  (
    folder / 'shared' / 'data'
    for folder in pathlib.Path(__file__).resolve().parents[3:]
    if (folder / 'shared' / 'data').is_dir()
  ),
  None,
)

WORDS = ('alpha', 'beta', 'Gamma', 'δέλτα', '\t42', '\n\n  return', 'x=1;')


# An evaluation set, of which `web_pages` have some.
TEST = 'one two three four five six'


def page(rng, length=47):
  words = [f'w{rng.randrange(997)}' for _ in range(length)]
  return ' '.join(w + '.' * (i % 7 == 6) for i, w in enumerate(words)) + ' End.'


def web_pages(changes):
  """Pages; some nearly the same, some with parts of others or of `TEST`.

  A near-duplicate differs in up to `changes` of its words.
  """
  rng = random.Random(2)
  pages = [page(rng) for _ in range(79)]
  for i in range(7):
    words = pages[i].split(' ')
    for first in (3, 8, 12, 5, 10)[: 1 + i % changes]:
      for at in range(first, 47, 14):  # in every other sentence
        words[at] = f'other{first}'
    pages.append(' '.join(words))
    part = ' '.join(pages[20 + i].split(' ')[:28])
    pages.append(f'{page(rng)} {part}')  # four sentences of another page
    around = [' '.join(page(rng) for _ in range(3)) for _ in range(2)]
    pages.append(f'{around[0]} {TEST}. {around[1]}')
  pages.append('a page { of code.')
  rng.shuffle(pages)
  return pages


def write_lines(path, texts):
  """Writes JSON lines."""
  path.write_text(''.join(json.dumps({'text': t}) + '\n' for t in texts))


def contents(folder):
  """The files below a folder by name, as bytes."""
  folder = str(folder)
  return {name: files.read(folder, name) for name in files.names(folder)}


@pytest.fixture(scope='session')
def shared():
  """The folder of public data sets, which the test needs."""
  if SHARED is None:
    pytest.skip('needs the public data sets in ../shared/data')
  return SHARED


@pytest.fixture
def corpus(tmp_path, monkeypatch):
  """A working directory with 37 text files in docs/."""
  (tmp_path / 'docs').mkdir()
  for i in range(37):
    text = ' '.join(WORDS[(i * j) % 7] + str(j) for j in range(11 + i))
    (tmp_path / 'docs' / f'{i:02}.txt').write_text(text, encoding='utf-8')
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.fixture
def hf_tokenizer(corpus):
  """The call of a tokenizer that workers encode with in processes."""
  alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  vocabulary = {piece: i for i, piece in enumerate([*alphabet, '<eos>'])}
  made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
  made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = tokenizers.decoders.ByteLevel()
  made.add_special_tokens(['<eos>'])
  made.save(str(corpus / 'tokenizer.json'))
  return "hf_tokenizer('tokenizer.json')"


@pytest.fixture
def make_config():
  """Makes the part of a config that preparing reads."""

  def make(
    source="text('docs/*.txt')",
    holdout='documents(fraction=0.2)',
    tokenizer='bytes',
    workers=1,
    sources=None,
    clean='none',
    sentences='none',
  ):
    return ConfigDict(
      {
        'data': {
          'source': source,
          'holdout': holdout,
          'workers': workers,
          'rows': 'stream',
          'compression': 'none',
          'sentences': sentences,
          'sources': sources or {},
          'clean': clean,
        },
        'tokenizer': {'name': tokenizer},
        'eval': {'sets': {}, 'words': {}},
      }
    )

  return make


@pytest.fixture
def make_bucket(monkeypatch):
  """A stand-in for a bucket that goes wrong as told, which TensorStore asks.

  Its argument `kind` is the bucket's: 'gs' or 's3'.
  """
  made = []

  def make(fault=lambda number: '', kind='gs'):
    kinds = {'gs': fake_gcs.Bucket, 's3': fake_s3.Bucket}
    made.append(kinds[kind](fault))
    for name, value in made[-1].variables().items():
      monkeypatch.setenv(name, value)
    quick = {'initial_delay': '2ms', 'max_delay': '9ms', 'max_retries': 32}
    context = ts.Context({'gcs_request_retries': quick, 's3_request_retries': quick})
    monkeypatch.setattr(files, '_context', lambda keep: context)
    monkeypatch.setattr(files, '_answered', set())
    return made[-1]

  yield make
  for bucket in made:
    bucket.close()
