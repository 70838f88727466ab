# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models of our own go out as the first family that has them, and come back."""

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core.spec import UsageError
from tests.hf.test_transformer_xl import TRANSFO_XL
from tests.support import checkpoints, tiny
from tests.support.golden_io import ROOT, case, config, meta, tensors

LLAMA = {
  'vocab_size': 23,
  'd_model': 34,
  'num_heads': 6,
  'num_kv_heads': 2,
  'head_size': 4,
  'd_ff': 29,
  'num_layers': 3,
  'context_length': 128,
  'ffn': 'swiglu',
  'norm': 'rmsnorm',
  'position': 'rope',
  'bias': 'none',
  'output': 'untied',
}
QWEN3 = {
  'num_layers': 2,
  'head_size': 8,
  'position': 'rope',
  'ffn': 'swiglu',
  'bias': 'none',
  'norm': 'rmsnorm',
  'output': 'untied',
  'block': "pre(qk_norm='per_head')",
}
OLMO2 = {
  'head_size': 8,
  'position': 'rope',
  'ffn': 'swiglu',
  'norm': 'rmsnorm',
  'output': 'tied',
  'block': "reordered(qk_norm='all_heads')",
}
GEMMA = {
  'num_layers': 2,
  'head_size': 8,
  'input': "tokens(scale='sqrt')",
  'attention': 'local(window=5), full',
  'position': 'rope',
  'ffn': 'geglu_tanh',
  'norm': 'rmsnorm(plus_one=True)',
  'block': 'sandwich',
  'bias': 'none',
}
ALIBI = "alibi(scale='rsqrt', dtype='bfloat16')"
FALCON = {
  'd_model': 24,
  'head_size': 4,
  'd_ff': 29,
  'position': 'rope',
  'ffn': 'gelu',
  'bias': 'none',
}
BIASED = {'position': ALIBI, 'bias': 'all', 'output': 'untied'}
SLOW = pytest.mark.slow
ROTATIONS = (
  'rope',
  'rope(theta=500.0)',
  "rope(scaling='linear(3)')",
  "rope(scaling='llama3(8, 64)')",
  "rope(scaling='yarn(4, 32)')",
  "rope(scaling='yarn(4, 32, truncate=False, attention_factor=1.5)')",
)


@pytest.mark.parametrize(
  'model, expected',
  [
    *((LLAMA | {'position': position}, 'llama') for position in ROTATIONS),
    (LLAMA | {'attention': 'local(window=5)'}, 'mistral'),
    *(
      pytest.param(
        LLAMA | {'position': position, 'attention': 'local(window=5)'}, 'mistral', marks=SLOW
      )
      for position in ROTATIONS[1:]
    ),
    (QWEN3, 'qwen3'),
    (QWEN3 | {'attention': 'full, local(window=5)'}, 'qwen3'),
    (QWEN3 | {'block': 'pre'}, 'llama'),
    (OLMO2 | {'bias': 'none'}, 'olmo2'),
    (OLMO2 | {'bias': 'where(qkv=True, out=True)'}, 'olmo2'),
    (GEMMA | {'attention_scale': 'rsqrt(size=3, softcap=2)'}, 'gemma2'),
    (GEMMA | {'output': 'untied(softcap=3)', 'attention': 'full'}, 'gemma2'),
    (
      GEMMA
      | {
        'block': "sandwich(qk_norm='per_head')",
        'position': "rope(scaling='linear(3)', local_theta=70)",
        'output': 'tied(softcap=3)',
      },
      'gemma3_text',
    ),
    *(
      (FALCON | {'num_kv_heads': kv_heads, 'block': block} | more, None)
      for more in ({}, BIASED)
      for kv_heads, block in (
        (1, 'parallel'),
        (1, 'pre'),
        (6, 'parallel'),
        (6, 'pre'),
        (2, 'parallel'),
        (2, 'parallel(num_norms=2)'),
        (6, 'parallel(num_norms=2)'),
        (1, 'parallel(num_norms=2)'),
      )
    ),
  ],
)
def test_decoders_come_back(model, expected, tmp_path):
  """`expected` is the model_type; None: any that has the model."""
  model = tiny.model(**model)
  params = tiny.params(model)
  hf.save(str(tmp_path), model, params)
  again, params_again = hf.load(str(tmp_path))
  assert expected in (None, again.family.model_type)
  assert again.position.split('(')[0] == model.position.split('(')[0]
  assert again.num_kv_heads == model.num_kv_heads
  jax.tree.map(np.testing.assert_array_equal, params_again, params)


