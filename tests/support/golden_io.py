# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads the checkpoints and recorded outputs of transformers in tests/golden.

`golden.npz` holds arrays CASE/in/NAME, CASE/out/NAME and CASE/valid/AXIS;
`meta.json` says what each case is and which outputs padding leaves undefined.
"""

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).parents[1] / 'golden'
# Of checkpoints; others hold values alone.
FOLDERS = [
  path.parent
  for path in sorted(ROOT.glob('*/meta.json'))
  if json.loads(path.read_text()).get('kind') != 'values'
]


class Case(NamedTuple):
  """One recorded call."""

  call: str  # forward, or greedy
  static: dict[str, Any]
  inputs: dict[str, np.ndarray]
  outputs: dict[str, np.ndarray]
  valid: dict[str, np.ndarray]
  described: dict[str, Any]

  def max_error(self, name, array):
    """The largest difference where the output is defined."""
    golden, array = self.outputs[name], np.asarray(array)
    assert array.shape == golden.shape, (name, array.shape, golden.shape)
    difference = np.abs(array.astype(np.float64) - golden)
    info = self.described[name]
    if 'valid' in info:
      mask, axis = self.valid[info['valid']], info['batch_axis']
      left = (1,) * axis
      right = (1,) * (difference.ndim - axis - mask.ndim)
      mask = mask.reshape(left + mask.shape + right)
      difference = np.where(mask, difference, 0)
    return float(difference.max())


def meta(folder):
  return json.loads((folder / 'meta.json').read_text())


def cases(folder, call):
  """The names of the cases of a kind."""
  found = meta(folder)['cases'].items()
  return [name for name, case in found if case['call'] == call]


def case(folder, name):
  described = meta(folder)['cases'][name]
  parts = {'in': {}, 'out': {}, 'valid': {}}
  with np.load(folder / 'golden.npz') as arrays:
    for key in arrays.files:
      of, kind, array = key.split('/')
      if of == name and not array.startswith('_'):
        parts[kind][array] = arrays[key]
  static = described.get('static', {})
  outputs = described['outputs']
  return Case(described['call'], static, *parts.values(), outputs)


def config(folder):
  return json.loads((folder / 'config.json').read_text())


def tensors(folder):
  return load_file(folder / 'model.safetensors')
