# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles a small PaLM for a cube of 64 TPU v4 that are not here.

  python tests/support/compile_layout_for_tpu.py

Prints one JSON object: what the compiled train step sends, and how often. A
process of its own, since libtpu reads its settings once.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support import tpu_topology  # noqa: E402, isort: skip  (before jax)
from gpt_jax.costs import flops  # noqa: E402
from gpt_jax.nn.transformer import parameter_shapes  # noqa: E402
from gpt_jax.objectives import cross_entropy  # noqa: E402
from gpt_jax.planning import collectives, hlo, op_costs  # noqa: E402
from tests.support import tiny  # noqa: E402

LAYERS, ROWS, LENGTH, WIDTH, VOCAB = 3, 64, 128, 1024, 4098
CONFIG = {
  'model.vocab_size': VOCAB,  # does not divide over 4 devices
  'model.context_length': LENGTH,
  'model.num_layers': LAYERS,
  'model.d_model': WIDTH,
  'model.num_heads': 8,
  'model.num_kv_heads': 1,
  'model.head_size': 128,
  'model.d_ff': 4 * WIDTH,
  'model.ffn': 'swiglu',
  'model.block': 'parallel',
  'model.position': 'rope',
  'model.output': "tied(scale='rsqrt')",
  'model.bias': 'none',
  'model.norm': 'layernorm(scale=False, bias=False)',
  'model.attention_backend': 'reference',
  'model.dtype': 'bfloat16',
  'model.remat': 'full',
  'batch.size': ROWS,
  'batch.micro_rows': ROWS,
}


def main():
  # So small that the logits take more chunks than there are layers.
  cross_entropy.CHUNK_LOGITS = 1 << 16
  mesh = tpu_topology.make_mesh('v4:4x4x4', fsdp=16, tensor=4)
  compiled = tpu_topology.compile_train_step(mesh, **CONFIG).call
  text = compiled.as_text()
  program = hlo.parse(text)
  sent = collectives.read(program, mesh)
  counted = op_costs.count(program)
  fields = {k.removeprefix('model.'): v for k, v in CONFIG.items()}
  model = tiny.model(**{k: v for k, v in fields.items() if k in tiny.MODEL})
  names = list(flops.parameter_table(parameter_shapes(model)))
  gathers = {}
  for x in sent:
    if x.kind == 'all-gather' and x.axes == ('fsdp',):
      name = collectives.parameter_of(x.path, names) or x.path
      gathers[name] = gathers.get(name, 0) + x.trips
  json.dump(
    {
      'calls': counted.calls,
      'unknown': [*counted.unknown],
      'gradients': {
        name: x.kind for name, x in collectives.gradients(sent, names)
      },
      'gathers': gathers,
      'float32': [
        x.path for x in collectives.float32_gathers(sent, least=1 << 20)
      ],
      'most_trips': max(x.trips for x in sent if x.axes == ('fsdp',)),
      # What rematerialisation keeps of the layers: whole, or split.
      'whole': f'bf16[{LAYERS},{ROWS // 16},{LENGTH},{WIDTH}]' in text,
      'split': f'bf16[{LAYERS},{ROWS // 16},{LENGTH},{WIDTH // 4}]' in text,
    },
    sys.stdout,
  )


if __name__ == '__main__':
  main()
