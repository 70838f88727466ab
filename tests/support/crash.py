# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Kills a command at random moments, and checks that nobody can tell.

  python -m tests.support.crash --kills 100
  python -m tests.support.crash --kills 10 --seed 3 --config.batch.size=12
  python -m tests.support.crash --kills 16 --kinds sft,ppo,prepare

The same command is started again after each kill until it is done, and then
another one, until there were as many kills as asked for. In turn: training of a
decoder, an encoder on masked pairs of texts, a decoder with local checkpoints,
fine-tuning on dialogues, PPO; the tiny runs of `whole_runs` that `--kinds` has
(an encoder-decoder, two models, recurrent ones, fine-tuning); and `prepare`,
`teach`, `compare` and `scaling`.
Each is compared with one of its kind that was left alone: parameters, optimizer
state, average of the weights, every logged loss and evaluation, bit for bit, or
the files that a command is for.
Batches of pre-training grow on the way, the encoder's rows too; masks, dropout
and rounding are random.
The eight kills of a run hit every phase; fewer than eight for each kind are
shared by one run of each. Processes are forked from one that has imported
everything, but for those that are killed at their start. Ends with exit code 1
on any difference, and where a signal does not end in the code that it should.
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
from typing import Any, NamedTuple

from tests.support import forks, whole_runs

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
  'train',
  GROWING,
  "--config.data.source=text('configs/*.py')",
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
  'sft',
  '--config=configs/finetune/sft.py',
  '--init=none',
  '--config.tokenizer.name=bytes',
  '--config.model.num_heads=4',
  '--train={folder}/dialogues.jsonl',
  '--dev={folder}/dialogues.jsonl',
  "--config.finetune.task=sft('', '', template='vicuna')",
  '--config.batch.size=6',
]
# Windows of four updates, and checkpoints within them.
KINDS['ppo'] = [
  'ppo',
  '--config=configs/finetune/ppo.py',
  '--init=none',
  '--config.tokenizer.name=bytes',
  '--config.model.num_heads=4',
  '--config.finetune.peak=1e-3',
  '--prompts={folder}/prompts.jsonl',
  '--reward={folder}/rewards.py:share',
  "--config.finetune.task=ppo('', '', max_completion_length=5, "
  'num_mini_batches=2, num_ppo_epochs=2, ptx=2.0, '
  "ptx_text='{folder}/prompts.jsonl')",
  '--config.batch.size=6',
]


# Of `whole_runs`.
TINY = (
  'mass',
  'electra',
  'ulmfit',
  'elmo',
  'distilbert',
  'cvt',
  'classifier',
  'adapters',
  'transformer_xl',
  'switch',
)
_TINY_FIELDS = {
  'schedule.num_steps': STEPS,
  'checkpoint.every_steps': 7,
  'eval.every_steps': EVAL_EVERY,
}
_STORE = [
  '--config=configs/smoke.py',
  '--config.tokenizer.name=bytes',
  "--config.data.source=text('configs/*.py')",
]
_SMALL = (
  '--config.model.num_layers=1 --config.model.d_model=16 '
  '--config.model.num_heads=2 --config.model.context_length=16 '
  '--config.tokenizer.name=bytes --config.batch.size=4 '
  '--config.batch.micro_rows=0 --config.eval.rows=2 '
  '--config.log.sample_prompt= --config.data.holdout="tail(fraction=0.1)" '
  '''--config.data.source="text('configs/b*.py')"'''
)


class Job(NamedTuple):
  """A command that trains no single run.

  Attributes:
    argv: of it, in which {folder} has the files, and {out} is its own.
    files: what it is for, below {out}; those that are JSON are compared
      without what the clock decides.
    before: commands that are run once, before all.
  """

  argv: list[str]
  files: str
  before: tuple[list[str], ...] = ()


