# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the first parameters of a run come from, if not from its seed."""

from collections.abc import Callable
from typing import NamedTuple

from gpt_jax.core.config import Config
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.spec import Table, UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.parts import Parts

# By the field that names it, in the order in which they are asked.
ORIGINS = Table({}, 'origin')


class Origin(NamedTuple):
  """Where the parameters of a new run come from, in part or all of them.

  Attributes:
    check: checks a resolved config, before text is prepared, with the workdir
      of the run.
    first_state: the first state; None: it has no parameters for this run.
    described: completes a config that is not resolved, with the workdir.
  """

  check: Callable[[Config, str], None]
  first_state: Callable[[Parts, Tokenizer], TrainState | None]
  described: Callable[[Config, str], Config] = lambda config, workdir: config


def _named(config: Config) -> list[Origin]:
  """The origins that a config names."""
  optim, needs = config.optim, objectives.needs(config.objective.name)
  asked = {
    'optim.vectors': optim.vectors,
    'optim.start': optim.start,
    'objective.teacher': needs.frozen or needs.stored,
  }
  return [ORIGINS[field] for field in ORIGINS if asked[field]]


def described(config: Config, workdir: str) -> Config:
  """The config, not resolved, with what its teacher's folder says of it."""
  if not config.get('objective', {}).get('teacher'):
    return config
  return ORIGINS['objective.teacher'].described(config, workdir)


def check(config: Config, workdir: str) -> None:
  """Checks, before text is prepared, what a resolved config starts from."""
  optim = config.optim
  if optim.drawn and not optim.start:
    raise UsageError(
      f'optim.drawn={optim.drawn!r}: without optim.start all parameters are '
      'initialized at random; set optim.start, or leave optim.drawn empty'
    )
  for origin in _named(config):
    origin.check(config, workdir)


def first_state(parts: Parts, tokenizer: Tokenizer) -> TrainState:
  """The first state of a run, from its origin or from its seed."""
  for origin in _named(parts.config):
    state = origin.first_state(parts, tokenizer)
    if state is not None:
      return state
  return parts_lib.initial_state(parts)
