# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""launch/requirements.txt: every package of the image, pinned and by hash."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.fake_cloud import ROOT

EXTRAS = ('tpu', 'gcs')  # of `make hashes`
PYTHON = {'python_version': '3.12'}


def entries(name):
  """(canonical name, version, number of hashes) of each package of the image."""
  text = (ROOT / name).read_text(encoding='utf-8').replace('\\\n', ' ')
  for line in text.splitlines():
    if line and not line.startswith('#'):
      pin = Requirement(line.partition(' --hash')[0])
      hashes = re.findall(r'--hash=sha256:[0-9a-f]{64}\b', line)
      if not pin.marker or pin.marker.evaluate(PYTHON):
        yield canonicalize_name(pin.name), str(pin.specifier)[2:], len(hashes)


@pytest.fixture(scope='module')
def pinned():
  return {name: version for name, version, _ in entries('constraints.txt')}


@pytest.fixture(scope='module')
def hashed():
  return {name: (version, count) for name, version, count in entries('launch/requirements.txt')}


def test_every_package_has_a_hash_and_the_version_of_the_constraints(hashed, pinned):
  assert all(count for _, count in hashed.values())
  of_the_build = {'setuptools'}
  assert {name: version for name, (version, _) in hashed.items() if name not in of_the_build} == {
    name: pinned[name] for name in hashed.keys() - of_the_build
  }


def test_all_that_the_image_needs_is_there(hashed):
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  wanted = project['dependencies'] + [
    line for extra in EXTRAS for line in project['optional-dependencies'][extra]
  ]
  wanted += ['libtpu', 'setuptools>=77']  # of jax[tpu], and of the build
  for requirement in map(Requirement, wanted):
    version, _ = hashed[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), requirement


def test_the_image_installs_nothing_without_a_hash():
  text = (ROOT / 'launch/Dockerfile').read_text(encoding='utf-8')
  installs = re.findall(r'^RUN pip install (.*)$', text, re.MULTILINE)
  assert [
    '--require-hashes' in line or '--no-deps --no-build-isolation' in line for line in installs
  ] == [True, True]
