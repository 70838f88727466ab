# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chips as their vendors publish them; slices that are sold, by shape and by name."""

import json
import math
import pathlib
import re
import subprocess
import sys
import types

import pytest

from gpt_jax.core.costs import chips, slice_names, topologies
from gpt_jax.core.costs.chips import CHIPS, GIB

ROOT = pathlib.Path(__file__).parents[3]
ALL, OPEN = (True, True, True), (False, False, False)


# As Cloud TPU's pages list them, and how MaxText closes them to a torus.
@pytest.mark.parametrize(
  'text, name, chips, hosts, wrap',
  [
    ('v4:12x16x16', 'v4:12x16x16', 3072, 768, ALL),
    ('v4-8', 'v4:2x2x1', 4, 1, OPEN),
    ('v4-64', 'v4:2x4x4', 32, 8, OPEN),
    ('v4-128', 'v4:4x4x4', 64, 16, ALL),
    ('v4-512', 'v4:4x8x8', 256, 64, ALL),
    ('v5p-768', 'v5p:4x8x12', 384, 96, ALL),
    ('v5p-12288', 'v5p:16x16x24', 6144, 1536, ALL),
    ('v5e:1x1', 'v5e:1x1', 1, 1, OPEN),
    ('v5litepod-8', 'v5e:2x4', 8, 1, OPEN),
    ('v6e-4', 'v6e:2x2', 4, 1, OPEN),
    ('v6e-8', 'v6e:2x4', 8, 1, OPEN),
    ('v6e-16', 'v6e:4x4', 16, 4, OPEN),
    ('v5e-128', 'v5e:8x16', 128, 32, (False, True, False)),
    ('v6e-256', 'v6e:16x16', 256, 64, (True, True, False)),
    ('tpu7x-128', 'tpu7x:4x4x4', 64, 16, ALL),
  ],
)
def test_what_is_sold(text, name, chips, hosts, wrap):
  found = topologies.parse(text)
  assert (found.name, found.chips, found.hosts) == (name, chips, hosts)
  assert found.wrap == wrap
  assert found.devices == chips * (2 if name.startswith('tpu7x') else 1)


def test_the_table_of_launch():
  """Each row, and that plans.json has found what it says fits."""
  found = {
    (plan['topology'], plan['config'].removeprefix('configs/'))
    for plan in json.loads((ROOT / 'docs/plans.json').read_text())
    if plan.get('found')
  }
  table = (ROOT / 'launch/README.md').read_text().partition('which configs')[2]
  rows = re.findall(r'^\| `(.*?)` \|(.*)\|$', table, re.MULTILINE)
  assert len(rows) > 9
  for name, rest in rows:
    slices = topologies.parse(name)
    *figures, configs = (cell.strip() for cell in rest.split('|'))
    hbm = slices.chip.hbm / GIB
    assert figures == [
      slices.name.partition(':')[2],
      f'{slices.chips:,}',
      f'{slices.hosts:,}',
      f'{hbm:g} GiB',
      f'{hbm * slices.chips:,.0f} GiB',
    ]
    for config in re.findall('`(.*?)`', configs):
      assert (slices.name, config) in found


def test_names_of_a_slice():
  for text in ('v5e-8', 'v5litepod-8', 'v5litepod:2x4'):
    assert topologies.parse(text) == topologies.parse('v5e:2x4')


# As Cloud's pages print them: chips, hosts, shape.
@pytest.mark.parametrize(
  'name, said',
  [
    ('v5e-32', 'v5litepod-32 32 8 4x8'),
    ('v5litepod-8', 'v5litepod-8 8 1 2x4'),
    ('v5p-128', 'v5p-128 64 16 4x4x4'),
    ('v6e-256', 'v6e-256 256 64 16x16'),
    ('v4-32', 'v4-32 16 4 2x2x4'),
    ('tpu7x-8', 'tpu7x-8 4 1 2x2x1'),
  ],
)
def test_names_for_the_scripts_of_launch(name, said):
  """In a Python that has no packages and does not find ours."""
  script = ROOT / 'gpt_jax/core/costs/slice_names.py'
  command = [sys.executable, '-I', '-S', str(script), name]
  assert subprocess.check_output(command, text=True) == f'{said}\n'
  slices = topologies.parse(name)
  assert (slices.accelerator, slices.usual) == (said.split()[0], True)


@pytest.mark.parametrize(
  'name, nearest',
  [
    ('v5lite-32', 'v5litepod-32 (v5e:4x8)'),
    ('v4-100', 'v4-64 (v4:2x4x4), v4-128 (v4:4x4x4)'),
    ('v6e-300', 'v6e-256 (v6e:16x16)'),
    ('v4-7', 'v4-8 (v4:2x2x1)'),
    ('tpu7-128', 'tpu7x-128 (tpu7x:4x4x4)'),
    ('h100-8', 'v4-128, v5litepod-64, v5p-128, v6e-64, tpu7x-128'),
    ('v4-08', 'v4-128, v5litepod-64, v5p-128, v6e-64, tpu7x-128'),
  ],
)
def test_a_name_that_is_not_sold_is_told_the_nearest(name, nearest):
  with pytest.raises(ValueError) as e:
    slice_names.resolve(name)
  assert str(e.value).endswith(nearest) and '\n' not in str(e.value)


def test_the_shape_that_a_name_does_not_mean():
  slices = topologies.parse('v4:4x4x16')
  assert (slices.accelerator, slices.usual) == ('v4-512', False)


def test_several_slices():
  found = topologies.parse('v4:12x16x16', 2)
  assert (found.chips, found.hosts) == (6144, 1536)
  assert str(found) == '2 x v4:12x16x16'


@pytest.mark.parametrize('chip', CHIPS.values(), ids=lambda c: c[0])
def test_chips(chip):
  """No slice is larger than the largest."""
  shapes = slice_names.SOLD[chip.name].shapes
  assert len({*shapes}) == len(shapes)
  assert math.prod(shapes[-1]) == slice_names.SOLD[chip.name].largest
  # What the compiler allows is a little less than there is.
  whole = {'v4': 32, 'v5e': 16, 'v5p': 96, 'v6e': 32, 'tpu7x': 192}[chip.name]
  assert 0.9 * whole < chip.hbm / GIB < whole


@pytest.mark.parametrize(
  'kind, peak',
  [
    ('TPU v4', 275e12),
    ('TPU v5 lite', 197e12),  # not TPU v5, of which it is a longer name
    ('TPU v5', 459e12),
    ('TPU v5p', 459e12),
    ('TPU v6 lite', 918e12),
    ('TPU7x', 2307e12 / 2),  # two devices a chip
    ('NVIDIA H100 80GB HBM3', 989e12),
    ('NVIDIA A100-SXM4-40GB', 312e12),
  ],
)
def test_peak_of_known_devices(kind, peak):
  device = types.SimpleNamespace(device_kind=kind)
  found = chips.vendor_peak(device)
  assert found and found[0] == peak
  assert kind in found[1]
