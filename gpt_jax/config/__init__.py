# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The config: its tree of defaults, resolving, validation."""

from gpt_jax.config.resolving import (
  AT_LEAST,
  CALL_STRINGS,
  NAMES,
  Config,
  check_objective,
  differences,
  flatten,
  from_json,
  ramp,
  resolve,
  resolve_model,
  row_tokens,
  schedule,
  set_vocab_size,
  stage_name,
  to_json,
  unlocked,
)

__all__ = [
  'AT_LEAST',
  'CALL_STRINGS',
  'NAMES',
  'Config',
  'check_objective',
  'differences',
  'flatten',
  'from_json',
  'ramp',
  'resolve',
  'resolve_model',
  'row_tokens',
  'schedule',
  'set_vocab_size',
  'stage_name',
  'to_json',
  'unlocked',
]
