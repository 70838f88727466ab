# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""T5, Switch Transformers, BART, mBART and Marian: encoder-decoders."""

from typing import Any

from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.hf import routers
from gpt_jax.hf.base import (
  ACTIVATIONS,
  Entry,
  Family,
  Options,
  Tensor,
  call,
  choice,
  classes,
  constant,
  dropout,
  ffns,
  fixed,
  hf_name,
  linear,
  named,
  norm,
  only,
  qkv,
  same,
  shortest_period,
  sizes,
  writes,
)
from gpt_jax.hf.llama import GATED

_CLASSES = {
  'ForConditionalGeneration': 'lm',
  'ForSequenceClassification': 'eos_classification',
  'Model': 'body',
}

# T5 1.0; and 1.1, which has gates and a separate output table.

# feed_forward_proj -> `model.ffn`, and the activation in it.
_FFNS = {
  **{name: (ours, name) for name, ours in ACTIVATIONS.items()},
  **{f'gated-{name}': (ours, name) for name, ours in GATED.items()},
  'gated-gelu': ('geglu_tanh', 'gelu_new'),  # so in HF
}


def _read_decoder(options: Options) -> dict[str, Any]:
  num_layers = options.size('num_layers')
  return {'num_layers': options.size('num_decoder_layers', num_layers)}


def _write_decoder(model: Transformer) -> dict[str, Any]:
  return {'num_decoder_layers': model.num_layers}


def _write_tied(model: Transformer) -> dict[str, Any]:
  return {'tie_word_embeddings': choice(model, 'output').name == 'tied'}


def _t5(decoder: Entry, *own: Entry) -> tuple[Entry, ...]:
  """Options that T5 and Switch Transformers share.

  `decoder` has its number of layers, `own` the entries of the family.
  """
  return (
    only(is_decoder=False),
    sizes(
      vocab_size='vocab_size',
      # T5 has no limit; newer files do not say what it was trained with.
      n_positions=('context_length', 512),
      num_layers='num_encoder_layers',
    ),
    decoder,
    sizes(d_model='d_model', num_heads='num_heads', d_kv='head_size'),
    sizes(d_ff='d_ff'),
    call(
      'position',
      't5_bias',
      num_buckets=('relative_attention_num_buckets', 32),
      max_distance=('relative_attention_max_distance', 128),
    ),
    call('norm', 'rmsnorm', epsilon=('layer_norm_epsilon', 1e-6)),
    dropout('dropout_rate', 'dropout_rate', 'dropout_rate', 0.1),
    Entry(write=_write_tied),
    writes(is_encoder_decoder=True, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1),
    fixed(attention_scale='none', block='pre', bias='none'),
    *own,
  )


def _read_ffn(options: Options) -> dict[str, Any]:
  names = {name: name for name in _FFNS}
  proj = options.choice('feed_forward_proj', names, 'relu')
  ffn, activation = _FFNS[proj]
  options.only('dense_act_fn', activation)
  options.only('is_gated_act', proj.startswith('gated-'))
  return {'ffn': ffn}


def _write_ffn(model: Transformer) -> dict[str, Any]:
  names = {proj: ours for proj, (ours, _) in _FFNS.items()}
  proj = hf_name(choice(model, 'ffn').name, names)
  return {
    'feed_forward_proj': proj,
    'dense_act_fn': _FFNS[proj][1] if proj in _FFNS else proj,
    'is_gated_act': proj.startswith('gated-'),
  }


def _read_output(options: Options) -> dict[str, Any]:
  """1.0 ties and scales, 1.1 does neither.

  `tie_word_embeddings` distinguished them before transformers 5; since then it
  is always written as true, and `scale_decoder_outputs` distinguishes them.
  """
  tied = options.flag('tie_word_embeddings', True)
  scaled = options.flag('scale_decoder_outputs', tied)
  if scaled and not tied:
    raise options.fail('scale_decoder_outputs', 'contradicts tie_word_embeddings=False')
  return {'output': "tied(scale='rsqrt')" if scaled else 'untied'}


def _write_output(model: Transformer) -> dict[str, Any]:
  scale = choice(model, 'output').kwargs.get('scale', 'none')
  return {'scale_decoder_outputs': scale == 'rsqrt'}


def _t5_tensors(model: Transformer) -> list[Tensor]:
  tensors = [
    *_t5_ffn(model, 'encoder_layer', f'{_layer("encoder")}.1'),
    *_t5_ffn(model, 'layer', f'{_layer("decoder")}.2'),
  ]
  return [*_shared_tensors(model), *tensors]


def _layer(stack: str) -> str:
  """Where the sublayers of `encoder` or `decoder` are."""
  return f'transformer.{stack}.block.{{layer}}.layer'


