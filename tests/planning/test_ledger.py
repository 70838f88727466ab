# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Published runs, what was predicted of them, and how far off a plan may be."""

import json
import pathlib

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core.costs import topologies
from gpt_jax.core.spec import UsageError
from gpt_jax.planning import compile as compile_lib
from gpt_jax.planning import ledger, report, schedule, search
from gpt_jax.planning.schedule import Loop, Send, StepEstimate, Wait, Work
from tests.planning.test_plan import a_plan
from tests.support import tiny

ROOT = pathlib.Path(__file__).resolve().parents[2]
BEGIN = '<!-- table: gpt-jax plan --ledger -->\n'
LARGE = 'dense, large'
V5E = topologies.parse('v5e:2x4')
# One second of products on a chip of v5e.
SECOND = 0.9 * 197e12


def a_row(name, seconds, measured, kind='experts', vector=0.0):
  events = (Work(seconds * SECOND), Work(0, vector * schedule.rates(V5E).vector))
  return {
    'name': name,
    'kind': kind,
    'how': 'blind',
    'config': 'configs/gpt2.py:small',
    'topology': 'v5e:2x4',
    'slices': 1,
    'overrides': {},
    'source': 'a test',
    'measured': measured,
    'predicted': {'seconds': 3.0, 'mfu': 0.3, 'date': '2026-11-29', 'made_with': {'jax': '1'}},
    'model_flops': 8 * 197e12,
    'events': ledger.to_json(events, digits=15),
  }


@pytest.fixture
def rows(monkeypatch, tmp_path):
  """Writes rows into a ledger of its own."""
  monkeypatch.setattr(ledger, 'FILE', tmp_path / 'ledger.json')
  ledger.outcomes.cache_clear()

  def write(*given):
    (tmp_path / 'ledger.json').write_text(json.dumps(given))
    ledger.outcomes.cache_clear()

  yield write
  ledger.outcomes.cache_clear()


def test_the_page_has_the_ledger_as_it_is():
  page = (ROOT / 'docs/planning.md').read_text(encoding='utf-8')
  assert BEGIN + ledger.markdown() in page


def test_each_row_is_of_its_kind_and_was_predicted_before_it_was_measured():
  found = ledger.outcomes()
  assert len(found) == len({x.row['name'] for x in found}) >= 28
  for x in found:
    row = x.row
    assert row['kind'] in ledger.KINDS and row['how'] in ('fitted', 'seen', 'apart', 'blind')
    config = report.load_config(ROOT, row['config'], row['overrides'])
    slices = topologies.parse(row['topology'], row['slices'])
    num_params = 0.0
    if row['kind'].startswith('dense'):
      # By PaLM's formula, without attention.
      tokens = config.batch.size * config.model.context_length
      num_params = row['model_flops'] / tokens / 6
    assert row['kind'] == ledger.kind_of(config, slices, int(num_params)), row['name']
    assert not (x.measured is not None and row['how'] == 'blind'), row['name']
  blind = [x for x in found if x.row['how'] == 'blind']
  assert len(blind) >= 9


@pytest.mark.parametrize(
  ('changes', 'topology', 'num_params', 'kind'),
  [
    ({}, 'v5e:2x4', 999_999_937, 'dense, small'),
    ({}, 'v5e:2x4', 1_000_000_007, LARGE),
    ({'model.ffn': 'switch(num_experts=4)'}, 'tpu7x:2x2x1', 7, 'experts'),
    ({'model.matmul': 'int8'}, 'v5e:2x4', 7, 'int8'),
    ({'model.context_length': 65_536}, 'v5e:2x4', 7, 'long rows'),
    ({}, 'tpu7x:2x2x1', 7, 'tpu7x'),
  ],
)
def test_the_kind_of_a_program(changes, topology, num_params, kind):
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE | changes))
  slices = topologies.parse(topology)
  assert ledger.kind_of(config, slices, num_params) == kind
  if kind == LARGE:
    two = topologies.parse(topology, 2)
    assert ledger.kind_of(config, two, num_params) == 'several slices'


def test_a_band_is_of_the_runs_of_its_kind(rows):
  """Estimates of 2 s; measured were 1.6 s, and by their MFU 2 s and 2.5 s."""
  three = [
    a_row('a', 2, {'seconds': 1.6}),
    a_row('b', 1.5, {'mfu': 0.5}, vector=0.5),
    a_row('c', 2, {'mfu': 0.4}),
  ]
  like, unlike = StepEstimate(4, 3, 1, 0, 0, 0), StepEstimate(4, 2.9, 1.1, 0, 0, 0)
  rows(*three, a_row('d', 2, {}), a_row('e', 2, {'seconds': 20}, kind=LARGE))
  assert [x.off for x in ledger.outcomes()[:4]] == [
    pytest.approx(0.25),
    pytest.approx(0, abs=1e-9),
    pytest.approx(-0.2),
    None,
  ]
  found = ledger.band('experts', like)
  assert found.error == pytest.approx(0.25)
  assert found.text == '±25%, the worst of 3 published runs of its kind (experts)'
  assert ledger.band('experts', unlike).error is None
  assert 'as little of a step in matrix units' in ledger.band('experts', unlike).text
  rows(*three[:1], three[2])
  assert ledger.band('experts', like).text == (
    'accuracy unknown: 2 published runs of its kind (experts), off by +25%, -20%'
  )
  assert ledger.band('int8', like).text == (
    'accuracy unknown: no published run is of its kind (int8)'
  )


