# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""LoRA: training low-rank adapters beside frozen kernels.

  h = W x + (alpha / r) B A dropout(x)

(Hu et al., 2022, equation 3 and section 4.1.) W is frozen; A and B are trained,
one pair for each layer (and each expert) of a stacked kernel. B starts at 0, so
the first step sees the model as it was. A is uniform in +-1/sqrt(inputs), which
is PEFT's Kaiming initialization with a = sqrt(5). Parameters are

  adapters/MODULE/kernel_A      [..., inputs, r], PEFT's lora_A transposed
  adapters/MODULE/kernel_B      [..., r, outputs], PEFT's lora_B transposed
  heads/...                     of the task, trained in full
  new_rows/...                  rows of tokens that the run adds to a table
  parts/base/...                the model that is adapted, frozen

The base has no gradient and no optimizer state, and checkpoints leave it out.

The loss runs the model with A and B beside the kernels (`nn.layers.low_rank`):
a dense layer adds (alpha / r) B A x to its output, so that no gradient is as
large as a kernel; experts, routers and the like add the matrix to the kernel,
one layer at a time. `Lora.merged` adds it to all of them, for decoding and
exports. Dropout, PEFT's `lora_dropout`, is for dense layers, in training alone;
each kernel draws its own.
"""

import math
import zlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.objectives.loss import Params
from gpt_jax.core.optim.optimizer import num_stacked
from gpt_jax.core.ranges import Count, Fraction, Positive
from gpt_jax.core.spec import UsageError

FIELD = 'finetune.lora'
# The frozen part, in `params['parts']`.
BASE = 'base'
_ADAPTERS, _NEW_ROWS = 'adapters', 'new_rows'
# Modules of the tree that are not the base's: trained in full, or other models.
_BESIDE = ('heads', 'parts')
# Token tables, which new tokens make longer.
_TABLES = ('embed', 'head', 'head_bias')


@dataclass(frozen=True)
class Lora:
  """Low-rank adapters beside the kernels named by `on`.

  Attributes:
    rank: r.
    alpha: the adapters' product is multiplied by alpha / r.
    on: which kernels: a comma list of modules' names as in `query, value`, and
      of patterns of parameters' names as in `optim.trained`. 'all': every dense
      kernel of the layers but routers.
    rslora: multiply by alpha / sqrt(r) instead (Kalajdzievski, 2023).
    dropout: the rate on the adapters' inputs in training.
  """

  rank: Count = 8
  alpha: Positive = 16.0
  on: str = 'query, value'
  rslora: bool = False
  dropout: Fraction = 0.0

  @property
  def scale(self) -> float:
    """The factor of B A."""
    return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

  def objective(self, objective: Objective, num_rows: int) -> Objective:
    """The objective, of a tree with adapters: see the top of this file.

    Args:
      num_rows: of the base's token tables; the model's may have more.
    """

    def init(key: jax.Array) -> Params:
      flat, tree = params_lib.flatten(objective.init(key)), {}
      for name, box in flat.items():
        if _module(name) in _BESIDE:
          tree[name] = box
          continue
        value = box.value
        if _grows(name, value, objective.model.vocab_size, num_rows):
          names = (None, *box.names[1:])
          rows = box.replace(value=value[num_rows:], names=names)
          tree[f'{_NEW_ROWS}/{name}'], value = rows, value[:num_rows]
        tree[f'parts/{BASE}/{name}'] = box.replace(value=value)
      for name in self._adapted(flat):
        tree |= self._drawn(name, flat[name], key)
      return params_lib.nest(tree)

    def first_params(params: Params) -> Params:
      whole = unadapted(params)
      tree = params_lib.flatten({_ADAPTERS: params[_ADAPTERS]})
      rows = params_lib.flatten(params.get(_NEW_ROWS, {}))
      tree |= {f'{_NEW_ROWS}/{name}': x for name, x in rows.items()}
      first = params_lib.flatten(objective.first_params(whole))
      for name, value in first.items():
        beside = _module(name) in _BESIDE
        value = value[:num_rows] if name in rows else value
        tree[name if beside else f'parts/{BASE}/{name}'] = value
      return params_lib.nest(tree)

    def loss(params: Params, batch: Any, key: jax.Array | None) -> Any:
      rate = 0.0 if key is None else self.dropout
      return objective.loss(self.beside(params, rate), batch, key)

    def outputs(params: Params, batch: Any) -> jax.Array:
      return objective.outputs(self.beside(params), batch)

    return objective.replaced(
      init=init,
      first_params=first_params,
      loss=loss,
      outputs=outputs,
      full=self.merged,
      unsaved=(BASE,),
    )

  def beside(self, params: Params, rate: float = 0.0) -> Params:
    """The model's own tree, with A and (alpha / r) B beside each kernel.

    If `rate` is not 0, `kernel_rate` is there, too: [...], one for each A.
    """
    flat = params_lib.flatten(unadapted(params))
    for name, x in params_lib.flatten(params[_ADAPTERS]).items():
      flat[name] = self.scale * x if name.endswith('_B') else x
      if rate and name.endswith('_A'):
        place = f'{name.removesuffix("_A")}_rate'
        flat[place] = jnp.full(x.shape[:-2], rate, jnp.float32)
    return params_lib.nest(flat)

  def merged(self, params: Params) -> Params:
    """The adapted model's own tree; adapted kernels are float32."""
    flat = params_lib.flatten(unadapted(params))
    pairs = params_lib.flatten(params[_ADAPTERS])
    for name, a in pairs.items():
      module, _, leaf = name.rpartition('/')
      if leaf == 'kernel_A':
        b, kernel = pairs[f'{module}/kernel_B'], f'{module}/kernel'
        product = jnp.matmul(a.astype(jnp.float32), b.astype(jnp.float32), precision='highest')
        flat[kernel] = flat[kernel].astype(jnp.float32) + self.scale * product
    return params_lib.nest(flat)

  def _adapted(self, flat: dict[str, Any]) -> list[str]:
    """The names of the kernels that `on` names, of boxed parameters."""
    kernels = {
      name: box.value
      for name, box in flat.items()
      if name.endswith('/kernel')
      and _module(name) not in _BESIDE
      and box.value.ndim - num_stacked(box.names) == 2
    }
    names = {name for word in self.on.split(',') for name in self._named(word.strip(), kernels)}
    return sorted(names)

  def _named(self, word: str, kernels: dict[str, Any]) -> list[str]:
    """The kernels that one word of `on` names."""
    if word == 'all':
      names = [n for n in kernels if '/periods/' in n and '/router/' not in n]
    elif '*' in word or '/' in word:
      tree = params_lib.matching(params_lib.nest(kernels), word)
      masks = params_lib.flatten(tree)
      names = [name for name, mask in masks.items() if mask.any()]
      for name in names:
        if not masks[name].all():
          raise UsageError(
            f'{FIELD}: on={self.on!r}: {word!r} names some layers of {name}; '
            'all of its layers have adapters, or none: name all'
          )
    else:
      names = [name for name in kernels if word in name.split('/')[:-1]]
    if not names:
      modules = dict.fromkeys(name.split('/')[-2] for name in kernels)
      raise UsageError(
        f'{FIELD}: on={self.on!r}: no kernel is called {word!r}; give all, or '
        f'some of {", ".join(modules)}, or patterns of the names that gpt-jax '
        'inspect lists'
      )
    return names

  def _drawn(self, name: str, box: Any, key: jax.Array) -> dict[str, Any]:
    """A and B of a kernel, boxed with their logical axes."""
    *stack, num_in, num_out = box.value.shape
    *names, name_in, name_out = box.names
    if self.rank > min(num_in, num_out):
      raise UsageError(
        f'{FIELD}: rank={self.rank}: is more than a matrix {num_in} x '
        f'{num_out} has, as {name} is; give at most {min(num_in, num_out)}'
      )
    bound = 1 / math.sqrt(num_in)
    key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    shape = (*stack, num_in, self.rank)
    a = jax.random.uniform(key, shape, jnp.float32, -bound, bound)
    b = jnp.zeros((*stack, self.rank, num_out), jnp.float32)
    return {
      f'{_ADAPTERS}/{name}_A': box.replace(value=a, names=(*names, name_in, None)),
      f'{_ADAPTERS}/{name}_B': box.replace(value=b, names=(*names, None, name_out)),
    }


def _module(name: str) -> str:
  """The first part of a parameter's name."""
  return name.partition('/')[0]


def _grows(name: str, table: Any, vocab_size: int, num_rows: int) -> bool:
  """Whether a parameter is a token table with rows that the base lacks."""
  of_tokens = _module(name) in _TABLES and table.shape[0] == vocab_size
  return of_tokens and num_rows < vocab_size


def unadapted(params: Params) -> Params:
  """The model's own tree, with the kernels of the base; nothing is copied."""
  tree = dict(params['parts'][BASE])
  if 'heads' in params:
    tree['heads'] = params['heads']
  parts = {n: x for n, x in params['parts'].items() if n != BASE}
  if parts:
    tree['parts'] = parts
  flat = params_lib.flatten(tree)
  for name, rows in params_lib.flatten(params.get(_NEW_ROWS, {})).items():
    flat[name] = jnp.concatenate([flat[name], rows])
  return params_lib.nest(flat)


def none() -> None:
  """All parameters are trained."""
