# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A classifier on the frozen encoder of an encoder-decoder."""

import jax
import numpy as np
import pytest

from configs.finetune import cove
from gpt_jax.core import spec
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.optim.train_state import Rates
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.training.parts import init_params
from gpt_jax.tasks.registry import TUNED
from gpt_jax.tuning import recipe
from gpt_jax.tuning.objectives import freezing
from gpt_jax.tuning.objectives.task import Classification
from gpt_jax.tuning.rows import Frame, sequences
from tests.core.nn.test_translator import FIELDS, SIZE, SOURCES, WIDTH
from tests.support import tiny
from tests.support.cases import slow

EXAMPLES, LENGTH = 3, 5


def objective(sequences):
  call = Classification(2, LENGTH, sequences, 0.0, 0.0, 'biattentive', features='ends')
  return call.bind(tiny.model(**FIELDS))


@pytest.fixture(scope='module', params=[slow(1), 2])
def made(request):
  one = objective(request.param)
  params = jax.jit(lambda key: init_params(one, key))(jax.random.key(0))
  rng = np.random.default_rng(1)
  shape = EXAMPLES, request.param
  batch = {
    'inputs': rng.integers(0, SOURCES, (*shape, LENGTH)).astype(np.int32),
    'lengths': rng.integers(1, LENGTH, shape).astype(np.int32),
    'labels': np.array([0, 1, 1], np.int32),
    'weights': np.ones(EXAMPLES, np.float32),
  }
  return one, params, batch


def test_the_head_alone_has_a_gradient(made):
  one, params, batch = made
  key, rates = jax.random.key(2), Rates((freezing.heads,))
  found = jax.jit(jax.grad(lambda p: one.loss(rates.stopped(p, 0), batch, key)[0]))(params)
  for name, gradient in params_lib.flatten(jax.device_get(found)).items():
    if 'heads/pool_' not in name:  # their biases cancel in a softmax
      assert np.any(gradient) == name.startswith('heads/'), name


def test_padding_is_not_read(made):
  one, params, batch = made
  outputs = jax.jit(one.outputs)
  places = np.arange(LENGTH)[None, None]
  other = (batch['inputs'] + 1) % SOURCES
  padded = np.where(places < batch['lengths'][..., None], batch['inputs'], other)
  np.testing.assert_allclose(
    outputs(params, {**batch, 'inputs': padded}), outputs(params, batch),
    atol=1e-6,
  )  # fmt: skip


def test_the_head_reads_embeddings_and_states():
  shapes = tiny.shapes(objective(1))
  assert shapes['heads']['narrow']['kernel'].shape[0] == WIDTH + 2 * SIZE


def test_texts_are_read_apart():
  made = tokenizer_lib.build('bytes', [])
  frame = Frame((), (), (made.eos_id,), 'apart')
  pair = TUNED['similarity']('a.tsv', 'b.tsv')
  texts = [made.encode('ab'), made.encode('c')]
  assert sequences(pair, texts, frame) == [[[texts[0]]], [[texts[1]]]]


@pytest.mark.parametrize(
  ('changes', 'reads', 'why'),
  [
    ({'features': 'layer(-1)'}, 'apart', "is an encoder-decoder, .*give 'ends'"),
    ({'features': None}, 'apart', 'features=None: --init is an encoder-decoder'),
    ({}, 'first', "features='ends': is for the encoder of an encoder-decoder"),
    ({'task': "tags('a', 'b')"}, 'apart', 'for a class or a score of one text'),
    ({'freeze': 1}, 'apart', 'freeze=1: does not work with the frozen encoder'),
    ({'lora': 'lora()'}, 'apart', "lora='lora.*: does not work with the frozen"),
    ({'tasks': 'rte()'}, 'apart', 'tasks=.*: does not work with the frozen'),
    ({'head': 'first'}, 'apart', 'does not do this task .* give biattentive'),
  ],
)
def test_what_it_does_not_do_is_refused(changes, reads, why):
  config = cove.get_config().unlock()
  config.finetune.task = "similarity('a.tsv', 'b.tsv')"
  config.finetune.update(changes)
  task = spec.build('finetune.task', config.finetune.task, TUNED)
  with pytest.raises(UsageError, match=why):
    tuned = config.finetune
    recipe.check_head(tuned, task, reads, tuned.features or '')
