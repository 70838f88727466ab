# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pictures: documents that steps read, mesh axes of a model, memory of a plan."""

import json
import math
from unittest import mock

import jax
import pytest

from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.costs.chips import GIB
from gpt_jax.core.spec import UsageError
from gpt_jax.planning import compile as compile_lib
from gpt_jax.planning import report, search
from gpt_jax.reports import data_order, layout, memory, runs
from tests.support import tiny

ROWS = [
  {
    'step': step,
    'source': source,
    'epoch': epoch,
    'spans': [{'document': i} for i in documents],
    **({'second': [{'document': second}]} if second else {}),
  }
  for step, source, epoch, documents, second in (
    (3, '', 0, (2, 3), 0),
    (3, '', 0, (3,), 0),  # the same document again
    (5, '', 1, (7,), 5),
    (5, 'web', 1, (11,), 0),
  )
]


def test_points_are_documents_of_steps(tmp_path, monkeypatch):
  """Both texts of a row count, each document once in a step."""
  figures, save = [], runs.save_figure

  def kept(figure, out):
    figures.append(figure)
    return save(figure, out)

  monkeypatch.setattr(runs, 'save_figure', kept)
  out = tmp_path / 'order.png'
  assert data_order.chart(ROWS, 13, str(out)) == str(out)
  assert out.read_bytes().startswith(b'\x89PNG')
  (axes,) = figures[0].axes
  points = {found.get_label(): found.get_offsets().tolist() for found in axes.collections}
  assert points == {'epoch 0': [[3, 2], [3, 3]], 'epoch 1': [[5, 7], [5, 5]], 'web': [[5, 11]]}
  assert axes.get_title() == '5 of 13 documents read'
  assert axes.get_ylim() == (-0.5, 12.5)


def test_a_device_holds_what_its_shard_holds(tmp_path):
  # Three key/value heads do not divide over two devices, and stay whole.
  config = config_lib.resolve(
    tiny.config(
      **{
        'model.num_layers': 2,
        'model.num_heads': 6,
        'model.num_kv_heads': 3,
        'model.d_model': 60,
        'model.d_ff': 62,
        'model.ffn': "gelu, switch(num_experts=2, expert='gelu')",
        'mesh.fsdp': 2,
        'mesh.expert': 2,
        'mesh.tensor': 2,
      }
    )
  )
  objective = config_lib.objective(config)
  sizes = tuple(config.mesh[axis] for axis in sharding.AXES)
  shardings = sharding.param_shardings(
    objective.shapes, sharding.abstract_mesh(sizes), sharding.parse_rules(config.mesh.rules)
  )
  expected = [
    math.prod(split.shard_shape(leaf.value.shape))
    for split, leaf in zip(
      jax.tree.leaves(shardings),
      jax.tree.leaves(objective.shapes, is_leaf=lambda x: hasattr(x, 'names')),
      strict=True,
    )
  ]
  found = layout.splits(config)
  assert [split.held for split in found] == expected
  assert {a for x in found for _, _, by in x.dimensions for a in by} == {'fsdp', 'expert', 'tensor'}
  out = tmp_path / 'split.png'
  assert layout.sharding_chart(config, str(out)) == str(out)
  assert out.read_bytes().startswith(b'\x89PNG')


def test_an_open_axis_is_refused():
  config = config_lib.resolve(tiny.config(**{'mesh.fsdp': -1}))
  with pytest.raises(UsageError, match=r'mesh\.fsdp=-1: a picture'):
    layout.splits(config)


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
  assert '--memory: works without --search' in capsys.readouterr().err