@pytest.mark.parametrize(
  'position, attention',
  [('rope', 'local(window=5)'), *((position, 'full') for position in ROTATIONS)],
)
def test_rotations_compute_the_same(position, attention, tmp_path):
  """Also from the older spelling, which an older release reads."""
  model = tiny.model(**LLAMA | {'position': position, 'attention': attention})
  params = tiny.params(model)
  hf.save(str(tmp_path), model, params)
  again, params_again = hf.load(str(tmp_path))
  ids = tiny.tokens(2, 11)
  np.testing.assert_allclose(
    hf.forward(again, params_again, input_ids=ids)['logits'],
    hf.forward(model, params, input_ids=ids)['logits'],
    rtol=1e-5,
    atol=1e-5,
  )
  old = {n: again.options.get(n) for n in ('rope_theta', 'rope_scaling')}
  found = checkpoints.fields('llama', **old, num_key_value_heads=2)
  assert found['position'] == again.position


ADAPTIVE_XL = {**TRANSFO_XL, 'input': 'adaptive((5,), 13, 2, "sqrt")', 'output': 'adaptive(())'}


@pytest.mark.parametrize(
  'model, message',
  [
    (
      LLAMA | {'position': "rope(layout='interleaved')"},
      r'nearest is llama, but for .*model\.position',
    ),
    (
      FALCON | {'num_kv_heads': 2, 'block': 'pre'},
      r'nearest is gpt_neox, but for .*model\.num_kv_heads',
    ),
    *(
      (QWEN3 | changes, rf'nearest is (qwen3|llama), but for .*model\.{next(iter(changes))}=')
      for changes in (
        {'attention': 'local(window=3), local(window=5)'},
        {'attention_scale': 'rsqrt(softcap=3)'},
        {'block': "pre(qk_norm='all_heads')"},
        {'norm': 'rmsnorm(plus_one=True)'},
        {'output': 'untied(softcap=3)'},
        {'position': 'rope(local_theta=70)'},
      )
    ),
    *(
      (ADAPTIVE_XL | changes, rf'nearest is transfo-xl, but for .*model\.{next(iter(changes))}')
      for changes in ({'block': 'pre'}, {'ffn': 'gelu'}, {'attention': 'local(window=3)'})
    ),
  ],
)
def test_what_no_family_has_is_refused(model, message, tmp_path):
  model = tiny.model(**model)
  with pytest.raises(UsageError, match=message):
    hf.save(str(tmp_path), model, tiny.params(model))


@pytest.mark.parametrize(
  'name, changes, message',
  [
    ('marian_lm', {'position': 'sinusoidal'}, r'nearest is marian, but for .*model\.position='),
    (
      'albert_groups',
      {'share': 'attention'},
      r"nearest is albert, but for .*model\.share='attention'",
    ),
  ],
)
def test_a_recorded_model_with_a_change_is_refused(name, changes, message, tmp_path):
  model, params = hf.load(str(ROOT / name))
  with pytest.raises(UsageError, match=message):
    hf.save(str(tmp_path), checkpoints.plain(model, **changes), params)


@pytest.mark.parametrize(
  'position, needs',
  [
    ('transformer_xl(memory=3, segment=5)', 'segment=5;'),
    ("transformer_xl(memory=3, biases='shared')", "biases='shared';"),
    ('learned_by_layer', 'learned_by_layer;'),
  ],
)
def test_what_no_export_writes(tmp_path, position, needs):
  """Refused by name, before any family is tried."""
  model = tiny.model(**ADAPTIVE_XL | {'position': position})
  with pytest.raises(UsageError) as refused:
    hf.save(str(tmp_path), model, {})
  assert f'no export writes {needs}' in str(refused.value)
  assert len(str(refused.value)) < 200 and '\n' not in str(refused.value)
  assert not [*tmp_path.iterdir()]


