# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""LLaMA 1 to 3 and its descendants: Mistral, Mixtral, Qwen3, OLMo 2, Gemma."""

from typing import Any

from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.hf import rope, routers
from gpt_jax.hf.base import (
  BODY,
  Entry,
  Family,
  Options,
  Tensor,
  call,
  call_text,
  choice,
  classes,
  constant,
  fixed,
  flag,
  hf_name,
  linear,
  named,
  norm,
  qkv,
  sizes,
  tables,
  writes,
)

# HF's names of activations -> our gated `model.ffn`.
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
_BIASES = {
  (False, False): 'none',
  (False, True): 'where(ffn=True)',
  (True, False): 'where(qkv=True, out=True)',
  (True, True): 'all',
}
_POSITION = rope.entry()
_ACTIVATION = named('hidden_act', 'ffn', GATED, 'silu')


def _table(
  *own: Entry,
  context_length: int,
  kv_heads: int | None = None,
  head_size: int | None = None,
  epsilon: float = 1e-6,
  plus_one: bool | None = None,
  tied: bool = False,
  position: Entry = _POSITION,
  activation: Entry = _ACTIVATION,
) -> tuple[Entry, ...]:
  """Options that LLaMA and its descendants share.

  Args:
    *own: entries of the family.
    context_length: the default, as are `head_size`, `epsilon` and `tied`.
    kv_heads: the default; None, and null in config.json: as many as queries.
    head_size: None: hidden_size / num_attention_heads.
    plus_one: whether norms multiply by 1 + weight.
    position: entry of `model.position`.
    activation: entry of `model.ffn`.
  """

  def read(options: Options) -> dict[str, Any]:
    num_heads = options.size('num_attention_heads')
    width = head_size or options.size('hidden_size') // num_heads
    size = options.size('head_dim', width)
    if size % 2:
      raise options.fail('head_dim', f'{size} features do not form pairs')
    absent = not options.has('num_key_value_heads')
    default = kv_heads if kv_heads and absent else num_heads
    groups = options.size('num_key_value_heads', default)
    if num_heads % groups:
      which = f'the default, {groups}, ' * absent
      raise options.fail(
        'num_key_value_heads', f'{which}must divide num_attention_heads={num_heads}'
      )
    return {'num_kv_heads': groups, 'head_size': size, 'block': 'pre'}

  def write(model: Transformer) -> dict[str, Any]:
    kv_heads, head_size = model.num_kv_heads, model.head_size
    return {'num_key_value_heads': kv_heads, 'head_dim': head_size}

  body = {**BODY, 'max_position_embeddings': ('context_length', context_length)}
  return (
    sizes(**body),
    Entry(read, write),
    sizes(intermediate_size='d_ff'),
    position,
    activation,
    call('norm', 'rmsnorm', epsilon=('rms_norm_eps', epsilon), plus_one=plus_one),
    flag('tie_word_embeddings', 'output', 'tied', 'untied', tied),
    call('dropout', 'rates', attention=('attention_dropout', 0.0)),
    *own,
  )


def _bias(*, mlp: bool = False) -> Entry:
  """`attention_bias`, and with `mlp` also `mlp_bias`."""

  def read(options: Options) -> dict[str, Any]:
    attention = options.flag('attention_bias', False)
    return {'bias': _BIASES[attention, mlp and options.flag('mlp_bias', False)]}

  def write(model: Transformer) -> dict[str, Any]:
    attention, ffn = _biases(model)
    return {'attention_bias': attention, **({'mlp_bias': ffn} if mlp else {})}

  return Entry(read, write)


def _biases(model: Transformer) -> tuple[bool, bool]:
  """Whether attention and the feed-forward layer have biases."""
  bias = choice(model, 'bias')
  everywhere = bias.name == 'all'
  return bias.kwargs.get('qkv', everywhere), bias.kwargs.get('ffn', everywhere)


_LAYER = 'model.layers.{layer}'
_BUFFERS = (r'model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq',)


def _llama_tensors(model: Transformer) -> list[Tensor]:
  return [*_shared_tensors(model), *_gated(bias=_biases(model)[1])]


