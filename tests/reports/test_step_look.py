# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The picture of a look into a step."""

import math

from PIL import Image

from gpt_jax.looking.documents import Piece, Scored
from gpt_jax.reports import step_look

NORMS = {
  'gradient_norm/decoder/layer_10': 3.0,
  'gradient_norm/decoder/layer_2': 2.0,
  'gradient_norm/embed': 1.0,
  'largest_logit/decoder/layer_2': math.inf,
}


def test_layers_are_in_their_order():
  table = step_look.by_place(NORMS)
  assert [*table] == ['embed', 'decoder/layer_2', 'decoder/layer_10']
  assert table['decoder/layer_2'] == {'gradient_norm': 2.0, 'largest_logit': math.inf}


def test_a_picture_of_what_is_not_finite_too(tmp_path):
  pieces = [Piece(i, (i,), f'$file_{i}', 'text', None) for i in range(7)]
  scored = [Scored(piece, 1 / 7, math.nan if i else 5.0, 0.3) for i, piece in enumerate(pieces)]
  path = step_look.picture(9, NORMS, scored, str(tmp_path / 'step.png'))
  with Image.open(path) as image:
    # Two kinds of norms, and the documents.
    assert image.size == (11 * 120, 540)
