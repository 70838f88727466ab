# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Estimates of runs whose speed was published."""

from gpt_jax.planning import schedule
from tests.support import published


def test_estimates_are_as_far_off_as_the_docs_say():
  found = published.errors()
  # Those that were compiled.
  assert found and set(found) <= set(published.POINTS)
  for name, (_, off) in found.items():
    assert abs(off) <= schedule.ERROR, name
  page = (published.ROOT / 'docs/planning.md').read_text(encoding='utf-8')
  assert published.BEGIN + published.markdown() in page
