# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""ELMo's bidirectional language model, by the names of AllenNLP's modules.

It is no model of transformers: the tensors are in safetensors, and config.json
has `model_type`, the sizes, both clips and, if it is to be trained further, the
dropout of the layers' inputs and of the last output. The parameters of a task's
scalar mix are not those of the language model.
"""

from typing import Any

import numpy as np

from gpt_jax.hf.base import (
  Entry,
  Family,
  Options,
  Tensor,
  call_text,
  choice,
  choices,
  fixed,
  linear,
  same,
  sizes,
  transposed,
)
from gpt_jax.nn.transformer import Transformer

# Arguments of `characters` -> options.
_CHARACTERS = {
  'd_embed': 'char_embedding_dim',
  'num_highways': 'n_highway',
  'num_characters': 'n_characters',
  'length': 'max_characters',
}


def _read_sizes(options: Options) -> dict[str, Any]:
  """All layers but the first add their input to their output."""
  pairs = options.get('filters')
  if not isinstance(pairs, list) or not all(
    isinstance(pair, list) and len(pair) == 2 for pair in pairs
  ):
    raise options.fail('filters', 'must be pairs of a width and a number')
  of_input = {x: options.size(name) for x, name in _CHARACTERS.items()}
  width = options.size('projection_dim')
  layer = {
    'size': options.size('cell_size'),
    'projection': width,
    'directions': 'separate',
    'biases': 1,
    'cell_clip': options.number('cell_clip', 0.0),
    'projection_clip': options.number('proj_clip', 0.0),
    'input_dropout': options.number('dropout', 0.0),
  }
  last = options.size('num_layers') - 1
  rates = [0.0] * last + [options.number('output_dropout', 0.0)]
  layers = [
    call_text('lstm', **layer, dropout=rate, residual=i > 0)
    for i, rate in enumerate(rates)
  ]
  filters = tuple(tuple(pair) for pair in pairs)
  return {
    'input': call_text('characters', filters=filters, **of_input),
    'attention': ', '.join(layers),
    'd_model': 2 * width,
    'd_ff': 8 * width,
  }


def _write_sizes(model: Transformer) -> dict[str, Any]:
  given, layers = choice(model, 'input').kwargs, choices(model, 'attention')
  layer = layers[0]
  found = {name: given.get(x) for x, name in _CHARACTERS.items()}
  return {
    **found,
    'filters': [[*pair] for pair in given.get('filters', ())],
    'projection_dim': layer.kwargs.get('projection'),
    'cell_size': layer.kwargs.get('size'),
    'cell_clip': layer.kwargs.get('cell_clip'),
    'proj_clip': layer.kwargs.get('projection_clip'),
    'dropout': layer.kwargs.get('input_dropout'),
    'output_dropout': layers[-1].kwargs.get('dropout'),
  }


def _convolution(i: int) -> list[Tensor]:
  """Torch's `Conv1d`: its weight is [out, in, width]."""

  def reverse(x: np.ndarray) -> np.ndarray:
    return x.transpose(2, 1, 0)

  kernel = Tensor(
    *((f'conv.{i}.weight',), (f'embed/kernel_{i}',)),
    split=lambda x: [reverse(x)],
    join=lambda parts: reverse(parts[0]),
  )
  return [kernel, same(f'embed/bias_{i}', f'conv.{i}.bias')]


def _tensors(model: Transformer) -> list[Tensor]:
  given = choice(model, 'input').kwargs
  found = [same('embed/embedding', 'char_embedding.weight')]
  for i in range(len(given['filters'])):
    found += _convolution(i)
  for i in range(given['num_highways']):
    found += linear(f'embed/highway_{i}', f'highway.{i}')
  found += linear('embed/projection', 'projection')
  for name in ('forward', 'backward'):
    ours, theirs = f'layer/{name}', f'{name}.{{layer}}'
    found += [
      transposed(f'{ours}/input/kernel', f'{theirs}.input_linearity.weight'),
      same(f'{ours}/input/bias', f'{theirs}.state_linearity.bias'),
      transposed(f'{ours}/kernel_hidden', f'{theirs}.state_linearity.weight'),
      transposed(
        f'{ours}/kernel_projection', f'{theirs}.state_projection.weight'
      ),
    ]
  return [
    *found,
    same('head/embedding', 'softmax.weight'),
    same('head_bias', 'softmax.bias'),
  ]


ELMO = Family(
  model_type='elmo',
  architectures={'Elmo': 'lm'},
  prefix='',
  entries=(
    sizes(
      vocab_size='vocab_size',
      context_length=('context_length', 160),
      num_layers='num_layers',
    ),
    Entry(_read_sizes, _write_sizes),
    fixed(
      num_heads=1,
      position='none',
      block='plain',
      ffn='gelu_tanh',
      norm='layernorm(epsilon=1e-5)',
      output='untied(bias=True)',
    ),
  ),
  tensors=_tensors,
  unread=(r'scalar_mix\..*',),
)