def test_a_model_of_our_own_is_a_masked_language_model(tmp_path):
  model, params = hf.load(str(ROOT / 'bert_pretraining'))
  del params['heads']
  hf.save(str(tmp_path), checkpoints.plain(model), params)
  assert config(tmp_path)['architectures'] == ['BertForMaskedLM']
  again, params_again = hf.load(str(tmp_path))
  jax.tree.map(np.testing.assert_array_equal, params_again, params)
  golden = case(ROOT / 'bert_pretraining', 'main')
  inputs = {**golden.inputs}
  del inputs['next_sentence_label']
  out = hf.forward(again, params_again, **inputs)
  assert golden.max_error('prediction_logits', out['logits']) < 1e-4
  assert golden.max_error('mlm_loss', out['loss']) < 1e-4


def test_a_model_of_our_own_with_both_heads(tmp_path):
  """As trained here, without the original config."""
  model, params = hf.load(str(ROOT / 'albert_groups'))
  ours = checkpoints.plain(model)
  hf.save(str(tmp_path), ours, params, kind='pretraining')
  again, params_again = hf.load(str(tmp_path))
  assert checkpoints.plain(again) == ours
  assert again.origin.kind == 'pretraining'
  jax.tree.map(np.testing.assert_array_equal, params_again, params)


@pytest.mark.parametrize(
  'name, kind, architecture',
  [
    ('electra_disc', 'replaced', 'ElectraForPreTraining'),
    ('electra_gen', 'lm', 'ElectraForMaskedLM'),
    ('electra_cls', 'gelu_classification', 'ElectraForSequenceClassification'),
    ('deberta_cls', 'gelu_classification', 'DebertaForSequenceClassification'),
    ('deberta_v3_cls', 'gelu_classification', 'DebertaV2ForSequenceClassification'),
    ('distilbert_cls', 'relu_classification', 'DistilBertForSequenceClassification'),
  ],
)
def test_heads_come_back_under_their_class(tmp_path, name, kind, architecture):
  model, params = hf.load(str(ROOT / name))
  model = checkpoints.plain(model)
  labels = {str(i): f'{i}' for i in range(3)}
  options = {'id2label': labels} if name.endswith('cls') else {}
  hf.save(str(tmp_path), model, params, kind=kind, options=options)
  assert config(tmp_path)['architectures'] == [architecture]
  before, after = tensors(ROOT / name), tensors(tmp_path)
  assert {*before} == {*after}
  for tensor, value in before.items():
    np.testing.assert_array_equal(after[tensor], value, tensor)


def test_a_discriminator_as_wide_as_its_embeddings(tmp_path):
  """Its body is BERT's, which has no such head."""
  model, params = hf.load(str(ROOT / 'electra_disc'))
  wide = checkpoints.plain(model, input='tokens(token_types=2, norm=True)')
  rng = np.random.default_rng(0)
  del params['embed_projection']

  def wider(x):
    return np.float32(rng.normal(size=(*x.shape[:-1], 32)))

  for name in ('embed', 'positions', 'segments', 'embed_norm'):
    params[name] = jax.tree.map(wider, params[name])
  hf.save(str(tmp_path), wide, params, kind='replaced')
  again, params_again = hf.load(str(tmp_path))
  assert again.input == wide.input
  assert config(tmp_path)['embedding_size'] == 32
  jax.tree.map(np.testing.assert_array_equal, params_again, params)
  with pytest.raises(UsageError, match='is a bert, which has no class'):
    hf.save(str(tmp_path / 'no'), wide, params, kind='classification')


def test_no_class_says_whether_sentences_belong_together(tmp_path):
  model, params = hf.load(str(ROOT / 'roberta_mlm'))
  model = checkpoints.plain(model)
  with pytest.raises(UsageError, match=r'is a roberta, which has no class'):
    hf.save(str(tmp_path), model, params, kind='pretraining')


@pytest.mark.parametrize('name', ['bart_lm', 'mbart_lm', 'marian_lm'])
def test_encoder_decoders_come_back(name, tmp_path):
  """Each goes to its own family, without a bias with zeros for one."""
  folder = ROOT / name
  model, params = hf.load(str(folder))
  model = checkpoints.plain(model, output='tied')
  del params['head_bias']
  hf.save(str(tmp_path), model, params)
  assert config(tmp_path)['model_type'] == meta(folder)['model_type']
  expected = tensors(folder)
  expected['final_logits_bias'] = np.zeros((1, 112), np.float32)
  checkpoints.assert_tensors(tmp_path, expected)
  assert checkpoints.plain(hf.load(str(tmp_path))[0]) == model
