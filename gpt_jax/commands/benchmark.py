# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Measures the speed of training, saving, decoding and preparing data.

  gpt-jax benchmark --config configs/benchmark.py:mid
  gpt-jax benchmark --config configs/gpt2.py --config.batch.size=8 --json
  gpt-jax benchmark --config configs/benchmark.py:char --against torch
  gpt-jax benchmark --config configs/benchmark.py:awd-lstm --what lstm \
    --against torch
  gpt-jax benchmark --config configs/benchmark.py:decode --what decode
  gpt-jax benchmark --config configs/benchmark.py:smollm2-135m --what decode \
    --against torch
  gpt-jax benchmark --config configs/t5.py:small --what beam --against torch \
    --config.model.dtype=float32 --batches 1,8 --prompts 32
  gpt-jax benchmark --config configs/benchmark.py:smollm2-135m --what products
  gpt-jax benchmark --config configs/benchmark.py:rollouts --what rollouts
  gpt-jax benchmark --config configs/benchmark.py:100m --what checkpoint
  gpt-jax benchmark --config configs/benchmark.py:mid --what checkpoint \
    --distributed
  gpt-jax benchmark --config configs/llama.py --what encode --steps 5
  gpt-jax benchmark --config configs/smoke.py --what prepare \
    --text 'documents(count=1e6)'
  gpt-jax benchmark --config configs/smoke.py --what start --steps 5
  gpt-jax benchmark --config configs/gpt2.py --config.model.vocab_size=50257 \
    --what score --steps 1000 --against torch --batches 1,8,32
  gpt-jax benchmark --config configs/benchmark.py:rollouts --what serve

train: compile time, median step time, tokens/s, time spent waiting for data,
and MFU, with its formula and peak. With replay.every_steps it alternates plain
and checked steps. Against torch: the same steps in transformers, with AdamW and
without dropout on both sides.

checkpoint: how long a save into the hosts' memory and onto the disk stops the
training thread, the share of checksums in that time, GB/s of save, restore and
checksums, the host's peak memory meanwhile, and the training loop against the
bare step. With --distributed, on several processes, it measures
only saves into the hosts' memory.

lstm: the LSTM layers of model.attention alone, forward, backward and update,
against torch.nn.LSTM, and the matrix products of our step alone.

decode: tokens/s and bytes of the cache, with as many key/value heads as heads
and with one. Against torch: transformers' generate on the same weights, also
time to the first token and memory (--batches, --prompts).

beam: beam search with four hypotheses against torch, by a decoder, or by an
encoder-decoder that reads the prompts as sources.

products: only the matrix products of a decoded token, which limit the speed of
decoding on a CPU (--batches).

rollouts: tokens/s of the rollouts of grpo and ppo against those of generate,
with the same model, prompts and rows; seconds and peak memory of each part of a
step.

prepare: time, memory of all processes and bytes on disk of preparing the
config's corpus, or a generated text: documents(count, words), one(megabytes).

encode: tokenization of the corpus as in prepare, and by SentencePiece's own
threads.

start: seconds until the first step of train is done, by part, with the text
prepared and the programs cached.

serve: how long clients wait when many use a server on loopback at a time,
tokens/s, and the programs that are compiled meanwhile (needs the extra serve).

score: passages per second, like those of LAMBADA, as `evaluate` scores them.
Against torch: by lm-eval on transformers, with each of --batches.

