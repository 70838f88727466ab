# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which mesh axis splits which dimension: as JAX's shardings do."""

import math

import jax
import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.spec import UsageError
from gpt_jax.reports import layout
from tests.support import tiny


def test_a_device_holds_what_its_shard_holds(tmp_path):
  # Three key/value heads do not divide over two devices, and stay whole.
  config = config_lib.resolve(
    tiny.config(
      **{
        'model.num_layers': 2,
        'model.num_heads': 6,
        'model.num_kv_heads': 3,
        'model.d_model': 60,
        'model.d_ff': 62,
        'model.ffn': "gelu, switch(num_experts=2, expert='gelu')",
        'mesh.fsdp': 2,
        'mesh.expert': 2,
        'mesh.tensor': 2,
      }
    )
  )
  objective = config_lib.objective(config)
  sizes = tuple(config.mesh[axis] for axis in sharding.AXES)
  shardings = sharding.param_shardings(
    objective.shapes,
    jax.sharding.AbstractMesh(sizes, sharding.AXES),
    sharding.parse_rules(config.mesh.rules),
  )
  expected = [
    math.prod(split.shard_shape(leaf.value.shape))
    for split, leaf in zip(
      jax.tree.leaves(shardings),
      jax.tree.leaves(objective.shapes, is_leaf=lambda x: hasattr(x, 'names')),
      strict=True,
    )
  ]
  found = layout.splits(config)
  assert [split.held for split in found] == expected
  assert {a for x in found for _, _, by in x.dimensions for a in by} == {'fsdp', 'expert', 'tensor'}
  out = tmp_path / 'split.png'
  assert layout.sharding_chart(config, str(out)) == str(out)
  assert out.read_bytes().startswith(b'\x89PNG')


def test_an_open_axis_is_refused():
  config = config_lib.resolve(tiny.config(**{'mesh.fsdp': -1}))
  with pytest.raises(UsageError, match=r'mesh\.fsdp=-1: a picture'):
    layout.splits(config)
