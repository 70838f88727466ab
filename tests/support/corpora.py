# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small corpora and configs for the tests of the data modules."""

import pathlib

import pytest
import tensorstore as ts
import tokenizers
from ml_collections import ConfigDict

from gpt_jax.files import files
from tests.support.fake_gcs import Bucket

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
  made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False
  )
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
  """A stand-in for a bucket that goes wrong as told, which TensorStore asks."""
  made = []

  def make(fault=lambda number: ''):
    made.append(Bucket(fault))
    # TensorStore's own variables; it reads them at each start of a driver.
    monkeypatch.setenv('TENSORSTORE_GCS_HTTP_URL', made[-1].url)
    monkeypatch.setenv('GOOGLE_AUTH_TOKEN_FOR_TESTING', 'none')
    quick = {'initial_delay': '2ms', 'max_delay': '9ms', 'max_retries': 32}
    context = ts.Context({'gcs_request_retries': quick})
    monkeypatch.setattr(files, '_CONTEXT', context)
    monkeypatch.setattr(files, '_answered', set())
    return made[-1]

  yield make
  for bucket in made:
    bucket.close()