--against torch compares with transformers, and needs the extra `hf`; score also
needs `eval`.
"""

import json
from typing import Any, NamedTuple

from etils import epy

from gpt_jax import cli
from gpt_jax.core import config as config_lib
from gpt_jax.core import ranges
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.spec import UsageError
from gpt_jax.flags import Flags

# Compiling is measured: programs are not kept, unlike by `cli.lazy_imports`.
with epy.lazy_imports():
  from gpt_jax.benchmarks import (
    against,
    checkpoint,
    decode,
    prepare,
    rollouts,
    score,
    serve,
    start,
    train,
  )
  from gpt_jax.core.costs import totals
  from gpt_jax.core.runtime import hosts


class Benchmark(NamedTuple):
  """A value of --what: names in a module of `benchmarks`.

  Attributes:
    module: holds both functions.
    flags: whose values the measurement takes after the config.
    measure: returns what --json prints.
    report: its text for people.
  """

  module: Any
  flags: tuple[str, ...] = ('steps',)
  measure: str = 'measure'
  report: str = 'report'


_SIZES = ('steps', 'batches', 'prompts')
WHAT = {
  'train': Benchmark(train),
  'checkpoint': Benchmark(checkpoint),
  'decode': Benchmark(decode),
  'products': Benchmark(decode, ('steps', 'batches'), 'products', 'report_products'),
  'rollouts': Benchmark(rollouts),
  'prepare': Benchmark(prepare, ('text',)),
  'encode': Benchmark(prepare, ('steps',), 'encode', 'report_encode'),
  'score': Benchmark(score),
  'serve': Benchmark(serve, ('clients', 'seconds')),
  'start': Benchmark(start),
}
AGAINST = {
  'train': Benchmark(against, ('steps',), 'train', 'report_train'),
  'lstm': Benchmark(against, ('steps',), 'lstm', 'report_lstm'),
  'decode': Benchmark(against, _SIZES, 'decode', 'report_decode'),
  'beam': Benchmark(against, _SIZES, 'beam', 'report_decode'),
  'score': Benchmark(score, ('steps', 'batches')),
}
_COMPARED = f'{", ".join([*AGAINST][:-1])} or {[*AGAINST][-1]}'
# These build no model, or have the tokenizer.
_WITHOUT_MODEL = ('encode', 'prepare', 'start')


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  every = list(dict.fromkeys([*WHAT, *AGAINST]))
  flags.choice('what', 'train', every, 'What to measure.')
  flags.number('steps', 20, 'Steps, decoded tokens or repetitions to measure.', ranges.Count)
  flags.text(
    'text',
    'corpus',
    "With --what prepare: corpus (the config's), documents(count=1e6, "
    'words=50) or one(megabytes=500).',
  )
  flags.choice('against', None, ['torch'], f'Compare --what {_COMPARED} with torch.')
  use = 'With --what serve: clients at a time.'
  flags.number('clients', 50, use, ranges.Count)
  use = 'With --what serve: how long they send requests.'
  flags.number('seconds', 180, use, ranges.Count)
  use = 'With --against or --what products: numbers of rows.'
  flags.numbers('batches', '1,8,32', use, least=1)
  use = 'With --against: lengths of prompts or sources.'
  flags.numbers('prompts', '32,1024', use, least=1)
  flags.distributed()
  flags.json()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config')
  found = (AGAINST if args.against else WHAT).get(args.what)
  if found is None and args.against:
    raise UsageError(
      f'--against={args.against}: does not work with --what={args.what}; give --what {_COMPARED}'
    )
  if found is None:
    raise UsageError(f'--what={args.what}: only compares with torch; give --against torch')
  if args.distributed and args.what != 'checkpoint':
    raise UsageError(
      f'--distributed: does not work with --what={args.what}; give --what checkpoint'
    )
  config = config_lib.resolve(args.config)
  if args.what not in _WITHOUT_MODEL:
    totals.check_vocabulary(config)
  if objectives.needs(config.objective.name).stored and args.what == 'train':
    raise UsageError(
      f'objective.name={config.objective.name!r}: benchmark cannot read a '
      'teacher from disk; leave top_k out'
    )
  if args.distributed:
    hosts.initialize(**config.hosts)
  with hosts.together():
    given = (getattr(args, name) for name in found.flags)
    result = getattr(found.module, found.measure)(config, *given)
  if hosts.index() == 0:
    report = getattr(found.module, found.report)
    print(json.dumps(result) if args.json else report(result))
