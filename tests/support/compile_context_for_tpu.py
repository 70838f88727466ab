# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles a small LLaMA with split rows for eight TPU v5e that are not here.

  python tests/support/compile_context_for_tpu.py ring

The argument is `model.attention_backend`. Prints one JSON object: what the
compiled train step sends over `context`, by kind, in attention, and how many
Pallas kernels it has. A process of its own, since libtpu reads its settings
once.
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
  'model.context_length': 2048,
  'model.num_layers': 2,
  'model.d_model': 256,
  'model.num_heads': 4,
  'model.num_kv_heads': 2,
  'model.head_size': 128,
  'model.d_ff': 512,
  'model.position': 'rope',
  'model.bias': 'none',
  'model.dtype': 'bfloat16',
  'batch.size': 2,
  'batch.micro_rows': 2,
}


def main():
  fields = {**CONFIG, 'model.attention_backend': sys.argv[1]}
  mesh = tpu_topology.make_mesh('v5e:2x4', data=2, context=4)
  compiled = tpu_topology.compile_train_step(mesh, **fields).call
  text = compiled.as_text()
  sent = collectives.read(hlo.parse(text), mesh)
  kernels = text.count('custom_call_target="tpu_custom_call"')
  found: dict[str, float] = {'kernels': kernels}
  for x in sent:
    if x.axes == ('context',) and 'shard_map' in x.path:
      way = 'back' if x.backward else 'forward'
      name = f'{way} {x.kind} {x.dtype}'
      found[name] = found.get(name, 0) + x.bytes
  json.dump(found, sys.stdout)


if __name__ == '__main__':
  main()
