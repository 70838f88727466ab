# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The lineage in plain JAX, in float64: what the fast code is compared with.

`gpt_jax/plain` shares no code with the package's model; `tests/plain` compares it with the papers'
equations in NumPy. Activations are here in NumPy, as both take them from JAX.
"""

import ast
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from gpt_jax.ejecting import program
from gpt_jax.plain import recipe
from tests.support import tiny

# What differs from the recipe of GPT-2 small: heads are as wide as their parameters.
SIZES = {'HEAD_SIZE': -1, 'NUM_HEADS': tiny.H, 'NUM_KV_HEADS': tiny.G, 'SCORE_SCALE': tiny.K**-0.5}


def of(parts=types.MappingProxyType({}), **constants):
  """The functions of `plain` for one recipe, to be called by `run`.

  Args:
    parts: alias -> the function that it stands for, where it is not GPT-2's.
    **constants: of `plain.recipe`, where they are neither GPT-2's nor `SIZES`.
  """
  return _of(tuple(parts.items()), tuple(constants.items()))


@functools.cache
def _of(parts, constants):
  values = {'DTYPE': np.float64, **SIZES, **dict(constants)}
  assert values.keys() <= vars(recipe).keys()
  space, aliases = {**vars(recipe), **values}, {}
  for name in program.MODULES:
    text = (program.FOLDER / f'{name}.py').read_text(encoding='utf-8')
    tree = ast.parse(text.replace('float32', 'float64'))
    for node in tree.body:
      if isinstance(node, ast.ImportFrom) and node.module.startswith('gpt_jax'):
        aliases = {x.asname: x.name for x in node.names if x.asname} | aliases
      else:
        exec(compile(ast.Module([node], []), f'{name}.py', 'exec'), space)
  assert dict(parts).keys() <= {*aliases, 'gate_activation', 'shape_of'}
  for alias, name in (aliases | dict(parts)).items():
    space[alias] = eval(name, space)
  return types.SimpleNamespace(**space)


def run(function, *args):
  """What a function gives for arguments in float64."""
  with jax.enable_x64(True), jax.numpy_rank_promotion('allow'):
    return jax.device_get(jax.jit(function)(*widened(args)))


def widened(tree):
  """Arrays of floats in float64; other leaves as they are."""

  def wide(x):
    is_float = jnp.issubdtype(getattr(x, 'dtype', type(x)), jnp.floating)
    return np.asarray(x, np.float64) if is_float else x

  return jax.tree.map(wide, tree)


def seen(length, window=None):
  """Which keys each query sees: itself and those before it, of the last `window` tokens."""
  distance = np.arange(length)[:, None] - np.arange(length)
  return (distance >= 0) & (distance < (window or length))


def whole(p, heads=tiny.H, kv_heads=tiny.G):
  """Attention with keys and values for each head of queries: copies of those it shares."""

  def repeat(x):
    y = x.reshape(*x.shape[:-1], kv_heads, -1)
    return jnp.repeat(y, heads // kv_heads, axis=-2).reshape(*x.shape[:-1], -1)

  return p | {name: jax.tree.map(repeat, p[name]) for name in ('key', 'value')}


def loss_of(hidden, table, targets, weights, z_loss=0.0):
  """The loss of plain JAX, by a model without layers: what is minimized, and the cross-entropy."""
  plain = of(TIED=False, POSITION_TABLE=False, FINAL_NORM=False, PADDED=True, Z_LOSS=z_loss)
  states = hidden.reshape(-1, hidden.shape[-1])
  params = {'embed': {'embedding': states}, 'head': {'embedding': table}, 'layers': []}
  inputs = np.arange(targets.size).reshape(targets.shape)
  return plain.causal_loss_with_z(
    params, {'inputs': inputs, 'targets': targets, 'weights': weights}
  )


def relu(x):
  """The larger of x and 0."""
  return np.maximum(x, 0)


def gelu(x):
  """Hendrycks and Gimpel (2016): x P(X <= x)."""
  return x * special.ndtr(x)


def gelu_tanh(x):
  """Their approximation, section 2."""
  return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x):
  """X / (1 + e^-x)."""
  return x * special.expit(x)


FORMULAS = {
  'relu': relu,
  'gelu': gelu,
  'gelu_tanh': gelu_tanh,
  'silu': silu,
  'tanh': np.tanh,
  # Of gates: Shazeer (2020), equations 5 and 6.
  'glu': special.expit,
  'bilinear': lambda x: x,
  'reglu': relu,
  'geglu': gelu,
  'geglu_tanh': gelu_tanh,
  'swiglu': silu,
}


def feed_forward(p, x, form):
  """act(x W + b) W + b; with a gate, (act(x W_gate) * x W) W."""

  def dense(name, x):
    return x @ p[name]['kernel'] + p[name].get('bias', 0)

  h = FORMULAS[form](dense('gate' if 'gate' in p else 'in', x))
  return dense('out', h * dense('in', x) if 'gate' in p else h)
