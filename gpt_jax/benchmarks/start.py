# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a user waits for before the first step of `train`, by part.

Training starts in processes of its own, as for a user, one after the other, and
takes one step. The first process prepares the text and fills a cache of
compiled programs; it does not count. The others find both.
"""

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from gpt_jax.benchmarks import harness
from gpt_jax.core import config as config_lib
from gpt_jax.core.config import Config
from gpt_jax.core.spec import FailedError
from gpt_jax.core.training import metrics

PARTS = {
  'command': 'Python, and what reads the command line',
  'import': 'importing JAX and our modules',
  'device': 'opening the device',
  'open': "the run's files, data, tracing the step, the first state",
  'first_step': 'programs from the cache, the first batch and the step',
}
_CHILD = """
import json, sys, time
from gpt_jax.core import config as config_lib
from gpt_jax.commands import train
from gpt_jax.core.runtime import log
if __name__ == '__main__':
  log.set_up()
  file, workdir, began = sys.argv[1:]
  with open(file, encoding='utf-8') as lines:
    config = config_lib.resolve(config_lib.from_json(lines.read()))
  marks = {'command': time.time() - float(began)}
  imported = train.loop.fit, train.run.Run
  marks['import'] = time.time() - float(began)
  train.jax.devices()
  marks['device'] = time.time() - float(began)
  print(json.dumps(marks | {'log': log.seconds_since_start()}), flush=True)
  train.train(config, workdir)
"""


def measure(config: Config, steps: int) -> dict[str, Any]:
  """Starts training `steps` times, after a start that does not count.

  Returns:
    `first` and `parts`: seconds of each of `PARTS`, of the start that does not
    count, and lists of those that do.
  """
  config = config_lib.unlocked(config)
  config.schedule.num_steps = 1
  config.log.sample_prompt = ''
  with tempfile.TemporaryDirectory(dir=os.environ.get('TMPDIR')) as folder:
    config.data.store = config.data.store or os.path.join(folder, 'store')
    file = os.path.join(folder, 'config.json')
    with open(file, 'w', encoding='utf-8') as out:
      out.write(config_lib.to_json(config.lock()))
    found = [_start(folder, file) for _ in range(1 + steps)]
  first, *others = found
  return {'first': first, 'parts': {name: [x[name] for x in others] for name in PARTS}}


def _start(folder: str, file: str) -> dict[str, float]:
  """Seconds of each part of one start."""
  workdir = os.path.join(folder, 'run')
  shutil.rmtree(workdir, ignore_errors=True)
  env = {**os.environ, 'XDG_CACHE_HOME': f'{folder}/cache'}
  env.pop('JAX_COMPILATION_CACHE_DIR', None)
  child = subprocess.run(
    [sys.executable, '-c', _CHILD, file, workdir, str(time.time())],
    env=env,
    capture_output=True,
    text=True,
    check=False,
  )
  if child.returncode:
    why = (child.stderr.strip() or 'no message').splitlines()[-1]
    raise FailedError(f'train failed: {why.removeprefix("gpt_jax.core.spec.UsageError: ")}')
  marks = json.loads(child.stdout.splitlines()[0])
  events = {m['event']: m for m in metrics.read(workdir) if 'event' in m}
  # The log's clock began later than the process.
  late = marks['device'] - marks.pop('log')
  marks['open'] = events['start']['seconds'] + late
  marks['first_step'] = events['first_step']['seconds'] + late
  ends = [0.0, *(marks[name] for name in PARTS)]
  parts = (b - a for a, b in itertools.pairwise(ends))
  return dict(zip(PARTS, parts, strict=True))


def report(found: dict[str, Any]) -> str:
  """A Markdown table: medians, and the spread."""
  rows = []
  for name, what in PARTS.items():
    times = found['parts'][name]
    rows.append(
      [
        what,
        f'{statistics.median(times):.2f}',
        f'{min(times):.2f} to {max(times):.2f}',
        f'{found["first"][name]:.2f}',
      ]
    )
  totals = [sum(x) for x in zip(*found['parts'].values(), strict=True)]
  rows.append(
    [
      'all',
      f'{statistics.median(totals):.2f}',
      f'{min(totals):.2f} to {max(totals):.2f}',
      f'{sum(found["first"].values()):.2f}',
    ]
  )
  header = ['part', 'seconds (median)', 'spread', 'the very first start']
  return harness.table(header, rows)
