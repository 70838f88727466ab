# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The methods of post-training: the calls that `finetune.task` can hold.

A method is a frozen dataclass whose fields are the arguments of its call, by
TRL's names where there are such. `prepare` turns its files into rows; the loop,
checkpoints and the rest are those of `train`: see `run`.
"""

from etils import epy

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.config import Config, defaults
from gpt_jax.spec import Table, UsageError

with epy.lazy_imports():
  from gpt_jax.posttraining import base

METHODS = Table(
  {
    'sft': 'gpt_jax.posttraining.sft:Sft',
    'reward': 'gpt_jax.posttraining.preferences:Reward',
    'dpo': 'gpt_jax.posttraining.preferences:DirectPreference',
    'grpo': 'gpt_jax.posttraining.policy:Grpo',
    'ppo': 'gpt_jax.posttraining.policy:Ppo',
  }
)


def of_config(config: Config, command: str) -> 'base.Method':
  """The method of a config, for the command of the method's name.

  Checks that the fields of `finetune` that are set are ones that it uses.
  """
  tuned = config.get('finetune')
  if tuned is None:
    raise UsageError(
      '--config: has no section finetune; start it from '
      f'configs/finetune/{command}.py'
    )
  (call,) = spec.parse('finetune.task', tuned.task)[:1]
  if call.name != command:
    raise UsageError(
      f'finetune.task={tuned.task!r}: gpt-jax {command} needs '
      f'{command}(...) here; give that, or run gpt-jax '
      f'{call.name if call.name in METHODS else "finetune"}'
    )
  method = spec.build('finetune.task', tuned.task, METHODS)
  usual = config_lib.flatten(defaults.finetune())
  for name, value in config_lib.flatten(tuned).items():
    if name not in method.reads and value != usual.get(name):
      raise UsageError(
        f'finetune.{name}={value!r}: {command} does not use it; leave it at '
        f'{usual.get(name)!r}'
      )
  return method


def with_files(config: Config, **paths: str | None) -> Config:
  """The config with other files in the call of its task.

  Args:
    **paths: by the argument of the method; None: as in the config.
  """
  given = {name: path for name, path in paths.items() if path is not None}
  if not given or config.get('finetune') is None:
    return config
  (call,) = spec.parse('finetune.task', config.finetune.task)[:1]
  names = [*paths]
  args = [
    given.pop(name, value)
    for name, value in zip(names, call.args, strict=False)
  ]
  args += call.args[len(names) :]
  call = call._replace(args=tuple(args), kwargs={**call.kwargs, **given})
  config = config_lib.unlocked(config)
  config.finetune.task = spec.written(call)
  return config.lock()
