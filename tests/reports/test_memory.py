# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The memory of a plan by part, in a picture."""

import json
from unittest import mock

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.costs.chips import GIB
from gpt_jax.planning import compile as compile_lib
from gpt_jax.planning import report, search
from gpt_jax.reports import memory, runs

# GiB: the peak is the sum of the parts; the second has unrolled layers.
HBM = [
  compile_lib.Hbm(9.5 * GIB, 16 * GIB, 2 * GIB, 4 * GIB, 3 * GIB, 0.5 * GIB, 0),
  compile_lib.Hbm(13 * GIB, 16 * GIB, 2 * GIB, 4 * GIB, None, 7 * GIB, 5 * GIB),
]
PLAN = {
  'config': 'configs/gpt2.py:small',
  'topology': 'v5e:2x4',
  'stages': [
    {'rows': 17 * (i + 1), 'row_tokens': 1024, 'hbm': hbm._asdict()} for i, hbm in enumerate(HBM)
  ],
}


@pytest.fixture
def figures(monkeypatch):
  found, save = [], runs.save_figure

  def kept(figure, out):
    found.append(figure)
    return save(figure, out)

  monkeypatch.setattr(runs, 'save_figure', kept)
  return found


def test_bars_are_the_parts_of_the_peak(tmp_path, figures):
  out = tmp_path / 'memory.png'
  assert memory.chart(PLAN, str(out)) == str(out)
  assert out.read_bytes().startswith(b'\x89PNG')
  (axes,) = figures[0].axes
  bars = [(b.get_label(), [x.get_width() for x in b]) for b in axes.containers]
  assert bars == [
    ('parameters', [2, 2]),
    ('optimizer', [4, 4]),
    ('activations kept for all layers', [3, 0]),
    ('temporaries, gradients', [0.5, 7]),
  ]
  ends = [bar.get_x() + bar.get_width() for bar in axes.containers[-1]]
  assert ends == [hbm.peak / GIB for hbm in HBM]
  assert [text.get_text() for text in axes.texts] == [' 9.50', ' 13.00']
  (limit,) = axes.lines
  assert [*limit.get_xdata()] == [16, 16]
  names = [label.get_text() for label in axes.get_yticklabels()]
  assert names == ['17 rows of 1,024', '34 rows of 1,024']


def test_all_parts_are_drawn():
  assert {*memory.PARTS} == {*compile_lib.Hbm._fields} - {'peak', 'limit', 'host'}


@pytest.mark.parametrize('fits', [True, False])
def test_the_plan_that_fits_is_drawn(fits, tmp_path, figures, monkeypatch, capsys):
  """Where the config's own does not, the one that is suggested."""
  plan = mock.create_autospec(search.FittingPlan, instance=True)
  misfit = mock.create_autospec(search.Misfit, instance=True)
  misfit.suggestion = plan
  shown = {id(plan): PLAN, id(misfit): {'fits': False}}
  found = plan if fits else misfit
  # Neither is libtpu needed.
  monkeypatch.setattr(compile_lib, 'use_cpu', lambda: None)
  monkeypatch.setattr(search, 'make', lambda *_, **__: found)
  monkeypatch.setattr(search, 'better', lambda request, found, *_, **__: found)
  monkeypatch.setattr(report, 'to_json', lambda name, x: shown[id(x)])
  out = tmp_path / 'memory.png'
  argv = [
    'plan',
    '--config=configs/gpt2.py:small',
    '--topology=v5e:2x4',
    '--json',
    f'--memory={out}',
  ]
  assert main(argv) == (0 if fits else 1)
  assert json.loads(capsys.readouterr().out) == shown[id(found)]
  assert out.exists() and len(figures) == 1
  assert main([*argv, '--search']) == 2
  assert '--memory: draws one plan' in capsys.readouterr().err
