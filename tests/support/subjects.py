# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The commands that `crash` kills and whose files `damage` damages.

`KINDS` and `TINY` are runs that train; `JOBS` are the other commands.
"""

import functools
import json
import logging
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gpt_jax.core.optim.train_state import TrainState
from tests.support import forks, whole_runs

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 60
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
  '--config.checkpoint.keep=3',
]
GROWING = f'--config.batch.size=ramp(0:3, {STEPS // 2}_steps:6)'
PRE_TRAINING = [
  'train',
  GROWING,
  "--config.data.source=text('configs/*.py')",
  '--config.data.holdout=tail(fraction=0.1)',
  '--config.log.sample_tokens=0',
]
_BYTES = ['--config.tokenizer.name=bytes']
# A command and its flags, in which {folder} has the files below, and {out} is
# the workdir.
KINDS = {
  'decoder': [*PRE_TRAINING, *_BYTES, '--config.log.sample_tokens=5'],
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
  *PRE_TRAINING,
  *_BYTES,
  '--config.checkpoint.local_every_steps=2',
  '--config.checkpoint.local_dir={out}',
]
# Saves all the time.
KINDS['minutes'] = [*PRE_TRAINING, *_BYTES, '--config.checkpoint.every_minutes=0']
# `crash` starts it on one, two or four devices.
KINDS['exact'] = [*PRE_TRAINING, *_BYTES, '--config.batch.exact_over=4']
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
# Rollouts of two batches, which are learned twice.
KINDS['grpo'] = [
  'grpo',
  '--config=configs/finetune/grpo.py',
  '--init=none',
  '--config.tokenizer.name=bytes',
  '--config.model.num_heads=4',
  '--config.finetune.peak=1e-3',
  '--prompts={folder}/prompts.jsonl',
  '--reward={folder}/rewards.py:share',
  "--config.finetune.task=grpo('', '', max_completion_length=5, num_generations=3, "
  'steps_per_generation=2, num_iterations=2, beta=0.1)',
  '--config.batch.size=6',
]


# Of `whole_runs`: an encoder-decoder, two models, recurrent ones, a student, and
# what goes on from a model.
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
  'tasks',
  'reward',
  'dpo',
)
_TINY_FIELDS = {
  'schedule.num_steps': STEPS,
  'checkpoint.every_steps': 7,
  'checkpoint.keep': 3,
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
    before: commands that are run once; {out} begins as a copy of what they
      leave in theirs.
  """

  argv: list[str]
  files: str
  before: tuple[list[str], ...] = ()


