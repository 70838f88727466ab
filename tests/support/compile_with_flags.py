# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles a program that gathers a weight, with the flags of each generation.

  python tests/support/compile_with_flags.py

Prints one JSON object: generation -> which of its flags, and of one that there
is not, the compiler refuses. A process of its own, since libtpu reads its
settings once.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.support import tpu_topology  # isort: skip  (before jax)
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gpt_jax.runtime.tpu_flags import FLAGS

SLICES = {'v4': '2x2x2', 'v5e': '2x2', 'v5p': '2x2x2', 'v6e': '2x2'}
NONE = 'xla_tpu_enable_what_there_is_not'
assert tpu_topology.CHIPS  # it has set the variables


def refused(chip, flags):
  slice_ = topologies.get_topology_desc(
    platform='tpu', topology_name=f'{chip}:{SLICES[chip]}'
  )
  mesh = Mesh(np.array(slice_.devices).reshape(-1), ('fsdp',))
  rows = NamedSharding(mesh, PartitionSpec('fsdp'))
  x = jax.ShapeDtypeStruct((8 * mesh.size, 512), jnp.bfloat16, sharding=rows)
  w = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=rows)
  lowered = jax.jit(jnp.matmul, out_shardings=rows).lower(x, w)
  found = []
  for name, value in flags.items():
    try:
      lowered.compile(compiler_options={name: value})
    except jax.errors.JaxRuntimeError:
      found.append(name)
  lowered.compile(
    compiler_options={k: v for k, v in flags.items() if k not in found}
  )
  return found


if __name__ == '__main__':
  print(json.dumps({c: refused(c, FLAGS[c] | {NONE: 'true'}) for c in SLICES}))
