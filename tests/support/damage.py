# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Damages a file of a run, and checks that the run notices or is none worse.

  python -m tests.support.damage --damages 100
  python -m tests.support.damage --damages 10 --seed 3 --kinds sft

A copy of a run without its last checkpoint, or of a command that was killed, is
damaged: in one of its files, drawn from all of them, a bit is flipped, or it is
cut, deleted, or swapped with another file. The same command then goes on. Or the
model that a run starts or learns from is damaged, and the run begins. Either it
ends as the one that was left alone: parameters, optimizer state, average of the
weights, every logged loss and evaluation, or the files that a command is for, bit
for bit, but for what the damaged log itself had; or it ends with exit code 1 or 2
and one line that names the file, or the folder that it cannot be read without.
`evaluate` may also say that it takes an older checkpoint. Ends with exit code 1
where none of these holds. The kinds of runs are in `subjects`; each damage is of
the kind with the fewest in the ledger (`faults`).
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.support import faults, subjects
from tests.support.subjects import DEAR, JOBS, KINDS, STEPS, TINY, Run, Work

# What the rest of a run does not depend on; the figures that it holds, but for
# the last step's, may differ from those of the run that was left alone.
LOGS = ('metrics.jsonl', 'samples.txt', 'loss.png', 'tensorboard/')
# Of a token store, which does not need them: whoever removes one has a store.
BESIDE = ('cleaning.json', 'inputs.json')
# The folder of a model that a run starts or learns from.
BEFORE = 'before'
# How often a command that trains no run is killed, before its folders are damaged.
MOMENTS = 5
# Damages of a kind, for each one of a kind that is not here. What is written by
# `prepare` and `teach` is read by many runs.
SHARES = {'prepare': 3, 'teach': 2, **dict.fromkeys(DEAR, 0.2)}


