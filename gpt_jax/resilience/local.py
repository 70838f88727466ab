# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Local checkpoints: frequent ones, in the memory or on the disks of the hosts.

They are the first of two tiers; the second is the run's workdir, see
`checkpointer`. Each shard of a save is on two machines. If two machines hold a
shard anyway, such as parameters replicated over `data`, each of the two writes
its own. Any other shard is fetched by another machine, the neighbour in a ring
over the processes, in the background (`resilience.transfer`).

At a start the processes tell each other which shards they have. A save is
complete if every shard is on some machine with the right checksum. Shards then
move to the devices that need them, on any mesh and any number of processes, and
the fingerprints of the arrays, computed on the devices before the save, are
compared.

Process P writes two files of step S into the folder of its machine: `S-P.own`,
and `S-P.copy` with the shards of others. The files of a save are removed once
every process has written a newer save and read it back.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import socket
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.checkpoints import restore
from gpt_jax.core.checkpoints.restore import Restored, fingerprint
from gpt_jax.core.files import buckets, files
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime import hosts
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.resilience import transfer
from gpt_jax.resilience.shards import (
  FailurePlace,
  File,
  ShardManifest,
  Writers,
  assigned,
  missing,
  number_of,
  parts_of,
)

# Holds a run's random name: a workdir that is begun anew has another one, and
# takes no checkpoints of the run that was there.
NAME = 'local_checkpoints.json'
_REMEDY = 'remove it: the run then goes on from WORKDIR/checkpoints'


# The local checkpoints of a run.


class _Save(NamedTuple):
  """The part of a save that is written in the background."""

  manifest: ShardManifest
  digest: str
  own: dict[int, Any]  # shards by number, in this process's memory
  copies: dict[int, int]  # numbers of other shards -> processes that have them


class _Connections:
  """Connections to other processes, opened when they are needed."""

  def __init__(self, addresses: list[tuple[str, int]], secret: str):
    """`addresses` are those of all processes."""
    self._addresses, self._secret = addresses, secret
    self._clients: dict[int, transfer.Client] = {}

  def fetch(self, process: int, **request: Any) -> bytes:
    """The answer of the process; raises OSError."""
    if process not in self._clients:
      self._clients[process] = transfer.Client(self._addresses[process], self._secret)
    return self._clients[process].fetch(**request)

  def close(self) -> None:
    """Closes all connections."""
    for client in self._clients.values():
      client.close()


