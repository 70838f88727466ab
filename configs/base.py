# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The whole tree with its defaults; docs/fields.md explains each field.

A config starts from here or from its ancestor, and sets what differs.
"""

from ml_collections import ConfigDict

from gpt_jax.core.config import defaults
from gpt_jax.core.config.defaults import corpora, get_config, no_size, size
from gpt_jax.core.entries import number_or_text

__all__ = [
  'corpora',
  'finetune',
  'get_config',
  'no_size',
  'number_or_text',
  'size',
  'sweep',
]


def finetune() -> ConfigDict:
  """The section `finetune`."""
  return defaults.optional('finetune')


def sweep() -> ConfigDict:
  """The section `sweep`."""
  return defaults.optional('sweep')
