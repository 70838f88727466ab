# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What each step of a run takes: rows, their length, its learning rate."""

import functools

from gpt_jax import spec
from gpt_jax.config.fields import Config
from gpt_jax.objectives import choices as objectives
from gpt_jax.optim import batch_ramp, schedules
from gpt_jax.optim.schedules import LAST_STEP, SCHEDULES, Ramp, Schedule, Stage
from gpt_jax.rows.batch_rows import Taken, TakenAt
from gpt_jax.rows.task_order import TaskOrder
from gpt_jax.spec import UsageError

# The steps of a run on several tasks: `finetune.tasks`.
#
# Each has rows of its own length. `finetune.each` has a section for each task:
# how many `examples` it has, and the `tokens` of one, all its sequences
# together.


def several(config: Config) -> bool:
  """Whether a resolved config, or one being resolved, is of several tasks."""
  tuned = config.get('finetune')
  return bool(tuned and tuned.get('each'))


def order_of_tasks(config: Config) -> TaskOrder:
  """Which examples of which task each step takes."""
  if type(config.batch.size) is not int:
    raise UsageError(
      f'batch.size={config.batch.size!r}: with several tasks all batches have '
      'the same number of examples; give one'
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
      f'schedule.num_steps={num_steps!r}: the rows of several tasks differ in '
      'length; give a number of steps, or leave it empty for finetune.epochs'
    )
  tuned = config.finetune
  order_of_tasks(config)  # what is amiss is told before anything is cached
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
  """Of tasks by name, examples and tokens: a stage for each run of steps."""
  found = TaskOrder(
    {name: examples for name, examples, _ in sizes},
    batch_size=batch_size,
    seed=seed,
    mixing=mixing,
  )
  lengths = {name: tokens for name, _, tokens in sizes}
  stages: list[Stage] = []
  consumed = 0
  for step in range(num_steps):
    task = found.step(step).task
    if not stages or stages[-1].task != task:
      rows = step * batch_size
      stages.append(
        Stage(step, batch_size, lengths[task], rows, consumed, task)
      )
    consumed += batch_size * lengths[task]
  return Ramp(tuple(stages))


def num_steps(config: Config) -> int:
  """The steps of the run: the last one begins before its tokens are reached."""
  given = config.schedule.num_steps
  if type(given) is int:
    return given
  found = ramp(config).step_at(schedules.parse('schedule.num_steps', given))
  if found > LAST_STEP:
    raise UsageError(
      f'schedule.num_steps={given!r}: are {found:,} steps, more than can be '
      'counted; give fewer'
    )
  return found


def ramp(config: Config) -> Ramp:
  """The rows of each step, and their length."""
  lengths = config.batch.get('length') or None  # older configs have none
  if lengths and config.get('finetune'):
    raise UsageError(
      f'batch.length={lengths!r}: fine-tuning has rows of finetune.length; '
      'leave it empty'
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
  """The learning rate of each step of a resolved config."""
  build = spec.build('schedule.name', config.schedule.name, SCHEDULES)
  return build(ramp(config), config.schedule.num_steps)


def warm_up_note(config: Config) -> str:
  """One line on a run that ends within its warm-up; '' if it does not."""
  text, steps = config.schedule.name, config.schedule.num_steps
  (call,) = spec.bind_all('schedule.name', text, SCHEDULES)
  warmup = call.kwargs['warmup']
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
  """Whether the stages begin at parts of `schedule.num_steps`."""
  texts = (config.batch.size, config.batch.get('length'))
  return any('%' in text for text in texts if isinstance(text, str))
