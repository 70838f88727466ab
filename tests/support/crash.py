# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Kills a training run at random moments, and checks that nobody can tell.

  python -m tests.support.crash --kills 100
  python -m tests.support.crash --kills 10 --seed 3 --config.batch.size=12
  python -m tests.support.crash --kills 16 --kinds sft,ppo

The same command is started again after each kill until its run is complete, and
then another run, until there were as many kills as asked for: a decoder, an
encoder on masked pairs of texts, a decoder with local checkpoints, fine-tuning
on dialogues, and PPO in turn.
Each is compared with one of its kind that was left alone: parameters, optimizer
state, average of the weights, every logged loss and evaluation, bit for bit.
Batches of pre-training grow on the way, the encoder's rows too; masks, dropout
and rounding are random.
The eight kills of a run hit every phase; fewer than eight for each kind are
shared by one run of each. Ends with exit code 1 on any difference, and where a
SIGTERM does not end in exit code 75.
"""

import argparse
import json
import logging
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.support import forks

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 100
EVAL_EVERY = 20
FLAGS = [
  '--config.model.num_layers=1',
  '--config.model.d_model=32',
  '--config.model.context_length=31',
  '--config.model.dropout=rates(embedding=0.1, residual=0.1, attention=0.1)',
  '--config.batch.micro_rows=3',
  '--config.optim.precision=bfloat16',
  '--config.optim.ema=ema(decay=0.9)',
  f'--config.schedule.num_steps={STEPS}',
  '--config.checkpoint.every_steps=7',
  f'--config.eval.every_steps={EVAL_EVERY}',
  '--config.eval.rows=2',
  '--config.log.every_steps=1',
  '--config.log.sample_tokens=5',
]
GROWING = f'--config.batch.size=ramp(0:3, {STEPS // 2}_steps:6)'
PRE_TRAINING = [
  *('train', GROWING, "--config.data.source=text('configs/*.py')"),
  '--config.data.holdout=tail(fraction=0.1)',
]
# A command and its flags, in which {folder} has the files below.
KINDS = {
  'decoder': [*PRE_TRAINING, '--config.tokenizer.name=bytes'],
  'encoder': [
    *PRE_TRAINING,
    '--config.tokenizer.name=wordpiece(vocab_size=300)',
    "--config.objective.name=masked(unit='word', ngram=3, pair='order')",
    "--config.data.rows=pairs('order')",
    '--config.data.sentences=terminal',
    '--config.data.holdout=tail(fraction=0.3)',  # several documents
    '--config.model.attention=bidirectional',
    '--config.model.input=tokens(token_types=2)',
    f'--config.batch.length=stages(17, {STEPS // 3}_steps:31)',
  ],
}
KINDS['local'] = [
  *KINDS['decoder'],
  '--config.checkpoint.local_every_steps=2',
  '--config.checkpoint.local_dir={folder}',
]
KINDS['sft'] = [
  *('sft', '--config=configs/finetune/sft.py', '--init=none'),
  *('--config.tokenizer.name=bytes', '--config.model.num_heads=4'),
  '--train={folder}/dialogues.jsonl',
  '--dev={folder}/dialogues.jsonl',
  "--config.finetune.task=sft('', '', template='vicuna')",
  '--config.batch.size=6',
]
# Windows of four updates, and checkpoints within them.
KINDS['ppo'] = [
  *('ppo', '--config=configs/finetune/ppo.py', '--init=none'),
  *('--config.tokenizer.name=bytes', '--config.model.num_heads=4'),
  '--config.finetune.peak=1e-3',
  *('--prompts={folder}/prompts.jsonl', '--reward={folder}/rewards.py:share'),
  "--config.finetune.task=ppo('', '', max_completion_length=5, "
  'num_mini_batches=2, num_ppo_epochs=2, ptx=2.0, '
  "ptx_text='{folder}/prompts.jsonl')",
  '--config.batch.size=6',
]


def write_files(folder: pathlib.Path) -> None:
  """Writes what post-training reads."""
  words = ['red', 'green', 'blue', 'grey', 'white', 'black', 'brown']
  prompts = [{'prompt': f'say {word}', 'text': f'{word}.'} for word in words]
  dialogues = [
    {
      'messages': [
        {'role': 'user', 'content': f'say {word}'},
        {'role': 'assistant', 'content': word[::n] * n},
      ]
    }
    for word in words
    for n in (1, 2, 3)
  ]
  for name, rows in ('prompts', prompts), ('dialogues', dialogues):
    lines = [json.dumps(row) + '\n' for row in rows]
    (folder / f'{name}.jsonl').write_text(''.join(lines))
  (folder / 'rewards.py').write_text(
    'def share(prompts, completions, **columns):\n'
    "  return [sum(c < 'm' for c in x) / 5 for x in completions]\n"
  )


# Parts of the names of figures that the clock or the machine decides.
CLOCKS = ('per_second', 'seconds', 'mfu', 'time', 'memory/')
PHASES = ('prepare', 'start', 'compile', 'step', 'save', 'evaluation', 'end')


class Run:
  """A workdir, and the process that trains in it."""

  def __init__(
    self,
    workdir: pathlib.Path,
    kind: str,
    config: str,
    flags: list[str],
    *,
    forked: bool = False,
  ):
    """Starts nothing yet; `forked`: see `forks`."""
    self.workdir = workdir
    self._said = workdir.with_suffix('.stderr')
    command, *own = (
      flag.replace('{folder}', str(workdir.parent)) for flag in KINDS[kind]
    )
    self._prepares = command == 'train'
    if self._prepares:
      own = [f'--config={config}', *own]
    self._argv = [command, *own, *FLAGS, *flags, f'--workdir={workdir}']
    self._forked = forked

  def start(self) -> None:
    """Starts the command, the same each time."""
    self.process: subprocess.Popen | forks.Fork
    if self._forked:
      said = str(self._said)
      self.process = forks.Fork(self._argv, folder=str(ROOT), said=said)
      return
    # A checkout's own code, whatever is installed; one device, as a user has.
    env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}
    with open(self._said, 'w', encoding='utf-8') as said:
      self.process = subprocess.Popen(
        [sys.executable, '-m', 'gpt_jax', *self._argv],
        cwd=ROOT,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=said,
      )

  def said(self) -> str:
    """What the process said on stderr."""
    return self._said.read_text(encoding='utf-8')

  def resumed_at(self) -> str:
    """The step that the process went on from."""
    _, found, rest = self.said().partition('resuming after step ')
    if found:
      return rest.split()[0]
    if 'run is complete' in self.said():
      return 'the end'
    # What is said before the checkpoint is looked for does not tell.
    return 'the start' if self.told() else '(killed before)'

  def told(self) -> bool:
    """Whether the process has said what it trains on."""
    return ' epochs' in self.said()

  def began(self) -> bool:
    """Whether it prepares its data, or began a run that needs none."""
    where = 'data/*' if self._prepares else 'config.json'
    return any(self.workdir.glob(where))

  def lines(self) -> list[dict]:
    """The whole lines of metrics.jsonl."""
    try:
      text = (self.workdir / 'metrics.jsonl').read_text(encoding='utf-8')
    except FileNotFoundError:
      return []
    return [json.loads(line) for line in text.split('\n')[:-1]]

  def last_step(self) -> int:
    """The last step that was logged."""
    return max((line['step'] for line in self.lines()), default=0)

  def evaluating(self) -> bool:
    """Whether a step waits for its evaluation."""
    lines = [line for line in self.lines() if 'event' not in line]
    return bool(
      lines and 'loss' in lines[-1] and lines[-1]['step'] % EVAL_EVERY == 0
    )

  def results(self) -> list[dict]:
    """All that was logged, less what the clock decides."""
    return [
      {k: v for k, v in line.items() if not any(c in k for c in CLOCKS)}
      for line in self.lines()
      if 'event' not in line
    ]

  def kill_when(self, condition: Callable[[], bool], number: int) -> int | None:
    """Sends a signal as soon as the condition holds.

    Returns:
      The exit code, None if the process had ended before.
    """
    while not condition():
      if self.process.poll() is not None:
        return None
      time.sleep(0.001)
    self.process.send_signal(number)
    return self.process.wait()


class Kill(NamedTuple):
  """A signal, and in what phase it comes."""

  phase: str
  number: int


def rounds(rng: random.Random) -> Iterator[list[Kill]]:
  """Kills of one run after the other: in each every phase, and two steps.

  The data are prepared at the beginning only, and the end is at the end. Two
  runs one after the other have each phase with both signals.
  """
  both = [signal.SIGKILL, signal.SIGTERM]
  while True:
    swapped = {phase: rng.random() < 0.5 for phase in PHASES}
    for again in (False, True):
      kills = {p: Kill(p, both[swapped[p] == again]) for p in PHASES}
      first, *middle, last = kills.values()
      middle.append(Kill('step', both[swapped['step'] != again]))
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
    # Or in a rollout, where nothing is evaluated.
    'evaluation': after(rng.uniform(0, 0.02), run.evaluating),
    'end': after(rng.uniform(0, 1), lambda: run.last_step() >= STEPS),
  }[phase]


def differences(whole: Run, killed: Run, after: int = 0) -> list[str]:
  """What differs between two complete runs, in words.

  Of what was logged only what came after step `after` is compared.
  """
  import jax
  import numpy as np

  from gpt_jax.training import models as trained_lib

  logging.getLogger('absl').setLevel(logging.ERROR)
  found = []
  a, b = (
    [x for x in run.results() if x['step'] > after] for run in (whole, killed)
  )
  if a != b:
    steps = [x['step'] for x, y in zip(a, b, strict=False) if x != y]
    found.append(f'metrics differ: {len(a)} lines and {len(b)}, steps {steps}')
  states = [trained_lib.load_state(str(r.workdir))[1] for r in (whole, killed)]
  paths = jax.tree_util.tree_leaves_with_path(states[0])
  for (path, x), y in zip(paths, jax.tree.leaves(states[1]), strict=True):
    if np.asarray(x).tobytes() != np.asarray(y).tobytes():
      found.append(f'{jax.tree_util.keystr(path)} differs')
  if states[1].step != states[0].step:
    found.append(f'the last checkpoint is of step {int(states[1].step)}')
  samples = [r.workdir / 'samples.txt' for r in (whole, killed)]
  if not after and len({f.exists() and f.read_bytes() for f in samples}) > 1:
    found.append('samples.txt differs')
  return found


def main() -> int:
  """Returns the exit code."""
  from rich.console import Console
  from rich.table import Table

  summary, _, rest = (__doc__ or '').partition('\n')
  parser = argparse.ArgumentParser(
    prog='python -m tests.support.crash',
    description=summary + rest,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--kills', type=int, default=100)
  parser.add_argument('--seed', type=int, default=0, help='of the moments')
  parser.add_argument(
    '--config', default='configs/smoke.py', help='of pre-training'
  )
  parser.add_argument('--kinds', default=','.join(KINDS), help='of runs')
  args, flags = parser.parse_known_args()
  rng, console = random.Random(args.seed), Console()
  folder = pathlib.Path(tempfile.mkdtemp(prefix='gpt_jax_crash_'))
  table = Table(
    *('kill', 'run', 'moment', 'signal', 'last step logged', 'resumed at'),
    title=f'{args.kills} kills, seed {args.seed}',
  )

  def fail(why: str, run: Run) -> int:
    console.print(table)
    console.print(f'{why}; see {run.workdir}', markup=False, soft_wrap=True)
    console.print(run.said()[-2000:], markup=False, soft_wrap=True)
    return 1

  write_files(folder)
  wholes, kinds = {}, args.kinds.split(',')
  for kind in kinds:
    whole = wholes[kind] = Run(folder / kind, kind, args.config, flags)
    whole.start()
    if whole.process.wait() != 0:
      return fail('the run that is left alone failed', whole)
  kills = complete = 0
  for planned in rounds(rng):
    if kills >= args.kills:
      break
    kind = kinds[complete % len(kinds)]
    run = Run(folder / f'killed{complete}', kind, args.config, flags)
    if args.kills < len(kinds) * len(planned):
      # Too few for all: some of each kind's, other than the first.
      planned = planned[1 : 1 - (-args.kills // len(kinds))]
    left, row = planned[: args.kills - kills], None
    while True:
      run.start()
      code, kill = None, left.pop(0) if left else None
      if kill:
        code = run.kill_when(moment(run, kill.phase, rng), kill.number)
      if code is None:
        code = run.process.wait()
      if row:
        table.add_row(*row, run.resumed_at())
        row = None
      if code == 0:  # it was done before it was killed, or just then
        if left:
          continue
        break
      if not kill:
        return fail(f'exit code {code} without a kill', run)
      kills += 1
      name = signal.Signals(kill.number).name
      told = f'{complete}, {kind}'
      row = [str(kills), told, kill.phase, name, str(run.last_step())]
      expected = -kill.number if name == 'SIGKILL' else 75
      if kill.phase == 'start' and not run.said():
        expected = code  # Python still loads the command
      if code != expected:
        return fail(f'exit code {code} after {name}', run)
      console.print(f'kill {kills} of {args.kills}: {name}, {kill.phase}')
    found = differences(wholes[kind], run)
    if found:
      return fail('; '.join(found), run)
    complete += 1
    shutil.rmtree(run.workdir)
  console.print(table)
  console.print(
    f'{kills} kills of {complete} runs: all end as the one that was left alone'
  )
  shutil.rmtree(folder)
  return 0


if __name__ == '__main__':
  sys.exit(main())
