# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The objectives that `objective.name` can call."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from etils import epy

from gpt_jax.core import spec
from gpt_jax.core.spec import Table, UsageError
from gpt_jax.core.tokenizers.special import num_sentinels, sentinel

with epy.lazy_imports():
  from gpt_jax.core.nn import transformer
  from gpt_jax.core.objectives import base
  from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib

# Those of pre-training, which a config names.
PRETRAINING = Table({'causal': 'gpt_jax.core.objectives.causal:Causal'}, 'objective.name')
# And those that fine-tuning and post-training set according to their task.
OBJECTIVES = Table(
  {
    'causal': 'gpt_jax.core.objectives.causal:Causal',
    'target': 'gpt_jax.core.objectives.causal:Target',
  },
  'objective.name',
  'finetune.objective',
)

# The calls of `finetune.views`, `finetune.features` and `finetune.lora`.
VIEWS = Table({}, 'finetune.views')
FEATURES = Table({}, 'finetune.features')
LORAS = Table({}, 'finetune.lora')


def needs(name: str) -> 'base.Needs':
  """What the objective named by `objective.name` requires."""
  return unbound(name).needs


def build(
  name: str,
  model: 'transformer.Transformer',
  tokenizer: 'tokenizer_lib.Tokenizer | None' = None,
  parts: 'Mapping[str, transformer.Transformer]' = MappingProxyType({}),
) -> 'base.Objective':
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
    check_sentinels(special.names, needed, name)
  return objective.bind(model, tokenizer, **parts)


def check_sentinels(names: Collection[str], needed: int, name: str) -> None:
  """Checks that special tokens include the sentinels that an objective needs.

  Args:
    names: of the special tokens.
    needed: number of sentinels.
    name: `objective.name`.
  """
  if (count := num_sentinels(names)) < needed:
    raise UsageError(
      f'tokenizer.name: has no {sentinel(count)}, and a row of '
      f'objective.name={name!r} needs {needed} such sentinels; take a '
      'tokenizer that has them by hf_tokenizer, or '
      f'sentencepiece(..., sentinels={needed})'
    )


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
    raise UsageError(f'models.{part}: objective.name={name!r} has no {part}; leave it out')


def unbound(name: str) -> 'base.Objective':
  """The objective named by `objective.name`, without its models."""
  return spec.build('objective.name', name, OBJECTIVES)
