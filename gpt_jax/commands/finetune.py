# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Fine-tunes a pre-trained model on a task, as GPT-1 does.

  gpt-jax finetune --config configs/finetune/sst2.py --init W --workdir W2
  gpt-jax finetune --config configs/finetune/base.py --init HF_FOLDER \
    --workdir W2 --config.finetune.task="classification('train.tsv',
    'dev.tsv', text='review', label='stars')"

--init is a workdir of ours, a folder of Hugging Face, or none (from scratch,
with the sections `model` and `tokenizer` of the config). The section `finetune`
says on what and how; configs/finetune/base.py explains its fields.

The same command again resumes. W2 then holds what `train` leaves, result.json
with the metrics of the dev split, and predictions/SPLIT.tsv. With --predict
FILE the finished run predicts for another table of the same columns.
"""

import functools
import json
import os
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict

from gpt_jax import cli, hf, spec
from gpt_jax import config as config_lib
from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.commands import convert, plot, train
from gpt_jax.config import Config, loading
from gpt_jax.data.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.finetuning import predictions, setup, transfer
from gpt_jax.finetuning.setup import Prepared, Pretrained
from gpt_jax.finetuning.task_data import Split, TaskData, TaskEvaluation
from gpt_jax.runtime import hosts, phases, preemption, watchdog
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import rewind
from gpt_jax.training import run as run_lib
from gpt_jax.training import workdir as workdir_lib
from gpt_jax.training.job import Job
from gpt_jax.training.metrics import write_atomically
from gpt_jax.training.state import TrainState

RESULT = 'result.json'


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  loading.define(values)
  cli.define_workdir(values, 'Folder of the run; made when missing.')
  flags.DEFINE_string(
    'init',
    None,
    'What to fine-tune: a workdir, a folder of Hugging Face, or none.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'predict',
    None,
    'A table of the same columns: predictions go to '
    'WORKDIR/predictions/NAME.tsv.',
    flag_values=values,
  )
  flags.DEFINE_bool(
    'distributed', False, 'Several hosts: see train.', flag_values=values
  )
  flags.DEFINE_bool('json', False, 'Print one JSON object.', flag_values=values)


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config', 'init', 'workdir')
  if args.distributed:
    hosts.initialize(**args.config.hosts)
  with hosts.together():
    source = pretrained(args.init)
    result = finetune(args.config, source, args.workdir, args.predict)
  if args.json:
    print(json.dumps(result))
  else:
    print(summary(result))


def finetune(
  config: Config, source: Pretrained, workdir: str, predict: str | None = None
) -> dict[str, Any]:
  """Fine-tunes to the end, and predicts; see the module's docstring.

  Args:
    config: with a section `finetune`, not resolved.
    source: what is fine-tuned.
    workdir: of the run.
    predict: a further table.

  Returns:
    What result.json holds.
  """
  phases.enter('start')
  prepared = setup.prepare(config, source, workdir)
  config = prepared.config
  splits = {n: s for n, s in prepared.splits.items() if n != 'train'}
  if predict:
    name = os.path.basename(predict).partition('.')[0]
    if name in (*prepared.splits, 'task', 'init', 'step', 'metrics'):
      raise UsageError(
        f'--predict={predict}: {name} is the name of something else in '
        f'{RESULT}; rename the file'
      )
    splits[name] = setup.encoded(prepared, predict)
  stacks = os.path.join(workdir, f'stacks_{hosts.index()}.txt')
  with watchdog.watching(watchdog.deadlines(config), stacks):
    job, state = start(prepared, source, workdir)
    state = train.fit(job, state)
    phases.enter('end')
    preemption.check()
    state = selected(job, state)
    result = predicted(job, state, prepared, splits)
    if job.active:
      log.info('drew %s', plot.loss_curves([workdir], unit='of the task'))
    return result


def pretrained(init: str) -> Pretrained:
  """Looks up what is fine-tuned; reads no parameters yet.

  Raises:
    UsageError: it is nothing that can be.
  """
  if init == 'none':
    return Pretrained('none')
  path = os.path.join(init, 'config.json')
  try:
    with open(path, encoding='utf-8') as f:
      found = json.load(f)
  except (OSError, json.JSONDecodeError) as e:
    raise UsageError(
      f'--init={init}: holds no config.json; give a workdir that train left, a '
      'folder of Hugging Face, or none'
    ) from e
  if 'model_type' in found:
    return _from_hf(init, found['model_type'])
  config: Any = ConfigDict(found)
  config_lib.check_objective(config)
  steps = Checkpointer(init, read_only=True).steps()
  if not steps:
    raise UsageError(f'--init={init}: holds no checkpoint yet; train it first')
  folder = os.path.join(init, 'tokenizer')

  def params() -> Any:
    _, state = run_lib.restore(init)
    params = _without_heads(state.eval_params)
    # The mesh of the run may have the devices in another order.
    return params if jax.process_count() > 1 else jax.device_get(params)

  return Pretrained(
    f'{init}, step {steps[-1]}',
    config.model.to_dict(),
    config.tokenizer.name,
    tokenizer_lib.load(folder),
    params,
  )


def _from_hf(folder: str, model_type: str) -> Pretrained:
  name = convert.tokenizer_name(folder, model_type)
  if name is None:
    raise UsageError(
      f'--init={folder}: has neither vocab.json and merges.txt nor '
      'tokenizer.model; put its vocabulary there'
    )
  model, params = hf.load(folder)
  params = _without_heads(params)
  fields = {f: getattr(model, f) for f in hf.transformer_fields()}
  tokenizer = tokenizer_lib.build(name, [])
  return Pretrained(folder, fields, name, tokenizer, lambda: params)


def _without_heads(params: Any) -> Any:
  """The language model: what another task has learned is left behind."""
  return {name: part for name, part in params.items() if name != 'heads'}


def start(
  prepared: Prepared, source: Pretrained, workdir: str
) -> tuple[Job, TrainState]:
  """Opens the run; gives its newest state, or the first."""
  config, task = prepared.config, prepared.task
  tuned = config.finetune
  workdir_lib.check_same_run(config, workdir)
  run_lib.check_devices(config)
  with workdir_lib.untouched_if_refused(workdir):
    run = run_lib.build(config)
    checkpointer = Checkpointer(
      workdir,
      keep=config.checkpoint.keep,
      every_steps=config.checkpoint.every_steps,
      keep_every_steps=config.checkpoint.keep_every_steps,
      keep_best=config.checkpoint.keep_best,
    )
    data = TaskData(prepared.splits['train'], seed=config.seed)
    evaluation = functools.partial(TaskEvaluation, split=prepared.splits['dev'])
    job = Job(
      *(run, workdir, data, checkpointer, evaluation),
      criterion=f'-eval/validation/{task.metrics[0]}',
      patience=tuned.patience,
    )
    rewind.finish(job)
    state = checkpointer.restore(run_lib.abstract_state(run))
    first = state is None
    if state is None:
      params = source.params() if source.params else None
      amount = spec.build(
        'finetune.transfer', tuned.transfer, transfer.TRANSFERS
      )
      state = transfer.init_state(run, params, amount)
  last = config.schedule.num_steps
  log.info(
    '%s of %s: %s examples, %.2f epochs, %d steps; transfer %s, %d layers '
    'frozen',
    *(config.objective.name, tuned.init, f'{data.rows_per_epoch:,}'),
    *(run.ramp.offset(last) / data.rows_per_epoch, last),
    *(tuned.transfer, tuned.freeze),
  )
  if job.active:
    workdir_lib.start(config, workdir, prepared.tokenizer)
  if not first:
    log.info('resuming after step %d', int(state.step))
  return job, state


def selected(job: Job, state: TrainState) -> TrainState:
  """The state that predicts: the last, or the best of those saved."""
  if job.run.config.finetune.select == 'last':
    return state
  done = int(state.step)
  judged = dict(job.past(done).held_out)
  checkpointer = Checkpointer(job.workdir, read_only=True)
  steps = [step for step in checkpointer.steps() if step in judged]
  best = min(steps, key=lambda step: (judged[step], step))
  if best != done:
    found = checkpointer.restore(run_lib.abstract_state(job.run), at_most=best)
    if found is not None and int(found.step) == best:
      log.info('predicting with step %d, the best', best)
      state = found
  checkpointer.close()
  return state


def predicted(
  job: Job, state: TrainState, prepared: Prepared, splits: dict[str, Split]
) -> dict[str, Any]:
  """Predictions for some splits, and result.json, which is returned."""
  evaluation = TaskEvaluation(job.run, split=splits['dev'])
  measured = {}
  for name, split in splits.items():
    found = evaluation.outputs(state.eval_params, split)
    assert found is not None  # nothing stopped it
    measured[name] = {'examples': len(split.rows), 'cut': split.rows.cut}
    measured[name] |= found.metrics
    path = os.path.join(job.workdir, 'predictions', f'{name}.tsv')
    if job.active:
      predictions.write(path, split, found)
      log.info('wrote %s', path)
  train_split = prepared.splits['train'].rows
  task = prepared.task
  result = {
    'task': prepared.config.finetune.task,
    'init': prepared.config.finetune.init,
    'step': int(state.step),
    'train': {'examples': len(train_split), 'cut': train_split.cut},
    'metrics': [*task.metrics],
    **measured,
  }
  if job.active:
    path = os.path.join(job.workdir, RESULT)
    write_atomically(path, json.dumps(result, indent=2) + '\n')
  return result


def summary(result: dict[str, Any]) -> str:
  """Lines for people: the metrics of each split."""
  lines = []
  for name, found in result.items():
    if not isinstance(found, dict) or name == 'train':
      continue
    shown = [f'{m} {found[m]:.4f}' for m in result['metrics'] if m in found]
    text = ', '.join(shown) or 'labels are not known'
    lines.append(
      f'step {result["step"]}, {name}: {text}, over {found["examples"]:,} '
      f'examples, {found["cut"]:,} of them cut'
    )
  return '\n'.join(lines)
