# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is not supported: options, tensors, inputs, each named in the error."""

import json
import os
import time

import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core.spec import UsageError
from gpt_jax.hf import gpt
from gpt_jax.hf.base import Bounds, Options
from gpt_jax.hf.layout import family_of
from gpt_jax.opening import models
from tests.support import checkpoints
from tests.support.golden_io import ROOT, config, tensors


# A recorded checkpoint with another value of one option.
@pytest.mark.parametrize(
  'name, option, value',
  [
    ('gpt2_lm', 'model_type', 'mamba'),
    ('gpt2_lm', 'architectures', ['GPT2ForTokenClassification']),
    ('gpt2_lm', 'activation_function', 'quick_gelu'),
    ('gpt2_lm', 'add_cross_attention', True),
    ('gpt2_lm', 'quantization_config', {'bits': 4}),
    ('gpt2_lm', 'n_layer', None),
    ('gpt2_lm', 'n_layer', '3'),
    ('gpt2_lm', 'scale_attn_weights', 1),
    ('gpt2_double', 'summary_type', 'last'),
    ('gpt2_cls', 'problem_type', 'ranking'),
    ('openai_gpt_lm', 'afn', 'gelu_new'),
    ('gpt_neo_lm', 'attention_types', [[['global', 'sparse'], 2]]),
    ('gpt_neo_lm', 'attention_types', [[['global', 'local'], 3]]),
    ('gpt_neo_lm', 'attention_types', [[['global'], 10**11]]),
    ('gpt_neo_lm', 'attention_types', [[[['global']], 4]]),
    ('mistral_lm', 'layer_types', 3),
    ('mistral_lm', 'layer_types', [['full_attention']] * 4),
    ('gptj_lm', 'rotary_dim', 18),
    ('gptj_lm', 'rotary_dim', None),
    ('gptj_lm', 'tie_word_embeddings', True),
    ('gpt_neox_lm', 'rope_scaling', [2.0]),
    ('gpt_neox_lm', 'hidden_act', 'gelu_10'),
    ('mixtral_lm', 'num_local_experts', 0),
    ('mixtral_lm', 'num_experts_per_tok', 5),
    ('mixtral_lm', 'router_jitter_noise', 1.0),
    ('mixtral_lm', 'router_aux_loss_coef', -0.1),
    ('mixtral_lm', 'sliding_window', 0),
    ('mixtral_lm', 'hidden_act', 'mish'),
    ('switch_lm', 'num_sparse_encoder_layers', -1),
    ('switch_lm', 'decoder_sparse_step', 1.5),
    ('switch_lm', 'expert_capacity', 0),
    ('switch_lm', 'router_dtype', 'bfloat16'),
    ('switch_lm', 'router_ignore_padding_tokens', True),
    ('switch_lm', 'router_type', 'experts_masked'),
    ('switch_lm', 'router_z_loss_coef', 'much'),
    ('switch_lm', 'is_gated_act', True),
    ('switch_lm', 'feed_forward_proj', 'gated-gelu'),
    ('switch_lm', 'dense_act_fn', 'gated-gelu'),
    ('bert_pretraining', 'is_decoder', True),
    ('xlnet_lm', 'd_model', 33),
    ('transfo_xl_lm', 'd_model', 33),
    ('bert_pretraining', 'is_encoder_decoder', True),
    ('bert_pretraining', 'position_embedding_type', 'relative_key'),
    ('bert_pretraining', 'tie_word_embeddings', False),
    ('bert_pretraining', 'hidden_act', 'mish'),
    ('bert_pretraining', 'type_vocab_size', 0),
    ('bert_pretraining', 'architectures', ['BertForNextSentencePrediction']),
    ('bart_lm', 'normalize_before', True),
    ('bart_lm', 'add_final_layer_norm', True),
    ('bart_lm', 'normalize_embedding', False),
    ('bart_lm', 'static_position_embeddings', True),
    ('bart_lm', 'encoder_attention_heads', 5),
    ('bart_lm', 'decoder_attention_heads', 0),
    ('bart_lm', 'tie_word_embeddings', False),
    ('bart_lm', 'is_encoder_decoder', False),
    ('bart_lm', 'is_decoder', True),
    ('bart_lm', 'activation_function', 'mish'),
    ('bart_lm', 'architectures', ['BartForCausalLM']),
    ('mbart_lm', 'normalize_before', False),
    ('marian_lm', 'share_encoder_decoder_embeddings', False),
    ('marian_lm', 'decoder_vocab_size', 113),
    ('marian_lm', 'static_position_embeddings', False),
    ('t5_v10', 'is_encoder_decoder', False),
    ('t5_v10', 'is_decoder', True),
    ('t5_v10', 'feed_forward_proj', 'gated-mish'),
    ('t5_v10', 'dense_act_fn', 'gelu'),
    ('t5_v10', 'is_gated_act', True),
    ('t5_v10', 'd_kv', None),
    ('t5_v10', 'architectures', ['T5EncoderModel']),
    ('transfo_xl_div', 'adaptive', False),
    ('transfo_xl_div', 'attn_type', 1),
    ('transfo_xl_div', 'pre_lnorm', True),
    ('transfo_xl_div', 'untie_r', False),
    ('transfo_xl_div', 'tie_word_embeddings', False),
    ('transfo_xl_div', 'same_length', 'yes'),
    ('transfo_xl_div', 'mem_len', 0),
    ('transfo_xl_div', 'clamp_len', 1.5),
    ('transfo_xl_div', 'cutoffs', 40),
    ('transfo_xl_div', 'cutoffs', (80, 40)),
    ('transfo_xl_div', 'tie_projs', [True]),
    ('transfo_xl_div', 'architectures', ['TransfoXLForSequenceClassification']),
    ('xlnet_cls', 'bi_data', True),
    ('xlnet_cls', 'same_length', True),
    ('xlnet_cls', 'reuse_len', 4),
    ('xlnet_cls', 'attn_type', 'tri'),
    ('xlnet_cls', 'summary_type', 'first'),
  ],
)
def test_unsupported_options_are_named(tmp_path, name, option, value):
  folder = checkpoints.changed(tmp_path, name, **{option: value})
  with pytest.raises(UsageError) as error:
    hf.load(folder)
  text = str(error.value)
  assert f'{option}={value!r}' in text
  assert folder in text


