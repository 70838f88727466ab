# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A new run that starts from the parameters of another: `optim.start`.

It names a workdir or a Hugging Face folder. All parameters come from there but
those that `optim.drawn` names. A resumed run reads its own checkpoints, and
does not need the folder.
"""

import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from gpt_jax import hf
from gpt_jax.core import config as config_lib
from gpt_jax.core import spec
from gpt_jax.core.config import Config
from gpt_jax.core.files import files
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.core.training.origins import Origin
from gpt_jax.core.training.parts import Parts
from gpt_jax.hf.base import FOR_TRAINING
from gpt_jax.opening import importing, models
from gpt_jax.opening.models import Pretrained, open_model

# The tables of the vocabulary: rows are tokens.
_TABLES = ('embed', 'head')


def _check(config: Config, workdir: str) -> None:
  """Checks, before text is prepared, that the start exists and fits.

  Args:
    config: resolved.
    workdir: of the run; a run that it holds does not read the start.
  """
  optim = config.optim
  needs = objectives.needs(config.objective.name)
  if needs.frozen:
    raise UsageError(
      f'optim.start={optim.start!r}: objective.name={config.objective.name!r} '
      'starts from its teacher, or at random; leave it empty'
    )
  if needs.adds:
    raise UsageError(
      f'optim.start={optim.start!r}: objective.name={config.objective.name!r} '
      "stores the model's tables as differences, which no other run has; leave "
      "it empty, or share by 'es' or 'nes'"
    )
  if os.path.exists(os.path.join(workdir, 'config.json')):
    return
  source = open_model(optim.start, 'start', 'optim.start')
  if config.get('finetune') is None:
    _check_fits(config, source)


def _check_fits(config: Config, source: Pretrained) -> None:
  """Checks that a model fits its start.

  Only shapes are looked at. Where the tokenizer is yet to be trained it is
  taken to have the vocabulary of the start, without which no table fits.
  """
  optim = config.optim
  maker = tokenizer_lib.maker(config.tokenizer.name)
  if maker.sources and not config.model.source_vocab_size:
    return  # sources have a vocabulary that is not known yet
  assert source.model is not None, 'of a folder'
  config = config_lib.unlocked(config)
  for model in (config.model, *config.models.values()):
    if model.vocab_size is None:
      model.vocab_size = source.model['vocab_size']
  objective = config_lib.objective(config)
  shapes = parts_lib.param_shapes(objective)
  params_lib.check(shapes, optim.drawn, 'optim.drawn')
  drawn = params_lib.matching(shapes, optim.drawn)
  _check_shapes(optim.start, source.shapes(), shapes, drawn)


def _first_state(parts: Parts, tokenizer: Tokenizer) -> TrainState:
  """The first state, with the parameters of `optim.start`."""
  optim = parts.config.optim
  source = open_model(optim.start, 'start', 'optim.start')
  shapes = parts_lib.abstract_state(parts).params
  params_lib.check(shapes, optim.drawn, 'optim.drawn')
  drawn = params_lib.matching(shapes, optim.drawn)
  _check_tokenizer(parts, source, tokenizer, drawn)
  given = _taken(optim.start, source, shapes, drawn)
  _tell(parts, source, drawn)
  taken = {name: ~mask for name, mask in params_lib.flatten(drawn).items()}
  return parts_lib.initial_state(parts, given, taken)


def pretraining(source: Pretrained, field: str) -> dict[str, Any]:
  """Fields of a config that trains a model further, on other text.

  The objective is that of its run, or of an import. A decoder that was
  fine-tuned predicts the next token, and a student what its teacher did.

  Args:
    field: that names the folder, for errors.
  """
  given = f'{field}={source.folder}'
  path = os.path.join(hf.base_of(source.folder), 'config.json')
  if 'model_type' in files.read_json(path, remedy=workdir_lib.RESTORE):
    fields = importing.pretraining(hf.HeaderSource(source.folder), given)
    return {**fields, 'tokenizer.name': source.tokenizer_name}
  config = models.read_config(source.folder, field)
  fields = {'tokenizer.name': f'saved({source.folder!r})'}
  causal = ModelChoices.of(config.model).causal
  if tuned := config.get('finetune'):
    if source.scores and causal:
      return fields
    raise UsageError(
      f'{given}: was fine-tuned on {tuned.task}, and does not predict what its '
      'pre-training did; give the model that it was fine-tuned from'
    )
  for name in ('data.rows', 'data.sentences', 'objective.name'):
    section, _, key = name.partition('.')
    fields[name] = config[section][key]
  needs = objectives.needs(config.objective.name)
  if needs.frozen or needs.stored:
    return fields | {'objective.name': 'causal' if causal else 'masked'}
  parts = config_lib.flatten(config.models, 'models.')
  return fields | parts


def _check_tokenizer(parts: Parts, source: Pretrained, tokenizer: Tokenizer, drawn: Any) -> None:
  """Refuses token tables whose rows are not the run's tokens."""

  def are_drawn(name: str) -> bool:
    return all(mask.all() for mask in jax.tree.leaves(drawn.get(name, {})))

  theirs = source.tokenizer
  assert theirs is not None, 'of a folder'
  if theirs.fingerprint == tokenizer.fingerprint or all(map(are_drawn, _TABLES)):
    return
  # An encoder of sources that is initialized as a whole may read any tokens.
  if (
    'source' in drawn
    and are_drawn('source')
    and theirs.own_fingerprint == tokenizer.own_fingerprint
  ):
    return
  raise UsageError(
    f'optim.start={parts.config.optim.start!r}: its tokenizer, '
    f"{source.tokenizer_name}, is not the run's, "
    f"{parts.config.tokenizer.name}; give its tokenizer, or add 'embed/*' to "
    'optim.drawn'
  )


