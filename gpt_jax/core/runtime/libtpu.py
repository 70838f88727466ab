# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""libtpu's settings on machines without TPUs, where it only compiles.

JAX loads libtpu wherever it is installed, as it is with the extra `plan`.
Without a TPU it then looks for one, and writes several lines about not finding
it to stderr, with a trace, in each process.
"""

import glob
import os

# It reads these once, when it is loaded.
SETTINGS = {
  # Do not look for a TPU.
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  # Appears in the log only.
  'TPU_ACCELERATOR_TYPE': 'v4-8',
}


def silence() -> None:
  """Keeps libtpu quiet where no TPU is, in this process and its children.

  Call it before JAX is imported. What the user has set stays.
  """
  if not any(map(glob.glob, ('/dev/accel*', '/dev/vfio/[0-9]*'))):
    for name, value in SETTINGS.items():
      os.environ.setdefault(name, value)
