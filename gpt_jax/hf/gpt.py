# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT 1 and 2, GPT-Neo, GPT-NeoX and Pythia, GPT-J, and Falcon."""

import math
from typing import Any

import jax.numpy as jnp

from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.spec import UsageError
from gpt_jax.hf import rope
from gpt_jax.hf.base import (
  ACTIVATIONS,
  BODY,
  Entry,
  Family,
  Options,
  Tensor,
  call,
  choice,
  classes,
  constant,
  conv1d,
  dropout,
  fixed,
  flag,
  fused_qkv,
  layers,
  linear,
  named,
  norm,
  only,
  qkv,
  same,
  shortest_period,
  sizes,
  tables,
  writes,
)

# GPT-2.

_SCALES = {
  # (scale_attn_weights, scale_attn_by_inverse_layer_idx)
  (True, False): 'rsqrt',
  (False, False): 'none',
  (True, True): 'by_layer',
  (False, True): 'by_layer(per_head=False)',
}


def _read_scale(options: Options) -> dict[str, Any]:
  scale = (
    options.flag('scale_attn_weights', True),
    options.flag('scale_attn_by_inverse_layer_idx', False),
  )
  return {'attention_scale': _SCALES[scale]}


def _write_scale(model: Transformer) -> dict[str, Any]:
  scale = choice(model, 'attention_scale')
  rsqrt = scale.name == 'rsqrt' or scale.kwargs.get('per_head', False)
  return {'scale_attn_weights': rsqrt, 'scale_attn_by_inverse_layer_idx': scale.name == 'by_layer'}


def _read_inner(options: Options) -> dict[str, Any]:
  return {'d_ff': options.size('n_inner', 4 * options.size('n_embd'))}


def _write_inner(model: Transformer) -> dict[str, Any]:
  return {'n_inner': None if model.d_ff == 4 * model.d_model else model.d_ff}


def _table(inner: Entry) -> tuple[Entry, ...]:
  """Options of GPT-1, GPT-2 and GPT-J; `inner` has the feed-forward width."""
  return (
    sizes(
      vocab_size='vocab_size',
      n_positions='context_length',
      n_layer='num_layers',
      n_embd='d_model',
      n_head='num_heads',
    ),
    inner,
    call('norm', 'layernorm', epsilon=('layer_norm_epsilon', 1e-5)),
    dropout('embd_pdrop', 'resid_pdrop', 'attn_pdrop', 0.1),
  )


_INNER = Entry(_read_inner, _write_inner)
_ACTIVATION = named('activation_function', 'ffn', ACTIVATIONS, 'gelu_new')
_TIED = flag('tie_word_embeddings', 'output', 'tied', 'untied', True)
_DOUBLE = {
  'LMHeadModel': 'lm',
  'DoubleHeadsModel': 'double',
  'ForSequenceClassification': 'classification',
  'Model': 'body',
}


def _block_tensors(model: Transformer) -> list[Tensor]:
  """One block of GPT-1 or GPT-2."""
  h, ours = 'transformer.h.{layer}', 'layer'
  heads = model.num_heads
  return [
    *norm(f'{ours}/attention_norm', f'{h}.ln_1'),
    *fused_qkv(
      f'{ours}/attention',
      f'{h}.attn.c_attn',
      groups=1,
      heads=(heads, heads, heads),
      head_size=model.head_size,
      bias=True,
      layout='conv1d',
    ),
    *conv1d(f'{ours}/attention/out', f'{h}.attn.c_proj'),
    *norm(f'{ours}/ffn_norm', f'{h}.ln_2'),
    *conv1d(f'{ours}/ffn/in', f'{h}.mlp.c_fc'),
    *conv1d(f'{ours}/ffn/out', f'{h}.mlp.c_proj'),
  ]


def _gpt2_tensors(model: Transformer) -> list[Tensor]:
  return [
    *tables(model, 'transformer.wte.weight', 'lm_head.weight'),
    same('positions/embedding', 'transformer.wpe.weight'),
    *_block_tensors(model),
    *norm('final_norm', 'transformer.ln_f'),
  ]


