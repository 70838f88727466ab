# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sweep: its grid, its runs, and what becomes of them."""

import json
import os

import pytest

from gpt_jax.__main__ import main
from gpt_jax.commands import scaling
from gpt_jax.core import config as config_lib
from gpt_jax.core.costs import totals
from gpt_jax.papers.chinchilla.laws import Fit
from gpt_jax.studies import comparison, sweep
from tests.support import tiny

# Of a model and a text that cost little: loss as a law has it.
LAW = Fit(1.1, 9.0, 40.0, 0.3, 0.35)
FLAGS = [
  '--config=configs/scaling.py',
  *tiny.flags(
    sweep=dict(
      budgets='3e9, 1e9',
      sizes='size(1, 6, 1, 0.5), size(1, 10, 1), size(1, 14, 1), size(1, 22, 1)',
      min_tokens_per_parameter='0.1',
    ),
    batch=dict(size=3),
    model=dict(context_length=13),
  ),
]


@pytest.fixture
def at_root(monkeypatch):
  monkeypatch.chdir(os.path.join(os.path.dirname(__file__), '..', '..'))


@pytest.fixture
def trained(monkeypatch):
  """The runs asked for; each leaves what a real one would."""
  found = []

  def train(variant, seed, workdir, root):
    found.append((variant.name, seed, variant.flags, root))
    flags = dict(flag.split('=', 1) for flag in variant.flags)
    (cell,) = (c for c in CELLS if c.name == variant.name)
    steps = int(flags['--config.schedule.num_steps'])
    assert steps == cell.config.schedule.num_steps
    os.makedirs(workdir)
    with open(os.path.join(workdir, 'config.json'), 'w') as f:
      f.write(config_lib.to_json(cell.config))
    with open(os.path.join(workdir, 'metrics.jsonl'), 'w') as f:
      for step in (*range(20, steps, 20), steps):
        loss = LAW.loss(cell.parameters, 39 * step)
        line = {'step': step, 'tokens': 39 * step, 'loss': loss, 'epochs': 1.5}
        f.write(json.dumps(line) + '\n')
      end = {'step': steps, 'eval/validation/loss': loss}
      f.write(json.dumps(end) + '\n')

  monkeypatch.setattr(comparison, 'train', train)
  return found


def grid(*flags):
  """The cells of a command line."""
  taken = []
  original = sweep.grid
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sweep, 'grid', lambda config: taken.extend(original(config)) or taken)
    patch.setattr(scaling, 'listing', lambda _: '')
    assert main(['scaling', *flags, '--dry_run']) == 0
  return taken


CELLS = []


@pytest.fixture
def cells(at_root):
  if not CELLS:
    CELLS.extend(grid(*FLAGS))
  return CELLS


def test_the_grid(cells):
  assert [c.budget for c in cells] == [1e9] * 4 + [3e9] * 4
  first = cells[0]
  assert first.name == '1e09-1x6' and cells[4].name == '3e09-1x6'
  for cell in cells:
    parameters = totals.figures_of(cell.config)[1]['parameters']
    assert cell.parameters == parameters
    assert cell.tokens == 39 * cell.config.schedule.num_steps
    assert cell.flops == 6 * parameters * cell.tokens
    # The first step at or after the budget.
    assert 0 <= cell.flops - cell.budget < 6 * parameters * 39
  # Its own peak, and where it has none the schedule's; the length is the run's.
  assert 'cosine(peak=0.5, warmup=40' in first.config.schedule.name
  assert 'peak=4e-3' in cells[1].config.schedule.name
  rate = config_lib.schedule(first.config)
  assert rate(first.config.schedule.num_steps - 1) == pytest.approx(0.1 * 0.5, rel=1e-2)


