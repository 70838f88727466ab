# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs against the losses that are known of their configs."""

import dataclasses
import json
import math
import pathlib

import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core.config import loading
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens import manifest
from gpt_jax.core.training import metrics
from gpt_jax.reports import expected
from tests.support import expected as making
from tests.support import tiny

ROOT = pathlib.Path(__file__).parents[2]
# Configs for two cores that read what only their user has, and what that is.
OF_THE_USER = {
  'cove': 'pairs of texts',
  'cvt': 'labelled sentences',
  'distilbert': 'a teacher',
  'notes': 'texts',
  'transformer': 'pairs of texts',
}
# Of three seeds at steps 5 to 35: the spans 1 to 10, 11 to 20, 21 to 40.
STEPS = [5, 10, 15, 20, 25, 30, 35]
LOSSES = np.array(
  [
    [8.3, 8.0, 7.7, 7.3, 7.0, 6.9, 6.7],
    [8.2, 7.9, 7.4, 7.2, 7.1, 6.7, 6.5],
    [8.3, 8.1, 7.6, 7.1, 6.9, 6.8, 6.6],
  ]
)
HELD_OUT = [[6.51], [6.47], [6.55]]
STORE = manifest.Manifest(
  source='stdlib',
  source_sha256='0',
  holdout='none',
  tokenizer='bytes',
  tokenizer_fingerprint='0',
  vocab_size=257,
  eos_id=256,
  dtype='uint16',
  num_tokens=1999,
  num_documents=7,
  num_bytes=1987,
  tokens_crc32=[11],
  document_ends_crc32=[13],
)


@pytest.fixture
def run(tmp_path, monkeypatch):
  """A run whose losses are known; returns what writes its log."""
  config = config_lib.resolve(tiny.config(**{'model.context_length': 13}))
  known = {
    'config': 'configs/tiny.py',
    'fields': expected.differing(config),
    'fingerprint': STORE.fingerprint,
    'made_with': {'jax': '0.10.2', 'python': '3.11.7', 'processor': 'x'},
    'curves': {
      'loss': {'steps': STEPS, 'values': LOSSES.tolist()},
      metrics.HELD_OUT: {'steps': [35], 'values': HELD_OUT},
    },
  }
  path = tmp_path / expected.FOLDER / 'tiny.json'
  path.parent.mkdir(parents=True)
  path.write_text(json.dumps(known))
  monkeypatch.setattr(loading, 'root', lambda: str(tmp_path))
  workdir = tmp_path / 'w'
  (workdir / 'data').mkdir(parents=True)
  manifest.write(str(workdir / 'data'), STORE)

  def write(losses, held_out=None, jax='0.10.2', **fields):
    changed = config_lib.unlocked(config)
    changed.update_from_flattened_dict(fields)
    (workdir / 'config.json').write_text(config_lib.to_json(changed))
    lines = [{'step': 0, 'event': 'start', 'jax': jax}]
    lines += [{'step': step, 'loss': x} for step, x in losses.items()]
    if held_out:
      lines.append({'step': 35, metrics.HELD_OUT: held_out})
    text = ''.join(metrics.to_json(line) + '\n' for line in lines)
    (workdir / 'metrics.jsonl').write_text(text)
    return str(workdir)

  return write


def test_bands_are_means_and_deviations_of_the_seeds(run):
  """Of the steps that the run has; those of the span before count, too."""
  losses = {3: 1.0, 5: 8.0, 10: 8.1, 20: 7.5, 25: 6.1, 35: 5.9, 40: 1.0}
  spans = expected.judge(run(losses, held_out=6.5)).spans
  assert [(s.metric, s.first, s.last) for s in spans] == [
    ('loss', 1, 10),
    ('loss', 11, 20),
    ('loss', 21, 35),
    (metrics.HELD_OUT, 35, 35),
  ]
  means = [LOSSES[:, :2].mean(1), LOSSES[:, 3], LOSSES[:, [4, 6]].mean(1)]
  # Of a single loss, from the mean of two, one and two.
  first, second, third = (
    np.sum((m - m.mean()) ** 2) / 2 * k for m, k in zip(means, (2, 1, 2), strict=True)
  )
  expected_widths = [
    4 * math.sqrt((first + second) / 2 * 4 / 3 / 2) + 0.02 * means[0].mean(),
    4 * math.sqrt((first + second) / 2 * 4 / 3) + 0.02 * means[1].mean(),
    4 * math.sqrt((second + third) / 2 * 4 / 3 / 2) + 0.02 * means[2].mean(),
    # 0.04 is the deviation of the held-out losses, and 6.51 their mean.
    4 * 0.04 * math.sqrt(4 / 3) + 0.02 * 6.51,
  ]
  middles = [*(m.mean() for m in means), 6.51]
  assert [s.loss for s in spans] == pytest.approx([8.05, 7.5, 6.0, 6.5])
  for span, middle, width in zip(spans, middles, expected_widths, strict=True):
    assert span.low == pytest.approx(middle - width)
    assert span.high == pytest.approx(middle + width)
  assert [span.outside == 0 for span in spans] == [True, True, False, True]
  assert spans[2].outside == pytest.approx(6.0 - spans[2].low)


