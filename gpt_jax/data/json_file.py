# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""JSON files of ours, which a crash or a hand may have damaged."""

import json
from typing import Any

from gpt_jax.spec import UsageError


def read(path: str, *, remedy: str, needs: tuple[str, ...] = ()) -> Any:
  """Reads a file that holds a JSON object.

  Args:
    path: of the file.
    remedy: what to do where it is damaged.
    needs: keys that it must have.

  Raises:
    FileNotFoundError: there is no such file.
    UsageError: it is damaged.
  """
  with open(path, 'rb') as f:
    return parse(f.read(), path, remedy=remedy, needs=needs)


def parse(
  data: bytes, path: str, *, remedy: str, needs: tuple[str, ...] = ()
) -> Any:
  """Like `read`, of what a file holds."""
  try:
    found = json.loads(data)
  except (ValueError, RecursionError) as e:
    raise UsageError(f'{path}: is damaged, no JSON ({e}); {remedy}') from e
  if not isinstance(found, dict):
    raise UsageError(f'{path}: is damaged, no JSON object; {remedy}')
  if missing := [key for key in needs if key not in found]:
    raise UsageError(
      f'{path}: is damaged, it lacks {", ".join(missing)}; {remedy}'
    )
  return found