def test_a_sweep_to_its_end(cells, trained, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(sweep, 'grid', lambda config: cells)
  flags = ['scaling', *FLAGS, f'--workdir={tmp_path}', '--samples=10']
  assert main([*flags, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert [name for name, *_ in trained] == [cell.name for cell in cells]
  _, seed, given, root = trained[0]
  assert seed == 0 and root == str(tmp_path)
  # The user's overrides, then the run's.
  assert given[: len(FLAGS)] == FLAGS
  assert '--config.model.d_model=6' in given[len(FLAGS) :]
  assert not any('workdir' in flag or 'samples' in flag for flag in given)
  runs = found['runs']
  for run, cell in zip(runs, cells, strict=True):
    assert run['run'] == cell.name and run['flops'] == cell.flops
    assert run['loss'] == LAW.loss(cell.parameters, cell.tokens)
  # The runs follow the law to the last digit.
  fitted = {name: found['approach_3'][name]['value'] for name in LAW._fields}
  assert fitted == pytest.approx(LAW._asdict(), rel=0.02)
  assert json.loads((tmp_path / 'scaling.json').read_text()) == found
  png = (tmp_path / 'scaling.png').read_bytes()
  assert png.startswith(b'\x89PNG')
  # Again: nothing is left to train; the law is there for plans.
  trained.clear()
  assert main(flags) == 0 and not trained
  assert '| 3 | ' in capsys.readouterr().out
  # One that did not reach its end is trained again.
  lines = (tmp_path / cells[3].name / 'metrics.jsonl').read_text().split('\n')
  (tmp_path / cells[3].name / 'metrics.jsonl').write_text('\n'.join(lines[:-9]))
  assert sweep.result(cells[3], str(tmp_path / cells[3].name)) is None
  # Other text: the runs there are refused.
  other = config_lib.unlocked(cells[0].config)
  other.data.source = "text('x')"
  cell = cells[0]._replace(config=other.lock())
  monkeypatch.setattr(sweep, 'grid', lambda config: [cell])
  assert main(flags) == 2
  assert 'data.source' in capsys.readouterr().err


def test_text_seen_again_is_warned_of(cells, trained, tmp_path, monkeypatch):
  warned = []
  monkeypatch.setattr(sweep.log, 'warning', lambda *args: warned.append(args))
  sweep.train(cells[:1], FLAGS, str(tmp_path))
  assert [args[1:] for args in warned] == [(cells[0].name, 1.5)]


@pytest.mark.parametrize(
  'lines, said',
  [
    ([{'tokens': 39, 'loss': 3.0}, {'eval/validation/loss': float('nan')}], 'the run diverged'),
    ([{'tokens': 39, 'loss': float('nan')}, {'eval/validation/loss': 3.0}], 'no finite loss'),
    ([{'eval/validation/loss': 3.0}], 'logged no finite loss'),
  ],
)
def test_a_run_without_losses_is_named(cells, tmp_path, monkeypatch, capsys, lines, said):
  """And nothing is trained or written."""
  monkeypatch.setattr(sweep, 'grid', lambda config: cells)
  cell = cells[1]
  run = tmp_path / cell.name
  run.mkdir()
  (run / 'config.json').write_text(config_lib.to_json(cell.config))
  last = cell.config.schedule.num_steps
  written = [json.dumps({'step': last, **line}) + '\n' for line in lines]
  (run / 'metrics.jsonl').write_text(''.join(written))
  assert main(['scaling', *FLAGS, f'--workdir={tmp_path}']) == 2
  error = capsys.readouterr().err.strip()
  assert f'{run}: ' in error.splitlines()[-1] and said in error
  assert 'Traceback' not in error
  assert os.listdir(tmp_path) == [cell.name]


def test_arguments(cells):
  given = ['--config', 'a.py', '--workdir', 'W', '-config.x=1', '--noconfig.y=']
  assert sweep.arguments(given, cells[0])[:4] == [
    '--config',
    'a.py',
    '-config.x=1',
    '--noconfig.y=',
  ]
  with pytest.raises(ValueError, match=r'--config.x: write --config'):
    sweep.arguments(['--config.x', '1'], cells[0])


def test_the_shipped_grid_is_listed(at_root, capsys):
  flags = ['--config', 'configs/scaling.py', '--dry_run']
  assert main(['scaling', *flags]) == 0
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 2 + 15