_TAUGHT = [*_STORE, '--config.data.store={folder}/store']
JOBS = {
  'prepare': Job(
    [
      'prepare',
      '--config=configs/smoke.py',
      '--out={out}',
      "--config.data.source=text('gpt_jax/*/*.py')",
      '--config.data.clean=c4, minhash',
      '--config.tokenizer.name=byte_bpe(vocab_size=400)',
    ],
    '**/*',
  ),
  'teach': Job(
    [
      'teach',
      *_TAUGHT,
      '--teacher={folder}/teacher',
      '--out={out}',
      '--config.model.context_length=31',
      '--config.batch.size=4',
      "--config.objective.name=distilled(text='causal', top_k=5, cosine=0.0)",
    ],
    '**/*',
    (
      ['prepare', *_STORE, '--out={folder}/store'],
      ['train', *_TAUGHT, '--workdir={folder}/teacher', *FLAGS, '--config.schedule.num_steps=1'],
    ),
  ),
  'compare': Job(
    [
      'compare',
      '--workdir={out}',
      '--seeds=0,1',
      '--run=a configs/smoke.py',
      '--run=b configs/smoke.py ',
      f'--flags={_SMALL} --config.schedule.num_steps=12 --config.checkpoint.every_steps=5',
    ],
    'compare.json',
  ),
  'scaling': Job(
    [
      'scaling',
      '--config=configs/scaling.py',
      '--workdir={out}',
      '--samples=10',
      '--config.sweep.budgets=3e7, 6e7',
      '--config.sweep.sizes=size(1, 12, 2, 5e-3), size(1, 16, 2, 5e-3), size(1, 24, 2, 5e-3)',
      '--config.sweep.min_tokens_per_parameter=0.01',
      '--config.schedule.name=constant(peak=1e-3)',
      '--config.model.context_length=16',
      '--config.batch.size=4',
      '--config.checkpoint.every_steps=5',
      '--config.data.holdout=tail(fraction=0.1)',
      "--config.data.source=text('configs/b*.py')",
    ],
    'scaling.json',
  ),
}


def write_files(folder: pathlib.Path) -> None:
  """Writes what the commands read."""
  whole_runs.write_files(folder)
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
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def codes(number: int) -> set[int]:
  """The exit codes that a process may end with after a signal."""
  return {
    signal.SIGKILL: {-signal.SIGKILL},
    signal.SIGTERM: {75},
    signal.SIGINT: {75, 130},  # 130 where there is nothing to save yet
  }[number]


class Run:
  """A workdir, and the process that trains in it."""

  def __init__(
    self, workdir: pathlib.Path, kind: str, config: str, flags: list[str], *, forked: bool = False
  ):
    """Starts nothing yet; `forked`: see `forks`."""
    self.workdir = workdir
    self._said = workdir.with_suffix('.stderr')
    folder = workdir.parent
    if kind in TINY:
      tiny = whole_runs.RUNS[kind]
      command = tiny.command
      own = whole_runs.flags_of(tiny, folder / kind, _TINY_FIELDS)
    else:
      command, *own = _in(folder, KINDS[kind])
      if command == 'train':
        own = [f'--config={config}', *own]
      own += FLAGS
    self._prepares = command == 'train'
    self._argv = [command, *own, *flags, f'--workdir={workdir}']
    self._forked = forked

  def start(self, *, anew: bool = False) -> None:
    """Starts the command, the same each time.

    Args:
      anew: as a user does, also where it is forked otherwise.
    """
    self.process: subprocess.Popen | forks.Fork
    if self._forked and not anew:
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
    return bool(lines and 'loss' in lines[-1] and lines[-1]['step'] % EVAL_EVERY == 0)

  def began_command(self) -> bool:
    """Whether it has said anything but that Python itself was interrupted."""
    said = self.said()
    return bool(said) and ('Traceback' not in said or ', in main\n' in said)

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


