# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A cloud in a folder, and the scripts of launch/ run against it."""

import contextlib
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TPU = ROOT / 'launch/tpu.sh'
# In place of a training run: the n-th start on host i ends with the i-th code
# of line n of `codes`; `wait` waits for SIGTERM, and saves.
PROGRAM = """
n=$(cat "$FAKE_CLOUD/starts.$JAX_PROCESS_ID" 2> /dev/null || echo 0)
echo $((n + 1)) > "$FAKE_CLOUD/starts.$JAX_PROCESS_ID"
line=($(sed -n "$((n + 1))p" "$FAKE_CLOUD/codes"))
code=${line[$JAX_PROCESS_ID]}
echo "start $n of host $JAX_PROCESS_ID in $(basename "$PWD")"
echo "the key is ${WANDB_API_KEY:-unset}"
mkdir -p "$WORKDIR"
echo '{}' > "$WORKDIR/config.json"
if [[ $code == wait ]]; then
  trap 'echo "program: stopped; saved"; exit 75' TERM
  touch "$FAKE_CLOUD/waiting.$JAX_PROCESS_ID"
  sleep 100 &
  wait
fi
echo "program: ends with $code"
exit "$code"
"""
UV = """#!/usr/bin/env bash
set -e
if [[ $1 == venv ]]; then
  mkdir -p "${!#}/bin"
  for name in python gpt-jax; do
    module=; [[ $name == python ]] || module='-m gpt_jax'
    printf '#!/bin/sh\\nexec %s %s "$@"\\n' "$REAL_PYTHON" "$module" \\
      > "${!#}/bin/$name"
    chmod +x "${!#}/bin/$name"
  done
else
  # What pip needs of a checkout: setup.py lists the packages.
  [[ -f pyproject.toml && -f setup.py && -f constraints.txt ]]
  [[ -f README.md && -f LICENSE && -d gpt_jax && -d configs ]]
fi
"""


