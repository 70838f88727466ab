# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""AWD-LSTM and ELMo: language models of LSTMs.

They are no models of transformers: the tensors are in safetensors, by the names
of the released code (AWD-LSTM: Merity et al., 2017) or of AllenNLP's modules
(ELMo). config.json has `model_type`, the sizes and, if the model is to be
trained further, its rates of dropout; ELMo's also both clips. The parameters of
a task's scalar mix are not those of ELMo's language model.
"""

from typing import Any

import numpy as np

from gpt_jax.core.nn.transformer import Transformer
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

# What both have in common, besides the output.
_FIXED = {
  'num_heads': 1,
  'position': 'none',
  'block': 'plain',
  'ffn': 'gelu_tanh',
  'norm': 'layernorm(epsilon=1e-5)',
}

# AWD-LSTM.

# Arguments of `lstm` -> places in config.json.
_PLACES = {'input_dropout': 'input', 'dropout': 'hidden', 'weight_drop': 'weight'}


def _read_layers(options: Options) -> dict[str, Any]:
  """All layers have `hidden_size` cells but the last, which is tied."""
  given = options.get('dropout', {})
  if not isinstance(given, dict):
    raise options.fail('dropout', 'must have a rate for each place')
  rates = Options(given)
  last = options.size('num_layers') - 1
  width, hidden = options.size('embedding_size'), options.size('hidden_size')

  def layer(i: int) -> str:
    places = {**_PLACES, 'dropout': 'output' if i == last else 'hidden'}
    if i:
      del places['input_dropout']
    found = {name: rates.number(x, 0.0) for name, x in places.items()}
    return call_text('lstm', size=width if i == last else hidden, **found)

  words = rates.number('embedding', 0.0)
  return {
    'attention': ', '.join(map(layer, range(last + 1))),
    'dropout': f'rates(words={words!r})',
    'd_ff': 4 * width,
  }


def _write_layers(model: Transformer) -> dict[str, Any]:
  first, last = choices(model, 'attention')[0], choices(model, 'attention')[-1]
  rates = {place: first.kwargs.get(n, 0.0) for n, place in _PLACES.items()}
  rates['output'] = last.kwargs.get('dropout', 0.0)
  rates['embedding'] = choice(model, 'dropout').kwargs.get('words', 0.0)
  return {'hidden_size': first.kwargs.get('size', 1), 'dropout': rates}


def _awd_lstm_tensors(model: Transformer) -> list[Tensor]:
  def names(name: str) -> tuple[str, ...]:
    """With the names inside the released code's module for weight drop."""
    raw = '_raw' if name == 'weight_hh_l0' else ''
    return f'rnns.{{layer}}.{name}', f'rnns.{{layer}}.module.{name}{raw}'

  layer = 'layer/forward'
  return [
    same('embed/embedding', 'embedding.weight', 'encoder.weight', 'decoder.weight'),
    same('head_bias', 'decoder.bias'),
    transposed(f'{layer}/input/kernel', *names('weight_ih_l0')),
    same(f'{layer}/input/bias', *names('bias_ih_l0')),
    transposed(f'{layer}/kernel_hidden', *names('weight_hh_l0')),
    same(f'{layer}/bias_hidden', *names('bias_hh_l0')),
  ]


AWD_LSTM = Family(
  model_type='awd_lstm',
  architectures={'AwdLstm': 'lm'},
  prefix='',
  entries=(
    sizes(
      vocab_size='vocab_size',
      context_length=('context_length', 280),
      num_layers='num_layers',
      embedding_size='d_model',
    ),
    Entry(_read_layers, _write_layers),
    fixed(**_FIXED, output='tied(bias=True)'),
  ),
  tensors=_awd_lstm_tensors,
)


# ELMo.

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
    call_text('lstm', **layer, dropout=rate, residual=i > 0) for i, rate in enumerate(rates)
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
    (f'conv.{i}.weight',),
    (f'embed/kernel_{i}',),
    split=lambda x: [reverse(x)],
    join=lambda parts: reverse(parts[0]),
  )
  return [kernel, same(f'embed/bias_{i}', f'conv.{i}.bias')]


def _elmo_tensors(model: Transformer) -> list[Tensor]:
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
      transposed(f'{ours}/kernel_projection', f'{theirs}.state_projection.weight'),
    ]
  return [*found, same('head/embedding', 'softmax.weight'), same('head_bias', 'softmax.bias')]


ELMO = Family(
  model_type='elmo',
  architectures={'Elmo': 'lm'},
  prefix='',
  entries=(
    sizes(vocab_size='vocab_size', context_length=('context_length', 160), num_layers='num_layers'),
    Entry(_read_sizes, _write_sizes),
    fixed(**_FIXED, output='untied(bias=True)'),
  ),
  tensors=_elmo_tensors,
  unread=(r'scalar_mix\..*',),
)
