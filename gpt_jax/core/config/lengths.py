# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows of each step of a run, their length, and its learning rate."""

from gpt_jax.core import spec
from gpt_jax.core.config.fields import Config
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.optim import batch_ramp, schedules
from gpt_jax.core.optim.schedules import LAST_STEP, SCHEDULES, Ramp, Schedule
from gpt_jax.core.rows.batch_rows import BatchRows, RowsOfStep
from gpt_jax.core.spec import UsageError


def num_steps(config: Config) -> int:
  """Number of steps; the last one begins before all tokens are consumed."""
  given = config.schedule.num_steps
  if type(given) is int:
    return given
  steps = ramp(config).step_at(schedules.parse('schedule.num_steps', given))
  if steps > LAST_STEP:
    raise UsageError(
      f'schedule.num_steps={given!r}: gives {steps:,} steps, more than the '
      f'maximum of {LAST_STEP:,}; give fewer'
    )
  return steps


def ramp(config: Config) -> Ramp:
  """The rows of each step, and their length."""
  lengths = config.batch.get('length') or None  # older configs have none
  if lengths and config.get('finetune'):
    raise UsageError(
      f'batch.length={lengths!r}: fine-tuning takes its length from finetune.length; leave it empty'
    )
  tuned = config.get('finetune')
  if tuned and tuned.get('each'):  # several tasks
    mixing = spec.build('finetune.mixing', tuned.mixing, batch_ramp.MIXINGS)
    return mixing.ramp(config)
  return batch_ramp.build(
    config.batch.size,
    lengths,
    row_tokens=_longest(config),
    num_steps=config.schedule.num_steps,
    text_length=objectives.needs(config.objective.name).text_length,
  )


def order(ramp: Ramp) -> RowsOfStep:
  """Step -> its rows in the run, if none are left out."""
  return lambda step: BatchRows(*ramp.batch(step))


def row_tokens(config: Config) -> int:
  """The most tokens of text in one row of a batch."""
  needs = objectives.needs(config.objective.name)
  return needs.text_length(_longest(config))


def sides(config: Config, length: int) -> tuple[int, int]:
  """See `objectives.base.Needs.sides`."""
  return objectives.needs(config.objective.name).sides(length)


def _longest(config: Config) -> int:
  """The most tokens of one row that the model, or its encoder, reads."""
  # A fine-tuned example may be several sequences, shorter than the context.
  tuned = config.get('finetune')
  if tuned and tuned.length:
    return tuned.length * tuned.sequences
  return config.model.context_length


def schedule(config: Config) -> Schedule:
  """The learning rate of each step of a resolved config."""
  build = spec.build('schedule.name', config.schedule.name, SCHEDULES)
  return build(ramp(config), config.schedule.num_steps)


def warm_up_note(config: Config) -> str:
  """A warning about a run that ends within its warm-up; '' if it does not."""
  text, steps = config.schedule.name, config.schedule.num_steps
  (call,) = spec.bind_all('schedule.name', text, SCHEDULES)
  warmup = call.kwargs.get('warmup', 0)
  length, run = schedules.parse('warmup', warmup), ramp(config)
  done = run.tokens(steps) if length.unit == 'tokens' else steps
  if length.count <= done:
    return ''
  return (
    f'schedule.num_steps={steps}: ends within the warm-up of {length.count:,} '
    f'{length.unit} of schedule.name={text!r}, at {done / length.count:.1%} of '
    'the peak rate; lower warmup, or train for longer'
  )


def in_percent(config: Config) -> bool:
  """Whether stages begin at percentages of `schedule.num_steps`."""
  texts = (config.batch.size, config.batch.get('length'))
  return any('%' in text for text in texts if isinstance(text, str))
