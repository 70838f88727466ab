# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Measures a trained model, on held-out text and on tasks.

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

validation: predicts every held-out token exactly once, in rows of the training
context, and reports the loss (nats per token), the perplexity and the bits per
UTF-8 byte of text. For encoders: the same masked tokens in every evaluation,
and the pairs of texts; --pairs measures BERT's or ALBERT's pairs, whichever the
model was trained on.

--memory: reads the held-out text in order, segment by segment, with
Transformer-XL memories of these lengths, which may differ from training:
eval/NAME/memory_M_loss and the others.

--source: the model generates an output for each line of a file, which is
compared with the lines of --reference: BLEU, with its signature, and chrF. The
outputs are in WORKDIR/evaluations/step-N-NAME.jsonl. Decoding is greedy, or a
beam search with --beam N (see generate). For other metrics, prefixes and parts
of files, --tasks "seq2seq('test.en', 'test.de', metrics='rouge', beam=4)".
GLUE's tasks, sst2, cola, mrpc, stsb, rte and others, are in T5's text-to-text
formats: an answer that is none of the choices is wrong. Encoder-decoders are
measured by these and by validation.

Other tasks are scored by likelihood, without tuning: lambada, blimp, piqa,
hellaswag, story_cloze, race, boolq, wikitext2, and your own as
multiple_choice('file.jsonl'), qa('file.jsonl'), text('file.txt'). Download
their files as published: a task that finds none says where they come from.
--tasks_dir=tfds: reads them from TensorFlow Datasets. Figures come with
standard errors. Scores are saved in WORKDIR/evaluations as they are found, so
that the same command resumes where it stopped. After each task its figures are
added to step-N.json there: eval/lambada/..., eval/text/mine/... for
text('mine.txt'), eval/NAME/... for text('mine.txt', name='NAME').

