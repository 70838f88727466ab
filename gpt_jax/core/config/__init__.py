# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The config: its tree of defaults, resolving, validation."""

from gpt_jax.core.config.defaults import CALL_STRINGS, FIELDS
from gpt_jax.core.config.fields import Config, differences, flatten, from_json, to_json, unlocked
from gpt_jax.core.config.lengths import (
  in_percent,
  order,
  ramp,
  row_tokens,
  schedule,
  sides,
  warm_up_note,
)
from gpt_jax.core.config.resolving import (
  check_objective,
  check_resolved,
  check_unresolved,
  named,
  objective,
  of_part,
  resolve,
  resolve_model,
  set_vocab_size,
  transformer,
  width,
)
from gpt_jax.core.config.validation import check_ranges, outer

__all__ = [
  'CALL_STRINGS',
  'FIELDS',
  'Config',
  'check_objective',
  'check_ranges',
  'check_resolved',
  'check_unresolved',
  'differences',
  'flatten',
  'from_json',
  'in_percent',
  'named',
  'objective',
  'of_part',
  'order',
  'outer',
  'ramp',
  'resolve',
  'resolve_model',
  'row_tokens',
  'schedule',
  'set_vocab_size',
  'sides',
  'to_json',
  'transformer',
  'unlocked',
  'warm_up_note',
  'width',
]
