# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The whole tree with its defaults; docs/fields.md explains each field.

A config starts from here or from its ancestor, and sets what differs.
"""

from gpt_jax.config.defaults import (
  corpora,
  finetune,
  get_config,
  no_size,
  number_or_text,
  size,
  sweep,
)

__all__ = [
  'corpora',
  'finetune',
  'get_config',
  'no_size',
  'number_or_text',
  'size',
  'sweep',
]
