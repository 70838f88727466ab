# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes a page about a run: curves, evaluations, a sample, data, config.

  gpt-jax report --workdir workdirs/smoke
  gpt-jax report --workdir W --out run.html

One HTML file, WORKDIR/report.html or --out, that any browser opens from the
disk; send it to someone, or keep it. It has the command, the size and the time
of the run; the losses, the learning rate and the speed as pictures; the last
evaluation of each held-out set and task; what the model wrote; where the time
went; resumes and spikes; the documents of the first and the last step; the
fields of the config, by who set them; and the machines.
"""

import os

from gpt_jax import cli
from gpt_jax.core.files import buckets
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.reports import report


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of a run.')
  flags.path('out', None, 'HTML file to write instead of WORKDIR/report.html.', written=True)


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  cli.check_out_file(args, 'out', ('.html',))
  out = args.out or os.path.join(args.workdir, 'report.html')
  buckets.write_atomically(out, report.page(args.workdir))
  print(buckets.shown(out))
