# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The model that a run learns from: `objective.teacher`.

Its folder is read when a run starts, once. From then on its section is in the
run's config.json and its parameters are in the run's checkpoints, so that a
resume needs the folder no more. Of a teacher whose outputs are on disk, see
`teaching`.
"""

import os
from typing import Any

import jax

from gpt_jax import config as config_lib
from gpt_jax import sharding
from gpt_jax.config import Config
from gpt_jax.data import teacher_outputs
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.objectives import choices as objectives
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import state as state_lib
from gpt_jax.training import trained as trained_lib
from gpt_jax.training.parts import Parts
from gpt_jax.training.pretrained import Pretrained, pretrained

_PART = 'teacher'
# How a model is computed: the run's choice, whatever its teacher was.
_COMPUTED = ('dtype', 'attention_backend', 'loop', 'remat', 'dropout')


def described(config: Config, workdir: str) -> Config:
  """The config with the section of its teacher as the folder has it.

  A config that says something else of it (for `inspect` and `plan`) was made
  for another teacher; what differs is logged.

  Args:
    config: as given, not resolved.
    workdir: of the run, whose config.json comes first where it has one.

  Raises:
    UsageError: the folder holds no model.
  """
  folder = config.get('objective', {}).get(_PART)
  if not folder:
    return config
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
    known = trained_lib.read_config(workdir)
  if known is not None and _PART in known.models:
    section = known.models[_PART].to_dict()
  else:
    section = found(folder).model
  assert section is not None, 'see found'
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


def check(config: Config) -> None:
  """Checks that a run with a teacher says where it is.

  Raises:
    UsageError: it does not.
  """
  name = config.objective.name
  needs = objectives.needs(name)
  if (needs.frozen or needs.stored) and not config.objective.teacher:
    give = (
      'a folder that gpt-jax teach wrote'
      if needs.stored
      else 'a workdir that train left, or a folder of Hugging Face'
    )
    raise UsageError(
      f'objective.teacher is empty: objective.name={name!r} learns from one; '
      f'give {give}'
    )


def first_state(parts: Parts, tokenizer: Tokenizer) -> TrainState:
  """The first state of a run, with its teacher where it has one.

  Args:
    parts: what is trained.
    tokenizer: of the run.

  Raises:
    UsageError: the teacher reads other tokens, or has other parameters than
      its section says.
  """
  if not parts.objective.frozen:
    return parts_lib.init_state(parts)
  folder = parts.config.objective.teacher
  source = found(folder)
  check_tokenizer(source, tokenizer, parts.config)
  key = jax.random.key(parts.config.seed)
  teacher = config_lib.transformer(parts.config, _PART)
  params = parameters(source, teacher)
  if params is None:
    raise UsageError(
      f'objective.teacher={folder}: holds other parameters than models.teacher '
      'describes; start again with another --workdir'
    )

  def init(key: jax.Array, params: Any) -> TrainState:
    made = state_lib.init_params(parts.objective, key)
    made = {**made, 'parts': {**made['parts'], _PART: params}}
    if parts.objective.start:
      made = parts.objective.start(made)
    return state_lib.make_init(
      parts.objective._replace(init=lambda _: made),
      parts.optimizer,
      parts.precision,
      parts.average,
    )(key)

  with sharding.use(parts.mesh, parts.rules):
    state = jax.jit(init, out_shardings=parts.shardings)(key, params)
  log.info('the teacher is %s', source.name)
  return state


def parameters(source: Pretrained, model: Transformer) -> Any:
  """What the model scores the vocabulary by; None: others are there."""
  assert source.params is not None, 'see found'
  wanted = jax.tree.map(lambda x: x.shape, parameter_shapes(model))
  params = {name: x for name, x in source.params().items() if name in wanted}
  same = jax.tree.map(lambda x: x.shape, params) == wanted
  return params if same else None


def check_tokenizer(
  source: Pretrained,
  tokenizer: Tokenizer,
  config: Config,
  field: str = 'objective.teacher',
) -> None:
  """Checks that a teacher reads the run's tokens.

  Raises:
    UsageError: it does not.
  """
  if source.tokenizer is None or (
    source.tokenizer.fingerprint != tokenizer.fingerprint
  ):
    raise UsageError(
      f'{field}={source.name}: its tokenizer, {source.tokenizer_name}, is not '
      f"the run's, {config.tokenizer.name}; give the teacher's tokenizer, or "
      'the token store that it was trained on as data.store'
    )


def computed(section: dict[str, Any], config: Config) -> dict[str, Any]:
  """A teacher's section, computed as the run computes its own model."""
  return section | {field: config.model[field] for field in _COMPUTED}


def found(folder: str, field: str = 'objective.teacher') -> Pretrained:
  """The model in a folder, which scores the vocabulary.

  Args:
    folder: a workdir, or one of Hugging Face.
    field: what names it, for errors.

  Raises:
    UsageError: there is none.
  """
  if folder == 'none':
    raise UsageError(
      f"{field}='none': holds no model; give a workdir that train left, or a "
      'folder of Hugging Face'
    )
  source = pretrained(folder, field)
  if not source.scores:
    raise UsageError(
      f'{field}={folder}: was not trained to score the vocabulary; give a '
      'causal or a masked language model'
    )
  return source
