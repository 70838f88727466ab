# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""An optimizer of its own for each of the parts, which need not all step.

Of several tasks a step is of one; the heads of the others have no gradient. To
an optimizer a gradient of 0 is one more: moments and weights would decay, and
the bias correction would count it. Here what is not in the tree of gradients
is left as it is, moments and counts too.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import optax


class State(NamedTuple):
  """Optimizer states: of all that is no part, and of each part by name."""

  rest: Any
  parts: Mapping[str, Any]


def each_part(
  build: Callable[[Any], optax.GradientTransformation], axes: Any
) -> optax.GradientTransformation:
  """Gives the parts and the rest an optimizer each.

  Args:
    build: the logical axes of some parameters to their optimizer.
    axes: of all parameters, with `parts`.

  Returns:
    A transformation. Its updates are a tree without the parts that do not
    step, which keep their states; so are the parameters that it is given.
  """

  def made(axes: Any) -> optax.GradientTransformationExtraArgs:
    return optax.with_extra_args_support(build(axes))

  rest = made(_rest(axes))
  parts = {name: made(_part(axes, name)) for name in axes['parts']}

  def init(params: Any) -> Any:
    return State(
      rest.init(_rest(params)),
      {name: one.init(_part(params, name)) for name, one in parts.items()},
    )

  def update(updates: Any, state: Any, params: Any = None, **extra) -> Any:
    of_rest: Any = rest.update(
      _rest(updates), state.rest, _rest(params), **extra
    )
    found: dict[str, Any] = {}
    states = dict(state.parts)
    for name in updates['parts']:
      trees = _part(updates, name), state.parts[name], _part(params, name)
      one: Any = parts[name].update(*trees, **extra)
      found[name], states[name] = one[0]['parts'][name], one[1]
    return {**of_rest[0], 'parts': found}, State(of_rest[1], states)

  return optax.GradientTransformationExtraArgs(init, update)


def _rest(tree: Any) -> Any:
  return {name: x for name, x in tree.items() if name != 'parts'}


def _part(tree: Any, name: str) -> Any:
  """One part, under the names that it has in the whole."""
  return {'parts': {name: tree['parts'][name]}}
