# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tiny runs of papers' configs by command, for tests of whole runs.

`RUNS` is the list; `tests/core/training/test_laws.py` has what holds of each.
"""

import json
import pathlib
import shutil
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.__main__ import main
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.training import metrics
from gpt_jax.opening import models

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
# A figure in whose name one of these stands is the machine's.
_CLOCKS = ('seconds', 'per_second', 'mfu', 'time', 'memory/')
_TEXT = 'The cat sat on the mat. A dog ran to the old red house.\n\n'
_FIELDS = {
  'data.holdout': 'tail(fraction=0.1)',
  'model.num_layers': 1,
  'model.d_model': 32,
  'model.num_heads': 4,
  'model.context_length': 24,
  'model.dropout': 'rates(embedding=0.1)',
  'model.dtype': 'float32',
  'model.loop': 'scan',
  'batch.size': 16,
  'batch.micro_rows': 0,
  'optim.name': 'adamw',
  'schedule.num_steps': 6,
  'schedule.name': 'constant(peak=1e-2)',
  'checkpoint.every_steps': 3,
  'eval.every_steps': 3,
  'eval.rows': 8,
  'log.every_steps': 1,
}
_PIECES = {
  'tokenizer.name': 'wordpiece(vocab_size=80)',
  'model.vocab_size': 96,
  'batch.length': 'stages(24)',
}
_BPE = {'tokenizer.name': 'byte_bpe(vocab_size=270)', 'model.vocab_size': 270}
_TWO_WAYS = (
  "lstm(24, projection=16, directions='separate', biases=1, cell_clip=3.0, "
  'projection_clip=3.0, input_dropout=0.1'
)
_EXPERTS = "switch(num_experts=4, expert='geglu', capacity_factor=1.25)"

_COVE = {
  'data.source': "parallel_text('{}/?.txt', '{}/?.txt')",
  'data.holdout': "parallel_text('{}/11.txt', '{}/11.txt')",
  'tokenizer.name': 'words',
  'model.vocab_size': 48,
  'model.source_vocab_size': 56,
  'model.num_layers': 2,
  'model.num_heads': 1,
  'model.encoder_attention': "lstm(12, directions='both', dropout=0.3), lstm(8, directions='both')",
  'model.attention': 'lstm(24), lstm(32, attends=True, dropout=0.2)',
  'model.dropout': 'rates(words=0.1)',
  'optim.trained': 'encoder/*, decoder/*, embed/*, head/*',
}


class Tiny(NamedTuple):
  """A run: a config of ours, and what makes it tiny.

  Attributes:
    file: the config, below configs/.
    fields: of the config; names without a dot are other flags. '{}' is the
      folder of the run.
    command: trains it.
    before: a run whose workdir, {}/before, it starts or learns from.
  """

  file: str
  fields: dict[str, Any]
  command: str = 'train'
  before: 'Tiny | None' = None


_ELMO = Tiny(
  'elmo.py:base',
  {
    'tokenizer.name': 'words(vocab_size=24)',
    'model.vocab_size': 24,
    'model.num_layers': 2,
    'model.num_heads': 1,
    'model.input': 'characters(((1, 8), (3, 16)), length=9)',
    'model.attention': f'{_TWO_WAYS}), {_TWO_WAYS}, dropout=0.1, residual=True)',
    'objective.name': 'bilm(segment=5, negatives=7)',
    'optim.name': 'adagrad(initial=0.1)',
    'schedule.name': 'constant(peak=0.1)',
  },
)
RUNS = {
  'unilm': Tiny('unilm.py:cpu', _PIECES),
  'xlnet': Tiny('xlnet.py:cpu', _PIECES),
  'deberta': Tiny('deberta.py:cpu', _PIECES),
  'albert': Tiny(
    'albert.py:cpu',
    {
      **_PIECES,
      'model.num_layers': 2,
      'model.share': 'attention',
      'model.input': 'tokens(token_types=2, norm=True, d_embed=16)',
    },
  ),
  'electra': Tiny(
    'electra.py:cpu',
    {
      **_PIECES,
      'models.generator.d_model': 16,
      'models.generator.input': 'tokens(token_types=2, norm=True, d_embed=32)',
      'objective.name': "electra(rate=0.15, weight=50.0, sharing='gdes')",
      'batch.micro_rows': 1,
      'optim.ema': 'ema(decay=0.9)',
    },
  ),
  'bigbird': Tiny(
    'bigbird.py:cpu',
    {
      **_PIECES,
      'model.attention': 'bigbird(block=4, random=2, extra=3)',
      'model.num_layers': 2,
      'model.context_length': 48,
      'model.dropout': 'rates(attention=0.1)',
      'batch.length': 'stages(48)',
    },
  ),
  'mass': Tiny(
    'mass.py:cpu', {**_BPE, 'model.num_encoder_layers': 1, 'batch.length': 'stages(24)'}
  ),
  'prefix': Tiny(
    'gpt1.py:cpu',
    {
      'tokenizer.name': 'bytes',
      'model.vocab_size': 264,
      'model.d_ff': 128,
      'objective.name': 'prefix()',
      'data.rows': 'stream',
      'log.sample_prompt': '',
    },
  ),
  'int8': Tiny(
    'gpt1.py:cpu',
    {
      'tokenizer.name': 'bytes',
      'model.vocab_size': 264,
      'model.d_ff': 128,
      'model.matmul': 'int8',
      'batch.micro_rows': 1,
      'data.rows': 'stream',
      'log.sample_prompt': '',
    },
  ),
  # The vocabulary is the paper's, and the tokenizer's is no larger.
  'transformer_xl': Tiny(
    'transformer_xl.py:enwik8-12',
    {
      'model.position': "transformer_xl(memory=5, segment=4, biases='shared')",
      'model.head_size': 8,
      'model.d_ff': 32,
      'model.context_length': 12,
      'eval.num_batches': 2,
    },
  ),
  # Rows of about three segments; averaged from the fourth step on.
  'ulmfit': Tiny(
    'ulmfit.py:wt2',
    {
      'tokenizer.name': 'words(vocab_size=48)',
      'model.vocab_size': 48,
      'model.num_layers': 2,
      'model.num_heads': 1,
      'model.attention': 'lstm(24, input_dropout=0.2, dropout=0.3, '
      'weight_drop=0.5), lstm(32, dropout=0.4, weight_drop=0.5)',
      'model.dropout': 'rates(words=0.1, embedding=0.1)',
      'objective.name': 'recurrent(segment=8)',
      'optim.name': 'sgd(l2=1.2e-6)',
      'optim.ema': 'mean(start=4)',
      'schedule.name': 'constant(peak=3.0)',
    },
  ),
  'elmo': _ELMO,
  # The numbers of its texts are no words of the model's list.
  'elmo_features': Tiny(
    'finetune/sst2.py',
    {'init': '{}/before', 'finetune.task': "classification('{}/train.tsv', '{}/dev.tsv')"},
    'finetune',
    before=_ELMO._replace(fields={**_ELMO.fields, 'schedule.num_steps': 1}),
  ),
  # The encoder's own table is not trained.
  'cove': Tiny('cove.py:cpu', _COVE),
  # Two texts, of which the second is the label, by a frozen encoder.
  'biattentive': Tiny(
    'finetune/cove.py',
    {
      'init': '{}/before',
      'finetune.task': "entailment('{}/train.tsv', '{}/dev.tsv', "
      "premise='text', hypothesis='label')",
    },
    'finetune',
    before=Tiny('cove.py:cpu', {**_COVE, 'schedule.num_steps': 1}),
  ),
  # Of two layers the first is trained in the first quarter of the run.
  'char': Tiny(
    'char.py:cpu',
    {
      'model.num_layers': 2,
      'model.context_length': 12,
      'schedule.num_steps': 8,
      'checkpoint.every_steps': 4,
      'eval.every_steps': 4,
    },
  ),
  'switch': Tiny(
    'switch.py:t5-base-128',
    {
      'tokenizer.name': 'sentencepiece(vocab_size=48, byte_fallback=False, '
      "special=['<pad>'], sentinels=8)",
      'model.vocab_size': 64,
      'model.num_encoder_layers': 1,
      'model.d_ff': 48,
      'model.head_size': 8,
      'model.ffn': _EXPERTS,
      'model.encoder_ffn': _EXPERTS,
      'model.dropout': 'rates(embedding=0.1, residual=0.1, attention=0.1)',
      'batch.micro_rows': 16,
      'optim.ema': 'ema(decay=0.9)',
    },
  ),
  # Layers 0 and 3 of the teacher's.
  'distilbert': Tiny(
    'distilbert.py:cpu',
    {
      **_PIECES,
      'model.num_layers': 2,
      'data.store': '{}/store',
      'objective.teacher': '{}/before',
      'optim.ema': 'ema(decay=0.9)',
    },
    before=Tiny(
      'bert.py:cpu',
      {**_PIECES, 'model.num_layers': 4, 'schedule.num_steps': 1, 'data.store': '{}/store'},
    ),
  ),
  # Three batches of labelled sentences a pass, one of unlabelled ones.
  'cvt': Tiny(
    'cvt.py:cpu',
    {
      'init': 'none',
      'model.num_layers': 2,
      'model.num_heads': 1,
      'model.input': 'tokens(d_embed=24)',
      'model.attention': "lstm(24, 16, 'both', dropout=0.5), "
      "lstm(16, directions='both', dropout=0.5)",
      'tokenizer.name': 'words()',
      'finetune.task': "tags('{}/train.conll', '{}/dev.conll', unlabelled='{}/0.txt')",
      'optim.name': 'sgd(momentum=0.9)',
      'optim.ema': 'ema(decay=0.9)',
      'batch.size': 23,
    },
    'finetune',
  ),
  'adapters': Tiny(
    'finetune/sst2.py',
    {
      'init': '{}/before',
      'finetune.task': "classification('{}/train.tsv', '{}/dev.tsv')",
      'finetune.lora': "lora(rank=3, on='query, ffn')",
      'optim.ema': 'ema(decay=0.9)',
    },
    'finetune',
    before=Tiny(
      'gpt1.py:cpu',
      {
        'tokenizer.name': 'bytes',
        'model.vocab_size': 264,
        'model.d_ff': 128,
        'schedule.num_steps': 1,
        'data.rows': 'stream',
        'log.sample_prompt': '',
      },
    ),
  ),
  # The head alone, then one more layer in each step but the last two; texts
  # are read from right to left.
  'classifier': Tiny(
    'finetune/ulmfit.py',
    {
      'init': '{}/before',
      'finetune.task': "classification('{}/train.tsv', '{}/dev.tsv')",
      'finetune.unfreeze': 1,
      'finetune.segment': 2,
      'optim.name': 'adam(b1=0.7, b2=0.99)',
      'schedule.name': 'slanted(peak=1e-2)',
    },
    'finetune',
    before=Tiny(
      'ulmfit.py:wt2',
      {
        'tokenizer.name': 'words(vocab_size=48)',
        'model.vocab_size': 48,
        'model.num_layers': 2,
        'model.num_heads': 1,
        'model.attention': 'lstm(24, input_dropout=0.2, dropout=0.3, '
        'weight_drop=0.5), lstm(32, dropout=0.4, weight_drop=0.5)',
        'model.dropout': 'rates(words=0.1, embedding=0.1)',
        'objective.name': "recurrent(segment=8, direction='backward')",
        'schedule.num_steps': 1,
      },
    ),
  ),
  # Two heads; the second reads the labels.
  'tasks': Tiny(
    'finetune/mt_dnn.py',
    {
      'init': 'none',
      'tokenizer.name': 'bytes',
      'finetune.tasks': "classification('{}/train.tsv', '{}/dev.tsv'), "
      "classification('{}/train.tsv', '{}/dev.tsv', text='label')",
    },
    'finetune',
  ),
  **{
    name: Tiny(
      f'finetune/{name}.py',
      {
        'init': 'none',
        'tokenizer.name': 'bytes',
        'finetune.task': f"{name}('{{}}/train.jsonl', '{{}}/dev.jsonl')",
      },
      name,
    )
    for name in ('reward', 'dpo')
  },
}


class Trained(NamedTuple):
  """A run that has ended."""

  name: str
  workdir: pathlib.Path
  flags: list[str]  # of its command, without the workdir


def trained(name: str, folder: pathlib.Path, **changes: Any) -> Trained:
  """Trains a run of `RUNS` in a new folder.

  Args:
    name: of the run.
    folder: gets the text and the workdir.
    **changes: other fields, with `__` for a dot.
  """
  write_files(folder)
  run = RUNS[name]
  changes = {field.replace('__', '.'): x for field, x in changes.items()}
  if run.before:
    _train(run.before, folder, folder / 'before', {})
  flags = _train(run, folder, folder / 'w', changes)
  return Trained(name, folder / 'w', flags)


def write_files(folder: pathlib.Path) -> None:
  """Writes what runs read into a folder, which is made where it is missing."""
  folder.mkdir(exist_ok=True)
  for i in range(20):
    (folder / f'{i}.txt').write_text(_TEXT * 9 + f'Number {i}. And so on.\n')
  for split, count in (('train', 61), ('dev', 17)):
    rows = [f'{n} cats\t{"odd" if n % 2 else "even"}\n' for n in range(count)]
    (folder / f'{split}.tsv').write_text(''.join(['text\tlabel\n', *rows]))
    ranked = [
      {'prompt': f'{split} {n}:', 'chosen': 'z' * (n % 5 + 2), 'rejected': 'y'}
      for n in range(count)
    ]
    text = ''.join(json.dumps(row) + '\n' for row in ranked)
    (folder / f'{split}.jsonl').write_text(text)
    tags = ('I-ODD', 'O')
    rows = [f'The O\n{n % 7} B-ODD\ncats {tags[n % 2]}\n' for n in range(count)]
    (folder / f'{split}.conll').write_text('\n'.join(rows))


def flags_of(run: Tiny, folder: pathlib.Path, changes: dict[str, Any]) -> list[str]:
  """The flags of a run on the files of a folder, without the workdir."""
  fields = {**_FIELDS, 'data.source': "text('{}/*.txt')", **run.fields}
  flags = [f'--config={CONFIGS}/{run.file}']
  for name, value in (fields | changes).items():
    flag = f'--config.{name}={value}' if '.' in name else f'--{name}={value}'
    flags.append(flag.replace('{}', str(folder)))
  return flags


def _train(run: Tiny, folder: pathlib.Path, workdir: pathlib.Path, changes: dict) -> list[str]:
  """Trains a run; returns its flags without the workdir."""
  flags = flags_of(run, folder, changes)
  assert main([run.command, *flags, f'--workdir={workdir}']) == 0
  return flags


def values(workdir: pathlib.Path, key: str) -> list:
  """The values of one key in metrics.jsonl."""
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [m[key] for m in map(json.loads, lines) if key in m]


def logged(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of metrics.jsonl that are no events, without the clock's."""
  return [
    {k: v for k, v in line.items() if not any(c in k for c in _CLOCKS)}
    for line in metrics.read(str(workdir))
    if 'event' not in line
  ]


