# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The heads of encoders, against what transformers recorded; features."""

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core import spec
from gpt_jax.core.objectives.choices import FEATURES, OBJECTIVES
from gpt_jax.core.spec import UsageError
from tests.support import tiny
from tests.support.cases import slow
from tests.support.golden_io import ROOT, case

KEY = jax.random.key(5)
LABELS = {
  'classification': lambda given: given['labels'],
  'choice': lambda given: given['labels'],
  'tags': lambda given: given['labels'],
  'spans': lambda given: np.stack([given['start_positions'], given['end_positions']], axis=1),
}


def built(call, model):
  make = spec.build('objective.name', call, OBJECTIVES)
  return make.bind(model.clone(dropout='none'))


def batch_of(call, given):
  """The recorded inputs as `finetune` gives them."""
  ids, mask = given['input_ids'], given['attention_mask']
  shape = (len(ids), -1, ids.shape[-1])
  mask = mask.reshape(shape)
  # RoBERTa's have no types, and nothing reads them.
  types = given.get('token_type_ids', np.zeros_like(ids)).reshape(shape)
  lengths = mask.sum(-1)
  batch = {
    'inputs': ids.reshape(shape),
    'lengths': lengths,
    'second': lengths - (types * mask).sum(-1),
    'labels': LABELS[call.partition('(')[0]](given),
  }
  batch = {name: x.astype(np.int32) for name, x in batch.items()}
  return {**batch, 'weights': np.ones(len(ids), np.float32)}


@pytest.mark.parametrize(
  'fixture, call',
  [
    ('bert_cls', "classification(3, 16, 1, 0.0, read='first')"),
    ('bert_choice', "choice(3, 14, 0.0, read='first')"),
    ('bert_tok', 'tags(5, 16)'),
    ('bert_qa', 'spans(16)'),
    slow('roberta_choice', "choice(4, 14, 0.0, read='first')"),
    slow('roberta_tok', 'tags(5, 16)'),
  ],
)
def test_as_recorded(fixture, call):
  model, params = hf.load(str(ROOT / fixture))
  golden = case(ROOT / fixture, 'main')
  objective, batch = built(call, model), batch_of(call, golden.inputs)
  loss, outputs = jax.jit(
    lambda: (objective.loss(params, batch, None), objective.outputs(params, batch))
  )()
  assert golden.max_error('loss', loss.sum / loss.weight) < 1e-5
  if 'logits' in golden.outputs:
    outputs = outputs.reshape(golden.outputs['logits'].shape)
    assert golden.max_error('logits', outputs) < 1e-4
  else:
    for name, part in zip(('start', 'end'), np.split(outputs, 2, 1), strict=True):
      assert golden.max_error(f'{name}_logits', part) < 1e-4


@pytest.mark.parametrize(
  'features, picked',
  [slow('layer(0)', [0]), slow('layer(-2)', [1]), ('concat(2)', [1, 2]), ('weighted_sum', [1, 2])],
)
def test_features_are_those_of_the_layers(features, picked):
  """Of the recorded model, whose head reads them."""
  model, params = hf.load(str(ROOT / 'bert_tok'))
  golden = case(ROOT / 'bert_tok', 'main')
  inputs = {n: golden.inputs[n] for n in ('input_ids', 'attention_mask', 'token_type_ids')}
  states = np.asarray(hf.forward(model, params, **inputs)['hidden_states'])
  call = f'tags(5, 16, 0.0, features={features!r})'
  objective, batch = built(call, model), batch_of(call, golden.inputs)
  rng = np.random.default_rng(3)
  summed = features == 'weighted_sum'
  width = model.d_model * (1 if summed else len(picked))
  heads = {
    'classifier': {
      'kernel': rng.normal(size=(width, 5)).astype(np.float32),
      'bias': rng.normal(size=5).astype(np.float32),
    }
  }
  found = states[picked]
  if summed:
    weights, scale = np.array([0.3, -1.1]), 1.7
    heads['layers'] = {
      'weights': weights.astype(np.float32),
      'scale': np.array([scale], np.float32),
    }
    shares = np.exp(weights) / np.exp(weights).sum()
    read = scale * np.einsum('n,nblk->blk', shares, found)
  else:
    read = np.concatenate([*found], axis=-1)
  params = {**params, 'heads': heads}
  drawn = tiny.shapes(objective)['heads']
  assert jax.tree.map(np.shape, drawn) == jax.tree.map(np.shape, heads)

  @jax.jit
  def run(params):
    gradient = jax.grad(lambda p: objective.loss(p, batch, KEY).sum)(params)
    return gradient, objective.outputs(params, batch)

  gradient, outputs = run(params)
  outputs = outputs.reshape(3, 16, 5)
  expected = read @ heads['classifier']['kernel'] + heads['classifier']['bias']
  real = np.arange(16) < batch['lengths']
  np.testing.assert_allclose(outputs[real], expected[real], atol=1e-4)
  assert all(np.any(x) for x in jax.tree.leaves(gradient['heads']))


def test_features_fit_the_model():
  for text, layers, expected in (
    ('layer(-1)', 5, [5]),
    ('concat(4)', 5, [2, 3, 4, 5]),
    ('weighted_sum(4)', 5, [2, 3, 4, 5]),
    ('weighted_sum', 5, [1, 2, 3, 4, 5]),
  ):
    made = spec.build('finetune.features', text, FEATURES)
    assert [*made.layers(layers)] == expected
  for text in ('layer(4)', 'concat(5)', 'layer(-5)'):
    made = spec.build('finetune.features', text, FEATURES)
    with pytest.raises(UsageError, match='the model has 3 layers'):
      made.layers(3)
