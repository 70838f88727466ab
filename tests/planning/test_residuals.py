# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a traced step saves for its backward pass."""

import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.planning import residuals
from tests.support import tiny


@pytest.mark.parametrize('loop', ['scan', 'unroll'])
def test_full_rematerialisation_saves_the_inputs_of_layers(loop):
  fields = {'model.remat': 'full', 'model.loop': loop, 'model.dtype': 'float32'}
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE | fields))
  model = config.model
  assert residuals.of(config) == (4 * model.num_layers * model.d_model, 0, 0)


def test_dots_saves_the_outputs_of_products_too():
  """Queries, keys, values, the layer's hidden values and attention's output."""
  fields = {'model.remat': 'dots', 'model.dtype': 'float32'}
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE | fields))
  model = config.model
  heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_size
  each = 2 * model.d_model + heads + model.d_ff
  assert residuals.of(config) == (4 * model.num_layers * each, 0, 0)


def test_without_rematerialisation_weights_are_saved_as_they_are_multiplied():
  fields = {'model.dtype': 'bfloat16', 'model.bias': 'none'}
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE | fields))
  model = config.model
  heads = 2 * (model.num_heads + model.num_kv_heads) * model.head_size
  matrices = model.d_model * (heads + 2 * model.d_ff)
  assert residuals.of(config).weights == 2 * model.num_layers * matrices
