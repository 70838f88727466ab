# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables for tests, packed where their name says so."""

import gzip


def put(folder, name, text):
  """Writes a file to a folder; gives its path."""
  path = folder / name
  path.parent.mkdir(parents=True, exist_ok=True)
  if name.endswith('.gz'):
    path.write_bytes(gzip.compress(text.encode()))
  else:
    path.write_text(text, encoding='utf-8')
  return str(path)
