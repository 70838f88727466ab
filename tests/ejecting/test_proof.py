# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ejected file of each config trains as the package does, in float32."""

import jax
import numpy as np
import pytest

from gpt_jax.core.config import loading
from gpt_jax.core.costs import matmuls
from gpt_jax.core.tokens import prepare
from tests.support import ejected
from tests.support.cases import slow
from tests.support.tiny import one_device  # noqa: F401

STEPS = 50
# Few letters: losses are small, and so is the rounding of their sums.
WORDS = ['abba', 'cab', 'dab', 'bad', 'add', 'cad', 'dad', 'ad', 'ba', 'ab', 'da', 'bb', 'caca']


def corpus(folder, names):
  """Folders of text files, a few of each length."""
  for n, name in enumerate(names):
    (folder / name).mkdir()
    for i in range(23 + n):
      words = [WORDS[(i * j + n) % 13] for j in range(5 + 7 * (i % 5))]
      # Some words end a sentence.
      text = ' '.join(w + '.' * (j % 4 == 3) for j, w in enumerate(words))
      (folder / name / f'{i:02}.txt').write_text(text, encoding='utf-8')


SMALL = {
  'model.num_layers': 2,
  'model.d_model': 24,
  'model.num_heads': 3,
  'model.head_size': 8,
  'model.d_ff': 40,
  'model.vocab_size': 11,
  'model.context_length': 17,
  'model.dtype': 'float32',
  'model.dropout': 'none',
  'tokenizer.name': 'characters',
  'data.holdout': 'none',
  'batch.size': 6,
  'batch.micro_rows': 3,
  'schedule.num_steps': STEPS,
}
# With the papers' epsilon Adam would divide the rounding of gradients that are 0, such as those of
# the biases of keys, by itself.
ADAMW = {'optim.name': 'adamw(b1=0.9, b2=0.95, eps=1e-4, weight_decay=0.1)'}
COSINE = {'schedule.name': 'cosine(peak=1e-3, warmup=20, final=0.1)', **ADAMW}
# As the papers': a warm-up and a decay in tokens, and a batch that grows.
TOKENS = ADAMW | {
  'batch.size': "linear_ramp(3, 9, over='1500_tokens', stages=3)",
  'schedule.name': "cosine(peak=1e-3, warmup='1k_tokens', final=0.1, decay='4k_tokens')",
}
EXPERTS = (
  "geglu, switch(num_experts=3, expert='geglu', jitter=0.0, capacity_factor=1.25, group_size=0)"
)
T5_TOKENS = (
  "sentencepiece(vocab_size=29, model='unigram', byte_fallback=False, special=['<pad>'], "
  'sentinels=11)'
)
CASES = {
  'gpt1': ('configs/gpt1.py:117m', COSINE),
  'gpt2': ('configs/gpt2.py:small', COSINE),
  # No paper's of the lineage.
  'alibi': (
    'configs/gpt2.py:small',
    COSINE | {'model.position': 'alibi', 'model.num_heads': 4, 'model.head_size': 6},
  ),
  'gpt3': ('configs/gpt3.py:125m', TOKENS | {'model.attention': 'full, local(window=5)'}),
  'gopher': ('configs/gopher.py:44m', COSINE | {'optim.name': 'adam(b1=0.9, b2=0.95, eps=1e-4)'}),
  'chinchilla': ('configs/chinchilla.py:70b', TOKENS | {'batch.size': 'ramp(0:3, 1k_tokens:6)'}),
  'palm': (
    'configs/palm.py:8b',
    {'schedule.name': 'rsqrt(peak=1e-2, hold=20)', 'batch.size': 'ramp(0:3, 20_steps:6)'},
  ),
  'llama': ('configs/llama.py:7b', COSINE),
  'llama3': (
    'configs/llama3.py:8b',
    COSINE
    | {
      'model.num_heads': 4,
      'model.num_kv_heads': 2,
      'model.head_size': 6,
      'batch.size': 'ramp(0:3, 2k_tokens:6)',
      'batch.length': 'stages(11, 1k_tokens:17)',
    },
  ),
  'switch': (
    'configs/switch.py:base-8',
    COSINE
    | {
      'model.ffn': "gelu_tanh, switch(num_experts=4, expert='gelu_tanh', jitter=0.0, "
      'capacity_factor=1.25, group_size=0)'
    },
  ),
  'switch_t5': (
    'configs/switch.py:t5-base-128',
    {
      'model.num_encoder_layers': 2,
      'model.vocab_size': 31,
      'model.ffn': EXPERTS,
      'model.encoder_ffn': EXPERTS,
      'tokenizer.name': T5_TOKENS,
      'schedule.name': 'rsqrt(peak=1e-2, hold=20)',
    },
  ),
  't5': (
    'configs/t5.py:small',
    {
      'model.num_encoder_layers': 2,
      'model.vocab_size': 31,
      'tokenizer.name': T5_TOKENS,
      'schedule.name': 'rsqrt(peak=1e-2, hold=20)',
    },
  ),
  'transformer': (
    'configs/transformer.py:base',
    {
      'model.num_encoder_layers': 2,
      'schedule.name': 'noam(d_model=24, warmup=400)',
      'optim.name': 'adam(b1=0.9, b2=0.98, eps=1e-4)',
      'optim.clip_norm': 0.0,
    },
  ),
  'bert': (
    'configs/bert.py:base',
    {
      'model.vocab_size': 37,
      'tokenizer.name': 'wordpiece(vocab_size=29)',
      'batch.length': 'stages(13, 50%:17)',
      'schedule.name': 'linear(peak=1e-3, warmup=20, final=0.0)',
      'optim.name': 'adamw(b1=0.9, b2=0.999, eps=1e-4, weight_decay=0.01)',
    },
  ),
}