def test_a_row_is_predicted_by_one_command_and_measured_by_another(rows, monkeypatch, capsys):
  rows()
  monkeypatch.setattr(ledger, 'made_with', lambda: {'jax': '7'})
  monkeypatch.setattr(search, 'make', lambda request, note, **_: a_plan(request, {}, 0.25))
  monkeypatch.setattr(search, 'better', lambda request, found, note, **_: found)
  monkeypatch.setattr(compile_lib, 'use_cpu', lambda: None)
  config = ['--config=configs/gpt2.py:small', '--config.seed=3', '--config.mesh.fsdp=8']
  command = ['plan', *config, '--topology=v5e-8', '--record=Ours', '--source=us, 2026']
  assert main(command) == 0
  (row,) = ledger.read()
  assert row['overrides'] == {'seed': 3, 'mesh.fsdp': 8} and row['measured'] == {}
  assert row['predicted']['seconds'] == 0.25 and row['kind'] == 'dense, small'
  # What takes less than a ten-thousandth of the step is not kept.
  assert ledger.from_json(row['events']) == (Work(1e12), Work(7.0))
  capsys.readouterr()
  assert main(command) == 2
  assert 'a row has this name already' in capsys.readouterr().err
  assert main(['plan', '--record=Ours', '--measured=0.5s']) == 0
  said = capsys.readouterr().err
  assert 'predicted 0.25 s' in said and 'measured: 0.5 s' in said
  (after,) = ledger.read()
  assert after == row | {'measured': {'seconds': 0.5}}
  # Compiled again: the prediction stays as it was.
  monkeypatch.setattr(search, 'make', lambda request, note, **_: a_plan(request, {}, 0.75))
  assert main(['plan', '--record=Ours']) == 0
  (again,) = ledger.read()
  assert again['predicted'] == row['predicted'] and again['measured'] == {'seconds': 0.5}
  assert 'not entered' not in ledger.markdown() and '| Ours |' in ledger.markdown()


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    (['--record=a', '--measured=fast'], 'give seconds of a step, as in 13.484s, or MFU'),
    (['--record=a', '--measured=0s'], 'give seconds of a step'),
    (['--record=a', '--measured=140%'], '--measured=140%: mfu must be'),
    (['--record=x', '--measured=3s'], 'no row has this name; one of a'),
    (['--record=x'], 'no row has this name; one of a'),
    (['--measured=3s'], '--measured: works with --record only'),
    (['--config=configs/gpt2.py:small', '--topology=v5e-8', '--record=b'], '--source is missing'),
    (
      ['--config=configs/gpt2.py:small', '--topology=v5e-8,v6e-8', '--record=b', '--source=us'],
      'of one plan, and --topology has 2 slices',
    ),
  ],
)
def test_wrong_rows_are_refused(rows, monkeypatch, capsys, flags, said):
  rows(a_row('a', 2, {}))
  monkeypatch.setattr(compile_lib, 'use_cpu', lambda: None)
  assert main(['plan', *flags]) == 2
  assert said in capsys.readouterr().err
  assert ledger.read() == [a_row('a', 2, {})]


def test_a_damaged_ledger_is_named(rows, tmp_path):
  rows(a_row('a', 2, {}) | {'slices': 0})
  with pytest.raises(UsageError, match=r'is damaged, 0\.slices must be'):
    ledger.read()
  (tmp_path / 'ledger.json').write_text('[')
  with pytest.raises(UsageError, match='is damaged, not JSON'):
    ledger.read()


def test_a_schedule_is_shortened():
  """What takes less than 1e-4 of the step goes, with its waits."""
  link = V5E.chip.link
  events = (
    Work(SECOND),
    Work(1e-6 * SECOND),
    Send('far', 0.1 * link, 1),
    Send('near', 1e-6 * link, 1),
    Wait('near'),
    Loop(1000, (Work(1e-6 * SECOND), Wait('none'))),
    Wait('far'),
  )
  assert ledger.shorten(events, V5E) == (
    Work(SECOND),
    Send('0', 0.1 * link, 1),
    Loop(1000, (Work(1e-6 * SECOND),)),
    Wait('0'),
  )
