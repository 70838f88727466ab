# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The first state of fine-tuning, from pre-trained parameters.

New rows of the token table, and whatever is not transferred, start as the
model's parameters do in training.
"""

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import sharding, spec
from gpt_jax.finetuning import known_tasks
from gpt_jax.nn import pattern as layers
from gpt_jax.optim.train_state import TrainState
from gpt_jax.spec import UsageError
from gpt_jax.training import state as state_lib
from gpt_jax.training.parts import Parts
from gpt_jax.training.pretrained import Pretrained

# How many of the lowest layers, with the embeddings; None: all there is; -1:
# nothing.
Amount = int | None


def everything() -> Amount:
  """All parameters."""
  return None


def nothing() -> Amount:
  """None: the same model and tokenizer, from scratch."""
  return -1


def embeddings() -> Amount:
  """Those of tokens and positions."""
  return 0


def lowest(count: int) -> Amount:
  """Embeddings and the lowest `count` layers (GPT-1, figure 2)."""
  if count < 0:
    raise UsageError(f'finetune.transfer: layers({count}): must be at least 0')
  return count


def init_state(parts: Parts, params: Any, amount: Amount) -> TrainState:
  """The first state, split over the devices.

  Args:
    parts: what is trained.
    params: pre-trained; None: there are none.
    amount: of TRANSFERS.
  """
  key = jax.random.key(parts.config.seed)
  if amount == -1:
    params = None

  def init(key: jax.Array, params: Any) -> TrainState:
    fresh = state_lib.init_params(parts.objective, key)
    if params is not None:
      fresh = merged(parts.model, fresh, params, amount)
    return state_lib.make_init(
      parts.objective._replace(init=lambda _: fresh),
      parts.optimizer,
      parts.precision,
      parts.average,
    )(key)

  if params is not None:
    check(
      jax.eval_shape(lambda k: state_lib.init_params(parts.objective, k), key),
      params,
    )
  with sharding.use(parts.mesh, parts.rules):
    return jax.jit(init, out_shardings=parts.shardings)(key, params)


def with_heads(params: Any, tasks: Collection[str], alone: bool) -> Any:
  """Pre-trained parameters with the heads of these tasks, of several, alone.

  Args:
    params: pre-trained, maybe with `parts`: see `objectives.tasks`.
    tasks: which heads are gone on with.
    alone: whether it is one, and no other task is trained with it.
  """
  kept = {name: part for name, part in params.items() if name != 'parts'}
  heads = {name: params['parts'][name] for name in tasks}
  if not heads:
    return kept
  if not alone:
    return {**kept, 'parts': heads}
  (own,) = heads.values()
  return {**kept, 'heads': {**kept.get('heads', {}), **own}}


def merged(model: Any, fresh: Any, params: Any, amount: Amount) -> Any:
  """`fresh`, with what is transferred of `params` in its place."""
  masks = layers.lowest(fresh, 0 if amount is None else amount, model)
  out = []
  old = dict(_leaves(params))
  for (name, leaf), mask in zip(
    _leaves(fresh), jax.tree.leaves(masks), strict=True
  ):
    if name in old:
      whole = np.True_ if amount is None else mask
      leaf = _replaced(leaf, old[name], whole)
    out.append(leaf)
  return jax.tree.unflatten(jax.tree.structure(fresh), out)


def check(fresh: Any, params: Any) -> None:
  """Checks that pre-trained parameters fit the model."""
  new, old = dict(_leaves(fresh)), dict(_leaves(params))
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
  """Whether a table of tokens has grown, or nothing has changed."""
  return new[1:] == old[1:] and new[:1] >= old[:1]


def _replaced(leaf: jax.Array, old: Any, mask: Any) -> jax.Array:
  """The old entries where the mask is true, in the first rows of `leaf`."""
  grown = len(leaf) - len(old) if leaf.ndim else 0
  if not grown:
    mask = jnp.broadcast_to(mask, leaf.shape)
    return jnp.where(mask, jnp.asarray(old, leaf.dtype), leaf)
  # A table's mask is the same for all its rows.
  first = leaf[: len(old)]
  mask = jnp.broadcast_to(np.all(mask), first.shape)
  kept = jnp.where(mask, jnp.asarray(old, leaf.dtype), first)
  return jnp.concatenate([kept, leaf[len(old) :]])


def _leaves(tree: Any) -> list[tuple[str, Any]]:
  return [
    (jax.tree_util.keystr(path, simple=True, separator='/'), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]


TRANSFERS: dict[str, Callable[..., Amount]] = {
  'all': everything,
  'none': nothing,
  'embeddings': embeddings,
  'layers': lowest,
}


# Which head of a model of several tasks a task goes on from.


def head_of(tuned: Any, init: Pretrained) -> str:
  """Of the tasks of `init` the one whose head a task goes on from; '': none.

  That is a published task of the same name, or the same call of one's own
  tables, with the same classes or scores.

  Args:
    tuned: `finetune`, of one task, resolved.
    init: what is fine-tuned.
  """
  name = spec.parse('finetune.task', tuned.task)[0].name
  for other, known in init.tasks.items():
    of_known = spec.parse('finetune.tasks', known['task'])[0].name
    same = tuned.task == known['task'] or (
      name == of_known and name not in known_tasks.FORMS
    )
    learned = known['labels'] or known['scores']
    if same and learned == (tuned.labels or tuned.scores):
      return other
  return ''


def init_name(tuned: Any, init: Pretrained) -> str:
  """What `finetune.init` is, of one task; see `head_of`."""
  head = head_of(tuned, init)
  return init.name + f', head of {head}' * bool(head)
