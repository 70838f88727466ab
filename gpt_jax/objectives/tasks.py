# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several tasks with one model: MT-DNN (Liu et al., 2019), section 3.

Embeddings, layers and the pooler are shared; what is above them each task has
for itself, in `params['parts'][TASK]`. A batch is of one task, and its loss is
that of the task alone (algorithm 1): equation 6 for classes, 7 for scores, and
8 for ranking, which is `choice` with gamma = 1 (gamma would only scale the
learned scores). Section 3.1 has a stochastic answer network above pairs of
texts; here their head is linear, as of a single text.
"""

import functools
from typing import Any, NoReturn

import jax

from gpt_jax import spec
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.base import Batch, Declared, Loss, Objective, Params
from gpt_jax.objectives.task import choice, classification, regression
from gpt_jax.spec import Pair, UsageError

# Of a head's layers those that all tasks share.
_SHARED = ('pooler',)
OF_TASKS = {
  'choice': choice,
  'classification': classification,
  'regression': regression,
}


def tasks(*each: Pair) -> Declared:
  """A model and a head for each task.

  Args:
    *each: by the name of a task, the call of its objective, one of `OF_TASKS`.
  """
  declared: dict[str, Declared] = {
    pair.key: spec.build(
      f'objective.name: tasks: {pair.key}', pair.value, OF_TASKS
    )
    for pair in each
  }
  if not each or len(declared) < len(each):
    raise UsageError(
      'objective.name: tasks: give each task once, by its name, as in '
      'tasks(rte:"classification(num_labels=2, length=96)")'
    )

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    del tokenizer
    alone = {name: one(model) for name, one in declared.items()}

    def init(key: jax.Array) -> Params:
      return _init(alone, key)

    def of(name: str) -> Objective:
      return Objective(
        make_batch=None,
        init=init,
        loss=functools.partial(_loss, alone[name], name),
        example=alone[name].example,
        outputs=functools.partial(_outputs, alone[name], name),
        frozen=tuple(other for other in alone if other != name),
      )

    return Objective(
      make_batch=None,
      init=init,
      loss=_no_loss,
      tasks=tuple((name, of(name)) for name in alone),
    )

  (needs, *others) = (one.needs for one in declared.values())
  if any(other.attention != needs.attention for other in others):
    raise UsageError(
      'objective.name: tasks: some read the first token and some the last, '
      "which no model does; give all the same read='...'"
    )
  return Declared(needs, build)


def of_task(params: Params, name: str) -> Params:
  """The parameters that a task alone would have."""
  own = {n: x for n, x in params.items() if n != 'parts'}
  heads = {**params.get('heads', {}), **params['parts'][name]}
  return {**own, 'heads': heads}


def own_head(heads: Any) -> Any:
  """Of the head of a task alone, what is not shared."""
  return {name: x for name, x in heads.items() if name not in _SHARED}


def _init(alone: dict[str, Objective], key: jax.Array) -> Params:
  """The first task's parameters, as if it were alone, and the others' heads."""
  params: Params = {}
  parts = {}
  for i, (name, objective) in enumerate(alone.items()):
    # No two heads of one shape start the same. What is not used of the others
    # is not computed.
    found = objective.init(jax.random.fold_in(key, i) if i else key)
    parts[name] = own_head(found['heads'])
    if not i:
      shared = {n: x for n, x in found['heads'].items() if n in _SHARED}
      params = {n: x for n, x in found.items() if n != 'heads'}
      params |= {'heads': shared} if shared else {}
  return {**params, 'parts': parts}


def _loss(
  task: Objective,
  name: str,
  params: Params,
  batch: Batch,
  key: jax.Array | None,
) -> Loss:
  return task.loss(of_task(params, name), batch, key)


def _outputs(
  task: Objective, name: str, params: Params, batch: Batch
) -> jax.Array:
  assert task.outputs is not None
  return task.outputs(of_task(params, name), batch)


def _no_loss(params: Params, batch: Batch, key: jax.Array | None) -> NoReturn:
  raise AssertionError('a batch is of one task: ask for `Objective.of(task)`')
