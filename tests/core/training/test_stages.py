# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""ELECTRA in two stages: the generator, then the model that starts as it."""

import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest

from configs import electra as electra_config
from gpt_jax.core import config as config_lib
from gpt_jax.core.nn.transformer import parameter_shapes
from gpt_jax.core.optim.rounding import ema
from gpt_jax.core.optim.train_state import Rates
from gpt_jax.core.rows.rows import Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training.parts import make_init
from gpt_jax.core.training.step import train_step
from gpt_jax.papers.electra.electra import Electra
from tests.support import tiny
from tests.support.objectives import Words, keys

V, L, N = tiny.V, 13, 2
ENCODER: dict[str, Any] = dict(
  attention='bidirectional', input='tokens(token_types=2, norm=True)', num_layers=1
)
SCORES = "tied(bias=True, transform='gelu')"


def equal(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def zero(tree):
  return not any(np.any(x) for x in jax.tree.leaves(tree))


@pytest.mark.slow
def test_the_stages_train_one_model_each():
  """With decay, moments and an average, over the first step of the second."""
  model = tiny.model(**ENCODER)
  generator = tiny.model(**ENCODER, output=SCORES)
  tokenizer: Any = Words()
  unbound = Electra(0.3, 7.0, generator_steps=N)
  objective = unbound.bind(model, tokenizer, generator=generator)
  optimizer = optax.adamw(1e-2, weight_decay=0.5)
  init = make_init(objective, optimizer, average=ema(0.9))
  rng = np.random.default_rng(0)
  tokens = rng.integers(5, V, size=(4, L), dtype=np.int32)
  rows = Rows(tokens, np.ones(tokens.shape, bool))
  assert objective.make_batch is not None
  batch = objective.make_batch(rows, keys(4))
  step = jax.jit(
    functools.partial(
      train_step,
      objective=objective,
      optimizer=optimizer,
      rates=Rates(stages=objective.stages()),
      schedule=optax.constant_schedule(1e-2),  # the optimizer has it already
      seed=0,
      clip_norm=0.0,
      num_micro=1,
      average=ema(0.9),
    )
  )
  first = jax.jit(init)(jax.random.key(0))

  def split(params):
    return {n: x for n, x in params.items() if n != 'parts'}, params['parts']

  state, losses = first, []
  for _ in range(N):
    state, metrics = step(state, batch)
    losses.append(float(metrics['loss']))
    # The loss is the generator's alone.
    np.testing.assert_allclose(metrics['loss'], metrics['objective/masked_loss'], rtol=1e-6)
    own, parts = split(state.params)
    equal(own, split(first.params)[0])
    moments = split(state.opt_state[0].mu)
    assert zero(moments[0]) and not zero(moments[1])
  assert losses[1] < losses[0]
  taught = state.params['parts']['generator']
  state, metrics = step(state, batch)
  own, parts = split(state.params)
  equal(parts['generator'], taught)
  equal(state.ema['parts']['generator'], taught)
  np.testing.assert_allclose(metrics['loss'], 7.0 * metrics['objective/replaced_loss'], rtol=1e-6)
  moments = split(state.opt_state[0].mu)
  assert zero(moments[1]) and int(state.opt_state[0].count) == 1
  # Adam's first update, from the generator's parameters: with the moments
  # begun anew m / sqrt(v) is the sign of the gradient.
  for name in parameter_shapes(model):
    for old, new, mu in zip(
      *map(jax.tree.leaves, (taught[name], own[name], moments[0][name])), strict=True
    ):
      g = mu / 0.1
      expected = old - 1e-2 * (g / (np.abs(g) + 1e-8) + 0.5 * old)
      np.testing.assert_allclose(new, expected, rtol=1e-4, atol=1e-6)


def test_counts():
  """The published small generator is as wide as its discriminator."""
  config = electra_config.get_config('small').unlock()
  config.objective.name = 'electra(generator_steps=7)'
  config.models.generator.d_model = config.model.d_model
  config.models.generator.num_heads = config.model.num_heads
  objective = config_lib.objective(config_lib.resolve(config))
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  counts = [sum(x.size for x in jax.tree.leaves(shapes))]
  counts.append(sum(x.size for x in jax.tree.leaves(shapes['parts'])))
  # Of Hugging Face's two models, which share nothing here.
  assert counts == [13_549_057 + 13_546_682, 13_546_682]


def test_another_size_is_one_line():
  small = tiny.model(**ENCODER, output=SCORES, d_ff=31)
  with pytest.raises(UsageError, match=r'generator: its decoder.*31.*give both the'):
    Electra(generator_steps=3).bind(tiny.model(**ENCODER), generator=small)
