# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `objective.name` may be."""

from gpt_jax.objectives.causal import causal
from gpt_jax.objectives.target import target
from gpt_jax.objectives.task import (
  choice,
  classification,
  regression,
  spans,
  tags,
)

# All but `causal` follow from the task of `finetune`.
OBJECTIVES = {
  'causal': causal,
  'choice': choice,
  'classification': classification,
  'regression': regression,
  'spans': spans,
  'tags': tags,
  'target': target,
}
