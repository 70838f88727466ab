# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The malloc of a run on a CPU, told to use huge pages; the peak of its memory.

XLA on CPU allocates its temporary buffers with malloc at every execution. glibc
maps such large blocks anew each time, and the kernel zeroes them page by page:
380,000 page faults per step for a model of 10M parameters, a quarter of the
time. In huge pages there are 512 times fewer, and what is freed goes back to
the kernel. glibc reads that setting only when a process starts, so the commands
start themselves once more (`start_anew`). Where that cannot be, malloc is told
to keep freed memory (`keep_memory`): as fast or faster, with two or three times
the memory, since small blocks come to lie in the holes of large ones. So are
small steps (`keep_of_step`). Results are bit-identical. `gpt-jax benchmark
--what malloc` compares the two, and other libraries.
"""

import contextlib
import ctypes
import glob
import os
import sys
from collections.abc import Mapping

# Parameters of mallopt, from malloc.h, and of madvise, from sys/mman.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_MADV_HUGEPAGE = 14
_HUGE_PAGE = 2 << 20

# Tells a process that it was started anew: not once more.
STARTED = 'GPT_JAX_STARTED_ANEW'
# Huge pages; one arena for all threads, since each keeps what was freed in it;
# only blocks from 32 MiB are mapped one by one, which is as high as glibc lets
# that limit rise; and 64 MiB of freed memory stay for the next step.
_TUNABLES = ':'.join(
  f'glibc.malloc.{name}={value}'
  for name, value in {
    'hugetlb': 1,
    'arena_max': 1,
    'mmap_threshold': 32 << 20,
    'trim_threshold': 64 << 20,
  }.items()
)
# Steps that take fewer bytes keep them: clearing pages is a large part of their
# time, and they waste little.
_SMALL = 256 << 20
_FIRST_GLIBC = (2, 35)  # that has huge pages
_HUGE_PAGES = '/sys/kernel/mm/transparent_hugepage/enabled'


def start_anew() -> None:
  """Starts this process again with huge pages, if it is a command's.

  The new program has the same id, arguments, files and ignored signals. Nothing
  happens in a process that another program started for us as a library, under a
  debugger or profiler, or where it would gain nothing: see `tuned`.
  """
  if STARTED in os.environ or not _is_command() or _is_watched():
    return
  more = tuned(os.environ)
  if more and sys.executable:
    environment = {**os.environ, **more, STARTED: '1'}
    arguments = [sys.executable, *sys.orig_argv[1:]]
    with contextlib.suppress(OSError):  # then memory is kept, as before
      os.execve(sys.executable, arguments, environment)


def tuned(environment: Mapping[str, str]) -> dict[str, str]:
  """The variables with which glibc uses huge pages; {}: it cannot, or need not.

  It need not beside accelerators. Another allocator, as Cloud TPU VMs preload,
  and settings of glibc's that the user chose stay as they are.
  """
  if sys.platform != 'linux' or _has_accelerator() or is_set(environment):
    return {}
  if _glibc() < _FIRST_GLIBC or '[never]' in _huge_pages():
    return {}
  others = environment.get('GLIBC_TUNABLES')
  return {'GLIBC_TUNABLES': f'{others}:{_TUNABLES}' if others else _TUNABLES}


def is_set(environment: Mapping[str, str]) -> bool:
  """Whether the environment chooses an allocator, or glibc's settings."""
  return (
    'malloc' in environment.get('LD_PRELOAD', '')
    or 'glibc.malloc.' in environment.get('GLIBC_TUNABLES', '')
    or any(name.startswith('MALLOC_') for name in environment)
  )


def described() -> str:
  """The allocator of this process, and what would be better."""
  preloaded = os.environ.get('LD_PRELOAD', '')
  if 'malloc' in preloaded:
    return f'{preloaded}, preloaded'
  if sys.platform != 'linux' or not _glibc()[0]:
    return "the system's"
  name = f'glibc {".".join(map(str, _glibc()))}'
  if _has_accelerator():
    return f'{name}, as it is: the accelerator has the large arrays'
  if _has_huge_pages():
    return f'{name}, with huge pages'
  if is_set(os.environ):
    given = os.environ.get('GLIBC_TUNABLES', 'MALLOC_ variables')
    return f'{name}, with {given}'
  why = ''
  if '[never]' in _huge_pages():
    why = f'; half the memory with huge pages: echo madvise > {_HUGE_PAGES}'
  elif _glibc() < _FIRST_GLIBC:
    why = '; half the memory with glibc 2.35 or later'
  return f'{name}, which keeps freed memory{why}'


