# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Imports what commands use, for the processes of `forks`."""

import importlib
import pkgutil

import gpt_jax

for _module in pkgutil.walk_packages(gpt_jax.__path__, 'gpt_jax.'):
  # What needs an extra, or runs when it is imported, is left to the commands.
  if _module.name.split('.')[1] in ('core', 'commands', 'tasks') and not (
    _module.name.endswith(('_beam', 'tfds_build'))
  ):
    importlib.import_module(_module.name)
# Of pictures: it is imported when the first is drawn.
importlib.import_module('matplotlib.backends.backend_agg')
