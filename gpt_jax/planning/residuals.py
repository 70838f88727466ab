# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a step saves for its backward pass, read in the traced gradient.

The forward scan over layers stacks arrays that the backward scan reads. The
compiler keeps all of them, whatever else it fuses, so they are counted and not
modelled: which arrays there are depends on every choice of a model.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.config import Config
from gpt_jax.core.nn import int8
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.compiled import abstract_batch
from gpt_jax.core.training.step import mean_gradients


class ScanResiduals(NamedTuple):
  """Bytes that scans over layers save, with the kernels of a TPU.

  Attributes:
    split: arrays of tokens that the axis `tensor` splits, for each token of
      text in a batch.
    gathered: those that are whole on each device of `tensor`.
    weights: copies of parameters, however many tokens there are.
  """

  split: float
  gathered: float
  weights: float


_FOUND: dict[str, ScanResiduals] = {}
# Fields that do not change the traced gradient of a batch.
_ASIDE = {'batch.micro_rows', *(f'mesh.{axis}' for axis in sharding.AXES)}


def of(config: Config) -> ScanResiduals:
  """The residuals of a resolved config's largest batch; cached."""
  fields = config_lib.flatten(config)
  key = str({name: x for name, x in fields.items() if name not in _ASIDE})
  if key not in _FOUND:
    _FOUND[key] = _read(config)
  return _FOUND[key]


def _read(config: Config) -> ScanResiduals:
  config = config_lib.unlocked(config)
  # Unrolled layers save much the same, but nothing tells it from the rest.
  config.model.loop = 'scan'
  one: Any = sharding.abstract_mesh()
  parts = parts_lib.build(config, one)
  shape = parts.shapes()[-1]
  if ModelChoices.of(config.model).matmul:
    # One device cannot sum the tokens of many: see `Int8.check_tokens`.
    most = max(1, int8.LONGEST // shape.length)
    rows = next(n for n in range(min(most, shape.rows), 0, -1) if shape.rows % n == 0)
    shape = shape._replace(rows=rows)
  objective = parts.objective.of(shape.task)
  state = parts_lib.abstract_state(parts)
  batch = abstract_batch(parts, *shape, training=True)

  def gradients(params: Any, batch: Any) -> Any:
    return mean_gradients(
      params,
      batch,
      jax.random.key(0),
      objective=objective,
      rates=parts.rates,
      num_steps=config.schedule.num_steps,
      num_micro=1,
    )

  # Without shardings, whose mesh would be another than `on_one_tpu`'s.
  args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state.params, batch))
  with sharding.on_one_tpu(parts.rules):
    traced = jax.make_jaxpr(gradients)(*args)
  params = {tuple(sorted(x.shape)) for x in jax.tree.leaves(args[0])}
  split = gathered = weights = 0
  for x, is_whole in _saved(traced.jaxpr):
    size = math.prod(x.shape) * x.dtype.itemsize
    # As stored, or transposed.
    if tuple(sorted(x.shape)) in params:
      weights += size
    elif x.memory_space != jax.memory.Space.Host:
      split += size * (not is_whole)
      gathered += size * is_whole
  return ScanResiduals(split / shape.tokens, gathered / shape.tokens, weights)


def _saved(jaxpr: Jaxpr) -> Iterator[tuple[Any, bool]]:
  """What forward scans stack and backward scans read; and what is gathered."""
  scans = [x for x in jaxpr.eqns if x.primitive.name == 'scan']
  read = {id(v) for x in scans if x.params['reverse'] for v in x.invars}
  for scan in scans:
    if scan.params['reverse']:
      continue
    body = scan.params['jaxpr'].jaxpr
    made = {id(v): x for x in body.eqns for v in x.outvars}
    seen = set()
    outputs: Any = zip(scan.outvars, body.outvars, strict=True)
    for out, inside in outputs:
      if out.aval.shape == inside.aval.shape:  # carried on, not stacked
        continue
      source = made.get(id(inside))
      while source and source.primitive.name == 'reshape':
        inside = source.invars[0]
        source = made.get(id(inside))
      # The compiler keeps one of several shapes of an array.
      if id(out) in read and id(inside) not in seen:
        seen.add(id(inside))
        yield out.aval, _is_whole(source)
  for equation in jaxpr.eqns:
    if equation.primitive.name != 'scan':
      for inner in jaxprs_in_params(equation.params):
        yield from _saved(inner)


def _is_whole(source: JaxprEqn | None) -> bool:
  """Whether an array is the input of a product, gathered over `tensor`."""
  if source is None or source.primitive.name != 'sharding_constraint':
    return False
  return 'tensor' not in jax.tree.leaves([*source.params['sharding'].spec])
