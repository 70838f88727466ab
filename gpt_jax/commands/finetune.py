# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Fine-tunes a pre-trained model on a task, as GPT-1 does, or on several.

  gpt-jax finetune --config configs/finetune/sst2.py --init W --workdir W2
  gpt-jax finetune --config configs/finetune/base.py --init HF_FOLDER \
    --workdir W2 --config.finetune.task="classification('train.tsv',
    'dev.tsv', text='review', label='stars')"
  gpt-jax finetune --config configs/finetune/mt_dnn.py --init W --workdir W3 \
    --tasks cola,sst2,mrpc,stsb,rte --glue glue_data

--init is a workdir, a Hugging Face folder, or none (from scratch, with the
sections `model` and `tokenizer` of the config). The section `finetune` has the
task and the hyperparameters; `gpt-jax inspect --field finetune` explains it.

--tasks trains one model on several tasks, as MT-DNN does: each task has its own
head, each batch has one task. It sets finetune.tasks; --glue is the folder of
GLUE's tasks. Fine-tuning W3 again on one of them starts from its model and that
task's head.

The same command resumes. W2 then holds the files of `train`, result.json with
the metrics of the dev split, and predictions/SPLIT.tsv (of several tasks
predictions/TASK/SPLIT.tsv). With --predict FILE the finished run predicts
another table with the same columns. With --average W_OTHER,... the predictions
of the run and of other finished runs on the same task are averaged, into
predictions/average/SPLIT.tsv and result.json.
"""

from typing import Any

from gpt_jax import cli
from gpt_jax.core import config as config_lib
from gpt_jax.core.config import Config
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training.metrics import to_json
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.core.runtime import hosts
  from gpt_jax.opening import models
  from gpt_jax.reports import runs
  from gpt_jax.tuning import ensemble, tasks

UNIT = 'of the task'


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  flags.workdir('Folder of the run; made when missing.')
  flags.path(
    'init', None, 'What to fine-tune: a workdir, a Hugging Face folder, or none.', bucket='run'
  )
  flags.text(
    'tasks', None, 'Comma-separated list of tasks to train on together; sets finetune.tasks.'
  )
  flags.path(
    'glue',
    '',
    'Folder of GLUE, with SST-2, ..., for --tasks without a folder; empty: TFDS.',
    bucket='folder',
  )
  flags.path(
    'predict', None, 'A table with the same columns to predict, into WORKDIR/predictions/NAME.tsv.'
  )
  flags.path(
    'average',
    '',
    'Comma-separated list of finished runs on the same task, whose predicted '
    "probabilities are averaged with this run's.",
    bucket='run',
    several=True,
  )
  flags.distributed()
  flags.json()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config', 'init', 'workdir')
  cli.check_out_folder(args, 'workdir')
  if args.distributed:
    hosts.initialize(**args.config.hosts)
  with hosts.together():
    source = models.open_model(args.init, 'tune', '--init')
    config = with_tasks(args)
    result = tasks.finetune(config, source, args.workdir, args.predict, args.average)
    first = hosts.index() == 0
    if first and (path := runs.loss_curves([args.workdir], unit=UNIT)):
      log.info('wrote %s', path)
  if args.json:
    print(to_json(result))
  else:
    print(summary(result))


def with_tasks(args: cli.Args) -> Config:
  """The config, with --tasks."""
  if args.tasks is None:
    if args.glue:
      raise UsageError(
        f'--glue={args.glue}: needs --tasks; give it too, or name the folder in finetune.task'
      )
    return args.config
  if args.config.get('finetune') is None:
    raise UsageError(
      f'--tasks={args.tasks}: needs a config with a section finetune; give '
      '--config=configs/finetune/mt_dnn.py, or one like it'
    )
  config = config_lib.unlocked(args.config)
  config.finetune.tasks = args.tasks
  if args.glue:
    config.finetune.tasks = tasks.in_folder(args.tasks, args.glue)
  return config.lock()


def summary(result: dict[str, Any]) -> str:
  """Lines for people: the metrics of each split."""
  step = f'step {result["step"]}, '
  if 'tasks' not in result:
    return '\n'.join(_lines(step, result))
  lines = [f'{step}average of the dev splits: {result["average"]:.4f}']
  for name, of_task in result['tasks'].items():
    lines += _lines(f'{step}{name}, ', of_task)
  return '\n'.join(lines)


def _lines(start: str, result: dict[str, Any]) -> list[str]:
  """One for each split of a task."""
  lines = []
  for name, found in result.items():
    if not isinstance(found, dict) or name == 'train':
      continue
    if name == 'layers':
      shares = ', '.join(map(str, found['shares']))
      lines.append(f'{start}shares of the layers, the lowest first: {shares}')
      continue
    if name == ensemble.NAME:
      lines += [
        f'{start}{split}, the mean of {len(found["of"])} runs: '
        + ', '.join(f'{m} {x[m]:.4f}' for m in result['metrics'] if m in x)
        for split, x in found.items()
        if split != 'of'
      ]
      continue
    shown = [f'{m} {found[m]:.4f}' for m in result['metrics'] if m in found]
    text = ', '.join(shown) or 'labels are not known'
    lines.append(
      f'{start}{name}: {text}, over {found["examples"]:,} examples, {found["cut"]:,} of them cut'
    )
  return lines
