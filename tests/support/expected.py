# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes the expected losses of the configs for two cores, configs/expected.

  python -m tests.support.expected --work workdirs/expected
  python -m tests.support.expected --work workdirs/expected --only 'bert|smoke'

The command line trains each config of `STEPS` with three seeds, and stops after
the number of steps given there. `gpt-jax compare --expected` reads the losses.
The command does not train a run again that has its steps, so it continues after
an interruption. It needs data/tinyshakespeare/input.txt.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import time
from typing import Any

from gpt_jax.core.config import loading
from gpt_jax.core.tokens import manifest
from gpt_jax.core.training import metrics
from gpt_jax.opening import models
from gpt_jax.reports import expected

ROOT = pathlib.Path(__file__).parents[2]
SEEDS = (0, 1, 2)
EVERY = 5  # steps between two losses; divides what the configs have
# Config -> steps, of about half a minute; `smoke` whole.
STEPS = {
  'smoke.py': 500,
  'shakespeare_char.py': 500,
  'gpt1.py:cpu': 40,
  'bert.py:cpu': 30,
  'roberta.py:cpu': 20,
  'albert.py:cpu': 20,
  'electra.py:cpu': 20,
  'deberta.py:cpu': 20,
  'bigbird.py:cpu': 20,
  'unilm.py:cpu': 20,
  'xlnet.py:cpu': 20,
  'mass.py:cpu': 20,
  'bart.py:cpu': 20,
  't5.py:cpu': 20,
  'transformer_xl.py:cpu': 60,
  'char.py:cpu': 60,
  'elmo.py:cpu': 20,
  'ulmfit.py:cpu': 60,
}


def train(
  config: str,
  seed: int,
  folder: pathlib.Path,
  steps: int,
  program: tuple[str, ...] = ('-m', 'gpt_jax'),
) -> None:
  """Trains until `steps` are logged, then stops the run as SIGTERM does.

  A run of all its steps goes on to its end, where it is evaluated. The workdir
  is FOLDER/SEED, and the token store FOLDER/data.
  """
  workdir = folder / str(seed)
  whole = loading.read(f'configs/{config}').schedule.num_steps == steps
  if last_step(workdir) >= steps and not whole:
    return
  command = [
    sys.executable,
    *program,
    'train',
    f'--config=configs/{config}',
    f'--workdir={workdir}',
    f'--config.seed={seed}',
    f'--config.data.store={folder / "data"}',
    f'--config.log.every_steps={EVERY}',
    '--config.log.trackers=none',
  ]
  begun = time.monotonic()
  process = subprocess.Popen(
    command,
    cwd=ROOT,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''},
    stdout=subprocess.DEVNULL,
  )
  while process.poll() is None and (whole or last_step(workdir) < steps):
    time.sleep(0.5)
  if process.poll() is None:
    process.send_signal(signal.SIGTERM)
  code = process.wait()
  if last_step(workdir) < steps:
    raise RuntimeError(f'{config}, seed {seed}: ended with exit code {code}')
  seconds = time.monotonic() - begun
  print(f'{config}, seed {seed}: {seconds:.0f} s', flush=True)


def last_step(workdir: pathlib.Path) -> int:
  """The last step whose loss is logged; 0: there is none."""
  lines = metrics.read(str(workdir))
  return max((m['step'] for m in lines if 'loss' in m), default=0)


def curve(folder: pathlib.Path, metric: str, steps: int) -> dict[str, Any]:
  """A metric of all seeds, at the steps that it is logged at; {}: nowhere."""
  logged = [
    {m['step']: m[metric] for m in metrics.read(str(run)) if metric in m}
    for run in (folder / str(seed) for seed in SEEDS)
  ]
  common = sorted(set.intersection(*map(set, logged)) & {*range(steps + 1)})
  values = [[round(losses[i], 4) for i in common] for losses in logged]
  return {'steps': common, 'values': values} if common else {}


def write(config: str, folder: pathlib.Path, steps: int) -> None:
  """Writes configs/expected/NAME.json."""
  run = str(folder / str(SEEDS[0]))
  found = {
    'config': f'configs/{config}',
    'fields': expected.differing(models.read_config(run)),
    'fingerprint': manifest.read(str(folder / 'data')).fingerprint,
    'made_with': {
      'jax': next(m['jax'] for m in metrics.read(run) if 'jax' in m),
      'python': platform.python_version(),
      'processor': platform.machine(),
    },
    'curves': {
      metric: values
      for metric in ('loss', metrics.HELD_OUT)
      if (values := curve(folder, metric, steps))
    },
  }
  # A line for each entry, and for each curve.
  entries = [f'{json.dumps(key)}: {json.dumps(x)}' for key, x in found.items()]
  path = ROOT / expected.FOLDER / f'{folder.name}.json'
  path.parent.mkdir(exist_ok=True)
  path.write_text('{\n ' + ',\n '.join(entries) + '\n}\n')


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--work', type=pathlib.Path, required=True)
  parser.add_argument('--only', default='', help='a pattern of config names')
  args = parser.parse_args()
  for config, steps in STEPS.items():
    if not re.search(args.only, config):
      continue
    name = re.split(r'[.:]', config)[0]
    folder = (args.work / name).absolute()
    for seed in SEEDS:
      train(config, seed, folder, steps)
    write(config, folder, steps)


if __name__ == '__main__':
  main()
