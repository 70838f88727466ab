# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models come from a hub and go to one, with the same bits."""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from gpt_jax import __main__
from gpt_jax.core.files import progress
from gpt_jax.hub import models
from tests.support import checkpoints, fake_hub
from tests.support.golden_io import ROOT, config, tensors

pytest.importorskip('huggingface_hub', reason='needs the extra hub')
from huggingface_hub import file_download

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
GPT2 = ROOT / 'gpt2_lm'


def convert(*flags):
  return __main__.main(['convert', *flags])


def fails(capsys, *flags):
  """The one line of a usage error, which nothing but the log precedes."""
  capsys.readouterr()
  assert convert(*flags) == 2
  *logged, line = capsys.readouterr().err.strip().splitlines()
  assert all(' at commit ' in other for other in logged)
  assert line.startswith('gpt-jax convert: --')
  return line


def test_names_of_repositories(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'here/gpt2').mkdir(parents=True)
  for text in ('org/name', 'org/name@v1.0', 'org/a.b-c_d@refs/pr/1'):
    assert models.names_repository(text)
  for text in ('here/gpt2', 'gpt2', './org/name', '/org/name', '../name', 'a/b/c', 'org/', 'a/b@'):
    assert not models.names_repository(text)


def test_an_import_is_that_of_the_folder(hub, tmp_path):
  others = {'README.md': b'# A model', 'evil.py': b'1 / 0', 'pytorch_model.bin': b'pickle'}
  folder = {p.name: p.read_bytes() for p in GPT2.iterdir()}
  commit = hub.add('org/tiny', folder | others).refs['main']
  assert convert('--from_hf=org/tiny', '--workdir=of_hub') == 0
  assert convert('--to_hf=out', '--workdir=of_hub') == 0
  before, after = tensors(GPT2), tensors(tmp_path / 'out')
  assert {*before} == {*after} and config(tmp_path / 'out') == config(GPT2)
  for name, value in before.items():
    np.testing.assert_array_equal(after[name], value, name)
  origin = json.loads((tmp_path / 'of_hub/hf.json').read_text())
  assert origin['repository'] == f'org/tiny@{commit}'
  assert not [x for x in others if hub.fetched(x)]


def test_a_revision_is_taken(hub, tmp_path):
  repository = hub.add('org/tiny', GPT2)
  first = repository.refs['main']
  repository.refs['v1'] = first
  repository.commit({'config.json': b'{}'})
  for i, revision in enumerate(('v1', first)):
    assert models.fetch(f'org/tiny@{revision}').repository == f'org/tiny@{first}', i
  assert models.fetch('org/tiny').repository == f'org/tiny@{repository.refs["main"]}'


def test_shards_are_those_of_the_index(hub, tmp_path):
  folder = checkpoints.write(tmp_path / 'hf', config(GPT2), tensors(GPT2))
  assert convert(f'--from_hf={folder}', '--workdir=w') == 0
  assert convert('--to_hf=shards', '--workdir=w', '--max_shard_size=10KB') == 0
  shards = sorted(p.name for p in (tmp_path / 'shards').glob('model-*'))
  repository = hub.add('org/shards', tmp_path / 'shards')
  repository.commit({'consolidated.safetensors': b'the same once more'})
  assert convert('--from_hf=org/shards', '--workdir=w2') == 0
  assert convert('--to_hf=again', '--workdir=w2', '--max_shard_size=10KB') == 0
  assert len(shards) > 2 and not hub.fetched('consolidated.safetensors')
  for name in shards:
    assert (tmp_path / 'again' / name).read_bytes() == (tmp_path / 'shards' / name).read_bytes()


def test_what_was_fetched_is_not_fetched_again(hub):
  repository = hub.add('org/tiny', GPT2)
  first = models.fetch('org/tiny')
  repository.commit({'README.md': b'new'})  # the model is the same
  hub.requests.clear()
  second = models.fetch('org/tiny')
  assert second.repository != first.repository
  assert not hub.fetched('.safetensors') and not hub.fetched('config.json')


def test_progress_is_shown(hub, capsys, monkeypatch):
  hub.add('org/tiny', GPT2)
  monkeypatch.setattr(progress, '_EVERY_SECONDS', 0.0)
  monkeypatch.setattr(file_download.constants, 'DOWNLOAD_CHUNK_SIZE', 1 << 10)
  size = (GPT2 / 'model.safetensors').stat().st_size
  assert convert('--from_hf=org/tiny', '--workdir=w') == 0
  said = [line for line in capsys.readouterr().err.splitlines() if 'fetched:' in line]
  assert f'fetched: {size / 1e6:.0f} MB' in said[-1] and all('MB/s' in line for line in said)


