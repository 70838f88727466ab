# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The smoothed curve, and the names of runs in figures."""

import json

import matplotlib.text
import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.reports import runs, studies, task_curves


def test_centred_mean_is_of_the_same_number_on_both_sides():
  values = [3.0, 5.0, 11.0, 2.0, 7.0, 13.0, 1.0]
  expected = [
    3.0,
    np.mean(values[:3]),
    np.mean(values[:5]),
    np.mean(values[1:6]),
    np.mean(values[2:]),
    np.mean(values[4:]),
    1.0,
  ]
  np.testing.assert_allclose(runs.centred_mean(values, 2), expected)


def test_centred_mean_does_not_lag():
  line = 9 - 0.37 * np.arange(23)
  np.testing.assert_allclose(runs.centred_mean(line.tolist(), 5), line)


def pixels(text, **options):
  figure = runs.load_pyplot().figure(figsize=(3, 0.5))
  figure.add_artist(matplotlib.text.Text(0.1, 0.3, text, **options))
  figure.canvas.draw()
  drawn = np.array(figure.canvas.buffer_rgba())
  runs.load_pyplot().close(figure)
  return drawn


NAMES = ['r$x^_$', '$', 'a$b$c$', r'a\$b$', r'\frac', 'a_b^c', '$\\nope{$', '%d {0}']


@pytest.mark.parametrize('name', NAMES)
def test_a_label_is_what_was_written(name):
  drawn = pixels(runs.label(name))
  np.testing.assert_array_equal(drawn, pixels(name, parse_math=False))


def test_what_no_font_has_is_written_out():
  assert runs.label('a\nb\t\x01\udcff') == r'a\nb\t\x01\udcff'


def write_losses(folder):
  folder.mkdir(parents=True)
  lines = [{'step': i, 'tokens': i, 'loss': 3.0 / i} for i in (1, 2, 3)]
  text = ''.join(json.dumps(line) + '\n' for line in lines)
  (folder / 'metrics.jsonl').write_text(text)


@pytest.fixture
def figures(monkeypatch):
  """The figures that are saved."""
  saved, save = [], runs.save_figure

  def keep(figure, out):
    saved.append(figure)
    return save(figure, out)

  for module in (runs, studies):
    monkeypatch.setattr(module, 'save_figure', keep)
  return saved


def legend(figure):
  (axes,) = figure.axes
  return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.mark.parametrize('name', ['r$x^_$', '_run', '__'])
def test_a_run_of_any_name_is_drawn(tmp_path, figures, name):
  write_losses(tmp_path / name)
  assert main(['plot', f'--workdir={tmp_path / name}']) == 0
  (said,) = legend(figures[0])
  assert said.strip().replace(r'\$', '$').startswith(f'{name}: training')


def test_every_figure_takes_any_name(tmp_path, figures):
  name = NAMES[0]
  task_curves.task_curves(
    [task_curves.FigureCurve(name, name, {1: (0.5, 0.1), 2: (0.6, 0.1)})],
    str(tmp_path / 'tasks.png'),
  )
  assert len(figures) == 1


@pytest.mark.parametrize(
  ('paths', 'names'),
  [
    (['a'], ['a']),
    (['a/x', 'b/y'], ['x', 'y']),
    (['a/0', 'b/0'], ['a', 'b']),
    (['a/0', 'a/1', 'b/0'], ['a/0', 'a/1', 'b/0']),
    (['w/a/0', 'w/b/0/', './w/c/0'], ['a', 'b', 'c']),
    (['run', 'x/run'], ['run', 'x/run']),
    (['x/y/run', 'z/run'], ['x/y', 'z']),
  ],
)
def test_runs_are_named_by_what_differs(paths, names):
  assert [n.strip('/') for n in runs.run_names(paths)] == names


def test_two_runs_of_one_name_are_told_apart(tmp_path, figures, capsys):
  write_losses(tmp_path / 'dense/0')
  write_losses(tmp_path / 'switch/0')
  both = f'{tmp_path}/dense/0,{tmp_path}/switch/0'
  assert main(['plot', f'--workdir={both}']) == 0
  first = [said.partition(':')[0] for said in legend(figures[0])]
  assert first == ['dense', 'switch']
  capsys.readouterr()
  assert main(['plot', f'--workdir={tmp_path}/dense/0,{tmp_path}/dense/0/']) == 2
  assert 'names a folder twice' in capsys.readouterr().err
