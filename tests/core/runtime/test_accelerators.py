# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `doctor` says of devices, and the measured peaks that are kept."""

import fnmatch
import itertools
import json
import types

import jax
import pytest

from gpt_jax.core.costs import chips
from gpt_jax.core.runtime import accelerators, peaks


@pytest.fixture
def a_second_each(monkeypatch):
  """Each program runs once, and is said to take a second, or three."""

  def medians(calls):
    jax.block_until_ready([call() for call in calls])
    return [1.0, *[3.0] * (len(calls) - 1)]

  monkeypatch.setattr(accelerators, '_medians', medians)


def test_bytes_between_devices(a_second_each):
  # 7 parts of 2^17 bytes in a second, and 2^18 bytes in three.
  assert accelerators.interconnect() == (
    'smoke figure: each of 8 devices gets 0.000918 GB/s in an all-gather of '
    '1 MiB, 8.74e-05 GB/s from its neighbour'
  )


def test_flops_of_products(a_second_each):
  # 4 products of 2 * 512^3 in three seconds by most devices.
  assert accelerators.matmul() == (
    'smoke figure: 0.000358 TFLOP/s in float32; the slowest of 8 devices here 0.000358'
  )


def test_calls_alternate_and_one_slow_round_does_not_count(monkeypatch):
  seen = []
  ticks = itertools.chain([0, 90, 0, 90], itertools.cycle([0, 2, 0, 5]))
  monkeypatch.setattr(accelerators.time, 'perf_counter', lambda: next(ticks))
  calls = [lambda: seen.append('a'), lambda: seen.append('b')]
  assert accelerators._medians(calls) == [2, 5]
  assert ''.join(seen) == 'ab' * 6


def test_the_shape_of_a_slice(monkeypatch):
  def device(x, y, z, of):
    return types.SimpleNamespace(coords=(x, y, z), slice_index=of)

  grid = itertools.product(range(2), range(4), range(8), range(3))
  devices = [device(*at) for at in grid]
  monkeypatch.setattr(jax, 'devices', lambda: devices)
  said = '3 slice(s) of 2x4x8 chips, 192 devices'
  assert accelerators.topology() == said


def test_memory_is_the_least_of_all_devices(monkeypatch):
  stats = [{'bytes_limit': limit << 30, 'bytes_in_use': 1 << 29} for limit in (31, 30)]
  devices = [types.SimpleNamespace(memory_stats=lambda s=s: s) for s in stats]
  monkeypatch.setattr(jax, 'local_devices', lambda: devices)
  assert accelerators.memory() == '30.00 GiB a device, 0.50 in use'


@pytest.mark.parametrize('chip', ['/dev/accel0', '/dev/vfio/3'])
def test_tpus_that_jax_does_not_use(monkeypatch, chip):
  files = ['/dev/vfio/vfio', '/dev/accel_of_another_kind']
  monkeypatch.setattr(accelerators.glob, 'glob', lambda at: fnmatch.filter(files, at))
  assert 'on cpu' in accelerators.libtpu()
  files.append(chip)
  with pytest.raises(RuntimeError, match='JAX uses cpu'):
    accelerators.libtpu()


def test_this_process():
  assert accelerators.hosts() == 'process 0 of 1, 8 of 8 devices here'
  assert accelerators.topology() == '8 devices without a network of their own'
  assert 'GiB of the host' in accelerators.memory()


CPU = jax.devices()[0]


@pytest.fixture
def measured(monkeypatch, tmp_path):
  """Seconds that the next measurements take; those that are left."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  left = []
  monkeypatch.setattr(chips, 'SIZES', (2048,))
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


def test_the_fastest_size_counts(monkeypatch):
  seconds = {512: 0.01, 1024: 0.02, 2048: 0.4}
  monkeypatch.setattr(chips, 'measure_matmul', lambda device, dtype, size: seconds[size])
  assert chips.measured_peak(CPU, 'float32') == 2 * 1024**3 / 0.02


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
