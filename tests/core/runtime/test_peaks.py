# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The measured peak of a machine is kept, and the highest one counts."""

import json
import types

import jax
import pytest

from gpt_jax.core.costs import chips
from gpt_jax.core.runtime import peaks

CPU = jax.devices()[0]


@pytest.fixture
def measured(monkeypatch, tmp_path):
  """Seconds that the next measurements take; those that are left."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  left = []
  monkeypatch.setattr(chips, 'measure_matmul', lambda *_: left.pop(0))
  return left


def rate(seconds):
  """Of each of eight virtual devices, which share the cores."""
  return 2 * 2048**3 / seconds / 8


def test_it_is_measured_once_and_only_rises(measured):
  measured += [0.5, 0.7, 0.25]
  found, source = peaks.of_device(CPU)
  assert found == rate(0.5) and 'measured' in source
  assert peaks.of_device(CPU) == (found, source) and len(measured) == 2
  assert peaks.of_device(CPU, again=True)[0] == rate(0.5)
  assert peaks.of_device(CPU, again=True)[0] == rate(0.25)
  assert peaks.of_device(CPU)[0] == rate(0.25)
  ((key, kept),) = json.loads(peaks.path().read_text()).items()
  assert kept == 8 * rate(0.25) and f'jax {jax.__version__}' in key


def test_a_vendor_figure_is_not_measured(measured):
  device = types.SimpleNamespace(device_kind='TPU v4', platform='tpu')
  assert peaks.of_device(device) == (275e12, 'TPU v4, bf16, vendor figure')
  assert not peaks.path().exists()


@pytest.mark.parametrize('text', ['{', '[3]', '{"a": "b"}', '{"a": -1.0}', ''])
def test_a_damaged_file_is_replaced(measured, caplog, text):
  measured += [0.5, 0.5]
  peaks.of_device(CPU)
  whole = peaks.path().read_text()
  peaks.path().write_text(text)
  assert peaks.of_device(CPU)[0] == rate(0.5)
  (said,) = caplog.messages
  assert 'the peak is measured again' in said and '\n' not in said
  assert peaks.path().read_text() == whole


def test_it_is_measured_anew_where_it_cannot_be_kept(measured, caplog):
  measured += [0.5, 0.4]
  peaks.path().parent.parent.joinpath('gpt_jax').write_text('a file')
  assert peaks.of_device(CPU)[0] == rate(0.5)
  assert peaks.of_device(CPU)[0] == rate(0.4)
  assert 'the peak is not kept' in caplog.text
