# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Kills a command at random moments, and checks that nobody can tell.

  python -m tests.support.crash --kills 100
  python -m tests.support.crash --kills 10 --seed 3 --config.batch.size=12
  python -m tests.support.crash --kills 16 --kinds sft,ppo,prepare

The same command is started again after each kill until it is done, and then
another one, until there were as many kills as asked for: that of the kind with
the fewest kills in the ledger (`faults`) for its number of phases. The kinds are
in `subjects`: runs that pre-train, fine-tune and learn from preferences and
rewards, and the commands that train no single run.
Each is compared with one of its kind that was left alone: parameters, optimizer
state, average of the weights, every logged loss and evaluation, bit for bit, or
the files that a command is for.
Batches of pre-training grow on the way, the encoder's rows too; masks, dropout
and rounding are random; with `exact` each process has another number of devices.
The kills of a run hit every phase. Processes are forked from one that has
imported everything, but for those that are killed at their start. Ends with exit
code 1 on any difference, and where a signal does not end in the code that it
should.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.support import faults, forks, subjects
from tests.support.subjects import DEAR, JOBS, KINDS, STEPS, TINY, Run, Work

PHASES = ('prepare', 'start', 'compile', 'step', 'save', 'evaluation', 'end')
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
JOB_KILLS = 4  # of one job


def phases(kind: str) -> tuple[str, ...]:
  """The phases of a run, in each of which it is killed; in 'step' twice."""
  return (*PHASES[:-1], 'local save', 'end') if kind == 'local' else PHASES


def shares() -> dict[str, int]:
  """The kills of one run of each kind."""
  runs = {kind: len(phases(kind)) + 1 for kind in (*KINDS, *TINY)}
  return {**runs, **{kind: 1 if kind in DEAR else JOB_KILLS for kind in JOBS}}


def codes(number: signal.Signals) -> set[int]:
  """The exit codes that a process may end with after a signal."""
  return {
    signal.SIGKILL: {-signal.SIGKILL},
    signal.SIGTERM: {75},
    signal.SIGINT: {75, 130},  # 130 where there is nothing to save yet
  }[number]


class Kill(NamedTuple):
  """A signal, and in what phase it comes."""

  phase: str
  number: signal.Signals

  def __str__(self) -> str:
    """In words."""
    return f'{self.phase}, {self.number.name}'


class Killed(NamedTuple):
  """A command that was killed and started until it was done.

  Attributes:
    kills: those that are known to have done no harm; or, if something is
      wrong, those that may have done it.
    why: what is wrong, '' if nothing is.
  """

  subject: Run | Work
  kills: list[Kill]
  why: str


def rounds(kind: str, rng: random.Random) -> Iterator[list[Kill]]:
  """Kills of one run after the other: in each every phase, and two steps.

  The data are prepared at the beginning only, and the end is at the end. Three
  runs one after the other have each phase with each of the signals.
  """
  while True:
    first_of = {phase: rng.randrange(3) for phase in phases(kind)}
    for again in range(3):
      kills = {p: Kill(p, SIGNALS[(n + again) % 3]) for p, n in first_of.items()}
      first, *middle, last = kills.values()
      middle.append(Kill('step', SIGNALS[(first_of['step'] + again + 1) % 3]))
      rng.shuffle(middle)
      yield [first, *middle, last]


