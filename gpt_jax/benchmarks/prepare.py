# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The cost of `prepare`: seconds, memory of all processes, bytes on disk.

Generates text, or takes the corpus of the config, and runs `gpt-jax prepare` on
it as a user would: in separate processes, whose memory is watched from outside
(Linux only).
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.config import Config

_EVERY_SECONDS = 0.05
_PAGE = os.sysconf('SC_PAGE_SIZE')

# Words of the generated texts; the frequent ones are short.
_WORDS = 50_000

# Code that runs the command on a resolved config.
_CHILD = """
import logging, sys
from gpt_jax import command
from gpt_jax import config as config_lib
from gpt_jax.tokens import prepare
if __name__ == '__main__':
  command._set_up_logging()
  with open(sys.argv[1], encoding='utf-8') as file:
    prepare.prepare(config_lib.from_json(file.read()), sys.argv[2])
"""


def measure(config: Config, text: str) -> dict:
  """Prepares once, and measures it.

  Args:
    config: gives the tokenizer, the workers and, for 'corpus', the source.
    text: a call-string of `TEXTS`.
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
    size = sum(
      os.path.getsize(os.path.join(where, name))
      for array in ('tokens', 'document_ends')
      for where, _, names in os.walk(os.path.join(out, array))
      for name in names
    )
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
    [sys.executable, '-c', _CHILD, path, out],
    stderr=subprocess.PIPE,
    text=True,
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
  tokenizer = re.search(r'tokens in ([\d.]+) s', ''.join(lines))
  return {
    'seconds': time.perf_counter() - start,
    'tokenizer_seconds': float(tokenizer[1]) if tokenizer else 0.0,
    'peak_rss_bytes': peak,
    'processes': most,
  }


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
    f'time      {result["seconds"]:.1f} s, of which the tokenizer '
    f'{result["tokenizer_seconds"]:.1f} s; '
    f'{result["bytes_per_second"] / mb:.2f} MB/s in all\n'
    f'memory    {result["peak_rss_bytes"] / mb:,.0f} MB at most, of '
    f'{result["processes"]} processes together\n'
    f'disk      {result["num_tokens"]:,} tokens, '
    f'{result["bytes_per_token_on_disk"]:.3f} bytes each with the ends of the '
    'documents'
  )


def corpus() -> None:
  """Takes the corpus of the config."""


def documents(count: float = 1e6, words: int = 50) -> Iterator[str]:
  """Yields `count` documents of `words` words each."""
  rng = np.random.default_rng(0)
  vocabulary = _vocabulary(rng)
  for start in range(0, int(count), 1000):
    rows = _draw(rng, (min(1000, int(count) - start), words))
    for row in rows:
      yield ' '.join(vocabulary[row]) + '\n'


def one(megabytes: float = 500) -> Iterator[str]:
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


# Each generates documents; None stands for those of the config.
TEXTS = {'corpus': corpus, 'documents': documents, 'one': one}