GPT2 = Family(
  model_type='gpt2',
  architectures=classes('GPT2', _DOUBLE),
  prefix='transformer.',
  entries=(
    *_table(_INNER),
    _ACTIVATION,
    Entry(_read_scale, _write_scale),
    _TIED,
    fixed(position='learned', block='pre'),
  ),
  tensors=_gpt2_tensors,
  buffers=(r'transformer\.h\.\d+\.attn\.(bias|masked_bias)',),
  token_types=True,
)


# GPT-1: GPT-2's tensors, with norms after the sublayers.


# Only in GPT-1 is HF's `gelu` the tanh form.
_GELU = {'gelu': 'gelu_tanh', 'relu': 'relu', 'silu': 'silu', 'swish': 'silu'}


def _openai_gpt_tensors(model: Transformer) -> list[Tensor]:
  return [
    same('embed/embedding', 'transformer.tokens_embed.weight', 'lm_head.weight'),
    same('positions/embedding', 'transformer.positions_embed.weight'),
    *_block_tensors(model),
  ]


OPENAI_GPT = Family(
  model_type='openai-gpt',
  architectures=classes('OpenAIGPT', _DOUBLE),
  prefix='transformer.',
  entries=(
    *_table(Entry(lambda options: {'d_ff': 4 * options.size('n_embd')})),
    named('afn', 'ffn', _GELU, 'gelu'),
    constant(tie_word_embeddings=True),
    fixed(position='learned', block='post'),
  ),
  tensors=_openai_gpt_tensors,
  buffers=(r'transformer\.h\.\d+\.attn\.bias', r'transformer\.position_ids'),
  token_types=True,
)


# GPT-Neo: GPT-2 with local layers and unscaled scores.


def _read_attention(options: Options) -> dict[str, Any]:
  """`attention_types` is a list of [names of a period, repetitions]."""
  num_layers = options.size('num_layers')
  types = options.get('attention_types', [[['global', 'local'], 12]])
  try:
    given = sum(len(period) * count for period, count in types)
    if given != num_layers:
      raise options.fail('attention_types', f'gives {given} layers, num_layers={num_layers}')
    names = [name for period, count in types for name in period * count]
  except (TypeError, ValueError) as e:
    raise options.fail('attention_types', 'is not [[names, count], ...]') from e
  window = options.size('window_size', 256)
  patterns = {'global': 'full', 'local': f'local(window={window})'}
  if not all(isinstance(x, str) and x in patterns for x in names):
    raise options.fail('attention_types', 'has names but global and local')
  period = shortest_period([patterns[name] for name in names])
  return {'attention': period}


def _write_attention(model: Transformer) -> dict[str, Any]:
  patterns = layers(model)
  names = ['local' if p.name == 'local' else 'global' for p in patterns]
  windows = [p.kwargs['window'] for p in patterns if p.name == 'local']
  return {
    'attention_types': [[names, 1]],
    'attention_layers': names,
    'window_size': windows[0] if windows else 256,
  }


def _four_times(options: Options) -> int:
  return 4 * options.size('hidden_size')


def _gpt_neo_tensors(model: Transformer) -> list[Tensor]:
  h, ours = 'transformer.h.{layer}', 'layer'
  attention = f'{h}.attn.attention'
  return [
    *tables(model, 'transformer.wte.weight', 'lm_head.weight'),
    same('positions/embedding', 'transformer.wpe.weight'),
    *norm(f'{ours}/attention_norm', f'{h}.ln_1'),
    *qkv(f'{ours}/attention', attention, bias=False),
    *linear(f'{ours}/attention/out', f'{attention}.out_proj'),
    *norm(f'{ours}/ffn_norm', f'{h}.ln_2'),
    *linear(f'{ours}/ffn/in', f'{h}.mlp.c_fc'),
    *linear(f'{ours}/ffn/out', f'{h}.mlp.c_proj'),
    *norm('final_norm', 'transformer.ln_f'),
  ]


