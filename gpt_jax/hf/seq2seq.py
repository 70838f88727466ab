# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""T5, of version 1.0, and of 1.1 with its gate and its own output table."""

from typing import Any

from gpt_jax.hf import routers
from gpt_jax.hf.base import (
  ACTIVATIONS,
  Entry,
  Family,
  Options,
  Tensor,
  activation,
  choice,
  ffns,
  linear,
  norm,
  qkv,
  rates,
  same,
  shortest_period,
)
from gpt_jax.hf.llama import GATED
from gpt_jax.nn.transformer import Transformer

# HF's `feed_forward_proj` -> our `model.ffn`, and HF's `dense_act_fn`.
# feed_forward_proj -> `model.ffn`, and the activation in it.
_FFNS = {
  **{name: (ours, name) for name, ours in ACTIVATIONS.items()},
  **{f'gated-{name}': (ours, name) for name, ours in GATED.items()},
  'gated-gelu': ('geglu_tanh', 'gelu_new'),  # so in HF
}


def _t5_fields(options: Options) -> dict[str, Any]:
  names = {name: name for name in _FFNS}
  proj = options.choice('feed_forward_proj', names, 'relu')
  ffn, activation = _FFNS[proj]
  options.only('dense_act_fn', activation)
  options.only('is_gated_act', proj.startswith('gated-'))
  num_layers = options.size('num_layers')
  return {
    **t5_fields(options),
    'num_layers': options.size('num_decoder_layers', num_layers),
    'ffn': ffn,
    'output': _output(options),
  }


def t5_fields(options: Options) -> dict[str, Any]:
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


def _t5_options(model: Transformer) -> dict[str, Any]:
  ffn = choice(model, 'ffn').name
  names = {ours: theirs for theirs, (ours, _) in reversed(_FFNS.items())}
  proj = names.get(ffn, ffn)
  options = t5_options(model)
  return {
    **options,
    'feed_forward_proj': proj,
    'dense_act_fn': _FFNS[proj][1] if proj in _FFNS else proj,
    'is_gated_act': proj.startswith('gated-'),
    'scale_decoder_outputs': options['tie_word_embeddings'],
  }


def t5_options(model: Transformer) -> dict[str, Any]:
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


def _t5_tensors(model: Transformer) -> list[Tensor]:
  tensors = [
    *_t5_ffn(model, 'encoder_layer', f'{layer("encoder")}.1'),
    *_t5_ffn(model, 'layer', f'{layer("decoder")}.2'),
  ]
  return [*t5_tensors(model), *tensors]


def layer(stack: str) -> str:
  """Where the sublayers of `encoder` or `decoder` are."""
  return f'transformer.{stack}.block.{{layer}}.layer'


def t5_tensors(model: Transformer) -> list[Tensor]:
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


def _t5_ffn(model: Transformer, path: str, name: str) -> list[Tensor]:
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
  entries=(Entry(_t5_fields, _t5_options),),
  tensors=_t5_tensors,
  buffers=BUFFERS,
  bare=True,
  rewritten=('tie_word_embeddings',),
)


# Switch Transformers: T5 1.0 with experts in some of its layers.


# Options of older releases, or that only later code would heed.
_ONLY = {
  'router_dtype': 'float32',
  'router_ignore_padding_tokens': False,
  'router_type': 'tokens_masked',
  'batch_prioritized_routing': False,
  'num_selected_experts': 1,
  'is_gated_act': False,
}


def _switch_transformers_fields(options: Options) -> dict[str, Any]:
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
  fields = t5_fields(options)
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


def _switch_transformers_options(model: Transformer) -> dict[str, Any]:
  stacks = {stack: ffns(model, stack) for stack in ('encoder', 'decoder')}
  calls = [call for of_layers in stacks.values() for call in of_layers]
  switch = next((c.kwargs for c in calls if c.name == 'switch'), {})
  # Experts are like the others.
  dense = next((c.name for c in calls if c.name != 'switch'), '')
  dense = dense or switch['expert']
  names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
  options = t5_options(model)
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


def _switch_transformers_tensors(model: Transformer) -> list[Tensor]:
  embed, *tensors = t5_tensors(model)
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
    mlp = f'{layer(stack)}.{sublayer}.mlp'
    tensors += [
      t._replace(layers=dense) for t in _switch_transformers_ffn(path, mlp)
    ]
    if sparse:
      switch = calls[sparse[0]].kwargs
      name, bias = f'{mlp}.router.classifier', switch['router_bias']
      router = linear(f'{path}/ffn/router', name, bias)
      each = _switch_transformers_ffn(path, f'{mlp}.experts.expert_{{expert}}')
      tensors += [t._replace(layers=sparse) for t in router]
      tensors += [
        t._replace(layers=sparse, experts=switch['num_experts']) for t in each
      ]
  return tensors


