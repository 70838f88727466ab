# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles splash attention for a TPU slice that is not here, with libtpu.

  python tests/compile_for_tpu.py v5e:2x4

Prints a JSON object a line: what, how many Pallas kernels are in the compiled
program, and seconds. Compile-only devices hold no arrays, so that nothing is
run. A process of its own, since libtpu reads its settings once.
"""

import json
import os
import pathlib
import sys
import time

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

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import tiny  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from gpt_jax import config as config_lib  # noqa: E402
from gpt_jax import run as run_lib  # noqa: E402
from gpt_jax import sharding, spec  # noqa: E402
from gpt_jax import state as state_lib  # noqa: E402
from gpt_jax.nn.backends import BACKENDS, attend_rows  # noqa: E402
from gpt_jax.nn.dot_product import Visibility  # noqa: E402
from gpt_jax.nn.masks import PATTERNS  # noqa: E402

# A slice smaller than a cube has no links around its ends.
OPEN = (False, False, False)
CHIPS = {'v4': 'megacore', 'v5e': 'default'}

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
  'batch.rows': B,
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


def make_mesh(topology):
  """Rows over half of the devices, heads over two."""
  slice_ = topologies.get_topology_desc(
    platform='tpu',
    topology_name=topology,
    chip_config_name=CHIPS[topology.partition(':')[0]],
    chips_per_host_bounds=(2, 2, 1),
    num_slices=1,
    wrap=OPEN,
  )
  devices = np.array(slice_.devices).reshape(1, -1, 2)
  return Mesh(devices, sharding.AXES)


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
    y = attend_rows(
      q,
      k,
      v,
      backend=spec.build('model.attention_backend', backend, BACKENDS),
      pattern=spec.build('model.attention', pattern, PATTERNS),
      visibility=Visibility(segments_BL=segments),
      scale=K**-0.5,
    )
    return jnp.sum(y.astype(jnp.float32))

  key = array(jnp.bfloat16, B, L, G, K)
  args = array(jnp.bfloat16, B, L, H, K), key, key, array(jnp.int32, B, L)
  with sharding.use(mesh, rules):
    start = time.perf_counter()
    step = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    compiled = step.lower(*args).compile()
  report(f'{pattern}, {backend}', compiled, time.perf_counter() - start)


def compile_train_step(mesh):
  """As `gpt-jax train` compiles it; `auto` has to find the kernels itself."""
  run = run_lib.build(config_lib.resolve(tiny.config(**CONFIG)))
  run = run._replace(
    mesh=mesh,
    shardings=state_lib.state_shardings(
      run.objective, run.optimizer, mesh, run.rules
    ),
    batch_sharding=sharding.batch_sharding(mesh, run.rules),
  )
  step = run_lib.compile_train_step(run)
  report('train step', step.call, step.seconds)


def main(topology):
  mesh = make_mesh(topology)
  rules = sharding.parse_rules(tiny.config().mesh.rules)
  for pattern, backend in ATTENTION:
    compile_attention(mesh, rules, pattern, backend)
  compile_train_step(mesh)


if __name__ == '__main__':
  main(sys.argv[1])
