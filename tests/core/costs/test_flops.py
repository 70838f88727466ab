# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""FLOPs, peaks and MFU. Parameter counts: see test_configs.py."""

import math

import jax
import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.costs import flops, matmuls
from gpt_jax.core.nn.choices import PATTERNS
from gpt_jax.core.objectives import choices
from gpt_jax.core.training import step
from gpt_jax.papers.bigbird import bigbird
from tests.support import tiny

# Objectives of encoder-decoders: tokens of text, of source, of target.
OF_SIDES = [('seq2seq', (13, 13, 13)), ('span', (26, 24, 6))]


def test_mfu():
  assert flops.mfu(1000.0, 6e9, 4 * 3e12) == pytest.approx(0.5)


@pytest.mark.parametrize('output', ['tied', 'untied'])
def test_matmul_parameters(output):
  """The output table counts once; looking up a token is not a product."""
  model = tiny.model(output=output)
  config = tiny.config(**{'model.output': output})
  D, H, G, K, F, V = (tiny.D, tiny.H, tiny.G, tiny.K, tiny.F, tiny.V)
  layer = D * H * K + 2 * D * G * K + H * K * D + 2 * D * F
  expected = 5 * layer + V * D
  assert flops.matmul_parameters(config, tiny.params(model)) == expected
  per_token = flops.per_token(config, tiny.params(model))
  assert per_token == 6 * expected + 12 * 5 * H * K * 13
  causal = flops.per_token_causal(config, tiny.params(model))
  # The 13 tokens of a row see 1 to 13: the mean is 7.
  assert causal == 6 * expected + 12 * 5 * H * K * 7


def test_adapters_spare_the_gradient_of_kernels():
  config, params = tiny.config(), tiny.params(tiny.model())
  whole = flops.per_token(config, params)
  with config.unlocked():
    config.finetune = {'lora': 'none()', 'features': ''}
  assert flops.per_token(config, params) == whole
  config.finetune.lora = 'lora(rank=2)'
  assert flops.per_token(config, params) * 3 == whole * 2


def test_frozen_features_have_no_gradient():
  """A third of the model's FLOPs, and three passes of the head of one token."""
  model = tiny.model()
  config, params = tiny.config(), tiny.params(model)
  scored = {'heads': {'score': {'kernel': np.zeros((tiny.D, 3))}}}
  kind = 'classification(num_labels=3, length=13, auxiliary=0.0, read="first")'
  config = tiny.config(**{'objective.name': kind})
  with config.unlocked():
    config.finetune = {'features': '', 'lora': 'none()', 'length': 13}
  whole = flops.per_token(config, {**params, **scored})
  config.finetune.features = 'layer(0)'
  frozen = flops.per_token(config, {**params, **scored})
  head = 6 * tiny.D * 3 / 13
  assert (whole - head) / (frozen - head) == pytest.approx(3, rel=1e-4)


def test_norms_are_no_products():
  """More of them are more parameters, and the same FLOPs."""
  block = "sandwich(qk_norm='per_head')"
  fields = {'norm': 'rmsnorm', 'num_layers': 2}
  plain, more = (tiny.model(**fields, block=b) for b in ('pre', block))

  def counts(model):
    config = tiny.config(**{f'model.{n}': getattr(model, n) for n in (*fields, 'block')})
    params = tiny.params(model)
    shapes = flops.parameter_table(params).values()
    parameters = sum(math.prod(shape) for shape in shapes)
    return parameters, flops.per_token(config, params)

  (before, cost), (after, same) = counts(plain), counts(more)
  # Of each of two layers: two norms of outputs, those of queries and keys.
  assert after - before == 2 * (2 * tiny.D + 2 * tiny.K)
  assert same == cost


def mask_of(call, length):
  """True where a query of a row sees a key."""
  positions = np.arange(length)
  pattern = spec.build('model.attention', call, PATTERNS)
  if pattern.blocks:
    seen = bigbird.listed(pattern.blocks, 0, 1, length)
    return np.asarray(seen[0]) > 0
  return np.asarray(pattern.visible(positions[:, None], positions[None]))


# One at least of every pattern; windows that divide nothing, those of one
# token, and those longer than the row.
PATTERN_CALLS = [
  'full',
  'bidirectional',
  'local(window=5)',
  'local(window=17)',
  'local(window=1)',
  'bigbird(block=2, window=1, random=1)',
]


def test_every_pattern_is_counted():
  called = {call.partition('(')[0] for call in PATTERN_CALLS}
  assert called == {*PATTERNS} - {'lstm'}  # which has no scores


