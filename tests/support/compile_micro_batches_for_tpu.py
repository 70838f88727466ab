# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles a step in few and in many micro-batches for TPUs that are not here.

  python tests/support/compile_micro_batches_for_tpu.py

Prints a JSON object: for each mesh, and rows of a micro-batch on a device, the
bytes that a device sends over the axis `data` in a step. A process of its own,
since libtpu reads its settings once.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support import tpu_topology  # noqa: E402, isort: skip  (before jax)
from gpt_jax.planning import collectives, hlo  # noqa: E402

ROWS, LENGTH = 64, 128
CONFIG = {
  'model.vocab_size': 512,
  'model.context_length': LENGTH,
  'model.num_layers': 2,
  'model.d_model': 256,
  'model.num_heads': 4,
  'model.num_kv_heads': 4,
  'model.head_size': 64,
  'model.d_ff': 640,
  'model.dropout': 'rates(residual=0.1)',
  'model.dtype': 'bfloat16',
  'batch.size': ROWS,
}
MESHES = {'data8': {'data': 8}, 'data2_fsdp4': {'data': 2, 'fsdp': 4}}


def main():
  found = {}
  for name, sizes in MESHES.items():
    mesh = tpu_topology.make_mesh('v5e:2x4', **sizes)
    for micro_rows in (4, 1):
      fields = {**CONFIG, 'batch.micro_rows': micro_rows}
      step = tpu_topology.compile_train_step(mesh, **fields).call
      sent = collectives.read(hlo.parse(step.as_text()), mesh)
      over_data = [x for x in sent if 'data' in x.axes]
      found[f'{name}/{micro_rows}'] = {
        'bytes': sum(x.bytes for x in over_data),
        'most_trips': max(x.trips for x in over_data),
        'kernels': step.as_text().count('custom_call_target="tpu_custom_call"'),
      }
  json.dump(found, sys.stdout)


if __name__ == '__main__':
  main()
