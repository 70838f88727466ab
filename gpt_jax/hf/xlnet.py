# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""XLNet: two streams, relative attention with segments, a memory.

Its dropout within the feed-forward layer, of the distances and after the last
block is not ours: it matters in training alone. `bi_data`, where a half of the
batch is read backwards, is that of pre-training: see `data.half_rows`.
"""

from typing import Any

import numpy as np

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
from gpt_jax.hf.parts import rates
from gpt_jax.hf.xlnet_forward import forward
from gpt_jax.nn.transformer import Transformer

_ATTENTION = {'bi': 'bidirectional', 'uni': 'full'}


def _fields(options: Options) -> dict[str, Any]:
  for name, value in (
    ('bi_data', False),
    ('reuse_len', None),
    ('same_length', False),
    ('tie_word_embeddings', True),
    ('untie_r', True),
  ):
    options.only(name, value)
  dropout = options.number('dropout', 0.1)
  epsilon = options.number('layer_norm_eps', 1e-12)
  d_model, num_heads = options.size('d_model', 1024), options.size('n_head', 16)
  memory = options.size('mem_len', 512) if options.get('mem_len') else 0
  clamp = max(options.whole('clamp_len', -1), 0)
  return {
    'vocab_size': options.size('vocab_size', 32_000),
    # HF knows no such thing, and nothing that it computes depends on it.
    'context_length': options.size('context_length', 512),
    'num_layers': options.size('n_layer', 24),
    'd_model': d_model,
    'num_heads': num_heads,
    'head_size': options.size('d_head', d_model // num_heads),
    'd_ff': options.size('d_inner', 4096),
    'input': 'tokens(queries=True)',
    'position': f'xlnet(memory={memory}, clamp={clamp})',
    'attention': options.choice('attn_type', _ATTENTION, 'bi'),
    'bias': 'where(ffn=True)',
    'ffn': options.choice('ff_activation', ACTIVATIONS, 'gelu'),
    'norm': f'layernorm(epsilon={epsilon})',
    'block': 'post',
    'output': 'tied(bias=True)',
    'dropout': rates(embedding=dropout, residual=dropout, attention=dropout),
  }


def _options(model: Transformer) -> dict[str, Any]:
  position = choice(model, 'position').kwargs
  causal = choice(model, 'attention').name != 'bidirectional'
  return {
    'attn_type': 'uni' if causal else 'bi',
    'bi_data': False,
    'clamp_len': position.get('clamp') or -1,
    'context_length': model.context_length,
    'd_head': model.head_size,
    'd_inner': model.d_ff,
    'd_model': model.d_model,
    'dropout': choice(model, 'dropout').kwargs.get('residual', 0.0),
    'ff_activation': activation(model),
    'layer_norm_eps': choice(model, 'norm').kwargs.get('epsilon'),
    'mem_len': position.get('memory') or None,
    'n_head': model.num_heads,
    'n_layer': model.num_layers,
    'same_length': False,
    'untie_r': True,
    'vocab_size': model.vocab_size,
  }


def _tensors(model: Transformer) -> list[Tensor]:
  h, ours = 'transformer.layer.{layer}', 'layer'
  of = f'{h}.rel_attn'
  heads = model.num_heads, model.head_size
  scores = choice(model, 'output').kwargs['bias']
  own = [
    same(f'{ours}/attention/{path}', f'{of}.{name}')
    for path, name in (
      ('content_bias', 'r_w_bias'),
      ('position_bias', 'r_r_bias'),
      ('segment_bias', 'r_s_bias'),
      ('segments', 'seg_embed'),
    )
  ]
  return [
    same('embed/embedding', 'transformer.word_embedding.weight'),
    Tensor(
      *(('transformer.mask_emb',), ('query_embedding',)),
      *(lambda x: [x[0, 0]], lambda parts: parts[0][None, None]),
    ),
    *([same('head_bias', 'lm_loss.bias')] if scores else []),
    *own,
    *(
      _heads(f'{ours}/attention/{path}/kernel', f'{of}.{name}', heads)
      for path, name in (
        *(('query', 'q'), ('key', 'k'), ('value', 'v'), ('relative', 'r')),
      )
    ),
    _heads(f'{ours}/attention/out/kernel', f'{of}.o', heads, back=True),
    *norm(f'{ours}/attention_norm', f'{of}.layer_norm'),
    *linear(f'{ours}/ffn/in', f'{h}.ff.layer_1'),
    *linear(f'{ours}/ffn/out', f'{h}.ff.layer_2'),
    *norm(f'{ours}/ffn_norm', f'{h}.ff.layer_norm'),
  ]


def _heads(
  path: str, name: str, heads: tuple[int, int], *, back: bool = False
) -> Tensor:
  """A raw [width, heads, size]; `back`: ours leads from heads to the width."""

  def split(x: np.ndarray) -> list[np.ndarray]:
    x = x.reshape(len(x), -1)
    return [x.T if back else x]

  def join(parts: Any) -> np.ndarray:
    x = parts[0].T if back else parts[0]
    return x.reshape(len(x), *heads)

  return Tensor((name,), (path,), split, join)


XLNET = Family(
  model_type='xlnet',
  architectures={
    'XLNetLMHeadModel': 'lm',
    'XLNetForSequenceClassification': 'last_classification',
    'XLNetForMultipleChoice': 'last_choice',
    'XLNetForTokenClassification': 'tokens',
    'XLNetForQuestionAnsweringSimple': 'spans',
    'XLNetModel': 'body',
  },
  prefix='transformer.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  token_types=True,
  heads={
    'pooler': 'sequence_summary.summary',
    'last_classification/classifier': 'logits_proj',
    'last_choice/classifier': 'logits_proj',
  },
  forward=forward,
)
