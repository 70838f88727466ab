# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What each step of a run takes: rows, their length, its learning rate."""

from gpt_jax import spec
from gpt_jax.config import tasks
from gpt_jax.config.fields import Config
from gpt_jax.data.taken import Taken, TakenAt
from gpt_jax.objectives import choices as objectives
from gpt_jax.optim import amount, batch_ramp
from gpt_jax.optim.clock import LAST_STEP
from gpt_jax.optim.consumption import Ramp
from gpt_jax.optim.schedules import SCHEDULES, Schedule
from gpt_jax.spec import UsageError


def num_steps(config: Config) -> int:
  """The steps of the run: the last one begins before its tokens are reached.

  Raises:
    UsageError: the field is no length, or the batch no ramp.
  """
  given = config.schedule.num_steps
  if type(given) is int:
    return given
  found = ramp(config).step_at(amount.parse('schedule.num_steps', given))
  if found > LAST_STEP:
    raise UsageError(
      f'schedule.num_steps={given!r}: are {found:,} steps, more than can be '
      'counted; give fewer'
    )
  return found


def ramp(config: Config) -> Ramp:
  """The rows of each step, and their length.

  Raises:
    UsageError: `batch.size` or `batch.length` makes no sense.
  """
  lengths = config.batch.get('length') or None  # older configs have none
  if lengths and config.get('finetune'):
    raise UsageError(
      f'batch.length={lengths!r}: fine-tuning has rows of finetune.length; '
      'leave it empty'
    )
  if tasks.several(config):
    return tasks.ramp(config)
  return batch_ramp.build(
    config.batch.size,
    lengths,
    row_tokens=_longest(config),
    num_steps=config.schedule.num_steps,
    text_length=objectives.needs(config.objective.name).text_length,
  )


def order(ramp: Ramp) -> TakenAt:
  """The rows of the run that each step takes, if none are left out."""
  return lambda step: Taken(*ramp.batch(step))


def row_tokens(config: Config) -> int:
  """Tokens of text that one row of a batch has, at most."""
  needs = objectives.needs(config.objective.name)
  return needs.text_length(_longest(config))


def sides(config: Config, length: int) -> tuple[int, int]:
  """See `objectives.base.Needs.sides`."""
  return objectives.needs(config.objective.name).sides(length)


def _longest(config: Config) -> int:
  """Tokens that one row of a batch brings to the model, or to its encoder."""
  # A fine-tuned example may be several sequences, shorter than the context.
  tuned = config.get('finetune')
  if tuned and tuned.length:
    return tuned.length * tuned.sequences
  return config.model.context_length


def schedule(config: Config) -> Schedule:
  """The learning rate of each step of a resolved config.

  Raises:
    UsageError: its lengths do not fit the run.
  """
  build = spec.build('schedule.name', config.schedule.name, SCHEDULES)
  return build(ramp(config), config.schedule.num_steps)


def warm_up_note(config: Config) -> str:
  """One line on a run that ends within its warm-up; '' if it does not."""
  text, steps = config.schedule.name, config.schedule.num_steps
  (call,) = spec.bind_all('schedule.name', text, SCHEDULES)
  warmup = call.kwargs['warmup']
  length, run = amount.parse('warmup', warmup), ramp(config)
  done = run.tokens(steps) if length.unit == 'tokens' else steps
  if length.count <= done:
    return ''
  return (
    f'schedule.num_steps={steps}: ends within the warm-up of {length.count:,} '
    f'{length.unit} of schedule.name={text!r}, at {done / length.count:.1%} of '
    'the peak rate; lower warmup, or train for longer'
  )


def in_percent(config: Config) -> bool:
  """Whether the stages begin at parts of `schedule.num_steps`."""
  texts = (config.batch.size, config.batch.get('length'))
  return any('%' in text for text in texts if isinstance(text, str))
