# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A model from before: a workdir, a folder of Hugging Face, or nothing."""

import os
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from gpt_jax import hf, spec
from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.config import tasks as config_tasks
from gpt_jax.data import buckets, json_file
from gpt_jax.data.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.hf import vocabulary
from gpt_jax.hf.heads import SCORING
from gpt_jax.objectives import choices as objectives
from gpt_jax.spec import UsageError
from gpt_jax.training import trained as trained_lib


class Pretrained(NamedTuple):
  """A model from before, to fine-tune or to learn from.

  Attributes:
    name: how config.json calls it.
    model: fields of `Transformer`; None: those of the config.
    tokenizer_name: for config.json; '': that of the config.
    tokenizer: None: the config's, made of the task's texts where it is trained.
    params: reads the parameters; None: there are none.
    pooler: what its pooled first token goes through: 'tanh' (BERT), 'gelu'
      (ELECTRA), 'relu' (DistilBERT).
    scores: whether it was trained to score the vocabulary.
    tasks: of several that it was fine-tuned on, by name, what config.json says
      of each: see `config.tasks`; and `scores`, how scores were learned. Their
      heads are `parts` of the parameters.
  """

  name: str
  model: dict[str, Any] | None = None
  tokenizer_name: str = ''
  tokenizer: Tokenizer | None = None
  params: Callable[[], Any] | None = None
  pooler: str = 'tanh'
  scores: bool = True
  tasks: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


def pretrained(
  init: str, field: str = '--init', *, whole: bool = False
) -> Pretrained:
  """Looks up a model from before; reads none of our parameters yet.

  Args:
    init: the folder, or 'none'.
    field: what names it, for errors.
    whole: of any model all parameters, with heads and parts; else of a decoder
      or an encoder what can be fine-tuned or learned from.

  Raises:
    UsageError: it is nothing that can be.
  """
  if init == 'none':
    return Pretrained('none')
  path = os.path.join(init, 'config.json')
  try:
    remedy = f'restore it from a copy, or give another {field}'
    found = json_file.read(path, remedy=remedy)
  except OSError as e:
    raise UsageError(
      f'{field}={init}: holds no config.json; give a workdir that train left, '
      'a folder of Hugging Face, or none'
    ) from e
  if 'model_type' in found:
    return _from_hf(init, found['model_type'], field, whole)
  config: Any = trained_lib.read_config(init)
  if config.model.num_encoder_layers and not whole:
    raise UsageError(
      f'{field}={init}: an encoder-decoder; only decoders and encoders are '
      'fine-tuned or learned from'
    )
  steps = Checkpointer(init, read_only=True).steps()
  if not steps:
    raise UsageError(f'{field}={init}: holds no checkpoint yet; train it first')
  folder = os.path.join(init, 'tokenizer')
  tasks = _tasks_of(config)
  needs = objectives.needs(config.objective.name)

  def params() -> Any:
    _, state = trained_lib.restore(init)
    params = needs.merged(state.eval_params)
    params = params if whole else _pretrained_part(params, tasks)
    # The mesh of the run may have the devices in another order.
    return params if jax.process_count() > 1 else jax.device_get(params)

  return Pretrained(
    f'{buckets.shown(init)}, step {steps[-1]}',
    config.model.to_dict(),
    config.tokenizer.name,
    tokenizer_lib.load(folder),
    params,
    _pooler_of(config),
    _scores(config),
    tasks,
  )


def _from_hf(
  folder: str, model_type: str, field: str, whole: bool
) -> Pretrained:
  found = vocabulary.read(folder, model_type)
  if found is None:
    raise UsageError(
      f'{field}={folder}: has neither tokenizer.json nor vocab.json and '
      'merges.txt nor tokenizer.model; put its vocabulary there'
    )
  name, tokenizer = found
  model = hf.Source(folder).model

  def params() -> Any:
    params = hf.load(folder)[1]
    return params if whole else _pretrained_part(params)

  fields = {f: getattr(model, f) for f in hf.transformer_fields()}
  pooler = model.family.pooler
  scores = model.origin.kind in SCORING
  return Pretrained(
    *(buckets.shown(folder), fields, name, tokenizer, params, pooler, scores)
  )


def _pooler_of(config: Any) -> str:
  """That of a fine-tuned model, or what goes with a pre-trained one."""
  if tuned := config.get('finetune'):
    return tuned.pooler or 'tanh'
  return objectives.needs(config.objective.name).pooler


def _scores(config: Any) -> bool:
  needs = objectives.needs(config.objective.name)
  if needs.scored is not None:
    return needs.scored.output(config.model.context_length) > 0
  tuned = config.get('finetune') is not None
  name = spec.parse('objective.name', config.objective.name)[0].name
  return name == 'target' or not tuned


def _tasks_of(config: Any) -> dict[str, dict[str, Any]]:
  """See `Pretrained.tasks`."""
  if not config_tasks.several(config):
    return {}
  tuned = config.finetune
  return {
    name: {**section, 'scores': tuned.scores}
    for name, section in tuned.each.items()
  }


def _pretrained_part(params: Any, tasks: Collection[str] = ()) -> Any:
  """The run's model and a pooler: what a task has learned stays behind.

  The heads of several `tasks` do not: one of them may be gone on with.
  """
  left = ('heads',) if tasks else ('heads', 'parts')
  kept = {name: part for name, part in params.items() if name not in left}
  heads = params.get('heads', {})
  if 'pooler' in heads:
    kept['heads'] = {'pooler': heads['pooler']}
  return kept