def test_a_connection_that_breaks_goes_on_by_a_range(hub, tmp_path, monkeypatch):
  monkeypatch.setattr(file_download.time, 'sleep', lambda seconds: None)
  monkeypatch.setattr(file_download.constants, 'DOWNLOAD_CHUNK_SIZE', 1 << 10)
  hub.add('org/tiny', GPT2)
  hub.cut.add('model.safetensors')
  folder = models.fetch('org/tiny').folder
  whole = (GPT2 / 'model.safetensors').read_bytes()
  first, second = hub.fetched('model.safetensors')
  start = int(second.removeprefix('bytes=').removesuffix('-'))
  assert first == '' and 0 < start <= len(whole) // 2
  with open(f'{folder}/model.safetensors', 'rb') as file:
    assert file.read() == whole


def test_after_a_failure_the_rest_is_fetched(hub, capsys):
  repository = hub.add('org/tiny', GPT2)
  hub.gone.add('model.safetensors')
  assert 'answers 403' in fails(capsys, '--from_hf=org/tiny', '--workdir=w')
  assert hub.fetched('config.json')
  hub.gone.clear()
  hub.requests.clear()
  folder = pathlib.Path(models.fetch('org/tiny').folder)
  assert hub.fetched('model.safetensors') and not hub.fetched('config.json')
  files = {path.name: path.read_bytes() for path in folder.iterdir()}
  assert {*files} == {'config.json', 'model.safetensors'}
  assert files.items() <= repository.commits[repository.refs['main']].items()


def test_offline_the_cache_is_taken(hub, capsys, monkeypatch):
  from huggingface_hub import constants

  hub.add('org/tiny', GPT2)
  before = models.fetch('org/tiny')
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  hub.requests.clear()
  assert models.fetch('org/tiny') == before
  commit = before.repository.partition('@')[2]
  assert models.fetch(f'org/tiny@{commit}').folder == before.folder
  for text in ('org/other', 'org/tiny@v1'):
    line = fails(capsys, f'--from_hf={text}', '--workdir=w')
    assert 'not as a whole, in the cache' in line and 'HF_HUB_OFFLINE is set' in line
  os.unlink(f'{before.folder}/config.json')
  assert 'in the cache' in fails(capsys, '--from_hf=org/tiny', '--workdir=w')
  assert not hub.requests


@pytest.mark.parametrize(
  ('files', 'words'),
  [
    ({'config.json': b'{}', 'pytorch_model.bin': b'x'}, 'holds pytorch_model.bin and no model.s'),
    ({'config.json': b'{}'}, 'holds no weights that we know'),
    ({'adapter_config.json': b'{}', 'adapter_model.safetensors': b'x'}, 'holds an adapter alone'),
  ],
)
def test_what_has_no_safetensors_is_refused(hub, capsys, files, words):
  hub.add('org/tiny', files)
  line = fails(capsys, '--from_hf=org/tiny', '--workdir=w')
  assert words in line
  assert not hub.fetched('.bin') and not hub.fetched('.safetensors')


def test_a_full_disk_is_told_before_a_byte_is_fetched(hub, capsys):
  hub.add('org/tiny', GPT2).sizes['model.safetensors'] = 10**18
  line = fails(capsys, '--from_hf=org/tiny', '--workdir=w')
  assert '1.0 EB are to be fetched' in line and 'set HF_HOME' in line
  assert not hub.fetched('model.safetensors') and not os.path.exists('w')


def test_a_workdir_that_holds_a_run_is_told_before_a_request(hub, tmp_path, capsys):
  hub.add('org/tiny', GPT2)
  (tmp_path / 'w').mkdir()
  (tmp_path / 'w/config.json').touch()
  assert 'holds a run' in fails(capsys, '--from_hf=org/tiny', '--workdir=w')
  assert not hub.requests


