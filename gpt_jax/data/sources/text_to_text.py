# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GLUE's tasks as a source of pairs of texts, in T5's formats.

  data.source = "text_to_text('sst2', 'glue/SST-2')"

A pair is two documents, one after the other: NAME#source and NAME#target.
"""

import os
from collections.abc import Iterator

from gpt_jax.data import text_to_text as formats
from gpt_jax.data.sources.source import Document, Reader, Skip, Unit


def text_to_text(task: str, folder: str = '', split: str = 'train') -> Reader:
  """The examples of a task: 'sst2 sentence: ...' and 'positive'.

  Args:
    task: of `text_to_text.FORMATS`.
    folder: of its files as published; '': the set of TensorFlow Datasets.
    split: 'train' or 'dev'.
  """
  tables = formats.load(task, folder)

  def unit(skip: Skip) -> Iterator[Document]:
    del skip  # a line that is bad is always an error
    for number, pair in enumerate(formats.pairs(task, tables, split)):
      yield Document(f'{split}:{number}#source', pair.source)
      yield Document(f'{split}:{number}#target', pair.target)

  path = tables.paths.get(split, '')
  known = bool(path) and not path.startswith('tfds:')
  size = os.path.getsize(path) if known and os.path.isfile(path) else None
  files = {os.path.basename(path): path} if known else {}
  return Reader([Unit(unit)], files, size)