def _is_command() -> bool:
  """Whether this process runs `gpt-jax` or `python -m gpt_jax`."""
  spec = getattr(sys.modules['__main__'], '__spec__', None)
  name = spec.name if spec else os.path.basename(sys.argv[0])
  return name in ('gpt_jax.__main__', 'gpt-jax')


def _is_watched() -> bool:
  """Whether a debugger, profiler or `-X importtime` watches this process."""
  tools = getattr(sys, 'monitoring', None)  # since Python 3.12
  return (
    sys.gettrace() is not None
    or sys.getprofile() is not None
    or (tools is not None and any(map(tools.get_tool, range(6))))
    or 'importtime' in sys._xoptions
    or bool(sys.flags.interactive or sys.flags.inspect)
  )


def _glibc() -> tuple[int, ...]:
  """Its version; (0,) of another C library."""
  try:
    name, _, version = (os.confstr('CS_GNU_LIBC_VERSION') or '').partition(' ')
  except (AttributeError, ValueError, OSError):
    return (0,)
  if name != 'glibc':
    return (0,)
  return tuple(int(part) for part in version.split('.')[:2])


def _huge_pages() -> str:
  """Such as `always [madvise] never`."""
  try:
    with open(_HUGE_PAGES, encoding='utf-8') as file:
      return file.read()
  except OSError:  # a kernel without them
    return '[never]'


def keep_memory() -> None:
  """Tells glibc's malloc to keep freed memory; call before importing jax.

  Does nothing on other systems, with another C library, if there is an
  accelerator, and if the environment chooses something else: see `is_set`.
  """
  if not _keeps():
    return
  libc = ctypes.CDLL(None)
  _keep(libc)
  libc.mallopt(_ARENA_MAX, 1)  # other arenas would map large blocks again
  _use_huge_pages(libc, _memory() // 4)


def keep_of_step(num_bytes: float) -> None:
  """Tells malloc to keep freed memory after all if a step takes little.

  Args:
    num_bytes: that the step needs at once, with its state.
  """
  if num_bytes < _SMALL and _has_huge_pages():
    _keep(ctypes.CDLL(None))


def _keep(libc: ctypes.CDLL) -> None:
  libc.mallopt(_MMAP_MAX, 0)  # no separate mappings for large blocks
  libc.mallopt(_TRIM_THRESHOLD, -1)  # never return memory to the kernel


def _has_huge_pages() -> bool:
  """Whether this process was started with `tuned`."""
  return _TUNABLES in os.environ.get('GLIBC_TUNABLES', '')


def _keeps() -> bool:
  """Whether `keep_memory` does something here."""
  if sys.platform != 'linux' or _has_accelerator() or is_set(os.environ):
    return False
  return hasattr(ctypes.CDLL(None), 'mallopt')


def _use_huge_pages(libc: ctypes.CDLL, num_bytes: int) -> None:
  """Grows the heap by `num_bytes` and requests huge pages for it.

  This reserves address space only: pages are allocated on first use.
  """
  libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
  libc.sbrk.argtypes = [ctypes.c_ssize_t]
  libc.malloc.argtypes = [ctypes.c_size_t]
  libc.free.argtypes = [ctypes.c_void_p]
  libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
  start = libc.sbrk(0)
  block = libc.malloc(num_bytes)
  stop = libc.sbrk(0)
  libc.free(block)
  if block is None or stop <= start:
    return
  start = -(-start // _HUGE_PAGE) * _HUGE_PAGE
  libc.madvise(start, stop - start, _MADV_HUGEPAGE)


def give_back() -> None:
  """Returns freed memory to the kernel.

  The next step pays for that: see above.
  """
  if sys.platform != 'linux' or _has_accelerator():
    return
  libc = ctypes.CDLL(None)
  if hasattr(libc, 'malloc_trim'):
    libc.malloc_trim(0)
  if _keeps():
    _use_huge_pages(libc, _memory() // 4)


def reset_peak() -> None:
  """Resets the peak of the resident memory; Linux only."""
  with open('/proc/self/clear_refs', 'w', encoding='utf-8') as file:
    file.write('5')


def peak_bytes() -> int:
  """Peak bytes of resident memory since `reset_peak`; Linux only."""
  with open('/proc/self/status', encoding='utf-8') as file:
    lines = dict(line.split(':', 1) for line in file)
  return int(lines['VmHWM'].split()[0]) * 1024


def _memory() -> int:
  return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')


def _has_accelerator() -> bool:
  if os.environ.get('JAX_PLATFORMS') == 'cpu':
    return False
  devices = ('/dev/accel*', '/dev/vfio/[0-9]*', '/dev/nvidia[0-9]*')
  return any(glob.glob(pattern) for pattern in devices)
