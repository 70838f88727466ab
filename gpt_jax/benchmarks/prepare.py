# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From text to rows: the cost of `prepare`, of encoding, and of reading rows.

`prepare` runs in separate processes, as for a user; their memory is watched
from outside (Linux only).
"""

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Annotated

import numpy as np

from gpt_jax.benchmarks import harness
from gpt_jax.core import config as config_lib
from gpt_jax.core import ranges, spec
from gpt_jax.core.config import Config
from gpt_jax.core.files import progress
from gpt_jax.core.files import workers as processes
from gpt_jax.core.files.document import Document, Source
from gpt_jax.core.ranges import Count
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import holdout
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.tokenizers.sentencepiece import SentencePiece
from gpt_jax.core.tokens import encode as encode_lib

_EVERY_SECONDS = 0.05
_PAGE = os.sysconf('SC_PAGE_SIZE')

# Words of the generated texts; the frequent ones are short.
_WORDS = 50_000

# Code that runs the command on a resolved config.
_CHILD = """
import sys
from gpt_jax.core import config as config_lib
from gpt_jax.core.runtime import log
from gpt_jax.core.tokens import prepare
if __name__ == '__main__':
  log.set_up()
  with open(sys.argv[1], encoding='utf-8') as file:
    prepare.prepare(config_lib.from_json(file.read()), sys.argv[2])
"""


def measure(config: Config, text: str) -> dict:
  """Measures preparing `text`, a call-string of `TEXTS`, once.

  The config has the tokenizer, the workers and, for 'corpus', the source.
  """
  with tempfile.TemporaryDirectory(dir=os.environ.get('TMPDIR')) as folder:
    path = os.path.join(folder, 'text.jsonl')
    documents = spec.build('--text', text, TEXTS)
    if documents is not None:
      with open(path, 'w', encoding='utf-8') as file:
        for document in documents:
          file.write(json.dumps({'text': document}) + '\n')
      config = config_lib.unlocked(config)
      config.data.update(source=f'jsonl({path!r})', holdout='none')
      config = config.lock()
    out = os.path.join(folder, 'out')
    found = _run(config, folder, out)
    with open(os.path.join(out, 'manifest.json'), encoding='utf-8') as file:
      manifest = json.load(file)
    size = sum(_size(os.path.join(out, array)) for array in ('tokens', 'document_ends'))
  tokens = manifest['num_tokens']
  return {
    'text': text,
    'num_bytes': manifest['num_bytes'],
    'num_documents': manifest['num_documents'],
    'num_tokens': tokens,
    'bytes_per_token_on_disk': size / tokens,
    'bytes_per_second': manifest['num_bytes'] / found['seconds'],
    **found,
  }


def _run(config: Config, folder: str, out: str) -> dict:
  """Runs the command; returns its seconds, stages and peak memory."""
  path = os.path.join(folder, 'config.json')
  with open(path, 'w', encoding='utf-8') as file:
    file.write(config_lib.to_json(config))
  start = time.perf_counter()
  with subprocess.Popen(
    [sys.executable, '-c', _CHILD, path, out], stderr=subprocess.PIPE, text=True
  ) as child:
    peak, most = 0, 0
    ended = threading.Event()

    def watch():
      nonlocal peak, most
      while not ended.wait(_EVERY_SECONDS):
        sizes = _tree(child.pid)
        peak, most = max(peak, sum(sizes)), max(most, len(sizes))

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert child.stderr is not None
    lines = []
    for line in child.stderr:
      sys.stderr.write(line)
      lines.append(line)
    child.wait()
    ended.set()
    watcher.join()
  if child.returncode:
    raise RuntimeError(f'preparing failed: {lines[-1].strip()}')
  return {'seconds': time.perf_counter() - start, 'peak_rss_bytes': peak, 'processes': most}


def _size(folder: str) -> int:
  """Bytes of all files in a folder."""
  return sum(
    os.path.getsize(os.path.join(where, name))
    for where, _, names in os.walk(folder)
    for name in names
  )


def _tree(root: int) -> list[int]:
  """Resident bytes of a process tree; shared pages count in each process."""
  parents, sizes = {}, {}
  for name in filter(str.isdigit, os.listdir('/proc')):
    try:
      with open(f'/proc/{name}/stat', encoding='utf-8') as file:
        fields = file.read().rpartition(')')[2].split()
    except OSError:  # the process has ended
      continue
    parents[int(name)] = int(fields[1])
    sizes[int(name)] = int(fields[21]) * _PAGE
  found, left = [], [root]
  while left:
    one = left.pop()
    found.append(sizes.get(one, 0))
    left += [child for child, parent in parents.items() if parent == one]
  return found


def report(result: dict) -> str:
  """Formats the result."""
  mb = 1e6
  return (
    f'text      {result["text"]}: {result["num_documents"]:,} documents, '
    f'{result["num_bytes"] / mb:,.1f} MB\n'
    f'time      {result["seconds"]:.1f} s; '
    f'{result["bytes_per_second"] / mb:.2f} MB/s\n'
    f'memory    {result["peak_rss_bytes"] / mb:,.0f} MB at most, of '
    f'{result["processes"]} processes together\n'
    f'disk      {result["num_tokens"]:,} tokens, '
    f'{result["bytes_per_token_on_disk"]:.3f} bytes each with the ends of the '
    'documents'
  )


# As many as a run of hours reads, at most.
_Count = Annotated[float, ranges.number(1, 10**9)]
_Megabytes = Annotated[float, ranges.number(1, 10**5)]


def corpus() -> None:
  """Uses the corpus of the config."""


def documents(count: _Count = 1e6, words: Count = 50) -> Iterator[str]:
  """Yields `count` documents of `words` words each."""
  rng = np.random.default_rng(0)
  vocabulary = _vocabulary(rng)
  for start in range(0, int(count), 1000):
    rows = _draw(rng, (min(1000, int(count) - start), words))
    for row in rows:
      yield ' '.join(vocabulary[row]) + '\n'


def one(megabytes: _Megabytes = 500) -> Iterator[str]:
  """Yields one document of this size."""
  yield ''.join(documents(megabytes * 1e6 / 3200, 500))


def _vocabulary(rng: np.random.Generator) -> np.ndarray:
  letters = np.array([*'etaoinshrdlucmfwypvbgk'])
  lengths = np.minimum(2 + np.arange(_WORDS) ** 0.2, 12).astype(int)
  words = [''.join(rng.choice(letters, length)) for length in lengths]
  return np.array(words, object)


def _draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
  """Draws words with frequencies proportional to 1 / rank."""
  return (_WORDS ** rng.random(shape)).astype(np.int64) - 1


# Each generates documents; None stands for the config's corpus.
TEXTS = {'corpus': corpus, 'documents': documents, 'one': one}


# Encoding compared with SentencePiece's own threads.
#
# Ours includes the holdout split, batching, splitting long documents,
# conversion to the store's dtype, document ends and the digest of the text: all
# that `prepare` does except reading and writing files. SentencePiece's is one
# call, `encode(documents, num_threads=N)`, to lists (the default) or to arrays.
# All encode the same documents in memory, in turns.

# Bytes of text, in memory: enough for several seconds.
_MOST_BYTES = 256_000_000


def encode(config: Config, steps: int) -> dict:
  """Encodes the config's corpus `steps` times each way."""
  split = holdout.split(config.data.source, config.data.holdout)
  with progress.bar() as report:
    documents, size = [], 0
    for part in split.parts():
      documents.append(part.document)
      size += len(part.document.text.encode())
      report('reading', size, split.num_bytes)
      if size >= _MOST_BYTES:
        break
  made = tokenizer.build(config.tokenizer.name, documents)
  if not isinstance(made, SentencePiece):
    raise UsageError(
      f'tokenizer.name={config.tokenizer.name!r}: encoding is compared with '
      'SentencePiece; take sentencepiece or sentencepiece_file'
    )
  workers = processes.count(config.data.workers)
  texts = [document.text for document in documents]
  own = made.processor

  def arrays() -> list:
    return own.encode(texts, num_threads=workers, return_type='numpy')

  times = harness.in_turns(
    {
      'ours': lambda: _as_prepare_does(documents, made, workers),
      'lists': lambda: own.encode(texts, num_threads=workers),
      'arrays': arrays,
    },
    steps,
    0,
  )
  ids, theirs = made.encode_batch(texts), arrays()

  def ratio(name: str) -> float:
    # Within a round: the load of the machine may change between rounds.
    pairs = zip(times[name].wall, times['ours'].wall, strict=True)
    return statistics.median(x / y for x, y in pairs)

  return {
    'tokenizer': config.tokenizer.name,
    'workers': workers,
    'num_documents': len(documents),
    'num_bytes': size,
    'num_tokens': sum(map(len, ids)),
    'num_documents_same': sum(map(np.array_equal, ids, theirs)),
    'rounds': steps,
    'bytes_per_second': size / times['ours'].median,
    'sentencepiece_bytes_per_second': size / times['lists'].median,
    'sentencepiece_arrays_bytes_per_second': size / times['arrays'].median,
    'ratio': ratio('lists'),
    'ratio_to_arrays': ratio('arrays'),
  }


