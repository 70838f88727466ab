# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Peak FLOP/s of devices, as their vendors publish it."""

import types

import pytest

from gpt_jax.core.costs import chips


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