def test_extra_tokens_are_multiplied_too():
  """Of each row three more, in all products but the output's."""
  call = 'bigbird(block=1, window=1, random=1, extra=3)'
  config = tiny.config(**{'model.attention': call, 'model.num_layers': 1})
  params = tiny.params(tiny.model(attention=call, num_layers=1))
  mask = mask_of(call, 16)
  products = 6 * flops.matmul_parameters(config, params)
  expected = 12 * tiny.H * tiny.K * mask.sum() / 13 + products * 16 / 13
  assert flops.per_token(config, params) == pytest.approx(expected, abs=2)


@pytest.mark.parametrize('call', PATTERN_CALLS)
def test_attention_is_what_the_mask_shows(call):
  """12 * heads * head size a key: the most of a row, and the mean."""
  config = tiny.config(**{'model.attention': call, 'model.num_layers': 1})
  params = tiny.params(tiny.model(attention=call, num_layers=1))
  whole = flops.per_token(config, params)
  causal = flops.per_token_causal(config, params)
  products = 6 * flops.matmul_parameters(config, params)
  mask = mask_of(call, 13)
  width = tiny.H * tiny.K
  most = mask.sum(axis=1).max()
  if call.startswith('bigbird'):  # the mean: few tokens see all
    most = mask.sum() / 13
  assert whole - products == round(12 * width * most)
  assert causal - products == round(12 * width * mask.sum() / 13)


def test_each_layer_counts_its_own_pattern():
  """Two patterns over six layers: three of each."""
  changes = {'attention': 'full, local(window=3)', 'num_layers': 6}
  config = tiny.config(**{f'model.{k}': v for k, v in changes.items()})
  params = tiny.params(tiny.model(**changes))
  products = 6 * flops.matmul_parameters(config, params)
  width = 12 * tiny.H * tiny.K
  whole = flops.per_token(config, params)
  assert whole - products == width * 3 * (13 + 3)
  # Of a window of 3 the first two tokens see 1 and 2.
  causal = flops.per_token_causal(config, params)
  assert causal - products == round(width * 3 * (7 + (1 + 2 + 11 * 3) / 13))


@pytest.mark.parametrize('expert, top_k', [('relu', 1), ('geglu', 2)])
def test_experts_count_for_the_tokens_that_take_them(expert, top_k):
  """Two of four layers, among them one of two kinds of attention."""
  ffn = f"relu, switch(num_experts=5, expert='{expert}', top_k={top_k})"
  changes = {'num_layers': 4, 'ffn': ffn, 'attention': 'full, full'}
  params = tiny.params(tiny.model(**changes))
  config = tiny.config(**{f'model.{k}': v for k, v in changes.items()})
  D, H, G, K, F, V = (tiny.D, tiny.H, tiny.G, tiny.K, tiny.F, tiny.V)
  matrices = 3 if expert == 'geglu' else 2
  attention = 2 * D * H * K + 2 * D * G * K
  experts = 2 * top_k * matrices * D * F
  matmul = 4 * attention + 2 * 2 * D * F + experts + 2 * D * 5 + V * D
  assert flops.matmul_parameters(config, params) == matmul
  per_token = flops.per_token(config, params)
  assert per_token == 6 * matmul + 12 * 4 * H * K * 13
  # Kernels and biases of those experts that a token does not take.
  idle = 2 * (5 - top_k) * (matrices * D * F + (matrices - 1) * F + D)
  total = sum(x.size for x in jax.tree.leaves(params))
  assert sum(flops.active_parameters(config, params).values()) == total - idle


def test_relative_positions_are_not_met_by_tokens():
  """Transformer-XL's W_R multiplies distances, which all rows share."""
  changes = {'position': 'transformer_xl', 'd_model': 22}
  config = tiny.config(**{f'model.{k}': v for k, v in changes.items()})
  params = tiny.params(tiny.model(**changes))
  paths = flops.parameter_table(params)
  assert any('/relative/kernel' in path for path in paths)
  changes['position'] = 'none'
  plain = tiny.config(**{f'model.{k}': v for k, v in changes.items()})
  without = tiny.params(tiny.model(**changes))
  assert flops.per_token(config, params) == flops.per_token(plain, without)


def test_a_second_stream():
  """Two of 13 tokens are predicted; they are no keys and values."""
  changes = {
    'position': 'xlnet',
    'd_model': 22,
    'attention': 'bidirectional',
    'input': 'tokens(queries=True)',
    'bias': 'none',
  }
  config = tiny.config(
    **{f'model.{k}': v for k, v in changes.items()},
    **{'objective.name': 'permuted(context=6)', 'data.rows': 'stream'},
  )
  params = tiny.params(tiny.model(**changes))
  D, H, G, K, F, V = (22, tiny.H, tiny.G, tiny.K, tiny.F, tiny.V)
  queries, keys = 5 * (2 * D * H * K + 2 * D * F), 5 * 2 * D * G * K
  assert flops.matmul_parameters(config, params) == queries + keys + V * D
  row = 6 * (15 * queries + 13 * keys + 2 * V * D) + 12 * 5 * H * K * 15 * 13
  assert flops.per_token(config, params) == pytest.approx(row / 13, abs=1)


