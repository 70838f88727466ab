# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models of full size, with their heads, have as many parameters as
transformers counts for the same config.json (5.23, on the meta device).
"""

import json

import jax
import pytest

from gpt_jax.hf import layout
from gpt_jax.hf.layout import ExportOrigin, Imported
from tests.support.cases import slow

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
XXLARGE = BASE | {'hidden_size': 4096, 'num_attention_heads': 64, 'intermediate_size': 16_384}

BIG_BIRD = {'architectures': ['BigBirdForPreTraining'], 'vocab_size': 50_358}
BIG_BIRD |= {'model_type': 'big_bird'}
BART = {'architectures': ['BartForConditionalGeneration'], 'vocab_size': 50_265}
BART |= {'model_type': 'bart'}
MBART = {'architectures': ['MBartForConditionalGeneration']}
MBART |= {'model_type': 'mbart', 'vocab_size': 250_027}
MARIAN = {'architectures': ['MarianMTModel'], 'vocab_size': 37_000}
MARIAN |= {'model_type': 'marian', 'max_position_embeddings': 512}

# As published for LLaMA 3.1 8B.
LLAMA_8B = {
  'architectures': ['LlamaForCausalLM'],
  'model_type': 'llama',
  'vocab_size': 128_256,
  'hidden_size': 4096,
  'intermediate_size': 14_336,
  'num_hidden_layers': 32,
  'num_attention_heads': 32,
  'num_key_value_heads': 8,
  'max_position_embeddings': 131_072,
  'rms_norm_eps': 1e-5,
  'rope_theta': 500_000.0,
  'rope_scaling': {
    'factor': 8.0,
    'high_freq_factor': 4.0,
    'low_freq_factor': 1.0,
    'original_max_position_embeddings': 8192,
    'rope_type': 'llama3',
  },
  'tie_word_embeddings': False,
}
# As published for Qwen/Qwen3-8B.
QWEN3_8B = {
  'architectures': ['Qwen3ForCausalLM'],
  'model_type': 'qwen3',
  'vocab_size': 151_936,
  'hidden_size': 4096,
  'intermediate_size': 12_288,
  'num_hidden_layers': 36,
  'num_attention_heads': 32,
  'num_key_value_heads': 8,
  'head_dim': 128,
  'max_position_embeddings': 40_960,
  'max_window_layers': 36,
  'use_sliding_window': False,
  'sliding_window': None,
  'rope_theta': 1_000_000,
  'rope_scaling': None,
  'tie_word_embeddings': False,
}
# As published for allenai/OLMo-2-1124-7B.
OLMO2_7B = {
  'architectures': ['Olmo2ForCausalLM'],
  'model_type': 'olmo2',
  'vocab_size': 100_352,
  'hidden_size': 4096,
  'intermediate_size': 11_008,
  'num_hidden_layers': 32,
  'num_attention_heads': 32,
  'num_key_value_heads': 32,
  'max_position_embeddings': 4096,
  'rms_norm_eps': 1e-6,
  'rope_theta': 500_000,
  'rope_scaling': None,
}
# As published for google/gemma-2-9b, without the defaults.
GEMMA2_9B = {
  'architectures': ['Gemma2ForCausalLM'],
  'model_type': 'gemma2',
  'vocab_size': 256_000,
  'hidden_size': 3584,
  'hidden_act': 'gelu_pytorch_tanh',
  'intermediate_size': 14_336,
  'num_hidden_layers': 42,
  'num_attention_heads': 16,
  'num_key_value_heads': 8,
  'head_dim': 256,
  'cache_implementation': 'hybrid',
}
# As published for google/gemma-3-1b-pt. Its 26 layers are no whole number of
# periods of six.
GEMMA3_1B = {
  'architectures': ['Gemma3ForCausalLM'],
  'model_type': 'gemma3_text',
  'vocab_size': 262_144,
  'hidden_size': 1152,
  'intermediate_size': 6912,
  'num_hidden_layers': 26,
  'num_attention_heads': 4,
  'num_key_value_heads': 1,
  'head_dim': 256,
  'max_position_embeddings': 32_768,
  'rope_local_base_freq': 10_000,
  'rope_theta': 1_000_000,
  'rope_scaling': None,
  'sliding_window': 512,
  'sliding_window_pattern': 6,
  'attn_logit_softcapping': None,
  'final_logit_softcapping': None,
}


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
    (MARIAN | both(6, 8, 2048) | {'d_model': 512}, 63_606_784 - 2 * 512 * 512),
    (MARIAN | both(6, 16, 4096) | {'d_model': 1024}, 215_293_952 - 2 * 512 * 1024),
    (LLAMA_8B, 8_030_261_248),
    (QWEN3_8B, 8_190_735_360),
    (OLMO2_7B, 7_298_617_344),
    (GEMMA2_9B, 9_241_705_984),
    slow(GEMMA3_1B, 999_885_952),
  ],
)
def test_parameters(config, parameters):
  family, kind = layout.family_of(config)
  fields = layout.fields_of(family, kind, config)
  model = Imported(**fields, origin=ExportOrigin(json.dumps(config), kind))
  shapes = layout.shapes(model)
  assert sum(x.size for x in jax.tree.leaves(shapes)) == parameters