def _switch_transformers_ffn(path: str, name: str) -> list[Tensor]:
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
  entries=(Entry(_switch_transformers_fields, _switch_transformers_options),),
  tensors=_switch_transformers_tensors,
  buffers=BUFFERS,
  bare=True,
)


# BART: the Transformer of 2017 with learned positions and norms of its inputs.
#
# Its file has a bias of the vocabulary's scores that transformers never trains,
# and that is zero in BART itself: zeros are left out, and written.


# Rows of the table of positions before that of the first token.
OFFSET = 2
# The bias; see `Family.output_bias`.
LOGITS_BIAS = 'final_logits_bias'


def _bart_fields(options: Options) -> dict[str, Any]:
  for name in ('normalize_before', 'add_final_layer_norm'):
    options.only(name, False)
  return {
    **bart_fields(options, norm=True),
    **learned_positions(options),
    'block': 'post',
  }


def learned_positions(options: Options) -> dict[str, Any]:
  """The field `position`; refuses an old file whose positions are others."""
  options.only('static_position_embeddings', False)
  options.only('normalize_embedding', True)
  options.only('extra_pos_embeddings', OFFSET)
  return {'position': f'learned(offset={OFFSET})'}


def bart_fields(options: Options, *, norm: bool) -> dict[str, Any]:
  """What BART, mBART and Marian call by the same names.

  Args:
    options: of config.json.
    norm: whether the inputs of both stacks are normalised.
  """
  options.only('is_decoder', False)
  options.only('tie_word_embeddings', True)
  heads = options.size('decoder_attention_heads', 16)
  d_ff = options.size('decoder_ffn_dim', 4096)
  encoder_heads = options.size('encoder_attention_heads', 16)
  encoder_d_ff = options.size('encoder_ffn_dim', 4096)
  d_model = options.size('d_model', 1024)
  if d_model % encoder_heads:
    raise options.fail('encoder_attention_heads', f'does not divide {d_model=}')
  scale = 'sqrt' if options.flag('scale_embedding', False) else 'none'
  rate = options.number('dropout', 0.1)
  return {
    'vocab_size': options.size('vocab_size'),
    'context_length': options.size('max_position_embeddings', 1024),
    'num_layers': options.size('decoder_layers', 12),
    'num_encoder_layers': options.size('encoder_layers', 12),
    'd_model': d_model,
    'num_heads': heads,
    'd_ff': d_ff,
    'encoder_num_heads': 0 if encoder_heads == heads else encoder_heads,
    'encoder_d_ff': 0 if encoder_d_ff == d_ff else encoder_d_ff,
    'input': f'tokens(scale={scale!r}, norm={norm})',
    'ffn': options.choice('activation_function', ACTIVATIONS, 'gelu'),
    # No option says so.
    'norm': 'layernorm(epsilon=1e-5)',
    'dropout': rates(
      embedding=rate,
      residual=rate,
      attention=options.number('attention_dropout', 0.0),
    ),
  }


def bart_options(model: Transformer) -> dict[str, Any]:
  """The way back from `shared_fields`."""
  scale = choice(model, 'input').kwargs.get('scale')
  dropout = choice(model, 'dropout').kwargs
  return {
    'vocab_size': model.vocab_size,
    'max_position_embeddings': model.context_length,
    'd_model': model.d_model,
    'encoder_attention_heads': model.encoder_num_heads or model.num_heads,
    'decoder_attention_heads': model.num_heads,
    'encoder_ffn_dim': model.encoder_d_ff or model.d_ff,
    'decoder_ffn_dim': model.d_ff,
    'encoder_layers': model.num_encoder_layers,
    'decoder_layers': model.num_layers,
    'activation_function': activation(model),
    'scale_embedding': scale == 'sqrt',
    'dropout': dropout.get('residual', 0.0),
    'attention_dropout': dropout.get('attention', 0.0),
    'activation_dropout': 0.0,
    'tie_word_embeddings': True,
    'is_encoder_decoder': True,
    # Text ends as it may, without this token forced upon it.
    'forced_eos_token_id': None,
  }


def _bart_options(model: Transformer) -> dict[str, Any]:
  return bart_options(model) | {
    'bos_token_id': 0,
    'pad_token_id': 1,
    'eos_token_id': 2,
    'decoder_start_token_id': 2,
  }


def _bart_tensors(model: Transformer) -> list[Tensor]:
  del model
  return [*bart_tensors(), *input_tensors()]


