# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pins what a change of the structure must not change, and checks it.

  python -m tests.support.pins write workdirs/pins.json   # at the commit before
  python -m tests.support.pins check workdirs/pins.json   # after each room
  python -m tests.support.pins check workdirs/pins.json --only 'bert|smoke'

Every `cpu` config and every small one trains 20 steps on a text that is made
from Python's own source files, by the command line alone, so that the pins
outlive any module. Of each run these are pinned: losses and gradient norms to
the last bit, the token store and its manifest, the ledger of all steps, the
paths of the checkpoint's arrays, and the exported tensors. Of every paper's
config, the parameters and FLOPs of all sizes; of docs/plans.json, the printed
table. The bits of a loss belong to a machine and its libraries: write and
check on the same one.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

import safetensors.numpy

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 20
ROWS = 12  # UniLM's four masks and three kinds of rows divide it
TEACHER = 'bert'  # the run that distilbert learns from
SMALL = ('notes', 'shakespeare_char', 'smoke')


def runs() -> list[str]:
  """Names of the configs that train, a teacher before its student."""
  found = [
    path.stem
    for path in sorted((ROOT / 'configs').glob('*.py'))
    if path.stem in SMALL or re.search(r"^ *'cpu': |\{.*'cpu': ", path.read_text(), re.MULTILINE)
    if 'finetune.' not in path.read_text()  # those are of `gpt-jax finetune`
  ]
  return sorted(found, key=lambda name: name != TEACHER)


def write_corpus(folder: pathlib.Path) -> None:
  """About a megabyte of text, and lines of pairs: each line and its reverse."""
  folder.mkdir(parents=True)
  stdlib = pathlib.Path(sysconfig.get_path('stdlib'))
  sources = []
  for path in sorted(stdlib.glob('[a-m]*.py')):
    text = path.read_text(encoding='utf-8')
    (folder / f'{path.stem}.txt').write_text(text, encoding='utf-8')
    sources += [line.strip() for line in text.splitlines() if line.strip()]
  targets = [' '.join(reversed(line.split())) for line in sources]
  for name, lines in (('source', sources), ('target', targets)):
    text = ''.join(f'{line}\n' for line in lines)
    (folder / f'pairs.{name}').write_text(text, encoding='utf-8')


def digest(*parts: bytes | str) -> str:
  found = hashlib.sha256()
  for part in parts:
    found.update(part.encode() if isinstance(part, str) else part)
  return found.hexdigest()[:16]


def digest_folder(folder: pathlib.Path) -> str:
  """Of all files below a folder, with their names."""
  return digest(
    *(
      part
      for path in sorted(folder.rglob('*'))
      if path.is_file()
      for part in (path.relative_to(folder).as_posix(), path.read_bytes())
    )
  )


def gpt_jax(*args: str) -> str:
  """Runs a command and returns what it printed on stdout."""
  done = subprocess.run(
    [sys.executable, '-m', 'gpt_jax', *args],
    cwd=ROOT,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''},
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    raise RuntimeError(f'{" ".join(args)}\n{done.stderr[-2000:]}')
  return done.stdout


def overrides(name: str, config: Any, work: pathlib.Path) -> list[str]:
  """What makes a run short, and reads the corpus in `work`."""
  corpus = work / 'corpus'
  source = f"text('{corpus}/*.txt')"
  if (config.data.rows or '').startswith('parallel'):
    source = f"parallel_text('{corpus}/*.source', '{corpus}/*.target')"
  schedule = re.sub(r'warmup=\d+', 'warmup=5', config.schedule.name)
  fields = {
    'data.source': source,
    'data.holdout': 'documents(fraction=0.2)',
    'schedule.num_steps': STEPS,
    'schedule.name': schedule,
    'batch.size': ROWS,
    'checkpoint.every_steps': STEPS,
    'eval.every_steps': 0,
    'eval.num_batches': 2,
    'log.every_steps': 1,
    'log.trackers': 'none',
    'log.sample_prompt': '',
  }
  if name == 'distilbert':
    fields['objective.teacher'] = work / TEACHER
  return [f'--config.{field}={value}' for field, value in fields.items()]


