# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run is refused for before it starts."""

import numpy as np
import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import workdir as workdir_lib
from tests.support import tiny


def saved(workdir, **changes):
  config = config_lib.resolve(tiny.config(**changes))
  (workdir / 'config.json').write_text(config_lib.to_json(config))


def check(workdir, **changes):
  workdir_lib.check_same_run(config_lib.resolve(tiny.config(**changes)), str(workdir))


def test_a_new_workdir_takes_any_config(tmp_path):
  check(tmp_path)
  check(tmp_path / 'nowhere')


def test_the_same_config_goes_on(tmp_path):
  saved(tmp_path)
  check(tmp_path)
  check(tmp_path, **{'log.every_steps': 3, 'mesh.data': 8, 'mesh.fsdp': 1})


def test_an_empty_vocabulary_is_the_one_found_before(tmp_path):
  saved(tmp_path, **{'model.vocab_size': 211})
  check(tmp_path, **{'model.vocab_size': None})
  with pytest.raises(UsageError, match=r'model\.vocab_size: 211 -> 199'):
    check(tmp_path, **{'model.vocab_size': 199})


def test_checking_leaves_the_config_alone(tmp_path):
  saved(tmp_path, **{'model.vocab_size': 211})
  config = config_lib.resolve(tiny.config(**{'model.vocab_size': None}))
  workdir_lib.check_same_run(config, str(tmp_path))
  assert config.model.vocab_size is None
  assert config.is_locked


def test_another_config_is_refused_by_its_fields(tmp_path):
  saved(tmp_path)
  changes = {'seed': 3, 'model.ffn': 'relu', 'batch.size': 24, 'log.every_steps': 3}
  with pytest.raises(UsageError) as error:
    check(tmp_path, **changes)
  message = str(error.value)
  start, _, rest = message.partition(' (')
  fields, _, remedy = rest.rpartition('); ')
  assert start == f'--workdir={tmp_path}: its config.json is of another config'
  assert {*fields.split('; ')} == {
    'seed: 0 -> 3',
    "model.ffn: 'gelu_tanh' -> 'relu'",
    'batch.size: 16 -> 24',
  }
  assert remedy == 'give the same values, or another --workdir'


def refuse(workdir, *names):
  with pytest.raises(UsageError), workdir_lib.untouched_if_refused(str(workdir)):
    for name in names:
      path = workdir / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text('new')
    raise UsageError('bad')


def test_what_was_made_for_a_refused_run_is_removed(tmp_path):
  workdir = tmp_path / 'w'
  refuse(workdir, 'data/tokens/0', 'checkpoints/x')
  assert not workdir.exists()


def test_a_finished_token_store_is_never_removed(tmp_path):
  refuse(tmp_path / 'w', 'data/manifest.json', 'data/tokens/0', 'checkpoints/x')
  assert [p.name for p in (tmp_path / 'w').iterdir()] == ['data']
  assert (tmp_path / 'w/data/tokens/0').exists()
  refuse(tmp_path / 'store', 'manifest.json', 'tokens/0')
  assert (tmp_path / 'store/tokens/0').exists()
  refuse(tmp_path / 'half', 'unfinished', 'tokens/0')
  assert not (tmp_path / 'half').exists()


def test_what_was_there_before_stays(tmp_path):
  (tmp_path / 'notes.txt').write_text('mine')
  (tmp_path / 'data').mkdir()
  (tmp_path / 'data/old').write_text('mine')
  refuse(tmp_path, 'tokenizer/model')
  names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob('*')}
  assert names == {'notes.txt', 'data', 'data/old'}


def test_a_run_that_fails_otherwise_keeps_its_work(tmp_path):
  with pytest.raises(RuntimeError), workdir_lib.untouched_if_refused(str(tmp_path)):
    (tmp_path / 'x').write_text('hours of work')
    raise RuntimeError('the disk is full')
  assert (tmp_path / 'x').exists()


class Letters:
  """A tokenizer: one token for each of a to e."""

  eos_id = 5
  vocab_size = 6

  def encode(self, text):
    """Refuses other letters."""
    if not {*text} <= {*'abcde'}:
      raise UsageError('an unknown letter')
    return np.array(['abcde'.index(c) for c in text], np.int32)


@pytest.mark.parametrize(
  'prompt, num_tokens, why',
  [
    ('abc', 10, None),
    ('', 1000, None),
    ('abc', 11, 'do not fit the context of 13'),
    ('abx', 1, 'an unknown letter'),
  ],
)
def test_the_prompt_is_checked_before_training(prompt, num_tokens, why):
  config = tiny.config(**{'log.sample_prompt': prompt, 'log.sample_tokens': num_tokens})
  if why is None:
    workdir_lib.check_prompt(config, Letters())
  else:
    with pytest.raises(UsageError, match=why) as error:
      workdir_lib.check_prompt(config, Letters())
    assert str(error.value).startswith(f'log.sample_prompt={prompt!r}: ')