_TAUGHT = [*_STORE, '--config.data.store={out}/store', *FLAGS[:3]]
_MODEL = [
  ['prepare', *_STORE, '--out={out}/store'],
  [
    'train',
    *_TAUGHT,
    '--workdir={out}/model',
    '--config.schedule.num_steps=1',
    '--config.log.sample_prompt=',
  ],
]
# With checkpoints of three steps.
_EVALUATED = [
  *PRE_TRAINING,
  *_STORE[:2],
  *FLAGS,
  '--config.schedule.num_steps=9',
  '--config.checkpoint.every_steps=3',
  '--workdir={out}',
]
JOBS = {
  'prepare': Job(
    [
      'prepare',
      '--config=configs/smoke.py',
      '--out={out}',
      "--config.data.source=text('{folder}/corpus/*/*.py')",
      '--config.data.clean=c4, minhash',
      '--config.tokenizer.name=byte_bpe(vocab_size=400)',
    ],
    '**/*',
  ),
  'teach': Job(
    [
      'teach',
      *_TAUGHT,
      '--teacher={out}/model',
      '--out={out}/taught',
      '--config.batch.size=4',
      "--config.objective.name=distilled(text='causal', top_k=5, cosine=0.0)",
    ],
    'taught/**/*',
    (*_MODEL,),
  ),
  'evaluate': Job(
    ['evaluate', '--workdir={out}', '--tasks_dir={folder}', "--tasks=validation,text('0.txt')"],
    'evaluations/step-*.json',
    (_EVALUATED,),
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


# Their runs are processes of their own, so a fault takes ten times as long.
DEAR = ('compare', 'scaling')


FOLDER = 'what is left alone is kept there, for the next sittings with the same code and flags'


def begin(folder: str | None) -> pathlib.Path:
  """The folder of a sitting, with what the commands read."""
  made = pathlib.Path(folder or tempfile.mkdtemp(prefix='gpt_jax_faults_'))
  write_files(made)
  return made


def write_files(folder: pathlib.Path) -> None:
  """Writes what the commands read."""
  whole_runs.write_files(folder)
  if not (folder / 'corpus').exists():  # our own code, which the next sitting may change
    shutil.copytree(ROOT / 'gpt_jax', folder / 'corpus')
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


class Run:
  """A workdir, and the process that trains in it.

  Attributes:
    devices: of the next process.
  """

  def __init__(
    self, workdir: pathlib.Path, kind: str, config: str, flags: list[str], *, forked: bool = False
  ):
    """Starts nothing yet; `forked`: see `forks`."""
    self.workdir, self.devices = workdir, 1
    self._said = workdir.with_suffix('.stderr')
    folder = workdir.parent
    if kind == 'local':  # whose checkpoints are in a folder that is there
      workdir.mkdir(exist_ok=True)
    if kind in TINY:
      tiny = whole_runs.RUNS[kind]
      command = tiny.command
      own = whole_runs.flags_of(tiny, folder / kind, _TINY_FIELDS)
    else:
      command, *own = _filled(KINDS[kind], folder, workdir)
      if command == 'train':
        own = [f'--config={config}', *own]
      own += FLAGS
    self._prepares = command == 'train' and not any('data.store' in flag for flag in own)
    self._argv = [command, *own, *flags, f'--workdir={workdir}']
    self._forked = forked

  def start(self, *, anew: bool = False) -> None:
    """Starts the command, the same each time.

    Args:
      anew: as a user does, also where it is forked otherwise.
    """
    self.process: subprocess.Popen | forks.Fork
    if self._forked and not anew:
      self.process = forks.Fork(
        self._argv, folder=str(ROOT), said=str(self._said), devices=self.devices
      )
      return
    # A checkout's own code, whatever is installed.
    env = {**os.environ, 'JAX_PLATFORMS': 'cpu', **forks.variables(self.devices)}
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
    return self._newest().get('step', 0)

  def evaluating(self) -> bool:
    """Whether a step waits for its evaluation."""
    newest = self._newest()
    return 'loss' in newest and newest['step'] % EVAL_EVERY == 0

  def _newest(self) -> dict:
    """The last whole line of metrics.jsonl that is no event."""
    try:
      with (self.workdir / 'metrics.jsonl').open('rb') as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
        lines = file.read().split(b'\n')[:-1]
    except FileNotFoundError:
      return {}
    found = (line for line in reversed(lines) if line[:1] == b'{' and b'"event"' not in line)
    return json.loads(next(found, b'{}'))

  @functools.cached_property
  def state(self) -> TrainState:
    """The last state, of a run that is complete."""
    return whole_runs.state_of(self.workdir)

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
      time.sleep(0.003)
    self.process.send_signal(number)
    return self.process.wait()


class Work:
  """A folder, and the process of a `Job` that writes it."""

  def __init__(self, out: pathlib.Path, kind: str):
    """Starts nothing yet; the folder is what the commands before left."""
    self.workdir, self._job = out, JOBS[kind]
    self._said = out.with_suffix('.stderr')
    self._argv = _filled(self._job.argv, out.parent, out)
    begins = out.parent / f'{kind}_begins'
    if self._job.before and not begins.exists():
      for argv in self._job.before:
        self._argv, argv = _filled(argv, out.parent, begins), self._argv
        self.start()
        assert self.process.wait() == 0, self.said()
        self._argv = argv
    if self._job.before and not out.exists():
      shutil.copytree(begins, out)

  def start(self) -> None:
    """Starts the command, the same each time."""
    self.began = time.monotonic()
    self.process = forks.Fork(self._argv, folder=str(ROOT), said=str(self._said))

  def said(self) -> str:
    """What the process said on stderr."""
    return self._said.read_text(encoding='utf-8')

  @functools.cached_property
  def files(self) -> dict[str, Any]:
    """The files that the command is for, by their names; they may name its folder."""
    here = str(self.workdir).encode()
    return {
      str(path.relative_to(self.workdir)): content(path.name, path.read_bytes().replace(here, b''))
      for path in sorted(self.workdir.glob(self._job.files))
      if path.is_file() and not path.name.startswith('.')
    }


def _filled(argv: list[str], folder: pathlib.Path, out: pathlib.Path) -> list[str]:
  return [flag.replace('{folder}', str(folder)).replace('{out}', str(out)) for flag in argv]


def content(name: str, data: bytes) -> Any:
  """What a file holds; of JSON without what the clock decides."""
  if not name.endswith('.json'):
    return data

  def timeless(x: Any) -> Any:
    if isinstance(x, dict):
      items = x.items()
      return {k: timeless(v) for k, v in items if not any(c in k for c in CLOCKS)}
    return [timeless(y) for y in x] if isinstance(x, list) else x

  try:
    return timeless(json.loads(data))
  except ValueError:  # it was damaged, and nobody noticed
    return data


def whole(
  kind: str, folder: pathlib.Path, config: str, flags: list[str]
) -> tuple[Run | Work, float]:
  """The run of a kind that is left alone, and the seconds that it took.

  In a folder that has it, it is the one of the sitting before.
  """
  kept = folder / f'{kind}.pickle'
  if kept.exists():
    return pickle.loads(kept.read_bytes())
  if kind in JOBS:
    subject: Run | Work = Work(folder / f'{kind}_out', kind)
  else:
    if kind in TINY:
      _begin_tiny(kind, folder / kind)
    subject = Run(folder / f'whole_{kind}', kind, config, flags, forked=True)
  began = time.monotonic()
  subject.start()
  if subject.process.wait() != 0:
    raise SystemExit(f'{kind}, which is left alone, failed: {subject.said()}')
  seconds = time.monotonic() - began
  assert isinstance(subject, Run) or subject.files, kind
  del subject.process
  kept.write_bytes(pickle.dumps((subject, seconds)))
  return subject, seconds


def _begin_tiny(kind: str, folder: pathlib.Path) -> None:
  """Makes what a run of `TINY` reads."""
  whole_runs.write_files(folder)
  tiny = whole_runs.RUNS[kind].before
  if not tiny:
    return
  flags = whole_runs.flags_of(tiny, folder, {})
  argv, said = [tiny.command, *flags, f'--workdir={folder}/before'], f'{folder}/before.stderr'
  assert forks.Fork(argv, folder=str(ROOT), said=said).wait() == 0, kind


def differences(whole: Run | Work, faulted: Run | Work, after: int = 0) -> list[str]:
  """What differs between two that are complete, in words.

  Of what a run logged only what came after step `after` is compared.
  """
  if isinstance(whole, Run) and isinstance(faulted, Run):
    return _differences(whole, faulted, after)
  assert isinstance(whole, Work) and isinstance(faulted, Work)
  a, b = whole.files, faulted.files
  return [f'{name} differs' for name in sorted({*a, *b}) if a.get(name) != b.get(name)]


def _differences(whole: Run, killed: Run, after: int) -> list[str]:
  import jax
  import numpy as np

  logging.getLogger('absl').setLevel(logging.ERROR)
  found = []
  a, b = ([x for x in run.results() if x['step'] > after] for run in (whole, killed))
  if a != b:
    steps = [x['step'] for x, y in zip(a, b, strict=False) if x != y]
    found.append(f'metrics differ: {len(a)} lines and {len(b)}, steps {steps}')
  states = [whole.state, killed.state]
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
