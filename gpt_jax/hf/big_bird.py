# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BigBird: BERT with block-sparse attention, and a pooler of another name.

transformers draws random blocks in training only: in evaluation the first block
stands for each of them, which is `draw='first'` here. A model that was trained
here has drawn ones always; its config.json says so by `random_blocks_seed`,
which transformers keeps and does not read.
"""

from typing import Any

from gpt_jax.hf.base import ACTIVATIONS, Family, Options, Tensor, choice
from gpt_jax.hf.bert import encoder_fields, encoder_options, encoder_tensors
from gpt_jax.hf.bert import scores as mlm_head
from gpt_jax.nn.choices import build
from gpt_jax.nn.transformer import Transformer

_SEED = 'random_blocks_seed'


def _fields(options: Options) -> dict[str, Any]:
  ffn = options.choice('hidden_act', ACTIVATIONS, 'gelu_new')
  fields = encoder_fields(options, epsilon=1e-12)
  types = options.size('type_vocab_size', 2)
  scale = 'sqrt' if options.flag('rescale_embeddings', False) else 'none'
  biased = options.flag('use_bias', True)
  return {
    **fields,
    'input': f'tokens(scale={scale!r}, token_types={types}, norm=True)',
    # That of queries, keys and values.
    'bias': 'all' if biased else 'where(out=True, ffn=True)',
    'context_length': options.size('max_position_embeddings', 4096),
    'position': 'learned',
    'attention': _attention(options),
    'ffn': ffn,
    'output': f'tied(bias=True, transform={ffn!r})',
  }


def _attention(options: Options) -> str:
  options.only('attention_type', 'block_sparse', 'original_full')
  if options.get('attention_type') == 'original_full':
    return 'bidirectional'
  block = options.size('block_size', 64)
  random = options.size('num_random_blocks', 3)
  drawn = "draw='first'"
  if options.has(_SEED):
    drawn = f'seed={options.number(_SEED)}'
  return f'bigbird(block={block}, random={random}, {drawn})'


def _options(model: Transformer) -> dict[str, Any]:
  # `save` refuses what fields of it are not: other windows, extra tokens.
  attention, out = choice(model, 'attention'), encoder_options(model)
  scale = choice(model, 'input').kwargs.get('scale')
  out |= {
    'use_bias': build(model, 'bias').qkv,
    'rescale_embeddings': scale == 'sqrt',
  }
  if attention.name != 'bigbird':
    return out | {'attention_type': 'original_full'}
  out |= {
    'attention_type': 'block_sparse',
    'block_size': attention.kwargs['block'],
    'num_random_blocks': attention.kwargs['random'],
  }
  if attention.kwargs['draw'] == 'uniform':
    out[_SEED] = attention.kwargs['seed']
  return out


def _tensors(model: Transformer) -> list[Tensor]:
  scored = choice(model, 'output').kwargs['bias']
  decoder = ('cls.predictions.decoder.weight',) if scored else ()
  return [
    *encoder_tensors('bert', *decoder, biased=build(model, 'bias').qkv),
    *(mlm_head() if scored else []),
  ]


BIG_BIRD = Family(
  model_type='big_bird',
  architectures={
    'BigBirdForMaskedLM': 'lm',
    'BigBirdForPreTraining': 'pretraining',
    'BigBirdForSequenceClassification': 'dense_classification',
    'BigBirdForTokenClassification': 'pooled_tokens',
    'BigBirdForMultipleChoice': 'pooled_choice',
    'BigBirdModel': 'pooled',
  },
  prefix='bert.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=(r'bert\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
  heads={
    'pooler': 'bert.pooler',
    'dense': 'classifier.dense',
    'dense_classification/classifier': 'classifier.out_proj',
  },
)