def _shared_tensors(model: Transformer) -> list[Tensor]:
  """All tensors without the feed-forward layers'."""
  bias, _ = _biases(model)
  return [
    *tables(model, 'model.embed_tokens.weight', 'lm_head.weight'),
    *_norm('layer/attention_norm', f'{_LAYER}.input_layernorm'),
    *qkv('layer/attention', f'{_LAYER}.self_attn', bias=bias),
    *linear('layer/attention/out', f'{_LAYER}.self_attn.o_proj', bias),
    *_norm('layer/ffn_norm', f'{_LAYER}.post_attention_layernorm'),
    *_norm('final_norm', 'model.norm'),
  ]


def _norm(path: str, name: str) -> list[Tensor]:
  return norm(path, name, bias=False)


def _qk_norms() -> list[Tensor]:
  return [
    *_norm('layer/attention/query_norm', f'{_LAYER}.self_attn.q_norm'),
    *_norm('layer/attention/key_norm', f'{_LAYER}.self_attn.k_norm'),
  ]


def _gated(*, bias: bool = False) -> list[Tensor]:
  return [
    *linear('layer/ffn/gate', f'{_LAYER}.mlp.gate_proj', bias),
    *linear('layer/ffn/in', f'{_LAYER}.mlp.up_proj', bias),
    *linear('layer/ffn/out', f'{_LAYER}.mlp.down_proj', bias),
  ]


LLAMA = Family(
  model_type='llama',
  architectures=classes('Llama'),
  prefix='model.',
  entries=_table(_bias(mlp=True), writes(pretraining_tp=1), context_length=2048),
  tensors=_llama_tensors,
  buffers=_BUFFERS,
)


# Mistral: LLaMA with a sliding window.


def _read_window(options: Options, default: int | None) -> dict[str, Any]:
  """`sliding_window`; null means none."""
  window = default if not options.has('sliding_window') else None
  if options.get('sliding_window') is not None:
    window = options.size('sliding_window')
  return {'attention': 'full' if window is None else f'local(window={window})', 'bias': 'none'}


def _write_window(model: Transformer) -> dict[str, Any]:
  return {'sliding_window': choice(model, 'attention').kwargs.get('window')}


def _read_mistral(options: Options) -> dict[str, Any]:
  fields = _read_window(options, 4096)
  kind = rope.FULL if fields['attention'] == 'full' else rope.SLIDING
  kinds = options.get('layer_types', [])
  if not isinstance(kinds, list) or any(x != kind for x in kinds):
    window = options.get('sliding_window', 4096)
    raise options.fail('layer_types', f'does not agree with sliding_window={window} in all')
  return fields


MISTRAL = LLAMA._replace(
  model_type='mistral',
  architectures=classes('Mistral'),
  entries=_table(Entry(_read_mistral, _write_window), context_length=131_072, kv_heads=8),
)


# Mixtral: Mistral whose feed-forward layers are mixtures of experts.


def _read_experts(options: Options) -> dict[str, Any]:
  num_experts = options.size('num_local_experts', 8)
  top_k = options.size('num_experts_per_tok', 2)
  if top_k > num_experts:
    raise options.fail('num_experts_per_tok', f'is above num_local_experts={num_experts}')
  expert = options.choice('hidden_act', GATED, 'silu')
  return {
    'ffn': f'switch(num_experts={num_experts}, expert={expert!r}, '
    f"top_k={top_k}, capacity_factor='none', renormalize=True, "
    f'{routers.read(options, jitter=0.0, aux=0.001)})'
  }


def _write_experts(model: Transformer) -> dict[str, Any]:
  name, _, ffn = choice(model, 'ffn')
  return {
    'hidden_act': hf_name(ffn.get('expert', name), GATED),
    'num_local_experts': ffn.get('num_experts'),
    'num_experts_per_tok': ffn.get('top_k'),
    **routers.write(ffn, 'aux'),
    'output_router_logits': False,
  }


