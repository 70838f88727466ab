# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an unfinished preparation notes down, for the next process to go on."""

import io
import json
import zipfile
from typing import Any

import numpy as np

from gpt_jax.files import files

# In the folder of the store while it is being written.
STATE = 'unfinished.npz'


class StartOver(Exception):
  """What an earlier process left is of no use; the text says why."""


def read(folder: str, wanted: dict[str, Any]) -> dict[str, np.ndarray]:
  """Reads what an unfinished preparation with the same inputs left.

  Args:
    folder: of the store.
    wanted: entries that must be the same.

  Raises:
    StartOver: there is none.
  """
  data = files.read(folder, STATE)
  if data is None:
    raise StartOver
  try:
    with np.load(io.BytesIO(data)) as loaded:
      state = dict(loaded)
    before = json.loads(bytes(state['json']))
  # Whatever a damaged file may lead to.
  except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as e:
    raise StartOver(f'{STATE} is damaged') from e
  for name, value in wanted.items():
    if before[name] != value:
      raise StartOver(f'other {name}')
  return state


def write(folder: str, state: dict[str, np.ndarray]):
  """Writes what `read` reads; its entry 'json' holds what is `wanted`."""
  data = io.BytesIO()
  np.savez(data, allow_pickle=False, **state)
  files.write(folder, STATE, data.getvalue())
