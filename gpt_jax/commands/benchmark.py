# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Measures speed: of training, saving, decoding, attention, experts, data.

  gpt-jax benchmark --config configs/benchmark.py:mid
  gpt-jax benchmark --config configs/gpt2.py --config.batch.size=8 --json
  gpt-jax benchmark --config configs/benchmark.py:char --against torch
  gpt-jax benchmark --config configs/benchmark.py:decode --what decode
  gpt-jax benchmark --config configs/benchmark.py:smollm2-135m --what decode \
    --against torch
  gpt-jax benchmark --config configs/t5.py:small --what beam --against torch \
    --config.model.dtype=float32 --batches 1,8 --prompts 32
  gpt-jax benchmark --config configs/benchmark.py:smollm2-135m --what decode \
    --draft_layers 3,30 --batches 1,8
  gpt-jax benchmark --config configs/benchmark.py:smollm2-135m --what decode \
    --weights int8
  gpt-jax benchmark --config configs/benchmark.py:smollm2-135m --what products
  gpt-jax benchmark --config configs/benchmark.py:long --what attention
  gpt-jax benchmark --config configs/benchmark.py:100m --what checkpoint
  gpt-jax benchmark --config configs/switch.py:tiny --what switch
  gpt-jax benchmark --config configs/llama.py --what encode --steps 5
  gpt-jax benchmark --config configs/smoke.py --what prepare \
    --text 'documents(count=1e6)'
  gpt-jax benchmark --config configs/gpt3.py:125m --what rows --steps 100
  gpt-jax benchmark --config configs/smoke.py --what data
  gpt-jax benchmark --config configs/gpt2.py --config.model.vocab_size=50257 \
    --what score --steps 1000 --against torch --batches 1,8,32

