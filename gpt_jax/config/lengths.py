# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows of each step of a run, their length, and its learning rate."""

import functools

from gpt_jax import spec
from gpt_jax.config.fields import Config
from gpt_jax.objectives import choices as objectives
from gpt_jax.optim import batch_ramp, schedules
from gpt_jax.optim.schedules import LAST_STEP, SCHEDULES, Ramp, Schedule, Stage
from gpt_jax.rows.batch_rows import BatchRows, RowsOfStep
from gpt_jax.rows.task_order import TaskOrder
from gpt_jax.spec import UsageError

# Runs on several tasks: `finetune.tasks`.
#
# Each task has its own row length. `finetune.each` has a section for each task:
# the number of `examples`, and the `tokens` of one, summed over its sequences.


def several(config: Config) -> bool:
  """Whether a config, resolved or being resolved, is of several tasks."""
  tuned = config.get('finetune')
  return bool(tuned and tuned.get('each'))


def order_of_tasks(config: Config) -> TaskOrder:
  """The task of each step, and its examples."""
  if type(config.batch.size) is not int:
    raise UsageError(
      f'batch.size={config.batch.size!r}: must be one number for a run on '
      'several tasks, without a ramp; give the examples per batch'
    )
  tuned = config.finetune
  return TaskOrder(
    {name: section.examples for name, section in tuned.each.items()},
    batch_size=config.batch.size,
    seed=config.seed,
    mixing=tuned.mixing,
  )


def ramp_of_tasks(config: Config) -> Ramp:
  """The rows of each step, their length and their task."""
  num_steps = config.schedule.num_steps
  if type(num_steps) is not int:
    raise UsageError(
      f'schedule.num_steps={num_steps!r}: must be a number of steps for a run '
      'on several tasks, whose rows differ in length; give one, or leave it '
      'empty to follow finetune.epochs'
    )
  tuned = config.finetune
  order_of_tasks(config)  # raises on errors before anything is cached
  sizes = tuple((n, s.examples, s.tokens) for n, s in tuned.each.items())
  return _ramp(sizes, config.batch.size, config.seed, tuned.mixing, num_steps)


@functools.lru_cache(maxsize=4)
def _ramp(
  sizes: tuple[tuple[str, int, int], ...],
  batch_size: int,
  seed: int,
  mixing: str,
  num_steps: int,
) -> Ramp:
  """The ramp of tasks (name, examples, tokens): a stage per run of steps."""
  order = TaskOrder(
    {name: examples for name, examples, _ in sizes},
    batch_size=batch_size,
    seed=seed,
    mixing=mixing,
  )
  lengths = {name: tokens for name, _, tokens in sizes}
  stages: list[Stage] = []
  consumed = 0
  for step in range(num_steps):
    task = order.step(step).task
    if not stages or stages[-1].task != task:
      rows = step * batch_size
      stages.append(
        Stage(step, batch_size, lengths[task], rows, consumed, task)
      )
    consumed += batch_size * lengths[task]
  return Ramp(tuple(stages))


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
      f'batch.length={lengths!r}: fine-tuning takes its length from '
      'finetune.length; leave it empty'
    )
  if several(config):
    return ramp_of_tasks(config)
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
