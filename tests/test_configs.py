# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every file in configs/: it loads, resolves and counts as its paper does."""

import importlib
import pathlib

import jax
import numpy as np
import pytest

import configs
from gpt_jax import config as config_lib
from gpt_jax import flops, inspect, run
from gpt_jax.spec import UsageError

FOLDER = pathlib.Path(__file__).parents[1] / 'configs'
NAMES = sorted(path.stem for path in FOLDER.glob('*.py'))


def module(name):
  return importlib.import_module(f'configs.{name}')


def sizes(name):
  return list(getattr(module(name), 'SIZES', ['']))


ALL = [(name, size) for name in NAMES for size in sizes(name)]


def test_configs_come_from_this_checkout():
  # Other tests may put the folder onto the path once more.
  assert {pathlib.Path(p) for p in configs.__path__} == {FOLDER}
  assert {'base', 'gpt1', 'gpt2', 'smoke'} <= {*NAMES}


@pytest.mark.parametrize('name, size', ALL)
def test_config_resolves(name, size):
  config = module(name).get_config(size)
  assert config.is_locked
  resolved = config_lib.resolve(config)
  unknown = {k for k, v in config_lib.flatten(resolved).items() if v is None}
  assert unknown <= {'model.vocab_size', 'data.store', 'eval.num_batches'}
  # A config may change fields, not invent them.
  base_fields = config_lib.flatten(module('base').get_config())
  assert {*config_lib.flatten(resolved)} == {*base_fields}


@pytest.mark.parametrize('name', NAMES)
def test_default_size_is_the_first(name):
  default, first = module(name).get_config(), sizes(name)[0]
  assert default == module(name).get_config(first)


@pytest.mark.parametrize('name', NAMES)
def test_unknown_size_lists_the_sizes(name):
  with pytest.raises(ValueError) as error:
    module(name).get_config('7b')
  known = sizes(name)
  if known == ['']:
    expected = f'configs/{name}.py:7b: has one size; leave :7b out'
  else:
    listed = ', '.join(known)
    expected = f'configs/{name}.py:7b: unknown size; one of {listed}'
  assert str(error.value) == expected


@pytest.mark.parametrize('name, size', ALL)
def test_batch_splits_over_eight_devices_or_says_so(name, size):
  config = config_lib.resolve(module(name).get_config(size))
  if config.batch.rows % 8:
    with pytest.raises(UsageError, match=r'batch\.rows=12: does not divide'):
      run.check_devices(config)
  else:
    run.check_devices(config)


# Of GPT-2's table 2, counted with tied embeddings: 124M, 355M, 774M, 1.56B.
@pytest.mark.parametrize(
  'name, size, parameters',
  [
    ('gpt1', '', 116_534_784),
    ('gpt2', 'small', 124_439_808),
    ('gpt2', 'medium', 354_823_168),
    ('gpt2', 'large', 774_030_080),
    ('gpt2', 'xl', 1_557_611_200),
  ],
)
def test_parameter_counts_of_the_papers(name, size, parameters):
  config = config_lib.resolve(module(name).get_config(size))
  tree, figures = inspect.figures_of(config)
  assert figures['parameters'] == parameters
  assert figures['parameters_active'] == parameters
  # The same by arithmetic: embeddings, positions, 12 D^2 + 13 D a layer, and
  # the last norm where norms come first.
  m = config.model
  layer = 12 * m.d_model**2 + 13 * m.d_model
  table = (m.vocab_size + m.context_length) * m.d_model
  last = 2 * m.d_model if m.block == 'pre' else 0
  assert parameters == table + m.num_layers * layer + last
  assert figures['parameters_without_embeddings'] == parameters - table
  assert {x.dtype for x in jax.tree.leaves(tree)} == {np.dtype('float32')}


def test_figures_of_gpt2_small():
  config = config_lib.resolve(module('gpt2').get_config('small'))
  _, figures = inspect.figures_of(config)
  # 12 layers of 12 * 768^2, and the 50,257 x 768 table, once.
  matmul = 12 * 12 * 768**2 + 50_257 * 768
  # PaLM, appendix B: 6 N + 12 L H Q T.
  per_token = 6 * matmul + 12 * 12 * 12 * 64 * 1024
  assert figures['parameters_matmul'] == matmul
  assert figures['flops_per_token'] == per_token
  assert figures['tokens_per_step'] == 512 * 1024
  assert figures['tokens_total'] == 600_000 * 512 * 1024
  assert figures['flops_total'] == per_token * 600_000 * 512 * 1024


def test_untied_head_is_counted_once():
  config = module('gpt2').get_config('small').unlock()
  config.model.output = 'untied'
  config = config_lib.resolve(config)
  tree, figures = inspect.figures_of(config)
  assert figures['parameters'] == 124_439_808 + 50_257 * 768
  tied = 12 * 12 * 768**2 + 50_257 * 768
  assert flops.matmul_parameters(config, tree) == tied


def test_figures_need_the_vocabulary():
  config = config_lib.resolve(module('smoke').get_config())
  with pytest.raises(UsageError, match=r'--config\.model\.vocab_size=N'):
    inspect.figures_of(config)


# Table 2 of GPT-2 and section 4.1 of GPT-1.
@pytest.mark.parametrize(
  'name, size, layers, width, heads, context, vocab',
  [
    ('gpt1', '', 12, 768, 12, 512, 40_478),
    ('gpt2', 'small', 12, 768, 12, 1024, 50_257),
    ('gpt2', 'medium', 24, 1024, 16, 1024, 50_257),
    ('gpt2', 'large', 36, 1280, 20, 1024, 50_257),
    ('gpt2', 'xl', 48, 1600, 25, 1024, 50_257),
  ],
)
def test_sizes_of_the_papers(name, size, layers, width, heads, context, vocab):
  m = config_lib.resolve(module(name).get_config(size)).model
  found = (m.num_layers, m.d_model, m.num_heads, m.context_length, m.vocab_size)
  assert found == (layers, width, heads, context, vocab)
  assert (m.d_ff, m.head_size, m.num_kv_heads) == (4 * width, 64, heads)
