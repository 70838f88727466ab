# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`gpt-jax prepare`."""

import functools
import pathlib
import shutil

from gpt_jax import __main__
from gpt_jax.data.store import TokenStore
from gpt_jax.runtime import malloc

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