GPT_NEO = Family(
  model_type='gpt_neo',
  architectures=classes('GPTNeo'),
  prefix='transformer.',
  entries=(
    sizes(
      vocab_size='vocab_size',
      max_position_embeddings='context_length',
      num_layers='num_layers',
      hidden_size='d_model',
      num_heads='num_heads',
      intermediate_size=('d_ff', _four_times),
    ),
    Entry(_read_attention, _write_attention),
    _ACTIVATION,
    call('norm', 'layernorm', epsilon=('layer_norm_epsilon', 1e-5)),
    _TIED,
    writes(resid_dropout=0.0),  # keeps HF's order; the next sets the value
    dropout('embed_dropout', 'resid_dropout', 'attention_dropout', 0.0),
    fixed(
      position='learned', attention_scale='none', block='pre', bias='where(out=True, ffn=True)'
    ),
  ),
  tensors=_gpt_neo_tensors,
  buffers=(r'transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)',),
  token_types=True,
)


# GPT-NeoX and Pythia.


def _one_of(options: Options, name: str, other: str, default: float) -> float:
  """A number that has two names."""
  value = options.number(name, options.number(other, default))
  if value != options.number(other, value):
    raise options.fail(name, f'contradicts {other}={options.get(other)!r}; leave one out')
  return value


def _read_position(options: Options) -> dict[str, Any]:
  """All spellings; those of `rope_parameters` count before others."""
  name = 'partial_rotary_factor'
  theta = _one_of(options, 'rotary_emb_base', 'rope_theta', rope.THETA)
  fraction = _one_of(options, 'rotary_pct', name, 0.25)
  values = rope.values(options)
  fraction = values.number(name, fraction)
  head_size = options.size('hidden_size') // options.size('num_attention_heads')
  turned = int(head_size * fraction)
  if not 0 < fraction <= 1 or turned % 2 or not turned:
    raise UsageError(
      f'config.json: {name}={fraction} (or rotary_pct) turns {turned} of '
      f'{head_size} features of a head: must be an even number from 2'
    )
  return {'position': rope.read_rope(options, theta, fraction)}


def _write_position(model: Transformer) -> dict[str, Any]:
  return rope.write_rope(model, partial=True)


def _read_bias(options: Options) -> dict[str, Any]:
  bias = options.flag('attention_bias', True)
  return {'bias': 'all' if bias else 'where(ffn=True)'}


def _write_bias(model: Transformer) -> dict[str, Any]:
  return {'attention_bias': _has_attention_bias(model)}


def _has_attention_bias(model: Transformer) -> bool:
  bias = choice(model, 'bias')
  return bias.name == 'all' or bias.kwargs.get('qkv', False)


def _gpt_neox_tensors(model: Transformer) -> list[Tensor]:
  bias = _has_attention_bias(model)
  # HF writes the first name; the second is that of its module.
  heads = ('embed_out.weight', 'lm_head.weight')
  h, ours = 'gpt_neox.layers.{layer}', 'layer'
  return [
    *tables(model, 'gpt_neox.embed_in.weight', *heads),
    *norm(f'{ours}/attention_norm', f'{h}.input_layernorm'),
    *fused_qkv(
      f'{ours}/attention',
      f'{h}.attention.query_key_value',
      groups=model.num_heads,
      heads=(1, 1, 1),
      head_size=model.head_size,
      bias=bias,
    ),
    *linear(f'{ours}/attention/out', f'{h}.attention.dense', bias=bias),
    *norm(f'{ours}/ffn_norm', f'{h}.post_attention_layernorm'),
    *linear(f'{ours}/ffn/in', f'{h}.mlp.dense_h_to_4h'),
    *linear(f'{ours}/ffn/out', f'{h}.mlp.dense_4h_to_h'),
    *norm('final_norm', 'gpt_neox.final_layer_norm'),
  ]


GPT_NEOX = Family(
  model_type='gpt_neox',
  architectures=classes('GPTNeoX'),
  prefix='gpt_neox.',
  entries=(
    sizes(**BODY, intermediate_size=('d_ff', _four_times)),
    Entry(_read_position, _write_position),
    named('hidden_act', 'ffn', ACTIVATIONS, 'gelu'),
    call('norm', 'layernorm', epsilon=('layer_norm_eps', 1e-5)),
    flag('use_parallel_residual', 'block', 'parallel(num_norms=2)', 'pre', True),
    Entry(_read_bias, _write_bias),
    flag('tie_word_embeddings', 'output', 'tied', 'untied', False),
    dropout('hidden_dropout', 'hidden_dropout', 'attention_dropout', 0.0),
  ),
  tensors=_gpt_neox_tensors,
  buffers=(
    r'gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias)',
    r'gpt_neox\.layers\.\d+\.attention\.rotary_emb\.inv_freq',
    r'gpt_neox\.rotary_emb\.inv_freq',
  ),
)


