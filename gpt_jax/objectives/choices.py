# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `objective.name` may be."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from gpt_jax import spec
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import t5
from gpt_jax.objectives.auxiliary import auxiliary
from gpt_jax.objectives.base import Declared, Needs, Objective
from gpt_jax.objectives.causal import causal
from gpt_jax.objectives.denoise import denoise, mass
from gpt_jax.objectives.distilled import distilled
from gpt_jax.objectives.electra import electra
from gpt_jax.objectives.masked import masked
from gpt_jax.objectives.permuted import permuted
from gpt_jax.objectives.prefix import prefix, target
from gpt_jax.objectives.seq2seq import seq2seq
from gpt_jax.objectives.task import (
  choice,
  classification,
  regression,
  spans,
  tags,
  tasks,
)
from gpt_jax.objectives.unified import unified, unified_target
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.tokenizer import Tokenizer

# Those from `choice` on follow from the task, or the tasks, of `finetune`.
OBJECTIVES = {
  'causal': causal,
  'auxiliary': auxiliary,
  'masked': masked,
  'electra': electra,
  'distilled': distilled,
  'prefix': prefix,
  'unified': unified,
  'unified_target': unified_target,
  'permuted': permuted,
  'seq2seq': seq2seq,
  'mass': mass,
  'denoise': denoise,
  **t5.OBJECTIVES,
  'choice': choice,
  'classification': classification,
  'regression': regression,
  'spans': spans,
  'tags': tags,
  'target': target,
  'tasks': tasks,
}


def needs(name: str) -> Needs:
  """What the objective that `objective.name` calls needs."""
  return _declared(name).needs


def build(
  name: str,
  model: Transformer,
  tokenizer: Tokenizer | None = None,
  parts: Mapping[str, Transformer] = MappingProxyType({}),
) -> Objective:
  """The objective of `objective.name`; see `Declared` for the arguments."""
  declared = _declared(name)
  check_parts(name, parts)
  special = tokenizer.special if tokenizer else None
  for token in declared.needs.tokens:
    if special and getattr(special, f'{token}_id') is None:
      raise UsageError(
        f'objective.name={name!r}: needs a [{token.upper()}], which the '
        'tokenizer of the token store lacks; prepare the text with another '
        'tokenizer.name, such as wordpiece or byte_bpe'
      )
  if special:
    needed = declared.needs.sentinels(model.context_length)
    t5.check(special.names, needed, name)
  return declared(model, tokenizer, **parts)


def check_parts(name: str, parts: Collection[str]) -> None:
  """Checks that the models beside the run's own are those it trains.

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


def _declared(name: str) -> Declared:
  return spec.build('objective.name', name, OBJECTIVES)
