# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What JAX keeps private is as we use it, and used in one file alone.

Beside it: `test_programs` (the cache) and `test_hosts` (several processes).
"""

import pathlib
import re

import gpt_jax
from gpt_jax.core.runtime import jax_internals


def test_nothing_else_imports_what_is_private():
  package = pathlib.Path(gpt_jax.__file__).parent
  private = re.compile(r'^\s*(from|import) (jax|flax|optax)\b.*\b_', re.MULTILINE)
  files = [path for path in package.rglob('*.py') if private.search(path.read_text('utf-8'))]
  assert files == [pathlib.Path(jax_internals.__file__)]


def test_a_process_alone():
  assert (jax_internals.process_index(), jax_internals.num_processes()) == (0, 1)
  assert jax_internals.client() is None and jax_internals.coordinator() is None


def test_hosts_are_those_that_are_named(monkeypatch):
  for name in ('SLURM_JOB_ID', 'OMPI_MCA_orte_hnp_uri', 'TPU_WORKER_HOSTNAMES'):
    monkeypatch.delenv(name, raising=False)
  assert jax_internals.hosts('a:1', 3, 2, 5) == ('a:1', 3, 2)
  assert jax_internals.hosts(None, None, None, 5) == (None, None, None)
