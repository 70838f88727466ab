# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/lineage.md is what the files of the configs give."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from gpt_jax.core.config import loading
from gpt_jax.core.tokens import prepare
from tests.support import lineage_losses, lineage_page
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


def test_the_losses_are_as_on_the_page():
  results = lineage_page.measured()
  assert [*results['models']] == [*lineage_losses.MODELS]
  number = lineage_losses.STEPS // lineage_losses.EVERY
  assert all(len(found['losses']) == number for found in results['models'].values())
  # No token of the corpus was read twice.
  assert results['tokens'] * number < results['corpus_tokens']
  assert '\n\n'.join(lineage_page.losses()) in page()
  text = (DOCS / 'lineage_losses.svg').read_text(encoding='utf-8')
  assert text == lineage_page.curves()
  lines = [x for x in ET.fromstring(text).iter() if x.tag.endswith('polyline')]
  assert len(lines) == len(results['models'])


@pytest.mark.slow
@pytest.mark.parametrize(
  'key', [pytest.param(x, marks=[pytest.mark.long] * (x != 'gpt2')) for x in lineage_losses.MODELS]
)
def test_the_first_losses_are_those_of_the_page(key, tmp_path):
  """With the Python, and so the standard library, that they were measured with."""
  results = lineage_page.measured()
  store = prepare.ensure(lineage_losses.config_of(key), str(tmp_path / 'store'))
  if store.manifest.fingerprint != results['fingerprint']:
    pytest.skip('the standard library is another one')
  curve, parameters = lineage_losses.losses(key, str(tmp_path / 'store'), 3)
  np.testing.assert_allclose(curve, results['models'][key]['first'], rtol=0, atol=1e-3)
  assert parameters == results['models'][key]['parameters']
