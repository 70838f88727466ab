# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Preparing on Apache Beam, with the bytes that one machine makes."""

import importlib
from typing import Any, NamedTuple

from gpt_jax.spec import UsageError


class Modules(NamedTuple):
  """The modules of this package that preparing calls."""

  job: Any
  clean: Any
  build: Any


def load() -> Modules:
  """Imports what needs Apache Beam."""
  try:
    importlib.import_module('apache_beam')
  except ImportError as e:
    raise UsageError(
      '--runner: needs Apache Beam; in an environment of its own run pip '
      "install -c constraints-beam.txt -e '.[beam,clean]'"
    ) from e
  return Modules(
    *(importlib.import_module(f'{__name__}.{n}') for n in Modules._fields)
  )
