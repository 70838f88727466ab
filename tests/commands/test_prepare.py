# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`gpt-jax prepare`."""

import functools
import pathlib
import shutil

import numpy as np
import pytest

from gpt_jax import __main__
from gpt_jax.core import malloc
from gpt_jax.core.tokens.store import TokenStore

SMOKE = f'--config={pathlib.Path(__file__).parents[2]}/configs/smoke.py'
FLAGS = ['--config.tokenizer.name=bytes', '--config.data.holdout=none']


def test_a_finished_store_is_read_again(tmp_path, monkeypatch, capsys):
  # As the stores are that are too large to be checked when they are opened.
  not_in_memory = functools.partial(TokenStore.open, in_memory_bytes=0)
  monkeypatch.setattr(TokenStore, 'open', not_in_memory)
  monkeypatch.setattr(malloc, 'keep_memory', lambda: None)
  monkeypatch.chdir(tmp_path)
  pathlib.Path('a.txt').write_text('Colourless green ideas sleep.')
  pathlib.Path('b.txt').write_text('Colourless green ideas slept.')

  def prepare(name):
    source = f"--config.data.source=text('{name}.txt')"
    flags = [SMOKE, *FLAGS, source, f'--out={name}']
    assert __main__.main(['prepare', *flags]) == 0
    return flags

  flags = prepare('a')
  assert 'compared' not in capsys.readouterr().out
  prepare('a')
  assert 'every token compared with the manifest' in capsys.readouterr().out
  # Whole in itself, but of another text of the same length.
  prepare('b')
  shutil.rmtree('a/tokens')
  shutil.copytree('b/tokens', 'a/tokens')
  capsys.readouterr()
  assert __main__.main(['prepare', *flags]) == 2
  error = capsys.readouterr().err
  assert 'differs from the manifest' in error


def prepare_with(name, folder):
  """Prepares a text of both cases that names special tokens."""
  source = "--config.data.source=text('docs/*.txt')"
  holdout = '--config.data.holdout=documents(fraction=0.3)'
  flags = [SMOKE, f'--config.tokenizer.name={name}', source, holdout]
  return __main__.main(['prepare', *flags, f'--out={folder}'])


@pytest.fixture
def docs(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('docs').mkdir()
  text = "The cat's [MASK], [CLS][SEP] <mask> </s>\nTHE CAFÉ of cats 2026.\n"
  for i in range(7):
    pathlib.Path(f'docs/{i}.txt').write_text(text * (i + 2))
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'the', 'cat', '##s']
  pathlib.Path('vocab.txt').write_text('\n'.join([*pieces, '[', 'cls', ']']))
  return text


def test_a_damaged_tokenizer_of_a_finished_store_is_named(docs, capsys):
  assert prepare_with('bytes', 'D') == 0
  pathlib.Path('D/tokenizer/tokenizer.json').write_text('{')
  assert prepare_with('bytes', 'D') == 2
  assert 'D/tokenizer/tokenizer.json: is damaged' in capsys.readouterr().err


def test_a_folder_that_lost_its_mark_is_named(docs, capsys):
  """The mark of a store that is being written."""
  pathlib.Path('D/tokens').mkdir(parents=True)
  pathlib.Path('D/tokens/zarr.json').touch()
  assert prepare_with('bytes', 'D') == 2
  assert 'D: holds tokens but no token store, nor the mark of' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('name', 'keeps', 'unknown'),
  [
    ('wordpiece(59)', False, False),
    ("wordpiece_file('vocab.txt')", False, True),
    ('byte_bpe(277)', True, False),
    (
      "sentencepiece(290, normalization='nfkc_cf', special=['[CLS]', '[SEP]', '[MASK]'])",
      False,
      False,
    ),
  ],
)
def test_tokenizers_of_encoders(docs, capsys, name, keeps, unknown):
  assert prepare_with(name, 'D') == 0
  store = TokenStore.open('D')
  made, ids = store.tokenizer(), store.tokens(0, len(store))
  # Each document ends with [SEP], and nothing else is a special token.
  assert made.eos_id == made.special.sep_id == store.manifest.eos_id
  ends = np.flatnonzero(ids == made.eos_id) + 1
  assert ends.tolist() == store.document_ends.tolist()
  specials = {*made.special.names.values()} - {made.eos_id}
  found = specials & {*ids.tolist()}
  assert found == ({made.special.names['[UNK]']} if unknown else set())
  text = made.decode(ids[: ends[0]])
  assert (docs in text) == keeps
  assert ('does not keep the text' in capsys.readouterr().err) != keeps


def test_a_bad_vocabulary_is_one_line_and_leaves_nothing(docs, capsys):
  path = pathlib.Path('vocab.txt')
  path.write_text(path.read_text().replace('[CLS]', 'cls'))
  assert prepare_with("wordpiece_file('vocab.txt')", 'D') == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert "'vocab.txt' has no [CLS]" in line
  assert not pathlib.Path('D').exists()
