# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Preparing on Apache Beam: the bytes are those of the local path."""

import importlib.util
import json
import subprocess
import sys

import pytest

from gpt_jax.__main__ import main
from gpt_jax.data import encode, files, manifest, prepare, store
from gpt_jax.spec import UsageError

HAS_BEAM = importlib.util.find_spec('apache_beam') is not None
needs_beam = pytest.mark.skipif(
  not HAS_BEAM,
  reason='needs Apache Beam in an environment of its own: make beam',
)
# Beam's own, and those of what it imports.
pytestmark = pytest.mark.filterwarnings('default')

TRAINED = 'sentencepiece(vocab_size=295)'


def contents(folder):
  return {name: files.read(folder, name) for name in files.names(folder)}


@pytest.fixture
def small(monkeypatch):
  """Small files and chunks: many of each in a small corpus."""
  monkeypatch.setattr(encode, '_LONGEST', 151)
  monkeypatch.setattr(store, '_CHUNK', 64)
  monkeypatch.setattr(store, '_SHARD_BYTES', 512)
  monkeypatch.setattr(manifest, 'BLOCK', 64)
  monkeypatch.setattr('gpt_jax.data.sources._UNIT', 5 << 16)
  if HAS_BEAM:
    monkeypatch.setattr('gpt_jax.data.beam_stages._CHUNK', 320)


def both(config):
  """The files of the stores that both paths make, which are to be equal."""
  prepare.prepare(config, 'local')
  prepare.prepare(config, 'beam', runner='DirectRunner')
  found = contents('beam')
  assert found == contents('local')
  assert len([name for name in found if name.startswith('tokens/c/')]) > 3
  return found


@needs_beam
@pytest.mark.parametrize(
  ('holdout', 'tokenizer'),
  [
    ('documents(fraction=0.2)', 'bytes'),
    ('none', TRAINED),
    ("text('docs/0*.txt')", 'characters'),
  ],
)
def test_the_same_bytes(corpus, make_config, small, holdout, tokenizer):
  config = make_config(holdout=holdout, tokenizer=tokenizer).unlock()
  config.data.compression = 'zstd' if tokenizer == 'bytes' else 'none'
  found = both(config)
  assert ('validation/manifest.json' in found) == (holdout != 'none')
  # What is there is opened, as on the local path.
  again = prepare.prepare(config, 'local', runner='DirectRunner')
  assert again == manifest.read('beam')


@needs_beam
def test_the_same_bytes_of_a_mixture_of_many_kinds(corpus, make_config, small):
  lines = [json.dumps({'text': f'{i} δ ' * (i % 13)}) for i in range(211)]
  (corpus / 'a.jsonl').write_text('\n'.join(lines[:97]))
  (corpus / 'b.jsonl').write_text('\n'.join(['{', *lines[97:]]))
  config = make_config(
    'mixture(web:0.6, docs:0.4)',
    sources={
      'web': "jsonl('*.jsonl', on_error='skip')",
      'docs': "text('docs/*.txt')",
    },
  )
  both(config)
  parts = manifest.read('beam').parts
  assert [*parts] == ['docs', 'web'] and 0 < parts['docs'] < parts['web']


@needs_beam
def test_what_is_wrong_is_said_as_without_beam(corpus, make_config):
  (corpus / 'a.jsonl').write_text('{"text": "x"}\n{"text": 7}\n')
  config = make_config("jsonl('a.jsonl')", 'none')
  with pytest.raises(UsageError) as local:
    prepare.prepare(config, 'local')
  with pytest.raises(UsageError) as beam:
    prepare.prepare(config, 'beam', runner='DirectRunner')
  assert str(beam.value) == str(local.value)
  assert 'a.jsonl:2: has no text' in str(beam.value)
  assert not manifest.exists('beam')
  config = make_config(holdout='tail(fraction=0.1)')
  with pytest.raises(UsageError, match=r'tail.*leave --runner out'):
    prepare.prepare(config, 'other', runner='DirectRunner')
  with pytest.raises(UsageError, match=r'--runner=Fastest: .* DirectRunner'):
    prepare.prepare(make_config(), 'other', runner='Fastest')
  config = make_config("text('docs/00.txt')", 'documents(fraction=1e-9)')
  with pytest.raises(UsageError, match=r'no document .* for evaluation'):
    prepare.prepare(config, 'other', runner='DirectRunner')


@needs_beam
def test_what_a_killed_process_left_is_written_again(
  corpus, make_config, small
):
  def report(stage, done, total):
    if stage == 'tokenizing' and done > 3000:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(make_config(), 'beam', report)
  assert files.read('beam', 'unfinished.npz')
  both(make_config())


@pytest.mark.skipif(HAS_BEAM, reason='Apache Beam is here')
def test_without_beam_it_says_how_to_install_it(corpus, make_config):
  with pytest.raises(UsageError, match=r'constraints-beam.txt .*\[beam\]'):
    prepare.prepare(make_config(), 'D', runner='DirectRunner')
  assert not (corpus / 'D').exists()


def test_the_command_names_a_runner_that_is_missing(capsys, tmp_path):
  args = ['--config=configs/smoke.py', f'--out={tmp_path}/D']
  assert main(['prepare', *args, '--beam_options=--region=x']) == 2
  assert 'needs --runner' in capsys.readouterr().err


@needs_beam
def test_beam_is_imported_only_when_asked():
  code = 'import sys, gpt_jax.prepare; assert "apache_beam" not in sys.modules'
  subprocess.run([sys.executable, '-c', code], check=True)
