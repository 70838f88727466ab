# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `objective.name` may be."""

from gpt_jax import spec
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.base import Declared, Needs, Objective
from gpt_jax.objectives.causal import causal
from gpt_jax.objectives.masked import masked
from gpt_jax.objectives.target import target
from gpt_jax.objectives.task import (
  choice,
  classification,
  regression,
  spans,
  tags,
)

# All but the first two follow from the task of `finetune`.
OBJECTIVES = {
  'causal': causal,
  'masked': masked,
  'choice': choice,
  'classification': classification,
  'regression': regression,
  'spans': spans,
  'tags': tags,
  'target': target,
}


def needs(name: str) -> Needs:
  """What the objective that `objective.name` calls needs."""
  return _declared(name).needs


def build(
  name: str, model: Transformer, tokenizer: Tokenizer | None = None
) -> Objective:
  """The objective of `objective.name`; see `Declared` for the tokenizer."""
  return _declared(name)(model, tokenizer)


def _declared(name: str) -> Declared:
  return spec.build('objective.name', name, OBJECTIVES)
