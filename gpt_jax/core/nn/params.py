# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tree of a model's parameters: names, layers, and forms for decoding.

Paths are those that `gpt-jax inspect` shows. In a stack, the parameters of all
layers at one place of the period are in one array; i after `periods` names its
entry i: 'encoder/periods/0/block_0/attention/*' is the first layer's.
"""

import fnmatch
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gpt_jax.core.nn import quantized
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.spec import UsageError


def name_of(path: Any) -> str:
  """The name of a path in a tree of parameters, as `inspect` shows it."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def flatten(tree: Any, prefix: str = '') -> dict[str, Any]:
  """The leaves by name: `{'embed/embedding': ...}`."""
  flat = {}
  for name, value in tree.items():
    if isinstance(value, dict):
      flat |= flatten(value, f'{prefix}{name}/')
    else:
      flat[prefix + name] = value
  return flat


def nest(flat: dict[str, Any]) -> Any:
  """The inverse of `flatten`."""
  tree = {}
  for path, value in flat.items():
    *folders, name = path.split('/')
    node = tree
    for folder in folders:
      node = node.setdefault(folder, {})
    node[name] = value
  return tree


def matching(params: Any, patterns: str) -> Any:
  """Masks of the entries that any of the patterns names.

  Args:
    params: real or abstract.
    patterns: separated by commas; * matches any text, including /.

  Returns:
    A tree of bool arrays that broadcast with the parameters.
  """
  wanted = _split(patterns)

  def mask(path: Any, leaf: Any) -> np.ndarray:
    entries = [_named(names, wanted) for names in _names(path, leaf)]
    hits = np.array([bool(found) for found in entries])
    return hits.reshape(-1, *[1] * (leaf.ndim - 1)) if leaf.ndim else hits[0]

  return jax.tree_util.tree_map_with_path(mask, params)


def check(params: Any, patterns: str, field: str) -> None:
  """Checks that each pattern names a parameter.

  Args:
    field: that holds them, for errors.
  """
  wanted = _split(patterns)
  named = {
    pattern
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    for names in _names(path, leaf)
    for pattern in _named(names, wanted)
  }
  for pattern in wanted:
    if pattern not in named:
      raise UsageError(
        f'{field}={patterns!r}: no parameter is called {pattern!r}; gpt-jax '
        'inspect lists their names'
      )


def _split(patterns: str) -> list[str]:
  return [p.strip() for p in patterns.split(',') if p.strip()]


def _names(path: Any, leaf: Any) -> list[tuple[str, ...]]:
  """The names of the entries along the first axis; one if all share it."""
  name = name_of(path)
  before, periods, after = name.partition('/periods/')
  if not periods:
    return [(name,)]
  each = range(leaf.shape[0])
  return [(name, f'{before}/periods/{i}/{after}') for i in each]


def _named(names: tuple[str, ...], wanted: list[str]) -> list[str]:
  return [p for p in wanted if any(fnmatch.fnmatchcase(n, p) for n in names)]


# The parameters of a decoder's lowest layers, for freezing.
#
# Layers are scanned: those at one place of the period are in one array, with a
# leading axis of periods, or of the sets that layers share.


# The modules below the first layer.
_BELOW = (
  'embed',
  'encoder_embed',
  'segments',
  'embed_norm',
  'embed_projection',
  'positions',
  'decoder_bias',
  'distances',
  'convolution',
  'relative_biases',
)


def divides(model: Any, num_layers: int) -> bool:
  """Whether the lowest layers share no parameters with layers above them."""
  choices = ModelChoices.of(model)
  if not choices.share.parts:
    return True
  of_group = model.num_layers // choices.share.groups
  one_run = of_group == len(choices.decoder)
  return one_run or num_layers % of_group == 0


