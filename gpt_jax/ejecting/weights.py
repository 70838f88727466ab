# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parameters of the package's models as an ejected file has them, and back.

Names are the same, but that of a layer: the package stacks the layers of each place of the period
in one array, the file has a list of them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import config as config_lib
from gpt_jax.core.config import Config
from gpt_jax.core.files import arrays
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import parts

STACKS = {'decoder': 'layers', 'encoder': 'encoder_layers'}


def to_plain(params: Any) -> Any:
  """The dictionaries of an ejected file."""
  plain = {name: tree for name, tree in params.items() if name not in STACKS}
  for stack, name in STACKS.items():
    if stack in params:
      blocks = params[stack]['periods']
      number = len(jax.tree.leaves(blocks)[0])
      plain[name] = [
        jax.tree.map(lambda x, i=i: x[i], blocks[f'block_{j}'])
        for i in range(number)
        for j in range(len(blocks))
      ]
  return plain


def from_plain(plain: Any, params: Any) -> Any:
  """The package's parameters; `params` have their form."""
  tree = {name: value for name, value in plain.items() if name not in STACKS.values()}
  for stack, name in STACKS.items():
    if stack in params:
      size = len(params[stack]['periods'])
      tree[stack] = {
        'periods': {
          f'block_{j}': jax.tree.map(lambda *x: jnp.stack(x), *plain[name][j::size])
          for j in range(size)
        }
      }
  return tree


def write(file: str, params: Any, config: Config, field: str) -> None:
  """Writes parameters as the file of a config reads them: its flag --weights.

  Args:
    params: the package's.
    field: the flag that names them, and its value, for errors.
  """
  expected = parts.param_shapes(config_lib.objective(config))
  found, wanted = (params_lib.flatten(tree) for tree in (params, expected))
  for name in sorted(found.keys() | wanted.keys()):
    shapes = [tree[name].shape if name in tree else 'none' for tree in (found, wanted)]
    if shapes[0] != shapes[1]:
      raise UsageError(
        f'{field}: {name} is {shapes[0]}, and the config asks for {shapes[1]}; give the config of '
        'these weights'
      )
  leaves = jax.tree_util.tree_leaves_with_path({'params': to_plain(params)})
  named = {params_lib.name_of(path): np.asarray(x, np.float32) for path, x in leaves}
  arrays.write(file, named)
