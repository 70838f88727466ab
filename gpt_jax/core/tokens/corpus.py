# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a token store is made of: texts, their cleaning, split and tokenizer."""

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from gpt_jax.core import spec
from gpt_jax.core.files import files
from gpt_jax.core.files.document import Source
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import holdout, sources
from gpt_jax.core.text.clean import choices
from gpt_jax.core.text.clean.steps import Step
from gpt_jax.core.text.holdout import Split
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.tokens import mixture, store

# In a store whose sources name a revision that may move: each call of the config
# -> the call with the commit that the store is made of.
COMMITS = 'commits.json'


class Settings(NamedTuple):
  """The config fields that a token store depends on."""

  source: str
  holdout: str
  tokenizer: str
  clean: str
  compression: str
  sentences: str


# By the names of `Settings`.
FIELDS = Settings(
  source='data.source',
  holdout='data.holdout',
  tokenizer='tokenizer.name',
  clean='data.clean',
  compression='data.compression',
  sentences='data.sentences',
)


def settings_of(config: Any) -> Settings:
  """The settings of a config; of a mixture the joined corpus is the source."""
  data: Any = config.data
  source = data.source
  if mixture.is_mixture(source):
    source = mixture.corpus(source, data.sources)
    if spec.parse('data.holdout', data.holdout)[0].name == 'tail':
      raise UsageError(
        f'data.holdout={data.holdout!r}: would hold out the last source of a '
        "mixture alone; take 'documents(fraction=0.02)'"
      )
  store.codec(data.compression)
  store.splitter(data.sentences)
  return Settings(
    source=source,
    holdout=data.holdout,
    tokenizer=config.tokenizer.name,
    clean=data.clean,
    compression=data.compression,
    sentences=data.sentences,
  )


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The texts of a store, opened once: nothing is read yet.

  Attributes:
    settings: what the config says, for the manifest.
    read: the same with commits for revisions that may move; what is read.
    split: the documents, and which of them are held out.
    steps: of cleaning.
    files: name -> path of all that the store depends on.
    in_mixture: whether names of documents begin with their source.
  """

  settings: Settings
  read: Settings
  split: Split
  steps: Sequence[Step]
  maker: tokenizer.Maker
  files: dict[str, str]
  in_mixture: bool

  @classmethod
  def of(cls, settings: Settings, folder: str, field: str = 'data.source') -> Self:
    """Builds all that the settings name; refuses what does not go together.

    Args:
      folder: of the store, which may have recorded commits.
      field: the config's field that has the source.
    """
    known = _commits(folder)
    read = settings._replace(
      source=known.get(settings.source) or sources.at_commit(field, settings.source),
      holdout=known.get(settings.holdout) or sources.at_commit('data.holdout', settings.holdout),
    )
    split = holdout.split(read.source, read.holdout, field)
    steps = choices.load(settings.clean)
    maker = tokenizer.maker(settings.tokenizer)
    if split.pairs and steps:
      raise UsageError(
        f'data.clean={settings.clean!r}: takes out texts one by one, and those '
        f"of data.source={settings.source!r} are pairs; set data.clean='none'"
      )
    if maker.sources and not split.pairs:
      raise UsageError(
        f'tokenizer.name={settings.tokenizer!r}: is for pairs of texts, and '
        f'data.source={settings.source!r} has none; give one tokenizer'
      )
    read_files = split.files | {
      f'tokenizer: {os.path.basename(value)}': value
      for call in tokenizer.single(settings.tokenizer)
      for value in (*call.args, *call.kwargs.values())
      if isinstance(value, str) and os.path.isfile(value)
    }
    for step in steps:
      read_files |= {f'clean: {name}': path for name, path in step.files.items()}
    in_mixture = field == 'data.source' and mixture.is_mixture(settings.source)
    return cls(settings, read, split, steps, maker, read_files, in_mixture)

  def record(self, folder: str) -> None:
    """Writes the commits into the folder of the store, from which `of` reads them."""
    pairs = zip(self.settings, self.read, strict=True)
    if found := {given: read for given, read in pairs if given != read}:
      files.write(folder, COMMITS, json.dumps(found, indent=1).encode() + b'\n')

  def check(self) -> None:
    """Refuses what cannot be read or cleaned, before long work."""
    for step in self.steps:
      step.check()
    self.split.check()

  def cleaned(self, source: Source) -> Self:
    """The same with what cleaning left; held-out sources stay as they are."""
    return dataclasses.replace(self, split=holdout.cleaned(self.split, source))


def _commits(folder: str) -> dict[str, str]:
  data = files.read(folder, COMMITS)
  if data is None:
    return {}
  path = files.join(folder, COMMITS)
  return files.parse(data, path, remedy='remove the folder, and prepare the data again')
