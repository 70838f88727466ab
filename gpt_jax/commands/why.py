# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Takes a step of a run again, and shows what was in it: layers, documents, what-ifs.

  gpt-jax why --workdir W --step 9000
  gpt-jax why --workdir W --step 9000 --out step.png --top 10
  gpt-jax why --workdir W --step 9000 --without 17 --lr 1e-4 --clip 0.5
  gpt-jax why --workdir W --step 9000 --rewound
  gpt-jax why --workdir W --bisect 8000:9000 --quantity largest_logit --band :50

Goes on from the nearest checkpoint before the step, with the run's own programs and batches, and
compares loss and gradient norm with the log of the run, to the last digit. They are the same on as
many devices of the same kind, with the same versions, and with batch.exact_over on any number of
them. Nothing in W is changed. The devices must be free.

Then come the norms of the step by layer (activations, gradients, parameters, updates, the largest
attention logit), and the documents of its batch, each scored alone before the step and without
dropout: its loss, and the norm of what it adds to the gradient of the batch. --top says how many to
show.

--without, --lr and --clip together are one other step: what it would have done, and the loss of the
next batch after it, beside the step as it was.

After optim.on_spike=rewind the step is the one that was taken instead; with --rewound it is the one
that had the spike.

With --bisect: finds the first step of a range, both ends included, at which --quantity is outside
of --band. It is loss, grad_norm, a kind of norm (the largest of all layers), or that of one layer,
such as gradient_norm/decoder/layer_3. Checkpoints are bisected, then the steps between two taken
one after another.
"""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from gpt_jax import cli
from gpt_jax.core import ranges
from gpt_jax.core.runtime import tables
from gpt_jax.core.runtime.tables import TextTable
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training.metrics import to_json
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.core.training import norm_lines
  from gpt_jax.looking import course as course_lib
  from gpt_jax.looking import documents, layers, leaving, what_if
  from gpt_jax.reports import step_look

# Characters of a document that a table shows.
_SHOWN = 100


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of the run.')
  flags.number('step', None, 'Step to look into, counted from 1.', ranges.Count)
  flags.switch('rewound', 'The step before a rewind left out its rows.')
  flags.numbers('without', '', 'What if: documents of the batch that do not count.', some=False)
  flags.number('lr', None, 'What if: learning rate of the step.', ranges.NotNegative)
  flags.number('clip', None, "What if: bound of the gradient's norm; 0: none.", ranges.NotNegative)
  flags.number('top', 5, 'How many documents to show, by loss and by gradient.', ranges.Count)
  flags.text('bisect', None, 'Steps to search, FIRST:LAST, both included.')
  flags.text('quantity', 'grad_norm', 'With --bisect: what is searched for.')
  flags.text('band', None, 'With --bisect: LOW:HIGH, of which one may be empty.')
  flags.path('out', None, 'PNG of the norms and the documents.', written=True)
  flags.json()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  if bool(args.bisect) == (args.step is not None):
    raise UsageError('give one of --step and --bisect; see --help')
  cli.check_out_file(args, 'out', ('.png',))
  if args.bisect:
    _bisect(args)
  else:
    _look(args)


def _look(args: cli.Args) -> None:
  with course_lib.Course.open(args.workdir, args.step, rewound=args.rewound) as course:
    course.advance(args.step - 1)
    batch = documents.pieces(course, args.step)
    taken = course.take()
    last = args.step == course.parts.config.schedule.num_steps
    following = None if last else course.next_batch()
    outcomes = {'as it was': what_if.as_it_was(course, taken, following)}
    changes = {name: getattr(args, name) for name in ('without', 'lr', 'clip')}
    if asked := {name: x for name, x in changes.items() if x not in (None, [])}:
      said = ' '.join(f'--{name} {_text(x)}' for name, x in asked.items())
      outcomes[said] = what_if.changed(course, taken, following, batch=batch, **asked)
    measured = layers.Measuring(course.parts).of(taken)
    scored = documents.scored(course.parts, taken, batch)
    del taken  # its two states
    start = course.start
    course.compare()
  if args.out:
    step_look.picture(args.step, measured.norms, scored, args.out)
  if args.json:
    print(
      to_json(
        {
          'step': args.step,
          'start': start,
          'compared': _as_json(course),
          'norms': measured.norms,
          'norms_loss': measured.loss,
          'documents': [
            {**x.piece._asdict(), 'targets': _ends(x.piece.targets), **_numbers(x)} for x in scored
          ],
          'outcomes': {name: x._asdict() for name, x in outcomes.items()},
        }
      )
    )
    return
  console = tables.console()
  origin = f'the checkpoint of step {start}' if start else 'the start'
  console.print(f'step {args.step}, from {origin}')
  _compared(course, console)
  _outcomes(outcomes, console)
  _layers(measured.norms, console)
  if measured.loss != outcomes['as it was'].loss:
    console.print(
      f'The norms are of a program that measures, whose loss is {measured.loss!r}: only rounding '
      'differs.'
    )
  _documents('loss', scored, args.top, console)
  _documents('gradient', scored, args.top, console)
  if args.out:
    print(args.out)


def _bisect(args: cli.Args) -> None:
  cli.required(args, 'band')
  for name in ('without', 'lr', 'clip', 'out'):
    if getattr(args, name) not in (None, []):
      raise UsageError(f'--{name}: is for --step, and --bisect only searches; leave it out')
  first, colon, last = args.bisect.partition(':')
  if not (colon and first.isdecimal() and last.isdecimal() and 0 < int(first) < int(last)):
    raise UsageError(f'--bisect={args.bisect}: give FIRST:LAST, two steps, such as 8000:9000')
  band = leaving.Band.of(args.band)
  with course_lib.Course.open(args.workdir, int(last), rewound=args.rewound) as course:
    found = leaving.first_outside(course, int(first), int(last), args.quantity, band)
    course.compare()
  if args.json:
    figures = {'step': found.step, 'quantity': args.quantity, 'values': found.values}
    print(to_json({**figures, 'compared': _as_json(course)}))
    return
  table = TextTable('step', args.quantity, 'within the band', right=('step', args.quantity))
  for step, value in sorted(found.values.items()):
    table.add_row(str(step), f'{value:.6g}', 'yes' if band.has(value) else 'no')
  console = tables.console()
  _compared(course, console)
  console.print(table)
  console.print(f'The first step outside: {found.step}. gpt-jax why --step {found.step} looks in.')


def _as_json(course: 'course_lib.Course') -> list[dict[str, Any]]:
  return [{**x._asdict(), 'same': x.same} for x in course.compared]


def _compared(course: 'course_lib.Course', console: Console) -> None:
  compared = course.compared
  if not compared:
    console.print('The log has no loss of this step or a later one: nothing is compared.')
  elif differ := [x for x in compared if not x.same]:
    one = differ[0]
    console.print(
      f'NOT the bits of the run: {len(differ)} of {len(compared)} logged numbers differ; '
      f'{one.name} of step {one.step} is {one.again!r}, logged {one.logged!r}'
    )
  else:
    steps = sorted({x.step for x in compared})
    console.print(
      f'The bits of the run: {len(compared)} logged numbers of steps {steps[0]} to {steps[-1]} are '
      'the same to the last digit.'
    )


def _outcomes(outcomes: dict[str, 'what_if.Outcome'], console: Console) -> None:
  fields = ('loss', 'grad_norm', 'update_norm', 'next_loss', 'next_grad_norm')
  names = ('loss', 'gradient norm', 'update norm', 'next loss', 'next gradient norm')
  table = TextTable('step', *names, right=names)
  for name, outcome in outcomes.items():
    values = [getattr(outcome, field) for field in fields]
    table.add_row(name, *('-' if x is None else f'{x:.6g}' for x in values))
  console.print(table)


def _layers(norms: dict[str, float], console: Console) -> None:
  rows = step_look.by_place(norms)
  kinds = [kind for kind in norm_lines.KINDS if any(kind in row for row in rows.values())]
  table = TextTable('part', *kinds, right=kinds)
  for place, row in rows.items():
    table.add_row(place, *(f'{row[kind]:.4g}' if kind in row else '' for kind in kinds))
  console.print(table)


def _documents(by: str, scored: Sequence['documents.Scored'], top: int, console: Console) -> None:
  """The pieces with the largest loss, or gradient."""
  right = ('document', 'row', 'share', 'loss', 'gradient')
  table = TextTable(*right, 'name', 'text', title=f'documents by {by}', right=right)
  for one in documents.ranked(scored, by)[:top]:
    table.add_row(
      _text(one.piece.documents),
      str(one.piece.row),
      f'{one.weight:.2%}',
      f'{one.loss:.4f}',
      f'{one.gradient:.4g}',
      one.piece.name,
      repr(one.piece.text[:_SHOWN]),
    )
  console.print(table)


def _text(value: Any) -> str:
  return ','.join(map(str, value)) if isinstance(value, list | tuple) else f'{value:g}'


def _ends(targets: slice | None) -> list[int] | None:
  return None if targets is None else [targets.start, targets.stop]


def _numbers(one: 'documents.Scored') -> dict[str, float]:
  return {'weight': one.weight, 'loss': one.loss, 'gradient': one.gradient}
