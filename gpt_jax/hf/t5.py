# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""T5, of version 1.0, and of 1.1 with its gate and its own output table."""

from typing import Any

from gpt_jax.hf.base import (
  ACTIVATIONS,
  Family,
  Options,
  Tensor,
  choice,
  linear,
  norm,
  same,
)
from gpt_jax.hf.llama import GATED
from gpt_jax.hf.parts import qkv, rates
from gpt_jax.nn.transformer import Transformer

# HF's `feed_forward_proj` -> our `model.ffn`, and HF's `dense_act_fn`.
# feed_forward_proj -> `model.ffn`, and the activation in it.
_FFNS = {
  **{name: (ours, name) for name, ours in ACTIVATIONS.items()},
  **{f'gated-{name}': (ours, name) for name, ours in GATED.items()},
  'gated-gelu': ('geglu_tanh', 'gelu_new'),  # so in HF
}


def _fields(options: Options) -> dict[str, Any]:
  names = {name: name for name in _FFNS}
  proj = options.choice('feed_forward_proj', names, 'relu')
  ffn, activation = _FFNS[proj]
  options.only('dense_act_fn', activation)
  options.only('is_gated_act', proj.startswith('gated-'))
  num_layers = options.size('num_layers')
  return {
    **shared_fields(options),
    'num_layers': options.size('num_decoder_layers', num_layers),
    'ffn': ffn,
    'output': _output(options),
  }


def shared_fields(options: Options) -> dict[str, Any]:
  """What T5 and Switch Transformers call by the same names."""
  options.only('is_decoder', False)
  buckets = options.size('relative_attention_num_buckets', 32)
  distance = options.size('relative_attention_max_distance', 128)
  rate = options.number('dropout_rate', 0.1)
  return {
    'vocab_size': options.size('vocab_size'),
    # Nothing bounds it; newer files do not even name what it was trained with.
    'context_length': options.size('n_positions', 512),
    'num_encoder_layers': options.size('num_layers'),
    'd_model': options.size('d_model'),
    'num_heads': options.size('num_heads'),
    'head_size': options.size('d_kv'),
    'd_ff': options.size('d_ff'),
    'position': f't5_bias(num_buckets={buckets}, max_distance={distance})',
    'attention_scale': 'none',
    'norm': f'rmsnorm(epsilon={options.number("layer_norm_epsilon", 1e-6)})',
    'block': 'pre',
    'bias': 'none',
    'dropout': rates(embedding=rate, residual=rate, attention=rate),
  }


def _output(options: Options) -> str:
  """1.0 ties and scales, 1.1 does neither.

  `tie_word_embeddings` told them apart before transformers 5; since then it is
  written as true, and `scale_decoder_outputs` tells.
  """
  tied = options.flag('tie_word_embeddings', True)
  scaled = options.flag('scale_decoder_outputs', tied)
  if scaled and not tied:
    raise options.fail(
      'scale_decoder_outputs', 'contradicts tie_word_embeddings=False'
    )
  return "tied(scale='rsqrt')" if scaled else 'untied'


def _options(model: Transformer) -> dict[str, Any]:
  ffn = choice(model, 'ffn').name
  names = {ours: theirs for theirs, (ours, _) in reversed(_FFNS.items())}
  proj = names.get(ffn, ffn)
  options = shared_options(model)
  return {
    **options,
    'feed_forward_proj': proj,
    'dense_act_fn': _FFNS[proj][1] if proj in _FFNS else proj,
    'is_gated_act': proj.startswith('gated-'),
    'scale_decoder_outputs': options['tie_word_embeddings'],
  }


def shared_options(model: Transformer) -> dict[str, Any]:
  """The way back from `shared_fields`, and how the vocabulary is scored."""
  position = choice(model, 'position')
  return {
    'vocab_size': model.vocab_size,
    'n_positions': model.context_length,
    'num_layers': model.num_encoder_layers,
    'num_decoder_layers': model.num_layers,
    'd_model': model.d_model,
    'num_heads': model.num_heads,
    'd_kv': model.head_size,
    'd_ff': model.d_ff,
    'relative_attention_num_buckets': position.kwargs.get('num_buckets'),
    'relative_attention_max_distance': position.kwargs.get('max_distance'),
    'layer_norm_epsilon': choice(model, 'norm').kwargs['epsilon'],
    'dropout_rate': choice(model, 'dropout').kwargs.get('residual', 0.0),
    'tie_word_embeddings': choice(model, 'output').name == 'tied',
    'is_encoder_decoder': True,
    'decoder_start_token_id': 0,
    'pad_token_id': 0,
    'eos_token_id': 1,
  }


