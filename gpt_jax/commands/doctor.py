# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks the installation: versions, devices, a training step, a checkpoint.

  gpt-jax doctor
  gpt-jax doctor --distributed   # on each of several hosts, at the same time

Prints a line for each check, with the remedy if it fails. The exit code is 1 if
any check fails. What is open to other users of this machine is reported, but is
not a failure. The rates of matrix products and of the network are rough: they
only tell a broken chip or link from a sound one.
"""

import functools
import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from rich.text import Text

from gpt_jax.core import malloc, ranges
from gpt_jax.core.runtime import tables
from gpt_jax.core.runtime.tables import TextTable
from gpt_jax.core.spec import install
from gpt_jax.flags import Flags


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.distributed()
  flags.number('join_seconds', 300.0, 'How long to wait for the other hosts.', ranges.Seconds)


def main(args: Any) -> None:
  """Runs the command.

  Raises:
    RuntimeError: a check failed.
  """
  from gpt_jax.core.runtime import hosts, programs

  programs.keep()
  if args.distributed:
    hosts.initialize(join_seconds=args.join_seconds, heartbeat_seconds=100)
  with hosts.together():
    check()


def check() -> None:
  """Runs all checks, and prints a table of them.

  Raises:
    RuntimeError: a check failed.
  """
  table = TextTable('check', 'result', 'found', title='gpt-jax doctor')
  failed = []
  for name, function in CHECKS.items():
    try:
      found, result = function(), Text('ok', 'green')
      if function is _security and found:
        result = Text('open', 'yellow')
    except Exception as e:
      found, result = f'{type(e).__name__}: {e}', Text('failed', 'red')
      failed.append(name)
    table.add_row(name, result, found)
  tables.console().print(table)
  if failed:
    raise RuntimeError('failed: ' + ', '.join(failed))


def _packages() -> str:
  """Compares installed versions with those in pyproject.toml."""
  wrong, seen = [], []
  for requirement in importlib.metadata.requires('gpt_jax') or []:
    if 'extra ==' in requirement:
      continue
    name, _, pin = requirement.partition('==')
    name = re.split(r'[\[<>=!~; ]', name)[0]
    try:
      version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      wrong.append(f'{name} is missing')
      continue
    seen.append(f'{name} {version}')
    if pin and version != pin:
      wrong.append(f'{name} is {version}, not {pin}')
  if wrong:
    raise RuntimeError(f'{"; ".join(wrong)}; run {install()}')
  return ', '.join(seen)


def _devices() -> str:
  import jax

  devices = jax.devices()
  kinds = sorted({d.device_kind for d in devices})
  return (
    f'{len(devices)} x {", ".join(kinds)} ({jax.default_backend()}), '
    f'{jax.process_count()} process(es), {os.cpu_count()} cores here'
  )


def _accelerators(name: str) -> Callable[[], str]:
  """A check of `runtime.accelerators`, which it imports when it runs."""

  def check() -> str:
    from gpt_jax.core.runtime import accelerators

    return getattr(accelerators, name)()

  return check


def _matmul() -> str:
  """Detects an accelerator that computes wrongly or slowly."""
  import jax.numpy as jnp
  import numpy as np

  from gpt_jax.core.runtime import accelerators

  x = np.arange(12, dtype=np.float32).reshape(3, 4)
  np.testing.assert_allclose(jnp.dot(x, x.T), x @ x.T, rtol=1e-2)
  return accelerators.matmul()


def _disk() -> str:
  free = shutil.disk_usage('.').free
  if free < 2 << 30:
    raise RuntimeError(f'{free >> 20} MiB free here; make room for checkpoints')
  return f'{free / 2**30:.0f} GiB free here'


def _security() -> str:
  """Advice of docs/security.md that this machine does not follow, or ''."""
  from gpt_jax.core.runtime import accelerators

  return '; '.join(accelerators.lacks(key=bool(os.environ.get('GPT_JAX_API_KEY'))))


def _training_step() -> str:
  """Trains a tiny model for a step; saves and restores its state."""
  import jax
  import jax.numpy as jnp
  import numpy as np

  if jax.process_count() > 1:
    return 'left out on several hosts; `gpt-jax train` comes next'

  from gpt_jax.core.checkpoints.checkpointer import Checkpointer
  from gpt_jax.core.config import defaults
  from gpt_jax.core.nn.transformer import make_model
  from gpt_jax.core.objectives.causal import Causal, make_batch
  from gpt_jax.core.optim.optimizer import OPTIMIZERS
  from gpt_jax.core.rows import rows
  from gpt_jax.core.training.parts import make_init
  from gpt_jax.core.training.step import train_step

  tree: Any = defaults.get_config()
  model = make_model(**{**tree.model, **TINY})
  objective, optimizer = Causal().bind(model), OPTIMIZERS['adamw']()(None)
  state = jax.jit(make_init(objective, optimizer))(jax.random.key(0))
  state, metrics = jax.jit(
    functools.partial(
      train_step,
      objective=objective,
      optimizer=optimizer,
      schedule=lambda step: jnp.float32(1e-3),
      seed=0,
      clip_norm=1.0,
      num_micro=1,
    )
  )(state, make_batch(rows.cut(np.arange(12).reshape(2, 6))))
  # A new model is nearly uniform over its vocabulary.
  expected = np.log(TINY['vocab_size'])
  if abs(metrics['loss'] - expected) > 0.1:
    raise RuntimeError(f'loss {metrics["loss"]}, expected about {expected}')
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
  )
  with tempfile.TemporaryDirectory() as workdir:
    saver = Checkpointer(workdir)
    saver.save(state)
    saver.close()
    loader = Checkpointer(workdir, read_only=True)
    restored = loader.restore(shapes)
    loader.close()
  same = jax.tree.map(lambda a, b: bool((a == b).all()), state, restored)
  if not all(jax.tree.leaves(same)):
    raise RuntimeError('a checkpoint gave back other values than it was given')
  return f'loss {metrics["loss"]:.3f}; its checkpoint reads back the same'


# What differs from the tree of defaults.
TINY = {
  'vocab_size': 13,
  'context_length': 5,
  'num_layers': 2,
  'd_model': 8,
  'num_heads': 2,
  'num_kv_heads': 2,
  'head_size': 4,
  'd_ff': 16,
  'dtype': 'float32',
}

CHECKS: dict[str, Callable[[], str]] = {
  'Python': platform.python_version,
  'packages': _packages,
  'devices': _devices,
  'libtpu': _accelerators('libtpu'),
  'hosts': _accelerators('hosts'),
  'topology': _accelerators('topology'),
  'memory': _accelerators('memory'),
  'allocator': malloc.described,
  'matrix product': _matmul,
  'interconnect': _accelerators('interconnect'),
  'disk': _disk,
  'security': _security,
  'training step': _training_step,
}