def test_no_activation_of_the_summary_is_xlnets_default(tmp_path):
  folder = checkpoints.changed(tmp_path, 'xlnet_cls', summary_activation=None)
  assert hf.load(folder)


# The required options of a family, and these.
@pytest.mark.parametrize(
  'model_type, options, message',
  [
    (
      'llama',
      {'rope_scaling': {'type': 'dynamic', 'factor': 2.0}},
      "type='dynamic': is not supported; one of default, linear, llama3, yarn",
    ),
    (
      'llama',
      {'rope_parameters': {'rope_type': 'longrope'}},
      "rope_type='longrope': is not supported",
    ),
    ('llama', {'rope_parameters': {'rope_type': ['yarn']}}, 'is not supported'),
    (
      'llama',
      {'rope_scaling': {'type': 'yarn', 'factor': 0, 'mscale': 1}},
      'factor=0: must be above 0',
    ),
    ('llama', {'rope_scaling': {'rope_type': 'linear'}}, 'factor=None'),
    ('llama', {'rope_scaling': {'rope_type': 'llama3', 'factor': 2.0}}, 'low_freq_factor=None'),
    (
      'llama',
      {'rope_scaling': {'type': 'yarn', 'factor': 2, 'attention_factor': 0}},
      'attention_factor=0: must be above 0',
    ),
    (
      'llama',
      {'rope_parameters': {'full_attention': {'rope_theta': 1e4}}},
      'rope_parameters=.*each kind of layer',
    ),
    ('llama', {'rope_parameters': 'yarn'}, "rope_parameters='yarn': must be an object"),
    ('llama', {'partial_rotary_factor': 0.5}, 'partial_rotary_factor=0.5'),
    ('llama', {'rope_parameters': {'partial_rotary_factor': 0.5}}, 'partial_rotary_factor=0.5'),
    ('llama', {'hidden_act': 'relu2'}, "hidden_act='relu2': is not supported"),
    ('llama', {'head_dim': 5}, 'head_dim=5: 5 features do not form pairs'),
    ('llama', {'num_key_value_heads': 4}, 'num_key_value_heads=4: must divide'),
    ('llama', {'intermediate_size': None}, 'intermediate_size=None: must be a whole'),
    ('llama', {'mlp_bias': 'yes'}, "mlp_bias='yes': must be true or false"),
    ('qwen3', {'hidden_act': 'relu2'}, "hidden_act='relu2': is not supported"),
    ('qwen3', {'attention_bias': 1}, 'attention_bias=1: must be true or false'),
    ('qwen3', {'tie_word_embeddings': 'no'}, "tie_word_embeddings='no': must be true"),
    ('qwen3', {'use_sliding_window': 7}, 'use_sliding_window=7: must be true or false'),
    (
      'qwen3',
      {'layer_types': ['sliding_attention'] * 5},
      "layer_types=.*'sliding_attention' is not supported without sliding_win",
    ),
    (
      'qwen3',
      {'layer_types': ['linear_attention'] * 5},
      "layer_types=.*'linear_attention' is not supported$",
    ),
    ('qwen3', {'layer_types': [['full_attention']] * 5}, 'is not supported'),
    ('qwen3', {'layer_types': ['full_attention']}, 'must be a list of 5 names'),
    ('qwen3', {'layer_types': 'full_attention'}, 'must be a list of 5 names'),
    ('qwen3', {'rope_scaling': {'type': 'dynamic'}}, "type='dynamic': is not supported"),
    ('olmo2', {'hidden_act': 'relu2'}, "hidden_act='relu2': is not supported"),
    ('olmo2', {'attention_bias': 'yes'}, "attention_bias='yes': must be true or false"),
    ('olmo2', {'num_key_value_heads': 4}, 'num_key_value_heads=4: must divide'),
    ('olmo2', {'rope_scaling': {'rope_type': 'longrope'}}, "rope_type='longrope'"),
    ('gemma2', {'hidden_activation': 'relu2'}, "hidden_activation='relu2'"),
    ('gemma2', {'use_bidirectional_attention': True}, 'only False'),
    ('gemma2', {'sliding_window': None}, 'supported without sliding_window'),
    ('gemma2', {'final_logit_softcapping': 0}, 'must be above 0'),
    ('gemma2', {'attn_logit_softcapping': True}, 'must be a number'),
    ('gemma2', {'query_pre_attn_scalar': 'x'}, 'must be a number'),
    ('gemma2', {'layer_types': ['full_attention']}, 'a list of 7 names'),
    ('gemma2', {'rope_parameters': {'full_attention': {}}}, 'for each kind of layer'),
    ('gemma3_text', {'use_bidirectional_attention': True}, 'only False'),
    ('gemma3_text', {'attn_logit_softcapping': 50.0}, 'only None'),
    ('gemma3_text', {'rope_parameters': {'rope_theta': 1e4}}, 'for each kind'),
    (
      'gemma3_text',
      {'rope_parameters': {'chunked_attention': {}}},
      'chunked_attention is not a kind of layer',
    ),
    (
      'gemma3_text',
      {'rope_parameters': {'sliding_attention': {'rope_type': 'linear', 'factor': 8.0}}},
      "rope_type='linear': is not supported, only 'default'",
    ),
    ('gemma3_text', {'rope_scaling': 'linear'}, 'must be an object'),
    ('gemma3_text', {'partial_rotary_factor': 0.5}, 'partial_rotary_factor=0.5: is not supported'),
    (
      'falcon',
      {'new_decoder_architecture': True, 'parallel_attn': False},
      'parallel_attn=False: is not supported with new_decoder',
    ),
    (
      'falcon',
      {'num_ln_in_parallel_attn': 2},
      'num_ln_in_parallel_attn=2: .* new_decoder_architecture=False',
    ),
    (
      'falcon',
      {'new_decoder_architecture': True, 'num_ln_in_parallel_attn': 3},
      'num_ln_in_parallel_attn=3: .* new_decoder_architecture=True',
    ),
    ('falcon', {'multi_query': False, 'num_kv_heads': 2}, 'num_kv_heads=2: .* must be 6'),
    (
      'falcon',
      {'new_decoder_architecture': True, 'num_kv_heads': 4},
      'num_kv_heads=4: must divide',
    ),
    ('falcon', {'activation': 'swiglu'}, "activation='swiglu': is not supported"),
    ('falcon', {'hidden_size': 25}, 'num_attention_heads=6: .* hidden_size=25'),
    (
      'falcon',
      {'apply_residual_connection_post_layernorm': True},
      'apply_residual_connection_post_layernorm=True',
    ),
    ('big_bird', {'use_bias': 'no'}, "use_bias='no'"),
    ('big_bird', {'rescale_embeddings': 1}, 'rescale_embeddings=1'),
    ('big_bird', {'attention_type': 'simulated'}, "attention_type='simulated'"),
    ('big_bird', {'num_random_blocks': 0}, 'num_random_blocks=0'),
    ('big_bird', {'is_decoder': True}, 'is_decoder=True'),
    (
      't5',
      {'tie_word_embeddings': False, 'scale_decoder_outputs': True},
      'scale_decoder_outputs=True: contradicts',
    ),
  ],
)
def test_what_is_not_supported_is_named(model_type, options, message):
  with pytest.raises(UsageError, match=f'config.json: .*{message}') as error:
    checkpoints.fields(model_type, **options)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'one, value, other',
  [('rotary_emb_base', 300.0, 'rope_theta'), ('rotary_pct', 0.5, 'partial_rotary_factor')],
)
def test_two_names_of_a_number_must_agree(one, value, other):
  sizes = {'hidden_size': 32, 'num_attention_heads': 2}

  def position(**options):
    return gpt._read_position(Options(sizes | options))

  assert position(**{one: value, other: value}) == position(**{one: value})
  with pytest.raises(UsageError, match=f'{one}=.*contradicts {other}=0.75'):
    position(**{one: value, other: 0.75})