def pin_run(name: str, work: pathlib.Path) -> dict[str, Any]:
  """Trains one config for `STEPS` steps, and pins what it leaves behind."""
  sys.path.insert(0, str(ROOT))
  module = __import__(f'configs.{name}', fromlist=['get_config'])
  size = '' if name in SMALL else 'cpu'
  folder = work / name
  gpt_jax(
    'train',
    f'--config=configs/{name}.py' + f':{size}' * bool(size),
    f'--workdir={folder}',
    *overrides(name, module.get_config(size), work),
  )
  lines = [json.loads(line) for line in (folder / 'metrics.jsonl').open()]
  logged = [line for line in lines if 'grad_norm' in line]
  evaluated = [line for line in lines if any('eval/' in key for key in line)]
  metadata = json.loads(next((folder / 'checkpoints').rglob('_METADATA')).read_text())
  ledger = gpt_jax('inspect', f'--workdir={folder}', f'--steps=1:{STEPS + 1}')
  pinned = {
    'losses': [float(line['loss']).hex() for line in logged],
    'grad_norms': [float(line['grad_norm']).hex() for line in logged],
    'held_out': {
      key: value
      for key, value in (evaluated[-1] if evaluated else {}).items()
      if key.endswith('loss')
    },
    'manifest': digest((folder / 'data' / 'manifest.json').read_bytes()),
    'store': digest_folder(folder / 'data'),
    'tokenizer': digest_folder(folder / 'tokenizer'),
    'ledger': digest(ledger),
    'paths': digest(*sorted(metadata['tree_metadata'])),
  }
  exported = work / f'{name}_hf'
  try:
    gpt_jax('convert', f'--workdir={folder}', f'--to_hf={exported}')
  except RuntimeError as e:
    pinned['export'] = str(e).strip().splitlines()[-1].replace(str(work), '')
  else:
    tensors = safetensors.numpy.load_file(exported / 'model.safetensors')
    pinned['export'] = digest(
      *(
        part
        for key, value in sorted(tensors.items())
        for part in (f'{key} {value.dtype} {value.shape}', value.tobytes())
      )
    )
  return pinned


def papers() -> dict[str, Any]:
  """Parameters and FLOPs of all sizes of the papers, and the plans' table."""
  return {
    'papers': digest(gpt_jax('inspect', '--table')),
    'plans': digest(gpt_jax('plan', '--table')),
  }


def pins(work: pathlib.Path, only: str) -> dict[str, Any]:
  """All pins by name; of the runs, those whose name `only` matches."""
  write_corpus(work / 'corpus')
  found = {}
  names = [name for name in runs() if re.search(only, name)]
  if 'distilbert' in names and TEACHER not in names:
    names = [TEACHER, *names]
  for name in names:
    found[name] = pin_run(name, work)
    print(name, found[name]['losses'][-1], flush=True)
  return {**found, **papers()}


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
  """One line for each pin that is not what it was."""
  lines = []
  for name in new:
    was, is_now = old.get(name), new[name]
    if isinstance(was, dict) and isinstance(is_now, dict):
      lines += [
        f'{name}.{key}: was {was.get(key)}, is {is_now.get(key)}'
        for key in sorted({*was, *is_now})
        if was.get(key) != is_now.get(key)
      ]
    elif was != is_now:
      lines.append(f'{name}: was {was}, is {is_now}')
  return lines


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('action', choices=('write', 'check'))
  parser.add_argument('file', type=pathlib.Path)
  parser.add_argument('--only', default='', help='a pattern of config names')
  args = parser.parse_args()
  work = args.file.with_suffix('.runs').absolute()
  shutil.rmtree(work, ignore_errors=True)
  new = pins(work, args.only)
  shutil.rmtree(work)
  if args.action == 'write':
    args.file.parent.mkdir(parents=True, exist_ok=True)
    args.file.write_text(json.dumps(new, indent=1) + '\n')
    return 0
  lines = differences(json.loads(args.file.read_text()), new)
  print(*lines, sep='\n')
  print(f'{len(new)} pins, {len(lines)} differences')
  return bool(lines)


if __name__ == '__main__':
  sys.exit(main())
