# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""LLaMA 1 to 3, and Mistral: LLaMA that looks back over a window."""

from typing import Any

from gpt_jax.hf import rope, routers
from gpt_jax.hf.base import LAYER as LAYER
from gpt_jax.hf.base import (
  Family,
  Options,
  Tensor,
  body_sizes,
  choice,
  gated,
  linear,
  norm,
  qk_norms,
  qkv,
  tables,
)
from gpt_jax.nn.transformer import Transformer

# HF's names of activations -> our `model.ffn`, which multiplies by them.
GATED = {
  'silu': 'swiglu',
  'swish': 'swiglu',
  'gelu': 'geglu',
  'gelu_new': 'geglu_tanh',
  'gelu_fast': 'geglu_tanh',
  'gelu_pytorch_tanh': 'geglu_tanh',
  'relu': 'reglu',
  'sigmoid': 'glu',
  'linear': 'bilinear',
}

# (attention_bias, mlp_bias)
BIASES = {
  (False, False): 'none',
  (False, True): 'where(ffn=True)',
  (True, False): 'where(qkv=True, out=True)',
  (True, True): 'all',
}


def shared_fields(
  options: Options,
  default_kv_heads: int | None = None,
  *,
  default_head_size: int | None = None,
  default_tied: bool = False,
  position: str | None = None,
  activation: tuple[str, str] = ('hidden_act', 'silu'),
) -> dict[str, Any]:
  """What LLaMA and its descendants call by the same names.

  Args:
    options: of config.json.
    default_kv_heads: None: as many as of queries.
    default_head_size: None: hidden_size / num_attention_heads.
    default_tied: whether the output reads the token embeddings.
    position: `model.position`; None: LLaMA's.
    activation: what the option is called, and its default.
  """
  d_model = options.size('hidden_size')
  num_heads = options.size('num_attention_heads')
  by_width = d_model // num_heads
  head_size = options.size('head_dim', default_head_size or by_width)
  if head_size % 2:
    raise options.fail('head_dim', f'{head_size} features do not form pairs')
  tied = options.flag('tie_word_embeddings', default_tied)
  dropout = options.number('attention_dropout', 0.0)
  groups = options.size('num_key_value_heads', default_kv_heads or num_heads)
  if num_heads % groups:
    raise options.fail(
      'num_key_value_heads', f'must divide num_attention_heads={num_heads}'
    )
  return {
    'vocab_size': options.size('vocab_size'),
    'num_layers': options.size('num_hidden_layers'),
    'd_model': d_model,
    'num_heads': num_heads,
    'num_kv_heads': groups,
    'head_size': head_size,
    'd_ff': options.size('intermediate_size'),
    'position': position or rope.read_rope(options),
    'ffn': options.choice(activation[0], GATED, activation[1]),
    'norm': f'rmsnorm(epsilon={options.number("rms_norm_eps", 1e-6)})',
    'block': 'pre',
    'output': 'tied' if tied else 'untied',
    'dropout': f'rates(attention={dropout})',
  }


def _llama_fields(options: Options) -> dict[str, Any]:
  attention = options.flag('attention_bias', False)
  ffn = options.flag('mlp_bias', False)
  return shared_fields(options) | {
    'context_length': options.size('max_position_embeddings', 2048),
    'bias': BIASES[attention, ffn],
  }


def _mistral_fields(options: Options) -> dict[str, Any]:
  window = options.get('sliding_window')
  if not options.has('sliding_window'):
    window = 4096
  elif window is not None:
    window = options.size('sliding_window')
  kinds = set(options.get('layer_types', []))
  if kinds - {'full_attention' if window is None else 'sliding_attention'}:
    raise options.fail(
      'layer_types', f'does not agree with sliding_window={window} in all'
    )
  kv_heads = None if options.has('num_key_value_heads') else 8
  return shared_fields(options, kv_heads) | {
    'context_length': options.size('max_position_embeddings', 131_072),
    'attention': 'full' if window is None else f'local(window={window})',
    'bias': 'none',
  }


def shared_options(model: Transformer) -> dict[str, Any]:
  """The way back from `shared_fields`."""
  ffn = choice(model, 'ffn').name
  names = {ours: theirs for theirs, ours in reversed(GATED.items())}
  return {
    **body_sizes(model),
    'num_key_value_heads': model.num_kv_heads,
    'head_dim': model.head_size,
    'intermediate_size': model.d_ff,
    **rope.write_rope(model),
    'hidden_act': names.get(ffn, ffn),
    'rms_norm_eps': choice(model, 'norm').kwargs['epsilon'],
    'tie_word_embeddings': choice(model, 'output').name == 'tied',
    'attention_dropout': choice(model, 'dropout').kwargs.get('attention', 0.0),
  }


