# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The scripts of launch/, run against a cloud of folders and processes."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

from gpt_jax.core.runtime import tpu_flags
from tests.support.fake_cloud import ROOT, Cloud, wait_until

LAUNCH = ROOT / 'launch'


@pytest.fixture
def cloud(tmp_path):
  return Cloud(tmp_path / 'cloud', workers=2)


def test_shellcheck():
  scripts = sorted(LAUNCH.glob('*.sh'))
  assert len(scripts) > 2
  # Of this environment, which may not be on PATH.
  folders = f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'
  done = subprocess.run(
    ['shellcheck', '--external-sources', '--check-sourced', *map(str, scripts)],
    cwd=ROOT,
    env={**os.environ, 'PATH': folders},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr


def test_scripts_are_strict_and_never_trace():
  for path in LAUNCH.rglob('*.sh'):
    text = path.read_text()
    assert not re.search(r'set -[a-z]*x', text), path
    if text.startswith('#!'):
      assert '\nset -euo pipefail\n' in text, path
      assert os.access(path, os.X_OK), path


def test_up_from_nothing_to_results(cloud):
  """Queued, preempted twice, once with the hosts lost; then done and copied."""
  cloud.codes('75 75', 'wait wait', '0 0')
  settings = cloud.settings(RESULTS='gs://b/run', DELETE_AFTER='yes')
  process = cloud.start('up', settings, '--yes')
  wait_until(lambda: len(list(cloud.folder.glob('waiting.*'))) == 2)
  cloud.take_away()
  said = process.communicate()[0]
  assert process.returncode == 0, said
  order = ['WAITING_FOR_RESOURCES', 'PROVISIONING', 'ACTIVE', 'installed on']
  order += ['running on 2 hosts', 'program: ends with 75', 'preempted after']
  order += ['installed already', 'making it again']
  order += ['installed on', 'start 2 of host 0', 'program: ends with 0']
  order += ['the run is done', 'copied', 'run is deleted']
  at = 0
  for words in order:
    assert words in said[at:], f'{words} after\n{said[:at]}\nin\n{said[at:]}'
    at += said[at:].index(words)
  assert len(cloud.calls('queued-resources', 'create')) == 2
  [create, _] = cloud.calls('queued-resources', 'create')
  assert create[2:] == [
    'run',
    '--node-id=run',
    '--runtime-version=tpu-ubuntu2204-base',
    '--accelerator-type=v4-16',
    '--spot',
    '--zone=us-central2-b',
  ]
  assert (cloud.folder / 'buckets/b/run/config.json').exists()
  assert cloud.states() == {}


@pytest.mark.parametrize(
  'codes, code, words, after',
  [
    ('2 2', 2, 't1v-run-w-0: program: ends with 2', 'yes'),
    # Of two that ended, the one that knows why.
    ('134 1', 1, 't1v-run-w-1: program: ends with 1', 'always'),
  ],
)
def test_up_stops_where_starting_again_would_not_help(cloud, codes, code, words, after):
  cloud.codes(codes, '0 0')
  settings = cloud.settings(RESULTS='gs://b/run', DELETE_AFTER=after)
  found, said = cloud.run('up', settings, '--yes')
  assert found == code
  assert said.splitlines()[-1] == f'tpu.sh: {words}'
  assert 'start 1' not in said
  assert (cloud.folder / 'buckets/b/run/config.json').exists()
  assert [*cloud.states()] == ([] if after == 'always' else ['run'])


@pytest.mark.slow
def test_up_restarts_killed_runs_but_not_for_ever(cloud):
  # A save in between counts as progress.
  cloud.codes('1 137', '0 75', *['134 137'] * 3)
  code, said = cloud.run('up', cloud.settings(), '--yes')
  assert (code, said.count('starting again')) == (1, 4), said
  assert 'killed 3 times in a row' in said.splitlines()[-1]
  cloud.codes(*['75 75'] * 9)
  code, said = cloud.run('up', cloud.settings(MAX_RESTARTS='1'), '--yes')
  assert (code, said.count('starting again')) == (75, 1), said


@pytest.mark.slow
def test_each_command_goes_on_after_a_failure_at_each_step(cloud):
  """One call after the other goes wrong; the same command again repairs it."""
  cloud.codes(*['0 0'] * 9)
  settings = cloud.settings(RESULTS='gs://b/run')
  cloud.fault('queued-resources create', says='ERROR: quota exhausted')
  code, said = cloud.run('up', settings, '--yes')
  assert (code, 'quota exhausted' in said) == (1, True)
  assert 'give the same command again' in said
  # Three looks fail: it does not take the slice for absent.
  cloud.fault('queued-resources describe', 3, says='ERROR: network')
  code, said = cloud.run('up', settings, '--yes')
  assert (code, 'gcloud auth login' in said) == (1, True)
  assert len(cloud.calls('queued-resources', 'create')) == 1
  # Hosts that do not answer at first, one that fails while installing, one that
  # does not start: this `up` gets over by itself.
  cloud.fault('tpu-vm scp', says='ssh: connect: refused')
  cloud.fault('storage ls', 3, says='ERROR: network')
  cloud.fault('on_host.sh install ', worker=1)
  cloud.fault('on_host.sh start', worker=1)
  cloud.fault('on_host.sh status', 2, worker=0)
  code, said = cloud.run('up', settings, '--yes')
  assert code == 1 and 'could not be copied back' in said, said
  code, more = cloud.run('up', settings, '--yes')
  said += more
  assert code == 0, said
  for words in ('trying again', '1 of 2 hosts: installed', 'on 1 of 2 hosts'):
    assert words in said
  # The results cannot be copied: the run, which is done, says so at once.
  cloud.fault('storage rsync', says='ERROR: 403')
  code, said = cloud.run('up', settings, '--yes')
  assert code == 1 and '403' in said, said
  code, said = cloud.run('up', settings, '--yes')
  assert code == 0 and 'copied' in said


@pytest.mark.slow
def test_a_run_outlives_the_terminal(cloud):
  cloud.codes('wait wait', '0 0')
  settings = cloud.settings()
  process = cloud.start('up', settings, '--yes')
  wait_until(lambda: len(list(cloud.folder.glob('waiting.*'))) == 2)
  process.send_signal(signal.SIGTERM)
  process.communicate()
  settings = cloud.settings(HOST_SETUP="'true # edited'")
  assert 'a run is there' in cloud.run('install', settings)[1]
  process = cloud.start('up', settings, '--yes')
  # It follows the run that is there, and leaves its code alone.
  lines = iter(process.stdout)
  assert any('from the tree that it was started' in line for line in lines)
  assert any('start 0 of host 0' in line for line in lines)
  process.send_signal(signal.SIGTERM)
  process.communicate()
  assert (cloud.folder / 'starts.0').read_text() == '1\n'
  # What watches over the program is told to end, too, and waits for it.
  cloud.terminate()
  codes = [(run / 'exit_code').read_text() for run in cloud.runs()]
  assert codes == ['75\n'] * 2
  code, said = cloud.run('up', settings, '--yes')
  assert code == 0 and 'start 1 of host 0' in said, said
  assert 'installed on 2 hosts' in said


@pytest.mark.slow
def test_stragglers_are_ended_and_the_run_starts_again(cloud):
  cloud.codes('wait 137', 'wait 137', '0 0')
  settings = cloud.settings(STRAGGLER_SECONDS='1')
  process = cloud.start('up', settings, '--yes')
  assert any('ending those' in line for line in process.stdout)
  wait_until(lambda: all((cloud.folder / f'starts.{i}').read_text() == '2\n' for i in '01'))
  process.send_signal(signal.SIGTERM)
  process.communicate()
  # Another tree is not put under the one that still runs.
  edited = cloud.settings(HOST_SETUP="'true # edited'", STRAGGLER_SECONDS='9')
  code, said = cloud.run('up', edited, '--yes')
  assert code == 0 and 'some hosts run another tree' in said, said
  assert 'start 2 of host 0' in said


@pytest.mark.slow
def test_single_steps(cloud):
  cloud.codes('wait wait', '0 0')
  settings = cloud.settings(RESULTS='gs://b/run', ENVIRONMENT="('FLAVOUR=two  words')")
  assert cloud.run('create', settings, '--yes')[0] == 0
  assert 'asked for already' in cloud.run('create', settings, '--yes')[1]
  assert cloud.run('wait', settings)[0] == 0
  assert 'there already' in cloud.run('create', settings, '--yes')[1]
  assert 'installed on 2 hosts' in cloud.run('install', settings)[1]
  assert 'installed already' in cloud.run('install', settings)[1]
  assert cloud.run('run', settings)[0] == 0
  wait_until(lambda: len(list(cloud.folder.glob('waiting.*'))) == 2)
  assert cloud.run('run', settings)[0] == 0  # is left alone
  code, said = cloud.run('run', settings, '--', 'gpt-jax', 'doctor')
  assert code == 1 and 'program.sh' in said and 'tpu.sh stop' in said, said
  # What the programs said comes through a pipe.
  wait_until(lambda: 'key is unset' in cloud.run('status', settings)[1])
  before = len(cloud.calls('tpu-vm', 'ssh'))
  said = cloud.run('status', settings)[1]
  assert said.count(': running') == 2 and 'the key is unset' in said
  [asked] = cloud.calls('tpu-vm', 'ssh')[before:]
  assert '--worker=0' in asked  # for both
  # One that was silent too long is asked itself.
  [told] = cloud.workdir.parent.glob('run.hosts/*/t1v-run-w-1')
  os.utime(told, (1, 1))
  assert cloud.run('status', settings)[1].count(': running') == 2
  assert '--worker=all' in cloud.calls('tpu-vm', 'ssh')[-1]
  said = cloud.run('stop', settings)[1]
  assert said.count('stopped 75 program: stopped; saved') == 2
  assert 'program: stopped; saved' in cloud.run('logs', settings)[1]
  assert 'copied' in cloud.run('copy', settings)[1]
  other = 'echo "a  b" $0 "$FLAVOUR" "$LIBTPU_INIT_ARGS"'
  other = ('--', 'bash', '-c', other, "it's")
  assert cloud.run('run', settings, *other)[0] == 0
  wait_until(lambda: all((r / 'exit_code').exists() for r in cloud.runs()))
  flags = tpu_flags.init_args('v4')
  assert f"a  b it's two  words {flags}\n" in cloud.run('logs', settings)[1]
  # Only the last start has told of itself.
  assert len([*cloud.workdir.parent.glob('run.hosts/*')]) == 1
  assert cloud.run('delete', settings, '--yes')[0] == 0
  code, said = cloud.run('delete', settings, '--yes')
  assert code == 0 and 'nothing to delete' in said


@pytest.mark.slow  # test_single_steps stays
def test_stop_ends_up_too(cloud):
  cloud.codes('wait wait', '0 0')
  settings = cloud.settings()
  process = cloud.start('up', settings, '--yes')
  wait_until(lambda: len(list(cloud.folder.glob('waiting.*'))) == 2)
  assert cloud.run('stop', settings)[0] == 0
  said = process.communicate()[0]
  assert process.returncode == 75 and 'stopped' in said.splitlines()[-1], said
  assert cloud.run('up', settings, '--yes')[0] == 0


@pytest.mark.slow  # test_what_is_copied_back stays
def test_results_come_back_to_a_new_disk(cloud):
  """With one host WORKDIR may lie on a disk that goes with the slice."""
  cloud.change(workers=1)
  cloud.codes('wait', '0')
  settings = cloud.settings(ACCELERATOR='v6e-8', RESULTS='gs://b/run')
  process = cloud.start('up', settings, '--yes')
  wait_until(lambda: (cloud.folder / 'waiting.0').exists())
  (cloud.workdir / 'kept').write_text('checkpoint')
  assert 'copied' in cloud.run('copy', settings)[1]
  cloud.take_away()
  shutil.rmtree(cloud.workdir)
  said = process.communicate()[0]
  assert process.returncode == 0 and 'copied back' in said, said
  assert (cloud.workdir / 'kept').read_text() == 'checkpoint'


@pytest.mark.parametrize('there', ['', 'empty', 'part', 'whole'])
def test_what_is_copied_back(cloud, there):
  home, bucket = cloud.folder / 'home', cloud.folder / 'buckets/b/run'
  (home / 'gpt_jax_run').mkdir(parents=True)
  (home / 'gpt_jax_run/code').symlink_to(ROOT)
  for path in ('config.json', 'sub/config.json'):
    (bucket / path).parent.mkdir(parents=True, exist_ok=True)
    (bucket / path).write_text('saved')
  if there:
    cloud.workdir.mkdir()
  if there in ('part', 'whole'):
    name = {'part': 'left', 'whole': 'config.json'}[there]
    (cloud.workdir / name).write_text('of the disk')
  command = ['bash', str(LAUNCH / 'on_host.sh'), 'restore']
  command += [str(cloud.workdir), 'gs://b/run']
  env = {**cloud.env(), 'HOME': str(home)}

  def restore():
    return subprocess.run(command, env=env, capture_output=True, text=True)

  if there == 'whole':
    assert 'nothing to copy back' in restore().stdout
    assert not (cloud.workdir / 'sub').exists()
    return
  # One that is broken off does not look like a run.
  cloud.fault('storage cp')
  assert restore().returncode != 0
  assert not (cloud.workdir / 'config.json').exists()
  assert 'copied back' in restore().stdout
  for path in ('config.json', 'sub/config.json'):
    assert (cloud.workdir / path).read_text() == 'saved'


def test_slashes_at_the_end_are_none(cloud):
  settings = cloud.settings(WORKDIR='/mnt/run//', RESULTS='gs://b/run/')
  said = cloud.run('copy', settings, '--dry_run')[1]
  assert ' copy /mnt/run gs://b/run ' in said


@pytest.mark.parametrize('request_', ['queued', 'direct'])
def test_a_node_stopped_by_hand_is_started_and_not_deleted(cloud, request_):
  cloud.change(workers=1, states=['ACTIVE'])
  settings = cloud.settings(ACCELERATOR='v6e-8', REQUEST=request_, SPOT='no', RESULTS='gs://b/run')
  assert cloud.run('create', settings, '--yes')[0] == 0
  cloud.stop()
  code, said = cloud.run('wait', settings)
  assert code == 1 and 'run is STOPPED; launch/tpu.sh create' in said
  assert cloud.run('create', settings, answer='n\n')[0] == 2
  code, said = cloud.run('create', settings, '--yes')
  assert code == 0 and said.startswith('1 x v6e-8'), said
  assert len(cloud.calls('tpu-vm', 'start')) == 1
  assert cloud.run('wait', settings)[0] == 0
  if request_ == 'direct':
    # Another state that is not known to mean that it is gone.
    cloud.stop('HIDDEN')
    code, said = cloud.run('create', settings, '--yes')
    assert code == 1 and 'tpu.sh delete' in said, said
  assert not cloud.calls('tpu-vm', 'delete')
  assert not cloud.calls('queued-resources', 'delete')


@pytest.mark.slow  # test_up_from_nothing_to_results stays
def test_up_does_not_start_what_is_stopped_by_hand_meanwhile(cloud):
  cloud.change(workers=1, states=['ACTIVE'])
  cloud.codes('wait', '0')
  settings = cloud.settings(ACCELERATOR='v6e-8', RESULTS='gs://b/run')
  process = cloud.start('up', settings, '--yes')
  wait_until(lambda: (cloud.folder / 'waiting.0').exists())
  with cloud.held():
    cloud.terminate()
    cloud.stop()
  said = process.communicate()[0]
  assert process.returncode == 75, said
  assert said.endswith('by hand; the same command starts it again\n')
  code, said = cloud.run('up', settings, '--yes')
  assert code == 0 and 'STOPPED: starting it again' in said, said
  assert 'installed already' in said


def test_several_slices(cloud):
  cloud.codes('0 0 0 0')
  settings = cloud.settings(SLICES='2')
  code, said = cloud.run('up', settings, '--yes')
  assert code == 0 and 'running on 4 hosts' in said, said
  assert said.startswith('2 x v4-16, 4 hosts, 16 chips: about $')
  [create] = cloud.calls('queued-resources', 'create')
  assert {'--node-count=2', '--node-prefix=run'} <= {*create}
  assert [r.parts[-3:-1] for r in cloud.runs()] == [
    ('run-0', '0'),
    ('run-0', '1'),
    ('run-1', '0'),
    ('run-1', '1'),
  ]


@pytest.mark.slow
def test_a_lost_slice_is_not_waited_for(cloud):
  """Two of three go on, then three again; the run saves before it grows."""
  cloud.change(workers=1)
  # By the number of the host: that of the third starts but twice.
  cloud.codes('wait wait wait', 'wait wait 0', '0 0')
  settings = cloud.settings(
    ACCELERATOR='v4-8',
    SLICES='3',
    MIN_SLICES='2',
    SLICE_WAIT_SECONDS='0',
    RETRY_SECONDS='0.1',
    DELETE_AFTER='yes',
    WORKDIR='gs://b/run',  # so that each host is asked
  )
  process = cloud.start('up', settings, '--yes')

  def waiting(start, *hosts):
    return lambda: all(
      (cloud.folder / f'starts.{i}').exists()
      and (cloud.folder / f'starts.{i}').read_text() == f'{start}\n'
      and (cloud.folder / f'waiting.{i}').exists()
      for i in hosts
    )

  wait_until(waiting(1, 0, 1, 2))
  for file in cloud.folder.glob('waiting.*'):
    file.unlink()
  cloud.lose('run-1')
  wait_until(waiting(2, 0, 1))
  code, said = cloud.run('status', settings)
  assert code == 0 and '2 of 3 slices are there: run-0 run-2' in said, said
  assert said.count(': running') == 2
  wait_until(lambda: cloud.states().get('run-1') == ['WAITING_FOR_RESOURCES'])
  cloud.give('run-1')
  said = process.communicate()[0]
  assert process.returncode == 0, said
  order = ['3 x v4-8, 3 hosts, 12 chips', '3 of 3 slices', 'running on 3 hosts']
  order += ['2 of 3 slices are there: run-0 run-2', 'ending what is left of it']
  order += ['running on 2 hosts', 'saving, to go on with them']
  order += ['preempted after', 'running on 3 hosts', 'the run is done']
  at = 0
  for words in order:
    assert words in said[at:], f'{words} after\n{said[:at]}\nin\n{said[at:]}'
    at += said[at:].index(words)
  assert cloud.states() == {}
  # Those of one start in any order.
  starts = [
    (call[2], *re.findall(r'MEGASCALE_[A-Z_]+=(\S+)', call[4]))
    for call in cloud.calls('tpu-vm', 'ssh')
    if ' start ' in call[4]
  ]
  assert [*map(sorted, (starts[:3], starts[3:5], starts[5:]))] == [
    [(f'run-{i}', 'run-0.internal', '3', str(i)) for i in range(3)],
    [(f'run-{2 * i}', 'run-0.internal', '2', str(i)) for i in range(2)],
    [(f'run-{i}', 'run-0.internal', '3', str(i)) for i in range(3)],
  ]


@pytest.mark.slow  # test_several_slices stays
def test_one_slice_of_two_is_told_of_no_other(cloud):
  cloud.change(workers=1, states=['ACTIVE'])
  cloud.codes('wait wait', '0')
  settings = cloud.settings(
    ACCELERATOR='v4-8', SLICES='2', MIN_SLICES='1', SLICE_WAIT_SECONDS='0', WORKDIR='gs://b/run'
  )
  process = cloud.start('up', settings, '--yes')
  wait_until(lambda: len(list(cloud.folder.glob('waiting.*'))) == 2)
  cloud.lose('run-0')
  said = process.communicate()[0]
  assert process.returncode == 0 and 'running on 1 hosts' in said, said
  [*_, alone] = [c[4] for c in cloud.calls('tpu-vm', 'ssh') if ' start ' in c[4]]
  assert 'RUN_SLICES=run-1 bash' in alone
  # Nobody asks for less than all where that is not said.
  code, said = cloud.run('delete', settings, '--yes')
  assert code == 0 and cloud.states() == {}, said
  code, said = cloud.run('run', settings)
  assert code == 1 and 'none of its slices is there' in said, said


def test_request_of_one_node(cloud):
  cloud.codes('0 0')
  settings = cloud.settings(REQUEST='direct', SPOT='no')
  code, said = cloud.run('up', settings, '--yes')
  assert code == 0, said
  [create] = cloud.calls('tpu-vm', 'create')
  assert create[2:] == [
    'run',
    '--version=tpu-ubuntu2204-base',
    '--accelerator-type=v4-16',
    '--zone=us-central2-b',
  ]
  assert cloud.calls('queued-resources') == []


@pytest.mark.slow
def test_a_request_that_fails_says_why_and_is_made_again(cloud):
  cloud.codes('0 0')
  settings = cloud.settings(REQUEST_TRIES='2', RETRY_SECONDS='0.1')
  cloud.change(failures=2)
  code, said = cloud.run('up', settings, '--yes')
  assert code == 1 and 'no more capacity in the zone' in said.splitlines()[-1]
  assert len(cloud.calls('queued-resources', 'create')) == 2
  # The one that is left from before goes first; what is asked for in its place
  # fails once.
  cloud.change(failures=1)
  code, said = cloud.run('up', settings, '--yes')
  assert code == 0 and said.count('FAILED: deleting it first') == 2, said
  assert 'asking again in 0.1 s (1 of 2 tries have failed)' in said
  assert len(cloud.calls('queued-resources', 'create')) == 4


def test_a_request_that_cannot_succeed_is_made_once(cloud):
  cloud.change(failures=9, reason='Quota limit exceeded')
  settings = cloud.settings(RETRY_SECONDS='0.1', RESULTS='gs://b/run', DELETE_AFTER='always')
  code, said = cloud.run('up', settings, '--yes')
  assert code == 1 and 'Quota limit' in said.splitlines()[-1], said
  assert len(cloud.calls('queued-resources', 'create')) == 1
  assert 'run is deleted' in said and cloud.states() == {}


def test_cost_comes_first_and_is_confirmed(cloud):
  settings = cloud.settings(ACCELERATOR='v4-32', SPOT='no')
  code, said = cloud.run('create', settings, answer='n\n')
  assert code == 2 and cloud.calls('queued-resources', 'create') == []
  # 16 chips x $3.22.
  assert said.startswith(
    '1 x v4-32, 4 hosts, 16 chips: about $51.52 an hour, $1236 a day, on '
    'demand ($3.22 a chip-hour; noted 2025-06, yours to check: https://'
  )
  assert cloud.run('create', settings, answer='')[0] == 2
  assert cloud.run('create', settings, answer='y\n')[0] == 0
  assert len(cloud.calls('queued-resources', 'create')) == 1
  said = cloud.run('cost', cloud.settings(PRICE='0.5'))[1]
  assert 'about $4.00 an hour, $96 a day, spot ($0.50 a chip-hour;' in said
  # Deleting is confirmed, too.
  assert cloud.run('delete', settings, answer='n\n')[0] == 2
  assert [*cloud.states()] == ['run']


def test_dry_run_calls_nothing(cloud):
  settings = cloud.settings(RESULTS='gs://b/run', DELETE_AFTER='yes')
  code, said = cloud.run('up', settings, '--dry_run')
  assert code == 0 and cloud.calls() == []
  verbs = re.findall(r'^gcloud compute tpus (\S+ \S+)', said, re.MULTILINE)
  assert [v for i, v in enumerate(verbs) if v != verbs[i - 1]] == [
    'queued-resources create',
    'queued-resources describe',
    'tpu-vm scp',
    'tpu-vm ssh',
    'queued-resources delete',
  ]
  # All but the cost can be pasted.
  script = said.partition('\n')[2]
  assert subprocess.run(['bash', '-nc', script]).returncode == 0, script


def test_v5e_is_v5litepod(cloud):
  said = [
    cloud.run('create', cloud.settings(ACCELERATOR=name), '--dry_run')
    for name in ('v5e-16', 'v5litepod-16')
  ]
  assert said[0] == said[1]
  assert said[0][0] == 0 and 'v5litepod-16' in said[0][1]


def test_secrets_are_never_shown(cloud):
  cloud.codes('0 0')
  secrets = cloud.folder / 'secrets'
  secrets.write_text('# mine\nWANDB_API_KEY=s3cr/t*$(x) [a]\n')
  settings = cloud.settings(SECRETS_FILE=str(secrets))
  code, said = cloud.run('up', settings, '--yes')
  assert code == 2 and f'chmod 600 {secrets}' in said
  secrets.chmod(0o600)
  all_said = ''
  for command in ('up', 'status', 'logs'):
    code, said = cloud.run(command, settings, '--yes')
    assert code == 0, said
    all_said += said
  assert 'the key is ***' in all_said
  all_said += cloud.run('up', settings, '--dry_run')[1]
  assert 's3cr' not in all_said
  assert 's3cr' not in (cloud.folder / 'calls.jsonl').read_text()
  for run in cloud.runs():
    # It was there for the program.
    assert 'the key is s3cr/t*$(x) [a]' in (run / 'log').read_text()
    assert (run / 'secrets').stat().st_mode & 0o077 == 0
    assert not (run.parent / 'gpt_jax_bundle.tgz').exists()
  of_job = {(run / 'secrets').read_text().splitlines()[-1] for run in cloud.runs()}
  (line,) = of_job  # one for all hosts
  assert re.fullmatch('GPT_JAX_JOB_SECRET=[0-9a-f]{64}', line)
  assert line[-64:] not in all_said
  secrets.write_text('WANDB_API_KEY s3cret\n')
  code, said = cloud.run('up', settings)
  assert code == 2 and 'line 1 is not NAME=value' in said and 's3c' not in said


@pytest.mark.parametrize(
  'field, value',
  [
    ('NAME', ''),
    ('NAME', 'Run'),
    ('ZONE', ''),
    ('COMMAND', '()'),
    ('ACCELERATOR', 'v4-12'),
    ('ACCELERATOR', 'v3-8'),
    ('ACCELERATOR', 'v6e-12'),
    ('ACCELERATOR', 'tpu7x-8'),
    ('SPOT', 'true'),
    ('SLICES', '0'),
    ('REQUEST', 'soon'),
    ('RESULTS', '/tmp'),
    ('WORKDIR', 'gs://b'),
    ('PRICE', '3$'),
    ('SECRETS_FILE', '/none'),
    ('POLL_SECONDS', 'x'),
    ('SLICES', '08'),
    ('MIN_SLICES', '2'),
    ('MIN_SLICES', '0'),
    ('SLICE_WAIT_SECONDS', 'x'),
    ('STRAGGLER_SECONDS', '0'),
    ('RESULTS', 'gs://'),
    ('REQUEST_TRIES', '0'),
    ('RETRY_SECONDS', 'x'),
    ('ENVIRONMENT', '1=2'),
    ('INCLUDE', 'nowhere.txt'),
    ('INCLUDE', '.git'),
    ('DELETE_AFTER', 'yes'),  # and no RESULTS
  ],
)
def test_settings_are_checked_before_anything(cloud, field, value):
  code, said = cloud.run('up', cloud.settings(**{field: value}), '--yes')
  assert code == 2 and said.count('\n') == 1, said
  assert f'settings.sh: {field}=' in said and cloud.calls() == []


def test_a_run_in_a_bucket_shares_and_copies_nothing(cloud):
  bucket = {'WORKDIR': 'gs://b/run', 'DELETE_AFTER': 'yes'}
  code, said = cloud.run('up', cloud.settings(**bucket), '--dry_run')
  assert code == 0, said
  assert r' tpu\,gcs ' in said
  assert ' copy ' not in said and ' restore ' not in said
  assert 'run.hosts' not in said
  alone = cloud.settings(**bucket, ACCELERATOR='v6e-8')
  assert cloud.run('up', alone, '--dry_run')[0] == 0  # it loses no disk
  both = cloud.settings(**bucket, RESULTS='gs://b/copy')
  code, said = cloud.run('up', both, '--yes')
  assert code == 2 and 'settings.sh: RESULTS=' in said, said
  assert cloud.calls() == []


def test_a_disk_that_goes_with_the_slice(cloud):
  settings = cloud.settings(ACCELERATOR='v6e-8')
  code, said = cloud.run('up', settings, '--yes')
  assert code == 2 and 'loses its disk' in said and cloud.calls() == []


@pytest.mark.parametrize(
  'args, words',
  [
    ([], 'usage: launch/tpu.sh'),
    (['go'], 'go: not a command'),
    (['up'], 'which settings?'),
    (['up', 'nowhere.sh'], 'nowhere.sh: no such file'),
    (['up', 'S', '--yse'], '--yse: unknown flag'),
    (['up', 'S', 'T'], 'T: unexpected'),
    (['up', 'S', '--', 'ls'], 'only `run` takes a program'),
  ],
)
def test_usage(cloud, args, words):
  settings = str(cloud.settings())
  code, said = cloud.run(*[settings if a == 'S' else a for a in args])
  assert code == 2 and words in said and cloud.calls() == []


def test_help_and_the_example_are_true(cloud):
  code, said = cloud.run('--help')
  assert code == 0 and 'gcloud' in said
  verbs = re.findall(r'^  ([a-z]+)  ', said, re.MULTILINE)
  assert len(verbs) == 11
  for verb in verbs:
    example = LAUNCH / 'settings.example.sh'
    code, said = cloud.run(verb, example, '--dry_run')
    assert code == 0, said
  # What it calls optional is what a file without it has.
  code, said = cloud.run('cost', example)
  assert said.startswith('1 x v4-32, 4 hosts, 16 chips')