def moment(run: Run, phase: str, rng: random.Random) -> Callable[[], bool]:
  """Draws a moment of that phase, of the process that was just started."""
  held = []

  def after(seconds: float, condition=lambda: True) -> Callable[[], bool]:
    def reached() -> bool:
      if not held and condition():
        held.append(time.monotonic())
      return bool(held) and time.monotonic() - held[0] >= seconds

    return reached

  def exists(pattern: str) -> Callable[[], bool]:
    return lambda: any(run.workdir.glob(pattern))

  target = run.last_step() + rng.randint(1, STEPS // 3)
  return {
    'prepare': after(rng.uniform(0, 0.2), run.began),
    'start': after(rng.uniform(0.3, 4)),
    'compile': after(rng.uniform(0, 2), run.told),
    'step': lambda: run.last_step() >= target,
    'save': after(rng.uniform(0, 0.03), exists('checkpoints/*tmp*')),
    'local save': after(rng.uniform(0, 0.01), exists('gpt_jax_*/*.tmp')),
    # Or in a rollout, where nothing is evaluated.
    'evaluation': after(rng.uniform(0, 0.02), run.evaluating),
    'end': after(rng.uniform(0, 1), lambda: run.last_step() >= STEPS),
  }[phase]


def kill_run(
  whole: Run, run: Run, planned: list[Kill], rng: random.Random, *, moves: bool
) -> Killed:
  """Kills a run as planned; one that `moves` has other devices at each start."""
  planned, kills = [*planned], []
  while True:
    code, kill = None, planned.pop(0) if planned else None
    if moves:
      run.devices = rng.choice((1, 2, 4))
    run.start(anew=kill is not None and kill.phase == 'start')
    if kill:
      code = run.kill_when(moment(run, kill.phase, rng), kill.number)
    if code is None:
      code = run.process.wait()
    if code == 0:  # it was done before it was killed, or just then
      if planned:
        continue
      break
    if not kill:
      return Killed(run, kills, f'exit code {code} without a kill')
    kills.append(kill)
    if run.began_command():
      if code not in codes(kill.number):
        return Killed(run, kills[-1:], f'exit code {code} after {kill}')
      if 'Traceback (most' in run.said():
        return Killed(run, kills[-1:], f'a traceback after {kill}')
  if 'Traceback (most' in run.said():
    return Killed(run, kills, 'a traceback of the last process')
  return Killed(run, kills, '; '.join(subjects.differences(whole, run)))


def kill_job(whole: Work, work: Work, seconds: float, most: int, rng: random.Random) -> Killed:
  """Kills a job at moments of the `seconds` that it takes."""
  kills = []
  while True:
    work.start()
    share, number = rng.random(), rng.choice(SIGNALS)
    if len(kills) < most:
      while work.process.poll() is None and time.monotonic() < work.began + share * seconds:
        time.sleep(0.001)
      if work.process.poll() is None:
        work.process.send_signal(number)
    code = work.process.wait()
    if code == 0:
      break
    kill = Kill(f'{100 * share:.0f}%', number)
    # With nothing of its own to save it dies of SIGTERM.
    if code not in {*codes(number), -signal.SIGTERM} or len(kills) == most:
      return Killed(work, [kill], f'exit code {code} after {kill}')
    kills.append(kill)
  return Killed(work, kills, '; '.join(subjects.differences(whole, work)))


def main() -> int:
  """Returns the exit code."""
  summary, _, rest = (__doc__ or '').partition('\n')
  parser = argparse.ArgumentParser(
    prog='python -m tests.support.crash',
    description=summary + rest,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--kills', type=int, default=100)
  parser.add_argument('--seed', type=int, help="of the moments; default: the ledger's next")
  parser.add_argument('--config', default='configs/smoke.py', help='of pre-training')
  parser.add_argument('--kinds', default=','.join(shares()), help='of runs')
  parser.add_argument('--ledger', default=str(faults.PATH), help='to which the kills are added')
  parser.add_argument('--folder', help=subjects.FOLDER)
  args, flags = parser.parse_known_args()
  ledger = faults.open_ledger(args.ledger, 'kill', args.seed)
  kinds = {kind: shares()[kind] for kind in args.kinds.split(',')}
  folder = subjects.begin(args.folder)
  # So that the server is up before anything is timed.
  forks.Fork(['--help'], folder=str(subjects.ROOT), said=os.devnull).wait()
  wholes: dict[str, tuple[Run | Work, float]] = {}
  rngs = {kind: random.Random(f'{ledger.seed} {kind}') for kind in kinds}
  planned_of = {kind: rounds(kind, rngs[kind]) for kind in kinds if kind not in JOBS}
  kills = complete = wrong = 0
  while kills < args.kills:
    kind, left = ledger.furthest_behind(kinds), args.kills - kills
    if kind not in wholes:
      wholes[kind] = subjects.whole(kind, folder, args.config, flags)
    (whole, seconds), out = wholes[kind], folder / f'killed_{ledger.seed}_{complete}'
    if isinstance(whole, Work):
      most = min(left, JOB_KILLS)
      killed = kill_job(whole, Work(out, kind), seconds, most, rngs[kind])
    else:
      run, planned = Run(out, kind, args.config, flags, forked=True), next(planned_of[kind])
      killed = kill_run(whole, run, planned[:left], rngs[kind], moves=kind == 'exact')
    for kill in killed.kills:
      ledger.add(kind, str(kill), 'failed' if killed.why else 'same bits', killed.why)
    if not killed.kills:  # it is quicker than the first, which compiled
      wholes[kind] = whole, 0.7 * seconds
    kills, complete = kills + len(killed.kills), complete + 1
    told = '; '.join(map(str, killed.kills))
    print(f'{kills} of {args.kills}: {kind}: {told}', flush=True)
    if killed.why:
      wrong += 1
      print(f'{killed.why}; see {out}\n{killed.subject.said()[-2000:]}', flush=True)
    else:
      shutil.rmtree(out)
  print(f'{kills} kills of {complete} runs, seed {ledger.seed}: {wrong} runs went wrong')
  if not (wrong or args.folder):
    shutil.rmtree(folder)
  return 1 if wrong else 0


if __name__ == '__main__':
  sys.exit(main())
