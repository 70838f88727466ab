# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A student that starts as some layers of its teacher."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.nn.pattern import period
from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.objectives.base import Params
from gpt_jax.spec import UsageError


def copied(
  params: Params,
  teacher_params: Params,
  model: Transformer,
  teacher: Transformer,
  layers: Sequence[int],
) -> Params:
  """A model's parameters with those of a teacher in their places.

  All that stands outside the layers (embeddings, norms, the output) is the
  teacher's, and layer i is the teacher's layer layers[i]. What only the
  teacher has (token types) is left out.

  Args:
    params: of the model, maybe with heads and parts, which stay.
    teacher_params: of the teacher.
    model: the student.
    teacher: see above.
    layers: one for each of the model's.
  """
  size, of_teacher = _period(model), _period(teacher)
  blocks = teacher_params['decoder']['periods']
  periods = {}
  for place in range(size):
    taken = [
      # Bound now: the layer of one turn of the loop.
      jax.tree.map(lambda x, n=n: x[n // of_teacher], block)
      for n in layers[place::size]
      for block in (blocks[f'block_{n % of_teacher}'],)
    ]
    periods[f'block_{place}'] = jax.tree.map(lambda *x: jnp.stack(x), *taken)
  own = {*parameter_shapes(model)} - {'decoder'}
  outside = {name: teacher_params[name] for name in own}
  return {**params, **outside, 'decoder': {'periods': periods}}


def check(
  model: Transformer, teacher: Transformer, layers: Sequence[int]
) -> None:
  """Checks that a student can start as layers of its teacher.

  Raises:
    UsageError: names the field.
  """
  given = f'objective.name: layers={tuple(layers)}'
  wrong = [n for n in layers if not 0 <= n < teacher.num_layers]
  if wrong:
    raise UsageError(
      f'{given}: the teacher has no layer {wrong[0]}; give layers from 0 to '
      f'{teacher.num_layers - 1}'
    )
  if len(layers) != model.num_layers:
    raise UsageError(
      f'{given}: are {len(layers)}, but model.num_layers={model.num_layers}; '
      'name one of the teacher for each, or none to start at random'
    )
  for field, shares in (
    ('model', model.share),
    ('models.teacher', teacher.share),
  ):
    if shares != 'none':
      raise UsageError(
        f'{field}.share={shares!r}: layers that share parameters are not '
        'copied one by one; leave layers out of objective.name'
      )
  ours, theirs = parameter_shapes(model), parameter_shapes(teacher)
  if missing := sorted(ours.keys() - theirs.keys()):
    raise UsageError(
      f'{given}: the teacher has no {missing[0]}; make model like '
      'models.teacher, or leave layers out'
    )
  found: Any = jax.eval_shape(
    lambda a, b: copied(a, b, model, teacher, layers), ours, theirs
  )
  if differs := _difference(ours, found):
    raise UsageError(
      f'{given}: {differs} in the teacher; make model as wide as '
      'models.teacher, or leave layers out'
    )


def _difference(ours: Params, found: Params) -> str:
  """The first parameter that is another one than the model's."""
  shapes = [
    {
      jax.tree_util.keystr(path, simple=True, separator='/'): x.shape
      for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }
    for tree in (ours, found)
  ]
  for name in sorted({*shapes[0], *shapes[1]}):
    a, b = (s.get(name, 'missing') for s in shapes)
    if a != b:
      return f'{name} is {a} in the model and {b}'
  return ''


def _period(model: Transformer) -> int:
  return len(period(model.attention, model.ffn, model.share))
