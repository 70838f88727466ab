# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""XLA's flags for asynchronous collectives, for each generation of TPUs.

The flags are those of MaxText's public scripts: gathers and other collectives
are fused with neighbouring matrix products, so that communication and
computation overlap. The compiler of libtpu 0.0.42.1 knows them all.

  python3 gpt_jax/runtime/tpu_flags.py v5e

prints the value that launch/ gives LIBTPU_INIT_ARGS. It needs only Python: the
launching machine may have nothing else.
"""

import sys

_ASYNCHRONOUS = {
  'xla_tpu_enable_async_collective_fusion': 'true',
  'xla_tpu_enable_async_collective_fusion_fuse_all_gather': 'true',
  'xla_tpu_enable_async_collective_fusion_multiple_steps': 'true',
  'xla_tpu_overlap_compute_collective_tc': 'true',
  'xla_enable_async_all_gather': 'true',
}
_DATA_PARALLEL = {
  'xla_tpu_enable_data_parallel_all_reduce_opt': 'true',
  'xla_tpu_data_parallel_opt_different_sized_ops': 'true',
}
# Two cores a chip.
_MEGACORE = {
  'xla_tpu_megacore_fusion_allow_ags': 'false',
  'xla_enable_async_collective_permute': 'true',
  'xla_tpu_enable_ag_backward_pipelining': 'true',
}
FLAGS = {
  'v4': _ASYNCHRONOUS | _DATA_PARALLEL | _MEGACORE,
  'v5e': _ASYNCHRONOUS | _DATA_PARALLEL,
  'v5p': _ASYNCHRONOUS | _DATA_PARALLEL | _MEGACORE,
  'v6e': _ASYNCHRONOUS | _DATA_PARALLEL,
  'tpu7x': {},
}


def init_args(generation: str) -> str:
  """The value of LIBTPU_INIT_ARGS.

  Args:
    generation: a key of `FLAGS`.
  """
  flags = FLAGS[generation].items()
  return ' '.join(f'--{name}={value}' for name, value in flags)


if __name__ == '__main__':
  print(init_args(sys.argv[1]))
