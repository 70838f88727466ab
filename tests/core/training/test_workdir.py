# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which changes of a config a workdir with a run accepts."""

import json
import pathlib
import subprocess
import sys
import types

import pytest

from gpt_jax.commands import prepare
from gpt_jax.core import config as config_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import holdout
from gpt_jax.core.tokenizers.simple import Characters
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training import workdir
from gpt_jax.core.training.run import Run
from tests.support import tiny

BEFORE = 'mixture(web:0.5, code:0.5)'
ROOT = pathlib.Path(__file__).parents[3]
# Smaller than the vocabulary of any tokenizer.
SMALL = {'model.vocab_size': 17, 'model.context_length': 13}
ROW = tiny.MODEL['context_length']


def config(source):
  return config_lib.resolve(tiny.config(**{'data.source': source}))


@pytest.mark.parametrize(
  ('later', 'accepted'),
  [
    # Three steps of 16 rows were made.
    (f'{BEFORE}, mixture(web:1.0, from_token={3 * 16 * ROW})', True),
    (f'{BEFORE}, mixture(web:1.0, from_token={3 * 16 * ROW - 1})', False),
    ('mixture(web:0.4, code:0.6)', False),
    ('stdlib', False),
  ],
)
def test_a_phase_may_be_added_where_the_run_was_not(tmp_path, later, accepted):
  text = config_lib.to_json(config(BEFORE))
  (tmp_path / 'config.json').write_text(text)
  lines = [{'step': 2, 'tokens': 2 * 16 * ROW}, {'step': 3, 'event': 'saved'}]
  (tmp_path / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
  if accepted:
    workdir.check_same_run(config(later), str(tmp_path))
    return
  with pytest.raises(UsageError, match=r'another config \(data.source'):
    workdir.check_same_run(config(later), str(tmp_path))


# One process at a time ----------------------------------------------------

HOLD = """
import sys
from gpt_jax.core.training import workdir
with workdir.locked(sys.argv[1]):
  print('locked', flush=True)
  sys.stdin.read()
"""


def refused(folder):
  with (
    pytest.raises(UsageError, match='another process is training in it') as e,
    workdir.locked(str(folder)),
  ):
    pass
  return str(e.value).startswith(f'--workdir={folder}: ')


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
  folder = tmp_path / 'w'
  with subprocess.Popen(
    [sys.executable, '-c', HOLD, str(folder)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as first:
    assert first.stdout is not None
    assert first.stdout.readline() == 'locked\n'
    (folder / 'precious').write_text('of the first')
    assert refused(folder)
    assert {p.name for p in folder.iterdir()} == {'.lock', 'precious'}
    first.kill()
  with workdir.locked(str(folder)):
    assert refused(folder)
  with workdir.locked(str(folder)):
    pass


def test_a_refused_input_leaves_no_lock(tmp_path):
  folder = tmp_path / 'a/b/w'
  for _ in range(2):
    with pytest.raises(UsageError), workdir.locked(str(folder)):
      assert (folder / '.lock').exists()
      raise UsageError('bad')
    assert [*tmp_path.iterdir()] == []
  folder.mkdir(parents=True)
  (folder / 'mine').write_text('x')
  with pytest.raises(UsageError), workdir.locked(str(folder)):
    raise UsageError('bad')
  assert [p.name for p in folder.iterdir()] == ['mine']


# Before any data are prepared ---------------------------------------------


@pytest.mark.parametrize(
  ('changes', 'why'),
  [
    ({'tokenizer.name': 'bytes'}, 'size=17: is smaller than the 257'),
    ({'tokenizer.name': 'sentencepiece(vocab_size=263)'}, 'size=17: is smaller than the 263'),
    (
      {
        'tokenizer.name': 'bytes',
        'model.vocab_size': 263,
        'log.sample_prompt': 'abcde',
        'log.sample_tokens': 9,
      },
      'its 5 tokens and log.sample_tokens=9 do not fit the context of 13',
    ),
    (
      {'tokenizer.name': 'characters', 'log.sample_prompt': 'a', 'log.sample_tokens': 13},
      'log.sample_tokens=13: does not fit the context of 13',
    ),
    (
      {
        'objective.name': 'span',
        'model.num_encoder_layers': 5,
        'model.vocab_size': 320,
        'tokenizer.name': 'sentencepiece(vocab_size=300)',
      },
      r'has no <extra_id_0>.*sentinels=1\)',
    ),
  ],
)
@pytest.mark.parametrize('command', ['train', 'prepare'])
def test_what_the_tokenizer_tells_is_checked_first(tmp_path, monkeypatch, command, changes, why):
  def called(*args, **kwargs):
    raise AssertionError('the data are being prepared')

  monkeypatch.setattr(holdout, 'split', called)
  text = f"text('{ROOT}/configs/*.py')"
  made = config_lib.resolve(
    tiny.config(**{**tiny.MESHABLE, **SMALL, 'data.source': text, **changes})
  )
  with pytest.raises(UsageError, match=why):
    if command == 'train':
      Run.open(made, str(tmp_path / 'w'))
    else:
      prepare.main(
        types.SimpleNamespace(config=made, out=f'{tmp_path}/d', runner=None, beam_options='')
      )
  assert [*tmp_path.iterdir()] == []


def test_a_refused_preparation_leaves_nothing(tmp_path):
  """What cannot be known before: the last file is no text."""
  (tmp_path / 'a.txt').write_text('words ' * 1000)
  (tmp_path / 'b.txt').write_bytes(b'words\xff')
  made = config_lib.resolve(
    tiny.config(
      **{
        **tiny.MESHABLE,
        'model.vocab_size': None,
        'data.source': f"text('{tmp_path}/*.txt')",
        'data.holdout': 'none',
        'tokenizer.name': 'bytes',
        'log.sample_prompt': '',
      }
    )
  )
  args = types.SimpleNamespace(config=made, out=f'{tmp_path}/d', runner=None, beam_options='')
  with pytest.raises(UsageError, match=r'b\.txt'):
    prepare.main(args)
  with pytest.raises(UsageError, match=r'b\.txt'):
    Run.open(made, str(tmp_path / 'w'))
  assert {p.name for p in tmp_path.iterdir()} == {'a.txt', 'b.txt'}


def test_a_run_without_a_first_state_leaves_no_config(tmp_path, monkeypatch):
  """It would refuse the corrected command as another run's."""
  (tmp_path / 'a.txt').write_text('words ' * 1000)
  changes = {
    **tiny.MESHABLE,
    'model.vocab_size': None,
    'data.source': f"text('{tmp_path}/*.txt')",
    'data.holdout': 'none',
    'tokenizer.name': 'bytes',
    'log.sample_prompt': '',
  }

  def fails(run):
    raise OverflowError(f'seed {run.config.seed}')

  monkeypatch.setattr(parts_lib, 'initial_state', fails)
  made = config_lib.resolve(tiny.config(**changes))
  with pytest.raises(OverflowError):
    Run.open(made, str(tmp_path / 'w'))
  assert not (tmp_path / 'w/config.json').exists()
  corrected = config_lib.resolve(tiny.config(**changes, seed=3))
  workdir.check_same_run(corrected, str(tmp_path / 'w'))


@pytest.mark.parametrize('path', ['file', 'file/x', 'n' * 300])
def test_a_store_that_is_no_folder(tmp_path, monkeypatch, path):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'file').write_text('x')
  with pytest.raises(UsageError, match=f'data.store={path!r}: '):
    Run.open(config_lib.resolve(tiny.config(**tiny.MESHABLE, **{'data.store': path})), 'w')
  assert [p.name for p in tmp_path.iterdir()] == ['file']


@pytest.mark.parametrize(
  'fields, tokens, said',
  [
    ({'vocab_size': 7}, 7, []),
    ({'vocab_size': 128}, 7, []),
    ({'vocab_size': 129}, 7, ['model.vocab_size=129: ']),
    ({'vocab_size': 50_304}, 50_257, []),
    ({'vocab_size': 55_282}, 50_257, []),
    ({'vocab_size': 55_297}, 50_257, ['model.vocab_size=55297: ']),
    ({'vocab_size': 257, 'source_vocab_size': 500}, 257, ['model.source_vocab_size=500: ']),
  ],
)
def test_a_table_much_larger_than_its_tokenizer(fields, tokens, said, caplog):
  config = tiny.config(**{f'model.{name}': value for name, value in fields.items()})
  tokenizer = Characters(''.join(map(chr, range(0x10000, 0x10000 + tokens - 1))))
  with caplog.at_level('WARNING', 'gpt_jax'):
    workdir.warn_of_spare_rows(config, tokenizer)
  found = [record.getMessage() for record in caplog.records]
  assert len(found) == len(said)
  for message, start in zip(found, said, strict=True):
    assert message.startswith(start)
    assert f'has {tokens} tokens' in message and 'take the tokenizer' in message


@pytest.mark.parametrize(
  ('size', 'name', 'said'),
  [
    (32_000, "sentencepiece(vocab_size=4096, model='bpe')", 4096),
    (4096, "sentencepiece(vocab_size=4096, model='bpe')", None),
    (32_000, 'bytes', 257),
    (32_000, "sides('bytes', 'sentencepiece(vocab_size=32000)')", 257),
    # Not known before there is text, or a file.
    (32_000, 'characters', None),
    (32_000, "saved('nowhere')", None),
  ],
)
def test_a_table_larger_than_a_tokenizer_to_train(size, name, said, caplog):
  fields = {'model.vocab_size': size, 'tokenizer.name': name}
  config = tiny.config(**fields)
  with caplog.at_level('WARNING', 'gpt_jax'):
    workdir.warn_of_planned_rows(config)
  found = [record.getMessage() for record in caplog.records]
  assert len(found) == (said is not None)
  for message in found:
    assert message.startswith(f'model.vocab_size={size}: tokenizer.name=')
    assert f'has {said} tokens' in message