def assert_resumes(first: Trained, workdir: pathlib.Path, command: str = 'train'):
  """A copy without the last checkpoint ends with the same state and log.

  Returns:
    The state.
  """
  step = models.read_config(str(first.workdir)).schedule.num_steps
  shutil.copytree(first.workdir, workdir)
  shutil.rmtree(workdir / f'checkpoints/{step}')
  assert main([command, *first.flags, f'--workdir={workdir}']) == 0
  assert logged(workdir) == logged(first.workdir)
  return same_state(first.workdir, workdir, step=step)


def state_of(workdir: pathlib.Path) -> TrainState:
  """The newest state of a run, with the moments: `load_state` has none."""
  parts = models.built(str(workdir))
  checkpointer = Checkpointer(str(workdir), read_only=True)
  state = checkpointer.restore(models.stored(str(workdir), parts).abstract)
  checkpointer.close()
  assert state is not None
  return state


def same_state(*workdirs: pathlib.Path, step: int | None = None):
  """The last state of two runs, which is the same to the last bit."""
  states = [state_of(w) for w in workdirs]
  if step is not None:
    assert int(states[0].step) == step
  jax.tree.map(assert_same_bits, *states)
  return states[0]


def assert_same_bits(a: Any, b: Any) -> None:
  """Two arrays have one dtype, and the same bits."""
  assert a.dtype == b.dtype
  assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
