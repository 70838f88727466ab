# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A `gcloud` of which each host is a folder, for tests of launch/.

Its cloud is the folder $FAKE_CLOUD: calls.jsonl (every call), cloud.json (what
there is, and what is to go wrong), hosts/NODE/WORKER (home folders) and
buckets/. A host runs a command as a local process, in which JAX finds the other
hosts by the environment, as on a TPU VM it does by the metadata server.

It is started once for each call, so each function imports what it needs.
"""

import contextlib
import fcntl
import json
import os
import sys

CLOUD = os.environ['FAKE_CLOUD']
# What a request goes through; each look moves it on.
# Flags that the reference of `gcloud compute tpus GROUP VERB` lists, of those
# that we or a user's settings would give.
EVERYWHERE = {'--zone', '--project', '--quiet'}
CREATE = {'--accelerator-type', '--spot', '--network', '--labels'}
FLAGS = {
  ('queued-resources', 'create'): CREATE
  | {'--runtime-version', '--node-id', '--node-count', '--node-prefix'},
  ('queued-resources', 'describe'): {'--format'},
  ('queued-resources', 'delete'): {'--force', '--async'},
  ('tpu-vm', 'create'): CREATE | {'--version'},
  ('tpu-vm', 'describe'): {'--format'},
  ('tpu-vm', 'delete'): {'--async'},
  ('tpu-vm', 'start'): {'--async'},
  ('tpu-vm', 'ssh'): {'--worker', '--command'},
  ('tpu-vm', 'scp'): {'--worker', '--recurse', '--scp-flag'},
}
NOT_FOUND = 'ERROR: (gcloud) NOT_FOUND: Resource was not found'


def main(argv: list[str]) -> int:
  """One call; its exit code."""
  with open(f'{CLOUD}/calls.jsonl', 'a', encoding='utf-8') as f:
    f.write(json.dumps(argv) + '\n')
  flags, words = parse(argv)
  with editing() as cloud:
    if fault := find_fault(cloud, ' '.join(argv)):
      print(fault.get('says', 'ERROR: (gcloud) a fault'), file=sys.stderr)
      if 'worker' not in fault:
        return fault.get('code', 1)
    broken = fault.get('worker') if fault else None
  if words[:2] == ['storage', 'rsync']:
    import shutil

    source, target = map(local, words[2:])

    def left_out(folder: str, names: list[str]) -> list[str]:
      import re

      pattern, at = (flags.get('--exclude', '$^'), os.path.relpath(folder, source))
      paths = {n: os.path.normpath(f'{at}/{n}') for n in names}
      return [n for n in names if re.match(pattern, paths[n])]

    shutil.copytree(source, target, ignore=left_out, dirs_exist_ok=True)
    return 0
  if words[:2] == ['storage', 'cp']:
    import shutil

    shutil.copy(*map(local, words[2:]))
    return 0
  if words[:2] == ['storage', 'ls']:
    if os.path.exists(local(words[2])):
      return 0
    print('ERROR: One or more URLs matched no objects.', file=sys.stderr)
    return 1
  if words[:2] != ['compute', 'tpus'] or '--zone' not in flags:
    return usage(argv)
  group, verb, *names = words[2:]
  if not flags.keys() <= FLAGS.get((group, verb), set()) | EVERYWHERE:
    return usage(argv)
  if (group, verb) == ('tpu-vm', 'ssh'):
    return ssh(names[0], flags['--worker'], flags['--command'], broken)
  if (group, verb) == ('tpu-vm', 'scp'):
    return scp(names[:-1], names[-1], flags['--worker'], broken)
  with editing() as cloud:
    return resource(cloud, group, verb, names[0], flags)


def parse(argv: list[str]) -> tuple[dict[str, str], list[str]]:
  """Flags, all of the form --name=value or --name, and the other words."""
  flags = {}
  for flag in (a for a in argv if a.startswith('--')):
    name, _, flags[name] = flag.partition('=')
  return flags, [a for a in argv if not a.startswith('--')]


@contextlib.contextmanager
def editing():
  """The cloud, to be read and changed by one call at a time."""
  with open(f'{CLOUD}/cloud.json', 'r+', encoding='utf-8') as f:
    fcntl.flock(f, fcntl.LOCK_EX)
    cloud = json.load(f)
    yield cloud
    f.seek(0)
    f.truncate()
    json.dump(cloud, f)


def find_fault(cloud: dict, line: str) -> dict | None:
  """A fault that is due: {match, times, says, code, worker}."""
  import re

  for fault in cloud['faults']:
    if fault['times'] > 0 and re.search(fault['match'], line):
      fault['times'] -= 1
      return fault
  return None


def resource(cloud, group, verb, name, flags) -> int:
  """Creates, describes or deletes."""
  there = cloud['resources']
  if verb == 'create':
    if name in there:
      print('ERROR: ALREADY_EXISTS', file=sys.stderr)
      return 1
    count = int(flags.get('--node-count', 1))
    nodes = [name]
    if count > 1:
      nodes = [f'{flags["--node-prefix"]}-{i}' for i in range(count)]
    import socket

    with socket.socket() as s:
      s.bind(('127.0.0.1', 0))
      port = s.getsockname()[1]
    states = cloud['states'] if group == 'queued-resources' else ['ACTIVE']
    if cloud.get('failures', 0):
      cloud['failures'] -= 1
      states = ['PROVISIONING', 'FAILED']
    there[name] = {'states': states, 'nodes': nodes, 'port': port}
    return 0
  found = there.get(name)
  if group == 'tpu-vm' and not found:
    owners = [r for r in there.values() if name in r['nodes']]
    found = owners[0] if owners else None
  if not found:
    print(NOT_FOUND, file=sys.stderr)
    return 1
  if verb == 'delete':
    if group == 'queued-resources' and '--force' not in flags:
      return usage([verb])
    for node in found['nodes']:
      destroy(node)
    del there[name]
    return 0
  if verb == 'start':
    if found.pop('stopped', None) != 'STOPPED':
      print('ERROR: it is not stopped', file=sys.stderr)
      return 1
    return 0
  if 'networkEndpoints' in flags['--format']:
    print(f'{name}.internal')
    return 0
  if 'failedData' in flags['--format']:
    print(cloud.get('reason', 'no more capacity in the zone'))
    return 0
  state = found['states'][0]
  if len(found['states']) > 1:
    del found['states'][0]
  if state == 'ACTIVE':
    for node in found['nodes']:
      for worker in range(cloud['workers']):
        os.makedirs(home(node, worker), exist_ok=True)
  if group == 'tpu-vm':
    state = found.get('stopped', state)
    state = {'ACTIVE': 'READY', 'SUSPENDED': 'PREEMPTED'}.get(state, state)
  print(state)
  return 0


def home(node: str, worker: int) -> str:
  """The home folder of a host."""
  return f'{CLOUD}/hosts/{node}/{worker}'


def destroy(node: str) -> None:
  """The hosts of a node are no more, and what ran there."""
  import shutil
  import signal

  folder = f'{CLOUD}/hosts/{node}'
  for worker in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
    pid = f'{folder}/{worker}/gpt_jax_run/pid'
    ended = f'{folder}/{worker}/gpt_jax_run/exit_code'
    if os.path.exists(pid) and not os.path.exists(ended):
      with open(pid, encoding='utf-8') as f, contextlib.suppress(OSError):
        os.kill(int(f.read()), signal.SIGKILL)
  shutil.rmtree(folder, ignore_errors=True)


def hosts(node: str, worker: str, broken: int | None):
  """The hosts that a --worker means, without one that does not answer."""
  folder = f'{CLOUD}/hosts/{node}'
  if not os.path.isdir(folder):
    print(NOT_FOUND, file=sys.stderr)
    sys.exit(1)
  numbers = sorted(map(int, os.listdir(folder)))
  wanted = numbers if worker == 'all' else [int(worker)]
  return [i for i in wanted if i != broken]


def ssh(node: str, worker: str, command: str, broken: int | None) -> int:
  """Runs a command on hosts, all at once."""
  import subprocess

  with editing() as cloud:
    [owner] = [r for r in cloud['resources'].values() if node in r['nodes']]
    workers = cloud['workers']
  if 'stopped' in owner:
    print('ERROR: the node is not READY', file=sys.stderr)
    return 1
  number, count, port = joined(cloud, owner, node, command)
  processes = []
  for i in hosts(node, worker, broken):
    env = {
      **os.environ,
      'HOME': home(node, i),
      'HOSTNAME': f't1v-{node}-w-{i}',
      'JAX_COORDINATOR_ADDRESS': f'127.0.0.1:{port}',
      'JAX_NUM_PROCESSES': str(count * workers),
      'JAX_PROCESS_ID': str(number * workers + i),
    }
    processes.append(
      subprocess.Popen(
        ['bash', '-c', command], cwd=home(node, i), env=env, stdin=subprocess.DEVNULL
      )
    )
  codes = [p.wait() for p in processes] + [255] * (broken is not None)
  return max(codes, key=abs)


def joined(cloud, owner, node: str, command: str) -> tuple[int, int, int]:
  """Number of a slice, their count, and the coordinator's port, as JAX has it.

  Of variables that the command gives, or of the request.
  """
  import re

  given = dict(re.findall(r'MEGASCALE_([A-Z_]+)=(\S+)', command))
  if not given:
    return owner['nodes'].index(node), len(owner['nodes']), owner['port']
  first = given['COORDINATOR_ADDRESS'].removesuffix('.internal')
  [port] = [r['port'] for r in cloud['resources'].values() if first in r['nodes']]
  return int(given['SLICE_ID']), int(given['NUM_SLICES']), port


def scp(sources, target, worker: str, broken: int | None) -> int:
  """Copies files to hosts, with their modes."""
  import shutil

  node, _, folder = target.partition(':')
  for i in hosts(node, worker, broken):
    for source in sources:
      if os.stat(source).st_mode & 0o077:
        print('scp: others may read it, and it may hold secrets')
        return 1
      shutil.copy2(source, os.path.join(home(node, i), folder))
  return 255 if broken is not None else 0


def local(path: str) -> str:
  """A bucket is a folder, in which an empty name is one, too."""
  if not path.startswith('gs://'):
    return path
  return f'{CLOUD}/buckets/' + path[5:].replace('//', '/(empty)/')


def usage(argv: list[str]) -> int:
  """What gcloud says of a command that it does not know."""
  print(f'ERROR: (gcloud) Invalid choice: {argv}', file=sys.stderr)
  return 2


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
