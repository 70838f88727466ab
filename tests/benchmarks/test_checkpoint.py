# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`benchmark --what checkpoint`: the saves into the hosts' memory."""

import jax

from gpt_jax.benchmarks import checkpoint
from gpt_jax.resilience.local import LocalCheckpoints
from tests.core.checkpoints.test_checkpointer import HERE, place, state_at


def test_local_saves_are_timed_and_leave_nothing(tmp_path):
  (tmp_path / 'memory').mkdir()
  local = LocalCheckpoints(str(tmp_path / 'w'), str(tmp_path / 'memory'))
  state = place(state_at(3), *HERE)
  after, found = checkpoint.local_saves(
    lambda state, batch: (state._replace(step=state.step + 1), batch), state, {}, local
  )
  assert int(after.step) == 3 + 7 * 2 + 3
  assert not [*(tmp_path / 'memory').iterdir()]
  size = sum(x.nbytes for x in jax.tree.leaves(state))
  # One save is kept, and has a list of its arrays.
  assert size < found['gib_of_a_process'] * 2**30 < size + 5000
  assert found['blocked_seconds'] > 0
  result = {
    'parameters': 1234,
    'state_gib': 0.5,
    'processes': 4,
    'local': dict.fromkeys(found, 2.0) | {'blocked_seconds': 0.5},
  }
  assert '0.500 s of the training thread, 25% of a step' in checkpoint.report(result)
  assert checkpoint.report(result).endswith('4 processes, 2.00 GiB each')