def test_rope_type_is_named(tmp_path):
  rope = config(ROOT / 'gpt_neox_lm')['rope_parameters'] | {'rope_type': 'ntk'}
  with pytest.raises(UsageError, match="rope_type='ntk'"):
    hf.load(checkpoints.changed(tmp_path, 'gpt_neox_lm', rope_parameters=rope))


def test_images_are_refused():
  """Gemma 3's other checkpoints hold a vision tower."""
  with pytest.raises(UsageError, match="model_type='gemma3': is not supported"):
    family_of({'model_type': 'gemma3', 'text_config': {}})


@pytest.mark.parametrize('name', ['t5_v11', 'albert_groups', 'deberta_v2_mlm'])
def test_hostile_options_are_refused_at_once(tmp_path, name):
  """Each option with sizes and kinds that no file has: nothing is tried."""
  values, folder = config(ROOT / name), tmp_path / 'f'
  checkpoints.write(folder, values, tensors(ROOT / name))
  hostile = (10**9, 10**30, -1, 1.5, 'x', True, np.inf, [10**9], {})
  accepted = 0
  for option, before in values.items():
    if option in ('transformers_version', 'dtype'):
      continue
    for value in hostile:
      if value == before:
        continue
      (folder / 'config.json').write_text(json.dumps({**values, option: value}))
      try:
        hf.HeaderSource(str(folder))
        accepted += 1  # an option of training
      except UsageError as e:
        assert len(str(e)) < 20_000
  assert accepted < len(hostile) * len(values) * 0.7


