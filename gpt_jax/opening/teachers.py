# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The teacher of a run: `objective.teacher`.

Its folder is read once, when a run starts. From then on its section is in the
run's config.json and its parameters are in the run's checkpoints, so a resume
does not need the folder. For a teacher whose outputs are on disk, see
`opening.teaching`.
"""

import os
from typing import Any

import jax

from gpt_jax.core import config as config_lib
from gpt_jax.core.config import Config
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn.transformer import Transformer, parameter_shapes
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.core.training.origins import Origin
from gpt_jax.core.training.parts import Parts
from gpt_jax.opening.models import Pretrained, computed, open_model
from gpt_jax.papers.distilbert import teacher_outputs

_PART = 'teacher'


def described(config: Config, workdir: str) -> Config:
  """The config with its teacher's section filled in from the folder.

  If the config describes another teacher (for `inspect` and `plan`), the
  differences are logged.

  Args:
    config: as given, not resolved.
    workdir: of the run; if it has a config.json, that takes precedence.
  """
  folder = config.objective.teacher
  needs = objectives.needs(config.objective.name)
  outputs = teacher_outputs.read(folder) if needs.stored else None
  if outputs and config.model.vocab_size is None:
    config = config_lib.unlocked(config)
    config.model.vocab_size = outputs.vocab_size
    return config.lock()
  if not needs.frozen:
    return config
  config = config_lib.unlocked(config)
  known = None
  if os.path.exists(os.path.join(workdir, 'config.json')):
    known = workdir_lib.read_config(workdir)
  if known is not None and _PART in known.models:
    section = known.models[_PART].to_dict()
  else:
    section = open_model(folder, 'teach', f'objective.{_PART}').model
  assert section is not None, 'of a folder'
  given = {**config.model, **config.models.get(_PART, {})}
  section = computed(section, config)
  if config.models.get(_PART):
    differs = [
      f'{field}: {given[field]!r} -> {value!r}'
      for field, value in section.items()
      if given[field] is not None and given[field] != value
    ]
    if differs:
      log.info('models.teacher is as in %s: %s', folder, '; '.join(differs))
  config.models[_PART] = section
  if config.model.vocab_size is None:
    config.model.vocab_size = section['vocab_size']
  return config.lock()


def parameters(source: Pretrained, model: Transformer) -> Any:
  """The parameters of the language model; None: the tree does not match."""
  assert source.params is not None, 'of a folder'
  wanted = jax.tree.map(lambda x: x.shape, parameter_shapes(model))
  params = {name: x for name, x in source.params().items() if name in wanted}
  same = jax.tree.map(lambda x: x.shape, params) == wanted
  return params if same else None


def check_tokenizer(
  source: Pretrained, tokenizer: Tokenizer, config: Config, field: str = 'objective.teacher'
) -> None:
  """Checks that a teacher reads the run's tokens."""
  if source.tokenizer is None or (source.tokenizer.fingerprint != tokenizer.fingerprint):
    raise UsageError(
      f'{field}={source.name}: its tokenizer, {source.tokenizer_name}, is not '
      f"the run's, {config.tokenizer.name}; give the teacher's tokenizer, or "
      'the token store that it was trained on as data.store'
    )


def _check(config: Config, workdir: str) -> None:
  """Checks that a run with a teacher names the teacher's folder."""
  del workdir
  name = config.objective.name
  if not config.objective.teacher:
    give = (
      'a folder that gpt-jax teach wrote'
      if objectives.needs(name).stored
      else 'a workdir that train left, or a folder of Hugging Face'
    )
    raise UsageError(
      f'objective.teacher is empty: objective.name={name!r} learns from one; give {give}'
    )


def _first_state(parts: Parts, tokenizer: Tokenizer) -> TrainState | None:
  """The first state with the teacher's parameters; None: they are not read."""
  if not parts.objective.needs.frozen:
    return None
  folder = parts.config.objective.teacher
  source = open_model(folder, 'teach', f'objective.{_PART}')
  check_tokenizer(source, tokenizer, parts.config)
  params = parameters(source, config_lib.transformer(parts.config, _PART))
  if params is None:
    raise UsageError(
      f'objective.teacher={folder}: holds other parameters than models.teacher '
      'describes; start again with another --workdir'
    )
  log.info('the teacher is %s', source.name)
  given = params_lib.flatten({'parts': {_PART: params}})
  return parts_lib.initial_state(parts, given)


TEACHER = Origin(_check, _first_state, described)