@pytest.mark.parametrize('fast', [1, 2])
def test_spans_double(fast, run):
  """A run of 320 steps; its log has every fifth step, or every tenth."""
  steps = np.arange(5 * fast, 321, 5 * fast)
  curve = expected.KnownCurve(steps, np.stack([9.0 - steps / 99] * 3))
  found = expected._spans('loss', curve, dict.fromkeys(steps.tolist(), 8.0), 0)
  assert [(s.first, s.last) for s in found] == [
    (1, 10),
    (11, 20),
    (21, 40),
    (41, 80),
    (81, 160),
    (161, 320),
  ]


def test_a_run_within_its_bands(run, capsys):
  """A line less often than is known, of another seed, begun only."""
  workdir = run({10: 8.0, 20: 7.2}, seed=5)
  assert main(['compare', '--expected', f'--workdir={workdir}']) == 0
  printed = capsys.readouterr().out.splitlines()
  assert printed[2].startswith('| steps 1 to 10 | training | ')
  assert printed[-1] == ('as expected of configs/tiny.py up to step 20, of 35 that are known')
  argv = ['compare', '--expected', '--json', f'--workdir={workdir}']
  assert main(argv) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['inside'] and found['same_text'] and len(found['spans']) == 2


def test_a_run_outside(run, capsys):
  """The first span outside is named, and what it may mean."""
  workdir = run({10: 8.0, 20: 9.2, 30: 9.1})
  assert main(['compare', '--expected', f'--workdir={workdir}']) == 1
  printed = capsys.readouterr()
  high = expected.judge(workdir).spans[1].high
  assert '| 9.200 | outside |' in printed.out
  assert f'of steps 11 to 20 is 9.200, {9.2 - high:.3f} above' in printed.err
  assert 'gpt-jax doctor' in printed.err
  workdir = run({10: 8.0, 20: 5.2}, jax='0.9.0')
  assert main(['compare', '--expected', f'--workdir={workdir}']) == 1
  assert 'below' in (error := capsys.readouterr().err)
  assert 'JAX is 0.9.0, and the band is for 0.10.2' in error
  workdir = run({10: 8.0, 20: math.nan})
  assert main(['compare', '--expected', f'--workdir={workdir}']) == 1
  assert 'of steps 11 to 20 is nan, not within' in capsys.readouterr().err
  workdir = run({10: 8.0, 20: 7.2}, held_out=7.5)
  assert main(['compare', '--expected', f'--workdir={workdir}']) == 1
  assert 'the held-out loss of step 35 is 7.500' in capsys.readouterr().err


def test_the_library_of_another_python_widens_the_band(run, tmp_path, capsys):
  other = dataclasses.replace(STORE, num_tokens=2003)
  manifest.write(str(tmp_path / 'w/data'), other)
  workdir = run({10: 8.0})
  (span,) = expected.judge(workdir).spans
  seeds = LOSSES[:, 1]
  width = 4 * seeds.std(ddof=1) * math.sqrt(4 / 3) + 0.05 * seeds.mean()
  assert span.high - span.low == pytest.approx(2 * width)
  assert main(['compare', '--expected', f'--workdir={workdir}']) == 0
  assert 'that of another Python than 3.11.7' in capsys.readouterr().out
  workdir = run({10: 8.0}, **{'data.source': "text('mine/*.txt')"})
  with pytest.raises(UsageError, match='has another text'):
    expected.judge(workdir)


