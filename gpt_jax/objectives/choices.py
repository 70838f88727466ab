# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The objectives that `objective.name` can call."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from etils import epy

from gpt_jax import spec
from gpt_jax.spec import Table, UsageError

with epy.lazy_imports():
  from gpt_jax.nn import transformer
  from gpt_jax.objectives import base, t5
  from gpt_jax.tokenizers import tokenizer as tokenizer_lib

# T5's, of a text that is cut or corrupted.
T5 = Table(
  {
    'span': 'gpt_jax.objectives.t5:Span',
    'replace_spans': 'gpt_jax.objectives.t5:ReplaceSpans',
    'drop_tokens': 'gpt_jax.objectives.t5:DropTokens',
    'bert_style': 'gpt_jax.objectives.t5:BertStyle',
    'mass_style': 'gpt_jax.objectives.t5:MassStyle',
    'deshuffle': 'gpt_jax.objectives.t5:Deshuffle',
    'continuation': 'gpt_jax.objectives.t5:Continuation',
  }
)
# Those of pre-training, which a config names.
PRETRAINING = Table(
  {
    'causal': 'gpt_jax.objectives.causal:Causal',
    'recurrent': 'gpt_jax.objectives.recurrent:Recurrent',
    'bilm': 'gpt_jax.objectives.bilm:BiLm',
    'auxiliary': 'gpt_jax.objectives.auxiliary:Auxiliary',
    'masked': 'gpt_jax.objectives.masked:Masked',
    'electra': 'gpt_jax.objectives.electra:Electra',
    'distilled': 'gpt_jax.objectives.distilled:Distilled',
    'prefix': 'gpt_jax.objectives.prefix:Prefix',
    'unified': 'gpt_jax.objectives.unified:Unified',
    'unified_target': 'gpt_jax.objectives.unified:UnifiedTarget',
    'permuted': 'gpt_jax.objectives.permuted:Permuted',
    'seq2seq': 'gpt_jax.objectives.seq2seq:Seq2Seq',
    'mass': 'gpt_jax.objectives.denoise:Mass',
    'denoise': 'gpt_jax.objectives.denoise:Denoise',
    **T5.rows,
  }
)
# And those that fine-tuning and post-training set according to their task.
OBJECTIVES = Table(
  {
    **PRETRAINING.rows,
    'choice': 'gpt_jax.objectives.task:Choice',
    'classification': 'gpt_jax.objectives.task:Classification',
    'regression': 'gpt_jax.objectives.task:Regression',
    'spans': 'gpt_jax.objectives.task:Spans',
    'tags': 'gpt_jax.objectives.task:Tags',
    'cross_view': 'gpt_jax.objectives.cross_view:CrossView',
    'target': 'gpt_jax.objectives.causal:Target',
    'dialogue': 'gpt_jax.objectives.dialogue:Dialogue',
    'tasks': 'gpt_jax.objectives.task:Tasks',
    'reward': 'gpt_jax.objectives.preference:RewardModel',
    'dpo': 'gpt_jax.objectives.preference:Dpo',
    'ppo': 'gpt_jax.objectives.policy:Ppo',
    'grpo': 'gpt_jax.objectives.policy:Grpo',
  }
)

# The calls of `finetune.views`, `finetune.features` and `finetune.lora`.
VIEWS = Table(
  {
    'cross_view': 'gpt_jax.objectives.cross_view:cross_view',
    'none': 'gpt_jax.objectives.cross_view:none',
  }
)
FEATURES = Table(
  {
    'concat': 'gpt_jax.objectives.heads:concat',
    'ends': 'gpt_jax.objectives.heads:ends',
    'layer': 'gpt_jax.objectives.heads:layer',
    'weighted_sum': 'gpt_jax.objectives.heads:weighted_sum',
  }
)
LORAS = Table(
  {
    'lora': 'gpt_jax.objectives.lora:Lora',
    'none': 'gpt_jax.objectives.lora:none',
  }
)


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


def unbound(name: str) -> 'base.Objective':
  """The objective named by `objective.name`, without its models."""
  return spec.build('objective.name', name, OBJECTIVES)
