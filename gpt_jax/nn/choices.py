# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The choices of `config.model`: names, and the functions that they call.

A `Table` imports a function when it is called: names are known without JAX.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from gpt_jax.spec import Table

INPUTS = Table(
  {
    'adaptive': 'gpt_jax.nn.embed:adaptive',
    'characters': 'gpt_jax.nn.embed:characters',
    'tokens': 'gpt_jax.nn.embed:tokens',
  }
)

POSITIONS = Table(
  {
    'alibi': 'gpt_jax.nn.positions:alibi',
    'deberta': 'gpt_jax.nn.deberta:deberta',
    'learned': 'gpt_jax.nn.positions:learned',
    'learned_by_layer': 'gpt_jax.nn.positions:learned_by_layer',
    'none': 'gpt_jax.nn.positions:none',
    'rope': 'gpt_jax.nn.positions:rope',
    'sinusoidal': 'gpt_jax.nn.positions:sinusoidal',
    't5_bias': 'gpt_jax.nn.positions:t5_bias',
    'transformer_xl': 'gpt_jax.nn.transformer_xl:transformer_xl',
    'xlnet': 'gpt_jax.nn.transformer_xl:xlnet',
  }
)

PATTERNS = Table(
  {
    'bidirectional': 'gpt_jax.nn.masks:bidirectional',
    'bigbird': 'gpt_jax.nn.masks:bigbird',
    'fixed': 'gpt_jax.nn.masks:fixed',
    'full': 'gpt_jax.nn.masks:full',
    'local': 'gpt_jax.nn.masks:local',
    'strided': 'gpt_jax.nn.masks:strided',
    'lstm': 'gpt_jax.nn.lstm:lstm',
  }
)

SCALES = Table(
  {
    'by_layer': 'gpt_jax.nn.attend:by_layer',
    'none': 'gpt_jax.nn.attend:none',
    'rsqrt': 'gpt_jax.nn.attend:rsqrt',
  }
)

BACKENDS = Table(
  {
    'all_gather': 'gpt_jax.nn.backends:all_gather',
    'auto': 'gpt_jax.nn.backends:auto',
    'blocks': 'gpt_jax.nn.backends:blocks',
    'cudnn': 'gpt_jax.nn.backends:cudnn',
    'flash': 'gpt_jax.nn.backends:flash',
    'reference': 'gpt_jax.nn.backends:reference',
    'ring': 'gpt_jax.nn.backends:ring',
    'splash': 'gpt_jax.nn.backends:splash',
    'ulysses': 'gpt_jax.nn.backends:ulysses',
  }
)


def _dense(form: str) -> Callable[[], Any]:
  return lambda: importlib.import_module('gpt_jax.nn.block').dense(form)


# The keys of `layers.FORMS`.
_FORMS = (
  *('relu', 'gelu', 'gelu_tanh', 'silu', 'tanh'),
  *('glu', 'bilinear', 'reglu', 'geglu', 'geglu_tanh', 'swiglu'),
)
FFNS = Table(
  {
    **{form: _dense(form) for form in _FORMS},
    'switch': 'gpt_jax.nn.block:switch',
  }
)

NORMS = Table(
  {
    'layernorm': 'gpt_jax.nn.layers:layernorm',
    'rmsnorm': 'gpt_jax.nn.layers:rmsnorm',
  }
)

BLOCKS = Table(
  {
    'parallel': 'gpt_jax.nn.block:parallel',
    'plain': 'gpt_jax.nn.block:plain',
    'post': 'gpt_jax.nn.block:post',
    'pre': 'gpt_jax.nn.block:pre',
    'reordered': 'gpt_jax.nn.block:reordered',
    'sandwich': 'gpt_jax.nn.block:sandwich',
  }
)

BIASES = Table(
  {
    'all': 'gpt_jax.nn.layers:all_biases',
    'none': 'gpt_jax.nn.layers:no_biases',
    'where': 'gpt_jax.nn.layers:where',
  }
)

OUTPUTS = Table(
  {
    'adaptive': 'gpt_jax.nn.heads:adaptive_softmax',
    'tied': 'gpt_jax.nn.heads:tied',
    'untied': 'gpt_jax.nn.heads:untied',
  }
)

DROPOUTS = Table(
  {
    'none': 'gpt_jax.nn.layers:no_dropout',
    'rates': 'gpt_jax.nn.layers:rates',
  }
)

MATMULS = Table(
  {
    'int8': 'gpt_jax.nn.int8:int8',
    'plain': 'gpt_jax.nn.int8:plain',
  }
)

INITS = Table(
  {
    'gpt2': 'gpt_jax.nn.layers:gpt2',
    'normal': 'gpt_jax.nn.layers:normal',
    'palm': 'gpt_jax.nn.layers:palm',
    'switch': 'gpt_jax.nn.layers:switch',
    't5': 'gpt_jax.nn.layers:t5',
    'transformer': 'gpt_jax.nn.layers:transformer',
    'truncated_normal': 'gpt_jax.nn.layers:truncated_normal',
    'uniform': 'gpt_jax.nn.layers:uniform',
  }
)

SHARES = Table(
  {
    'all': 'gpt_jax.nn.stack:everything',
    'attention': 'gpt_jax.nn.stack:attention',
    'ffn': 'gpt_jax.nn.stack:ffn',
    'none': 'gpt_jax.nn.stack:none',
    'stacks': 'gpt_jax.nn.stack:stacks',
  }
)

PIPELINES = Table(
  {
    'circular': 'gpt_jax.nn.pipeline:circular',
  }
)

# By the field of `config.model`.
CHOICES: dict[str, Mapping[str, Callable[..., Any]]] = {
  'input': INPUTS,
  'position': POSITIONS,
  'attention': PATTERNS,
  'encoder_attention': PATTERNS,
  'attention_scale': SCALES,
  'attention_backend': BACKENDS,
  'ffn': FFNS,
  'encoder_ffn': FFNS,
  'norm': NORMS,
  'block': BLOCKS,
  'bias': BIASES,
  'output': OUTPUTS,
  'dropout': DROPOUTS,
  'matmul': MATMULS,
  'init_weights': INITS,
  'share': SHARES,
  'pipeline': PIPELINES,
}