def _mixtral_tensors(model: Transformer) -> list[Tensor]:
  moe = f'{_LAYER}.block_sparse_moe'
  expert = f'{moe}.experts.{{expert}}'
  matrices = [
    *linear('layer/ffn/gate', f'{expert}.w1', bias=False),
    *linear('layer/ffn/in', f'{expert}.w3', bias=False),
    *linear('layer/ffn/out', f'{expert}.w2', bias=False),
  ]
  num_experts = choice(model, 'ffn').kwargs['num_experts']
  return [
    *_shared_tensors(model),
    *linear('layer/ffn/router', f'{moe}.gate', bias=False),
    *[t._replace(experts=num_experts) for t in matrices],
  ]


MIXTRAL = LLAMA._replace(
  model_type='mixtral',
  architectures=classes('Mixtral'),
  entries=_table(
    Entry(lambda options: _read_window(options, None), _write_window),
    Entry(_read_experts, _write_experts),
    context_length=131_072,
    kv_heads=8,
    epsilon=1e-5,
    position=rope.entry(theta=1e6),
  ),
  tensors=_mixtral_tensors,
)


# Qwen3: LLaMA with norms of each head's queries and keys.


def _read_windows(options: Options) -> dict[str, Any]:
  """From layer `max_window_layers` on, layers may have a window."""
  window = None
  if options.flag('use_sliding_window', False):
    absent = not options.has('sliding_window')
    if absent or options.get('sliding_window') is not None:
      window = options.size('sliding_window', 4096)
  first = num_layers = options.size('num_hidden_layers')
  if window is not None:
    first = min(options.number('max_window_layers', 28), num_layers)
  default = [rope.SLIDING if i >= first else rope.FULL for i in range(num_layers)]
  return {'attention': rope.read_windows(options, default, window)}


def _write_windows(model: Transformer) -> dict[str, Any]:
  layers = rope.write_windows(model)
  sliding = layers['sliding_window'] is not None
  return {**layers, 'use_sliding_window': sliding}


QWEN3 = LLAMA._replace(
  model_type='qwen3',
  architectures=classes('Qwen3'),
  entries=_table(
    Entry(_read_windows, _write_windows),
    _bias(),
    fixed(block="pre(qk_norm='per_head')"),
    context_length=32_768,
    kv_heads=32,
    head_size=128,
  ),
  tensors=lambda model: [*_shared_tensors(model), *_qk_norms(), *_gated()],
)


# OLMo 2: LLaMA with norms after the sublayers, and of queries and keys.


def _olmo2_tensors(model: Transformer) -> list[Tensor]:
  bias, _ = _biases(model)
  after = ('attention', 'feedforward')
  norms = [f'{_LAYER}.post_{name}_layernorm' for name in after]
  return [
    *tables(model, 'model.embed_tokens.weight', 'lm_head.weight'),
    *qkv('layer/attention', f'{_LAYER}.self_attn', bias=bias),
    *_qk_norms(),
    *linear('layer/attention/out', f'{_LAYER}.self_attn.o_proj', bias),
    *_norm('layer/attention_output_norm', norms[0]),
    *_gated(),
    *_norm('layer/ffn_output_norm', norms[1]),
    *_norm('final_norm', 'model.norm'),
  ]


OLMO2 = LLAMA._replace(
  model_type='olmo2',
  architectures=classes('Olmo2'),
  entries=_table(
    _bias(), fixed(block="reordered(qk_norm='all_heads')"), context_length=2048, epsilon=1e-5
  ),
  tensors=_olmo2_tensors,
)


# Gemma 2 and the text models of Gemma 3.
#
# LLaMA with gated GELU, scaled embeddings, norms before and after each sublayer
# that multiply by 1 + weight, and windows in most layers. Gemma 2 soft-caps
# scores and logits; Gemma 3 has norms of each head's queries and keys instead,
# and another RoPE base in layers with a window.


def _gemma_windows(options: Options, full_every: int) -> dict[str, Any]:
  """Every `full_every`-th layer sees all tokens, the others a window."""
  num_layers = options.size('num_hidden_layers')
  kinds = [rope.SLIDING if (i + 1) % full_every else rope.FULL for i in range(num_layers)]
  window = 4096
  if options.has('sliding_window'):
    null = options.get('sliding_window') is None
    window = None if null else options.size('sliding_window')
  return {'attention': rope.read_windows(options, kinds, window)}


