# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models of the Hub: fetched for an import, and pushed after an export."""

import glob
import os
import re
from typing import Any, NamedTuple

from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.special import BESIDE
from gpt_jax.hf import peft
from gpt_jax.hf.checkpoint import CONFIG, INDEX, OTHERS, SINGLE, read_json
from gpt_jax.hf.vocabulary import VOCABULARIES
from gpt_jax.hub import client

_NAME = r'[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*'
_AT_REVISION = re.compile(rf'(?P<name>{_NAME})(?:@(?P<revision>.+))?')

# What an import reads beside the weights. Nothing else is fetched, so that no
# code and no second copy of the weights comes along.
_BESIDE = {CONFIG, 'merges.txt', *VOCABULARIES, *BESIDE}


class Snapshot(NamedTuple):
  """A repository at one commit.

  Attributes:
    folder: here, with the files of the model.
    repository: 'ORG/NAME@COMMIT'.
  """

  folder: str
  repository: str


def names_repository(text: str) -> bool:
  """Whether a text names a repository of models, and no path that is here."""
  return bool(_AT_REVISION.fullmatch(text)) and not os.path.lexists(text)


def fetch(text: str) -> Snapshot:
  """Fetches what an import reads of 'ORG/NAME' or 'ORG/NAME@REVISION'.

  Files that are in the cache are not fetched again. Offline, all must be.
  """
  found = _AT_REVISION.fullmatch(text)
  assert found, text
  name, given = found['name'], f'--from_hf={text} (no path here)'
  hub, api = client.library(given), client.api(given)
  with client.told(given):
    revision = api.resolve_revision(name, revision=found['revision'])
    if hub.is_offline_mode():
      listed = hub.get_cached_repo_tree(name, revision=revision)
    else:
      listed = api.list_repo_tree(name, revision=revision.resolved)
    names = _wanted(given, {file.path for file in listed}, name, revision)
    patterns = [*map(glob.escape, names)]
    new = 0
    if not hub.is_offline_mode():
      with hub.utils.disable_progress_bars():
        files = hub.snapshot_download(
          name, revision=revision, allow_patterns=patterns, dry_run=True
        )
      new = sum(file.file_size for file in files if file.will_download)
      log.info(
        '%s at commit %s: %d files, %s, of which %s are to be fetched into %s',
        *(name, revision.resolved, len(files)),
        client.size(sum(file.file_size for file in files)),
        *(client.size(new), hub.constants.HF_HUB_CACHE),
      )
      client.check_room(given, new)
    with client.reported(given, new) as bars:
      folder = hub.snapshot_download(
        name, revision=revision, allow_patterns=patterns, tqdm_class=bars
      )
  return Snapshot(folder, f'{name}@{revision.resolved}')


def _wanted(given: str, listed: set[str], name: str, revision: Any) -> list[str]:
  """The files to fetch, of those at the top of a repository."""
  if SINGLE in listed:
    weights = {SINGLE}
  elif INDEX in listed:
    hub = client.library(given)
    with client.bars(given):
      path = hub.hf_hub_download(name, INDEX, revision=revision)
    shards = read_json(os.path.dirname(path), INDEX).get('weight_map')
    weights = {INDEX, *map(str, shards.values() if isinstance(shards, dict) else ())}
  elif peft.CONFIG in listed and CONFIG not in listed:
    raise UsageError(
      f'{given}: holds an adapter alone; fetch it and its base with `hf download`, and '
      f'set base_model_name_or_path of {peft.CONFIG} to the folder of the base'
    )
  else:
    others = sorted(listed & {*OTHERS}) or ['no weights that we know']
    raise UsageError(
      f'{given}: holds {", ".join(others)} and no {SINGLE}: only safetensors are read; name '
      'a revision that has them (refs/pr/1, for example), or convert it where you trust it'
    )
  return sorted((weights | _BESIDE) & listed)


def check_push(name: str, folder: str, *, public: bool) -> None:
  """Refuses a push that would fail, or show what is private, before any work.

  Args:
    name: 'ORG/NAME'.
    folder: of the export, all of which is pushed.
    public: whether everyone may read the repository.
  """
  given = f'--push={name}'
  hub, api = client.library(given), client.api(given)
  if not re.fullmatch(_NAME, name):
    raise UsageError(f'{given}: is not the name of a repository; give ORG/NAME')
  if os.path.isdir(folder) and os.listdir(folder):
    raise UsageError(f'{given}: pushes all of --to_hf={folder}, which is not empty; give another')
  if hub.is_offline_mode():
    raise UsageError(f'{given}: HF_HUB_OFFLINE is set; unset it')
  if hub.get_token() is None:
    raise UsageError(f'{given}: there is no token; log in with `hf auth login`, or set HF_TOKEN')
  with client.told(given):
    api.whoami()
    there = api.repo_exists(name)
    if there and not api.repo_info(name).private and not public:
      raise UsageError(f'{given}: everyone may read this repository; give --public to push to it')


def push(folder: str, name: str, *, public: bool) -> None:
  """Uploads an export in place of an earlier one; makes the repository if need be."""
  private = '' if public else ' --private'
  again = f'the export in {folder} is whole; to send it, `hf upload {name} {folder}{private}`'
  given = f'--push={name} ({again})'
  api = client.api(given)
  with client.told(given), client.bars(given):
    api.create_repo(name, private=not public, exist_ok=True)
    commit = api.upload_folder(
      repo_id=name,
      folder_path=folder,
      commit_message='Export by gpt-jax convert',
      # A model.safetensors that stayed would be read instead of new shards.
      delete_patterns=['*.safetensors', INDEX, peft.CONFIG, *sorted(_BESIDE)],
    )
  log.info('%s: pushed to %s as commit %s', folder, commit.repo_url, commit.oid)
