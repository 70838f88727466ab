# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checksums of blocks; reading manifests is tested with the store."""

import zlib

import numpy as np

from gpt_jax.tokens import manifest


def test_a_checksum_for_each_block(monkeypatch):
  monkeypatch.setattr(manifest, 'BLOCK', 7)
  values = np.arange(17, dtype=np.uint16)
  expected = [
    zlib.crc32(values[:7].astype('<u2').tobytes()),
    zlib.crc32(values[7:14].astype('<u2').tobytes()),
    zlib.crc32(values[14:].astype('<u2').tobytes()),
  ]
  assert manifest.checksums(values) == expected
  assert manifest.checksums(values.astype('>u2')) == expected
  assert manifest.checksums(values[:0]) == []
