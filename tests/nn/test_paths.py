# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which parameters patterns of their paths name."""

import numpy as np
import pytest

from gpt_jax.nn import params as params_lib
from gpt_jax.spec import UsageError

KERNEL = np.zeros((3, 5, 7))
PARAMS = {
  'embed': {'embedding': np.zeros((11, 5))},
  'encoder': {'periods': {'block_0': {'in': {'kernel': KERNEL}}}},
  'scale': np.zeros(()),
}


def test_entries_of_a_stack_are_named_one_by_one():
  masks = params_lib.matching(PARAMS, 'encoder/periods/1/*, scale')
  found = masks['encoder']['periods']['block_0']['in']['kernel']
  np.testing.assert_array_equal(found[:, 0, 0], [False, True, False])
  assert found.shape == (3, 1, 1)
  assert not masks['embed']['embedding'].any() and masks['scale'].all()


@pytest.mark.parametrize(
  'patterns', ['enc*', 'encoder/periods/block_0/in/kernel', '*/kernel']
)
def test_a_whole_stack_is_named_as_inspect_does(patterns):
  masks = params_lib.matching(PARAMS, patterns)
  assert masks['encoder']['periods']['block_0']['in']['kernel'].all()
  assert not masks['embed']['embedding'].any()
  assert not params_lib.matching(PARAMS, '')['scale'].any()


def test_a_name_that_nothing_has_is_refused():
  params_lib.check(PARAMS, 'embed/*, encoder/periods/2/*', 'optim.trained')
  with pytest.raises(UsageError, match='encoder/periods/3'):
    params_lib.check(PARAMS, 'embed/*, encoder/periods/3/*', 'optim.trained')
