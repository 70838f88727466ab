# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""FLOPs of a token of every shipped config, as they were when last looked at.

  python tests/core/costs/test_golden_flops.py  # writes golden_flops.json anew

`model` is PaLM's formula, with each layer's span; `traced` all matrix products
of loss and gradients that the compiler is given, of the last model in each
file, and where it has decoders of the last of these. A change that was not
meant to change the work shows here.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

import importlib  # noqa: E402

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from gpt_jax.core import config as config_lib  # noqa: E402
from gpt_jax.core.costs import flops, matmuls  # noqa: E402
from gpt_jax.core.rows.row_makers import blank  # noqa: E402
from gpt_jax.core.rows.rows import Keys  # noqa: E402
from gpt_jax.core.training import step  # noqa: E402
from tests.support import tiny  # noqa: E402

FILE = HERE / 'golden_flops.json'
CONFIGS = ROOT / 'configs'


def shipped():
  """`gpt3.py:175b` -> whether it is the one of its file that is traced."""
  names = {}
  for path in sorted(CONFIGS.glob('*.py')):
    module = importlib.import_module(f'configs.{path.stem}')
    if 'finetune' in module.get_config():  # the model is that of --init
      continue
    last = ''
    for size in getattr(module, 'SIZES', ['']):
      name = f'{path.name}:{size}' if size else path.name
      names[name] = False
      if not module.get_config(size).model.num_encoder_layers:
        last = name
    names[last or name] = True
  return names


def count(name, traced):
  """FLOPs of a token."""
  stem, _, size = name.partition('.py')
  module = importlib.import_module(f'configs.{stem}')
  config = config_lib.resolve_model(module.get_config(size[1:]))
  if config.model.vocab_size is None:
    # What the tokenizer will find does not matter here.
    config = config_lib.set_vocab_size(config, 1000, 'any')
  objective = config_lib.objective(config)
  params = tiny.shapes(objective)
  found = {'model': flops.per_token(config, params)}
  if not traced:
    return found
  rows, length, _ = config_lib.ramp(config).stages[-1].shape
  one = blank(config.data.rows, length)
  made = objective.make_batch(one, Keys.held_out(np.zeros(1, np.int64)))
  batch = {key: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype) for key, x in made.items()}

  def gradients(params, batch, key):
    return step.mean_gradients(params, batch, key, objective=objective, num_steps=1, num_micro=1)

  jaxpr = jax.make_jaxpr(gradients)(params, batch, jax.random.key(0))
  tokens = rows * length
  return found | {'traced': matmuls.flops(jaxpr) / tokens}


# Of the kinds of layers that other files have.
ALIKE = ('base.py', 'chinchilla.py:70b', 'lamda.py:137b', 'scaling.py')


def test_all_configs_are_there():
  assert {*json.loads(FILE.read_text())} == {*shipped()} > {*ALIKE}


@pytest.mark.parametrize(
  'name, last',
  # One size of each file is fast enough for every day; all are for CI.
  [
    pytest.param(name, last, marks=[pytest.mark.slow] * (not last or name in ALIKE))
    for name, last in shipped().items()
  ],
)
def test_flops_are_what_they_were(name, last):
  golden = json.loads(FILE.read_text())[name]
  meant = 'if it was meant: python tests/core/costs/test_golden_flops.py'
  found = count(name, traced=last)
  # A quotient; its golden figure went through JSON.
  assert found.pop('traced', 0) == pytest.approx(golden.pop('traced', 0), rel=1e-9), meant
  assert found == golden, meant


if __name__ == '__main__':
  jax.config.update('jax_platforms', 'cpu')
  found = {name: count(name, last) for name, last in shipped().items()}
  FILE.write_text(json.dumps(found, indent=1) + '\n')
