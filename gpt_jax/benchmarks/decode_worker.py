# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""One side of `decode_against`: a process that decodes when it is told to.

  python -m gpt_jax.benchmarks.decode_worker ours|torch FOLDER

It loads the Hugging Face checkpoint in FOLDER, says so, and takes lines of
JSON: a case, then how many tokens to go on for, until the case is done. Between
those turns it waits, so that the other side has all cores.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from gpt_jax.benchmarks import sides, torch_side

# Takes prompts [B, L], or sources, the number of new tokens, how many beams are
# followed (0: greedily), and what is called after each token; gives the new ids
# [B, N] and the bytes of the caches.
Decode = Callable[[np.ndarray, int, int, Callable[[], None]], tuple[list, int]]


class Turns:
  """Times tokens, and stops the clock while it is the other side's turn."""

  def __init__(self, lines: IO[str], say: Callable[[dict], None]):
    """`lines` bring the turns, `say` answers them."""
    self._lines, self._say = lines, say
    self._left, self._total = 0, 0

  def run(self, decode: Decode, case: dict) -> None:
    """Decodes a case in turns; the last answer has its results."""
    prompts = np.random.default_rng(0).integers(
      case['vocab_size'], size=(case['batch'], case['prompt']), dtype=np.int32
    )
    self._total = case['tokens']
    sides.reset_peak()
    self._wait()
    tokens, beams = case['tokens'], case.get('beams', 0)
    ids, cache_bytes = decode(prompts, tokens, beams, self.token)
    self._say(
      {
        **self._found,
        'ids': ids,
        'cache_bytes': cache_bytes,
        'peak_bytes': sides.peak_bytes(),
      }
    )

  def token(self) -> None:
    """Takes the time of a token; hands over where the turn is over."""
    self._found['seconds'].append(time.perf_counter() - self._wall)
    self._found['cpu_seconds'].append(time.process_time() - self._cpu)
    self._left -= 1
    self._total -= 1
    # The last token's answer comes with the results.
    if not self._left and self._total:
      self._say(self._found)
      self._wait()
    else:
      self._start()

  def _wait(self) -> None:
    self._left = json.loads(self._lines.readline())
    self._found = {'seconds': [], 'cpu_seconds': []}
    self._start()

  def _start(self) -> None:
    self._wall, self._cpu = time.perf_counter(), time.process_time()


def _ours(folder: str) -> Decode:
  from gpt_jax.runtime import malloc

  # As the commands do, before jax is imported.
  malloc.keep_memory()
  from gpt_jax import hf
  from gpt_jax.decoding.beam import Beam, Search
  from gpt_jax.decoding.engine import Engine, Request
  from gpt_jax.decoding.programs import in_place
  from gpt_jax.decoding.requests import Row
  from gpt_jax.decoding.sampler import Sampler

  model, params = in_place(*hf.load(folder))
  greedy = Sampler(temperature=0)

  def search(prompts, num, beams, token):
    rows = []
    for i, ids in enumerate(prompts.tolist()):
      asked = Request(ids, num)
      if model.num_encoder_layers:
        asked = Request([0], num, source=ids)
      rows.append(Row(i, asked, list(asked.ids)))
    running, size = Search(model, params, rows, Beam(beams), slots=len(rows)), 0
    out = {}
    for _ in range(num):
      running.wait()
      size = max(size, running.cache_bytes)
      token()
      out |= dict(running.step())
    return [out[i][0].ids for i in range(len(rows))], size

  def decode(prompts, num, beams, token):
    if beams:
      return search(prompts, num, beams, token)
    engine, size = Engine(model, params, slots=len(prompts)), 0
    out = {
      engine.add(Request(ids.tolist(), num, greedy)): [] for ids in prompts
    }
    for _ in range(num):
      for found in engine.step():
        out[found.request].append(found.id)
      size = max(size, engine.cache_bytes)
      token()
    return list(out.values()), size

  return decode


def _torch(folder: str) -> Decode:
  import torch  # pyright: ignore[reportMissingImports]

  model, encoder = torch_side.load(folder)
  model.eval()
  # No token ends a row.
  model.generation_config.eos_token_id = None

  def decode(prompts, num, beams, token):
    def each(ids: Any, scores: Any) -> Any:
      token()
      return scores

    ids = torch.from_numpy(prompts.astype(np.int64))
    # Beam search streams nothing, but asks what its scores are to become.
    seen: dict[str, Any] = (
      {'num_beams': beams, 'logits_processor': [each]}
      if beams
      else {'streamer': _Streamer(token)}
    )
    with torch.inference_mode():
      out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=num,
        pad_token_id=0,
        return_dict_in_generate=True,
        **seen,
      )
    caches = [out.past_key_values]
    if encoder:
      both = out.past_key_values
      caches = [both.self_attention_cache, both.cross_attention_cache]
    pairs = [(x.keys, x.values) for cache in caches for x in cache.layers]
    size = sum(x.nbytes for pair in pairs for x in pair)
    start = 1 if encoder else ids.shape[1]
    return out.sequences[:, start:].tolist(), size

  return decode


class _Streamer:
  """Is given the prompt by transformers, then each token."""

  def __init__(self, token: Callable[[], None]):
    """`token` is called after each."""
    self._token, self._began = token, False

  def put(self, ids: Any) -> None:
    """Takes ids."""
    if self._began:
      self._token()
    self._began = True

  def end(self) -> None:
    """All was given."""


SIDES = {sides.OURS: _ours, sides.TORCH: _torch}


def main(side: str, folder: str) -> None:
  """Serves the cases of standard input, one after the other."""
  # What libraries print must not come between the answers.
  say = sides.answers()
  decode = SIDES[side](folder)
  say({})
  while line := sys.stdin.readline():
    Turns(sys.stdin, say).run(decode, json.loads(line))


if __name__ == '__main__':
  main(*sys.argv[1:])
