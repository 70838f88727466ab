# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Post-training of a model: from a config and --init to result.json."""

import os
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import sharding, spec
from gpt_jax.config import Config
from gpt_jax.files.buckets import write_atomically
from gpt_jax.finetuning import fields, transfer
from gpt_jax.finetuning.data import ORDER, RESULT
from gpt_jax.finetuning.run import selected
from gpt_jax.nn.build import ModelChoices
from gpt_jax.objectives.loss import Mean
from gpt_jax.optim.train_state import TrainState
from gpt_jax.plots import runs
from gpt_jax.posttraining import methods, rollouts
from gpt_jax.posttraining.base import Method, Prepared, Split
from gpt_jax.posttraining.rollouts import Rollouts, last_means
from gpt_jax.rows import row_order
from gpt_jax.rows.batch_rows import BatchRows, RowsOfStep
from gpt_jax.runtime import hosts, preemption, watchdog
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import chat
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.tokens.mixture import Shuffle
from gpt_jax.training import compiled as compiled_lib
from gpt_jax.training import fitting, loop
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import run as run_lib
from gpt_jax.training import workdir as workdir_lib
from gpt_jax.training.held_out import exponential
from gpt_jax.training.metrics import to_json
from gpt_jax.training.models import Pretrained, open_model
from gpt_jax.training.parts import Parts
from gpt_jax.training.run import Run


class Plan(NamedTuple):
  """A run before anything is built or written; the config is resolved."""

  config: Config
  method: Method
  tokenizer: Tokenizer
  prepared: Prepared


def post_train(method: str, args: Any, *files: str) -> dict[str, Any]:
  """Trains to the end, evaluates, and draws the loss where one is evaluated.

  Args:
    method: the name of the method, and of its command.
    args: the values of the flags that `Flags.post_training` adds.
    *files: the flags that set files in the method's call.

  Returns:
    The contents of result.json.
  """
  if args.distributed:
    hosts.initialize(**args.config.hosts)
  with hosts.together():
    source = open_model(args.init, 'tune', '--init')
    given = {name: getattr(args, name) for name in files}
    config = methods.with_files(args.config, **given)
    result = _trained(config, method, source, args.workdir)
    drawn = 'dev' in result and hosts.index() == 0
    if drawn and (path := runs.loss_curves([args.workdir])):
      log.info('drew %s', path)
  return result


def _trained(
  config: Config, command: str, source: Pretrained, workdir: str
) -> dict[str, Any]:
  """Trains to the end, and evaluates; returns the contents of result.json."""
  watchdog.enter('start')
  plan = prepare(config, command, source)
  stacks = os.path.join(workdir, f'stacks_{hosts.index()}.txt')
  with (
    workdir_lib.locked(workdir),
    watchdog.watching(watchdog.deadlines(plan.config), stacks),
  ):
    training, state = start(plan, source, workdir)
    state = loop.fit(training, state)
    watchdog.enter('end')
    preemption.check()
    state, figures = selected(training, state), plan.prepared.figures
    result = {
      'task': plan.config.finetune.task,
      'init': plan.config.finetune.init,
      'step': int(state.step),
      **figures,
    }
    if training.evaluation is not None:
      values: Any = training.evaluation(training.parts)(state.eval_params)
      dev = {name.removeprefix(_DEV): x for name, x in values.items()}
      dev |= plan.method.judged(
        plan.prepared, training.parts, state.eval_params, workdir
      )
      result['dev'] = {**figures['dev'], **dev}
    else:
      result['train'] = {**figures['train'], **last_means(workdir)}
    if training.active:
      path = os.path.join(workdir, RESULT)
      write_atomically(path, to_json(result, indent=2) + '\n')
    return result


