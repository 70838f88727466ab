# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mixtral: Mistral whose feed-forward layers are mixtures of experts."""

from typing import Any

from gpt_jax.hf import rope, routers
from gpt_jax.hf.base import Family, Options, Tensor, choice, linear
from gpt_jax.hf.llama import (
  BUFFERS,
  GATED,
  LAYER,
  shared_fields,
  shared_options,
  shared_tensors,
)
from gpt_jax.nn.transformer import Transformer


def _fields(options: Options) -> dict[str, Any]:
  num_experts = options.size('num_local_experts', 8)
  top_k = options.size('num_experts_per_tok', 2)
  if top_k > num_experts:
    raise options.fail(
      'num_experts_per_tok', f'is above num_local_experts={num_experts}'
    )
  window = options.get('sliding_window')
  if window is not None:
    window = options.size('sliding_window')
  kv_heads = None if options.has('num_key_value_heads') else 8
  position = rope.read(options, default_theta=1e6)
  fields = shared_fields(options, kv_heads, position=position)
  return fields | {
    'context_length': options.size('max_position_embeddings', 131_072),
    'attention': 'full' if window is None else f'local(window={window})',
    'ffn': f'switch(num_experts={num_experts}, expert={fields["ffn"]!r}, '
    f"top_k={top_k}, capacity_factor='none', renormalize=True, "
    f'{routers.read(options, jitter=0.0, aux=0.001)})',
    'norm': f'rmsnorm(epsilon={options.number("rms_norm_eps", 1e-5)})',
    'bias': 'none',
  }


def _options(model: Transformer) -> dict[str, Any]:
  name, _, ffn = choice(model, 'ffn')
  names = {ours: theirs for theirs, ours in reversed(GATED.items())}
  expert = ffn.get('expert', name)
  return {
    **shared_options(model),
    'sliding_window': choice(model, 'attention').kwargs.get('window'),
    'hidden_act': names.get(expert, expert),
    'num_local_experts': ffn.get('num_experts'),
    'num_experts_per_tok': ffn.get('top_k'),
    **routers.write(ffn, 'aux'),
    'output_router_logits': False,
  }


def _tensors(model: Transformer) -> list[Tensor]:
  moe = f'{LAYER}.block_sparse_moe'
  expert = f'{moe}.experts.{{expert}}'
  matrices = [
    *linear('layer/ffn/gate', f'{expert}.w1', bias=False),
    *linear('layer/ffn/in', f'{expert}.w3', bias=False),
    *linear('layer/ffn/out', f'{expert}.w2', bias=False),
  ]
  num_experts = choice(model, 'ffn').kwargs['num_experts']
  return [
    *shared_tensors(model, bias=False),
    *linear('layer/ffn/router', f'{moe}.gate', bias=False),
    *[t._replace(experts=num_experts) for t in matrices],
  ]


MIXTRAL = Family(
  model_type='mixtral',
  architectures={
    'MixtralForCausalLM': 'lm',
    'MixtralForSequenceClassification': 'classification',
    'MixtralModel': 'body',
  },
  prefix='model.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=BUFFERS,
)