class Damage(NamedTuple):
  """What is done to a file.

  Attributes:
    how: 'flip', 'cut', 'delete' or 'swap'.
    file: path in the workdir.
    place: the bit that is flipped, or the length of what is left.
    other: path of the file that it is swapped with.
  """

  how: str
  file: str
  place: int = 0
  other: str = ''

  def __str__(self) -> str:
    """In words."""
    if self.how == 'swap':
      return f'swap {self.file} and {self.other}'
    at = f' at {self.place}' if self.how in ('flip', 'cut') else ''
    return f'{self.how} {self.file}{at}'

  def apply(self, workdir: pathlib.Path) -> None:
    """Damages the file."""
    path = workdir / self.file
    if self.how == 'delete':
      path.unlink()
    elif self.how == 'swap':
      a, b = path.read_bytes(), (workdir / self.other).read_bytes()
      path.write_bytes(b)
      (workdir / self.other).write_bytes(a)
    else:
      data = bytearray(path.read_bytes())
      if self.how == 'cut':
        del data[self.place :]
      else:
        data[self.place // 8] ^= 1 << self.place % 8
      path.write_bytes(data)


def draw(workdir: pathlib.Path, rng: random.Random) -> Damage:
  """Draws a damage: first what kind of file, then which."""
  sizes = {
    str(path.relative_to(workdir)): path.stat().st_size
    for path in sorted(workdir.rglob('*'))
    if path.is_file() and path.name != '.lock'
  }
  kinds: dict[str, list[str]] = {}
  for name in sizes:
    kinds.setdefault(kind_of(name), []).append(name)
  name = rng.choice(kinds[rng.choice(sorted(kinds))])
  hows = ['flip', 'cut'] if sizes[name] else []
  how = rng.choice([*hows, 'delete', 'swap'])
  if how == 'swap':
    # Mostly with its like, which is harder to tell.
    alike = [x for x in kinds[kind_of(name)] if x != name]
    others = alike if alike and rng.random() < 0.7 else [*sizes.keys() - {name}]
    return Damage(how, name, other=rng.choice(sorted(others)))
  most = sizes[name] * (8 if how == 'flip' else 1)
  return Damage(how, name, rng.randrange(most) if most else 0)


def kind_of(name: str) -> str:
  """The kind of a file: its path, without numbers and hashes."""
  return '/'.join('*' if _is_number(part) else part for part in name.split('/'))


def _is_number(part: str) -> bool:
  return part.isdecimal() or len(part) == 32 or part.startswith('events.')


def names(line: str, damage: Damage, workdir: pathlib.Path) -> bool:
  """Whether a line names a damaged file, or a folder in the workdir that holds it."""
  for path in map(pathlib.PurePath, filter(None, (damage.file, damage.other))):
    if f'{workdir}: holds no {path}' in line:
      return True
    if any(f'{workdir / x}' in line for x in (path, *path.parents[:-1])):
      return True
  return False


def judge(
  whole: Run | Work, faulted: Run | Work, code: int, damage: Damage, folder: pathlib.Path
) -> tuple[str, str]:
  """How a damage in a folder ended, in a word; and what is wrong with that, if anything."""
  said = faulted.said().rstrip()
  last = said.rpartition('\n')[2]
  if code:
    if code not in (1, 2) or 'Traceback (most' in said:
      return 'failed', f'exit code {code}: {last}'
    if not names(last, damage, folder):
      return 'failed', f'does not name the file: {last}'
    return 'named', ''
  if 'Traceback (most' in said:
    return 'failed', f'a traceback: {last}'
  logs = damage.file.startswith(LOGS) or damage.other.startswith(LOGS)
  found = subjects.differences(whole, faulted, after=STEPS - 1 if logs else 0)
  if damage.file in BESIDE:
    found = [x for x in found if x != f'{damage.file} differs']
  # The folder that a damaged checkpoint is moved to; `evaluate` moves none, and
  # measures the one before.
  moved = 'checkpoints_damaged' in said
  measured = 'is damaged' in said and names(said, damage, folder)
  if found and not ('evaluations/' in found[0] and measured):
    return 'failed', '; '.join(found)
  return 'older checkpoint' if moved or found else 'same bits', ''


def begun(
  whole: Run | Work, kind: str, folder: pathlib.Path, config: str, flags: list[str]
) -> list[pathlib.Path]:
  """Folders in which the command is not done or just done, and that of the model before."""
  before = [path for path in [folder / kind / BEFORE] if path.exists()]
  if found := sorted(folder.glob(f'begun_{kind}_[0-9]')):  # of the sitting before
    return found + before
  if isinstance(whole, Run):
    copy = folder / f'begun_{kind}_0'
    if kind == 'local':  # whose checkpoints are gone at the end
      run = Run(copy, kind, config, flags, forked=True)
      run.start()
      assert run.kill_when(lambda: run.last_step() > STEPS // 2, signal.SIGKILL)
    else:
      shutil.copytree(whole.workdir, copy)
      shutil.rmtree(copy / f'checkpoints/{STEPS}')
    return [copy, *before]
  # Their configs name the folder, so each is damaged in the same one.
  out = whole.workdir
  out.rename(folder / f'begun_{kind}_0')
  appeared = _watched(Work(out, kind), lambda present: False)
  moments = 2 if kind in DEAR else MOMENTS
  for i in range(moments):
    shutil.rmtree(out)
    wanted = appeared[len(appeared) * (i + 1) // (moments + 1)]
    _watched(Work(out, kind), lambda present, wanted=wanted: wanted in present)
    shutil.copytree(out, folder / f'begun_{kind}_{i + 1}')
  shutil.rmtree(out)
  return begun(whole, kind, folder, config, flags)


def _watched(work: Work, enough: Callable[[dict[str, None]], bool]) -> list[str]:
  """Starts a command and kills it when `enough` has been written.

  Returns:
    The kinds of files in the order in which they appeared, without those that
    were there, and temporary ones.
  """
  before = {*_kinds(work.workdir)}
  work.start()
  found: dict[str, None] = {}
  while work.process.poll() is None and not enough(found):
    found |= dict.fromkeys(x for x in _kinds(work.workdir) if x not in before)
    time.sleep(0.001)
  if work.process.poll() is None:
    work.process.send_signal(signal.SIGKILL)
  work.process.wait()
  return [*found]


def _kinds(folder: pathlib.Path) -> list[str]:
  # By `os.walk`, which does not mind that a folder has just gone.
  below = [(pathlib.Path(root), names) for root, _, names in os.walk(folder)]
  found = [str((root / x).relative_to(folder)) for root, names in below for x in names]
  return [kind_of(x) for x in found if 'tmp' not in x and 'lock' not in x]


def main() -> int:
  """Returns the exit code."""
  summary, _, rest = (__doc__ or '').partition('\n')
  parser = argparse.ArgumentParser(
    prog='python -m tests.support.damage',
    description=summary + rest,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  kinds = ','.join([*KINDS, *TINY, *JOBS])
  parser.add_argument('--damages', type=int, default=100)
  parser.add_argument('--seed', type=int, help="of the damages; default: the ledger's next")
  parser.add_argument('--config', default='configs/smoke.py', help='of pre-training')
  parser.add_argument('--kinds', default=kinds, help='of runs')
  parser.add_argument('--ledger', default=str(faults.PATH), help='to which they are added')
  parser.add_argument('--folder', help=subjects.FOLDER)
  args, flags = parser.parse_known_args()
  ledger = faults.open_ledger(args.ledger, 'damage', args.seed)
  kinds = args.kinds.split(',')
  folder = subjects.begin(args.folder)
  rngs = {kind: random.Random(f'{ledger.seed} {kind}') for kind in kinds}
  wholes: dict[str, Run | Work] = {}
  starts: dict[str, list[pathlib.Path]] = {}
  wrong = 0
  for number in range(args.damages):
    kind = ledger.furthest_behind({kind: SHARES.get(kind, 1) for kind in kinds})
    rng = rngs[kind]
    if kind not in wholes:
      wholes[kind], _ = subjects.whole(kind, folder, args.config, flags)
      starts[kind] = begun(wholes[kind], kind, folder, args.config, flags)
    out = wholes[kind].workdir if kind in JOBS else folder / f'damaged_{kind}'
    start = rng.choice(starts[kind])
    in_place = start.name == BEFORE  # which a new run reads; it is put back
    hurt = start if in_place else out
    shutil.copytree(start, folder / 'put_back' if in_place else out)
    damage = draw(hurt, rng)
    damage.apply(hurt)
    faulted = Work(out, kind) if kind in JOBS else Run(out, kind, args.config, flags, forked=True)
    faulted.start()
    end, why = judge(wholes[kind], faulted, faulted.process.wait(), damage, hurt)
    told = why and f'{damage}: {why}'.replace(f'{folder}/', '')
    file = f'{BEFORE}/{damage.file}' if in_place else damage.file
    ledger.add(kind, f'{damage.how} {kind_of(file)}', end, told)
    print(f'{number + 1} of {args.damages}: {kind}, {damage}: {end} {why}', flush=True)
    if end == 'failed':
      wrong += 1
      copy = folder / f'failed_{ledger.seed}_{number}'
      shutil.copytree(hurt, copy)
      shutil.copy(out.with_suffix('.stderr'), copy.with_suffix('.stderr'))
      print(f'see {copy}', flush=True)
    if in_place:
      shutil.rmtree(start)
      (folder / 'put_back').rename(start)
    shutil.rmtree(out, ignore_errors=True)  # a run that was refused has none
    out.with_suffix('.stderr').unlink()
  print(f'{wrong} of {args.damages}, seed {ledger.seed}, ended in neither way')
  if not (wrong or args.folder):
    shutil.rmtree(folder)
  return 1 if wrong else 0


if __name__ == '__main__':
  sys.exit(main())
