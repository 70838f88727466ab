# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `gpt-jax serve` says as it starts."""

import json
import shlex
import time

import jax
import pytest

from gpt_jax.commands import serve
from gpt_jax.core.runtime import programs
from gpt_jax.decoding import engine as engine_lib


class Sized:
  """An engine of two sizes."""

  sizes = (1, 2)


@pytest.fixture
def slow(monkeypatch):
  """Each size takes so long that its progress is due."""
  monkeypatch.setattr(serve, '_EVERY_SECONDS', 0.05)
  monkeypatch.setattr(programs, 'keep_quick', lambda: None)

  def warm_up(engine, prompt, new):
    for size in engine.sizes:
      time.sleep(0.08)
      yield size

  def warm_up_all(engine, seconds, report):
    report(0, 2)
    for done in (1, 2):
      time.sleep(0.08)
      report(done, 2)
    return True

  monkeypatch.setattr(engine_lib, 'warm_up', warm_up)
  monkeypatch.setattr(engine_lib, 'warm_up_all', warm_up_all)


@pytest.mark.parametrize(
  ('sizes', 'seconds', 'first'),
  [
    ([(40, 16)], 0, 'compiling for prompts of 40 tokens, and 16 more'),
    ([], 60, 'for up to 60 s; --warm_up_seconds=0 starts at once'),
  ],
)
def test_a_warm_up_says_how_far_it_is(slow, caplog, sizes, seconds, first):
  with caplog.at_level('INFO', 'gpt_jax'):
    serve._warm_up(Sized, sizes, seconds)  # type: ignore
  said, *others = caplog.messages
  assert first in said
  assert others[0] == 'compiled 0 of 2 sizes in 0 s'
  assert 'compiled 1 of 2 sizes in 0 s' in others
  assert others[-1] == 'compiled 2 of 2 sizes in 0 s'


@pytest.mark.parametrize(
  ('chats', 'path', 'body'),
  [
    (False, '/v1/completions', {'prompt': 'Once', 'max_tokens': 20}),
    (
      True,
      '/v1/chat/completions',
      {'messages': [{'role': 'user', 'content': 'Hello'}], 'max_tokens': 20},
    ),
  ],
)
def test_what_to_try(capsys, chats, path, body):
  serve._say('mine', 'http://127.0.0.1:80', needs_key=False, chats=chats)
  line = capsys.readouterr().out.splitlines()[1]
  words = shlex.split(line.removeprefix('try: '))
  assert words[:2] == ['curl', f'http://127.0.0.1:80{path}']
  assert json.loads(words[-1]) == body


@pytest.mark.parametrize(('variable', 'least'), [(None, 0.0), ('0.5', 0.7)])
def test_quick_programs_are_kept(monkeypatch, variable, least):
  name = 'jax_persistent_cache_min_compile_time_secs'
  before = getattr(jax.config, name)
  if variable is None:
    monkeypatch.delenv(name.upper(), raising=False)
  else:  # JAX read it when it was imported
    monkeypatch.setenv(name.upper(), variable)
  jax.config.update(name, 0.7)
  try:
    programs.keep_quick()
    assert getattr(jax.config, name) == least
  finally:
    jax.config.update(name, before)