def _taken(start: str, source: Pretrained, shapes: Any, drawn: Any) -> dict[str, Any]:
  """The parameters that are taken from the start, by name."""
  assert source.params is not None, 'of a folder'
  found = params_lib.flatten(source.params())
  _check_shapes(start, found, shapes, drawn)
  taken = {}
  for name, mask in params_lib.flatten(drawn).items():
    value = found.pop(name, None)
    if not mask.all():
      taken[name] = value
  if found:
    left = sorted({name.split('/')[0] for name in found})
    log.warning(
      'optim.start=%s: %d of its arrays have no place in this model, in %s',
      start,
      len(found),
      ', '.join(left),
    )
  return taken


def _check_shapes(start: str, found: Mapping[str, Any], shapes: Any, drawn: Any) -> None:
  """Refuses a start that lacks a parameter, or has it in another shape."""
  masks, problems = params_lib.flatten(drawn), []
  for name, leaf in sorted(params_lib.flatten(shapes).items()):
    if masks[name].all():
      continue
    if name not in found:
      problems.append(f'lacks {name}')
    elif (theirs := np.shape(found[name])) != leaf.shape:
      problems.append(f'has {name} as {theirs}, not as {leaf.shape}')
  if problems:
    more = f' and {len(problems) - 1} others' if problems[1:] else ''
    raise UsageError(
      f'optim.start={start!r}: {problems[0]}{more}; take its model, as '
      f'--config=configs/continue.py:{start} does, or name the parameters to '
      'draw in optim.drawn'
    )


def _tell(parts: Parts, source: Pretrained, drawn: Any) -> None:
  """Logs what the run starts from, and how the models differ."""
  config = parts.config
  masks = jax.tree.leaves(drawn)
  log.info(
    'the parameters are those of %s; %d of %d arrays are initialized, at least in part',
    source.name,
    sum(bool(m.any()) for m in masks),
    len(masks),
  )
  differs = [
    f'{field}: {theirs!r} -> {config.model[field]!r}'
    for field, theirs in (source.model or {}).items()
    if field not in FOR_TRAINING and _other(field, theirs, config.model[field])
  ]
  if differs:
    log.warning(
      'optim.start=%s: its model is another one: %s', config.optim.start, '; '.join(differs)
    )


def _other(field: str, one: Any, other: Any) -> bool:
  if isinstance(one, str) and isinstance(other, str):
    return spec.parse(field, one) != spec.parse(field, other)
  return one != other


START = Origin(_check, _first_state)
