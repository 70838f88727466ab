# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Measures a trained model on held-out text and on tasks.

  gpt-jax evaluate --workdir workdirs/smoke
  gpt-jax evaluate --workdir W --tasks lambada,blimp,piqa --tasks_dir tasks
  gpt-jax evaluate --workdir W --tasks race --shots 0,1,5 --seed=1 --json
  gpt-jax evaluate --workdir W --tasks "text('a.txt'), text('b.txt', name='b')"
  gpt-jax evaluate --workdir W --tasks hellaswag --limit 200 --rows 16
  gpt-jax evaluate --workdir W --tasks wikitext2 --overlap
  gpt-jax evaluate --workdir BERT --pairs next,order
  gpt-jax evaluate --workdir W --memory 0,640 --segment 64 --same_length
  gpt-jax evaluate --workdir W --source test.en --reference test.de
  gpt-jax evaluate --workdir W --source test.en --reference test.de \
    --average 5 --beam 4 --penalty gnmt --length_penalty=0.6
  gpt-jax evaluate --workdir W --tasks sst2,rte,stsb --tasks_dir glue
  gpt-jax evaluate --workdir W --average 5
  gpt-jax evaluate --workdir W --steps all \
    --tasks cola_zero_shot,sst2_zero_shot,race_zero_shot

validation: predicts every held-out token exactly once, in rows of the training
context, and reports the loss (nats per token), the perplexity and the bits per
UTF-8 byte of text. For encoders: the same masked tokens in every evaluation,
and pairs of texts; --pairs measures BERT's or ALBERT's pairs, whichever the
model was trained on.

--memory: reads the held-out text in order, segment by segment, with
Transformer-XL memories of these lengths, which may differ from training:
eval/NAME/memory_M_loss and so on.

--source: generates an output for each line of a file, and compares it with the
lines of --reference by BLEU, with its signature, and chrF. The outputs are in
WORKDIR/evaluations/step-N-NAME.jsonl. Decoding is greedy, or a beam search with
--beam N (see generate). For other metrics, prefixes and parts of files, use
--tasks "seq2seq('test.en', 'test.de', metrics='rouge', beam=4)". GLUE's tasks
(sst2, cola, mrpc, stsb, rte and others) are text to text as in T5: an answer
that is not one of the choices is wrong. Only these tasks and validation work
for encoder-decoders.

Other tasks are scored by likelihood, without tuning: lambada, blimp, piqa,
hellaswag, story_cloze, race, boolq, cbt, wikitext2, wikitext103, ptb, enwik8,
text8, and your own as multiple_choice('file.jsonl'), qa('file.jsonl'),
text('file.txt'). Download their files as published: if they are missing, the
error says where to get them. --tasks_dir=tfds reads them from TensorFlow
Datasets. Results have standard errors. Scores are saved in WORKDIR/evaluations
as they are computed, so that the same command resumes. After each task its
results are added to step-N.json there: eval/lambada/..., eval/text/mine/... for
text('mine.txt'), eval/NAME/... for text('mine.txt', name='NAME').

--average 5 measures the mean of the parameters of the last five checkpoints (if
checkpoint.keep kept them), which is not the average of optim.ema. Its results
are in a separate file, step-N-average-5.json.

