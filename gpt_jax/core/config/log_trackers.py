# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The trackers that `log.trackers` may name, which display a run's metrics.

  log.trackers = "tensorboard, wandb(project='gpt', mode='offline')"

`metrics.jsonl` is always written, and all our own tools read it; trackers get a
copy of its numbers. `training.report` opens them.
"""

from typing import Literal, NamedTuple

from gpt_jax.core import spec
from gpt_jax.core.spec import UsageError

FIELD = 'log.trackers'


class TensorBoard(NamedTuple):
  """TensorBoard's event files, in WORKDIR/tensorboard."""


class WandB(NamedTuple):
  """A run of Weights & Biases, with its files in WORKDIR/wandb.

  Args:
    project: the run's project.
    entity: user or team; '': the account's default.
    name: of the run; '': the name of the workdir.
    mode: 'online', or 'offline' for files that `wandb sync` uploads later; '':
      the environment variable WANDB_MODE, else online.
  """

  project: str
  entity: str = ''
  name: str = ''
  mode: Literal['', 'online', 'offline'] = ''


Tracker = TensorBoard | WandB


def load(text: str) -> list[Tracker]:
  """Reads `log.trackers`."""
  names = [call.name for call in spec.parse(FIELD, text)]
  found = spec.build_all(FIELD, text, TRACKERS)
  if len(names) > 1 and 'none' in names:
    raise UsageError(f"{FIELD}={text!r}: 'none' excludes other trackers; leave one out")
  if len({*names}) < len(names):
    raise UsageError(f'{FIELD}={text!r}: lists a tracker twice; list it once')
  if any(isinstance(x, WandB) and not x.project for x in found):
    raise UsageError(f"{FIELD}: project='' is empty; name a project of W&B")
  return [tracker for tracker in found if tracker is not None]


def none() -> None:
  """Only metrics.jsonl."""


TRACKERS = {'none': none, 'tensorboard': TensorBoard, 'wandb': WandB}
