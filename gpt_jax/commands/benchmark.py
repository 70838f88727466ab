# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Measures the speed of training, saving, decoding, attention, experts, data.

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
  gpt-jax benchmark --config configs/benchmark.py:mid --what malloc
  gpt-jax benchmark --config configs/benchmark.py:long --what attention
  gpt-jax benchmark --config configs/benchmark.py:100m --what checkpoint
  gpt-jax benchmark --config configs/benchmark.py:mid --what checkpoint \
    --distributed
  gpt-jax benchmark --config configs/switch.py:tiny --what switch
  gpt-jax benchmark --config configs/llama.py --what encode --steps 5
  gpt-jax benchmark --config configs/smoke.py --what prepare \
    --text 'documents(count=1e6)'
  gpt-jax benchmark --config configs/gpt3.py:125m --what rows --steps 100
  gpt-jax benchmark --config configs/smoke.py --what start --steps 5
  gpt-jax benchmark --config configs/gpt2.py --config.model.vocab_size=50257 \
    --what score --steps 1000 --against torch --batches 1,8,32

train: compile time, median step time, tokens/s, the wait for data and MFU, with
its formula and peak; with replay.every_steps, also checked steps, in turns with
plain ones; against torch: the same steps in transformers, with AdamW and
without dropout on both sides. checkpoint: the time of the training thread that
saving takes, into the hosts' memory and onto the disk, the share of checksums
in it, and the training loop against the bare step; --distributed, on several
processes, measures only saves into the hosts' memory.

lstm: the LSTM layers of model.attention alone, forward, backward and update,
against torch.nn.LSTM, beside the matrix products of our step.

decode: tokens/s and cache bytes with as many key/value heads as heads, and with
one; against torch: transformers' generate on the same weights, also first token
and memory (--batches, --prompts). beam: beam search with four hypotheses by a
decoder or an encoder-decoder, which reads the prompts as sources, against
torch. products: only the matrix products of a decoded token, the upper bound of
decoding on a CPU (--batches).

rollouts: tokens/s of the rollouts of grpo and ppo against generate's, with the
same model, prompts and rows; seconds and peak memory of each part of a step.

malloc: speed and peak memory of training on a CPU where glibc keeps its memory,
where it uses huge pages, and with jemalloc and tcmalloc if they are installed.

attention: time and memory of each pattern of model.attention, forward and
backward. switch: a config with experts, with more experts, and dense.

prepare: seconds, memory of all processes and bytes on disk of preparing the
config's corpus, or a generated text: documents(count, words), one(megabytes).
encode: tokenization of the corpus as in prepare, and by SentencePiece's own
threads. rows: random rows per second from a token store on disk, and from one
in a bucket whose server is on this machine; the wait for a slow store.

start: seconds until the first step of train is done, by part, with the text
prepared and the programs cached.

score: passages like LAMBADA's per second, as `evaluate` scores them; against
torch: by lm-eval on transformers, with each of --batches.

--against torch compares with transformers, and needs the extra `hf`; score also
needs `eval`.
"""

import json
from typing import Any, NamedTuple

from etils import epy

from gpt_jax import cli, ranges
from gpt_jax import config as config_lib
from gpt_jax.flags import Flags
from gpt_jax.objectives import choices as objectives
from gpt_jax.spec import UsageError

# Compiling is measured: programs are not kept, unlike by `cli.lazy_imports`.
with epy.lazy_imports():
  from gpt_jax.benchmarks import (
    against,
    allocators,
    attention,
    checkpoint,
    decode,
    prepare,
    rollouts,
    score,
    start,
    switch,
    train,
  )
  from gpt_jax.costs import totals
  from gpt_jax.runtime import hosts


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
  'products': Benchmark(
    decode, ('steps', 'batches'), 'products', 'report_products'
  ),
  'rollouts': Benchmark(rollouts),
  'malloc': Benchmark(allocators),
  'attention': Benchmark(attention),
  'switch': Benchmark(switch),
  'prepare': Benchmark(prepare, ('text',)),
  'encode': Benchmark(prepare, ('steps',), 'encode', 'report_encode'),
  'rows': Benchmark(prepare, ('steps',), 'rows', 'report_rows'),
  'score': Benchmark(score),
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
_WITHOUT_MODEL = ('encode', 'prepare', 'rows', 'start')


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  every = list(dict.fromkeys([*WHAT, *AGAINST]))
  flags.choice('what', 'train', every, 'What to measure.')
  flags.number(
    'steps',
    20,
    'Steps, decoded tokens or repetitions to measure.',
    ranges.Count,
  )
  flags.text(
    'text',
    'corpus',
    "With --what prepare: corpus (the config's), documents(count=1e6, "
    'words=50) or one(megabytes=500).',
  )
  flags.choice(
    'against',
    None,
    ['torch'],
    f'Compare --what {_COMPARED} with torch.',
  )
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
      f'--against={args.against}: does not work with --what={args.what}; give '
      f'--what {_COMPARED}'
    )
  if found is None:
    raise UsageError(
      f'--what={args.what}: only compares with torch; give --against torch'
    )
  if args.distributed and args.what != 'checkpoint':
    raise UsageError(
      f'--distributed: does not work with --what={args.what}; give --what '
      'checkpoint'
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
