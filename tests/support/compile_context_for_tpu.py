# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles a small LLaMA with split rows for a TPU slice that is not here.

  python tests/support/compile_context_for_tpu.py v5e:2x4 ring 4

The second argument is `model.attention_backend`, the third how many chips have
512 tokens of each row. Prints one JSON object: what the compiled train step
sends over `context`, by kind, in attention, how many of those transfers are
synchronous, and how many Pallas kernels it has. A process of its own, since
libtpu reads its settings once.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support import tpu_topology  # noqa: E402, isort: skip  (before jax)
from gpt_jax.planning import collectives, hlo  # noqa: E402

CONFIG = {
  'model.vocab_size': 512,
  'model.num_layers': 2,
  'model.d_model': 256,
  'model.num_heads': 4,
  'model.num_kv_heads': 2,
  'model.head_size': 128,
  'model.d_ff': 512,
  'model.position': 'rope',
  'model.bias': 'none',
  'model.dtype': 'bfloat16',
}


def main():
  topology, backend, context = sys.argv[1:]
  mesh = tpu_topology.make_mesh(topology, data=-1, context=int(context))
  rows = mesh.shape['data']
  fields = {
    **CONFIG,
    'model.attention_backend': backend,
    'model.context_length': 512 * int(context),
    'batch.size': rows,
    'batch.micro_rows': rows,
  }
  compiled = tpu_topology.compile_train_step(mesh, **fields).call
  text = compiled.as_text()
  sent = collectives.read(hlo.parse(text), mesh)
  kernels = text.count('custom_call_target="tpu_custom_call"')
  found: dict[str, float] = {'kernels': kernels, 'synchronous': 0}
  for x in sent:
    if x.axes == ('context',) and 'shard_map' in x.path:
      found['synchronous'] += x.blocking
      way = 'back' if x.backward else 'forward'
      name = f'{way} {x.kind} {x.dtype}'
      found[name] = found.get(name, 0) + x.bytes
  json.dump(found, sys.stdout)


if __name__ == '__main__':
  main()