--average 5 measures the mean of the last five checkpoints' parameters (as many
as checkpoint.keep kept), which is not the average of optim.ema. Its results
have a file of their own, step-N-average-5.json.
"""

import os

from gpt_jax import cli, ranges
from gpt_jax import flags as flags_lib
from gpt_jax.evaluation import memory as memory_lib
from gpt_jax.evaluation import (
  overlap,
  score,
  suite,
  text_tasks,
  validation,
)
from gpt_jax.evaluation.figures import Figures
from gpt_jax.evaluation.results import Results, read_calls, written
from gpt_jax.evaluation.suite import TASKS, Named
from gpt_jax.files import progress
from gpt_jax.flags import Flags
from gpt_jax.spec import UsageError
from gpt_jax.training import metrics, store_data
from gpt_jax.training import models as trained_lib
from gpt_jax.training.held_out import summary
from gpt_jax.training.models import Trained


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of a trained run.')
  flags.weights()
  flags.average()
  flags.text(
    'tasks',
    None,
    'Comma list of what to measure: validation (the held-out split, and '
    'the sets of eval.sets), ' + ', '.join(TASKS) + '. By default validation, '
    'or with --source nothing else.',
  )
  flags.text(
    'tasks_dir',
    'tasks',
    'Folder of the files of tasks; tfds: for what TensorFlow Datasets has '
    'prepared.',
  )
  flags.text(
    'source',
    '',
    'File of texts, one a line, for each of which the model writes one.',
  )
  flags.text('reference', '', 'File of what it should write.')
  flags.beam()
  flags.numbers(
    'shots',
    '0',
    'Solved examples before each one, as many as the context holds: a number, '
    'or several with commas.',
  )
  flags.number('seed', 0, 'Of the draw of solved examples.', ranges.Seed)
  flags.number(
    'limit',
    None,
    'Measure the first examples of each task only, so many (of BLiMP, of each '
    'paradigm; of a text, lines). Such results stand in a file of their own, '
    'step-N-limit-LIMIT.json.',
    ranges.Count,
  )
  flags.number(
    'batch_tokens',
    None,
    'Tokens that a batch of a task holds at most, with its padding; by default '
    'those of eval.rows rows of the whole context, up to 16,384 a device.',
    ranges.Count,
  )
  flags.number(
    'rows',
    None,
    'Rows that a batch of a task holds at most, whatever their length.',
    ranges.Count,
  )
  flags.switch(
    'overlap',
    "Report how many of a task's texts share 13 words in a row with the "
    'training text (GPT-3, appendix C), write which, and give the figures of '
    'the others as NAME_clean.',
  )
  flags.words(
    'pairs',
    '',
    'Pairs of held-out texts that an encoder is to tell apart, besides those '
    "it was trained on: next (does B follow A, or is it another document's?), "
    'order (do A and B stand in their order?), or both.',
  )
  flags.numbers(
    'memory',
    '',
    'Lengths of the memory to read the held-out text with, 0 without; with a '
    'model of transformer_xl.',
    some=False,
  )
  flags.number(
    'segment',
    None,
    'Tokens of a segment then; by default as in training.',
    ranges.Count,
  )
  flags.number(
    'clamp',
    None,
    'Longer distances count as this one then, 0: as they are; by default as in '
    'training.',
    ranges.Whole,
  )
  flags.switch(
    'same_length', 'Each token sees as many keys then as the memory has.'
  )
  flags.json()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  workdir = args.workdir
  choices = {**TASKS, 'validation': lambda: None}
  beam = flags_lib.beam(args)
  if beam and not args.source:
    raise UsageError(
      f'--beam={args.beam}: searches for the texts of --source; give it, or '
      'write it into the task: --tasks "seq2seq(..., beam=4)"'
    )
  files = args.source, args.reference
  asked = text_tasks.with_files(args.tasks, *files, beam)
  calls = read_calls('--tasks', asked, choices)
  shots, memories = sorted(args.shots), sorted(args.memory)
  reading = memory_lib.Reading(args.segment, args.clamp, args.same_length)
  if reading != memory_lib.Reading() and not memories:
    raise UsageError(
      '--segment, --clamp, --same_length: say how --memory reads; give it'
    )
  tasks = suite.build(
    [c for c in calls if c.call.name != 'validation'], args.tasks_dir
  )
  held_out = len(tasks) < len(calls)
  # Check the flags first: loading takes minutes.
  for kind in args.pairs:
    if kind not in validation.PAIRS:
      known = ', '.join(validation.PAIRS)
      raise UsageError(f'--pairs={kind}: unknown; one of {known}')
    validation.with_pairs(trained_lib.read_config(workdir), kind)
  for memory in memories:
    memory_lib.with_memory(trained_lib.read_config(workdir), memory, reading)
  sets = trained_lib.read_config(workdir).eval.sets if held_out else ()
  suite.check('--tasks', tasks, shots=shots, sets=sets)
  if held_out or args.pairs or memories or args.overlap:
    store_data.open_store(trained_lib.read_config(workdir), workdir)
  if (held_out or memories) and args.weights != 'float':
    raise UsageError(
      f'--weights={args.weights}: scores tasks and no held-out text; give '
      '--tasks without validation, and no --memory'
    )
  use = 'run'
  if tasks:  # only a decoder gives the likelihood of a text
    writes = all(named.task.takes_sources for named in tasks)
    use = 'write' if writes else 'continue'
  trained = trained_lib.load(workdir, use, args.average)
  if args.weights == 'int8':
    trained = trained.in_int8()
  step = int(trained.state.step)
  result: Figures = {'step': step}
  steps = list(trained.averaged)
  if args.limit is not None:
    result['limit'] = args.limit
  lines, besides = [], {}
  if held_out:
    result.update(validation.measure(trained, workdir))
    lines.append(summary(result))
  for kind in args.pairs:
    besides |= validation.of_pairs(trained, workdir, kind)
  if memories:
    besides |= memory_lib.measure(trained, workdir, memories, reading)
  result.update(besides)
  lines += [
    f'{key}: {value:{"," if isinstance(value, int) else ".4f"}}'
    for key, value in besides.items()
  ]
  if tasks:
    found = _measure(args, tasks, shots, trained, result)
    result.update(found)
    lines += suite.lines(found, tasks)
  if args.json:
    print(metrics.to_json(result | ({'averaged': steps} if steps else {})))
  else:
    what = (
      f'mean of steps {", ".join(map(str, steps))}' if steps else f'step {step}'
    )
    print('\n'.join(f'{what}: {line}' for line in lines))


def _measure(
  args: cli.Args,
  tasks: list[Named],
  shots: list[int],
  trained: Trained,
  held_out: Figures,
) -> Figures:
  """Measures the tasks, and keeps their results beside those `held_out`."""
  folder = os.path.join(args.workdir, 'evaluations')
  step, model = held_out['step'], suite.fingerprint(trained.state.eval_params)
  part = '' if args.limit is None else f'-limit-{args.limit}'
  part += '' if args.weights == 'float' else f'-{args.weights}'
  part += f'-average-{args.average}' if args.average else ''
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
    score.scorer(trained, rows=args.rows, tokens=args.batch_tokens),
    shots=shots,
    seed=args.seed,
    limit=args.limit,
    seen=seen,
    folder=folder,
    model=model,
    outputs=os.path.join(folder, f'step-{step}{part}-'),
    keep=results.add,
  )
  return measured | found
