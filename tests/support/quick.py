# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How the tests compile: quickly, for programs that run but once."""

import importlib.metadata
import tempfile

# The user's cache folder, for the process and those that it starts.
CACHE = tempfile.TemporaryDirectory()


def xla_flags(devices: int) -> str:
  """The variable XLA_FLAGS of a process with so many virtual CPU devices.

  Compiling takes most of the tests' time: a third of it without LLVM's
  optimisations and XLA's newer code generator, and a good third less again
  where LLVM is given one module instead of one for each thread.
  """
  flags = (
    f'--xla_force_host_platform_device_count={devices} '
    '--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1'
  )
  # Later versions have no other code generator, and abort at a flag for it.
  is_old = importlib.metadata.version('jaxlib').startswith('0.10.')
  return flags + ' --xla_cpu_use_fusion_emitters=false' * is_old