def _shared_tensors(model: Transformer) -> list[Tensor]:
  """All tensors without the feed-forward layers', but with their norms."""
  t = 'transformer'
  tied = choice(model, 'output').name == 'tied'
  repeated = [f'{t}.encoder.embed_tokens', f'{t}.decoder.embed_tokens']
  tables = [f'{t}.shared', *repeated, *['lm_head'] * tied]
  tensors = [
    same('embed/embedding', *(f'{name}.weight' for name in tables)),
    *[same('head/embedding', 'lm_head.weight')] * (not tied),
  ]
  stacks = (('encoder', 'encoder_layer', 'encoder_norm', 1), ('decoder', 'layer', 'final_norm', 2))
  for stack, ours, last_norm, ffn in stacks:
    # All layers share the bias, but HF's first layer has it.
    bias = 'block.0.layer.0.SelfAttention.relative_attention_bias.weight'
    tensors += [
      same(f'{stack}_bias/embedding', f'{t}.{stack}.{bias}'),
      *_attention(f'{ours}/attention', f'{_layer(stack)}.0', 'SelfAttention'),
      *norm(f'{ours}/ffn_norm', f'{_layer(stack)}.{ffn}.layer_norm', bias=False),
      *norm(last_norm, f'{t}.{stack}.final_layer_norm', bias=False),
    ]
  cross = f'{_layer("decoder")}.1'
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
  gated = any(ours == ffn and proj.startswith('gated-') for proj, (ours, _) in _FFNS.items())
  dense = f'{name}.DenseReluDense'
  widen = linear(f'{path}/ffn/in', f'{dense}.wi', bias=False)
  if gated:
    widen = [
      *linear(f'{path}/ffn/gate', f'{dense}.wi_0', bias=False),
      *linear(f'{path}/ffn/in', f'{dense}.wi_1', bias=False),
    ]
  return [*widen, *linear(f'{path}/ffn/out', f'{dense}.wo', bias=False)]


# Google's files have a bias for cross-attention that was never used.
_BUFFERS = (
  r'transformer\.decoder\.block\.0\.layer\.1\.EncDecAttention'
  r'\.relative_attention_bias\.weight',
)

T5 = Family(
  model_type='t5',
  architectures=classes('T5', _CLASSES),
  prefix='transformer.',
  entries=_t5(
    Entry(_read_decoder, _write_decoder),
    Entry(_read_ffn, _write_ffn),
    Entry(_read_output, _write_output),
  ),
  tensors=_t5_tensors,
  buffers=_BUFFERS,
  output_table='lm_head.weight',
  bare=True,
  rewritten=('tie_word_embeddings',),
)


# Switch Transformers: T5 1.0 with experts in some of its layers.


def _read_experts(options: Options) -> dict[str, Any]:
  dense = options.choice('dense_act_fn', ACTIVATIONS, 'relu')
  options.only('feed_forward_proj', options.get('dense_act_fn', 'relu'))
  experts = (
    f'switch(num_experts={options.size("num_experts", 8)}, expert={dense!r}, '
    f'capacity={options.size("expert_capacity", 64)}, '
    f'{routers.read(options, jitter=0.01, aux=0.001, z=0.001)}'
    f'{", router_bias=True" * options.flag("router_bias", False)})'
  )
  num_layers = num_encoder_layers = options.size('num_layers')
  if options.has('num_decoder_layers'):
    num_layers = options.size('num_decoder_layers', num_layers)
  else:
    num_layers = 12
  stacks = {'encoder': num_encoder_layers, 'decoder': num_layers}
  encoder_ffn, ffn = (
    shortest_period([experts if s else dense for s in _sparse(options, stack, count)])
    for stack, count in stacks.items()
  )
  tied = options.flag('tie_word_embeddings', True)
  return {
    'num_layers': num_layers,
    'ffn': ffn,
    'encoder_ffn': None if encoder_ffn == ffn else encoder_ffn,
    'output': "tied(scale='rsqrt')" if tied else 'untied',
  }


