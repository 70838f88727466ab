# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The token store that `gpt-jax prepare` wrote: a corpus as one flat array of token ids.

Its arrays are zarr3: files of 32 MiB, each of chunks of 8,192 numbers with a checksum, and at its
end the place and size of each chunk.
"""

import json
import os
import zlib

import numpy as np

from gpt_jax.plain.recipe import READS_DOCUMENTS, READS_SENTENCES, VOCAB_SIZE
from gpt_jax.plain.types import Store


def read_array(folder: str, name: str, dtype: str, length: int, sums: list[int]) -> np.ndarray:
  """A whole zarr3 array: shards of chunks, whose places and sizes are at the shard's end."""
  size = np.dtype(dtype).itemsize
  shard, chunk = 2**25 // size, 2**13
  parts = []
  for i in range(-(-length // shard)):
    data = np.fromfile(f'{folder}/{name}/c/{i}', np.uint8)
    index = np.frombuffer(data[-16 * (shard // chunk) - 4 : -4].tobytes(), '<u8').reshape(-1, 2)
    used = -(-min(length - i * shard, shard) // chunk)
    parts += [data[int(at) : int(at) + chunk * size] for at, _ in index[:used]]
  array = np.concatenate(parts).view(dtype)[:length]
  found = [zlib.crc32(array[i : i + 2**20].tobytes()) for i in range(0, length, 2**20)]
  if found != sums:
    raise SystemExit(f'{folder}/{name} is damaged: prepare the text again')
  return array


def open_store(folder: str) -> Store:
  """The manifest of a store, and its arrays in memory."""
  if not os.path.exists(f'{folder}/manifest.json'):
    raise SystemExit(f'{folder} has no tokens: gpt-jax prepare --config CONFIG --out {folder}')
  with open(f'{folder}/manifest.json', encoding='utf-8') as file:
    store = json.load(file) | {'folder': folder}
  if store['vocab_size'] > VOCAB_SIZE:
    raise SystemExit(f'{folder} has {store["vocab_size"]} tokens, more than {VOCAB_SIZE}')
  number = store['num_tokens'], store['tokens_crc32']
  store['tokens'] = read_array(folder, 'tokens', store['dtype'], *number)
  if READS_DOCUMENTS:
    number = store['num_documents'], store['document_ends_crc32']
    store['document_ends'] = read_array(folder, 'document_ends', 'int64', *number)
  if READS_SENTENCES:
    number = store['num_sentences'], store['sentence_ends_crc32']
    store['sentence_ends'] = read_array(folder, 'sentence_ends', 'int64', *number)
  return store
