# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents from the Parquet files of a data set of the Hub.

The files of a split are found by their names, as most data sets have them:

  data/train-00000-of-00004.parquet        split 'train'
  fr/train-00000-of-00002.parquet          split 'train' of config 'fr'
  default/train/0000.parquet               the Hub's own conversion of other
                                           formats, at 'refs/convert/parquet'
"""

import dataclasses
import functools
import glob
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpt_jax.core import spec
from gpt_jax.core.files.document import Document, OnError, Skip, Source
from gpt_jax.core.spec import Call, UsageError, counted, optional
from gpt_jax.core.text import parquet
from gpt_jax.hub import client

log = logging.getLogger('gpt_jax')

_COMMIT = re.compile(r'[0-9a-f]{40}')
# What follows the split in the name of a file, of several.
_NUMBER = re.compile(r'[-.]\d.*')
_DEFAULT = 'default'


def hub(
  name: str,
  split: str = 'train',
  columns: str = 'text',
  config: str = '',
  revision: str = 'main',
  on_error: OnError = 'fail',
) -> Source:
  """One document per row of a data set of the Hugging Face Hub.

  Its Parquet files are fetched into the Hub's cache one by one, when they are
  reached. A token store records the commit that `revision` was at, and is made
  of that commit, however often it is begun. Needs the extra `hub`.

  Args:
    name: 'ORG/NAME'.
    split: 'train', or as the files are named.
    columns: that have the text, separated by commas; the texts of a row are joined
      by a blank line. Their names are as in `parquet`.
    config: which one, where several have the split; also called a subset.
    revision: branch, tag or commit.
    on_error: as in `parquet`.
  """
  given = f'hub({name!r}, revision={revision!r})'
  names = [column.strip() for column in columns.split(',')]
  library, api = client.library(given), client.api(given)
  tables = optional('pyarrow.parquet', 'hub(...) needs pyarrow', 'hub')
  with client.told(given):
    commit = api.resolve_revision(name, repo_type='dataset', revision=revision)
    try:
      listed = library.get_cached_repo_tree(name, repo_type='dataset', revision=commit)
    except library.errors.CachedRepoTreeNotFoundError:
      listed = api.list_repo_tree(
        name, repo_type='dataset', revision=commit.resolved, recursive=True
      )
    sizes = {x.path: x.size for x in listed if x.path.endswith('.parquet')}
  paths = _of_split(given, sorted(sizes), split, config)
  files = _Files(given, name, commit, {path: sizes[path] for path in paths})

  def unit(path: str, skip: Skip) -> Iterator[Document]:
    yield from parquet.rows(tables, path, files.fetched(path), names, skip)

  def begin() -> None:
    for column in names:
      parquet.check_column(tables, files.fetched(paths[0]), column)

  return _Fetched(
    units=[functools.partial(unit, path) for path in paths], on_error=on_error, begin=begin
  )


@dataclasses.dataclass(kw_only=True)
class _Fetched(Source):
  """A source whose files are of a commit, which does not change.

  So it has no `files` to notice changes of; the first is fetched to be checked.
  """

  begin: Callable[[], None]

  def check(self) -> None:
    if self.on_error != 'skip':
      self.begin()


@dataclasses.dataclass(frozen=True)
class _Files:
  """The files of a split: path in the repository -> bytes."""

  given: str
  name: str
  commit: Any
  sizes: dict[str, int]

  def fetched(self, path: str) -> str:
    """The path here of a file, which is fetched unless the cache has it."""
    hub = client.library(self.given)
    cached = functools.partial(
      hub.try_to_load_from_cache, self.name, repo_type='dataset', revision=self.commit.resolved
    )
    if here := cached(path):
      return here
    left = [size for other, size in self.sizes.items() if not cached(other)]
    log.info(
      '%s at commit %s: fetching %s, %s; with it %s, %s, are not yet in %s',
      *(self.name, self.commit.resolved, path, client.size(self.sizes[path])),
      *(counted(len(left), 'file'), client.size(sum(left)), hub.constants.HF_HUB_CACHE),
    )
    client.check_room(self.given, sum(left))
    # With the repository's listing, by which a later run is offline.
    with client.told(self.given), hub.utils.disable_progress_bars():
      hub.snapshot_download(
        self.name, repo_type='dataset', revision=self.commit, allow_patterns=glob.escape(path)
      )
    return cached(path)


def _of_split(given: str, paths: Sequence[str], split: str, config: str) -> list[str]:
  """The files of a split, in order."""
  if not paths:
    raise UsageError(
      f'{given}: has no Parquet files; the Hub converts many data sets, for '
      "revision='refs/convert/parquet'"
    )
  places = {path: _place(path) for path in paths}
  found = sorted({place for place in places.values() if place[1] == split})
  if config:
    found = [place for place in found if place[0] == config]
  if len(found) > 1:  # several configs have it
    found = [place for place in found if place[0] == _DEFAULT] or found
  if len(found) != 1:
    asked = f'config={config!r}, split={split!r}' if config else f'split={split!r}'
    why = 'several configs have it; give one as config' if found else 'is not there'
    all_of_it = sorted({*places.values()})
    named = ', '.join(s if c == _DEFAULT else f'{s} of config {c!r}' for c, s in all_of_it)
    raise UsageError(f'{given}: {asked}: {why}; the splits are {named}')
  return [path for path in paths if places[path] == found[0]]


def _place(path: str) -> tuple[str, str]:
  """The config and the split of a file."""
  *folders, file = path.split('/')
  split = _NUMBER.sub('', file.removesuffix('.parquet'))
  if re.fullmatch(r'[\d_]+', split):  # the folder is the split's
    split = folders.pop() if folders else 'train'
  if folders[:1] == ['data']:
    del folders[0]
  return '/'.join(folders) or _DEFAULT, split


def at_commit(field: str, text: str) -> str:
  """The call of `hub` with the commit that its revision is at now.

  Args:
    field: the config's field that has the call.
    text: the call.
  """
  (call,) = spec.bind_all(field, text, {'hub': hub})
  name, revision = call.kwargs['name'], call.kwargs['revision']
  if _COMMIT.fullmatch(revision):
    return text
  given = f'hub({name!r}, revision={revision!r})'
  with client.told(given):
    found = client.api(given).resolve_revision(name, repo_type='dataset', revision=revision)
  log.info('%s: is at commit %s', given, found.resolved)
  return spec.written(Call(call.name, (), call.kwargs | {'revision': found.resolved}))