def lowest(params: Any, num_layers: int, model: Any) -> Any:
  """Masks of the entries of the embeddings and the lowest layers.

  Args:
    params: real or abstract, of a decoder.
    num_layers: number of lowest layers, for which `divides` holds; 0: the
      embeddings alone.

  Returns:
    A tree of bool arrays that broadcast with the parameters.
  """
  size = len(ModelChoices.of(model).decoder)

  def mask(path: Any, leaf: Any) -> np.ndarray:
    names = [key.key for key in path]
    if names[0] == 'decoder':
      block, sets = int(names[2].removeprefix('block_')), leaf.shape[0]
      # The first run of each.
      runs = np.arange(sets) * (model.num_layers // size // sets)
      inside = runs * size + block < num_layers
      return inside.reshape(-1, *[1] * (leaf.ndim - 1))
    return np.full((1,) * leaf.ndim, names[0] in _BELOW)

  return jax.tree_util.tree_map_with_path(mask, params)


def rows_before(params: Any, masks: Any, num_rows: int) -> Any:
  """The masks, false for the rows of token tables from `num_rows` on."""

  def mask(path: Any, leaf: Any, inside: np.ndarray) -> np.ndarray:
    if path[0].key != 'embed' or leaf.ndim != 2:
      return inside
    return inside & (np.arange(leaf.shape[0]) < num_rows)[:, None]

  return jax.tree_util.tree_map_with_path(mask, params, masks)


def levels(params: Any, model: Any, num_rows: int) -> Any:
  """The level of each entry: of the layer it belongs to, from the lowest on.

  Args:
    params: real or abstract, of a decoder or an encoder whose layers share no
      parameters.
    model: the decoder or encoder, of N layers.
    num_rows: rows of the token table that are not new.

  Returns:
    A tree of int arrays that broadcast with the parameters: 0 for the
    embeddings, 1 to N for the layers, N + 1 for the rest: heads, the norm after
    the last layer, new rows of the token table.
  """
  below = [
    rows_before(params, lowest(params, count, model), num_rows)
    for count in range(model.num_layers + 1)
  ]
  return jax.tree.map(lambda *masks: np.sum(~np.array(masks), axis=0), *below)


def unstack(params: Any, part: Callable[[Any, int], Any] = operator.getitem) -> Any:
  """Converts parameters of a stacked model for one with `loop=UNSTACKED`.

  `part` gives the leaf of each period from a stacked one. Parameters that
  layers share are in the first periods only, one set in each.
  """
  out = dict(params)
  for name in ('decoder', 'encoder'):
    if name in out:
      stacked = out[name]['periods']
      most = max(x.shape[0] for x in jax.tree.leaves(stacked))
      out[name] = {f'period_{i}': _with_entry(stacked, i, part) for i in range(most)}
  if 'source' in out:
    out['source'] = unstack(out['source'], part)
  return out


def _with_entry(tree: Any, i: int, part: Callable[[Any, int], Any]) -> Any:
  """`part` of the arrays that have an entry i, without the others."""
  out = {}
  for name, value in tree.items():
    if isinstance(value, dict):
      value = _with_entry(value, i, part)
      if value:
        out[name] = value
    elif i < value.shape[0]:
      out[name] = part(value, i)
  return out


Layer = dict[str, Any]


def transpose(params: Any) -> Any:
  """Replaces each dense layer's `kernel`, [D, F], by `transposed`, [F, D]."""

  def change(layer: Layer) -> Layer:
    out = {**layer, 'transposed': layer['kernel'].T}
    del out['kernel']
    return out

  return change_dense(params, change)


def change_dense(params: Any, change: Callable[[Layer], Layer]) -> Any:
  """Changes the parameters of each dense layer.

  Routers, experts (whose kernels are stacked), embeddings and the output are
  unchanged.

  Args:
    params: of a model whose layers are unstacked.
    change: from the parameters of a layer, `kernel` among them, to new ones.
  """
  out = dict(params)
  for name in ('decoder', 'encoder', 'source'):
    if name in out:
      out[name] = _changed(out[name], change)
  return out


def _changed(tree: Any, change: Callable[[Layer], Layer]) -> Any:
  out = {}
  for name, value in tree.items():
    if not isinstance(value, dict):
      out[name] = value
    elif name == 'router' or getattr(value.get('kernel'), 'ndim', 0) != 2:
      out[name] = _changed(value, change)
    else:
      out[name] = change(value)
  return out


def quantize(params: Any) -> Any:
  """Quantizes the kernels of dense layers to int8, each with a `scale`.

  Args:
    params: of a model whose layers are unstacked.
  """

  def change(layer: Layer) -> Layer:
    kernel_DF, scale_1F = quantized.rounded(layer['kernel'], (0,))
    return {**layer, 'kernel': kernel_DF, 'scale': scale_1F[0]}

  return change_dense(params, change)