def _llama_options(model: Transformer) -> dict[str, Any]:
  attention, ffn = biases(model)
  return {
    **shared_options(model),
    'attention_bias': attention,
    'mlp_bias': ffn,
    'pretraining_tp': 1,
  }


def _mistral_options(model: Transformer) -> dict[str, Any]:
  window = choice(model, 'attention').kwargs.get('window')
  return {**shared_options(model), 'sliding_window': window}


def biases(model: Transformer) -> tuple[bool, bool]:
  """Whether attention has biases, and the feed-forward layer."""
  bias = choice(model, 'bias')
  everywhere = bias.name == 'all'
  return bias.kwargs.get('qkv', everywhere), bias.kwargs.get('ffn', everywhere)


def _llama_tensors(model: Transformer) -> list[Tensor]:
  attention, ffn = biases(model)
  return [*shared_tensors(model, attention), *gated(bias=ffn)]


def shared_tensors(model: Transformer, bias: bool) -> list[Tensor]:
  """All but the feed-forward layers'; `bias` is attention's."""
  h, ours = LAYER, 'layer'
  return [
    *tables(model, 'model.embed_tokens.weight', 'lm_head.weight'),
    *norm(f'{ours}/attention_norm', f'{h}.input_layernorm', bias=False),
    *qkv(f'{ours}/attention', f'{h}.self_attn', bias=bias),
    *linear(f'{ours}/attention/out', f'{h}.self_attn.o_proj', bias),
    *norm(f'{ours}/ffn_norm', f'{h}.post_attention_layernorm', bias=False),
    *norm('final_norm', 'model.norm', bias=False),
  ]


BUFFERS = (r'model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq',)

LLAMA = Family(
  model_type='llama',
  architectures={
    'LlamaForCausalLM': 'lm',
    'LlamaForSequenceClassification': 'classification',
    'LlamaModel': 'body',
  },
  prefix='model.',
  fields=_llama_fields,
  options=_llama_options,
  tensors=_llama_tensors,
  buffers=BUFFERS,
)

MISTRAL = Family(
  model_type='mistral',
  architectures={
    'MistralForCausalLM': 'lm',
    'MistralForSequenceClassification': 'classification',
    'MistralModel': 'body',
  },
  prefix='model.',
  fields=_mistral_fields,
  options=_mistral_options,
  tensors=_llama_tensors,
  buffers=BUFFERS,
)


# Mixtral: Mistral whose feed-forward layers are mixtures of experts.


def _mixtral_fields(options: Options) -> dict[str, Any]:
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
  position = rope.read_rope(options, default_theta=1e6)
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


def _mixtral_options(model: Transformer) -> dict[str, Any]:
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


def _mixtral_tensors(model: Transformer) -> list[Tensor]:
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
  fields=_mixtral_fields,
  options=_mixtral_options,
  tensors=_mixtral_tensors,
  buffers=BUFFERS,
)


# Qwen3: LLaMA with norms of each head's queries and keys.


def _qwen3_fields(options: Options) -> dict[str, Any]:
  attention = options.flag('attention_bias', False)
  kv_heads = None if options.has('num_key_value_heads') else 32
  return shared_fields(options, kv_heads, default_head_size=128) | {
    'context_length': options.size('max_position_embeddings', 32_768),
    'attention': _attention(options),
    'block': "pre(qk_norm='per_head')",
    'bias': BIASES[attention, False],
  }


def _attention(options: Options) -> str:
  """From layer `max_window_layers` on, layers may have a window."""
  window = None
  if options.flag('use_sliding_window', False):
    absent = not options.has('sliding_window')
    if absent or options.get('sliding_window') is not None:
      window = options.size('sliding_window', 4096)
  num_layers = options.size('num_hidden_layers')
  first = num_layers
  if window is not None:
    first = min(options.number('max_window_layers', 28), num_layers)
  default = [
    rope.SLIDING if i >= first else rope.FULL for i in range(num_layers)
  ]
  return rope.read_windows(options, default, window)


def _qwen3_options(model: Transformer) -> dict[str, Any]:
  attention, _ = biases(model)
  layers = rope.write_windows(model)
  return {
    **shared_options(model),
    **layers,
    'use_sliding_window': layers['sliding_window'] is not None,
    'attention_bias': attention,
  }


def _qwen3_tensors(model: Transformer) -> list[Tensor]:
  attention, _ = biases(model)
  return [*shared_tensors(model, attention), *qk_norms(), *gated(bias=False)]


