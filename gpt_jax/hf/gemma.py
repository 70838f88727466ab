# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gemma 2 and the text models of Gemma 3.

LLaMA with gated GELU, scaled embeddings, norms before and after each sublayer
that multiply by 1 + weight, and windows in most layers. Gemma 2 bounds scores
and logits; Gemma 3 has norms of each head's queries and keys instead, and
another base of the rotation in layers with a window.
"""

from typing import Any

from gpt_jax.hf import rope, windows
from gpt_jax.hf.base import Family, Options, Tensor, choice, norm
from gpt_jax.hf.llama import (
  BIASES,
  BUFFERS,
  LAYER,
  biases,
  shared_fields,
  shared_options,
  shared_tensors,
)
from gpt_jax.hf.parts import gated, qk_norms
from gpt_jax.nn.transformer import Transformer

_PER_HEAD = "sandwich(qk_norm='per_head')"


def _fields(
  options: Options,
  *,
  context_length: int,
  full_every: int,
  position: str,
  scores: float | None,
  logits: float | None,
) -> dict[str, Any]:
  """What both have, with their own defaults.

  Args:
    options: of config.json.
    context_length: where they do not say.
    full_every: the same: of so many layers the last sees all, the rest a
      window.
    position: `model.position`.
    scores: bound of the attention scores; None: there is none.
    logits: bound of the logits.
  """
  options.only('use_bidirectional_attention', False)
  bias = BIASES[options.flag('attention_bias', False), False]
  kv_heads = None if options.has('num_key_value_heads') else 4
  fields = shared_fields(
    options,
    kv_heads,
    default_head_size=256,
    position=position,
    activation=('hidden_activation', 'gelu_pytorch_tanh'),
    default_tied=True,
  )
  kinds = [
    windows.SLIDING if (i + 1) % full_every else windows.FULL
    for i in range(fields['num_layers'])
  ]
  window = 4096
  if options.has('sliding_window'):
    null = options.get('sliding_window') is None
    window = None if null else options.size('sliding_window')
  size = options.number('query_pre_attn_scalar', 256)
  return fields | {
    'context_length': options.size('max_position_embeddings', context_length),
    'input': "tokens(scale='sqrt')",
    'attention': windows.read(options, kinds, window),
    'attention_scale': _call(
      'rsqrt',
      size=None if size == fields['head_size'] else size,
      softcap=scores,
    ),
    'norm': f'rmsnorm(epsilon={options.number("rms_norm_eps", 1e-6)}, '
    'plus_one=True)',
    'block': 'sandwich',
    'bias': bias,
    'output': _call(fields['output'], softcap=logits),
  }


def _call(name: str, **arguments: float | None) -> str:
  """A call-string with those of the arguments that are not None."""
  given = [f'{n}={x}' for n, x in arguments.items() if x is not None]
  return f'{name}({", ".join(given)})' if given else name


def _softcap(
  options: Options, name: str, default: float | None
) -> float | None:
  """A bound, where null means that there is none."""
  if not options.has(name):
    return default
  if options.get(name) is None:
    return None
  if options.number(name) <= 0:
    raise options.fail(name, 'must be above 0')
  return options.number(name)


def _gemma2_fields(options: Options) -> dict[str, Any]:
  return _fields(
    options,
    context_length=8192,
    full_every=2,
    position=rope.read(options),
    scores=_softcap(options, 'attn_logit_softcapping', 50.0),
    logits=_softcap(options, 'final_logit_softcapping', 30.0),
  )


def _gemma3_fields(options: Options) -> dict[str, Any]:
  # Releases of transformers read it, and leave the scores as they are.
  options.only('attn_logit_softcapping', None)
  fields = _fields(
    options,
    context_length=131_072,
    full_every=options.size('sliding_window_pattern', 6),
    position=rope.read_with_local(options, default_theta=1e6),
    scores=None,
    logits=_softcap(options, 'final_logit_softcapping', None),
  )
  return fields | {'block': _PER_HEAD}


def _options(model: Transformer) -> dict[str, Any]:
  """The way back from `_fields`."""
  shared = shared_options(model)
  activation = shared.pop('hidden_act')
  attention, _ = biases(model)
  scale = choice(model, 'attention_scale').kwargs
  output = choice(model, 'output').kwargs
  return {
    **shared,
    **windows.write(model),
    'hidden_activation': activation,
    'attention_bias': attention,
    'query_pre_attn_scalar': scale.get('size') or model.head_size,
    'attn_logit_softcapping': scale.get('softcap') or None,
    'final_logit_softcapping': output.get('softcap') or None,
    'use_bidirectional_attention': False,
  }


def _gemma3_options(model: Transformer) -> dict[str, Any]:
  return {**_options(model), **rope.write_with_local(model)}


def _tensors(model: Transformer) -> list[Tensor]:
  attention, _ = biases(model)
  h = LAYER
  norms = {
    'attention_output_norm': 'post_attention_layernorm',
    'ffn_norm': 'pre_feedforward_layernorm',
    'ffn_output_norm': 'post_feedforward_layernorm',
  }
  shared = shared_tensors(model, attention)
  return [
    *[t for t in shared if t.paths != ('layer/ffn_norm/scale',)],
    *gated(bias=False),
    *[
      tensor
      for ours, theirs in norms.items()
      for tensor in norm(f'layer/{ours}', f'{h}.{theirs}', bias=False)
    ],
  ]


def _gemma3_tensors(model: Transformer) -> list[Tensor]:
  return [*_tensors(model), *qk_norms()]


GEMMA2 = Family(
  model_type='gemma2',
  architectures={
    'Gemma2ForCausalLM': 'lm',
    'Gemma2ForSequenceClassification': 'classification',
    'Gemma2Model': 'body',
  },
  prefix='model.',
  fields=_gemma2_fields,
  options=_options,
  tensors=_tensors,
  buffers=BUFFERS,
)

GEMMA3_TEXT = Family(
  model_type='gemma3_text',
  architectures={
    'Gemma3ForCausalLM': 'lm',
    'Gemma3TextForSequenceClassification': 'classification',
    'Gemma3TextModel': 'body',
  },
  prefix='model.',
  fields=_gemma3_fields,
  options=_gemma3_options,
  tensors=_gemma3_tensors,
  buffers=(
    *BUFFERS,
    r'model\.rotary_emb_local\.inv_freq',
    r'model\.rotary_emb\.\w+_attention_inv_freq',
  ),
)
