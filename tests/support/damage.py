# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Damages a file of a run, and checks that the run notices or is none worse.

  python -m tests.support.damage --damages 100
  python -m tests.support.damage --damages 10 --seed 3 --kinds sft

A copy of a run that is not complete is damaged: in one of its files, drawn from
all of them, a bit is flipped, or it is cut, deleted, or swapped with another
file. The same command then goes on. Either it ends as the run that was left
alone: parameters, optimizer state, average of the weights, every logged loss
and evaluation, bit for bit, but for what the damaged log itself had; or it ends
with exit code 1 or 2 and one line that names the file, or the folder that it
cannot be read without. `evaluate` of a complete run ends with the same figures,
or so too, or says that it takes an older checkpoint. Ends with exit code 1
where none of these holds.
"""

import argparse
import json
import pathlib
import random
import shutil
import sys
import tempfile
from collections import Counter
from typing import NamedTuple

from tests.support import crash

# A complete run without its last checkpoint, so with those of steps 3 and 6, is
# what is damaged.
EVERY, BEFORE, STEPS = 3, 6, 9
FLAGS = [
  f'--config.schedule.num_steps={STEPS}',
  f'--config.checkpoint.every_steps={EVERY}',
  f'--config.eval.every_steps={EVERY}',
  '--config.checkpoint.keep=3',
  '--config.log.sample_tokens=0',
  '--config.batch.size=3',
  '--config.batch.micro_rows=0',
]
# What the rest of a run does not depend on; the figures that it holds may
# differ from those of the run that was left alone.
LOGS = ('metrics.jsonl', 'samples.txt', 'loss.png', 'tensorboard/')


EVALUATE = 'evaluate'


class Evaluation(crash.Run):
  """`gpt-jax evaluate` of a complete run."""

  def __init__(self, workdir: pathlib.Path):
    """Starts nothing yet."""
    super().__init__(workdir, 'decoder', '', [], forked=True)
    self._argv = [EVALUATE, f'--workdir={workdir}']

  def figures(self) -> dict[str, float]:
    """What it measured."""
    found = {}
    for path in (self.workdir / 'evaluations').glob('step-*.json'):
      found |= json.loads(path.read_text())
    return {name: x for name, x in found.items() if name.startswith('eval/')}


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
    kinds.setdefault(kind(name), []).append(name)
  name = rng.choice(kinds[rng.choice(sorted(kinds))])
  hows = ['flip', 'cut'] if sizes[name] else []
  how = rng.choice([*hows, 'delete', 'swap'])
  if how == 'swap':
    # Mostly with its like, which is harder to tell.
    alike = [x for x in kinds[kind(name)] if x != name]
    others = alike if alike and rng.random() < 0.7 else [*sizes.keys() - {name}]
    return Damage(how, name, other=rng.choice(sorted(others)))
  most = sizes[name] * (8 if how == 'flip' else 1)
  return Damage(how, name, rng.randrange(most) if most else 0)


def kind(name: str) -> str:
  """The kind of a file: its path, without numbers and hashes."""
  parts = ('*' if _is_number(part) else part for part in name.split('/'))
  return '/'.join(parts)


def _is_number(part: str) -> bool:
  return part.isdecimal() or len(part) == 32 or part.startswith('events.')


def names(line: str, damage: Damage) -> bool:
  """Whether a line names a damaged file, or a folder that holds it."""
  for file in filter(None, (damage.file, damage.other)):
    path = pathlib.PurePath(file)
    if any(str(x) in line for x in (path, *path.parents[:-1])):
      return True
  return False


def judge(whole: crash.Run, run: crash.Run, code: int, damage: Damage) -> tuple[str, str]:
  """How a damage ended, in a word; and what is wrong with that, if anything."""
  said = run.said().rstrip()
  last = said.rpartition('\n')[2]
  if code:
    if code not in (1, 2) or 'Traceback (most' in said:
      return 'failed', f'exit code {code}: {last}'
    if not names(last, damage):
      return 'failed', f'does not name the file: {last}'
    return 'named', ''
  if 'Traceback (most' in said:
    return 'failed', f'a traceback: {last}'
  if isinstance(run, Evaluation) and isinstance(whole, Evaluation):
    if 'is damaged' in said and names(said, damage):
      return 'older checkpoint', ''
    a, b = whole.figures(), run.figures()
    return ('same bits', '') if a == b else ('failed', f'{b} instead of {a}')
  logs = damage.file.startswith(LOGS) or damage.other.startswith(LOGS)
  found = crash.differences(whole, run, after=BEFORE if logs else 0)
  if found:
    return 'failed', '; '.join(found)
  if 'checkpoints_damaged' in said:
    return 'older checkpoint', ''
  return 'same bits', ''


def main() -> int:
  """Returns the exit code."""
  from rich.console import Console
  from rich.table import Table

  summary, _, rest = (__doc__ or '').partition('\n')
  parser = argparse.ArgumentParser(
    prog='python -m tests.support.damage',
    description=summary + rest,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--damages', type=int, default=100)
  parser.add_argument('--seed', type=int, default=0, help='of the damages')
  parser.add_argument('--config', default='configs/smoke.py', help='of pre-training')
  parser.add_argument('--kinds', default=f'decoder,encoder,sft,{EVALUATE}', help='of runs')
  args, flags = parser.parse_known_args()
  rng, console = random.Random(args.seed), Console()
  folder = pathlib.Path(tempfile.mkdtemp(prefix='gpt_jax_damage_'))
  crash.write_files(folder)
  kinds = args.kinds.split(',')
  wholes: dict[str, crash.Run] = {}

  def start(name: str, kind: str) -> crash.Run:
    run = (
      Evaluation(folder / name)
      if kind == EVALUATE
      else crash.Run(folder / name, kind, args.config, [*FLAGS, *flags], forked=True)
    )
    run.start()
    return run

  for kind_ in kinds:
    begun = folder / f'begun_{kind_}'
    if kind_ == EVALUATE:  # needs a decoder before it
      for copy in begun, folder / f'whole_{kind_}':
        shutil.copytree(wholes['decoder'].workdir, copy)
    wholes[kind_] = start(f'whole_{kind_}', kind_)
    if wholes[kind_].process.wait():
      console.print(wholes[kind_].said(), markup=False)
      return 1
    if kind_ != EVALUATE:
      shutil.copytree(wholes[kind_].workdir, begun)
      shutil.rmtree(begun / f'checkpoints/{STEPS}')
  ends: Counter[tuple[str, str, str]] = Counter()
  wrong = 0
  for number in range(args.damages):
    kind_ = kinds[number % len(kinds)]
    name = f'damaged{number}'
    shutil.copytree(folder / f'begun_{kind_}', folder / name)
    damage = draw(folder / name, rng)
    damage.apply(folder / name)
    run = start(name, kind_)
    end, why = judge(wholes[kind_], run, run.process.wait(), damage)
    ends[kind(damage.file), damage.how, end] += 1
    told = f'{number + 1} of {args.damages}: {kind_}, {damage}: {end}'
    console.print(f'{told} {why}', markup=False, soft_wrap=True)
    if end == 'failed':
      wrong += 1
      console.print(f'see {run.workdir}', markup=False, soft_wrap=True)
    else:
      shutil.rmtree(run.workdir)
      run.workdir.with_suffix('.stderr').unlink()
  outcomes = sorted({end for *_, end in ends})
  table = Table('file', 'damage', *outcomes, title=f'{args.damages} damages, seed {args.seed}')
  for file, how in sorted({(file, how) for file, how, _ in ends}):
    table.add_row(file, how, *(str(ends[file, how, x]) for x in outcomes))
  console.print(table)
  console.print(f'{wrong} of {args.damages} ended in neither way')
  if not wrong:
    shutil.rmtree(folder)
  return 1 if wrong else 0


if __name__ == '__main__':
  sys.exit(main())