def _as_prepare_does(documents: list[Document], made: SentencePiece, workers: int) -> int:
  """Encodes the documents, and returns the number of tokens."""
  source = Source(units=[lambda skip: iter(documents)])
  corpus = holdout.Split(source, str, pairs=False)
  parts = holdout.documents()(corpus).parts()
  dtype = encode_lib.dtype_of(made)
  eos = np.array([made.eos_id], np.int32)
  digest, num_tokens = hashlib.sha256(), 0
  batches = encode_lib.batches(parts, made)
  for batch, tokens in encode_lib.encoded(batches, made, workers):
    flat = []
    for piece, found in zip(batch, tokens, strict=True):
      flat += [found.ids, eos] if piece.last else [found.ids]
      if piece.last:
        text = piece.part.document.text.encode()
        digest.update(f'{piece.part.document.name}\0{len(text)}\0'.encode())
        digest.update(text)
    num_tokens += len(np.concatenate(flat).astype(dtype))
  return num_tokens


def report_encode(result: dict) -> str:
  """Formats the result."""
  r = result
  lines = [
    f'{r["tokenizer"]}: {r["num_documents"]:,} documents, '
    f'{r["num_bytes"] / 1e6:.1f} MB, {r["num_tokens"]:,} tokens; '
    f'{r["workers"]} threads, medians of {r["rounds"]} rounds in turn',
    f'as prepare does it       {r["bytes_per_second"] / 1e6:6.1f} MB/s',
  ]
  for name, key, ratio in (
    ('SentencePiece, to lists ', 'sentencepiece_bytes_per_second', 'ratio'),
    ('SentencePiece, to arrays', 'sentencepiece_arrays_bytes_per_second', 'ratio_to_arrays'),
  ):
    lines.append(f'{name} {r[key] / 1e6:6.1f} MB/s; ours is {r[ratio]:.2f} times as fast')
  lines.append(f'the same ids in {r["num_documents_same"]:,} of {r["num_documents"]:,} documents')
  return '\n'.join(lines)
