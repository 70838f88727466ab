# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The bar stays silent where nobody watches."""

from gpt_jax.files import progress


def test_nothing_is_drawn_into_a_file(capfd):
  with progress.bar() as report:
    report('stage', 1, None)
    report('stage', 2, 3)
  captured = capfd.readouterr()
  assert captured.out == captured.err == ''
