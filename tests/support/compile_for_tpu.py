# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles splash attention for a TPU slice that is not here, with libtpu.

  python tests/support/compile_for_tpu.py v5e:2x4

Prints a JSON object a line: what, how many Pallas kernels are in the compiled
program, and seconds. Compile-only devices hold no arrays, so that nothing is
run. A process of its own, since libtpu reads its settings once.
"""

import json
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support import tpu_topology  # noqa: E402, isort: skip  (before jax)
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from gpt_jax import sharding, spec  # noqa: E402
from gpt_jax.nn.attend import Request, Visibility  # noqa: E402
from gpt_jax.nn.backends import BACKENDS, attend_rows  # noqa: E402
from gpt_jax.nn.masks import PATTERNS  # noqa: E402
from tests.support import tiny  # noqa: E402

B, L, H, G, K = 16, 256, 8, 2, 64
CONFIG = {
  'model.vocab_size': 512,
  'model.context_length': L,
  'model.num_layers': 4,
  'model.d_model': 256,
  'model.num_heads': H,
  'model.num_kv_heads': G,
  'model.head_size': K,
  'model.d_ff': 512,
  'model.position': 'rope',
  'model.attention': 'full, local(window=96)',
  'model.attention_backend': 'auto',
  'model.dtype': 'bfloat16',
  'model.remat': 'full',
  'batch.size': B,
  'batch.micro_rows': B // 2,
}
# Of the attention: pattern, and arguments of the backend. Blocks of 128 make
# several of a row; rows longer than `fused_until` have two backward kernels.
ATTENTION = [
  ('full', 'splash'),
  ('full', 'splash(block=128, fused_until=128)'),
  ('local(window=96)', 'splash(block=128)'),
  ('bidirectional', 'splash(block=128)'),
]


def report(what, compiled, seconds):
  kernels = compiled.as_text().count('custom_call_target="tpu_custom_call"')
  print(json.dumps({'what': what, 'kernels': kernels, 'seconds': seconds}))


def compile_attention(mesh, rules, pattern, backend):
  """Forward and backward, of packed rows."""
  batch = dict(rules)['batch']

  def array(dtype, *shape):
    axes = (batch, None, 'tensor', None)[: len(shape)]
    placed = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=placed)

  def total(q, k, v, segments):
    request = Request(
      q,
      k,
      v,
      pattern=spec.build('model.attention', pattern, PATTERNS),
      visibility=Visibility(segments_BL=segments),
      scale=K**-0.5,
    )
    chosen = spec.build('model.attention_backend', backend, BACKENDS)
    y = attend_rows(request, backend=chosen)
    return jnp.sum(y.astype(jnp.float32))

  key = array(jnp.bfloat16, B, L, G, K)
  args = array(jnp.bfloat16, B, L, H, K), key, key, array(jnp.int32, B, L)
  with sharding.use(mesh, rules):
    start = time.perf_counter()
    step = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    compiled = step.lower(*args).compile()
  report(f'{pattern}, {backend}', compiled, time.perf_counter() - start)


def main(topology):
  # Rows over half of the devices, heads over two.
  mesh = tpu_topology.make_mesh(topology, fsdp=-1, tensor=2)
  rules = sharding.parse_rules(tiny.config().mesh.rules)
  for pattern, backend in ATTENTION:
    compile_attention(mesh, rules, pattern, backend)
  # `auto` has to find the kernels itself.
  step = tpu_topology.compile_train_step(mesh, **CONFIG)
  report('train step', step.call, step.seconds)


if __name__ == '__main__':
  main(sys.argv[1])
