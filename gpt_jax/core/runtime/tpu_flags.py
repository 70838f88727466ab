# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""XLA's flags for asynchronous collectives, for each generation of TPUs.

The flags are those of MaxText's public scripts, so that communication and
computation overlap. On v5e, gathers are fused with neighbouring matrix products
too. On other chips libtpu 0.0.50 refuses this as "not supported/recommended on
platforms other than TPU v5e": it may lead to "incorrect results, hang, SDC",
which is silent data corruption. 0.0.42.1 does it without a word, so the flag is
off there.

  python3 gpt_jax/core/runtime/tpu_flags.py v5e

prints the value that launch/ gives LIBTPU_INIT_ARGS. It needs only Python: the
launching machine may have nothing else.
"""

import sys

_FUSED = {
  'xla_tpu_enable_async_collective_fusion': 'true',
  'xla_tpu_enable_async_collective_fusion_fuse_all_gather': 'true',
  'xla_tpu_enable_async_collective_fusion_multiple_steps': 'true',
}
_NOT_FUSED = {'xla_tpu_enable_async_collective_fusion': 'false'}
_ASYNCHRONOUS = {
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
  'v4': _NOT_FUSED | _ASYNCHRONOUS | _DATA_PARALLEL | _MEGACORE,
  'v5e': _FUSED | _ASYNCHRONOUS | _DATA_PARALLEL,
  'v5p': _NOT_FUSED | _ASYNCHRONOUS | _DATA_PARALLEL | _MEGACORE,
  'v6e': _NOT_FUSED | _ASYNCHRONOUS | _DATA_PARALLEL,
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
