# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Comparing tokenizers: the command."""

import json
import pathlib

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.tokenizers import tokenizer

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def texts(tmp_path, monkeypatch):
  """A working directory with 31 texts, and one that nothing learns from."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'docs').mkdir()
  for i in range(31):
    words = ' '.join(f'word{i * j % 17} and' for j in range(50))
    (tmp_path / 'docs' / f'{i}.txt').write_text(words)
  (tmp_path / 'other.txt').write_text('some other words\n')
  return tmp_path


CONFIG = [
  'tokenizers',
  f'--config={ROOT}/configs/smoke.py',
  "--config.data.source=text('docs/*.txt')",
  '--config.data.holdout=documents(fraction=0.2)',
  '--config.tokenizer.name=sentencepiece(278)',
]


def test_the_command_compares_on_what_is_held_out(texts, capsys):
  argv = [*CONFIG, '--tokenizer=bytes bytes']
  assert main([*argv, '--out=t.png', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['text'] == "documents(fraction=0.2) of text('docs/*.txt')"
  assert 0 < found['num_documents'] < 31
  assert found['num_words'] == found['num_documents'] * 100
  trained, by_bytes = found['tokenizers'].values()
  assert [*found['tokenizers']] == ['config', 'bytes']
  assert trained['call'] == 'sentencepiece(278)'
  assert by_bytes['num_tokens'] == found['num_bytes'] > trained['num_tokens']
  assert trained['num_documents_changed'] == 0
  assert (texts / 't.png').read_bytes().startswith(b'\x89PNG')
  assert main(argv) == 0
  out = capsys.readouterr().out
  assert out.startswith(f'on {found["text"]}: {found["num_documents"]} docu')
  assert '\nconfig  ' in out and '\nbytes  ' in out


def test_text_that_was_learnt_from_is_said(texts, caplog, capsys, monkeypatch):
  monkeypatch.setattr('gpt_jax.core.runtime.log.log.propagate', True)
  monkeypatch.setattr('gpt_jax.core.runtime.log.set_up', lambda: None)
  assert main([*CONFIG, '--text=other.txt']) == 0
  assert 'learnt from' not in caplog.text
  assert main([*CONFIG, '--text=docs/*.txt']) == 0
  assert 'documents that it is measured on were among' in caplog.text


def test_a_saved_tokenizer_is_one_of_them(texts, capsys):
  tokenizer.build('bytes', []).save('saved')
  argv = ['tokenizers', "--text=text('other.txt')", '--tokenizer=old saved']
  assert main([*argv, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['tokenizers']['old']['num_tokens'] == 17 == found['num_bytes']


@pytest.mark.parametrize(
  ('argv', 'what'),
  [
    (['--text=other.txt', '--tokenizer=a W/gone'], 'no saved tokenizer'),
    (['--text=other.txt', '--tokenizer=a letters'], "unknown 'letters'; one of"),
    (
      ['--text=other.txt', '--tokenizer=a sentencepiece(300)'],
      'needs text to learn from; give --config',
    ),
    ([*CONFIG[1:], '--config.data.holdout=none'], 'give --text, or hold'),
  ],
)
def test_bad_usage_is_named(texts, capsys, argv, what):
  assert main(['tokenizers', *argv]) == 2
  assert what in capsys.readouterr().err


def test_characters_of_held_out_texts_count(texts, capsys):
  """As `prepare` takes them; each text has one of its own."""
  for i, path in enumerate(sorted((texts / 'docs').iterdir())):
    path.write_text(path.read_text() + chr(0x4E00 + i))
  argv = [*CONFIG, '--config.tokenizer.name=bytes']
  assert main([*argv, '--tokenizer=all characters', '--json']) == 0
  found = json.loads(capsys.readouterr().out)['tokenizers']['all']
  assert found['num_documents_changed'] == 0