def _sparse(options: Options, stack: str, num_layers: int) -> list[bool]:
  """Which layers have experts.

  By the step in config.json, which everything that HF wrote has; without it the
  step follows from the number of layers with experts.
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
  return [every == 1 or (every > 1 and i % every == 1) for i in range(num_layers)]


def _write_experts(model: Transformer) -> dict[str, Any]:
  stacks = {stack: ffns(model, stack) for stack in ('encoder', 'decoder')}
  calls = [call for of_layers in stacks.values() for call in of_layers]
  switch = next((c.kwargs for c in calls if c.name == 'switch'), {})
  # Experts have the activation of the dense layers.
  dense = next((c.name for c in calls if c.name != 'switch'), '')
  options = {}
  for stack, of_layers in stacks.items():
    sparse = [i for i, call in enumerate(of_layers) if call.name == 'switch']
    options |= {
      f'num_sparse_{stack}_layers': len(sparse),
      f'{stack}_sparse_step': _step(sparse, len(of_layers)),
    }
  return options | {
    'dense_act_fn': hf_name(dense or switch['expert'], ACTIVATIONS),
    'num_experts': switch.get('num_experts'),
    # Without a capacity: no row is longer than the context.
    'expert_capacity': switch.get('capacity') or model.context_length,
    **routers.write(switch, 'aux', 'z'),
    'router_bias': switch.get('router_bias', False),
  }


def _step(sparse: list[int], num_layers: int) -> int:
  """The inverse of `_sparse`, if there is one."""
  if len(sparse) == num_layers:
    return 1
  if len(sparse) < 2:
    return num_layers * len(sparse)
  return sparse[1] - sparse[0]


def _switch_tensors(model: Transformer) -> list[Tensor]:
  embed, *tensors = _shared_tensors(model)
  if choice(model, 'output').name == 'untied':
    # HF 5 has separate tables then, and would initialise missing ones anew.
    embed = embed._replace(always=embed.names)
  tensors.append(embed)
  for stack, path, sublayer in (('encoder', 'encoder_layer', 1), ('decoder', 'layer', 2)):
    calls = ffns(model, stack)
    sparse = tuple(i for i, c in enumerate(calls) if c.name == 'switch')
    dense = tuple(i for i in range(len(calls)) if i not in sparse)
    mlp = f'{_layer(stack)}.{sublayer}.mlp'
    tensors += [t._replace(layers=dense) for t in _switch_ffn(path, mlp)]
    if sparse:
      switch = calls[sparse[0]].kwargs
      name, bias = f'{mlp}.router.classifier', switch['router_bias']
      router = linear(f'{path}/ffn/router', name, bias)
      each = _switch_ffn(path, f'{mlp}.experts.expert_{{expert}}')
      tensors += [t._replace(layers=sparse) for t in router]
      tensors += [t._replace(layers=sparse, experts=switch['num_experts']) for t in each]
  return tensors


def _switch_ffn(path: str, name: str) -> list[Tensor]:
  return [
    *linear(f'{path}/ffn/in', f'{name}.wi', bias=False),
    *linear(f'{path}/ffn/out', f'{name}.wo', bias=False),
  ]


SWITCH_TRANSFORMERS = Family(
  model_type='switch_transformers',
  architectures=classes('SwitchTransformers', {'ForConditionalGeneration': 'lm', 'Model': 'body'}),
  prefix='transformer.',
  entries=_t5(
    Entry(write=_write_decoder),
    Entry(_read_experts, _write_experts),
    # Options of older releases, or that only later code would heed.
    constant(router_dtype='float32', router_ignore_padding_tokens=False),
    writes(add_router_probs=False),
    only(
      router_type='tokens_masked',
      batch_prioritized_routing=False,
      num_selected_experts=1,
      is_gated_act=False,
    ),
  ),
  tensors=_switch_tensors,
  buffers=_BUFFERS,
  bare=True,
)


# BART: the Transformer of 2017 with learned positions and normalised inputs.
#
# Its files have a bias of the vocabulary's scores that transformers never
# trains. It is zero in BART itself: an import leaves zeros out, an export
# writes them.


# Rows of the position table before the first token's.
_OFFSET = 2


def _bart(
  *own: Entry, norm: bool, later_norms: bool, specials: dict[str, int]
) -> tuple[Entry, ...]:
  """Options that BART, mBART and Marian share.

  Args:
    *own: entries of the family.
    norm: whether the inputs of both stacks are normalised.
    later_norms: whether norms are before the sublayers and after the stacks.
    specials: ids of special tokens, for exports.
  """
  return (
    only(is_decoder=False, normalize_before=later_norms, add_final_layer_norm=later_norms),
    sizes(
      vocab_size='vocab_size',
      max_position_embeddings=('context_length', 1024),
      d_model=('d_model', 1024),
    ),
    Entry(_read_widths, _write_widths),
    sizes(encoder_layers=('num_encoder_layers', 12), decoder_layers=('num_layers', 12)),
    named('activation_function', 'ffn', ACTIVATIONS, 'gelu'),
    Entry(lambda options: {'input': f'tokens({_scale(options)}, norm={norm})'}, _write_scale),
    dropout('dropout', 'dropout', 'attention_dropout', (0.1, 0.1, 0.0)),
    writes(activation_dropout=0.0),
    constant(tie_word_embeddings=True),
    # Do not force a last token on generated text.
    writes(is_encoder_decoder=True, forced_eos_token_id=None),
    # The epsilon is no option.
    fixed(norm='layernorm(epsilon=1e-5)', block='pre' if later_norms else 'post'),
    *own,
    writes(**specials),
  )


def _scale(options: Options) -> str:
  scaled = options.flag('scale_embedding', False)
  return f'scale={"sqrt" if scaled else "none"!r}'


def _write_scale(model: Transformer) -> dict[str, Any]:
  scale = choice(model, 'input').kwargs.get('scale')
  return {'scale_embedding': scale == 'sqrt'}


def _read_widths(options: Options) -> dict[str, Any]:
  """Heads and widths; the encoder's are 0 if they equal the decoder's."""
  heads = options.size('decoder_attention_heads', 16)
  d_ff = options.size('decoder_ffn_dim', 4096)
  encoder_heads = options.size('encoder_attention_heads', 16)
  encoder_d_ff = options.size('encoder_ffn_dim', 4096)
  d_model = options.size('d_model', 1024)
  if d_model % encoder_heads:
    raise options.fail('encoder_attention_heads', f'does not divide {d_model=}')
  return {
    'num_heads': heads,
    'd_ff': d_ff,
    'encoder_num_heads': 0 if encoder_heads == heads else encoder_heads,
    'encoder_d_ff': 0 if encoder_d_ff == d_ff else encoder_d_ff,
  }


def _write_widths(model: Transformer) -> dict[str, Any]:
  return {
    'encoder_attention_heads': model.encoder_num_heads or model.num_heads,
    'decoder_attention_heads': model.num_heads,
    'encoder_ffn_dim': model.encoder_d_ff or model.d_ff,
    'decoder_ffn_dim': model.d_ff,
  }


# Old files say with these options which positions they have.
_LEARNED = (
  only(static_position_embeddings=False, normalize_embedding=True, extra_pos_embeddings=_OFFSET),
  fixed(position=f'learned(offset={_OFFSET})'),
)
_SPECIALS = {'bos_token_id': 0, 'pad_token_id': 1, 'eos_token_id': 2, 'decoder_start_token_id': 2}


def _bart_tensors(model: Transformer) -> list[Tensor]:
  del model
  return [*_stacks(), *_inputs()]


def _inputs() -> list[Tensor]:
  """Learned positions and the norm of both stacks' inputs."""
  return [
    tensor
    for stack, ours in (('encoder', 'encoder_'), ('decoder', ''))
    for tensor in (
      same(f'{ours}positions/embedding', f'model.{stack}.embed_positions.weight'),
      *norm(f'{ours}embed_norm', f'model.{stack}.layernorm_embedding'),
    )
  ]


