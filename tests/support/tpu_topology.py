# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""TPU slices that are not here, to compile for with libtpu.

Import it before jax: libtpu reads its settings once. Compile-only devices hold
no arrays, so that nothing is run.
"""

import os

os.environ |= {
  'JAX_PLATFORMS': 'cpu',
  # Do not look for a TPU, and let several processes compile at once.
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_ACCELERATOR_TYPE': 'v4-8',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}

import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from gpt_jax import config as config_lib
from gpt_jax import sharding
from gpt_jax.training import compiled as compiled_lib
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import parts as state_lib
from tests.support import tiny

CHIPS = {'v4': 'megacore', 'v5e': 'default', 'v5p': 'megacore'}


def make_mesh(topology, **sizes):
  """Of such a slice, e.g. `v5e:2x4`; axes that are not given have size 1.

  One may be -1: the rest.
  """
  dims = [int(n) for n in topology.partition(':')[2].split('x')]
  # Only cubes of four have links around their ends.
  closed = len(dims) == 3 and all(n % 4 == 0 for n in dims)
  slice_ = topologies.get_topology_desc(
    platform='tpu',
    topology_name=topology,
    chip_config_name=CHIPS[topology.partition(':')[0]],
    chips_per_host_bounds=(2, 2, 1),
    num_slices=1,
    wrap=(closed, closed, closed),
  )
  shape = [sizes.get(axis, 1) for axis in sharding.AXES]
  return Mesh(np.array(slice_.devices).reshape(shape), sharding.AXES)


def compile_train_step(mesh, **changes):
  """As `gpt-jax train` compiles it."""
  run = parts_lib.build(config_lib.resolve(tiny.config(**changes)))
  run = run._replace(
    mesh=mesh,
    shardings=state_lib.state_shardings(
      run.objective,
      run.optimizer,
      mesh,
      run.rules,
      on_host=run.config.optim.state == 'host',
    ),
    batch_sharding=sharding.batch_sharding(mesh, run.rules),
  )
  return compiled_lib.compile_train_step(run)
