# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Overlap between evaluation sets and the training text.

GPT-3, appendix C: an example counts as seen if it shares 13 consecutive words
with the training data.
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.files.progress import Report
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import ngrams
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.tokens.store import TokenStore
from gpt_jax.core.training import store_data
from gpt_jax.evaluation.figures import Figures
from gpt_jax.evaluation.suite import NamedTask
from gpt_jax.opening.models import Trained

log = logging.getLogger('gpt_jax')

# Tokens decoded at a time: documents may have any size.
_BLOCK = 1 << 20
# Overlap of consecutive blocks: at least 13 words with any tokenizer.
_SHARED = 1 << 10


class Overlaps(NamedTuple):
  """The texts of tasks that share words with a training store."""

  # For each task `eval/TASK/overlap`, the fraction of its texts that share an
  # n-gram with the store, and `eval/TASK/overlap_checked`, the number of texts
  # of at least 13 words.
  figures: Figures
  seen: dict[str, frozenset[int]]  # for each task the positions of these texts
  # For each task where these texts are, and the shared words.
  words: dict[str, list[dict[str, str]]]


def of_run(
  trained: Trained, workdir: str, tasks: Sequence[NamedTask], folder: str, report: Report
) -> Overlaps:
  """The overlaps of tasks with a run's training text; see `find`.

  Writes the words found for each task to overlap-TASK.json in `folder`.
  """
  texts = {named.name: named.task.texts() for named in tasks}
  store = store_data.open_store(trained.parts.config, workdir)
  found = find(texts, store, trained.tokenizer, report)
  os.makedirs(folder, exist_ok=True)
  for name, words in found.words.items():
    path = os.path.join(folder, f'overlap-{name.replace("/", "-")}.json')
    text = json.dumps(words, indent=1, ensure_ascii=False)
    write_atomically(path, text + '\n')
    log.info('wrote %s', path)
  return found


def find(
  tasks: dict[str, Sequence[tuple[str, str]]],
  store: TokenStore,
  tokenizer: Tokenizer,
  report: Report,
) -> Overlaps:
  """Searches a training store for the texts of tasks.

  Args:
    tasks: 'file:line' and text of each example, by task.
    report: called with the number of tokens done and in total.
  """
  tasks = {
    name: [(where, _as_stored(text, tokenizer)) for where, text in texts]
    for name, texts in tasks.items()
  }
  index = ngrams.Index(text for texts in tasks.values() for text in texts)
  seen: dict[int, int] = {}  # text -> the n-gram it was found by
  for done, text in _texts(store, tokenizer):
    for overlap in index.find(text):
      for holder in index.holders(overlap.gram):
        seen.setdefault(holder, overlap.gram)
    report('looking for overlaps', done, len(store))
  out = Overlaps({}, {}, {})
  start = 0  # the task's first text in the index
  for name, texts in tasks.items():
    mine = [i for i in range(len(texts)) if start + i in seen]
    long_enough = sum(len(ngrams.words(t)) >= index.n for _, t in texts)
    out.figures[f'eval/{name}/overlap'] = len(mine) / max(len(texts), 1)
    out.figures[f'eval/{name}/overlap_checked'] = long_enough
    out.seen[name] = frozenset(mine)
    out.words[name] = [{'where': texts[i][0], 'words': index.text(seen[start + i])} for i in mine]
    start += len(texts)
  return out


def _as_stored(text: str, tokenizer: Tokenizer) -> str:
  """The text as a store gives it back: some tokenizers change it."""
  try:
    return tokenizer.decode(tokenizer.encode(text))
  except UsageError:  # it has characters that the store cannot have
    return text


def _texts(store: TokenStore, tokenizer: Tokenizer) -> Iterator[tuple[int, str]]:
  """Yields tokens done and text, with enough overlap to miss no n-gram."""
  start = 0
  for stop in store.document_ends.tolist():
    while start < stop:
      end = min(start + _BLOCK, stop)
      yield end, store.text(tokenizer, start, end)
      start = end if end == stop else end - _SHARED
