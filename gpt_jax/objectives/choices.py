# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The objectives that `objective.name` can call."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from gpt_jax import spec
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import t5
from gpt_jax.objectives.auxiliary import Auxiliary
from gpt_jax.objectives.base import Needs, Objective
from gpt_jax.objectives.bilm import BiLm
from gpt_jax.objectives.causal import Causal, Target
from gpt_jax.objectives.cross_view import CrossView
from gpt_jax.objectives.denoise import Denoise, Mass
from gpt_jax.objectives.dialogue import Dialogue
from gpt_jax.objectives.distilled import Distilled
from gpt_jax.objectives.electra import Electra
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.permuted import Permuted
from gpt_jax.objectives.policy import Grpo, Ppo
from gpt_jax.objectives.preference import Dpo, RewardModel
from gpt_jax.objectives.prefix import Prefix
from gpt_jax.objectives.recurrent import Recurrent
from gpt_jax.objectives.seq2seq import Seq2Seq
from gpt_jax.objectives.task import (
  Choice,
  Classification,
  Regression,
  Spans,
  Tags,
  Tasks,
)
from gpt_jax.objectives.unified import Unified, UnifiedTarget
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.tokenizer import Tokenizer

# Those of pre-training, which a config names.
PRETRAINING = {
  'causal': Causal,
  'recurrent': Recurrent,
  'bilm': BiLm,
  'auxiliary': Auxiliary,
  'masked': Masked,
  'electra': Electra,
  'distilled': Distilled,
  'prefix': Prefix,
  'unified': Unified,
  'unified_target': UnifiedTarget,
  'permuted': Permuted,
  'seq2seq': Seq2Seq,
  'mass': Mass,
  'denoise': Denoise,
  **t5.OBJECTIVES,
}
# And those that fine-tuning and post-training set according to their task.
OBJECTIVES = {
  **PRETRAINING,
  'choice': Choice,
  'classification': Classification,
  'regression': Regression,
  'spans': Spans,
  'tags': Tags,
  'cross_view': CrossView,
  'target': Target,
  'dialogue': Dialogue,
  'tasks': Tasks,
  'reward': RewardModel,
  'dpo': Dpo,
  'ppo': Ppo,
  'grpo': Grpo,
}


def needs(name: str) -> Needs:
  """What the objective named by `objective.name` requires."""
  return unbound(name).needs


def build(
  name: str,
  model: Transformer,
  tokenizer: Tokenizer | None = None,
  parts: Mapping[str, Transformer] = MappingProxyType({}),
) -> Objective:
  """The objective named by `objective.name`, bound to its models."""
  objective = unbound(name)
  check_parts(name, parts)
  special = tokenizer.special if tokenizer else None
  for token in objective.needs.tokens:
    if special and getattr(special, f'{token}_id') is None:
      raise UsageError(
        f'objective.name={name!r}: needs a [{token.upper()}], which the '
        'tokenizer of the token store lacks; prepare the text with another '
        'tokenizer.name, such as wordpiece or byte_bpe'
      )
  if special:
    needed = objective.needs.sentinels(model.context_length)
    t5.check(special.names, needed, name)
  return objective.bind(model, tokenizer, **parts)


def check_parts(name: str, parts: Collection[str]) -> None:
  """Checks that `config.models` has the parts that an objective needs.

  Args:
    name: `objective.name`.
    parts: the names in `config.models`.
  """
  known = needs(name).parts
  for part in sorted(known.keys() - {*parts}):
    raise UsageError(
      f'models.{part} is missing: objective.name={name!r} has a {part} '
      'beside the model; give it a section with what differs from model'
      + (', or train with objective.teacher' if known[part].frozen else '')
    )
  for part in sorted({*parts} - known.keys()):
    raise UsageError(
      f'models.{part}: objective.name={name!r} has no {part}; leave it out'
    )


def unbound(name: str) -> Objective:
  """The objective named by `objective.name`, without its models."""
  return spec.build('objective.name', name, OBJECTIVES)