def _softcap(options: Options, name: str, default: float | None) -> float | None:
  """A soft cap; null means none."""
  if not options.has(name):
    return default
  if options.get(name) is None:
    return None
  if options.number(name) <= 0:
    raise options.fail(name, 'must be above 0')
  return options.number(name)


def _bounds(*, scores: float | None, logits: float | None) -> Entry:
  """How attention scores are scaled and capped, and how logits are capped.

  `scores` and `logits` are the default caps. If `scores` is None, no cap of the
  scores is accepted.
  """

  def read(options: Options) -> dict[str, Any]:
    softcap, name = None, 'attn_logit_softcapping'
    if scores is None:
      # Releases of transformers read the option but do not apply it.
      options.only(name, None)
    else:
      softcap = _softcap(options, name, scores)
    tied = options.flag('tie_word_embeddings', True)
    head_size = options.size('head_dim', 256)
    size = options.number('query_pre_attn_scalar', 256)
    size = None if size == head_size else size
    bound = _softcap(options, 'final_logit_softcapping', logits)
    return {
      'attention_scale': call_text('rsqrt', size=size, softcap=softcap),
      'output': call_text('tied' if tied else 'untied', softcap=bound),
    }

  def write(model: Transformer) -> dict[str, Any]:
    scale = choice(model, 'attention_scale').kwargs
    bound = choice(model, 'output').kwargs.get('softcap')
    return {
      'query_pre_attn_scalar': scale.get('size') or model.head_size,
      'attn_logit_softcapping': scale.get('softcap') or None,
      'final_logit_softcapping': bound or None,
    }

  return Entry(read, write)


def _gemma(
  windows: Entry, bounds: Entry, *own: Entry, context_length: int, **other: Any
) -> tuple[Entry, ...]:
  """Options of Gemma 2 and 3."""
  return _table(
    windows,
    named('hidden_activation', 'ffn', GATED, 'gelu_pytorch_tanh'),
    _bias(),
    bounds,
    constant(use_bidirectional_attention=False),
    fixed(input="tokens(scale='sqrt')", block='sandwich'),
    *own,
    context_length=context_length,
    kv_heads=4,
    head_size=256,
    plus_one=True,
    tied=True,
    activation=Entry(),
    **other,
  )


def _gemma_tensors(model: Transformer) -> list[Tensor]:
  norms = {
    'attention_output_norm': 'post_attention_layernorm',
    'ffn_norm': 'pre_feedforward_layernorm',
    'ffn_output_norm': 'post_feedforward_layernorm',
  }
  shared = _shared_tensors(model)
  return [
    *[t for t in shared if t.paths != ('layer/ffn_norm/scale',)],
    *_gated(),
    *[
      tensor
      for ours, theirs in norms.items()
      for tensor in _norm(f'layer/{ours}', f'{_LAYER}.{theirs}')
    ],
  ]


GEMMA2 = LLAMA._replace(
  model_type='gemma2',
  architectures=classes('Gemma2'),
  entries=_gemma(
    Entry(lambda options: _gemma_windows(options, 2), rope.write_windows),
    _bounds(scores=50.0, logits=30.0),
    context_length=8192,
  ),
  tensors=_gemma_tensors,
)


def _gemma3_windows(options: Options) -> dict[str, Any]:
  return _gemma_windows(options, options.size('sliding_window_pattern', 6))


GEMMA3_TEXT = LLAMA._replace(
  model_type='gemma3_text',
  architectures={
    'Gemma3ForCausalLM': 'lm',
    'Gemma3TextForSequenceClassification': 'classification',
    'Gemma3TextModel': 'body',
  },
  entries=_gemma(
    Entry(_gemma3_windows, rope.write_windows),
    _bounds(scores=None, logits=None),
    fixed(block="sandwich(qk_norm='per_head')"),
    rope.entry_with_local(theta=1e6),
    context_length=131_072,
    position=Entry(write=rope.write_rope),
  ),
  tensors=lambda model: [*_gemma_tensors(model), *_qk_norms()],
  buffers=(
    *_BUFFERS,
    r'model\.rotary_emb_local\.inv_freq',
    r'model\.rotary_emb\.\w+_attention_inv_freq',
  ),
)
