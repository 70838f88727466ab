# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BigBird's random blocks, its heads, and what is refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from gpt_jax import hf
from gpt_jax.hf.base import Options
from gpt_jax.hf.bert import BIG_BIRD
from gpt_jax.nn import bigbird
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError
from tests.support.golden_io import ROOT, case, config, tensors

RANDOM = ROOT / 'big_bird_sparse_random'


def plain(model, **changes):
  fields = {n: getattr(model, n) for n in hf.transformer_fields()}
  return Transformer(**{**fields, **changes})


def test_random_blocks_as_drawn_in_training(monkeypatch):
  """With those that transformers drew in the place of ours.

  Theirs count from the row's first block, ours from the one after it.
  """
  golden = case(RANDOM, 'main')
  drawn = golden.outputs.pop('rand_attn')

  def recorded(blocks, layer, num_heads, number):
    assert (blocks.random, num_heads, number) == (2, 2, 9)
    return jnp.asarray(drawn)[layer] - 1

  monkeypatch.setattr(bigbird, 'random_blocks', recorded)
  model, params = hf.load(str(RANDOM))
  # transformers evaluates with the first block in their place.
  assert model.attention == "bigbird(block=4, random=2, draw='first')"
  model = model.clone(attention='bigbird(block=4, random=2, seed=99)')
  out = hf.forward(model, params, **golden.inputs)
  errors = {n: golden.max_error(n, out[n]) for n in golden.outputs}
  assert max(errors.values()) < 1e-4, errors


def test_a_model_of_our_own_keeps_its_seed(tmp_path):
  """What transformers has no word for goes out and comes back."""
  model, params = hf.load(str(RANDOM))
  del params['heads']
  ours = 'bigbird(block=4, random=2, seed=7)'
  hf.save(str(tmp_path / 'out'), plain(model, attention=ours), params)
  again, params_again = hf.load(str(tmp_path / 'out'))
  written = config(tmp_path / 'out')
  assert written['architectures'] == ['BigBirdForMaskedLM']
  assert written['random_blocks_seed'] == 7
  assert again.attention == ours
  jax.tree.map(np.testing.assert_array_equal, params_again, params)
  for other in ('bigbird(block=4, window=5)', 'bigbird(block=4, extra=8)'):
    changed = {**params, 'extra_tokens': {'embedding': np.zeros((8, 32))}}
    with pytest.raises(UsageError, match=r'big_bird cannot: model\.attention='):
      hf.save(str(tmp_path / 'no'), plain(model, attention=other), changed)


@pytest.mark.parametrize(
  'name, head', [('TokenClassification', 3), ('MultipleChoice', 1)]
)
def test_other_classes_have_the_pooler_too(tmp_path, name, head):
  """As transformers 5.23 writes them; the tokens' one does not read it."""
  weights = {n: x for n, x in tensors(RANDOM).items() if n.startswith('bert.')}
  rng = np.random.default_rng(0)
  weights['classifier.weight'] = np.float32(rng.normal(size=(head, 32)))
  weights['classifier.bias'] = np.float32(rng.normal(size=head))
  values = config(RANDOM) | {
    'architectures': [f'BigBirdFor{name}'],
    'id2label': {'0': 'a', '1': 'b', '2': 'c'},
  }
  (tmp_path / 'config.json').write_text(json.dumps(values))
  save_file(weights, tmp_path / 'model.safetensors')
  model, params = hf.load(str(tmp_path))
  hf.save(str(tmp_path / 'out'), model, params)
  found = tensors(tmp_path / 'out')
  assert {*found} == {*weights}
  for tensor, value in weights.items():
    np.testing.assert_array_equal(found[tensor], value, tensor)
  if head == 3:
    ids = case(RANDOM, 'nomask').inputs['input_ids']
    out = hf.forward(model, params, input_ids=ids)
    kernel = weights['classifier.weight'].T
    logits = (
      out['last_hidden_state'] @ kernel + weights['classifier.bias'][None, None]
    )
    np.testing.assert_allclose(out['logits'], logits, rtol=1e-4, atol=1e-4)


def test_fields_where_config_says_little():
  """The defaults of transformers' own config."""
  sizes = {
    'vocab_size': 50_358,
    'hidden_size': 768,
    'num_hidden_layers': 12,
    'num_attention_heads': 12,
    'intermediate_size': 3072,
  }

  def fields(**more):
    return BIG_BIRD.fields(Options(sizes | more))

  found = fields()
  assert found['attention'] == "bigbird(block=64, random=3, draw='first')"
  assert (found['ffn'], found['context_length']) == ('gelu_tanh', 4096)
  assert found['norm'] == 'layernorm(epsilon=1e-12)'
  full = fields(attention_type='original_full')
  assert full['attention'] == 'bidirectional'
  for name, value in (
    ('use_bias', 'no'),
    ('rescale_embeddings', 1),
    ('attention_type', 'simulated'),
    ('num_random_blocks', 0),
    ('is_decoder', True),
  ):
    with pytest.raises(UsageError, match=f'{name}={value!r}'):
      fields(**{name: value})