def _tensors(model: Transformer) -> list[Tensor]:
  tensors = [
    *_ffn(model, 'encoder_layer', f'{layer("encoder")}.1'),
    *_ffn(model, 'layer', f'{layer("decoder")}.2'),
  ]
  return [*shared_tensors(model), *tensors]


def layer(stack: str) -> str:
  """Where the sublayers of `encoder` or `decoder` are."""
  return f'transformer.{stack}.block.{{layer}}.layer'


def shared_tensors(model: Transformer) -> list[Tensor]:
  """All but the feed-forward sublayers, whose norms are in."""
  t = 'transformer'
  tied = choice(model, 'output').name == 'tied'
  repeated = [f'{t}.encoder.embed_tokens', f'{t}.decoder.embed_tokens']
  tables = [f'{t}.shared', *repeated, *['lm_head'] * tied]
  tensors = [
    same('embed/embedding', *(f'{name}.weight' for name in tables)),
    *[same('head/embedding', 'lm_head.weight')] * (not tied),
  ]
  stacks = (
    ('encoder', 'encoder_layer', 'encoder_norm', 1),
    ('decoder', 'layer', 'final_norm', 2),
  )
  for stack, ours, last_norm, ffn in stacks:
    # All layers share the bias, but HF's first layer has it.
    bias = 'block.0.layer.0.SelfAttention.relative_attention_bias.weight'
    tensors += [
      same(f'{stack}_bias/embedding', f'{t}.{stack}.{bias}'),
      *_attention(f'{ours}/attention', f'{layer(stack)}.0', 'SelfAttention'),
      *norm(f'{ours}/ffn_norm', f'{layer(stack)}.{ffn}.layer_norm', bias=False),
      *norm(last_norm, f'{t}.{stack}.final_layer_norm', bias=False),
    ]
  cross = f'{layer("decoder")}.1'
  return [*tensors, *_attention('layer/cross', cross, 'EncDecAttention')]


def _attention(path: str, name: str, kind: str) -> list[Tensor]:
  """One sublayer of attention, with its norm."""
  return [
    *norm(f'{path}_norm', f'{name}.layer_norm', bias=False),
    *qkv(path, f'{name}.{kind}', bias=False, names=('q', 'k', 'v')),
    *linear(f'{path}/out', f'{name}.{kind}.o', bias=False),
  ]


def _ffn(model: Transformer, path: str, name: str) -> list[Tensor]:
  """The feed-forward sublayer."""
  ffn = choice(model, 'ffn').name
  gated = any(
    ours == ffn and proj.startswith('gated-')
    for proj, (ours, _) in _FFNS.items()
  )
  dense = f'{name}.DenseReluDense'
  widen = linear(f'{path}/ffn/in', f'{dense}.wi', bias=False)
  if gated:
    widen = [
      *linear(f'{path}/ffn/gate', f'{dense}.wi_0', bias=False),
      *linear(f'{path}/ffn/in', f'{dense}.wi_1', bias=False),
    ]
  return [
    *widen,
    *linear(f'{path}/ffn/out', f'{dense}.wo', bias=False),
  ]


# Google's files carry a bias for cross-attention that was never used.
BUFFERS = (
  r'transformer\.decoder\.block\.0\.layer\.1\.EncDecAttention'
  r'\.relative_attention_bias\.weight',
)

T5 = Family(
  model_type='t5',
  architectures={
    'T5ForConditionalGeneration': 'lm',
    'T5ForSequenceClassification': 'eos_classification',
    'T5Model': 'body',
  },
  prefix='transformer.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=BUFFERS,
  bare=True,
  rewritten=('tie_word_embeddings',),
)
