# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The models of a config: the run's own, and the named parts beside it.

`config.model` is the model that a run is for. `config.models` has a section
for each other that its objective trains with it (ELECTRA's generator). Such a
section states what differs from `config.model`; resolved, it has all fields.
"""

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from gpt_jax import sharding, spec
from gpt_jax.config.fields import Config, unlocked
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.embed import INPUTS
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import choices as objectives
from gpt_jax.objectives.base import Objective
from gpt_jax.spec import UsageError


def complete(config: Config) -> None:
  """Gives each part the fields of `config.model` that it does not state.

  A teacher whose outputs are on disk is no model of the run.
  """
  if 'teacher' in config.models and _stored(config):
    del config.models.teacher
  for name, part in config.models.items():
    config.models[name] = ConfigDict({**config.model, **part})


def _stored(config: Config) -> bool:
  """Whether the objective reads a teacher's outputs."""
  return objectives.needs(config.objective.name).stored is not None


def of_part(config: Config, name: str) -> Config:
  """The config with the section of a part as its `model`; '': as it is."""
  if not name:
    return config
  changed = unlocked(config)
  changed.model = changed.models[name]
  changed.models = ConfigDict()
  return changed.lock()


def width(config: Config) -> int:
  """The most devices of `fsdp` that what all models split over `embed` has.

  Other axes that split it have their share.
  """
  widths = []
  for model in (config.model, *config.models.values()):
    found = spec.build('model.input', model.input, INPUTS)
    widths += [model.d_model, found.d_embed]
    if clusters := found.clusters:
      widths += [
        clusters.d_embed // clusters.div_val**i
        for i in range(len(clusters.cutoffs) + 1)
      ]
  axes = dict(sharding.parse_rules(config.mesh.rules))['embed']
  # Sizes below 1 are left to `make_mesh`, which fills or refuses them.
  others = (max(config.mesh[axis], 1) for axis in axes if axis != 'fsdp')
  return max(1, math.gcd(*widths) // math.prod(others))


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
  """Errors about `model.x` inside are about the part's `models.NAME.x`."""
  try:
    yield
  except UsageError as e:
    if not name:
      raise
    text = re.sub(r'\bmodel\.', f'models.{name}.', str(e))
    raise UsageError(text) from e


def transformer(config: Config, name: str = '') -> Transformer:
  """The model of a part; '': the run's own."""
  section: Any = config.models[name] if name else config.model
  return Transformer(**section)


def objective(config: Config, tokenizer: Tokenizer | None = None) -> Objective:
  """The objective of a resolved config, with all its models.

  Args:
    config: resolved, with its vocabulary.
    tokenizer: see `objectives.base.Declared`.

  Raises:
    UsageError: the objective cannot train these models.
  """
  return objectives.build(
    config.objective.name,
    transformer(config),
    tokenizer,
    {name: transformer(config, name) for name in config.models},
  )
