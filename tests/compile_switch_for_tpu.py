# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles a model with experts for a TPU slice that is not here.

  python tests/compile_switch_for_tpu.py v5e:2x4

Prints a JSON object a line: what, how many Pallas kernels and all-to-all are in
the compiled train step, and seconds. A process of its own, since libtpu reads
its settings once.
"""

import json
import os
import pathlib
import sys

os.environ |= {
  'JAX_PLATFORMS': 'cpu',
  # Do not look for a TPU, and let several processes compile at once.
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_ACCELERATOR_TYPE': 'v4-8',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import numpy as np  # noqa: E402
import tiny  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh  # noqa: E402

from gpt_jax import config as config_lib  # noqa: E402
from gpt_jax import run as run_lib  # noqa: E402
from gpt_jax import sharding  # noqa: E402
from gpt_jax import state as state_lib  # noqa: E402

CHIPS = {'v4': 'megacore', 'v5e': 'default'}
B, L = 16, 128
CONFIG = {
  'model.vocab_size': 512,
  'model.context_length': L,
  'model.num_layers': 2,
  'model.d_model': 384,
  'model.num_heads': 4,
  'model.num_kv_heads': 4,
  'model.head_size': 64,
  'model.d_ff': 640,
  'model.attention_backend': 'reference',
  'model.dtype': 'bfloat16',
  'batch.rows': B,
  'batch.micro_rows': B,
}
# The second of two layers.
FFNS = {
  'capacity': "gelu, switch(num_experts=8, expert='swiglu')",
  'dropless': "gelu, switch(num_experts=8, capacity_factor='none', top_k=2)",
}


def make_mesh(topology):
  """Experts over half of the devices, their width over two."""
  slice_ = topologies.get_topology_desc(
    platform='tpu',
    topology_name=topology,
    chip_config_name=CHIPS[topology.partition(':')[0]],
    chips_per_host_bounds=(2, 2, 1),
    num_slices=1,
    wrap=(False, False, False),
  )
  sizes = {'data': 1, 'fsdp': 1, 'expert': -1, 'tensor': 2}
  devices = np.array(slice_.devices)
  return Mesh(devices.reshape([sizes[a] for a in sharding.AXES]), sharding.AXES)


def compile_train_step(mesh, **changes):
  """As `gpt-jax train` compiles it."""
  run = run_lib.build(config_lib.resolve(tiny.config(**CONFIG, **changes)))
  run = run._replace(
    mesh=mesh,
    shardings=state_lib.state_shardings(
      run.objective, run.optimizer, mesh, run.rules
    ),
    batch_sharding=sharding.batch_sharding(mesh, run.rules),
  )
  return run_lib.compile_train_step(run)


def main(topology):
  mesh = make_mesh(topology)
  for what, ffn in FFNS.items():
    step = compile_train_step(mesh, **{'model.ffn': ffn})
    text = step.call.as_text()
    counts = {
      'kernels': text.count('custom_call_target="tpu_custom_call"'),
      'exchanges': text.count(' all-to-all('),
    }
    line = {'what': what, **counts, 'seconds': step.seconds}
    print(json.dumps(line), flush=True)


if __name__ == '__main__':
  main(sys.argv[1])