QWEN3 = Family(
  model_type='qwen3',
  architectures={
    'Qwen3ForCausalLM': 'lm',
    'Qwen3ForSequenceClassification': 'classification',
    'Qwen3Model': 'body',
  },
  prefix='model.',
  fields=_qwen3_fields,
  options=_qwen3_options,
  tensors=_qwen3_tensors,
  buffers=BUFFERS,
)


# OLMo 2: LLaMA whose norms stand after the sublayers, and on queries, keys.


def _olmo2_fields(options: Options) -> dict[str, Any]:
  attention = options.flag('attention_bias', False)
  return shared_fields(options) | {
    'context_length': options.size('max_position_embeddings', 2048),
    'norm': f'rmsnorm(epsilon={options.number("rms_norm_eps", 1e-5)})',
    'block': "reordered(qk_norm='all_heads')",
    'bias': BIASES[attention, False],
  }


def _olmo2_options(model: Transformer) -> dict[str, Any]:
  attention, _ = biases(model)
  return {**shared_options(model), 'attention_bias': attention}


def _olmo2_tensors(model: Transformer) -> list[Tensor]:
  attention, _ = biases(model)
  h = LAYER
  after = ('attention', 'feedforward')
  norms = [f'{h}.post_{name}_layernorm' for name in after]
  return [
    *tables(model, 'model.embed_tokens.weight', 'lm_head.weight'),
    *qkv('layer/attention', f'{h}.self_attn', bias=attention),
    *qk_norms(),
    *linear('layer/attention/out', f'{h}.self_attn.o_proj', attention),
    *norm('layer/attention_output_norm', norms[0], bias=False),
    *gated(bias=False),
    *norm('layer/ffn_output_norm', norms[1], bias=False),
    *norm('final_norm', 'model.norm', bias=False),
  ]


OLMO2 = Family(
  model_type='olmo2',
  architectures={
    'Olmo2ForCausalLM': 'lm',
    'Olmo2ForSequenceClassification': 'classification',
    'Olmo2Model': 'body',
  },
  prefix='model.',
  fields=_olmo2_fields,
  options=_olmo2_options,
  tensors=_olmo2_tensors,
  buffers=BUFFERS,
)


# Gemma 2 and the text models of Gemma 3.
#
# LLaMA with gated GELU, scaled embeddings, norms before and after each sublayer
# that multiply by 1 + weight, and windows in most layers. Gemma 2 bounds scores
# and logits; Gemma 3 has norms of each head's queries and keys instead, and
# another base of the rotation in layers with a window.


_PER_HEAD = "sandwich(qk_norm='per_head')"


def _gemma_fields(
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
    rope.SLIDING if (i + 1) % full_every else rope.FULL
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
    'attention': rope.read_windows(options, kinds, window),
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
  return _gemma_fields(
    options,
    context_length=8192,
    full_every=2,
    position=rope.read_rope(options),
    scores=_softcap(options, 'attn_logit_softcapping', 50.0),
    logits=_softcap(options, 'final_logit_softcapping', 30.0),
  )


def _gemma3_fields(options: Options) -> dict[str, Any]:
  # Releases of transformers read it, and leave the scores as they are.
  options.only('attn_logit_softcapping', None)
  fields = _gemma_fields(
    options,
    context_length=131_072,
    full_every=options.size('sliding_window_pattern', 6),
    position=rope.read_with_local(options, default_theta=1e6),
    scores=None,
    logits=_softcap(options, 'final_logit_softcapping', None),
  )
  return fields | {'block': _PER_HEAD}


def _gemma_options(model: Transformer) -> dict[str, Any]:
  """The way back from `_fields`."""
  shared = shared_options(model)
  activation = shared.pop('hidden_act')
  attention, _ = biases(model)
  scale = choice(model, 'attention_scale').kwargs
  output = choice(model, 'output').kwargs
  return {
    **shared,
    **rope.write_windows(model),
    'hidden_activation': activation,
    'attention_bias': attention,
    'query_pre_attn_scalar': scale.get('size') or model.head_size,
    'attn_logit_softcapping': scale.get('softcap') or None,
    'final_logit_softcapping': output.get('softcap') or None,
    'use_bidirectional_attention': False,
  }


def _gemma3_options(model: Transformer) -> dict[str, Any]:
  return {**_gemma_options(model), **rope.write_with_local(model)}


def _gemma_tensors(model: Transformer) -> list[Tensor]:
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
  return [*_gemma_tensors(model), *qk_norms()]


GEMMA2 = Family(
  model_type='gemma2',
  architectures={
    'Gemma2ForCausalLM': 'lm',
    'Gemma2ForSequenceClassification': 'classification',
    'Gemma2Model': 'body',
  },
  prefix='model.',
  fields=_gemma2_fields,
  options=_gemma_options,
  tensors=_gemma_tensors,
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
