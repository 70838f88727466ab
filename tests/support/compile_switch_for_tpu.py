# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles a model with experts for a TPU slice that is not here.

  python tests/support/compile_switch_for_tpu.py v5e:2x4

Prints a JSON object a line: what, how many Pallas kernels and all-to-all are in
the compiled train step, and seconds. A process of its own, since libtpu reads
its settings once.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support import tpu_topology  # noqa: E402

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
  'batch.size': B,
  'batch.micro_rows': B,
}
# The second of two layers.
FFNS = {
  'capacity': "gelu, switch(num_experts=8, expert='swiglu')",
  'dropless': "gelu, switch(num_experts=8, capacity_factor='none', top_k=2)",
}


def main(topology):
  # Experts over half of the devices, their width over two.
  mesh = tpu_topology.make_mesh(topology, expert=-1, tensor=2)
  for what, ffn in FFNS.items():
    step = tpu_topology.compile_train_step(mesh, **CONFIG, **{'model.ffn': ffn})
    text = step.call.as_text()
    counts = {
      'kernels': text.count('custom_call_target="tpu_custom_call"'),
      'exchanges': text.count(' all-to-all('),
    }
    line = {'what': what, **counts, 'seconds': step.seconds}
    print(json.dumps(line), flush=True)


if __name__ == '__main__':
  main(sys.argv[1])
