# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BART: the Transformer of 2017 with learned positions and norms of its inputs.

Its file has a bias of the vocabulary's scores that transformers never trains,
and that is zero in BART itself: zeros are left out, and written.
"""

from typing import Any

from gpt_jax.hf.base import (
  ACTIVATIONS,
  Family,
  Options,
  Tensor,
  activation,
  choice,
  linear,
  norm,
  same,
)
from gpt_jax.hf.parts import qkv, rates
from gpt_jax.nn.transformer import Transformer

# Rows of the table of positions before that of the first token.
OFFSET = 2
# The bias; see `Family.output_bias`.
LOGITS_BIAS = 'final_logits_bias'


def _fields(options: Options) -> dict[str, Any]:
  for name in ('normalize_before', 'add_final_layer_norm'):
    options.only(name, False)
  return {
    **shared_fields(options, norm=True),
    **learned_positions(options),
    'block': 'post',
  }


def learned_positions(options: Options) -> dict[str, Any]:
  """The field `position`; refuses an old file whose positions are others."""
  options.only('static_position_embeddings', False)
  options.only('normalize_embedding', True)
  options.only('extra_pos_embeddings', OFFSET)
  return {'position': f'learned(offset={OFFSET})'}


def shared_fields(options: Options, *, norm: bool) -> dict[str, Any]:
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


def shared_options(model: Transformer) -> dict[str, Any]:
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


def _options(model: Transformer) -> dict[str, Any]:
  return shared_options(model) | {
    'bos_token_id': 0,
    'pad_token_id': 1,
    'eos_token_id': 2,
    'decoder_start_token_id': 2,
  }


def _tensors(model: Transformer) -> list[Tensor]:
  del model
  return [*shared_tensors(), *input_tensors()]


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


def shared_tensors() -> list[Tensor]:
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
  fields=_fields,
  options=_options,
  tensors=_tensors,
  output_bias=LOGITS_BIAS,
  scoring_body=True,
)
