# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Type, memory, topology and speed of the local accelerators.

Each function returns a line that `gpt-jax doctor` prints. The rates are smoke
tests: they tell a broken chip or link from a sound one, and are not benchmarks.
On several hosts every process must call the functions in the same order.
"""

import glob
import importlib.metadata
import os
import re
import stat
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gpt_jax.core.runtime import jax_internals, peaks, programs
from gpt_jax.core.runtime import memory as memory_lib
from gpt_jax.core.spec import install

_ROUNDS = 5


def libtpu() -> str:
  """Version of libtpu, and the backend in use.

  Raises:
    RuntimeError: there are TPUs, but JAX does not use them.
  """
  try:
    version = importlib.metadata.version('libtpu')
  except importlib.metadata.PackageNotFoundError:
    version = ''
  backend = jax.default_backend()
  if backend == 'tpu':
    runtime = ' '.join(jax.devices()[0].client.platform_version.split())
    return f'libtpu {version or "of the image"}; {runtime}'
  # Up to v4 and v5p they appear as accelN; later chips are bound to vfio.
  files = glob.glob('/dev/accel*') + glob.glob('/dev/vfio/*')
  if any(re.fullmatch(r'/dev/(accel|vfio/)\d+', name) for name in files):
    raise RuntimeError(
      f'/dev has TPUs, and JAX uses {backend}; run {install("tpu")}, and end what else uses them'
    )
  return f'{f"libtpu {version}, unused" if version else "none"} on {backend}'


def hosts() -> str:
  """Number of processes that have joined, and the index of this one."""
  return (
    f'process {jax.process_index()} of {jax.process_count()}, '
    f'{jax.local_device_count()} of {jax.device_count()} devices here'
  )


def topology() -> str:
  """The shape of a slice, from the coordinates of its chips."""
  devices = jax.devices()
  coords = [getattr(d, 'coords', None) for d in devices]
  if None in coords:
    return f'{len(devices)} devices without a network of their own'
  shape = 'x'.join(str(n) for n in np.ptp(np.array(coords), axis=0) + 1)
  slices = len({getattr(d, 'slice_index', 0) for d in devices})
  return f'{slices} slice(s) of {shape} chips, {len(devices)} devices'


def memory() -> str:
  """Memory per device that the runtime grants: the minimum over devices."""
  stats = [d.memory_stats() for d in jax.local_devices()]
  limits = [s['bytes_limit'] for s in stats if s and 'bytes_limit' in s]
  if not limits:
    whole, left = memory_lib.of_host(), memory_lib.left_on_host()
    return (
      f'{whole / 2**30:.1f} GiB of the host, shared by its devices; {left / 2**30:.1f} are free'
    )
  used = max(s.get('bytes_in_use', 0) for s in stats if s)
  return f'{min(limits) / 2**30:.2f} GiB a device, {used / 2**30:.2f} in use'


def matmul() -> str:
  """FLOP/s of matrix products on each local device in turn."""
  devices = jax.local_devices()
  cpu = devices[0].platform == 'cpu'
  size, repeats = (512, 4) if cpu else (4096, 16)
  dtype = jnp.float32 if cpu else jnp.bfloat16

  @jax.jit
  def products(x):
    # Each product depends on the one before; the factor keeps them finite.
    return jax.lax.fori_loop(0, repeats, lambda _, y: (y @ x) * np.array(1 / size, dtype), x)

  def timed(device) -> Callable[[], object]:
    x = jax.device_put(jnp.ones((size, size), dtype), device)
    return lambda: products(x)

  seconds = _medians([timed(d) for d in devices])
  rates = [repeats * 2 * size**3 / s for s in seconds]
  middle, least = statistics.median(rates), min(rates)
  share = ''
  if not cpu:
    peak, _ = peaks.of_device(devices[0])
    share = f', {middle / peak:.0%} of {peak / 1e12:,.0f}'
  return (
    f'smoke figure: {middle / 1e12:,.3g} TFLOP/s in {dtype.__name__}{share}; '
    f'the slowest of {len(devices)} devices here {least / 1e12:,.3g}'
  )


def interconnect() -> str:
  """Bytes per second between devices: all-gather, and ring permutation."""
  count = jax.device_count()
  if count == 1:
    return 'one device: nothing to measure'
  mesh = Mesh(mesh_utils.create_device_mesh((count,)), ('all',))
  spec = PartitionSpec('all')
  cpu = jax.default_backend() == 'cpu'
  # Elements of the gathered array, which each device holds, and of a sent part.
  whole, part = (1 << 20, 1 << 18) if cpu else (1 << 28, 1 << 26)
  ring = [(i, (i + 1) % count) for i in range(count)]

  def arrays(size: int) -> jax.Array:
    return jax.jit(
      lambda: jnp.zeros((count, size // 2), jnp.bfloat16), out_shardings=NamedSharding(mesh, spec)
    )()

  def program(exchange, out_spec):
    # check_vma=False: it cannot infer that a gather's result is replicated.
    return jax.jit(
      jax.shard_map(exchange, mesh=mesh, in_specs=spec, out_specs=out_spec, check_vma=False)
    )

  gather = program(lambda x: jax.lax.all_gather(x, 'all', tiled=True), PartitionSpec())
  shift = program(lambda x: jax.lax.ppermute(x, 'all', ring), spec)
  x, y = arrays(max(whole // count, 2)), arrays(part)
  gathered, shifted = _medians([lambda: gather(x), lambda: shift(y)])
  received = x.nbytes * (count - 1) / count
  return (
    f'smoke figure: each of {count} devices gets '
    f'{received / gathered / 1e9:,.3g} GB/s in an all-gather of '
    f'{x.nbytes / 2**20:g} MiB, {y.nbytes / count / shifted / 1e9:,.3g} GB/s '
    'from its neighbour'
  )


def _medians(calls: Sequence[Callable[[], object]]) -> list[float]:
  """Median seconds of each call, over rounds that alternate the calls."""
  for call in calls:
    jax.block_until_ready(call())
  times = np.zeros((_ROUNDS, len(calls)))
  for row in times:
    for i, call in enumerate(calls):
      start = time.perf_counter()
      jax.block_until_ready(call())
      row[i] = time.perf_counter() - start
  return np.median(times, axis=0).tolist()


# Security: what this machine leaves open to its other users.
#
# See docs/security.md: only its user may write to a folder from which code or
# compiled programs are loaded.


def lacks(*, key: bool) -> list[str]:
  """One line for each missing protection, with its remedy.

  Args:
    key: whether `serve` would find an API key.
  """
  missing = []
  if os.geteuid() == 0:
    missing.append(
      'runs as root: whatever a config or a package does, it may do anywhere; use a user of its own'
    )
  mask = os.umask(0o077)
  os.umask(mask)
  if not mask & stat.S_IWOTH:
    missing.append('others may write new files: set umask 022')
  for name, folder in _folders():
    if why := open_to_others(folder):
      missing.append(f'{name} {folder}: {why}')
  temporary = tempfile.gettempdir()
  if not _is_sticky(temporary) and (why := open_to_others(temporary)):
    missing.append(f'TMPDIR {temporary}: {why}, or chmod +t it')
  if not key:
    missing.append('no API key: serve to this machine alone, or give --api_key_file')
  return missing


def open_to_others(folder: str) -> str:
  """Why others may write to a folder, and the remedy; '' if they may not.

  Root may own it. A missing folder is no problem.
  """
  try:
    status = os.stat(folder)
  except OSError:
    return ''
  if status.st_mode & stat.S_IWOTH:
    return 'all users may write into it; chmod o-w it'
  if status.st_uid not in (0, os.geteuid()):
    return 'belongs to another user; take a folder of your own'
  return ''


def _folders() -> list[tuple[str, str]]:
  """The folders from which code or runs are loaded, with their purposes."""
  cache = jax_internals.setting('jax_compilation_cache_dir')
  folders = [('compiled programs', cache or str(programs.cache_folder()))]
  folders += [('Python imports from', path or '.') for path in sys.path]
  folders += [('runs in', path) for path in ['.', *glob.glob('workdirs/*')]]
  return [(name, path) for name, path in folders if os.path.isdir(path)]


def _is_sticky(folder: str) -> bool:
  """Whether users cannot remove or rename each other's files in a folder."""
  return bool(os.stat(folder).st_mode & stat.S_ISVTX)
