# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""AWD-LSTM (Merity et al., 2017), by the names of the released code.

It is no model of transformers: the tensors are those of the code's state dict
in safetensors, and config.json has `model_type`, the sizes and, if it is to be
trained further, the rates of `dropout` by their place.
"""

from typing import Any

from gpt_jax.hf.base import (
  Entry,
  Family,
  Options,
  Tensor,
  call_text,
  choice,
  choices,
  fixed,
  same,
  sizes,
  transposed,
)
from gpt_jax.nn.transformer import Transformer

# Arguments of `lstm` -> places in config.json.
_PLACES = {
  'input_dropout': 'input',
  'dropout': 'hidden',
  'weight_drop': 'weight',
}


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


def _tensors(model: Transformer) -> list[Tensor]:
  def names(name: str) -> tuple[str, ...]:
    """With the names inside the released code's module for weight drop."""
    raw = '_raw' if name == 'weight_hh_l0' else ''
    return f'rnns.{{layer}}.{name}', f'rnns.{{layer}}.module.{name}{raw}'

  layer = 'layer/forward'
  return [
    same(
      *('embed/embedding', 'embedding.weight'),
      *('encoder.weight', 'decoder.weight'),
    ),
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
    fixed(
      num_heads=1,
      position='none',
      block='plain',
      ffn='gelu_tanh',
      norm='layernorm(epsilon=1e-5)',
      output='tied(bias=True)',
    ),
  ),
  tensors=_tensors,
)