class Cloud:
  """The folder, and what to do with it."""

  def __init__(self, folder: pathlib.Path, workers: int):
    self.folder = folder
    self.workdir = folder / 'shared/run'
    for name in ('bin', 'hosts', 'buckets', 'shared'):
      (folder / name).mkdir(parents=True)
    self._state = {'resources': {}, 'workers': workers, 'faults': []}
    self._state['states'] = ['WAITING_FOR_RESOURCES', 'PROVISIONING', 'ACTIVE']
    self._write()
    (folder / 'program.sh').write_text(PROGRAM)
    gcloud = f'#!/bin/sh\nexec {sys.executable} -S {ROOT}/tests/support/fake_gcloud.py'
    self.script('gcloud', gcloud + ' "$@"\n')
    self.script('uv', UV)

  def script(self, name: str, text: str) -> None:
    path = self.folder / 'bin' / name
    path.write_text(text)
    path.chmod(0o755)

  def _write(self) -> None:
    (self.folder / 'cloud.json').write_text(json.dumps(self._state))

  def change(self, **fields: Any) -> None:
    """Replaces fields of the cloud; to be called while nothing runs."""
    self._state = json.loads((self.folder / 'cloud.json').read_text())
    self._state |= fields
    self._write()

  def fault(self, match: str, times: int = 1, **what: Any) -> None:
    """The next calls that match go wrong."""
    self.change()
    self._state['faults'].append({'match': match, 'times': times, **what})
    self._write()

  def codes(self, *lines: str) -> None:
    """How the program ends at each start, by host."""
    (self.folder / 'codes').write_text('\n'.join(lines) + '\n')

  def settings(self, **fields: str) -> pathlib.Path:
    """A settings file; values are Bash."""
    fields = {
      'NAME': 'run',
      'ZONE': 'us-central2-b',
      'ACCELERATOR': 'v4-16',
      'WORKDIR': str(self.workdir),
      'SPOT': 'yes',
      'POLL_SECONDS': '0.1',
      'COMMAND': f'(bash {self.folder}/program.sh)',
      **fields,
    }
    path = self.folder / 'settings.sh'
    path.write_text(''.join(f'{k}={v}\n' for k, v in fields.items()))
    return path

  def env(self) -> dict[str, str]:
    return {
      **os.environ,
      'PATH': f'{self.folder}/bin:{os.environ["PATH"]}',
      'FAKE_CLOUD': str(self.folder),
      'REAL_PYTHON': sys.executable,
      'WORKDIR': str(self.workdir),
    }

  def start(self, *args: Any) -> subprocess.Popen:
    """Starts launch/tpu.sh."""
    return subprocess.Popen(
      [str(TPU), *map(str, args)],
      env=self.env(),
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )

  def run(self, *args: Any, answer: str = '') -> tuple[int, str]:
    """Runs launch/tpu.sh; gives its exit code and all that it said."""
    done = subprocess.run(
      [str(TPU), *map(str, args)],
      env=self.env(),
      input=answer,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    return done.returncode, done.stdout

  def calls(self, *words: str) -> list[list[str]]:
    """The calls of gcloud that begin so, after `compute tpus`."""
    path = self.folder / 'calls.jsonl'
    lines = path.read_text().splitlines() if path.exists() else []
    calls = [json.loads(line) for line in lines]
    short = [c[2:] if c[:2] == ['compute', 'tpus'] else c for c in calls]
    return [c for c in short if c[: len(words)] == [*words]]

  def states(self) -> dict[str, list[str]]:
    with self.held():
      text = (self.folder / 'cloud.json').read_text()
    return {k: v['states'] for k, v in json.loads(text)['resources'].items()}

  def runs(self) -> list[pathlib.Path]:
    """What each host knows of its run."""
    return sorted(self.folder.glob('hosts/*/*/gpt_jax_run'))

  def terminate(self) -> None:
    """As a host that goes down: SIGTERM to all processes, and their end."""
    runs = self.runs()
    for run in runs:
      group = os.getpgid(int((run / 'pid').read_text()))
      os.killpg(group, signal.SIGTERM)
    wait_until(lambda: all((run / 'exit_code').exists() for run in runs))

  def stop(self, state: str = 'STOPPED') -> None:
    """As a user stops a node by hand; its disk stays."""
    self.change()
    for resource in self._state['resources'].values():
      resource['stopped'] = state
    self._write()

  @contextlib.contextmanager
  def held(self):
    """Meanwhile calls of gcloud wait."""
    with open(self.folder / 'cloud.json', encoding='utf-8') as f:
      fcntl.flock(f, fcntl.LOCK_EX)
      yield

  def take_away(self) -> list[str]:
    """Preempts the slices: the hosts are told, and are no more.

    Returns:
      What each run said last.
    """
    with self.held():
      self.terminate()
      logs = [(run / 'log').read_text() for run in self.runs()]
      self.change()
      for resource in self._state['resources'].values():
        resource['states'] = ['SUSPENDING', 'SUSPENDED']
        for node in resource['nodes']:
          self._take(node)
      self._write()
    return [log.splitlines()[-1] for log in logs]

  def lose(self, name: str) -> None:
    """A slice with a request of its own is gone, and another is not given."""
    with self.held():
      self.change(states=['WAITING_FOR_RESOURCES'])
      self._state['resources'][name]['states'] = ['SUSPENDED']
      self._write()
      for run in self.folder.glob(f'hosts/{name}/*/gpt_jax_run'):
        os.killpg(os.getpgid(int((run / 'pid').read_text())), signal.SIGKILL)
      self._take(name)

  def _take(self, node: str) -> None:
    """Takes a node's hosts away; a process that ends late may still write."""
    gone = tempfile.mkdtemp(prefix='gone_', dir=self.folder)
    (self.folder / 'hosts' / node).rename(pathlib.Path(gone) / 'hosts')

  def give(self, name: str) -> None:
    """What was asked for is there."""
    with self.held():
      self.change()
      self._state['resources'][name]['states'] = ['ACTIVE']
      self._write()


def wait_until(condition) -> None:
  """Waits, but not for ever: for what a hung run would not make true."""
  for _ in range(6000):
    if condition():
      return
    time.sleep(0.1)
  pytest.fail('it did not come true')
