# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where a new run starts: at random, or from another's parameters.

`optim.start` names a workdir or a folder of Hugging Face. What is not taken
from there is drawn, and only what `optim.drawn` names is. A run that goes on
reads its own checkpoints, and needs the folder no more.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import sharding, spec
from gpt_jax.config import Config
from gpt_jax.data.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.hf.base import FOR_TRAINING
from gpt_jax.nn import paths
from gpt_jax.objectives import choices as objectives
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import state as state_lib
from gpt_jax.training import teacher
from gpt_jax.training.parts import Parts
from gpt_jax.training.pretrained import Pretrained, pretrained

# The tables of the vocabulary: rows are tokens.
_TABLES = ('embed', 'head')


def check(config: Config, workdir: str) -> None:
  """Checks, before text is prepared, that there is what a run starts from.

  Args:
    config: resolved.
    workdir: of the run; one that holds a run needs nothing.

  Raises:
    UsageError: there is not.
  """
  optim = config.optim
  if optim.drawn and not optim.start:
    raise UsageError(
      f'optim.drawn={optim.drawn!r}: without optim.start all parameters are '
      'drawn; say whose are taken, or leave it empty'
    )
  if not optim.start:
    return
  if objectives.needs(config.objective.name).frozen:
    raise UsageError(
      f'optim.start={optim.start!r}: objective.name={config.objective.name!r} '
      'starts from its teacher, or at random; leave it empty'
    )
  if objectives.needs(config.objective.name).adds:
    raise UsageError(
      f'optim.start={optim.start!r}: objective.name={config.objective.name!r} '
      "keeps the model's tables as differences, which no other run has; leave "
      "it empty, or share by 'es' or 'nes'"
    )
  if not os.path.exists(os.path.join(workdir, 'config.json')):
    _look_up(optim.start)


def first_state(parts: Parts, tokenizer: Tokenizer) -> TrainState:
  """The first state of a run.

  Args:
    parts: what is trained.
    tokenizer: of the run.

  Raises:
    UsageError: `optim.start` reads other tokens, or lacks parameters that
      `optim.drawn` does not name; or as `teacher.first_state`.
  """
  optim = parts.config.optim
  if not optim.start:
    return teacher.first_state(parts, tokenizer)
  source, key = _look_up(optim.start), jax.random.key(parts.config.seed)
  shapes = parts_lib.abstract_state(parts).params
  paths.check(shapes, optim.drawn, 'optim.drawn')
  drawn = paths.matching(shapes, optim.drawn)
  _check_tokenizer(parts, source, tokenizer, drawn)
  given = _taken(optim.start, source, shapes, drawn)

  def init(key: jax.Array, given: dict[str, jax.Array]) -> TrainState:
    def place(path: Any, made: jax.Array, mask: np.ndarray) -> jax.Array:
      found = given.get(paths.name_of(path))
      if found is None:
        return made
      return jnp.where(mask, made, found.astype(made.dtype))

    made = state_lib.init_params(parts.objective, key)
    made = jax.tree_util.tree_map_with_path(place, made, drawn)
    return state_lib.make_init(
      parts.objective._replace(init=lambda _: made),
      parts.optimizer,
      parts.precision,
      parts.average,
    )(key)

  with sharding.use(parts.mesh, parts.rules):
    state = jax.jit(init, out_shardings=parts.shardings)(key, given)
  _tell(parts, source, drawn)
  return state


def _look_up(start: str) -> Pretrained:
  """The model in a folder.

  Raises:
    UsageError: there is none.
  """
  found = pretrained(start, 'optim.start', whole=True)
  if found.params is None:
    raise UsageError(
      "optim.start='none': leave it empty to draw all parameters"
    )
  return found


def _check_tokenizer(
  parts: Parts, source: Pretrained, tokenizer: Tokenizer, drawn: Any
) -> None:
  """Refuses tables whose rows are other tokens than the run's."""
  assert source.tokenizer is not None, 'see pretrained'
  if _same_ids(source.tokenizer, tokenizer, drawn):
    return
  tables = [x for n in _TABLES for x in jax.tree.leaves(drawn.get(n, {}))]
  if all(mask.all() for mask in tables):
    return
  raise UsageError(
    f'optim.start={parts.config.optim.start!r}: its tokenizer, '
    f"{source.tokenizer_name}, is not the run's, "
    f"{parts.config.tokenizer.name}; give its tokenizer, or add 'embed/*' to "
    'optim.drawn'
  )


def _same_ids(theirs: Tokenizer, ours: Tokenizer, drawn: Any) -> bool:
  """Whether what is not drawn reads the same tokens."""
  if theirs.fingerprint == ours.fingerprint:
    return True
  # An encoder of sources that is drawn as a whole may read any.
  new = 'source' in drawn and all(
    m.all() for m in jax.tree.leaves(drawn['source'])
  )
  one, other = (tokenizer_lib.of_targets(made) for made in (theirs, ours))
  return new and one.fingerprint == other.fingerprint


def _taken(
  start: str, source: Pretrained, shapes: Any, drawn: Any
) -> dict[str, Any]:
  """What is taken from there, by name.

  Raises:
    UsageError: it is not there, or has another shape.
  """
  assert source.params is not None, 'see _look_up'
  found = {
    paths.name_of(path): x
    for path, x in jax.tree_util.tree_leaves_with_path(source.params())
  }
  masks, taken, problems = jax.tree.leaves(drawn), {}, []
  leaves = jax.tree_util.tree_leaves_with_path(shapes)
  for (path, leaf), mask in zip(leaves, masks, strict=True):
    name = paths.name_of(path)
    if mask.all():
      found.pop(name, None)
    elif name not in found:
      problems.append(f'lacks {name}')
    elif np.shape(found[name]) != leaf.shape:
      theirs = np.shape(found[name])
      problems.append(f'has {name} as {theirs}, not as {leaf.shape}')
    else:
      taken[name] = found.pop(name)
  if problems:
    more = f' and {len(problems) - 1} others' if problems[1:] else ''
    raise UsageError(
      f'optim.start={start!r}: {problems[0]}{more}; name in optim.drawn what '
      'is to be drawn, or give the model of that run'
    )
  if found:
    left = sorted({name.split('/')[0] for name in found})
    log.warning(
      'optim.start=%s: %d of its arrays have no place in this model, in %s',
      *(start, len(found), ', '.join(left)),
    )
  return taken


def _tell(parts: Parts, source: Pretrained, drawn: Any) -> None:
  """Says what the run starts from, and how the models differ."""
  config = parts.config
  masks = jax.tree.leaves(drawn)
  log.info(
    'the parameters are those of %s; %d of %d arrays are drawn, at least in '
    'part',
    *(source.name, sum(bool(m.any()) for m in masks), len(masks)),
  )
  differs = [
    f'{field}: {theirs!r} -> {config.model[field]!r}'
    for field, theirs in (source.model or {}).items()
    if field not in FOR_TRAINING and _other(field, theirs, config.model[field])
  ]
  if differs:
    log.warning(
      'optim.start=%s: its model is another one: %s',
      *(config.optim.start, '; '.join(differs)),
    )


def _other(field: str, one: Any, other: Any) -> bool:
  if isinstance(one, str) and isinstance(other, str):
    return spec.parse(field, one) != spec.parse(field, other)
  return one != other