def prepare(config: Config, command: str, source: Pretrained) -> Plan:
  """Reads and encodes the files, and resolves the config; writes nothing."""
  config_lib.check_ranges(config)
  method = methods.of_config(config, command)
  config = config_lib.unlocked(config)
  config.finetune.update(order=ORDER, sequences=1, labels=[])
  tokenizer = source.tokenizer or _own_tokenizer(config)
  fields.set_model(config, source, tokenizer, new=0)
  model = config.model
  if not ModelChoices.of(model).causal:
    raise UsageError(
      f'--init={source.name}: holds an encoder (model.attention='
      f'{model.attention!r}), and what {command} trains continues a text; give '
      'a decoder'
    )
  folder = source.folder or source.name
  inside = os.path.join(folder, 'tokenizer')
  inside = inside if os.path.isdir(inside) else folder

  def template() -> chat.ChatTemplate:
    try:
      return chat.choose(method.template, tokenizer, inside)
    except UsageError as e:
      raise UsageError(f'finetune.task={config.finetune.task!r}: {e}') from e

  prepared = method.prepare(config, tokenizer, template)
  rows = config_lib.ramp(config).rows(0)
  fields.set_schedule(config, -(-len(prepared.train) // rows))
  config.objective.name = prepared.objective
  config.finetune.data = prepared.data
  resolved = config_lib.resolve(config)
  fields.check_layers(resolved)
  if prepared.template is not None:
    tokenizer = chat.with_template(tokenizer, prepared.template, prepared.ends)
    if never := prepared.ends - tokenizer.special.stop_ids:
      names = [n for n, i in tokenizer.special.names.items() if i in never]
      log.warning(
        'answers end with %s, at which generate and serve do not stop; take a '
        'template that ends them with the end of a document, such as zephyr',
        ', '.join(names),
      )
  return Plan(resolved, method, tokenizer, prepared)


def _own_tokenizer(config: Config) -> Tokenizer:
  """The tokenizer of the config, for --init=none."""
  name = config.tokenizer.name
  call = spec.parse('tokenizer.name', name)[0]
  if tokenizer_lib.CHOICES[call.name].learned:
    raise UsageError(
      f'tokenizer.name={name!r}: is trained on text, and post-training has '
      'none for that; give --init, or a tokenizer that exists'
    )
  return tokenizer_lib.build(name, [])


def start(
  plan: Plan, source: Pretrained, workdir: str
) -> tuple[Run, TrainState]:
  """Opens the run; returns its newest state, or the initial one."""
  config, prepared = plan.config, plan.prepared
  tuned, train, dev = config.finetune, prepared.train, prepared.dev
  workdir_lib.check_same_run(config, workdir)
  config, mesh = run_lib.check_before(config, workdir)
  with workdir_lib.untouched_if_refused(workdir):
    parts = parts_lib.build(config, mesh, tokenizer=plan.tokenizer)
    fitting.check_state(parts)
    compiled: list[Evaluation] = []

    def evaluation(parts: Parts) -> Evaluation:
      """Compiled once, for the loop and for result.json."""
      assert dev is not None
      if not compiled:
        compiled.append(Evaluation(parts, dev, plan.method.shown))
      return compiled[0]

    begun: list[TrainState] = []  # so that --init is read once

    def first() -> TrainState:
      if begun:
        return begun.pop()
      params = source.params() if source.params is not None else None
      return transfer.init_state(parts, params, transfer.everything())

    def first_params() -> Any:
      begun.append(first())
      return begun[0].eval_params

    plan.method.begin(prepared, parts, first_params, workdir)
    if isinstance(train, rollouts.Plan):
      data = Rollouts(train, parts, plan.tokenizer, first, workdir)
    else:
      data = ShuffledRows(train, config.seed)
    last = config.schedule.num_steps
    epochs = parts.ramp.offset(last) / data.rows_per_epoch
    better = plan.method.criterion
    opened = run_lib.resume_or_start(
      parts,
      workdir,
      data,
      tokenizer=plan.tokenizer,
      first=first,
      base=source.folder,
      about=f'{tuned.task} of {tuned.init}: {len(train):,} rows of '
      f'{tuned.length} tokens, {epochs:.2f} epochs, {last} steps',
      evaluation=evaluation if dev is not None else None,
      criterion=better[: better.startswith('-')] + _DEV + better.lstrip('-'),
      patience=tuned.patience,
    )
    begun.clear()  # a run that resumes has not taken it
    return opened


class ShuffledRows:
  """Rows as the data of a run, shuffled anew in each epoch."""

  def __init__(self, split: Split, seed: int):
    """The seed determines the order."""
    self._split = split
    self.rows_per_epoch = len(split)
    self._order = Shuffle(self.rows_per_epoch, seed)

  def row_numbers(self, taken: BatchRows) -> list[int]:
    """The rows that make up a batch."""
    return [self._order[i] for i in taken.indices]

  def epochs(self, taken: BatchRows) -> dict[str, float]:
    """Passes over the rows before a batch."""
    return {'epochs': taken.index / self.rows_per_epoch}

  def batches(
    self, parts: Parts, start: int, rows: RowsOfStep, state: Any = None
  ) -> Generator[row_order.Batch]:
    """See `training.run.Data`."""
    del state

    def batch(step: int) -> row_order.Batch:
      taken = rows(step)
      numbers = self.row_numbers(taken)[parts.host_rows(taken.count)]
      return self._split.batch(numbers)

    stop = parts.config.schedule.num_steps
    return row_order.prefetch(batch, start, stop)


# The dev split's metrics have this prefix.
_DEV = 'eval/validation/'


class Evaluation:
  """The loss and the metrics of the dev split."""

  def __init__(self, parts: Parts, split: Split, shown: tuple[str, ...]):
    """Compiles the evaluation; `shown` are metrics for people."""
    self._parts, self._split, self._shown = parts, split, shown
    self._step = compiled_lib.compile_eval_step(parts).call

  def __call__(
    self, params: Any, stop: Callable[[], bool] = lambda: False
  ) -> dict[str, float] | None:
    """See `training.run.Evaluation`; each row counts once."""
    rows, count = self._parts.eval_rows, len(self._split)
    sums = []
    for begin in range(0, count, rows):
      # The last batch is padded with the last row, at weight 0.
      numbers = np.arange(begin, begin + rows)[self._parts.host_rows(rows)]
      batch = self._split.batch(np.minimum(numbers, count - 1).tolist())
      batch['weights'][numbers >= count] = 0
      loss = self._step(params, self._parts.put(batch, rows))
      sums.append({'loss': loss.means[0], **(loss.metrics or {})})
      sharding.wait_for_earlier(sums)
      if stop():
        return None
    # In float64, so that order and number of the batches do not matter.
    found: Any = jax.tree.map(
      lambda *x: np.sum(x, dtype=np.float64), *jax.device_get(sums)
    )
    values = {
      name: float(mean.sum / mean.weight)
      for name, mean in found.items()
      # The training loop reports routers.
      if isinstance(mean, Mean)
      and mean.weight
      and not name.startswith('router/')
    }
    if 'perplexity' in self._shown:
      values |= exponential('perplexity', values['loss'])
      values['num_tokens'] = int(found['loss'].weight)
    return {f'{_DEV}{name}': value for name, value in values.items()}

  def summary(self, values: dict[str, float]) -> str:
    """A line for people."""
    shown = [
      f'{name} {values[_DEV + name]:.4f}'
      for name in self._shown
      if _DEV + name in values
    ]
    return f'dev {", ".join(shown)}'