# GPT-J: rotary positions, and one norm for both sublayers in parallel.


def _read_turned(options: Options) -> dict[str, Any]:
  head_size = options.size('n_embd') // options.size('n_head')
  # Required: null means something else in HF than a missing option.
  turned = options.size('rotary_dim')
  if turned > head_size or turned % 2:
    raise options.fail('rotary_dim', f'must be even, and at most {head_size} features of a head')
  fraction = turned / head_size
  if int(head_size * fraction) < turned:
    fraction = math.nextafter(fraction, 1)  # 30 / 44 * 44 < 30
  return {'position': f"rope(fraction={fraction}, layout='interleaved')"}


def _write_turned(model: Transformer) -> dict[str, Any]:
  fraction = choice(model, 'position').kwargs.get('fraction', 1.0)
  return {'rotary_dim': int(model.head_size * fraction)}


def _gptj_tensors(model: Transformer) -> list[Tensor]:
  h, ours = 'transformer.h.{layer}', 'layer'
  head = choice(model, 'output').name == 'untied'
  return [
    same('embed/embedding', 'transformer.wte.weight'),
    *norm(f'{ours}/attention_norm', f'{h}.ln_1'),
    *qkv(f'{ours}/attention', f'{h}.attn', bias=False),
    *linear(f'{ours}/attention/out', f'{h}.attn.out_proj', bias=False),
    *linear(f'{ours}/ffn/in', f'{h}.mlp.fc_in'),
    *linear(f'{ours}/ffn/out', f'{h}.mlp.fc_out'),
    *norm('final_norm', 'transformer.ln_f'),
    *[same('head/embedding', 'lm_head.weight')] * head,
    *[same('head_bias', 'lm_head.bias')] * head,
  ]


GPTJ = Family(
  model_type='gptj',
  architectures=classes('GPTJ'),
  prefix='transformer.',
  entries=(
    *_table(_INNER),
    Entry(_read_turned, _write_turned),
    _ACTIVATION,
    # HF has an output bias even if tied; no such model is known, and its
    # tensors could not be distinguished from those of an untied one.
    constant(tie_word_embeddings=False),
    fixed(block='parallel', bias='where(ffn=True)', output='untied(bias=True)'),
  ),
  tensors=_gptj_tensors,
  buffers=(
    r'transformer\.h\.\d+\.attn\.(bias|masked_bias|embed_positions)',
    r'transformer\.h\.\d+\.attn\.rotary_emb\.inv_freq',
  ),
  token_types=True,
)


# Falcon: 7B (multi-query), 40B (grouped), and RW (ALiBi, sequential).


_ALIBI = "alibi(scale='rsqrt', dtype='bfloat16')"


def _read_heads(options: Options) -> dict[str, Any]:
  d_model = options.size('hidden_size')
  num_heads = options.size('num_attention_heads')
  if d_model % num_heads or d_model // num_heads % 2:
    raise options.fail('num_attention_heads', f'must divide hidden_size={d_model} evenly in 2s')
  return {
    'num_kv_heads': _num_kv_heads(options, num_heads),
    'd_ff': options.size('ffn_hidden_size', 4 * d_model),
    'block': _block(options),
    'position': _ALIBI if options.flag('alibi', False) else rope.read_rope(options),
  }


def _write_heads(model: Transformer) -> dict[str, Any]:
  block = choice(model, 'block')
  norms = block.kwargs.get('num_norms')
  new = norms == 2 or model.num_kv_heads not in (1, model.num_heads)
  return {
    'num_kv_heads': model.num_kv_heads,
    'ffn_hidden_size': model.d_ff,
    'new_decoder_architecture': new,
    'multi_query': model.num_kv_heads < model.num_heads,
    'parallel_attn': block.name == 'parallel',
    'num_ln_in_parallel_attn': norms if new else None,
    'alibi': choice(model, 'position').name == 'alibi',
    **rope.write_rope(model),
  }