@pytest.mark.parametrize(
  'name, option, value, why',
  [
    ('albert_groups', 'inner_group_num', 1000, 'more than the files can hold'),
    ('gpt2_lm', 'n_layer', 1000, 'more than the files can hold'),
    ('mixtral_lm', 'num_local_experts', 10**3, 'more than the files can hold'),
    ('gpt2_lm', 'n_embd', 10**6, 'its sizes are of .* numbers, and the files'),
    ('transfo_xl_lm', 'n_head', 10**6, 'its sizes are of .* numbers, and the'),
  ],
)
def test_absurd_sizes_are_refused_at_once(tmp_path, monkeypatch, name, option, value, why):
  """Whatever the number of numbers, before a model of that size is traced."""
  folder = checkpoints.changed(tmp_path, name, **{option: value})
  of = Bounds.of

  def large(shapes, *, shared):
    return of(shapes, shared=shared)._replace(numbers=10**10)

  monkeypatch.setattr(Bounds, 'of', large)
  start = time.monotonic()
  with pytest.raises(UsageError, match=why):
    hf.HeaderSource(folder)
  assert time.monotonic() - start < 5


@pytest.mark.parametrize(
  'option', ['num_layers', 'num_decoder_layers', 'vocab_size', 'd_ff', 'd_kv']
)
def test_a_size_beyond_the_files_is_named(tmp_path, option):
  folder = checkpoints.changed(tmp_path, 't5_v11', **{option: 10**9})
  with pytest.raises(UsageError, match=f'{option}=.* more than the files'):
    hf.load(folder)