def input_tensors() -> list[Tensor]:
  """Learned positions and the norm of both stacks' inputs."""
  return [
    tensor
    for stack, ours in (('encoder', 'encoder_'), ('decoder', ''))
    for tensor in (
      same(
        f'{ours}positions/embedding', f'model.{stack}.embed_positions.weight'
      ),
      *norm(f'{ours}embed_norm', f'model.{stack}.layernorm_embedding'),
    )
  ]


def bart_tensors() -> list[Tensor]:
  """The table and the layers of both stacks."""
  repeated = [f'model.{stack}.embed_tokens' for stack in ('encoder', 'decoder')]
  tables = ['model.shared', *repeated, 'lm_head']
  tensors = [same('embed/embedding', *(f'{name}.weight' for name in tables))]
  for stack, ours in (('encoder', 'encoder_layer'), ('decoder', 'layer')):
    theirs = f'model.{stack}.layers.{{layer}}'
    sublayers = [('attention', 'self_attn')]
    if stack == 'decoder':
      sublayers.append(('cross', 'encoder_attn'))
    for path, name in sublayers:
      tensors += [
        *qkv(f'{ours}/{path}', f'{theirs}.{name}', bias=True),
        *linear(f'{ours}/{path}/out', f'{theirs}.{name}.out_proj'),
        *norm(f'{ours}/{path}_norm', f'{theirs}.{name}_layer_norm'),
      ]
    tensors += [
      *linear(f'{ours}/ffn/in', f'{theirs}.fc1'),
      *linear(f'{ours}/ffn/out', f'{theirs}.fc2'),
      # The last of the layer.
      *norm(f'{ours}/ffn_norm', f'{theirs}.final_layer_norm'),
    ]
  return tensors


BART = Family(
  model_type='bart',
  architectures={
    'BartForConditionalGeneration': 'lm',
    'BartForSequenceClassification': 'eos_classification',
    'BartModel': 'body',
  },
  prefix='model.',
  entries=(Entry(_bart_fields, _bart_options),),
  tensors=_bart_tensors,
  output_bias=LOGITS_BIAS,
  scoring_body=True,
)


# mBART: BART with norms before the sublayers, and after both stacks.


def _mbart_fields(options: Options) -> dict[str, Any]:
  for name in ('normalize_before', 'add_final_layer_norm'):
    options.only(name, True)
  return {
    **bart_fields(options, norm=True),
    **learned_positions(options),
    'block': 'pre',
  }


def _mbart_options(model: Transformer) -> dict[str, Any]:
  return bart_options(model) | {
    'bos_token_id': 0,
    'pad_token_id': 1,
    'eos_token_id': 2,
    'decoder_start_token_id': 2,
  }


def _mbart_tensors(model: Transformer) -> list[Tensor]:
  del model
  return [
    *bart_tensors(),
    *input_tensors(),
    *norm('encoder_norm', 'model.encoder.layer_norm'),
    *norm('final_norm', 'model.decoder.layer_norm'),
  ]


MBART = Family(
  model_type='mbart',
  architectures={
    'MBartForConditionalGeneration': 'lm',
    'MBartForSequenceClassification': 'eos_classification',
    'MBartModel': 'body',
  },
  prefix='model.',
  entries=(Entry(_mbart_fields, _mbart_options),),
  tensors=_mbart_tensors,
  output_bias=LOGITS_BIAS,
  scoring_body=True,
  rolled=True,
)


# Marian: the Transformer of 2017, with all sines before all cosines.


def _marian_fields(options: Options) -> dict[str, Any]:
  vocab_size = options.size('vocab_size')
  for name in ('normalize_before', 'add_final_layer_norm'):
    options.only(name, False)
  options.only('normalize_embedding', False)
  options.only('static_position_embeddings', True)
  options.only('share_encoder_decoder_embeddings', True)
  options.only('decoder_vocab_size', vocab_size)
  return {
    **bart_fields(options, norm=False),
    'position': "sinusoidal(layout='halves')",
    'block': 'post',
  }


def _marian_options(model: Transformer) -> dict[str, Any]:
  return bart_options(model) | {
    'decoder_vocab_size': model.vocab_size,
    'share_encoder_decoder_embeddings': True,
    'pad_token_id': 0,
    'eos_token_id': 1,
    'decoder_start_token_id': 0,
  }


def _marian_tensors(model: Transformer) -> list[Tensor]:
  del model
  return bart_tensors()


MARIAN = Family(
  model_type='marian',
  architectures={'MarianMTModel': 'lm', 'MarianModel': 'body'},
  prefix='model.',
  entries=(Entry(_marian_fields, _marian_options),),
  tensors=_marian_tensors,
  # The sines, which transformers computes itself; older files have them.
  buffers=(r'model\.(encoder|decoder)\.embed_positions\.weight',),
  output_bias=LOGITS_BIAS,
  scoring_body=True,
)
