# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The server that most tests of this room ask."""

import pytest

from tests.support.served import Running, make_engine


@pytest.fixture(scope='module')
def api():
  """Without a key, on loopback alone."""
  running = Running(make_engine)
  yield running
  running.stop()
