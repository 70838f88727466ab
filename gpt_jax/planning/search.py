# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Searches meshes, rematerialisation and micro-batches; ranks what fits."""

import time
from collections.abc import Callable
from typing import Any

import jax

from gpt_jax.planning import compile as compile_lib
from gpt_jax.planning import layouts, suggestions
from gpt_jax.planning.compile import TooLarge
from gpt_jax.planning.plans import (
  Note,
  Plan,
  Request,
  compile_plan,
  overrides,
  shown,
)
from gpt_jax.planning.sizes import Sizes
from gpt_jax.spec import UsageError


def search(
  request: Request,
  note: Note,
  *,
  most: int = 12,
  clock: Callable[[], float] = time.monotonic,
) -> tuple[list[Plan], int]:
  """Compiles the most promising variants and ranks those that fit.

  Args:
    request: what to plan; its open fields are varied.
    note: called with progress messages, including the time left.
    most: maximum number of programs to compile.
    clock: returns seconds.

  Returns:
    The plans, of the last stage only, sorted by estimated time per token; and
    the number of programs that did not fit.

  Raises:
    UsageError: no mesh serves the config, or the compiler for TPU is missing.
  """
  compile_lib.use_cpu()
  variants = _variants(request)[:most]
  plans, misfits, started = [], 0, clock()
  for number, changes in enumerate(variants):
    left = ''
    if number:
      seconds = (clock() - started) / number * (len(variants) - number)
      left = f', about {max(seconds / 60, 1):.0f} min left'
    note(
      f'trying {number + 1} of {len(variants)}{left}: '
      f'{overrides(changes) or "as configured"}'
    )
    try:
      plans.append(
        compile_plan(request, changes, lambda text: None, last_only=True)
      )
    # Any other compiler error should not lose the remaining results.
    except (TooLarge, jax.errors.JaxRuntimeError) as e:
      misfits += 1
      note(str(e).partition('\n')[0])
  plans.sort(key=lambda plan: plan.last.time / plan.last.tokens)
  return plans, misfits


def _variants(request: Request) -> list[dict[str, Any]]:
  """Variants to try: of those that may fit, the fastest first."""
  sizes, limit = Sizes(), request.slices.hbm
  found = []
  remats = (
    suggestions.REMATS if request.remat else (request.config.model.remat,)
  )
  for remat in remats:
    config = layouts.apply(request.config, {'model.remat': remat})
    if request.mesh:
      options = layouts.candidates(
        config, request.slices, sizes, micro=request.micro
      )
    else:
      options = [layouts.given(config, request.slices, sizes)]
    for option in options:
      # The estimate of activations may be twice too high.
      if option.bytes > 2 * limit or option.state > limit:
        continue
      changes = {**option.changes, 'model.remat': remat}
      found.append((option.bytes > limit, option.seconds, changes))
      if request.micro and remat == remats[-1]:
        changed = layouts.apply(config, option.changes)
        rows = changed.batch.micro_rows or 0
        choices = layouts.micro_choices(changed, option.sizes)
        below = [n for n in choices if n and (not rows or n < rows)]
        for n in below[:1]:
          # Slightly slower: parameters are gathered more often.
          fewer = {**changes, 'batch.micro_rows': n}
          found.append((False, option.seconds * 1.02, fewer))
  if not found:
    enough = suggestions.larger(request)
    raise UsageError(
      f'--topology={request.slices.name}: no layout is estimated to fit; take '
      + (enough or 'more chips of another generation')
    )
  found.sort(key=lambda entry: entry[:2])
  unique = {}
  for _, _, changes in found:
    changes = shown(request.config, changes)
    unique.setdefault(str(sorted(changes.items())), changes)
  return list(unique.values())