--steps all measures every checkpoint that the run has kept (see
checkpoint.keep_every_steps), prints a table with the main figure of each task,
and plots WORKDIR/evaluations/steps.png. This reproduces GPT-1's figure 2:
cola_zero_shot, sst2_zero_shot and race_zero_shot are its heuristics, which use
the language model without tuning.
"""

import os
from typing import Any

from gpt_jax import cli
from gpt_jax.core import ranges
from gpt_jax.core.files import progress
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import metrics
from gpt_jax.decoding import settings
from gpt_jax.evaluation import score, suite, text_tasks
from gpt_jax.evaluation.figures import Figures
from gpt_jax.evaluation.results import Results, read_calls, written
from gpt_jax.evaluation.score import Scorer
from gpt_jax.evaluation.suite import TASKS, NamedTask
from gpt_jax.flags import Flags, changed

with cli.lazy_imports():
  from gpt_jax.core.training import held_out as held_out_lib
  from gpt_jax.core.training import store_data
  from gpt_jax.evaluation import carried_memory as memory_lib
  from gpt_jax.evaluation import overlap, validation
  from gpt_jax.opening import models as trained_lib
  from gpt_jax.reports import task_curves


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of a trained run.')
  flags.weights()
  flags.average()
  flags.text(
    'steps',
    '',
    'Measure the checkpoints of these steps: a comma-separated list, or `all` '
    'that are kept. Prints a table, and plots the curves in '
    'WORKDIR/evaluations/steps.png.',
  )
  flags.text(
    'tasks',
    None,
    'Comma-separated list of what to measure: validation (the held-out split, '
    'and the sets of eval.sets), '
    + ', '.join(TASKS)
    + '. Default: validation; with --source: none.',
  )
  flags.path(
    'tasks_dir',
    'tasks',
    'Folder of the files of tasks; tfds: read what TensorFlow Datasets has prepared.',
    bucket='folder',
  )
  flags.text('source', '', 'File of source texts, one a line, for which outputs are generated.')
  flags.text('reference', '', 'File of the expected outputs.')
  flags.beam([*settings.PENALTIES])
  flags.numbers(
    'shots',
    '0',
    'Comma-separated list of numbers of solved examples to show before each '
    'example, if the context has room.',
  )
  flags.number('seed', 0, 'Seed to choose solved examples.', ranges.Seed)
  flags.number(
    'limit',
    None,
    'Measure only the first N examples of each task (of each paradigm of '
    'BLiMP; lines of a text). The results are in a separate file, '
    'step-N-limit-LIMIT.json.',
    ranges.Count,
  )
  flags.number(
    'batch_tokens',
    None,
    'Maximum tokens of a batch, including padding; default: eval.rows rows of '
    'the whole context, up to 16,384 tokens for each device.',
    ranges.Count,
  )
  flags.number('rows', None, 'Maximum rows of a batch.', ranges.Count)
  flags.switch(
    'overlap',
    "Report how many of a task's texts share 13 consecutive words with the "
    'training text (GPT-3, appendix C), write them to overlap-TASK.json, and '
    'report the results of the others as NAME_clean.',
  )
  flags.words(
    'pairs',
    '',
    'Comma-separated list of tests of an encoder on pairs of texts, which may '
    'differ from training: next (does B follow A, or come from another '
    'document?), order (are A and B in their order?).',
  )
  flags.numbers(
    'memory',
    '',
    'Comma-separated list of memory lengths for the held-out text, 0: none; '
    'for models with transformer_xl.',
    some=False,
  )
  flags.number(
    'segment', None, 'With --memory: tokens of a segment; default: as in training.', ranges.Count
  )
  flags.number(
    'clamp',
    None,
    'With --memory: the largest distance, 0: no limit; default: as in training.',
    ranges.Whole,
  )
  flags.switch('same_length', 'With --memory: each token sees as many keys as the memory has.')
  flags.json()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  workdir = args.workdir
  choices = {**TASKS, 'validation': lambda: None}
  beam = settings.beam(args)
  if beam and not args.source:
    raise UsageError(
      f'--beam={args.beam}: needs --source; give it, or set the beam in the '
      'task: --tasks "seq2seq(..., beam=4)"'
    )
  files = args.source, args.reference
  asked = text_tasks.with_files(args.tasks, *files, beam)
  calls = read_calls('--tasks', asked, choices)
  shots, memories = sorted(args.shots), sorted(args.memory)
  reading = memory_lib.ReadingPlan(args.segment, args.clamp, args.same_length)
  if reading != memory_lib.ReadingPlan() and not memories:
    raise UsageError('--segment, --clamp, --same_length: need --memory; give it, or leave them out')
  if args.steps:
    alone = {'average': 0, 'pairs': [], 'memory': [], 'overlap': False}
    if name := changed(args, alone):
      raise UsageError(
        f'--steps={args.steps}: measures --tasks at each of these steps; leave out --{name}'
      )
  tasks = suite.build([c for c in calls if c.call.name != 'validation'], args.tasks_dir)
  held_out = len(tasks) < len(calls)
  # Check the flags first: loading takes minutes.
  text = held_out or args.pairs or memories or args.overlap
  config: Any = trained_lib.read_config(workdir) if text else None
  for kind in args.pairs:
    if kind not in validation.PAIRS:
      known = ', '.join(validation.PAIRS)
      raise UsageError(f'--pairs={kind}: unknown; one of {known}')
    validation.with_pairs(config, kind)
  for memory in memories:
    memory_lib.with_memory(config, memory, reading)
  sets = config.eval.sets if held_out else ()
  suite.check('--tasks', tasks, shots=shots, sets=sets)
  if text:
    store_data.open_store(config, workdir)
  if (held_out or memories) and args.weights != 'float':
    raise UsageError(
      f'--weights={args.weights}: works with tasks only, not with held-out '
      'text; give --tasks without validation, and no --memory'
    )
  use = 'run'
  if tasks:  # only a decoder gives the likelihood of a text
    writes = all(named.task.takes_sources for named in tasks)
    use = 'write' if writes else 'continue'
  if args.steps:
    steps = trained_lib.kept_steps(workdir, args.steps)
    kept = trained_lib.open_kept(workdir, use)
    _over_steps(args, kept, steps, tasks, shots, held_out=held_out)
    return
  trained = trained_lib.load(workdir, use, args.average)
  if args.weights == 'int8':
    trained = trained.in_int8()
  result = _start(args, trained)
  lines, others = [], {}
  if held_out:
    result |= validation.measure(trained, workdir)
    lines.append(held_out_lib.summary(result))
  for kind in args.pairs:
    others |= validation.of_pairs(trained, workdir, kind)
  if memories:
    others |= memory_lib.measure(trained, workdir, memories, reading)
  result |= others
  lines += [
    f'{key}: {value:{"," if isinstance(value, int) else ".4f"}}' for key, value in others.items()
  ]
  if tasks:
    scorer = score.scorer(trained, rows=args.rows, tokens=args.batch_tokens)
    found = _measure(args, tasks, shots, trained, scorer, result)
    result |= found
    lines += suite.lines(found, tasks)
  steps = [*trained.averaged]
  if args.json:
    print(metrics.to_json(result | ({'averaged': steps} if steps else {})))
    return
  start = f'step {result["step"]}'
  if steps:
    start = f'mean of steps {", ".join(map(str, steps))}'
  print('\n'.join(f'{start}: {line}' for line in lines))


def _over_steps(
  args: cli.Args,
  kept: 'trained_lib.Kept',
  steps: list[int],
  tasks: list[NamedTask],
  shots: list[int],
  *,
  held_out: bool,
) -> None:
  """Measures checkpoints one after the other; prints and draws the curves."""
  found: dict[int, Figures] = {}
  scorer = trained = None
  for step in steps:
    if scorer is not None:
      scorer.params = None
    trained = None  # frees its memory
    trained = kept.at(step)
    if args.weights == 'int8':
      trained = trained.in_int8()
    result = _start(args, trained)
    if held_out:
      result |= validation.measure(trained, args.workdir)
    if tasks:
      # Its compiled programs serve all checkpoints.
      scorer = scorer or score.scorer(trained, rows=args.rows, tokens=args.batch_tokens)
      scorer.params = trained.state.eval_params
      result |= _measure(args, tasks, shots, trained, scorer, result)
    found[step] = result
    log.info('measured step %d, %d of %d', step, len(found), len(steps))
  out = os.path.join(args.workdir, 'evaluations', f'steps{_part(args)}.png')
  os.makedirs(os.path.dirname(out), exist_ok=True)
  curves = suite.curves(found, tasks, relative=True)
  log.info('wrote %s', task_curves.task_curves(curves, out))
  if args.json:
    print(metrics.to_json({str(step): found[step] for step in found}))
    return
  print(suite.steps_table(suite.curves(found, tasks)))


def _part(args: cli.Args) -> str:
  """What tells results apart from those of the whole, as they are saved."""
  part = '' if args.limit is None else f'-limit-{args.limit}'
  part += '' if args.weights == 'float' else f'-{args.weights}'
  return part + (f'-average-{args.average}' if args.average else '')


def _start(args: cli.Args, trained: 'trained_lib.Trained') -> Figures:
  """What the results of a model begin with."""
  out: Figures = {'step': int(trained.state.step)}
  if args.limit is not None:
    out['limit'] = args.limit
  return out


def _measure(
  args: cli.Args,
  tasks: list[NamedTask],
  shots: list[int],
  trained: 'trained_lib.Trained',
  scorer: Scorer,
  held_out: Figures,
) -> Figures:
  """Measures the tasks, and stores their results with those `held_out`."""
  folder = os.path.join(args.workdir, 'evaluations')
  step, model = held_out['step'], suite.fingerprint(trained.state.eval_params)
  part = _part(args)
  results = Results(
    os.path.join(folder, f'step-{step}{part}.json'),
    step=int(step),
    model=model,
    tasks={t.name: written(t.call, TASKS) for t in tasks},
    limit=args.limit,
  )
  if kept := {k: v for k, v in held_out.items() if '/' in k}:
    results.add(kept)
  found: Figures = {}
  seen = {}
  if args.overlap:
    with progress.bar('tokens') as report:
      shared = overlap.of_run(trained, args.workdir, tasks, folder, report)
    results.add(shared.figures)
    found, seen = shared.figures, shared.seen
  measured = suite.measure(
    tasks,
    scorer,
    shots=shots,
    seed=args.seed,
    limit=args.limit,
    seen=seen,
    # A file of scores is of one model.
    folder=os.path.join(folder, f'step-{step}') if args.steps else folder,
    model=model,
    outputs=os.path.join(folder, f'step-{step}{part}-'),
    keep=results.add,
  )
  return measured | found