train: compile time, median step time, tokens/s, the wait for data and MFU, with
its formula and the peak that it is relative to, and on a CPU what the matrix
products of the step take alone, the limit of any step made of them; against
torch: the same steps by transformers, with AdamW and without dropout on both
sides (needs the extra `hf`). checkpoint: what saving costs
the training thread, the checksums' share of it, and the training loop against
the bare step. The others alternate in one run. decode: tokens/s and cache bytes
with as many key/value heads as heads, and with one; against torch: with
transformers' generate on the same weights, first token and memory, too
(--batches, --prompts; needs the extra `hf`); with --draft_layers, with and
without a draft made of the first layers of the model (--draft_tokens,
--batches); with --weights int8, with 8-bit weights and as they are. beam: beam
search, four hypotheses, of a decoder or an encoder-decoder, which reads the
prompts as sources, against torch. products: the matrix products of a decoded
token alone, without anything between them: what decoding can reach at most on
a CPU (--batches). attention: time and memory of each pattern of
model.attention, forward and backward.
switch: a config with experts, the same with more of them, and its dense twin.
top_k: one expert a token against two, at three capacity factors. encode: the
corpus of the config through its tokenizer, as prepare does it and as
SentencePiece's own threads do. prepare: seconds, memory of all processes and
bytes on disk of preparing the config's corpus, or a text made by rule:
documents(count, words), one(megabytes). rows: random rows a second from a token
store on disk, and how long one that answers late is waited for. data: what
reading the config's rows and making batches of them by its objective takes,
beside its step. score: passages like LAMBADA's a second, as `evaluate` scores
them; against torch: with lm-eval's on transformers in batches of each size of
--batches (needs the extras `eval` and `hf`).
"""

import json

from absl import flags

from gpt_jax import cli
from gpt_jax import config as config_lib
from gpt_jax.benchmarks import (
  attention,
  checkpoint,
  data,
  decode,
  decode_against,
  decode_draft,
  encode,
  prepare,
  products,
  rows,
  switch,
  top_k,
  train,
  train_against,
)
from gpt_jax.config import loading
from gpt_jax.evaluation import speed
from gpt_jax.objectives import choices as objectives
from gpt_jax.spec import UsageError

WHAT = {
  'train': train,
  'checkpoint': checkpoint,
  'decode': decode,
  'beam': decode_against,
  'products': products,
  'attention': attention,
  'switch': switch,
  'top_k': top_k,
  'encode': encode,
  'prepare': prepare,
  'rows': rows,
  'data': data,
  'score': speed,
}


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  loading.define(values)
  flags.DEFINE_enum(
    'what', 'train', list(WHAT), 'What to measure.', flag_values=values
  )
  flags.DEFINE_integer(
    'steps',
    20,
    'Steps, decoded tokens or repetitions to measure.',
    lower_bound=1,
    flag_values=values,
  )
  flags.DEFINE_string(
    'text',
    'corpus',
    "What --what prepare takes: corpus (the config's), documents(count=1e6, "
    'words=50), one(megabytes=500).',
    flag_values=values,
  )
  flags.DEFINE_enum(
    'against',
    None,
    ['torch'],
    'What --what train, decode, beam or score is compared with: transformers '
    'on torch.',
    flag_values=values,
  )
  for name, default, use in (
    ('batches', '1,8,32', 'Rows of --against, --draft_layers and products.'),
    ('prompts', '32,1024', 'Lengths of prompts of --against, or of sources.'),
  ):
    flags.DEFINE_list(name, default, use, flag_values=values)
  flags.DEFINE_list(
    'draft_layers',
    [],
    'Sizes of drafts, for --what decode.',
    flag_values=values,
  )
  cli.define_draft_tokens(values)
  cli.define_weights(values)
  flags.DEFINE_bool('json', False, 'Print one JSON object.', flag_values=values)


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config')
  config = config_lib.resolve(args.config)
  module = WHAT[args.what]
  # These build no model, or have the tokenizer.
  known = module in (encode, prepare, rows, data)
  if not known and config.model.vocab_size is None:
    raise UsageError(
      "model.vocab_size is empty: it is the tokenizer's, which is not "
      'trained here; give --config.model.vocab_size=N'
    )
  if objectives.needs(config.objective.name).stored and module in (data, train):
    raise UsageError(
      f'objective.name={config.objective.name!r}: reads a teacher from disk, '
      'which is not measured here; leave top_k out'
    )
  if args.against and module not in (train, decode, decode_against, speed):
    raise UsageError(
      f'--against={args.against}: compares training, decoding and scoring; '
      'give --what train, decode, beam or score'
    )
  if module is decode_against and not args.against:
    raise UsageError(
      '--what=beam: is measured beside transformers; give --against torch'
    )
  variants = args.draft_layers or args.weights != 'float'
  if variants and (args.against or module is not decode):
    raise UsageError(
      '--draft_layers and --weights are for decoding; give --what decode, and '
      'no --against'
    )
  if module is speed:
    sizes = _counts('batches', args.batches) if args.against else ()
    result = speed.measure(config, args.steps, sizes)
  elif variants:
    module = decode_draft
    result = decode_draft.measure(
      config,
      args.steps,
      _counts('batches', args.batches),
      _counts('draft_layers', args.draft_layers) if args.draft_layers else [],
      args.draft_tokens,
      args.weights,
    )
  elif args.against and module is train:
    module = train_against
    result = train_against.measure(config, args.steps)
  elif args.against:
    module = decode_against
    result = decode_against.measure(
      config,
      args.steps,
      _counts('batches', args.batches),
      _counts('prompts', args.prompts),
      decode_against.BEAMS if args.what == 'beam' else 0,
    )
  elif module is products:
    batches = _counts('batches', args.batches)
    result = products.measure(config, args.steps, batches)
  elif module is prepare:
    result = prepare.measure(config, args.text)
  else:
    result = module.measure(config, args.steps)
  print(json.dumps(result) if args.json else module.report(result))


def _counts(flag: str, texts: list[str]) -> list[int]:
  """The values of a flag that lists counts."""
  if not all(text.isdecimal() and int(text) for text in texts or ['']):
    raise UsageError(
      f'--{flag}={",".join(texts)}: must be whole numbers from 1, such as 1,8'
    )
  return [int(text) for text in texts]
