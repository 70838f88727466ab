# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`benchmark`: what a step's matrix products take without the step."""

import json
import pathlib

import jax
import jax.numpy as jnp
import pytest

from gpt_jax.__main__ import main
from gpt_jax.benchmarks import step_products
from gpt_jax.costs import matmuls

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'


def _measure(f, *arrays):
  found = matmuls.products(jax.make_jaxpr(f)(*arrays))
  return step_products.measure(found, repeats=1)


def test_each_kind_and_how_often():
  def f(x_BTD, w_LDD):
    def layer(x_BTD, w_DD):
      scores_BTS = jnp.einsum('btd,bsd->bts', x_BTD, x_BTD)
      return jnp.einsum('bts,bsd->btd', scores_BTS, x_BTD @ w_DD), None

    return jax.lax.scan(layer, x_BTD, w_LDD)[0]

  B, T, D, L = 2, 3, 5, 7
  found = _measure(f, jnp.ones((B, T, D)), jnp.ones((L, D, D)))
  assert {kind.name: (kind.times, kind.flops) for kind in found} == {
    '[2, 3, 5] by [2, 3, 5] over 2 for each of 0': (L, 2 * B * T * T * D),
    '[2, 3, 5] by [5, 5] over 2': (L, 2 * B * T * D * D),
    '[2, 3, 3] by [2, 3, 5] over 2 for each of 0': (L, 2 * B * T * T * D),
  }
  assert all(kind.seconds > 0 for kind in found)


def test_rows_of_experts_and_convolutions():
  def f(x_ND, w_EDF, image):
    rows = jax.lax.ragged_dot(x_ND, w_EDF, jnp.array([2, 4, 5]))
    filters = jnp.ones((3, 1, 2))
    line = jax.lax.conv_general_dilated(
      image, filters, (1,), 'SAME', dimension_numbers=('NWC', 'WIO', 'NWC')
    )
    return rows, line

  found = _measure(
    f, jnp.ones((11, 5)), jnp.ones((3, 5, 7)), jnp.ones((1, 13, 1))
  )
  assert {kind.name: (kind.times, kind.flops) for kind in found} == {
    '[11, 5] by [3, 5, 7] (ragged_dot_general)': (1, 2 * 11 * 5 * 7),
    '[1, 13, 1] by [3, 1, 2] (conv_general_dilated)': (1, 2 * 13 * 3 * 2),
  }


def test_dearest_first_and_all_together():
  kinds = _measure(
    lambda x, y: (x @ x, y @ y), jnp.ones((3, 3)), jnp.ones((701, 701))
  )
  assert [kind.name[:8] for kind in kinds] == ['[701, 70', '[3, 3] b']
  assert step_products.seconds(
    [
      kind._replace(times=times)
      for kind, times in zip(kinds, (3, 5), strict=True)
    ]
  ) == pytest.approx(3 * kinds[0].seconds + 5 * kinds[1].seconds)


def test_training_shows_its_limit(capsys):
  args = [
    *('benchmark', f'--config={CONFIGS / "benchmark.py"}:char', '--steps=1'),
    *('--config.model.num_layers=2', '--config.model.d_model=24'),
    *('--config.model.num_heads=2', '--config.batch.size=3', '--json'),
  ]
  main(args)
  result = json.loads(capsys.readouterr().out)
  flops = sum(kind['times'] * kind['flops'] for kind in result['products'])
  rate = flops / result['step_seconds'] / result['peak_flops']
  assert result['mfu_compiler'] == pytest.approx(rate)
  # What the products alone reach, in the same time.
  faster = result['step_seconds'] / result['products_seconds']
  limit = result['products_mfu_compiler']
  assert limit == pytest.approx(faster * result['mfu_compiler'])
