# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/lineage.md is what the files of the configs give."""

import xml.etree.ElementTree as ET

import pytest

from gpt_jax.core.config import loading
from tests.support import lineage_page
from tests.support.lineage_page import DOCS, PAPERS


def page():
  return (DOCS / 'lineage.md').read_text(encoding='utf-8')


def test_a_step_is_as_on_the_page():
  shown = '\n\n'.join(lineage_page.step('llama3'))
  assert shown in page()
  # Grouped heads and documents: what LLaMA 3 changed.
  assert '+  k, v = (jnp.repeat(' in shown
  assert '+  # Documents of a row do not see each other.' in shown


@pytest.mark.slow
def test_the_whole_page():
  assert page() == lineage_page.page()


def test_the_picture_has_a_box_for_each_paper():
  text = (DOCS / 'lineage.svg').read_text(encoding='utf-8')
  assert text == lineage_page.picture()
  names = [x.text for x in ET.fromstring(text).iter() if x.tag.endswith('text')]
  assert {paper.name for paper in PAPERS.values()} <= {*names}
  assert text.count('<path') == len(PAPERS) - 1


def test_every_ancestor_comes_before_and_every_config_is_there():
  keys = [*PAPERS]
  for i, paper in enumerate(PAPERS.values()):
    assert not paper.ancestor or paper.ancestor in keys[:i]
    loading.read(f'configs/{paper.config}')
