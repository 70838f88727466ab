# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Published texts whose perplexity is measured: the rows of `PUBLISHED`."""

from typing import NamedTuple

from gpt_jax.tasks.detokenize import Style
from gpt_jax.tasks.files import Files, PublishedSplit


class PublishedText(NamedTuple):
  """A text.

  Attributes:
    about: one line for the documentation.
    home: tells the user where to get it.
    splits: its files under each name in use.
    style: of its artefacts, which `detokenize=True` removes; None: it has none.
    last_bytes: of the file, which are the test set; 0: all of it.
  """

  about: str
  home: str
  splits: dict[str, tuple[str, ...]]
  style: Style | None = None
  last_bytes: int = 0

  @property
  def files(self) -> Files:
    """The places where it is looked for."""
    splits = {name: PublishedSplit(paths) for name, paths in self.splits.items()}
    return Files(folder='', home=self.home, splits=splits)


PUBLISHED = {
  'wikitext2': PublishedText(
    "WikiText-2's test split, raw; 'words': word-level, with <unk>.",
    'fetch WikiText-2 raw (wikitext-2-raw-v1) and unpack it there',
    {
      'test': ('wikitext2/test.raw.txt', 'wikitext-2-raw/wiki.test.raw'),
      'words': ('wikitext2/test.txt', 'wikitext-2/wiki.test.tokens'),
    },
    'wikitext',
  ),
  'wikitext103': PublishedText(
    "WikiText-103's test split, raw; 'words': word-level, with <unk>.",
    'fetch WikiText-103 raw (wikitext-103-raw-v1) and unpack it there',
    {
      'test': ('wikitext103/test.raw.txt', 'wikitext-103-raw/wiki.test.raw'),
      'words': ('wikitext103/test.txt', 'wikitext-103/wiki.test.tokens'),
    },
    'wikitext',
  ),
  'ptb': PublishedText(
    'The Penn Treebank with 10,000 words (Mikolov et al., 2010).',
    'unpack simple-examples.tgz of the RNNLM toolkit there',
    {
      'test': ('ptb/ptb.test.txt', 'simple-examples/data/ptb.test.txt'),
      'valid': ('ptb/ptb.valid.txt', 'simple-examples/data/ptb.valid.txt'),
    },
    'ptb',
  ),
  'enwik8': PublishedText(
    'The last 5,000,000 bytes of enwik8, the usual test set.',
    'unpack enwik8.zip from http://mattmahoney.net/dc/textdata.html there',
    {'test': ('enwik8/enwik8', 'enwik8')},
    last_bytes=5_000_000,
  ),
  'text8': PublishedText(
    'The last 5,000,000 bytes of text8, the usual test set.',
    'unpack text8.zip from http://mattmahoney.net/dc/textdata.html there',
    {'test': ('text8/text8', 'text8')},
    last_bytes=5_000_000,
  ),
}
