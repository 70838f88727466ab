# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The documents that steps read, in a picture."""

from gpt_jax.reports import data_order, runs

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
