# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The initial state of fine-tuning, from pre-trained parameters.

New rows of the token table, and parameters that are not transferred, are
initialised at random as in pre-training.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from gpt_jax.core import spec
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.parts import Parts
from gpt_jax.opening.models import Pretrained
from gpt_jax.tasks.registry import FORMS
from gpt_jax.tuning.objectives import adapters

# Number of lowest layers to transfer with the embeddings; None: everything; -1:
# nothing.
Amount = int | None


def everything() -> Amount:
  """Transfers all parameters."""
  return None


def nothing() -> Amount:
  """Transfers no parameters: the same model and tokenizer, from scratch."""
  return -1


def embeddings() -> Amount:
  """Transfers the embeddings of tokens and positions."""
  return 0


def lowest(count: int) -> Amount:
  """Transfers embeddings and the lowest `count` layers (GPT-1, figure 2)."""
  if count < 0:
    raise UsageError(f'finetune.transfer: layers({count}): must be at least 0')
  return count


def init_state(parts: Parts, params: Any, amount: Amount) -> TrainState:
  """The initial state of pre-trained parameters, sharded over the devices."""
  if params is None or amount == -1:
    return parts_lib.initial_state(parts)
  objective = parts.objective
  fresh = jax.eval_shape(objective.full, parts_lib.param_shapes(objective))
  check(fresh, params)
  masks = {}
  if amount is not None:
    moved = params_lib.lowest(fresh, amount, parts.model)
    masks = params_lib.flatten(moved)
  by_name = adapters.given(parts.config, params_lib.flatten(params))
  return parts_lib.initial_state(parts, by_name, masks)


def amount_of(tuned: Any) -> Amount:
  """The amount that a section `finetune` says."""
  return spec.build('finetune.transfer', tuned.transfer, TRANSFERS)


def with_heads(params: Any, tasks: Collection[str], alone: bool) -> Any:
  """Pre-trained parameters with only the heads of the given tasks.

  Args:
    params: pre-trained, possibly with `parts`: see `tuning.objectives.task`.
    tasks: tasks whose heads are kept.
    alone: whether a single task is trained.
  """
  shared = {name: part for name, part in params.items() if name != 'parts'}
  heads = {name: params['parts'][name] for name in tasks}
  if not heads:
    return shared
  if not alone:
    return {**shared, 'parts': heads}
  (head,) = heads.values()
  return {**shared, 'heads': {**shared.get('heads', {}), **head}}


def check(fresh: Any, params: Any) -> None:
  """Checks that pre-trained parameters fit the model."""
  new, old = params_lib.flatten(fresh), params_lib.flatten(params)
  wrong = [
    f'{name} is {old[name].shape}, not {leaf.shape}'
    for name, leaf in new.items()
    if name in old and not _fits(leaf.shape, old[name].shape)
  ]
  wrong += [
    f'{name} is missing'
    for name in new
    if name not in old and not name.startswith(('heads/', 'parts/'))
  ]
  if wrong:
    raise UsageError(f'--init: does not fit the model: {"; ".join(wrong)}')


def _fits(new: tuple[int, ...], old: tuple[int, ...]) -> bool:
  """Whether shapes are equal, or differ by new rows of a token table."""
  return new[1:] == old[1:] and new[:1] >= old[:1]


TRANSFERS: dict[str, Callable[..., Amount]] = {
  'all': everything,
  'none': nothing,
  'embeddings': embeddings,
  'layers': lowest,
}


# Choosing the head that a task continues with, from a model of several tasks.


def head_of(task: str, labels: Sequence[str], scores: str, init: Pretrained) -> str:
  """The task of `init` whose head a task continues with; '' if none.

  It is the published task of the same name, or the same call on the user's
  tables, with the same classes or scores.

  Args:
    task: `finetune.task`.
    labels: its classes; empty: it has scores.
    scores: `finetune.scores`.
    init: the pre-trained model.
  """
  name = spec.parse('finetune.task', task)[0].name
  for other, section in init.tasks.items():
    name_of_other = spec.parse('finetune.tasks', section['task'])[0].name
    same = task == section['task'] or (name == name_of_other and name not in FORMS)
    learned = section['labels'] or section['scores']
    if same and learned == ([*labels] or scores):
      return other
  return ''


def init_name(init: Pretrained, head: str) -> str:
  """The value of `finetune.init` for one task; `head` is from `head_of`."""
  return init.name + f', head of {head}' * bool(head)
