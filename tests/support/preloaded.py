# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Imports what commands use, for the processes of `forks`."""

import importlib
import pkgutil

import matplotlib.backends.backend_agg  # noqa: F401

import gpt_jax

for _module in pkgutil.walk_packages(gpt_jax.__path__, 'gpt_jax.'):
  # What needs an extra, or runs when it is imported, is left to the commands.
  if _module.name.split('.')[1] in (
    'checkpoints',
    'commands',
    'config',
    'costs',
    'files',
    'nn',
    'optim',
    'objectives',
    'plots',
    'rows',
    'runtime',
    'tasks',
    'text',
    'tokenizers',
    'tokens',
    'training',
  ) and not _module.name.endswith(('_beam', 'tfds_build')):
    importlib.import_module(_module.name)
