# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rewards by a user's Python function, or by a reward model in a folder.

A function is named as FILE.py:FUNCTION. It is called as TRL's are,
function(prompts=..., completions=..., **columns): lists with an entry per
completion. A prompt is a text or a list of messages, as in the file; a
completion is a text, or a list with the assistant's message. Columns are the
other entries of the file's lines, by name, as far as the function takes them.
It returns a finite number for each completion.
"""

import importlib.util
import inspect
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from gpt_jax.posttraining.records import Content
from gpt_jax.posttraining.rewards import open_reward
from gpt_jax.posttraining.rollouts import Prompt, Reward
from gpt_jax.spec import UsageError


def load(name: str, prompts: Sequence[Prompt], template: str) -> Reward:
  """Loads a function or a model, and checks that the prompts suit it.

  Args:
    name: FILE.py:FUNCTION, or the folder of a reward model.
    prompts: of the run; each has the columns that the function requires.
    template: the chat template by which a reward model reads messages.
  """
  where = f'reward={name!r}'
  if os.path.isdir(name):
    model = open_reward(name, 'reward', template)
    return lambda contents, completions, columns: checked(
      where, model(contents, completions), len(completions)
    )
  file, _, function = name.rpartition(':')
  if not file.endswith('.py') or not function:
    raise UsageError(
      f'{where}: names no function and no folder; give FILE.py:FUNCTION, as in '
      "'rewards.py:accuracy', or a folder of gpt-jax reward"
    )
  spec = importlib.util.spec_from_file_location('gpt_jax_rewards', file)
  assert spec and spec.loader, file
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
  except Exception as e:  # anything that a user's file may raise
    raise UsageError(
      f'{where}: {file} does not load ({type(e).__name__}: {e}); mend it'
    ) from e
  found = getattr(module, function, None)
  if not callable(found):
    raise UsageError(
      f'{where}: {file} has no function {function}; name one of '
      + ', '.join(n for n, x in vars(module).items() if inspect.isfunction(x))
    )
  takes = inspect.signature(found).parameters
  everything = any(x.kind is x.VAR_KEYWORD for x in takes.values())
  for column, parameter in takes.items():
    if column in ('prompts', 'completions') or parameter.kind in (
      parameter.VAR_KEYWORD,
      parameter.VAR_POSITIONAL,
    ):
      continue
    if parameter.default is not parameter.empty:
      continue
    for prompt in prompts:
      if column not in prompt.columns:
        raise UsageError(
          f'{prompt.where}: has no column {column!r}, which {where} takes; add '
          'it, or give the argument a default'
        )

  def reward(
    contents: Sequence[Content],
    completions: Sequence[Content],
    columns: Mapping[str, list[Any]],
  ) -> np.ndarray:
    given = {n: x for n, x in columns.items() if everything or n in takes}
    if jax.process_index() > 0:  # a function may be random, or cost money
      scores = np.zeros(len(completions), np.float32)
      return multihost_utils.broadcast_one_to_all(scores)
    try:
      scores = found(prompts=contents, completions=completions, **given)
    except Exception as e:
      raise UsageError(
        f'{where}: raised {type(e).__name__}: {e}; mend it, and start again'
      ) from e
    scores = checked(where, scores, len(completions))
    return multihost_utils.broadcast_one_to_all(scores)

  return reward


def checked(where: str, scores: Any, count: int) -> np.ndarray:
  """The scores as float32 [count]; refuses any that are no finite number."""
  try:
    found = list(scores)
  except TypeError:
    found = None
  if found is None or len(found) != count:
    got = type(scores).__name__ if found is None else f'{len(found)} numbers'
    raise UsageError(
      f'{where}: returns {got} for {count} completions; return a list with one '
      'for each'
    )
  for i, x in enumerate(found):
    if not isinstance(x, numbers.Real | np.generic) or not math.isfinite(x):
      raise UsageError(
        f'{where}: gives completion {i} of {count} the reward {x!r}; return '
        'finite numbers'
      )
  return np.array(found, np.float32)