class Work:
  """A folder, and the process of a `Job` that writes it."""

  def __init__(self, out: pathlib.Path, kind: str):
    """Starts nothing yet."""
    self.workdir, self._job = out, JOBS[kind]
    self._said = out.with_suffix('.stderr')
    self._argv = [flag.replace('{out}', str(out)) for flag in _in(out.parent, self._job.argv)]

  def start(self) -> None:
    """Starts the command, the same each time."""
    self.began = time.monotonic()
    self.process = forks.Fork(self._argv, folder=str(ROOT), said=str(self._said))

  def said(self) -> str:
    """What the process said on stderr."""
    return self._said.read_text(encoding='utf-8')

  def results(self) -> dict[str, Any]:
    """The files that the command is for, by their names."""
    return {
      str(path.relative_to(self.workdir)): content(path)
      for path in sorted(self.workdir.glob(self._job.files))
      if path.is_file() and not path.name.startswith('.')
    }


def _in(folder: pathlib.Path, argv: list[str]) -> list[str]:
  return [flag.replace('{folder}', str(folder)) for flag in argv]


def content(path: pathlib.Path) -> Any:
  """Of a file; of JSON without what the clock decides."""
  if path.suffix != '.json':
    return path.read_bytes()

  def timeless(x: Any) -> Any:
    if isinstance(x, dict):
      items = x.items()
      return {k: timeless(v) for k, v in items if not any(c in k for c in CLOCKS)}
    return [timeless(y) for y in x] if isinstance(x, list) else x

  return timeless(json.loads(path.read_text(encoding='utf-8')))


class Kill(NamedTuple):
  """A signal, and in what phase it comes."""

  phase: str
  number: int


def rounds(rng: random.Random) -> Iterator[list[Kill]]:
  """Kills of one run after the other: in each every phase, and two steps.

  The data are prepared at the beginning only, and the end is at the end. Three
  runs one after the other have each phase with each of the signals.
  """
  while True:
    first_of = {phase: rng.randrange(3) for phase in PHASES}
    for again in range(3):
      kills = {p: Kill(p, SIGNALS[(first_of[p] + again) % 3]) for p in PHASES}
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

  logging.getLogger('absl').setLevel(logging.ERROR)
  found = []
  a, b = ([x for x in run.results() if x['step'] > after] for run in (whole, killed))
  if a != b:
    steps = [x['step'] for x, y in zip(a, b, strict=False) if x != y]
    found.append(f'metrics differ: {len(a)} lines and {len(b)}, steps {steps}')
  states = [whole_runs.state_of(run.workdir) for run in (whole, killed)]
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


