# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The choices of `config.model`: names, and the functions that they call.

A `Table` imports a function when it is called: names are known without JAX.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from gpt_jax.core.spec import Table


def _of(file: str, names: str) -> dict[str, str]:
  """The functions of a file of `nn` that are called as they are named."""
  return {name: f'gpt_jax.core.nn.{file}:{name}' for name in names.split()}


def _dense(form: str) -> Callable[[], Any]:
  return lambda: importlib.import_module('gpt_jax.core.nn.block').dense(form)


MODELS = Table({}, 'model')
INPUTS = Table(_of('embed', 'tokens'), 'model.input')
POSITIONS = Table(
  _of('positions', 'alibi learned learned_by_layer none rope sinusoidal'), 'model.position'
)
PATTERNS = Table(_of('masks', 'bidirectional full local'), 'model.attention')
SCALES = Table(_of('attend', 'by_layer none rsqrt'))
BACKENDS = Table(
  _of('fast_backends', 'all_gather auto cudnn flash')
  | _of('backends', 'reference')
  | _of('fast_backends', 'ring splash ulysses'),
  'model.attention_backend',
)
# The keys of `layers.FORMS`.
_FORMS = 'relu gelu gelu_tanh silu tanh glu bilinear reglu geglu geglu_tanh swiglu'
FFNS = Table({form: _dense(form) for form in _FORMS.split()} | _of('moe', 'switch'))
NORMS = Table(_of('layers', 'layernorm rmsnorm'))
BLOCKS = Table(_of('block', 'parallel plain post pre reordered sandwich'))
BIASES = Table(
  {
    'all': 'gpt_jax.core.nn.layers:all_biases',
    'none': 'gpt_jax.core.nn.layers:no_biases',
    **_of('layers', 'where'),
  }
)
OUTPUTS = Table(_of('heads', 'tied untied'), 'model.output')
DROPOUTS = Table(
  {'none': 'gpt_jax.core.nn.layers:no_dropout', 'rates': 'gpt_jax.core.nn.layers:Rates'}
)
MATMULS = Table({'int8': 'gpt_jax.core.nn.int8:Int8', **_of('int8', 'plain')})
INITS = Table(
  _of('layers', 'gpt2 normal palm switch transformer truncated_normal uniform'),
  'model.init_weights',
)
SHARES = Table(
  {'all': 'gpt_jax.core.nn.stack:everything', **_of('stack', 'attention ffn none')}, 'model.share'
)
PIPELINES = Table(_of('pipeline', 'circular'))

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
