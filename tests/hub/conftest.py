# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A hub of this process, which the library is pointed at."""

import pytest

from tests.support import fake_hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  served = fake_hub.Hub()
  served.use(monkeypatch, tmp_path / 'home')
  yield served
  served.close()