def test_refusals_of_the_hub_are_one_line(hub, capsys, monkeypatch):
  hub.add('org/gated', GPT2, gated=True)
  hub.add('org/tiny', GPT2)
  hub.add('org/private', GPT2, private=True)
  for name, words in {
    'org/gated': 'is gated: accept its terms',
    'org/tiny@v2': 'no such revision',
    'org/private': 'has no such repository, or hides it',
    'org/nothing': 'has no such repository, or hides it',
    'org/a..b': 'is not the name of a repository',
  }.items():
    line = fails(capsys, f'--from_hf={name}', '--workdir=w')
    assert words in line and line.startswith(f'gpt-jax convert: --from_hf={name} (no path here): ')
  monkeypatch.setenv('HF_TOKEN', fake_hub.TOKEN)
  assert models.fetch('org/private').repository.startswith('org/private@')
  monkeypatch.setenv('HF_TOKEN', 'hf_old')
  assert 'answers 401' in fails(capsys, '--from_hf=org/tiny', '--workdir=w')


def test_a_hub_that_is_away_is_told_of(hub, capsys, monkeypatch):
  import huggingface_hub.utils._http as http

  monkeypatch.setattr(http.time, 'sleep', lambda seconds: None)
  hub.add('org/tiny', GPT2)
  hub.down = True
  assert 'cannot be reached' in fails(capsys, '--from_hf=org/tiny', '--workdir=w')
  hub.down = False
  models.fetch('org/tiny')
  hub.close()
  line = fails(capsys, '--from_hf=org/tiny', '--workdir=w')
  assert 'cannot be reached' in line and 'HF_HUB_OFFLINE=1' in line


def test_a_push_comes_back_with_the_same_bits(hub, tmp_path, capsys, monkeypatch):
  monkeypatch.setenv('HF_TOKEN', fake_hub.TOKEN)
  assert convert(f'--from_hf={GPT2}', '--workdir=w') == 0
  assert convert('--to_hf=out', '--workdir=w', '--push=org/mine') == 0
  repository = hub.repositories['models', 'org/mine']
  commit = repository.refs['main']
  said = capsys.readouterr().err
  assert repository.private and f'{hub.url}/org/mine as commit {commit}' in said
  files = {p.name: p.read_bytes() for p in (tmp_path / 'out').iterdir()}
  assert repository.commits[commit] == files | {'.gitattributes': b''}
  assert convert('--from_hf=org/mine', '--workdir=w2') == 0
  assert convert('--to_hf=again', '--workdir=w2') == 0
  for path in (tmp_path / 'out').iterdir():
    assert (tmp_path / 'again' / path.name).read_bytes() == path.read_bytes()
  # A second export becomes a second commit, in place of the files of the first.
  repository.commit({'README.md': b'# Mine'})
  shutil.rmtree('out')
  assert convert('--to_hf=out', '--workdir=w', '--push=org/mine', '--max_shard_size=10KB') == 0
  files = {p.name: p.read_bytes() for p in (tmp_path / 'out').iterdir()}
  beside = {'README.md': b'# Mine', '.gitattributes': b''}
  assert repository.commits[repository.refs['main']] == files | beside
  assert convert('--to_hf=open', '--workdir=w', '--push=org/open', '--public') == 0
  assert not hub.repositories['models', 'org/open'].private


def test_what_cannot_be_pushed_is_refused_before_the_export(hub, tmp_path, capsys, monkeypatch):
  assert convert(f'--from_hf={GPT2}', '--workdir=w') == 0
  to = ('--to_hf=out', '--workdir=w')
  assert 'there is no token' in fails(capsys, *to, '--push=org/mine')
  monkeypatch.setenv('HF_TOKEN', 'hf_old')
  assert 'answers 401' in fails(capsys, *to, '--push=org/mine')
  monkeypatch.setenv('HF_TOKEN', fake_hub.TOKEN)
  assert 'give ORG/NAME' in fails(capsys, *to, '--push=mine')
  hub.add('org/open', {'README.md': b'#'})
  assert 'everyone may read' in fails(capsys, *to, '--push=org/open')
  assert 'needs --push' in fails(capsys, *to, '--public')
  flags = ('--from_hf=x', '--workdir=w3', '--push=org/mine')
  assert 'works with --to_hf only' in fails(capsys, *flags)
  assert not os.path.exists('out')
  os.mkdir('out')
  (tmp_path / 'out/secret.txt').write_text('x')
  assert 'is not empty' in fails(capsys, *to, '--push=org/mine')
  os.unlink('out/secret.txt')
  # Only the Hub knows where this token may write: the export stays.
  assert convert(*to, '--push=else/mine') == 2
  line = capsys.readouterr().err.strip().splitlines()[-1]
  assert 'the export in out is whole' in line and 'answers 403' in line
  assert os.path.exists('out/config.json')
