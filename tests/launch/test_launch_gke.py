# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The JobSet of launch/gke.sh, read back as Kubernetes would."""

import json
import os
import subprocess
import tomllib

import pytest
import yaml

from gpt_jax.core.runtime import tpu_flags
from tests.support.fake_cloud import ROOT, Cloud

# Records what it is told; a dry run of a secret shows nothing of it.
KUBECTL = """#!/usr/bin/env bash
echo "$*" >> "$FAKE_CLOUD/kubectl"
case $* in
  get*/*' pods'* | get*/*' -l'*)
    echo 'error: there is no need to specify a resource type as a separate' >&2
    exit 1
    ;;
  'get jobset/'*jsonpath*) cat "$FAKE_CLOUD/jobset" 2> /dev/null || true ;;
  'logs '*) echo 'the key is s3cret' ;;
  *--dry-run=client*) echo 'kind: Secret' ;;
  apply*) cat >> "$FAKE_CLOUD/applied" ;;
  'get pods'*)
    [[ ! -f $FAKE_CLOUD/no_pods ]] || exit 0
    printf 'pod/run-slice-0-%s-x7k\\n' 1 0
    ;;
esac
"""


@pytest.fixture
def cloud(tmp_path):
  cloud = Cloud(tmp_path / 'cloud', workers=1)
  cloud.script('kubectl', KUBECTL)
  return cloud


