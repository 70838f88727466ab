# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arrays of a token store are read without tensorstore, of any number of files."""

import numpy as np
import pytest

from gpt_jax.core.tokens.store import ArrayWriter
from gpt_jax.plain import store


@pytest.mark.parametrize(
  ('dtype', 'length'),
  [('uint16', 1), ('uint16', 8193), ('uint32', 100_003), ('uint16', 2**24 + 8195), ('int64', 17)],
)
def test_an_array_of_one_or_more_files(dtype, length, tmp_path):
  values = np.random.default_rng(0).integers(0, 60_000, length).astype(dtype)
  # Chunks of zeros, as other values, are written.
  values[8192:20_000] = 0
  writer = ArrayWriter(str(tmp_path), 'x', dtype)
  writer.add(values)
  written = writer.close()
  found = store.read_array(str(tmp_path), 'x', dtype, written.length, written.crc32)
  assert found.dtype == dtype
  np.testing.assert_array_equal(found, values)