@pytest.mark.parametrize(
  'name, missing, other, expected',
  [
    (
      'gpt2_lm',
      ['transformer.h.1.ln_1.bias', 'transformer.wpe.weight'],
      {
        'transformer.h.2.attn.c_attn.weight': np.zeros((32, 97), np.float32),
        'transformer.h.3.ln_1.bias': np.zeros(32, np.float32),
        'transformer.ln_f.weight': np.zeros(32, np.int32),
      },
      [
        'transformer.h.2.attn.c_attn.weight is (32, 97), not (32, 96)',
        'transformer.h.3.ln_1.bias is not of this model',
        'transformer.ln_f.weight is of type I32',
      ],
    ),
    (
      'bert_pretraining',
      ['bert.pooler.dense.bias'],
      {
        'cls.seq_relationship.weight': np.zeros((3, 32), np.float32),
        'bert.pooler.scale': np.zeros(3, np.float32),
      },
      [
        'cls.seq_relationship.weight is (3, 32), not (2, 32)',
        'bert.pooler.scale is not of this model',
      ],
    ),
    (
      't5_v11',
      ['lm_head.weight', 'decoder.block.1.layer.1.EncDecAttention.k.weight'],
      {
        'encoder.block.1.layer.1.DenseReluDense.wi_0.weight': np.zeros((64, 31), np.float32),
        'encoder.block.2.layer.0.layer_norm.weight': np.zeros(32, np.float32),
      },
      [
        'encoder.block.1.layer.1.DenseReluDense.wi_0.weight is (64, 31), not',
        'encoder.block.2.layer.0.layer_norm.weight is not of this model',
      ],
    ),
  ],
)
def test_every_wrong_tensor_is_listed(tmp_path, name, missing, other, expected):
  weights = {n: x for n, x in tensors(ROOT / name).items() if n not in missing}
  with pytest.raises(UsageError) as error:
    hf.load(checkpoints.write(tmp_path / 'in', config(ROOT / name), weights | other))
  for text in (*(f'{n} is missing' for n in missing), *expected):
    assert text in str(error.value)


# Inputs of `hf.forward`: a recorded checkpoint, inputs, message.
IDS = np.ones((2, 3), np.int32)


@pytest.mark.parametrize(
  'name, inputs, message',
  [
    ('gpt_neox_lm', {'token_type_ids': IDS}, 'token_type_ids: gpt_neox takes none'),
    ('gpt_neox_lm', {'mc_labels': IDS[:, 0]}, 'no choice head'),
    ('t5_v10', {}, 'decoder_input_ids or labels: are'),
    ('t5_v10', {'labels': IDS, 'position_ids': IDS}, r'position_ids.*takes none'),
    ('t5_cls', {'input_ids': IDS + 1}, 'no eos_token_id=1 in a row'),
    ('bart_cls', {'input_ids': IDS + 4}, 'no eos_token_id=2 in a row'),
    ('gpt2_lm', {'decoder_input_ids': IDS}, r'decoder_input_ids.*no encoder'),
    ('gpt2_lm', {'output_router_logits': True}, 'output_router_logits: this model has'),
    ('gpt2_lm', {'mems': IDS}, 'only Transformer-XL and XLNet take'),
    ('bert_cls', {'perm_mask': IDS}, 'perm_mask: only XLNet'),
    ('transfo_xl_lm', {'attention_mask': IDS}, 'attention_mask: transfo-xl takes none'),
    ('transfo_xl_lm', {'position_ids': IDS}, 'position_ids: transfo-xl takes none'),
    ('transfo_xl_lm', {'token_type_ids': IDS}, 'token_type_ids: transfo-xl takes none'),
    ('transfo_xl_lm', {'mems': np.zeros((2, 7, 2, 32))}, r'mems: must be \(2, 8, 2, 32\)'),
    ('xlnet_lm', {'position_ids': IDS}, 'position_ids: xlnet takes none'),
    ('xlnet_lm', {'mems': np.zeros((2, 8, 3, 32))}, 'mems: must be'),
    ('xlnet_lm', {'target_mapping': np.ones((2, 1, 3))}, 'a single 1'),
    ('xlnet_lm', {'start_positions': IDS[:, 0]}, 'no head for it'),
  ],
)
def test_inputs_that_a_model_does_not_take(name, inputs, message):
  model, params = hf.load(str(ROOT / name))
  with pytest.raises(UsageError, match=message):
    hf.forward(model, params, **{'input_ids': IDS, **inputs})


@pytest.mark.parametrize('given', ['', 'model.Q4_K_M.gguf'])
def test_gguf_in_place_of_a_folder(tmp_path, given):
  """Of either kind: a folder, or the file."""
  (tmp_path / 'model.Q4_K_M.gguf').write_bytes(b'GGUF')
  path = os.path.join(tmp_path, given) if given else str(tmp_path)
  message = r'model\.Q4_K_M\.gguf: is a GGUF file.*give the Hugging Face folder'
  for use in (hf.HeaderSource, models.read_config, models.open_model):
    with pytest.raises(UsageError, match=message):
      use(path)
