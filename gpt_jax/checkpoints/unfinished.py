# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Folders of saves that did not come to their end."""

import contextlib

import jax
from etils import epath

from gpt_jax.checkpoints import restore


def find(folder: epath.Path) -> list[epath.Path]:
  """Those among the checkpoints in `folder`, which may be missing."""
  if not folder.exists():
    return []
  in_place = str(folder).startswith('gs://')
  return [
    path
    for path in folder.iterdir()
    if 'orbax-checkpoint-tmp' in path.name
    or (in_place and path.name.isdecimal() and not restore.committed(path))
  ]


def remove(folder: epath.Path) -> None:
  """Makes room; to be called when nothing is being saved."""
  if jax.process_index() == 0:
    for path in find(folder):
      # Other writes of a save that failed may still be under way; what they
      # leave goes after the next save.
      with contextlib.suppress(OSError):
        path.rmtree(missing_ok=True)
