# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Switch Transformers: T5 1.0 with experts in some of its layers."""

from typing import Any

from gpt_jax.hf import routers, t5
from gpt_jax.hf.base import (
  ACTIVATIONS,
  Family,
  Options,
  Tensor,
  choice,
  ffns,
  linear,
  shortest_period,
)
from gpt_jax.nn.transformer import Transformer

# Options of older releases, or that only later code would heed.
_ONLY = {
  'router_dtype': 'float32',
  'router_ignore_padding_tokens': False,
  'router_type': 'tokens_masked',
  'batch_prioritized_routing': False,
  'num_selected_experts': 1,
  'is_gated_act': False,
}


def _fields(options: Options) -> dict[str, Any]:
  for name, value in _ONLY.items():
    options.only(name, value)
  dense = options.choice('dense_act_fn', ACTIVATIONS, 'relu')
  options.only('feed_forward_proj', options.get('dense_act_fn', 'relu'))
  experts = (
    f'switch(num_experts={options.size("num_experts", 8)}, expert={dense!r}, '
    f'capacity={options.size("expert_capacity", 64)}, '
    f'{routers.read(options, jitter=0.01, aux=0.001, z=0.001)}'
    f'{", router_bias=True" * options.flag("router_bias", False)})'
  )
  fields = t5.shared_fields(options)
  num_layers = num_encoder_layers = fields['num_encoder_layers']
  if options.has('num_decoder_layers'):
    num_layers = options.size('num_decoder_layers', num_layers)
  else:
    num_layers = 12
  stacks = {'encoder': num_encoder_layers, 'decoder': num_layers}
  encoder_ffn, ffn = (
    shortest_period(
      [experts if s else dense for s in _sparse(options, stack, count)]
    )
    for stack, count in stacks.items()
  )
  tied = options.flag('tie_word_embeddings', True)
  return fields | {
    'num_layers': num_layers,
    'ffn': ffn,
    'encoder_ffn': None if encoder_ffn == ffn else encoder_ffn,
    'output': "tied(scale='rsqrt')" if tied else 'untied',
  }


def _sparse(options: Options, stack: str, num_layers: int) -> list[bool]:
  """Which layers have experts.

  The step follows from their number; but where config.json has it, as all do
  that HF wrote, that counts.
  """
  number, step = f'num_sparse_{stack}_layers', f'{stack}_sparse_step'
  values = {number: options.get(number, 3), step: options.get(step, 0)}
  for name, value in values.items():
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
      raise options.fail(name, 'must be a whole number from 0')
  every = values[step]
  if options.get(step) is None:
    # HF's own way to say none, which makes it one if there are two layers.
    every = num_layers // values[number] if values[number] else num_layers
  return [
    every == 1 or (every > 1 and i % every == 1) for i in range(num_layers)
  ]


def _options(model: Transformer) -> dict[str, Any]:
  stacks = {stack: ffns(model, stack) for stack in ('encoder', 'decoder')}
  calls = [call for of_layers in stacks.values() for call in of_layers]
  switch = next((c.kwargs for c in calls if c.name == 'switch'), {})
  # Experts are like the others.
  dense = next((c.name for c in calls if c.name != 'switch'), '')
  dense = dense or switch['expert']
  names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
  options = t5.shared_options(model)
  for stack, of_layers in stacks.items():
    sparse = [i for i, call in enumerate(of_layers) if call.name == 'switch']
    options |= {
      f'num_sparse_{stack}_layers': len(sparse),
      f'{stack}_sparse_step': _step(sparse, len(of_layers)),
    }
  return options | {
    'dense_act_fn': names.get(dense, dense),
    'num_experts': switch.get('num_experts'),
    # No row is longer than the context.
    'expert_capacity': switch.get('capacity') or model.context_length,
    **routers.write(switch, 'aux', 'z'),
    'router_bias': switch.get('router_bias', False),
    'router_dtype': 'float32',
    'router_ignore_padding_tokens': False,
    'add_router_probs': False,
  }


def _step(sparse: list[int], num_layers: int) -> int:
  """The way back from `_sparse`, if there is any."""
  if len(sparse) == num_layers:
    return 1
  if len(sparse) < 2:
    return num_layers * len(sparse)
  return sparse[1] - sparse[0]


def _tensors(model: Transformer) -> list[Tensor]:
  embed, *tensors = t5.shared_tensors(model)
  if choice(model, 'output').name == 'untied':
    # HF 5 has these tables then, and would draw them anew; ours are equal.
    embed = embed._replace(always=embed.names)
  tensors.append(embed)
  for stack, path, sublayer in (
    ('encoder', 'encoder_layer', 1),
    ('decoder', 'layer', 2),
  ):
    calls = ffns(model, stack)
    sparse = tuple(i for i, c in enumerate(calls) if c.name == 'switch')
    dense = tuple(i for i in range(len(calls)) if i not in sparse)
    mlp = f'{t5.layer(stack)}.{sublayer}.mlp'
    tensors += [t._replace(layers=dense) for t in _ffn(path, mlp)]
    if sparse:
      switch = calls[sparse[0]].kwargs
      name, bias = f'{mlp}.router.classifier', switch['router_bias']
      router = linear(f'{path}/ffn/router', name, bias)
      each = _ffn(path, f'{mlp}.experts.expert_{{expert}}')
      tensors += [t._replace(layers=sparse) for t in router]
      tensors += [
        t._replace(layers=sparse, experts=switch['num_experts']) for t in each
      ]
  return tensors


def _ffn(path: str, name: str) -> list[Tensor]:
  return [
    *linear(f'{path}/ffn/in', f'{name}.wi', bias=False),
    *linear(f'{path}/ffn/out', f'{name}.wo', bias=False),
  ]


SWITCH_TRANSFORMERS = Family(
  model_type='switch_transformers',
  architectures={
    'SwitchTransformersForConditionalGeneration': 'lm',
    'SwitchTransformersModel': 'body',
  },
  prefix='transformer.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=t5.BUFFERS,
  bare=True,
)
