# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Configs that do not fit the devices are refused before a run."""

import pytest

from gpt_jax import config as config_lib
from gpt_jax.spec import UsageError
from gpt_jax.training import device_check
from tests.support import tiny


def test_rows_and_groups_that_fit():
  # Rows that do not divide over the eight devices.
  for changes in (
    {'batch.size': 12},
    {'batch.size': 'ramp(0:3, 9_steps:12)', 'batch.micro_rows': 1},
  ):
    device_check.check_devices(config_lib.resolve(tiny.config(**changes)))
  # Groups of two rows: of 12 rows and 4 that fill up; not of 3 in all.
  ffn = 'switch(num_experts=2, group_size=26)'
  changes = {'model.ffn': ffn, 'batch.size': 12, 'mesh.tensor': 8}
  device_check.check_devices(config_lib.resolve(tiny.config(**changes)))
  changes = {**changes, 'batch.micro_rows': 3}
  with pytest.raises(UsageError, match='group_size=26 does not fit 3 rows'):
    device_check.check_devices(config_lib.resolve(tiny.config(**changes)))


# Of a causal model with rotated queries, and a kernel that serves it.
SERVED = {
  'attention_backend': 'splash(interpret=True)',
  'context_length': 128,
  'head_size': 64,
  'num_layers': 2,
  'position': 'rope',
}


@pytest.mark.parametrize(
  'changes, why',
  [
    ({}, None),
    ({'context_length': 130}, 'the length 130 is not a multiple of 128'),
    ({'head_size': 72}, 'model.head_size=72 is below 64 or no multiple of 32'),
    ({'position': 'alibi'}, 'model.position adds a bias'),
    ({'position': 'transformer_xl'}, 'model.position adds a bias'),
    ({'dropout': 'rates(attention=0.1)'}, 'model.dropout drops attention'),
    ({'dropout': 'rates(residual=0.1)'}, None),
    (
      {'attention': 'full, strided(stride=4)'},
      'holds strided, a rule on positions',
    ),
    ({'num_heads': 3, 'num_kv_heads': 3}, r'3 \(heads\) does not divide'),
    ({'attention_backend': 'splash'}, 'it needs a TPU'),
    ({'attention_backend': 'cudnn'}, 'it needs a GPU'),
    # These take the reference instead.
    ({'attention_backend': 'auto', 'position': 'alibi'}, None),
  ],
)
def test_what_the_attention_backend_serves(changes, why):
  fields = {f'model.{name}': x for name, x in {**SERVED, **changes}.items()}
  config = config_lib.resolve(tiny.config(**fields, **{'mesh.tensor': 2}))
  if why is None:
    device_check.check_devices(config)
    return
  with pytest.raises(UsageError, match=f'model.attention_backend=.*{why}'):
    device_check.check_devices(config)


# Rows of 16 tokens over all eight devices.
SPLIT = {
  **tiny.MESHABLE,
  'model.context_length': 16,
  'model.num_layers': 1,
  'model.position': 'rope',
  'batch.size': 2,
  'batch.micro_rows': 2,
  'schedule.name': 'constant(peak=1e-2)',
  'mesh.context': 8,
  'mesh.fsdp': 1,
}


@pytest.mark.parametrize(
  'changes, message',
  [
    (
      {**SPLIT, 'model.context_length': 24},
      'rows of 24 tokens do not divide by 16, tw',
    ),
    (
      {**SPLIT, 'model.position': 'transformer_xl'},
      "model.position='transformer_xl': scores by distances within whole rows, "
      'which mesh.context=8 splits',
    ),
    (
      {**SPLIT, 'model.attention': 'bigbird', 'objective.name': 'masked'},
      "model.attention='bigbird': the blocks of bigbird are those of whole row",
    ),
    (
      {**SPLIT, 'model.attention_backend': 'splash'},
      'model.attention_backend=splash: it needs a TPU',
    ),
    (
      {**SPLIT, 'model.attention_backend': 'ulysses', 'model.num_heads': 4},
      'ulysses: model.num_heads=4 does not divide over the 8 devices',
    ),
    (
      {'model.ffn': 'switch(num_experts=6)', 'mesh.expert': 4},
      "model.ffn='switch(num_experts=6)': 6 experts do not divide over the 4 "
      'devices of mesh axes expert; change num_experts or the mesh',
    ),
    (
      {
        'model.ffn': 'switch(num_experts=2, group_size=104)',
        'batch.micro_rows': 4,
        'mesh.tensor': 8,
      },
      'model.ffn: group_size=104 does not fit 4 rows of 13 tokens; it must '
      'divide a row or be a whole number of rows, and all groups must be full: '
      'give 0 for one group a row',
    ),
    (
      # Evaluation takes 8 rows, for each device has one.
      {
        'model.ffn': 'switch(num_experts=2, eval_capacity_factor=1, '
        'group_size=39)',
        'eval.rows': 6,
        'batch.size': 24,
      },
      'model.ffn: group_size=39 does not fit 8 rows of 13 tokens; it must '
      'divide a row or be a whole number of rows, and all groups must be full: '
      'give 0 for one group a row',
    ),
  ],
)
def test_refusals(changes, message):
  config = config_lib.resolve(tiny.config(**changes))
  with pytest.raises(UsageError) as error:
    device_check.check_devices(config)
  assert message in str(error.value)