class LocalCheckpoints:
  """The local checkpoints of one run: implements `checkpointer.Tier`."""

  @staticmethod
  def check_folder(folder: str) -> None:
    """Checks `checkpoint.local_dir` before any work."""
    problem = ''
    if not files.is_local(folder):
      problem = 'is not a folder of this machine'
    elif not os.path.isdir(folder):
      problem = 'is not a folder'
    elif not os.access(folder, os.W_OK | os.X_OK):
      problem = 'cannot be written'
    if problem:
      raise UsageError(
        f'checkpoint.local_dir={folder!r}: {problem}; name a folder in memory '
        'or on a disk of each host, or set checkpoint.local_every_steps=0'
      )

  def __init__(self, workdir: str, folder: str):
    """Opens the run's folder in `folder`, and connects the processes."""
    self.check_folder(folder)
    named = secrets.token_hex(8), secrets.token_hex(16)
    self._run, self._secret = hosts.broadcast_from_host0(
      [_name_of_run(workdir, named[0]), named[1]] if jax.process_index() == 0 else []
    )
    self._folder = os.path.join(folder, f'gpt_jax_{self._run}')
    files.make_own_folder(self._folder, 'checkpoint.local_dir')
    self._changed = threading.Condition()
    self._files: dict[str, list[File]] = {}  # by save
    self._failed: set[str] = set()  # saves
    self._rejected: set[str] = set()  # saves that `restore` does not try again
    self._running: threading.Thread | None = None
    self._saving, self._error = 0, ''
    self._writers: list[Writers] = []
    self._scan()
    self._server = None
    address = ('', 0)
    if jax.process_count() > 1:
      self._server = transfer.PieceServer(self._secret, self._serve)
      address = self._server.address
    found = os.stat(self._folder)
    machine = f'{socket.gethostname()} {found.st_dev} {found.st_ino}'
    slice_index = getattr(jax.local_devices()[0], 'slice_index', 0) or 0
    told: list[Any] = hosts.gather([*address, machine, slice_index])
    self._addresses = [(one[0], one[1]) for one in told]
    self._places = [FailurePlace(one[2], one[3]) for one in told]
    if len({place.machine for place in self._places}) == 1:
      log.info(
        'local checkpoints are on one machine alone: they outlive the process, not the machine'
      )

  def _scan(self) -> None:
    """Finds the files in the folder, whichever process wrote them."""
    for name in sorted(os.listdir(self._folder)):
      path = os.path.join(self._folder, name)
      if name.endswith('.tmp'):
        with contextlib.suppress(FileNotFoundError):
          os.unlink(path)
        continue
      try:
        file = File.read(path)
        if file.manifest.run != self._run:
          raise ValueError('it is of another run')
      except (OSError, ValueError, TypeError, KeyError) as e:
        log.warning('%s: is not used: %s', path, e)
        continue
      self._files.setdefault(file.save, []).append(file)

  def _serve(self, request: Any) -> bytes:
    """A shard for another process, or a manifest."""
    save, number = request['save'], request.get('shard')
    with self._changed:
      if request.get('wait'):
        self._changed.wait_for(lambda: save in self._files or save in self._failed)
      held = [*self._files.get(save, [])]
    if number is None and held:
      return held[0].manifest.text()
    for file in held:
      if number in file.shards:
        return file.get(number)
    raise KeyError(f'shard {number} is not here')

  # Saving ------------------------------------------------------------------

  def save(self, state: TrainState, record: Any) -> None:
    """Starts to save; waits until the previous save is done.

    Args:
      state: copied before this returns, so that a step may donate it.
      record: of the run, as in `Checkpointer`; that of process 0 counts.
    """
    self.wait()
    save = self._copied(state, record)
    self._saving, self._error = save.manifest.step, ''
    self._running = threading.Thread(target=self._write, args=(save,), daemon=True)
    self._running.start()

  def _copied(self, state: TrainState, record: Any) -> _Save:
    """Copies this process's part of a state to its memory."""
    prints = fingerprint(state)
    leaves = jax.tree.leaves(state)
    arrays = restore.arrays(state, prints)
    parts = {n: parts_of(x) for n, x in zip(arrays, leaves, strict=True)}
    manifest = ShardManifest(self._run, int(state.step), arrays, parts)
    if not self._writers:  # the same in all saves of a run
      self._writers = assigned(leaves, self._places)
    me, first = jax.process_index(), manifest.first()
    held: dict[int, jax.Array] = {}
    for (name, array), x in zip(arrays.items(), leaves, strict=True):
      for shard in x.addressable_shards:
        number = first[name] + number_of(shard.index, array.shape, parts[name])
        if me in self._writers[number].own:
          held[number] = shard.data
    for x in held.values():  # all at once
      x.copy_to_host_async()
    # A copy: on a CPU the array's memory is the device's, which is reused.
    own: dict[int, Any] = {
      number: np.array(x, order='C').reshape(-1).view(np.uint8) for number, x in held.items()
    }
    last = manifest.total - 1
    if me in self._writers[last].own:
      own[last] = json.dumps(record).encode()
    copies = {i: w.own[0] for i, w in enumerate(self._writers) if w.copy == me}
    digest = hashlib.sha256(manifest.text()).hexdigest()
    return _Save(manifest, digest, own, copies)

  def _write(self, save: _Save) -> None:
    """Writes both files; runs in the background."""
    path = os.path.join(self._folder, f'{save.manifest.step}-{jax.process_index()}')
    try:
      file = File.write(f'{path}.own', save.manifest, save.own.items())
      with self._changed:
        self._files[save.digest] = [file]
        self._changed.notify_all()
      if not save.copies:
        return
      others = _Connections(self._addresses, self._secret)
      with contextlib.closing(others):
        copies = (
          (i, others.fetch(source, save=save.digest, shard=i, wait=True))
          for i, source in save.copies.items()
        )
        file = File.write(f'{path}.copy', save.manifest, copies)
      with self._changed:
        self._files[save.digest].append(file)
    except Exception as e:
      # Of any kind: `wait` reports it, and the run goes on.
      self._error = restore.reason_of(e)
      with self._changed:
        self._failed.add(save.digest)
        self._changed.notify_all()

  def wait(self) -> None:
    """Waits for the running save; older ones go if all processes have it."""
    if self._running is None:
      return
    self._running.join()
    self._running = None
    step = self._saving
    if hosts.all_agree(not self._error):
      # Not what another process of this machine may be writing by now.
      self._remove(lambda found: found < step)
      return
    log.warning(
      'the local checkpoint of step %d was not written (%s); the run goes on, older ones stay',
      step,
      self._error or 'another host failed',
    )
    self._remove(lambda found: found == step)

  def _remove(self, which: Any) -> None:
    """Removes the files of the steps for which `which(step)` holds."""
    with self._changed:
      self._files = {
        save: held for save, held in self._files.items() if not which(held[0].manifest.step)
      }
    # Processes of one machine share the folder, and may have removed it all.
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError):
      names = os.listdir(self._folder)
    for name in names:
      step = name.partition('-')[0]
      if not step.isdecimal() or which(int(step)):
        with contextlib.suppress(FileNotFoundError):
          os.unlink(os.path.join(self._folder, name))

  @property
  def bytes_held(self) -> int:
    """The sizes of the files that this process can read."""
    held = [file for files in self._files.values() for file in files]
    return sum(os.path.getsize(file.path) for file in held)

  def forget_after(self, step: int) -> None:
    """Removes the local checkpoints of later steps, after a rewind."""
    self.wait()
    self._remove(lambda found: found > step)

  def close(self, *, remove: bool = False) -> None:
    """Waits for the running save; with `remove`, none is needed any more."""
    self.wait()
    if self._server:
      self._server.close()
    if remove:
      shutil.rmtree(self._folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # it holds checkpoints, or is gone
      os.rmdir(self._folder)

  # Restoring ---------------------------------------------------------------

  def restore(
    self, abstract: TrainState, *, at_least: int, at_most: int | None = None
  ) -> tuple[TrainState, Restored] | None:
    """Restores the newest complete save onto the shardings of `abstract`.

    One that turns out to be incomplete is reported, and not tried again.

    Args:
      abstract: `jax.ShapeDtypeStruct`s with shardings.
      at_least: the first acceptable step.
      at_most: the last one; None: any.
    """
    self.wait()
    for step, save, total in self._saves():
      late = at_most is not None and step > at_most
      if late or step < at_least or save in self._rejected:
        continue
      reason, state = self._lacks(save, total), None
      if not reason:
        state, record, reason = self._read(save, abstract)
        if state is not None:
          log.info('step %d: restored from the local checkpoints', step)
          self.keep_only(step)
          return state, Restored(step, record)
      self._rejected.add(save)
      log.warning('the local checkpoint of step %d is not used: %s', step, reason)
    return None

  def keep_only(self, step: int) -> None:
    """Removes all but the step that a run goes on from."""
    self._remove(lambda found: found != step)

  def _saves(self) -> list[tuple[int, str, int]]:
    """Step, digest and number of shards of the saves that any process has."""
    told = hosts.gather(
      [
        [held[0].manifest.step, save, held[0].manifest.total]
        for save, held in self._files.items()
        if held
      ]
    )
    return sorted({tuple(x) for one in told for x in one}, reverse=True)

  def _lacks(self, save: str, total: int) -> str:
    """Why a save is incomplete; '' if it is not.

    Reads all of its shards; those that were changed do not count.
    """
    sound = []
    for file in self._files.get(save, []):
      bad = file.damaged()
      for number in bad:
        name = file.manifest.name_of(number)
        log.warning('%s: %s was changed', file.path, name)
        del file.shards[number]
      sound += file.shards
    self._holders = [{*one} for one in hosts.gather(sorted({*sound}))]
    lost = missing(total, self._holders)
    return f'{len(lost)} of its {total} shards are lost' if lost else ''

  def _read(self, save: str, abstract: TrainState) -> tuple[TrainState | None, Any, str]:
    """A state and its record, or the reason why there is none."""
    state, record, reason = None, None, ''
    others = _Connections(self._addresses, self._secret)
    with contextlib.closing(others):
      fetch = _Fetch(save, self._files.get(save, []), self._holders, others)
      try:
        manifest = fetch.manifest()
      except (OSError, ValueError) as e:
        manifest, reason = None, restore.reason_of(e)
      if not hosts.all_agree(manifest is not None):
        return None, None, reason or 'another host cannot read it'
      assert manifest is not None
      wanted = restore.arrays(abstract)
      if differs := restore.difference(manifest.arrays, wanted):
        raise UsageError(
          f'{self._folder}: holds another state than the config describes: it '
          f'{differs}; give the config of that run, or another --workdir'
        )
      try:
        state = jax.tree.unflatten(
          jax.tree.structure(abstract),
          [
            _assembled(manifest, name, x, fetch)
            for name, x in zip(wanted, jax.tree.leaves(abstract), strict=True)
          ],
        )
        record = json.loads(fetch(manifest.total - 1))
      except (OSError, ValueError) as e:
        state, reason = None, restore.reason_of(e)
      if not hosts.all_agree(state is not None):
        return None, None, reason or 'another host cannot read it'
    wrong = [
      name
      for (name, array), found in zip(manifest.arrays.items(), fingerprint(state), strict=True)
      if array.fingerprint != found
    ]
    if wrong:
      return None, None, f'fingerprint differs in {", ".join(wrong)}'
    return state, record, ''


class _Fetch(NamedTuple):
  """Gets the shards of a save from this process's files or from others."""

  save: str
  files: list[File]
  holders: list[set[int]]  # by process, the shards that it has
  others: _Connections

  def __call__(self, number: int) -> bytes:
    """A shard.

    Raises:
      OSError: nobody can send it.
    """
    for file in self.files:
      if number in file.shards:
        return file.get(number)
    return self._from_others(number)

  def manifest(self) -> ShardManifest:
    """The manifest of the save."""
    if self.files:
      return self.files[0].manifest
    text = self._from_others(None)
    if hashlib.sha256(text).hexdigest() != self.save:
      raise ValueError('the manifest of another process was changed')
    return ShardManifest.parse(text)

  def _from_others(self, number: int | None) -> bytes:
    """A shard, or the manifest."""
    have = [
      process
      for process, held in enumerate(self.holders)
      if (held if number is None else number in held)
    ]
    # Each process asks another one first, so that all send equally much.
    at = jax.process_index() % len(have) if have else 0
    error = OSError('no process has it')
    for process in have[at:] + have[:at]:
      try:
        return self.others.fetch(process, save=self.save, shard=number)
      except OSError as e:
        error = e
    raise error


def _assembled(manifest: ShardManifest, name: str, abstract: Any, fetch: _Fetch) -> jax.Array:
  """An array on its devices, each part put together from shards."""
  first, known = manifest.first()[name], {}
  boxes = [*manifest.boxes(name)]
  dtype = jnp.dtype(abstract.dtype)

  def shard(i: int) -> np.ndarray:
    if i not in known:
      shape = [x.stop - x.start for x in boxes[i]]
      known[i] = np.frombuffer(fetch(first + i), dtype).reshape(shape)
    return known[i]

  def part(index: Any) -> np.ndarray:
    wanted = [x.indices(n)[:2] for x, n in zip(index, abstract.shape, strict=True)]
    out = np.empty([stop - start for start, stop in wanted], dtype)
    for i, box in enumerate(boxes):
      both = [(max(a, x.start), min(b, x.stop)) for (a, b), x in zip(wanted, box, strict=True)]
      if all(a < b for a, b in both):
        to = tuple(slice(a - w[0], b - w[0]) for (a, b), w in zip(both, wanted, strict=True))
        of = tuple(slice(a - x.start, b - x.start) for (a, b), x in zip(both, box, strict=True))
        out[to] = shard(i)[of]
    return out

  return jax.make_array_from_callback(abstract.shape, abstract.sharding, part)


def _name_of_run(workdir: str, new: str) -> str:
  """The run's random name, from its workdir; written there if it is new."""
  path = os.path.join(workdir, NAME)
  if os.path.exists(path):
    found = files.read_json(path, remedy=_REMEDY, needs=('run',))['run']
    if not isinstance(found, str) or not found.isalnum():
      raise UsageError(f'{path}: is damaged; {_REMEDY}')
    return found
  os.makedirs(workdir, exist_ok=True)
  buckets.write_atomically(path, json.dumps({'run': new}) + '\n')
  return new