def test_runs_of_which_nothing_is_known(run):
  with pytest.raises(UsageError, match=r'configs/tiny.py, are for model.d_model='):
    expected.judge(run({10: 8.0}, **{'model.d_model': 24}))
  with pytest.raises(UsageError, match=r'--config.log.every_steps=5'):
    expected.judge(run({7: 8.0}))
  # What does not change the result may differ.
  assert expected.judge(run({10: 8.0}, **{'log.every_steps': 7}))


def test_expected_reads_a_run_and_trains_none(tmp_path, capsys):
  argv = ['compare', '--expected', f'--workdir={tmp_path}']
  assert main([*argv, '--run=a configs/smoke.py']) == 2
  assert '--run: trains configs' in capsys.readouterr().err
  assert main(argv) == 2
  assert 'holds no run' in capsys.readouterr().err


def configs():
  """The configs for two cores: of a size `cpu`, or of one small size."""
  for path in sorted((ROOT / 'configs').glob('*.py')):
    for size in (':cpu', ''):
      try:
        config = loading.read(f'{path}{size}')
      except UsageError:
        continue
      if size or path.stem in ('notes', 'shakespeare_char', 'smoke'):
        yield path.stem, f'configs/{path.name}{size}', config
      break


def test_every_config_for_two_cores_has_its_losses():
  found = {text: (name, config) for name, text, config in configs()}
  with_losses = {f'configs/{config}' for config in making.STEPS}
  of_the_user = {t for t, (name, _) in found.items() if name in OF_THE_USER}
  assert with_losses | of_the_user == {*found}
  assert not with_losses & of_the_user
  assert {found[t][0] for t in with_losses} == {*expected.names()}


@pytest.mark.parametrize('name', expected.names())
def test_known_losses_are_of_the_config_as_it_is(name):
  known = expected.read(name)
  config = config_lib.resolve(loading.read(known.config))
  fields = expected.differing(config)
  filled = {*known.fields} - {*fields}  # by a run, from its tokenizer
  assert filled <= {'model.vocab_size'}
  assert {**known.fields, **fields} == known.fields, (
    f'{known.config} has changed; write its losses again: make expected ONLY={name}'
  )
  losses = known.curves['loss']
  last = making.STEPS[known.config.removeprefix('configs/')]
  assert losses.steps[-1] == last
  assert losses.values.shape == (len(making.SEEDS), len(losses.steps))
  assert losses.values[:, -1].max() < losses.values[:, 0].min()
  # A run that was stopped at its last step here was not evaluated at it.
  every, whole = config.eval.every_steps, last == config.schedule.num_steps
  if evaluations := [*range(every, last + whole, every)]:
    assert known.curves[metrics.HELD_OUT].steps.tolist() == evaluations


def test_the_losses_of_the_smoke_run_go_to_its_end():
  steps = loading.read('configs/smoke.py').schedule.num_steps
  assert expected.read('smoke').curves['loss'].steps[-1] == steps


# Programs with a fault that the first steps show.
FAULTS = {
  'twice the learning rate': (
    'from gpt_jax.core import config\n'
    'right = config.schedule\n'
    'config.schedule = lambda c: lambda step: 2 * right(c)(step)\n'
  ),
  'each token is its own label': (
    'from gpt_jax.core.objectives import causal\n'
    'right = causal.make_batch\n'
    'def same(rows, keys=None):\n'
    '  batch = right(rows, keys)\n'
    "  return batch | {'targets': batch['inputs']}\n"
    'causal.make_batch = same\n'
  ),
}
START = 'import sys\nfrom gpt_jax.__main__ import main\nsys.exit(main())\n'


@pytest.mark.long
@pytest.mark.slow
def test_a_sound_run_lies_in_its_band_and_a_faulty_one_does_not(tmp_path, capfd):
  """The first steps of the smoke run."""
  making.train('smoke.py', 3, tmp_path, 30)
  assert main(['compare', '--expected', f'--workdir={tmp_path}/3']) == 0
  for seed, (fault, program) in enumerate(FAULTS.items(), start=4):
    making.train('smoke.py', seed, tmp_path, 30, ('-c', program + START))
    argv = ['compare', '--expected', f'--workdir={tmp_path}/{seed}']
    assert main(argv) == 1, fault
  assert 'gpt-jax doctor' in capfd.readouterr().err
