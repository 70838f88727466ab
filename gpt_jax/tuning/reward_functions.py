# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rewards by a user's Python function, or by a reward model in a folder.

A function is named as FILE.py:FUNCTION. It is called as TRL's are,
function(prompts=..., completions=..., **columns): lists with an entry per
completion. A prompt is a text or a list of messages, as in the file; a
completion is a text, or a list with the assistant's message. Columns are the
other entries of the file's lines, by name, as far as the function takes them;
where a line lacks one, its entry is None. All of these are copies, which the
function may change. It returns a number for each completion.
"""

import copy
import importlib.util
import inspect
import math
import numbers
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from gpt_jax.core.spec import UsageError, shown
from gpt_jax.tuning.records import Content
from gpt_jax.tuning.rewards import open_reward
from gpt_jax.tuning.rollouts import Reward, RolloutPrompt

# The largest reward.
_MOST = float(np.finfo(np.float32).max)


def load(name: str, prompts: Sequence[RolloutPrompt], template: str) -> Reward:
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
  user_function = _function(where, file, function)
  try:
    takes = inspect.signature(user_function).parameters
  except (TypeError, ValueError) as e:  # of a function that is not in Python
    raise UsageError(
      f'{where}: the arguments of {function} are not known ({e}); name a function that calls it'
    ) from e
  everything = any(x.kind is x.VAR_KEYWORD for x in takes.values())
  _check_columns(where, takes, prompts)

  def reward(
    contents: Sequence[Content], completions: Sequence[Content], columns: Mapping[str, list[Any]]
  ) -> np.ndarray:
    arguments = {n: x for n, x in columns.items() if everything or n in takes}
    arguments |= {'prompts': contents, 'completions': completions}
    # One by one: completions of a prompt share its entries.
    arguments = {n: [*map(copy.deepcopy, x)] for n, x in arguments.items()}
    count = len(completions)
    if jax.process_index() > 0:  # a function may be random, or cost money
      scores = np.zeros(count, np.float32)
      return multihost_utils.broadcast_one_to_all(scores)
    try:
      scores = user_function(**arguments)
      if isinstance(scores, Iterator):  # it runs the user's code, too
        scores = [*scores]
    except (Exception, SystemExit) as e:
      raise UsageError(f'{where}: raised {type(e).__name__}: {e}; mend it, and start again') from e
    scores = checked(where, scores, count)
    return multihost_utils.broadcast_one_to_all(scores)

  return reward


def _check_columns(
  where: str, takes: Mapping[str, inspect.Parameter], prompts: Sequence[RolloutPrompt]
) -> None:
  """Checks that the prompts have the columns that a function requires."""
  arguments = 'prompts', 'completions'
  required = [
    name
    for name, parameter in takes.items()
    if name not in arguments
    and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    and parameter.default is parameter.empty
  ]
  for prompt in prompts:
    for column in required:
      if column not in prompt.columns:
        raise UsageError(
          f'{prompt.where}: has no column {column!r}, which {where} takes; add '
          'it, or give the argument a default'
        )
    for column in arguments:
      if column in prompt.columns:
        raise UsageError(
          f'{prompt.where}: has a column {column!r}, and a reward function '
          'takes something else by this name; rename the column'
        )


def _function(where: str, file: str, name: str) -> Callable[..., Any]:
  """The function of that name in a user's file, which is run."""
  if not os.path.isfile(file):
    raise UsageError(
      f'{where}: {file} does not load (no such file); give another with '
      '--reward, or as reward in finetune.task'
    )
  spec = importlib.util.spec_from_file_location('gpt_jax_rewards', file)
  assert spec and spec.loader, file
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
  except (Exception, SystemExit) as e:  # anything that a user's file may raise
    raise UsageError(f'{where}: {file} does not load ({type(e).__name__}: {e}); mend it') from e
  function = vars(module).get(name)
  if not callable(function):
    raise UsageError(
      f'{where}: {file} has no function {name}; name one of '
      + ', '.join(n for n, x in vars(module).items() if inspect.isfunction(x))
    )
  return function


def checked(where: str, scores: Any, count: int) -> np.ndarray:
  """The scores as float32 [count]; refuses any that are no finite number."""
  try:
    # Neither has an order that is known to be the completions'.
    unordered = isinstance(scores, Mapping | Set)
    listed = None if unordered else [*scores]
  except TypeError:
    listed = None
  if listed is None or len(listed) != count:
    got = type(scores).__name__ if listed is None else f'{len(listed)} numbers'
    raise UsageError(
      f'{where}: returns {got} for {count} completions; return a list with one for each'
    )
  numbers_N = np.array([_number(x) for x in listed], np.float32)
  for i, x in enumerate(listed):
    if not math.isfinite(numbers_N[i]):
      raise UsageError(
        f'{where}: gives completion {i} of {count} the reward {shown(x)}; '
        'return real numbers that are finite in float32'
      )
  return numbers_N


def _number(value: Any) -> float:
  """A real number in float32's range; NaN for anything else."""
  if not isinstance(value, numbers.Real | np.bool_):
    return math.nan
  try:
    number = float(value)
  except (TypeError, OverflowError):  # a time of NumPy; a number beyond float64
    return math.nan
  return number if abs(number) <= _MOST else math.nan