def kill_job(
  kind: str, whole: Work, seconds: float, folder: pathlib.Path, most: int, rng: random.Random
) -> tuple[str, Work, int]:
  """Kills a job at up to four moments of the `seconds` that it takes.

  Returns:
    What is wrong, if anything; the job; and how often it was killed.
  """
  work, kills = Work(folder / f'killed_{kind}', kind), 0
  while True:
    work.start()
    number = rng.choice(SIGNALS)
    if kills < min(4, most):
      at = work.began + rng.uniform(0, seconds)
      while work.process.poll() is None and time.monotonic() < at:
        time.sleep(0.001)
      if work.process.poll() is None:
        work.process.send_signal(number)
    code = work.process.wait()
    if code == 0:
      break
    # With nothing of its own to save it dies of SIGTERM.
    if code not in {*codes(number), -signal.SIGTERM}:
      return f'exit code {code} after signal {number}', work, kills
    kills += 1
  differs = work.results() != whole.results()
  return ('its files differ' if differs else ''), work, kills


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
  parser.add_argument('--config', default='configs/smoke.py', help='of pre-training')
  parser.add_argument(
    '--kinds', default=','.join([*KINDS, *JOBS]), help=f'of runs; also {", ".join(TINY)}'
  )
  args, flags = parser.parse_known_args()
  rng, console = random.Random(args.seed), Console()
  folder = pathlib.Path(tempfile.mkdtemp(prefix='gpt_jax_crash_'))
  table = Table(
    'kill',
    'run',
    'moment',
    'signal',
    'last step logged',
    'resumed at',
    title=f'{args.kills} kills, seed {args.seed}',
  )

  def fail(why: str, run: Run | Work) -> int:
    console.print(table)
    console.print(f'{why}; see {run.workdir}', markup=False, soft_wrap=True)
    console.print(run.said()[-2000:], markup=False, soft_wrap=True)
    return 1

  write_files(folder)
  # So that the server is up before anything is timed.
  forks.Fork(['--help'], folder=str(ROOT), said=os.devnull).wait()
  kinds = args.kinds.split(',')
  wholes: dict[str, Run] = {}
  jobs: dict[str, tuple[Work, float]] = {}  # and the seconds that it took
  for kind in kinds:
    if kind in JOBS:
      for number, argv in enumerate(JOBS[kind].before):
        before = forks.Fork(_in(folder, argv), folder=str(ROOT), said=f'{folder}/{number}.stderr')
        assert before.wait() == 0, argv
      work = Work(folder / kind, kind)
      work.start()
      if work.process.wait() != 0:
        return fail('the command that is left alone failed', work)
      jobs[kind] = work, time.monotonic() - work.began
      continue
    if kind in TINY:
      whole_runs.write_files(folder / kind)
      if tiny := whole_runs.RUNS[kind].before:
        flags_of = whole_runs.flags_of(tiny, folder / kind, {})
        before = forks.Fork(
          [tiny.command, *flags_of, f'--workdir={folder}/{kind}/before'],
          folder=str(ROOT),
          said=f'{folder}/{kind}.before',
        )
        assert before.wait() == 0, kind
    whole = wholes[kind] = Run(folder / f'whole_{kind}', kind, args.config, flags, forked=True)
    whole.start()
    if whole.process.wait() != 0:
      return fail('the run that is left alone failed', whole)
  kills = complete = 0
  planned_of = {kind: rounds(rng) for kind in kinds}
  while kills < args.kills:
    kind = kinds[complete % len(kinds)]
    left = args.kills - kills
    if kind in JOBS:
      why, run, done = kill_job(kind, *jobs[kind], folder, left, rng)
      kills += done
      if why:
        return fail(why, run)
      if done:
        table.add_row(str(kills), f'{complete}, {kind}', 'any', f'{done} kills', '', '')
        console.print(f'kill {kills} of {args.kills}: {done} of {kind}')
      shutil.rmtree(run.workdir)
      complete += 1
      continue
    planned = next(planned_of[kind])
    run = Run(folder / f'killed{complete}', kind, args.config, flags, forked=True)
    if args.kills < len(kinds) * len(planned):
      # Too few for all: some of each kind's, other than the first.
      planned = planned[1 : 1 - (-args.kills // len(kinds))]
    planned, row = planned[:left], None
    while True:
      code, kill = None, planned.pop(0) if planned else None
      run.start(anew=kill is not None and kill.phase == 'start')
      if kill:
        code = run.kill_when(moment(run, kill.phase, rng), kill.number)
      if code is None:
        code = run.process.wait()
      if row:
        table.add_row(*row, run.resumed_at())
        row = None
      if code == 0:  # it was done before it was killed, or just then
        if planned:
          continue
        break
      if not kill:
        return fail(f'exit code {code} without a kill', run)
      kills += 1
      name = signal.Signals(kill.number).name
      told = f'{complete}, {kind}'
      row = [str(kills), told, kill.phase, name, str(run.last_step())]
      if run.began_command() and code not in codes(kill.number):
        return fail(f'exit code {code} after {name}', run)
      console.print(f'kill {kills} of {args.kills}: {name}, {kill.phase}')
    found = differences(wholes[kind], run)
    if found:
      return fail('; '.join(found), run)
    complete += 1
    shutil.rmtree(run.workdir)
  console.print(table)
  console.print(f'{kills} kills of {complete} runs: all end as the one that was left alone')
  shutil.rmtree(folder)
  return 0


if __name__ == '__main__':
  sys.exit(main())
