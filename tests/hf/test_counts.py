# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Encoders and encoder-decoders of full size, with their heads, have as many
parameters as transformers counts for the same config.json (5.23, on the meta
device).
"""

import json

import jax
import pytest

from gpt_jax.hf import layout
from gpt_jax.hf.layout import Imported, Origin

BASE = {
  'hidden_size': 768,
  'num_hidden_layers': 12,
  'num_attention_heads': 12,
  'intermediate_size': 3072,
}
LARGE = {
  'hidden_size': 1024,
  'num_hidden_layers': 24,
  'num_attention_heads': 16,
  'intermediate_size': 4096,
}
BERT = {'architectures': ['BertForPreTraining'], 'model_type': 'bert'}
ROBERTA = {
  'architectures': ['RobertaForMaskedLM'],
  'model_type': 'roberta',
  'vocab_size': 50_265,
  'max_position_embeddings': 514,
  'type_vocab_size': 1,
  'layer_norm_eps': 1e-5,
}
ALBERT = {
  'architectures': ['AlbertForPreTraining'],
  'model_type': 'albert',
  'vocab_size': 30_000,
  'embedding_size': 128,
}
SMALL = {
  'hidden_size': 256,
  'num_hidden_layers': 12,
  'num_attention_heads': 4,
  'intermediate_size': 1024,
}
ELECTRA = {'model_type': 'electra', 'vocab_size': 30_522}
DISCRIMINATOR = ELECTRA | {'architectures': ['ElectraForPreTraining']}
GENERATOR = ELECTRA | {'architectures': ['ElectraForMaskedLM']}
DISTILBERT = {'model_type': 'distilbert', 'vocab_size': 30_522}
RELATIVE = {'relative_attention': True, 'position_biased_input': False}
RELATIVE |= {'pos_att_type': ['c2p', 'p2c'], 'type_vocab_size': 0}
DEBERTA = RELATIVE | {'architectures': ['DebertaForMaskedLM']}
DEBERTA |= {'model_type': 'deberta', 'vocab_size': 50_265}
DEBERTA_V2 = RELATIVE | {'architectures': ['DebertaV2ForMaskedLM']}
DEBERTA_V2 |= {'model_type': 'deberta-v2', 'vocab_size': 128_100}
DEBERTA_V2 |= {'position_buckets': 256, 'share_att_key': True}
DEBERTA_V2 |= {'norm_rel_ebd': 'layer_norm'}
XLARGE = LARGE | {'hidden_size': 2048, 'intermediate_size': 8192}
XXLARGE = BASE | {
  'hidden_size': 4096,
  'num_attention_heads': 64,
  'intermediate_size': 16_384,
}

BIG_BIRD = {'architectures': ['BigBirdForPreTraining'], 'vocab_size': 50_358}
BIG_BIRD |= {'model_type': 'big_bird'}
BART = {'architectures': ['BartForConditionalGeneration'], 'vocab_size': 50_265}
BART |= {'model_type': 'bart'}
MBART = {'architectures': ['MBartForConditionalGeneration']}
MBART |= {'model_type': 'mbart', 'vocab_size': 250_027}
MARIAN = {'architectures': ['MarianMTModel'], 'vocab_size': 37_000}
MARIAN |= {'model_type': 'marian', 'max_position_embeddings': 512}


def both(layers, heads, d_ff):
  """The sizes of an encoder and a decoder that are alike."""
  stacks = ('encoder', 'decoder')
  sizes = {'layers': layers, 'attention_heads': heads, 'ffn_dim': d_ff}
  return {f'{s}_{name}': size for s in stacks for name, size in sizes.items()}


@pytest.mark.parametrize(
  'config, parameters',
  [
    (BERT | BASE | {'vocab_size': 30_522}, 110_106_428),
    (BERT | BASE | {'vocab_size': 28_996}, 108_932_934),
    (BERT | LARGE | {'vocab_size': 30_522}, 336_226_108),
    (ROBERTA | BASE, 124_697_433),
    (ROBERTA | LARGE, 355_412_057),
    (ALBERT | BASE, 11_813_810),
    (ALBERT | LARGE, 17_847_474),
    (ALBERT | XLARGE, 59_021_490),
    (ALBERT | XXLARGE, 223_158_450),
    (DISCRIMINATOR | SMALL | {'embedding_size': 128}, 13_549_057),
    (DISCRIMINATOR | BASE | {'embedding_size': 768}, 109_483_009),
    (DISCRIMINATOR | LARGE | {'embedding_size': 1024}, 335_142_913),
    # Published as small's generator, and as wide as the discriminator.
    (GENERATOR | SMALL | {'embedding_size': 128}, 13_546_682),
    (DEBERTA | BASE, 139_244_121),
    (DEBERTA | LARGE, 406_264_921),
    (DEBERTA_V2 | BASE, 184_551_780),
    (DEBERTA_V2 | LARGE, 435_191_908),
    (DISTILBERT | {'architectures': ['DistilBertForMaskedLM']}, 66_985_530),
    (DISTILBERT | {'architectures': ['DistilBertModel']}, 66_362_880),
    (BIG_BIRD | BASE, 128_112_824),
    (BIG_BIRD | LARGE, 360_228_024),
    (BIG_BIRD | BASE | {'architectures': ['BigBirdModel']}, 127_468_800),
    (BART | both(6, 12, 3072) | {'d_model': 768}, 139_420_416),
    (BART, 406_291_456),
    (MBART, 610_851_840),
    # HF counts two tables of 512 sines besides, which nothing trains.
    (
      MARIAN | both(6, 8, 2048) | {'d_model': 512},
      63_606_784 - 2 * 512 * 512,
    ),
    (
      MARIAN | both(6, 16, 4096) | {'d_model': 1024},
      215_293_952 - 2 * 512 * 1024,
    ),
  ],
)
def test_parameters(config, parameters):
  family, kind = layout.family_of(config)
  fields = layout.fields_of(family, kind, config)
  model = Imported(**fields, origin=Origin(json.dumps(config), kind))
  shapes = layout.shapes(model)
  assert sum(x.size for x in jax.tree.leaves(shapes)) == parameters