def gke(cloud, *args, answer=''):
  done = subprocess.run(
    [str(ROOT / 'launch/gke.sh'), *map(str, args)],
    env=cloud.env(),
    input=answer,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  return done.returncode, done.stdout


def settings(cloud, **fields):
  fields = {
    'IMAGE': 'registry/gpt_jax:1',
    'NFS': '10.0.0.2:/share',
    'WORKDIR': '/mnt/shared/run',
    **fields,
  }
  return cloud.settings(**fields)


def test_manifest(cloud):
  words = ['gpt-jax', 'train', '--config.a=f(\'x\', "y")', 'a\\b @NAME@ $X', '']
  command = ' '.join("'" + w.replace("'", "'\\''") + "'" for w in words)
  path = settings(
    cloud,
    ACCELERATOR='v5litepod-256',
    SLICES='3',
    MAX_RESTARTS='7',
    COMMAND=f'({command})',
    SECRETS_FILE='',
    ENVIRONMENT='(\'A=x "y"=z\' B=)',
  )
  code, text = gke(cloud, 'manifest', path)
  assert code == 0, text
  jobset = yaml.safe_load(text)
  assert jobset['apiVersion'] == 'jobset.x-k8s.io/v1alpha2'
  assert (jobset['kind'], jobset['metadata']['name']) == ('JobSet', 'run')
  assert jobset['spec']['failurePolicy'] == {
    'maxRestarts': 7,
    'rules': [{'action': 'FailJobSet', 'onJobFailureReasons': ['PodFailurePolicy']}],
  }
  [replicated] = jobset['spec']['replicatedJobs']
  assert replicated['replicas'] == 3
  job = replicated['template']['spec']
  # 256 chips, four a host.
  assert (job['parallelism'], job['completions']) == (64, 64)
  assert job['backoffLimit'] == 0
  pod = job['template']['spec']
  [container] = pod['containers']
  taken, failed = job['podFailurePolicy']['rules']
  assert taken['action'] == 'Count'
  assert failed['action'] == 'FailJob'
  # 75 is not among them: it starts again.
  assert failed['onExitCodes'] == {
    'containerName': container['name'],
    'operator': 'In',
    'values': [1, 2],
  }
  assert pod['restartPolicy'] == 'Never'
  assert pod['nodeSelector'] == {
    'cloud.google.com/gke-tpu-accelerator': 'tpu-v5-lite-podslice',
    'cloud.google.com/gke-tpu-topology': '16x16',
    'cloud.google.com/gke-spot': 'true',
  }
  assert container['command'] == words
  assert container['env'] == [
    {'name': 'A', 'value': 'x "y"=z'},
    {'name': 'B', 'value': ''},
    {'name': 'LIBTPU_INIT_ARGS', 'value': tpu_flags.init_args('v5e')},
  ]
  assert container['image'] == 'registry/gpt_jax:1'
  context = pod['securityContext']
  assert context['runAsNonRoot']
  assert context['runAsUser'] == context['runAsGroup'] == image_user()
  assert context['seccompProfile'] == {'type': 'RuntimeDefault'}
  assert container['securityContext'] == {
    'allowPrivilegeEscalation': False,
    'capabilities': {'drop': ['ALL']},
  }
  resources = container['resources']
  assert resources['limits'] == resources['requests'] == {'google.com/tpu': 4}
  assert 'envFrom' not in container
  [mount], [volume] = container['volumeMounts'], pod['volumes']
  assert mount == {'name': volume['name'], 'mountPath': '/mnt/shared'}
  assert volume['nfs'] == {'server': '10.0.0.2', 'path': '/share'}


@pytest.mark.parametrize('nfs', ['', '10.0.0.2:/share'])
def test_a_run_in_a_bucket_needs_no_share(cloud, nfs):
  code, text = gke(cloud, 'manifest', settings(cloud, WORKDIR='gs://b/run', NFS=nfs))
  assert code == 0, text
  job = yaml.safe_load(text)['spec']['replicatedJobs'][0]['template']['spec']
  pod = job['template']['spec']
  [container] = pod['containers']
  assert ('volumes' in pod) == ('volumeMounts' in container) == bool(nfs)
  assert 'google.com/tpu' in container['resources']['limits']


@pytest.mark.parametrize(
  'accelerator, kind, topology, hosts, chips',
  [
    ('v4-32', 'tpu-v4-podslice', '2x2x4', 4, 4),
    ('v5p-2048', 'tpu-v5p-slice', '8x8x16', 256, 4),
    ('v5p-768', 'tpu-v5p-slice', '4x8x12', 96, 4),
    ('v6e-8', 'tpu-v6e-slice', '2x4', 1, 8),
    ('v5litepod-1', 'tpu-v5-lite-podslice', '1x1', 1, 1),
    ('tpu7x-128', 'tpu7x', '4x4x4', 16, 4),
  ],
)
def test_slices(cloud, accelerator, kind, topology, hosts, chips):
  code, text = gke(cloud, 'manifest', settings(cloud, ACCELERATOR=accelerator, SPOT='no'))
  assert code == 0, text
  topologies = pytest.importorskip('gpt_jax.core.costs.topologies')
  assert topologies.parse(accelerator).hosts == hosts
  job = yaml.safe_load(text)['spec']['replicatedJobs'][0]['template']['spec']
  pod = job['template']['spec']
  assert pod['nodeSelector'] == {
    'cloud.google.com/gke-tpu-accelerator': kind,
    'cloud.google.com/gke-tpu-topology': topology,
  }
  assert job['completions'] == hosts
  limits = pod['containers'][0]['resources']['limits']
  assert limits == {'google.com/tpu': chips}


def test_create_is_confirmed_and_secrets_are_not_shown(cloud):
  secrets = cloud.folder / 'secrets'
  secrets.write_text('WANDB_API_KEY=s3cret\n')
  secrets.chmod(0o600)
  path = settings(cloud, SECRETS_FILE=str(secrets))
  code, said = gke(cloud, 'create', path, answer='n\n')
  assert code == 2 and said.startswith('1 x v4-16, 2 hosts, 8 chips: about $')
  assert (cloud.folder / 'kubectl').read_text().startswith('get jobset/run ')
  assert (cloud.folder / 'kubectl').read_text().count('\n') == 1
  code, said = gke(cloud, 'create', path, '--yes')
  assert code == 0, said
  said += gke(cloud, 'create', path, '--dry_run')[1]
  assert 's3cret' not in said + (cloud.folder / 'kubectl').read_text()
  secret, jobset = yaml.safe_load_all(
    (cloud.folder / 'applied').read_text().replace('# Copy', '---\n# Copy', 1)
  )
  assert secret == {'kind': 'Secret'}
  job = jobset['spec']['replicatedJobs'][0]['template']['spec']
  [container] = job['template']['spec']['containers']
  assert container['envFrom'] == [{'secretRef': {'name': 'run-secrets'}}]
  assert gke(cloud, 'status', path)[0] == 0
  assert gke(cloud, 'logs', path) == (0, 'the key is ***\n')
  assert gke(cloud, 'delete', path, '--yes')[0] == 0
  calls = (cloud.folder / 'kubectl').read_text().splitlines()
  assert calls[-3:] == [
    'logs --follow pod/run-slice-0-0-x7k',
    'delete --ignore-not-found jobset/run',
    'delete --ignore-not-found secret/run-secrets',
  ]
  (cloud.folder / 'no_pods').touch()
  code, said = gke(cloud, 'logs', path)
  assert code == 1 and 'has no pods yet' in said and 'the key' not in said
  # Nor are they left out in silence.
  path = settings(cloud, SECRETS_FILE=str(secrets), CLUSTER='c')
  code, said = gke(cloud, 'xpk', path)
  assert code == 2 and 'SECRETS_FILE=' in said and said.count('\n') == 1


@pytest.mark.parametrize(
  'states, answer, calls',
  [
    ('StartupPolicyCompleted Failed ', 'y', ['get', 'delete', 'apply']),
    ('Failed ', 'n', ['get']),
    ('Completed ', 'y', ['get']),
    ('StartupPolicyCompleted ', 'y', ['get', 'apply']),
  ],
)
def test_create_again(cloud, states, answer, calls):
  (cloud.folder / 'jobset').write_text(states)
  gke(cloud, 'create', settings(cloud), answer=answer)
  lines = (cloud.folder / 'kubectl').read_text().splitlines()
  assert [line.split()[0] for line in lines] == calls


def test_price_of_a_chip_that_is_not_listed(cloud):
  path = settings(cloud, ACCELERATOR='tpu7x-128', PRICE='2')
  code, said = gke(cloud, 'create', path, '--dry_run')
  assert code == 0, said
  assert said.startswith('1 x tpu7x-128, 16 hosts, 64 chips: about $128.00')


def test_xpk(cloud):
  path = settings(
    cloud,
    CLUSTER='c',
    COMMAND='(gpt-jax train "--a=b c")',
    ENVIRONMENT='(A="b c" LIBTPU_INIT_ARGS=)',
  )
  code, line = gke(cloud, 'xpk', path)
  assert code == 0, line
  words = json.loads(
    subprocess.check_output(
      [
        'bash',
        '-c',
        f'xpk() {{ python3 -c "import json, sys; print(json.dumps(sys.argv[1:]))" "$@"; }}; {line}',
      ],
      env={**os.environ},
      text=True,
    )
  )
  assert words == [
    'workload',
    'create',
    '--cluster=c',
    '--workload=run',
    '--zone=us-central2-b',
    '--tpu-type=v4-16',
    '--num-slices=1',
    '--docker-image=registry/gpt_jax:1',
    '--max-restarts=100',
    '--restart-on-exit-codes=75',
    '--env=A=b c',
    '--env=LIBTPU_INIT_ARGS=',
    '--command=gpt-jax train --a=b\\ c',
  ]


def test_a_jobset_has_all_of_its_slices(cloud):
  path = settings(cloud, SLICES='3', MIN_SLICES='2')
  code, said = gke(cloud, 'manifest', path)
  assert code == 2 and said.count('\n') == 1 and 'MIN_SLICES=2: ' in said, said
  assert gke(cloud, 'manifest', settings(cloud, MIN_SLICES='1'))[0] == 0


@pytest.mark.parametrize(
  'field, value',
  [
    ('IMAGE', ''),
    ('NFS', 'share'),
    ('NFS', ''),
    ('WORKDIR', '/home/run'),
    ('TOPOLOGY', '4x4x4'),
    ('TOPOLOGY', '8'),
    ('ACCELERATOR', 'v4-9'),
    ('ACCELERATOR', 'v5p-776'),  # 4 x 97 chips are no whole cubes
  ],
)
def test_settings_are_checked(cloud, field, value):
  code, said = gke(cloud, 'manifest', settings(cloud, **{field: value}))
  assert code == 2 and said.count('\n') == 1, said
  assert 'settings.sh: ' in said


def image_user():
  """The user of the image's last line, by number: Kubernetes asks for it."""
  lines = (ROOT / 'launch/Dockerfile').read_text().splitlines()
  *before, last = [line for line in lines if line and not line.startswith('#')]
  assert last.startswith('USER ')
  number = int(last.split()[1])
  assert number > 0 and any(f'--uid {number}' in line for line in before)
  return number


def test_the_image_has_what_pip_needs():
  """setup.py lists the packages; without it pip refuses two folders."""
  lines = (ROOT / 'launch/Dockerfile').read_text().splitlines()
  copied = {word for line in lines if line.startswith('COPY ') for word in line.split()}
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  needed = {project['readme'], *project['license-files']}
  needed |= {'pyproject.toml', 'setup.py', 'launch/requirements.txt'}
  assert copied >= {*needed, 'gpt_jax', 'configs'}
  assert all((ROOT / name).exists() for name in needed)