def test_a_last_layer_that_is_run_again():
  """DeBERTa's mask decoder; its vectors of distances are met by no token."""

  def matmul(position):
    changes = {'position': position, 'attention': 'bidirectional'}
    changes['block'] = 'post'
    config = tiny.config(**{f'model.{k}': v for k, v in changes.items()})
    params = tiny.params(tiny.model(**changes))
    return flops.matmul_parameters(config, params)

  D, H, G, K, F = (tiny.D, tiny.H, tiny.G, tiny.K, tiny.F)
  layer = 2 * D * H * K + 2 * D * G * K + 2 * D * F
  once = matmul('deberta(mask_decoder=1)')
  assert once == matmul('learned') == 5 * layer + tiny.V * D
  assert matmul('deberta(mask_decoder=3)') == once + 2 * layer


# As wide together as the decoder's heads, whose attention costs as much.
ENCODERS_OWN = {'encoder_num_heads': 3, 'encoder_d_ff': 19}


def test_encoder_decoder():
  """A token of each side; the decoder attends to both."""
  changes = {
    'num_layers': 2,
    'num_encoder_layers': 4,
    'ffn': 'relu, switch(num_experts=5)',
    'position': 't5_bias',
    'bias': 'none',
  }
  params = tiny.params(tiny.model(**changes))
  config = tiny.config(**{f'model.{k}': v for k, v in changes.items()})
  D, H, G, K, F, V = (tiny.D, tiny.H, tiny.G, tiny.K, tiny.F, tiny.V)
  attention = 2 * D * H * K + 2 * D * G * K
  matmul = (4 + 2 * 2) * attention + 6 * 2 * D * F + 3 * D * 5 + V * D
  assert flops.matmul_parameters(config, params) == matmul
  per_token = flops.per_token(config, params)
  assert per_token == 6 * matmul + 12 * (4 + 2 * 2) * H * K * 13
  # Only the decoder's attention to itself is causal.
  causal = flops.per_token_causal(config, params)
  assert causal == 6 * matmul + 12 * (2 * 7 + 6 * 13) * H * K


def test_parameter_table_of_real_and_abstract_parameters():
  model = tiny.model()
  real = flops.parameter_table(tiny.params(model))
  assert real['embed/embedding'] == (tiny.V, tiny.D)
  assert real['decoder/periods/block_0/ffn/in/kernel'] == (5, tiny.D, tiny.F)
  boxed = jax.eval_shape(model.init, jax.random.key(0), tiny.tokens(1, 1))['params']
  assert flops.parameter_table(boxed) == real


@pytest.mark.parametrize('own', [{}, ENCODERS_OWN], ids=['alike', 'own'])
@pytest.mark.parametrize('objective, sizes', OF_SIDES)
def test_each_side_of_an_encoder_decoder_counts_its_own_tokens(objective, sizes, own):
  """By hand, and against the products of the traced step."""
  text, M, L = sizes
  changes = {'num_layers': 3, 'num_encoder_layers': 2, 'context_length': M}
  changes |= own
  config = tiny.config(
    **{f'model.{k}': v for k, v in changes.items()}, **{'objective.name': objective}
  )
  model = tiny.model(**changes)
  params = tiny.params(model)
  D, H, G, K, F, V = (tiny.D, tiny.H, tiny.G, tiny.K, tiny.F, tiny.V)
  ends, keys, ffn = 2 * D * H * K, 2 * D * G * K, 2 * D * F
  of_encoder = 2 * D * own.get('encoder_d_ff', F)
  source = 2 * (ends + keys + of_encoder) + 3 * keys
  target = 3 * (2 * ends + keys + ffn) + V * D
  seen = 2 * M * M + 3 * L * L + 3 * L * M
  row = 6 * (source * M + target * L) + 12 * H * K * seen
  assert abs(flops.per_token(config, params) - row / text) <= 1
  assert abs(flops.per_token(config, params, text) - row / text) <= 1
  causal = row - 12 * H * K * 3 * (L * L - L * (L + 1) / 2)
  found = flops.per_token_causal(config, params)
  assert abs(found - causal / text) <= 1
  made = choices.build(objective, model)
  zeros = np.zeros((2, L), np.int32)
  batch = {
    'sources': np.zeros((2, M), np.int32),
    'source_mask': np.ones((2, M), bool),
    **dict.fromkeys(('inputs', 'targets'), zeros),
    'weights': np.ones((2, L), np.float32),
  }
  jaxpr = jax.make_jaxpr(lambda *args: step.mean_gradients(*args, objective=made, num_micro=1))(
    params, batch, jax.random.key(0)
  )
  assert matmuls.flops(jaxpr) == 2 * row