def _stacks() -> list[Tensor]:
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
      # The layer's last norm.
      *norm(f'{ours}/ffn_norm', f'{theirs}.final_layer_norm'),
    ]
  return tensors


BART = Family(
  model_type='bart',
  architectures=classes('Bart', _CLASSES),
  prefix='model.',
  entries=_bart(*_LEARNED, norm=True, later_norms=False, specials=_SPECIALS),
  tensors=_bart_tensors,
  output_bias='final_logits_bias',
  scoring_body=True,
)


# mBART: BART with norms before the sublayers, and after both stacks.


def _mbart_tensors(model: Transformer) -> list[Tensor]:
  del model
  return [
    *_stacks(),
    *_inputs(),
    *norm('encoder_norm', 'model.encoder.layer_norm'),
    *norm('final_norm', 'model.decoder.layer_norm'),
  ]


MBART = Family(
  model_type='mbart',
  architectures=classes('MBart', _CLASSES),
  prefix='model.',
  entries=_bart(*_LEARNED, norm=True, later_norms=True, specials=_SPECIALS),
  tensors=_mbart_tensors,
  output_bias='final_logits_bias',
  scoring_body=True,
  rolled=True,
)


# Marian: the Transformer of 2017, but with all sines before all cosines.


def _read_vocabulary(options: Options) -> dict[str, Any]:
  options.only('decoder_vocab_size', options.size('vocab_size'))
  return {}


def _write_vocabulary(model: Transformer) -> dict[str, Any]:
  return {'decoder_vocab_size': model.vocab_size}


MARIAN = Family(
  model_type='marian',
  architectures={'MarianMTModel': 'lm', 'MarianModel': 'body'},
  prefix='model.',
  entries=_bart(
    only(normalize_embedding=False, static_position_embeddings=True),
    Entry(_read_vocabulary, _write_vocabulary),
    constant(share_encoder_decoder_embeddings=True),
    fixed(position="sinusoidal(layout='halves')"),
    norm=False,
    later_norms=False,
    specials={'pad_token_id': 0, 'eos_token_id': 1, 'decoder_start_token_id': 0},
  ),
  tensors=lambda model: _stacks(),
  # The sines, which transformers computes itself; older files have them.
  buffers=(r'model\.(encoder|decoder)\.embed_positions\.weight',),
  output_bias='final_logits_bias',
  scoring_body=True,
)
