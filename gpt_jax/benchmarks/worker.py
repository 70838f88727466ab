# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison with torch: a process that works in turns.

  python -m gpt_jax.benchmarks.worker train|decode FOLDER ours|torch
  python -m gpt_jax.benchmarks.worker lstm FOLDER ours|torch|products
  python -m gpt_jax.benchmarks.worker score FOLDER BATCH_SIZE

It loads the checkpoint in FOLDER, then writes a line of JSON. Each
line of standard input begins a turn, which it answers with times and results.
Libraries are imported where they are used, so that neither side pays for the
other's.
"""

import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from gpt_jax.benchmarks import harness
from gpt_jax.benchmarks.harness import OURS, PRODUCTS, TORCH, TurnsClock
from gpt_jax.core import malloc

Say = Callable[[dict], None]


def load_torch(folder: str) -> tuple[Any, bool]:
  """The model of a checkpoint on torch, and whether it has an encoder."""
  import torch  # pyright: ignore[reportMissingImports]
  import transformers  # pyright: ignore[reportMissingImports]

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  encoder = transformers.AutoConfig.from_pretrained(folder).is_encoder_decoder
  kind = transformers.AutoModelForSeq2SeqLM if encoder else transformers.AutoModelForCausalLM
  return kind.from_pretrained(folder), encoder


# Training: each line of input is a number of steps.

CONFIG, BATCHES = 'gpt_jax.json', 'batches.npz'
# AdamW without weight decay, and the gradient's maximum norm.
RATE, BETAS, EPSILON, CLIP = 1e-3, (0.9, 0.95), 1e-8, 1.0

# Trains a step on a batch and returns the loss.
Step = Callable[[dict[str, np.ndarray]], float]


def _trains(folder: str) -> Step:
  malloc.keep_memory()  # before jax is imported
  import jax

  from gpt_jax.core import config as config_lib
  from gpt_jax.core.training import compiled as compiled_lib
  from gpt_jax.core.training import fitting
  from gpt_jax.core.training import parts as parts_lib

  with open(os.path.join(folder, CONFIG), encoding='utf-8') as file:
    config = config_lib.from_json(file.read())
  parts = parts_lib.build(config)
  compiled = compiled_lib.compile_train_step(parts)
  fitting.keep_freed(compiled)  # as training does
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
    model.parameters(), RATE, BETAS, EPSILON, weight_decay=0.0, fused=True
  )

  def step(batch: dict[str, np.ndarray]) -> float:
    ids = {name: torch.from_numpy(x.astype(np.int64)) for name, x in batch.items()}
    given = {'input_ids': ids['inputs']}
    if encoder:
      given = {
        'input_ids': ids['sources'],
        'attention_mask': ids['source_mask'],
        'decoder_input_ids': ids['inputs'],
      }
    optimizer.zero_grad()
    logits = model(**given, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids['targets'].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return loss.item()

  return step


def steps(step: Step, batches: list[dict], start: int, num: int) -> dict:
  """Trains `num` steps, the first of which is number `start`."""
  losses = []
  found = harness.in_turns(
    {'': lambda: losses.append(step(batches[(start + len(losses)) % len(batches)]))}, num, 0
  )['']
  return {
    'seconds': found.wall,
    'cpu_seconds': found.cpu,
    'losses': losses,
    'peak_bytes': malloc.peak_bytes(),
  }


def train(folder: str, side: str) -> None:
  """Trains a model in turns."""
  _train({OURS: _trains, TORCH: _trains_torch}[side], folder)


def _train(make: Callable[[str], Step], folder: str) -> None:
  say = harness.answers()
  with np.load(os.path.join(folder, BATCHES)) as arrays:
    held = {name: arrays[name] for name in arrays.files}
  batches = [{name: x[i] for name, x in held.items()} for i in range(len(held['inputs']))]
  step = make(folder)
  say({})
  done = 0
  while line := sys.stdin.readline():
    num = json.loads(line)
    say(steps(step, batches, done, num))
    done += num


# LSTM layers, trained by SGD. The loss is the sum of products of their outputs
# with random numbers, per token, so that only the layers are measured. The
# gradient of their inputs is computed too, as for a table of tokens below them.

LAYERS, SGD_RATE = 'layers.npz', 0.1


def lstm(folder: str, side: str) -> None:
  """Trains LSTM layers in turns, or runs the products of such steps."""
  makers = {OURS: _lstm, TORCH: _lstm_torch, PRODUCTS: _lstm_products}
  _train(makers[side], folder)


def _layers(folder: str) -> list[dict[str, np.ndarray]]:
  """The parameters of each layer."""
  with np.load(os.path.join(folder, LAYERS)) as arrays:
    found = [{} for _ in {name.split('/')[0] for name in arrays.files}]
    for name in arrays.files:
      number, of_layer = name.split('/')
      found[int(number)][of_layer] = arrays[name]
  return found


def _lstm(folder: str) -> Step:
  malloc.keep_memory()  # before jax is imported
  import jax
  import jax.numpy as jnp

  from gpt_jax.core import config as config_lib
  from gpt_jax.core.nn.build import ModelChoices
  from gpt_jax.core.nn.row import Context

  with open(os.path.join(folder, CONFIG), encoding='utf-8') as file:
    choices = ModelChoices.of(config_lib.from_json(file.read()).model)
  layers = [
    layer.make(inits=choices.init_weights, dtype=jnp.float32) for layer in choices.recurrent
  ]
  params: Any = [
    {'input': {'kernel': one.pop('kernel'), 'bias': one.pop('bias')}, **one}
    for one in _layers(folder)
  ]

  def loss(params: Any, x_BLD: Any, probe_BLP: Any, cuts_BL: Any) -> Any:
    for layer, own in zip(layers, params, strict=True):
      variables = {'params': {'forward': own}}
      x_BLD, _ = layer.apply(variables, x_BLD, Context(extra={'cuts': cuts_BL}), None, 0)
    return jnp.sum(x_BLD * probe_BLP) / cuts_BL.size

  @functools.partial(jax.jit, donate_argnums=0)
  def update(params: Any, *batch: Any) -> Any:
    value, (grads, dx_BLD) = jax.value_and_grad(loss, (0, 1))(params, *batch)
    params = jax.tree.map(lambda x, dx: x - SGD_RATE * dx, params, grads)
    return params, value, dx_BLD

  params = jax.tree.map(jnp.asarray, params)

  def step(batch: dict[str, np.ndarray]) -> float:
    nonlocal params
    inputs, probe = batch['inputs'], batch['probe']
    cuts_BL = np.zeros(inputs.shape[:2], bool)
    params, *out = jax.block_until_ready(update(params, inputs, probe, cuts_BL))
    return float(out[0])

  return step


def _lstm_torch(folder: str) -> Step:
  import torch  # pyright: ignore[reportMissingImports]

  torch.set_num_threads(len(os.sched_getaffinity(0)))
  layers = torch.nn.ModuleList()
  for own in _layers(folder):
    D, Z = own['kernel'].shape
    projection = own.get('kernel_projection', np.zeros((0, 0))).shape[1]
    layer = torch.nn.LSTM(D, Z // 4, proj_size=projection, batch_first=True)
    names = {
      'weight_ih_l0': 'kernel',
      'bias_ih_l0': 'bias',
      'weight_hh_l0': 'kernel_hidden',
      'bias_hh_l0': 'bias_hidden',
      'weight_hr_l0': 'kernel_projection',
    }
    with torch.no_grad():
      for name, parameter in layer.named_parameters():
        parameter.copy_(torch.from_numpy(own[names[name]].T))
    layers.append(layer)
  optimizer = torch.optim.SGD(layers.parameters(), SGD_RATE, fused=True)

  def step(batch: dict[str, np.ndarray]) -> float:
    x_BLD = torch.from_numpy(batch['inputs']).requires_grad_()
    optimizer.zero_grad()
    out = x_BLD
    for layer in layers:
      out = layer(out)[0]
    loss = (out * torch.from_numpy(batch['probe'])).sum()
    loss = loss / (out.shape[0] * out.shape[1])
    loss.backward()
    optimizer.step()
    return loss.item()

  return step


def _lstm_products(folder: str) -> Step:
  """Only the matrix products of a step, with the same dependencies."""
  malloc.keep_memory()  # before jax is imported
  import jax
  import jax.numpy as jnp

  from gpt_jax.papers.lstm import lstm

  layers = [
    [own.get(f'kernel{name}') for name in ('', '_hidden', '_projection')] for own in _layers(folder)
  ]

  def forward(x_LBD: Any, kernel: Any, hidden: Any, projection: Any) -> Any:
    def token(h_BP: Any, gates_BZ: Any) -> Any:
      # One sum, so that each product depends on the one before.
      h_BS = (gates_BZ + h_BP @ hidden)[:, : hidden.shape[1] // 4]
      y_BP = h_BS if projection is None else h_BS @ projection
      return y_BP, (y_BP, h_BS)

    L, B, D = x_LBD.shape
    gates_LBZ = (x_LBD.reshape(L * B, D) @ kernel).reshape(L, B, -1)
    zero = jnp.zeros((B, hidden.shape[0]))
    return jax.lax.scan(token, zero, gates_LBZ)[1]

  def backward(dy_LBP, x_LBD, kernel, hidden, projection, y_LBP, h_LBS) -> Any:
    def token(dh_BP: Any, dy_BP: Any) -> Any:
      dy_BP += dh_BP
      dh_BS = dy_BP if projection is None else lstm.back(dy_BP, projection)
      dgates_BZ = jnp.concatenate([dh_BS] * 4, axis=1)
      return lstm.back(dgates_BZ, hidden), (dgates_BZ, dy_BP)

    dgates_LBZ, dy_LBP = jax.lax.scan(token, jnp.zeros_like(dy_LBP[0]), dy_LBP, reverse=True)[1]
    dkernels = lstm.summed(x_LBD, dgates_LBZ), lstm.summed(y_LBP, dgates_LBZ)
    if projection is not None:
      dkernels += (lstm.summed(h_LBS, dy_LBP),)
    L, B, Z = dgates_LBZ.shape
    dx_LBD = dgates_LBZ.reshape(L * B, Z) @ kernel.T
    return dx_LBD.reshape(L, B, -1), dkernels

  @jax.jit
  def run(layers: Any, x_LBD: Any, dy_LBP: Any) -> Any:
    saved, out = [], []
    for kernels in layers:
      y_LBP, h_LBS = forward(x_LBD, *kernels)
      saved.append((x_LBD, *kernels, y_LBP, h_LBS))
      x_LBD = y_LBP
    for one in reversed(saved):
      dy_LBP, dkernels = backward(dy_LBP, *one)
      out.append(dkernels)
    return dy_LBP, out

  layers = jax.tree.map(jnp.asarray, layers)

  def step(batch: dict[str, np.ndarray]) -> float:
    # Reshaped, not transposed: what is in these arrays has no effect.
    x_LBD, dy_LBP = (x.reshape(*x.shape[1::-1], -1) for x in (batch['inputs'], batch['probe']))
    jax.block_until_ready(run(layers, x_LBD, dy_LBP))
    return 0.0

  return step


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
      {**self._found, 'ids': ids, 'cache_bytes': cache_bytes, 'peak_bytes': malloc.peak_bytes()}
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
  malloc.keep_memory()  # before jax is imported
  from gpt_jax import hf
  from gpt_jax.decoding.beam import Search
  from gpt_jax.decoding.engine import Engine
  from gpt_jax.decoding.programs import Decoder
  from gpt_jax.decoding.requests import Request, Slot
  from gpt_jax.decoding.settings import BeamSettings, Sampler

  decoder = Decoder(*hf.load(folder)).ready()
  greedy = Sampler(temperature=0)

  def search(prompts, num, beams, token):
    rows = []
    for i, ids in enumerate(prompts.tolist()):
      request = Request(ids, num)
      if decoder.model.num_encoder_layers:
        request = Request([0], num, source=ids)
      rows.append(Slot(i, request, list(request.ids)))
    running, size = (Search(decoder, rows, BeamSettings(beams), slots=len(rows)), 0)
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
    out = {engine.add(Request(ids.tolist(), num, greedy)): [] for ids in prompts}
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
      {'num_beams': beams, 'logits_processor': [each]} if beams else {'streamer': _Streamer(token)}
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
    for name in ('tokenizers', 'torch', 'transformers', 'lm_eval.models.huggingface')
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
  clock = TurnsClock()

  class InTurns(models.HFLM):
    """Waits for its turn before a batch."""

    def _model_call(self, *args: Any, **kwargs: Any) -> Any:
      if clock.take() >= TURN_SECONDS:
        say(clock.result())
        sys.stdin.readline()
        clock.go_on()
      return super()._model_call(*args, **kwargs)

  lm = InTurns(pretrained=model, tokenizer=tokenizer, batch_size=int(size), device='cpu')
  requests: Any = [
    (('', ''), row[:-count], row[-count:]) for row, count in zip(ids, scored, strict=True)
  ]
  say(TurnsClock().result())
  sys.stdin.readline()
  clock.go_on()
  found = lm._loglikelihood_tokens(requests, disable_tqdm=True)
  clock.take()
  say(
    {
      **clock.result(),
      'peak_bytes': malloc.peak_bytes(),
      'log_probs': [log_prob for log_prob, _ in found],
    }
  )


if __name__ == '__main__':
  what, *rest = sys.argv[1:]
  commands = {'train': train, 'lstm': lstm, 'decode': decode, 'score': score}
  commands[what](*rest)