def _num_kv_heads(options: Options, num_heads: int) -> int:
  groups = options.size('num_kv_heads', num_heads)
  if options.flag('new_decoder_architecture', False):
    if num_heads % groups:
      raise options.fail('num_kv_heads', f'must divide num_attention_heads={num_heads}')
    return groups
  if options.flag('multi_query', True):
    return 1
  if groups != num_heads:
    raise options.fail(
      'num_kv_heads',
      f'with neither multi_query nor new_decoder_architecture must be '
      f'{num_heads}, as num_attention_heads is',
    )
  return groups


def _block(options: Options) -> str:
  new = options.flag('new_decoder_architecture', False)
  norms = options.get('num_ln_in_parallel_attn', 2 if new else 1)
  if not options.flag('parallel_attn', True):
    if new:
      raise options.fail('parallel_attn', 'is not supported with new_decoder_architecture')
    return 'pre'
  # Other combinations fail in HF.
  if norms not in (1, 2) if new else norms == 2:
    raise options.fail(
      'num_ln_in_parallel_attn', f'is not supported with new_decoder_architecture={new}'
    )
  return f'parallel(num_norms={norms if new else 1})'


def _positions(model: Transformer, ids: Any, mask: Any, positions: Any) -> Any:
  """ALiBi counts visible tokens only; rotary positions count all."""
  del ids
  alibi = choice(model, 'position').name == 'alibi'
  if positions is not None or mask is None or not alibi:
    return positions
  return jnp.maximum(jnp.cumsum(mask, axis=-1) - 1, 0)


def _falcon_tensors(model: Transformer) -> list[Tensor]:
  bias = choice(model, 'bias').name == 'all'
  block = choice(model, 'block')
  norms = {'attention_norm': 'input_layernorm'}
  if block.name == 'pre':
    norms['ffn_norm'] = 'post_attention_layernorm'
  elif block.kwargs.get('num_norms') == 2:
    norms = {'attention_norm': 'ln_attn', 'ffn_norm': 'ln_mlp'}
  h, ours = 'transformer.h.{layer}', 'layer'
  return [
    *tables(model, 'transformer.word_embeddings.weight', 'lm_head.weight'),
    *[t for p, n in norms.items() for t in norm(f'{ours}/{p}', f'{h}.{n}')],
    # 7B has one group of all queries, RW one for each head.
    *fused_qkv(
      f'{ours}/attention',
      f'{h}.self_attention.query_key_value',
      groups=model.num_kv_heads,
      heads=(model.num_heads // model.num_kv_heads, 1, 1),
      head_size=model.head_size,
      bias=bias,
    ),
    *linear(f'{ours}/attention/out', f'{h}.self_attention.dense', bias),
    *linear(f'{ours}/ffn/in', f'{h}.mlp.dense_h_to_4h', bias),
    *linear(f'{ours}/ffn/out', f'{h}.mlp.dense_4h_to_h', bias),
    *norm('final_norm', 'transformer.ln_f'),
  ]


FALCON = Family(
  model_type='falcon',
  architectures=classes('Falcon'),
  prefix='transformer.',
  entries=(
    only(apply_residual_connection_post_layernorm=False),
    sizes(**BODY | {'max_position_embeddings': ('context_length', 2048)}),
    Entry(_read_heads, _write_heads),
    named('activation', 'ffn', ACTIVATIONS, 'gelu'),
    call('norm', 'layernorm', epsilon=('layer_norm_epsilon', 1e-5)),
    flag('bias', 'bias', 'all', 'none', False),
    _TIED,
    call(
      'dropout', 'rates', residual=('hidden_dropout', 0.0), attention=('attention_dropout', 0.0)
    ),
  ),
  tensors=_falcon_tensors,
  buffers=(
    r'transformer\.rotary_emb\.inv_freq',
    r'transformer\.h\.\d+\.self_attention\.(maybe_rotary|rotary_emb)'
    r'\.inv_freq',
  ),
  positions=_positions,
)
