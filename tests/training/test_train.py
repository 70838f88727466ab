# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run is refused for before it starts, and its meter."""

import types

import numpy as np
import pytest

from gpt_jax import config as config_lib
from gpt_jax.optim.schedules import Shape
from gpt_jax.spec import UsageError
from gpt_jax.training import loop as meter_lib
from gpt_jax.training import workdir as workdir_lib
from gpt_jax.training.compiled import Compiled
from tests.support import tiny, whole_runs


def saved(workdir, **changes):
  config = config_lib.resolve(tiny.config(**changes))
  (workdir / 'config.json').write_text(config_lib.to_json(config))


def check(workdir, **changes):
  workdir_lib.check_same_run(
    config_lib.resolve(tiny.config(**changes)), str(workdir)
  )


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
  changes = {
    'seed': 3,
    'model.ffn': 'relu',
    'batch.size': 24,
    'log.every_steps': 3,
  }
  with pytest.raises(UsageError) as error:
    check(tmp_path, **changes)
  message = str(error.value)
  start, _, rest = message.partition(' (')
  fields, _, remedy = rest.rpartition('); ')
  assert start == f'--workdir={tmp_path}: holds a run of another config'
  assert {*fields.split('; ')} == {
    'seed: 0 -> 3',
    "model.ffn: 'gelu_tanh' -> 'relu'",
    'batch.size: 16 -> 24',
  }
  assert remedy == 'give the same values, or another --workdir'


def refuse(workdir, *names):
  with (
    pytest.raises(UsageError),
    workdir_lib.untouched_if_refused(str(workdir)),
  ):
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
  with (
    pytest.raises(RuntimeError),
    workdir_lib.untouched_if_refused(str(tmp_path)),
  ):
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
  config = tiny.config(
    **{'log.sample_prompt': prompt, 'log.sample_tokens': num_tokens}
  )
  if why is None:
    workdir_lib.check_prompt(config, Letters())
  else:
    with pytest.raises(UsageError, match=why) as error:
      workdir_lib.check_prompt(config, Letters())
    assert str(error.value).startswith(f'log.sample_prompt={prompt!r}: ')


@pytest.fixture
def meter(monkeypatch):
  """A meter of a run of 16 rows of 7 tokens on eight devices."""
  whole_runs.known_peak(monkeypatch)
  config = {**tiny.MESHABLE, 'schedule.name': 'linear(peak=0.5, warmup=4)'}
  run = tiny.build(tiny.config(**config), (2, 2, 2))
  return made_meter(run, {Shape(16, 7): 3e6})


def made_meter(run, flops):
  """One that finds so many FLOPs a token in compiled steps."""
  steps = {s: Compiled(None, 0.0, int(n * s.tokens)) for s, n in flops.items()}
  return meter_lib.Meter(run, tiny.params(run.model), steps)


def test_the_meter_says_one_line(monkeypatch, caplog):
  """What the FLOPs of a token are; the definitions are in `inspect --mfu`."""
  whole_runs.known_peak(monkeypatch)
  run = tiny.build(tiny.config(**tiny.MESHABLE), (2, 2, 2))
  matmul = 48 * 24 + 3 * (24 * 16 * 2 + 24 * 8 * 2 + 2 * 24 * 40)
  per_token = 6 * matmul + 12 * 3 * 8 * 2 * 7
  with caplog.at_level('INFO', 'gpt_jax'):
    made_meter(run, {Shape(16, 7): 3e6})
  assert [record.getMessage() for record in caplog.records] == [
    f'MFU = tokens/s * {per_token:.4g} FLOPs a token / 8e+12 FLOP/s (a '
    'figure); gpt-jax inspect --mfu says how they are counted'
  ]


