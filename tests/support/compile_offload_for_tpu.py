# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles a step that keeps this here or there, for TPUs.

  python tests/support/compile_offload_for_tpu.py

Prints a JSON object: for values of `model.remat` and `optim.state` the bytes
that a device allocates in its own memory and in the host's, and those of what
the step is given. A process of its own, since libtpu reads its settings once.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support import tpu_topology  # noqa: E402, isort: skip  (before jax)

# Too much for the memory beside the matrix units, where small arrays stay.
CONFIG = {
  'model.vocab_size': 512,
  'model.context_length': 512,
  'model.num_layers': 7,
  'model.d_model': 512,
  'model.num_heads': 8,
  'model.num_kv_heads': 8,
  'model.head_size': 64,
  'model.d_ff': 2048,
  'model.dtype': 'bfloat16',
  'batch.size': 32,
  'batch.micro_rows': 0,
}


def main():
  found = {}
  mesh = tpu_topology.make_mesh('v5e:2x2', fsdp=4)
  for name, field in (
    ('dots', {'model.remat': 'dots'}),
    ('offload', {'model.remat': 'offload'}),
    ('state', {'model.remat': 'dots', 'optim.state': 'host'}),
  ):
    fields = {**CONFIG, **field}
    step = tpu_topology.compile_train_step(mesh, **fields).call
    memory = step.memory_analysis()
    found[name] = {
      'device': memory.temp_size_in_bytes,
      'host': memory.host_temp_size_in_bytes,
      'given': memory.argument_size_in_bytes,
      'given_host': memory.host_argument_size_in_bytes,
    }
  json.dump(found, sys.stdout)


if __name__ == '__main__':
  main()
