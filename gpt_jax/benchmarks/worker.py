# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison with torch: a process that works in turns.

  python -m gpt_jax.benchmarks.worker train|decode FOLDER ours|torch
  python -m gpt_jax.benchmarks.worker score FOLDER BATCH_SIZE

It loads the Hugging Face checkpoint in FOLDER, then writes a line of JSON. Each
line of standard input begins a turn, which it answers with times and results.
Libraries are imported where they are used, so that neither side pays for the
other's.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from gpt_jax.benchmarks import harness
from gpt_jax.benchmarks.harness import OURS, TORCH, Clock
from gpt_jax.runtime import malloc

Say = Callable[[dict], None]


def load_torch(folder: str) -> tuple[Any, bool]:
  """The model of a checkpoint on torch, and whether it has an encoder."""
  import torch  # pyright: ignore[reportMissingImports]
  import transformers  # pyright: ignore[reportMissingImports]

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  encoder = transformers.AutoConfig.from_pretrained(folder).is_encoder_decoder
  kind = (
    transformers.AutoModelForSeq2SeqLM
    if encoder
    else transformers.AutoModelForCausalLM
  )
  return kind.from_pretrained(folder), encoder


# Training: each line of input is a number of steps.

CONFIG, BATCHES = 'gpt_jax.json', 'batches.npz'
# AdamW without weight decay, and the gradient's maximum norm.
RATE, BETAS, EPSILON, CLIP = 1e-3, (0.9, 0.95), 1e-8, 1.0

# Trains a step on a batch and returns the loss.
Step = Callable[[dict[str, np.ndarray]], float]


def _trains(folder: str) -> Step:
  from gpt_jax.runtime import malloc

  # As the commands do, before jax is imported.
  malloc.keep_memory()
  import jax

  from gpt_jax import config as config_lib
  from gpt_jax.training import compiled as compiled_lib
  from gpt_jax.training import parts as parts_lib

  with open(os.path.join(folder, CONFIG), encoding='utf-8') as file:
    config = config_lib.from_json(file.read())
  parts = parts_lib.build(config)
  compiled = compiled_lib.compile_train_step(parts)
  state = parts_lib.initial_state(parts)

  def step(batch: dict[str, np.ndarray]) -> float:
    nonlocal state
    rows = len(batch['inputs'])
    arrays = parts.put(batch, rows)
    state, out = compiled.call(state, arrays, *parts.average_start())
    jax.block_until_ready(state)
    return float(out['loss'])

  return step