def test_meter(meter, monkeypatch):
  now = [100.0]
  clock = types.SimpleNamespace(perf_counter=lambda: now[0])
  monkeypatch.setattr(meter_lib, 'time', clock)
  meter.restart()
  for step in range(1, 5):
    meter.add({'loss': np.float32(step), 'grad_norm': np.float32(10 * step)})
    now[0] += 0.5
  assert [output['loss'] for output in meter.fetch()] == [1, 2, 3, 4]
  values = meter.read(8)
  assert values['tokens'] == 8 * 16 * 7
  assert (values['loss'], values['grad_norm']) == (4, 40)
  # Of the eighth step, which the schedule calls 7: 3 of 16 after the warm-up.
  assert values['learning_rate'] == pytest.approx(0.5 * (1 - 3 / 16))
  assert values['tokens_per_second'] == pytest.approx(4 * 16 * 7 / 2)
  assert values['step_seconds'] == pytest.approx(0.5)
  model = tiny.MESHABLE
  matmul = 48 * 24 + 3 * (24 * 16 * 2 + 24 * 8 * 2 + 2 * 24 * 40)
  attention = model['model.num_layers'] * 8 * 2 * 7
  per_token = 6 * matmul + 12 * attention
  assert values['mfu'] == pytest.approx(56 * 4 * per_token / 8e12)
  # The 7 tokens of a row see 1 to 7: 4 in the mean.
  causal = 6 * matmul + 12 * attention * 4 / 7
  assert values['mfu_causal'] == pytest.approx(56 * 4 * causal / 8e12)
  assert values['mfu_compiler'] == pytest.approx(56 * 4 * 3e6 / 8e12)
  # The next line counts from here.
  meter.add({'loss': np.float32(5), 'grad_norm': np.float32(50)})
  now[0] += 0.25
  meter.fetch()
  assert meter.read(9)['step_seconds'] == pytest.approx(0.25)


def test_meter_across_stages(monkeypatch):
  whole_runs.known_peak(monkeypatch)
  now = [100.0]
  clock = types.SimpleNamespace(perf_counter=lambda: now[0])
  monkeypatch.setattr(meter_lib, 'time', clock)
  changes = {
    **tiny.MESHABLE,
    'batch.size': 'ramp(0:16, 3_steps:32)',
    'batch.length': 'stages(3, 20%:7)',  # of 20 steps
  }
  run = tiny.build(tiny.config(**changes), (2, 2, 2))
  short, wide, large = Shape(16, 3), Shape(32, 3), Shape(32, 7)
  meter = made_meter(run, {short: 3e6, wide: 5e6, large: 7e6})
  for step in range(1, 6):
    if step == 2:
      meter.restart()  # after an evaluation, say
    meter.add({'loss': np.float32(step), 'grad_norm': np.float32(1)})
    now[0] += 0.5
  meter.fetch()
  values = meter.read(5)
  assert values['tokens'] == (3 * 16 + 32) * 3 + 32 * 7
  assert (values['batch_rows'], values['row_tokens']) == (32, 7)
  assert values['rows'] == 3 * 16 + 2 * 32
  # Steps 2 to 5 took 16, 16, 32 and 32 rows, the last of 7 tokens.
  assert values['tokens_per_second'] == pytest.approx((64 * 3 + 32 * 7) / 2)
  spent = 2 * 16 * 3 * 3e6 + 32 * 3 * 5e6 + 32 * 7 * 7e6
  assert values['mfu_compiler'] == pytest.approx(spent / 2 / 8e12)
  matmul = 48 * 24 + 3 * (24 * 16 * 2 + 24 * 8 * 2 + 2 * 24 * 40)
  # 3 layers of 8 heads of size 2; each token sees the others of its row.
  seen = 64 * 3 * 3 + 32 * 7 * 7
  spent = (64 * 3 + 32 * 7) * 6 * matmul + 12 * 3 * 8 * 2 * seen
  assert values['mfu'] == pytest.approx(spent / 2 / 8e12)


def test_meter_counts_the_wait_for_data(meter, monkeypatch):
  now = [100.0]
  clock = types.SimpleNamespace(perf_counter=lambda: now[0])
  monkeypatch.setattr(meter_lib, 'time', clock)

  def slow():
    for i in range(3):
      now[0] += 0.25
      yield i

  meter.restart()
  for _ in meter.waiting(slow()):
    now[0] += 1
    meter.add({'loss': np.float32(1), 'grad_norm': np.float32(1)})
  meter.fetch()
  assert meter.read(3)['data_wait_seconds'] == pytest.approx(0.25)