def small(name, changes, folder):
  """A small config, with a small corpus for each of its own."""
  given = loading.read(name)
  if given.data.rows == 'parallel':
    for side, shift in (('en', 0), ('de', 3)):
      lines = [' '.join(WORDS[(i * j + shift) % 13] for j in range(1 + i % 5)) for i in range(97)]
      (folder / f'train.{side}').write_text(''.join(f'{x}\n' for x in lines), encoding='utf-8')
    data = {'data.source': f"parallel_text('{folder}/train.en', '{folder}/train.de')"}
    return ejected.config_of(name, **{**SMALL, **data, **changes})
  names = [*given.data.sources] or ['docs']
  corpus(folder, names)
  calls = {n: f"text('{folder}/{n}/*.txt')" for n in names}
  data = {'data.sources': calls} if given.data.sources else {'data.source': calls['docs']}
  return ejected.config_of(name, **{**SMALL, **data, **changes})


# Together they have every part but ALiBi.
FAST = ('gpt2', 'gpt3', 'chinchilla', 'palm', 'llama3', 'switch_t5', 'transformer', 'bert')


@pytest.mark.parametrize('case', [case if case in FAST else slow(case) for case in CASES])
def test_losses_and_parameters(case, tmp_path):
  name, changes = CASES[case]
  config = small(name, changes, tmp_path)
  folder = tmp_path / 'store'
  store = prepare.ensure(config, str(folder))
  first, expected = ejected.by_package(config, store, STEPS)
  found = ejected.by_file(ejected.module_of(config), first, folder, STEPS)
  np.testing.assert_allclose(found.losses, expected.losses, rtol=0, atol=1e-6)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-5), found.params, expected.params
  )


# Sums that the package computes as products. T5: the gradient of its bias over rows, in two layers
# of each stack, of 17 tokens in the encoder and 5 in the decoder; ALiBi's, which nothing uses.
# BERT: the bias of its output is a column of its table, of 3 masked tokens, in the product and both
# gradients.
SUMS = {
  't5': 2 * 6 * 3 * (2 * 17**2 + 2 * 5**2),
  'switch_t5': 2 * 6 * 3 * (2 * 17**2 + 2 * 5**2),
  'alibi': 2 * 6 * 4 * 2 * 17**2,
  'bert': 3 * 2 * 6 * 3 * 37,
}


@pytest.mark.parametrize('case', CASES)
def test_a_step_costs_the_same(case):
  """FLOPs of a whole step: of its products, and of all operations as XLA counts them.

  XLA counts the body of a loop once, so that here the package's layers are in none; the file's
  are not, and both compute all rows at once.
  """
  name, changes = CASES[case]
  at_once = {'batch.size': 6, 'batch.micro_rows': 6, 'model.loop': 'unroll'}
  config = ejected.config_of(name, **{**SMALL, **changes, **at_once})
  found, expected = ejected.file_step(config), ejected.package_step(config)
  sums = SUMS.get(case, 0)
  assert matmuls.flops(found.jaxpr) == matmuls.flops(expected.jaxpr) - sums
  # A tenth of the FLOPs are of no product at this size; T5's bias has more of them in the package.
  whole, ours = (x.lower().cost_analysis()['flops'] for x in (expected, found))
  assert abs(ours / (whole - sums) - 1) < (0.02 if 't5' in case else 0.005)


@pytest.mark.parametrize('case', ['gpt1', 't5', 'transformer', 'bert', 'switch'])
def test_dropout_draws_for_each_place(case):
  """Of embeddings, of what each sublayer adds, of each attention's probabilities."""
  name, changes = CASES[case]
  rates = {'model.dropout': 'rates(embedding=0.1, residual=0.1, attention=0.1)'}
  config = ejected.config_of(name, **{**SMALL, **changes, **rates})
  found = ejected.file_step(config).jaxpr
  sublayers, attentions = (10, 6) if config.model.num_encoder_layers else (4, 2)
  stacks = 2 if config.model.num_encoder_layers else 1
  assert ejected.count(found, 'random_bits') == stacks + sublayers + attentions