def _trains_torch(folder: str) -> Step:
  import torch  # pyright: ignore[reportMissingImports]

  model, encoder = load_torch(folder)
  model.train()
  optimizer = torch.optim.AdamW(
    *(model.parameters(), RATE, BETAS, EPSILON), weight_decay=0.0, fused=True
  )

  def step(batch: dict[str, np.ndarray]) -> float:
    ids = {
      name: torch.from_numpy(x.astype(np.int64)) for name, x in batch.items()
    }
    given = {'input_ids': ids['inputs']}
    if encoder:
      given = {
        'input_ids': ids['sources'],
        'attention_mask': ids['source_mask'],
        'decoder_input_ids': ids['inputs'],
      }
    optimizer.zero_grad()
    logits = model(**given, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
      logits.flatten(0, 1), ids['targets'].flatten()
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return loss.item()

  return step


def steps(step: Step, batches: list[dict], start: int, num: int) -> dict:
  """Trains `num` steps, the first of which is number `start`."""
  losses = []
  found = harness.in_turns(
    {
      '': lambda: losses.append(
        step(batches[(start + len(losses)) % len(batches)])
      )
    },
    *(num, 0),
  )['']
  return {
    'seconds': found.wall,
    'cpu_seconds': found.cpu,
    'losses': losses,
    'peak_bytes': malloc.peak_bytes(),
  }


def train(folder: str, side: str) -> None:
  """Trains in turns."""
  say = harness.answers()
  with np.load(os.path.join(folder, BATCHES)) as arrays:
    held = {name: arrays[name] for name in arrays.files}
  batches = [
    {name: x[i] for name, x in held.items()} for i in range(len(held['inputs']))
  ]
  step = {OURS: _trains, TORCH: _trains_torch}[side](folder)
  say({})
  done = 0
  while line := sys.stdin.readline():
    num = json.loads(line)
    say(steps(step, batches, done, num))
    done += num


# Decoding: a line of input is a case; the lines after it are numbers of tokens
# to generate, until the case is done.

# (prompts or sources [B, L], number of new tokens, number of beams (0: greedy),
# callback for each token) -> new ids [B, N] and bytes of the caches.
Decode = Callable[[np.ndarray, int, int, Callable[[], None]], tuple[list, int]]


class Turns:
  """Times tokens, and stops the clock while it is the other side's turn."""

  def __init__(self, lines: IO[str], say: Say):
    """Reads the turns from `lines` and answers them with `say`."""
    self._lines, self._say = lines, say
    self._left, self._total = 0, 0

  def run(self, decode: Decode, case: dict) -> None:
    """Decodes a case in turns; the last answer has its results."""
    prompts = np.random.default_rng(0).integers(
      case['vocab_size'], size=(case['batch'], case['prompt']), dtype=np.int32
    )
    self._total = case['tokens']
    malloc.reset_peak()
    self._wait()
    ids, cache_bytes = decode(prompts, self._total, case['beams'], self.token)
    self._say(
      {
        **self._found,
        'ids': ids,
        'cache_bytes': cache_bytes,
        'peak_bytes': malloc.peak_bytes(),
      }
    )

  def token(self) -> None:
    """Records the time of a token; at the end of a turn, waits for the next."""
    self._found['seconds'].append(time.perf_counter() - self._wall)
    self._found['cpu_seconds'].append(time.process_time() - self._cpu)
    self._left -= 1
    self._total -= 1
    # The last token's times are in the answer with the results.
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


def _decodes(folder: str) -> Decode:
  from gpt_jax.runtime import malloc

  # As the commands do, before jax is imported.
  malloc.keep_memory()
  from gpt_jax import hf
  from gpt_jax.decoding.beam import Beam, Search
  from gpt_jax.decoding.engine import Engine
  from gpt_jax.decoding.programs import Decoder
  from gpt_jax.decoding.requests import Request, Slot
  from gpt_jax.decoding.sampler import Sampler

  decoder = Decoder(*hf.load(folder)).ready()
  greedy = Sampler(temperature=0)

  def search(prompts, num, beams, token):
    rows = []
    for i, ids in enumerate(prompts.tolist()):
      request = Request(ids, num)
      if decoder.model.num_encoder_layers:
        request = Request([0], num, source=ids)
      rows.append(Slot(i, request, list(request.ids)))
    running, size = Search(decoder, rows, Beam(beams), slots=len(rows)), 0
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
    engine, size = Engine(decoder, slots=len(prompts)), 0
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


def _decodes_torch(folder: str) -> Decode:
  import torch  # pyright: ignore[reportMissingImports]

  model, encoder = load_torch(folder)
  model.eval()
  # Do not stop at any token.
  model.generation_config.eos_token_id = None

  def decode(prompts, num, beams, token):
    def each(ids: Any, scores: Any) -> Any:
      token()
      return scores

    ids = torch.from_numpy(prompts.astype(np.int64))
    # Beam search has no streamer, but calls its logits processors.
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
      pair = out.past_key_values
      caches = [pair.self_attention_cache, pair.cross_attention_cache]
    pairs = [(x.keys, x.values) for cache in caches for x in cache.layers]
    size = sum(x.nbytes for pair in pairs for x in pair)
    start = 1 if encoder else ids.shape[1]
    return out.sequences[:, start:].tolist(), size

  return decode


class _Streamer:
  """Receives the prompt from transformers, then each token."""

  def __init__(self, token: Callable[[], None]):
    """Calls `token` after each new token."""
    self._token, self._began = token, False

  def put(self, ids: Any) -> None:
    """Receives ids; the first are those of the prompt."""
    if self._began:
      self._token()
    self._began = True

  def end(self) -> None:
    """Called after the last token."""


def decode(folder: str, side: str) -> None:
  """Decodes cases in turns."""
  say = harness.answers()
  call = {OURS: _decodes, TORCH: _decodes_torch}[side](folder)
  say({})
  while line := sys.stdin.readline():
    Turns(sys.stdin, say).run(call, json.loads(line))


# Scoring by lm-eval: a line of input begins a turn of some seconds.

TURN_SECONDS = 5.0
ROWS = 'rows.npz'


def score(folder: str, size: str) -> None:
  """Scores the passages in a folder."""
  say = harness.answers()
  tokenizers, torch, transformers, models = (
    importlib.import_module(name)
    for name in (
      *('tokenizers', 'torch', 'transformers'),
      'lm_eval.models.huggingface',
    )
  )
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  with np.load(os.path.join(folder, ROWS)) as data:
    scored = data['scored'].tolist()
    ids = [data[f'arr_{i}'].tolist() for i in range(len(scored))]
  # Passages are given as ids, but the class requires a tokenizer.
  words = tokenizers.models.WordLevel({'<end>': 0}, unk_token='<end>')
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizers.Tokenizer(words), eos_token='<end>'
  )
  model = transformers.AutoModelForCausalLM.from_pretrained(folder)
  clock = Clock()

  class InTurns(models.HFLM):
    """Waits for its turn before a batch."""

    def _model_call(self, *args: Any, **kwargs: Any) -> Any:
      if clock.take() >= TURN_SECONDS:
        say(clock.result())
        sys.stdin.readline()
        clock.go_on()
      return super()._model_call(*args, **kwargs)

  lm = InTurns(
    pretrained=model, tokenizer=tokenizer, batch_size=int(size), device='cpu'
  )
  requests: Any = [
    (('', ''), row[:-count], row[-count:])
    for row, count in zip(ids, scored, strict=True)
  ]
  say(Clock().result())
  sys.stdin.readline()
  clock.go_on()
  found = lm._loglikelihood_tokens(requests, disable_tqdm=True)
  clock.take()
  say({**clock.result(), 'log_probs': [log_prob for log_prob, _ in found]})


if __name__ == '__main__':
  what, *rest = sys.argv[1:]
  {'train': train, 'decode': decode, 'score': score}[what](*rest)
