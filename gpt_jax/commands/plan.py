# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Plans a run before it is launched: whether it fits, and what it will cost.

  gpt-jax plan --config configs/palm.py:540b --topology v4:12x16x16 --slices 2
  gpt-jax plan --config configs/llama.py:7b --topology v4-128 --search
  gpt-jax plan --config configs/gpt2.py:medium --topology v5e-8 --memory out.png
  gpt-jax plan --config configs/gpt2.py:medium --topology v5e-8,v6e-8,v4-16
  gpt-jax plan --table
  gpt-jax plan --recompile --only palm
  gpt-jax plan --ledger
  gpt-jax plan --config F --topology v6e-8 --record 'Ours, 8B' --source 'who, when'
  gpt-jax plan --record 'Ours, 8B' --measured 3.443s
  gpt-jax plan --budget 5.76e23
  gpt-jax plan --chips v4-512 --days 21 --mfu 0.45
  gpt-jax plan --budget 5.76e23 --inference_tokens 2e12
  gpt-jax plan --budget 1e18 --fit W/scaling.json --json
  gpt-jax plan --failures 1000

A topology is GENERATION:SHAPE of a slice that is sold (v4, v5e, v5p, v6e,
tpu7x), or an accelerator name (v4-128, v5litepod-256). The training step of
every batch stage is compiled as in `train`, by libtpu on this CPU: its HBM, the
FLOPs it executes, the traffic over each mesh axis, and which gradients are
reduce-scattered. Nothing is run: step times and what follows from them are
estimates.

If the config leaves the mesh open (as configs/base.py does), a mesh is chosen,
with batch.micro_rows unless it is given, and printed as overrides for `train`.
If a step does not fit, the plan names the smallest change that makes it fit.
If the cost model expects another model.remat, with its own mesh, to be faster,
that is compiled too, and the faster one is the plan. --search tries meshes,
model.remat and batch.micro_rows, and ranks what fits. Five lines answer first:
whether it fits, seconds a step, MFU, dollars, and the command to launch; then a
table, and with --why all figures. Several topologies are shown as one table, and
by --json as a list. Dollars are the list prices that launch/ knows. libtpu gets
the flags that launch/ sets, or those of --flags. Needs the extra `plan`.

The accuracy of an estimate is that of published runs of its kind. --ledger shows
them with what was predicted, and by how much that was off. --record adds a run
of yours: first its prediction, then, by another command, what was measured.

For a budget of training FLOPs it shows, without a compiler, the parameters and
tokens by Chinchilla's three approaches and Kaplan's law, and the nearest of the
papers' decoders.

--failures simulates the goodput of a run on many hosts at the failure rates of
published runs, with and without local checkpoints, and finds the best
checkpoint.every_minutes.
"""

import contextlib
import json
import pathlib
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from etils import epy

from gpt_jax import cli
from gpt_jax.core import config as config_lib
from gpt_jax.core import ranges
from gpt_jax.core.costs import topologies
from gpt_jax.core.costs.topologies import CLOUD_NAMES
from gpt_jax.core.files import progress
from gpt_jax.core.runtime import tables
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import ToldFailedError, UsageError
from gpt_jax.flags import Flags

# Compiling is measured: programs are not kept, unlike by `cli.lazy_imports`.
with epy.lazy_imports():
  import jax

  from gpt_jax.core.costs import totals
  from gpt_jax.core.training import compiled, fitting
  from gpt_jax.papers.chinchilla import laws
  from gpt_jax.planning import compile as compile_lib
  from gpt_jax.planning import failures, ledger, report, search
  from gpt_jax.reports import memory


# Between lines on what takes long.
_EVERY_SECONDS = 15.0
# With --failures. 160,000 accelerators, more than any published run, take half a
# minute to simulate.
_MOST_HOSTS = 20_000
# What is asked for: the flag that asks for it, and the others that it takes; the
# first that is given counts.
_ASKED = {
  'failures': {'tiers', 'json'},
  'budget': {'inference_tokens', 'fit', 'json'},
  'chips': {'days', 'mfu', 'inference_tokens', 'fit', 'json'},
  'recompile': {'only'},
  'table': set(),
  'ledger': set(),
  'config': {
    'topology',
    'slices',
    'search',
    'compiles',
    'flags',
    'memory',
    'last_stage',
    'why',
    'record',
    'source',
    'json',
  },
  'record': {'measured'},
}
# Of those of --config, the pairs of which one says nothing beside the other.
_APART = (
  ('memory', 'search'),
  ('last_stage', 'search'),
  ('record', 'search'),
  ('record', 'flags'),
  ('why', 'json'),
)


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  flags.texts(
    'topology',
    'Slice to compile for: v4:4x4x8, v5e:16x16, tpu7x:4x4x4, or an accelerator '
    'name such as v4-256; several, in a comma-separated list or repeated, are '
    'compared.',
  )
  flags.number('slices', 1, 'Number of slices, of each kind.', ranges.Count)
  flags.switch('search', 'Try meshes, model.remat and batch.micro_rows, and rank what fits.')
  flags.number('compiles', 12, 'With --search: how many plans to compile.', ranges.Count)
  flags.text(
    'flags',
    None,
    'Compile with these flags of libtpu, as in LIBTPU_INIT_ARGS, instead of '
    'those that launch/ sets for the generation: '
    "--flags='--xla_enable_async_all_gather=true'; '': with none.",
  )
  flags.path(
    'memory', None, "PNG of what takes a chip's memory in the plan that fits.", written=True
  )
  flags.switch('last_stage', 'Compile only the stage with the most tokens in a batch.')
  flags.switch('why', 'Also print FLOPs, traffic, gradients, and what is assumed.')
  # Recorded plans.
  flags.switch('table', f'Print a Markdown table of the plans in {report.FILE} of this folder.')
  flags.switch(
    'recompile',
    f'Compile the plans of {report.FILE} again and update it; the exit code is 1 if one differs.',
  )
  flags.text('only', '', 'With --recompile: only configs whose names contain this.')
  # The ledger of published runs.
  flags.switch('ledger', 'Print, as Markdown, published runs beside what was predicted of them.')
  flags.text(
    'record',
    None,
    'Add the plan of --config to the ledger by this name; without --config: compile the row '
    'of this name again, or enter what --measured says.',
  )
  flags.text('source', '', 'With --record: who published the run, and what differs here.')
  flags.text('measured', None, 'With --record: seconds of a step, 13.484s, or MFU, 45.7%.')
  # Without a compiler.
  flags.number('budget', None, 'Training FLOPs, as in 5.76e23.', ranges.Positive)
  flags.text(
    'chips',
    None,
    'Instead of --budget, with --days: accelerators, as in v4-512 (named as in '
    'the cloud: the number counts cores for v4, v5p and tpu7x, two to a chip); '
    'kinds: ' + ', '.join(CLOUD_NAMES) + '.',
  )
  flags.number('days', None, 'With --chips: days.', ranges.Positive)
  flags.number(
    'mfu', 0.4, 'With --chips: the assumed MFU, relative to the bf16 peak.', ranges.Share
  )
  flags.number(
    'inference_tokens',
    None,
    'Tokens to process after training: also find the smaller model, trained '
    'for longer, with the least FLOPs in total at the same predicted loss.',
    ranges.Positive,
  )
  flags.path('fit', None, 'scaling.json of `gpt-jax scaling`: add its fitted law.')
  flags.number(
    'failures',
    None,
    f'Hosts of 8 accelerators, up to {_MOST_HOSTS:,}: simulate the goodput, find the best '
    'checkpoint.every_minutes, and compare with checkpoint.local_every_steps.',
    Annotated[int, ranges.whole(1, _MOST_HOSTS)],
  )
  flags.text(
    'tiers',
    'tiers()',
    'With --failures: intervals and costs of checkpoints, in seconds: '
    'tiers(every=3600, blocks=10, writes=60, restore=300, local_every=120, '
    'local_blocks=1, local_restore=30, restart=600, both=0.05).',
  )
  flags.json()


def main(args: cli.Args) -> None:
  """Runs the command.

  The exit code is 1 if nothing fits as it is, and with --recompile if a plan
  differs.
  """
  asked = _asked(args)
  if asked == 'failures':
    found = failures.plan(args.failures, args.tiers)
    if args.json:
      print(json.dumps(found))
    else:
      failures.show(found, tables.console())
  elif asked in ('budget', 'chips'):
    _plan_budget(args)
  elif asked == 'recompile':
    _recompile(args.only)
  elif asked == 'table':
    print(report.markdown(report.read(pathlib.Path.cwd())))
  elif asked == 'ledger':
    print(ledger.markdown())
  elif asked == 'record':
    _record_again(args)
  else:
    _plan_config(args)


def _asked(args: cli.Args) -> str:
  """The key of `_ASKED` that is given; flags that it would ignore are refused."""
  defaults = Flags()
  define(defaults)
  given = [name for name in defaults if getattr(args, name) != defaults[name].default]
  named = [name for name in _ASKED if name in given]
  if not named:
    takers = [name for name, takes in _ASKED.items() if {*given} & takes]
    if given and 'config' not in takers:
      one = next(name for name in given if name in _ASKED[takers[0]])
      raise UsageError(f'--{one}: works with {_flags(takers, " or ")} only; give it too')
    raise UsageError(
      '--config is missing; give it with --topology, or give --budget FLOPs, '
      'or --chips with --days; see --help'
    )
  asked, *_ = named
  if ignored := [name for name in given if name not in (asked, *_ASKED[asked])]:
    one = 'it' if len(ignored) == 1 else 'them'
    raise UsageError(f'--{asked}: works without {_flags(ignored)}; leave {one} out, or --{asked}')
  if asked == 'config' and 'compiles' in given and not args.search:
    raise UsageError(f'--compiles={args.compiles}: works with --search only; give it too')
  for pair in _APART:
    if {*pair} <= {*given}:
      raise UsageError(f'--{pair[0]}: works without --{pair[1]}; leave one out')
  return asked


def _flags(names: Iterable[str], between: str = ', ') -> str:
  return between.join(f'--{name}' for name in names)


def _plan_budget(args: cli.Args) -> None:
  """Prints what a budget of FLOPs affords."""
  found = laws.plan(*_budget(args), inference_tokens=args.inference_tokens, fit_path=args.fit)
  if args.json:
    print(json.dumps(found))
  else:
    laws.show(found, tables.console())


def _recompile(only: str) -> None:
  """Compiles the recorded plans again; exit code 1 if one differs."""
  compile_lib.use_cpu()
  with _progress() as note:
    drift = report.recompile(pathlib.Path.cwd(), only, note)
  for line in drift:
    log.error('is not what it was: %s', line)
  if drift:
    raise ToldFailedError('plans differ')


def _record_again(args: cli.Args) -> None:
  """Enters what was measured into a row, or compiles it again."""
  if args.measured is None:
    compile_lib.use_cpu()
    with _progress() as note:
      found = report.record_again(pathlib.Path.cwd(), args.record, note)
  else:
    found = ledger.enter_measured(args.record, args.measured)
  log.info('%s: %s', args.record, ledger.said(found))


def _plan_config(args: cli.Args) -> None:
  """Prints the plan of a config on a topology, or the plans of a search."""
  cli.required(args, 'topology')
  cli.check_out_file(args, 'memory', ('.png',))
  all_slices = _slices(args)
  if args.memory and len(all_slices) > 1:
    raise UsageError(
      f'--memory: draws one plan, and --topology has {len(all_slices)} slices; leave one out'
    )
  if args.why and len(all_slices) > 1:
    raise UsageError(
      f'--why: of one plan, and --topology has {len(all_slices)} slices; leave one out'
    )
  name = _name(args.argv)
  if args.record is not None:
    _check_record(args, all_slices)
  compile_lib.use_cpu()
  request = _request(args, all_slices[0])
  words = _config_words(args.argv)
  asked = report.Asked(name, cli.shell_line(['gpt-jax', 'train', *words]))
  if len(all_slices) > 1:
    _compare(args, name, request, all_slices)
    return
  if args.search:
    with _progress() as note:
      results = search.search(request, note, most=args.compiles)
    if args.json:
      shown = [report.to_json(name, plan) for plan in results.plans]
      print(json.dumps({'plans': shown, 'misfits': results.misfits}))
    else:
      report.show_search(asked, results, request.slices, tables.console(), why=args.why)
    if not results.plans:
      raise ToldFailedError('nothing fits')
    return
  dense = None
  with _progress() as note:
    found = _plan(args, request, note)
    if args.why and isinstance(found, search.FittingPlan):
      dense = search.dense(found, note)
  if args.json:
    print(json.dumps(report.to_json(name, found)))
  else:
    report.show(asked, found, tables.console(), why=args.why)
    if dense and isinstance(found, search.FittingPlan):
      tables.console().print(report.beside_dense(found, dense))
  plan = found.suggestion if isinstance(found, search.Misfit) else found
  if args.record is not None and isinstance(found, search.FittingPlan):
    report.record(args.record, args.source, name, _overrides(args), found)
    log.info('%s: %s', args.record, 'is in the ledger; enter what is measured by --measured')
  if args.memory and plan is not None:
    log.info('wrote %s', memory.chart(report.to_json(name, plan), args.memory))
  if isinstance(found, search.Misfit):
    raise ToldFailedError('nothing fits')


def _check_record(args: cli.Args, all_slices: list[topologies.Slices]) -> None:
  if len(all_slices) > 1:
    raise UsageError(f'--record: of one plan, and --topology has {len(all_slices)} slices')
  if not args.source:
    raise UsageError('--record: --source is missing; say who measured the run, and what differs')
  if ledger.described(args.record):
    raise UsageError(f'--record={args.record}: a row has this name already; take another')


def _overrides(args: cli.Args) -> dict[str, Any]:
  """What the command line changes of the config, by field."""
  flat = config_lib.flatten(args.config)
  names = (name.removeprefix('config.') for name in vars(args) if name.startswith('config.'))
  return {name: flat[name] for name in names}


def _slices(args: cli.Args) -> list[topologies.Slices]:
  """The different slices that --topology names."""
  texts = [text for given in args.topology for text in given.split(',')]
  found = (topologies.parse(text, args.slices) for text in texts)
  return [*dict.fromkeys(found)]


def _plan(
  args: cli.Args, request: 'search.SearchRequest', note: 'search.Note'
) -> 'search.FittingPlan | search.Misfit':
  """Compiles a plan, or what makes it fit; and what may be faster."""
  try:
    found = search.make(request, note, last_only=args.last_stage)
  except compiled.TooLarge as e:
    found = search.smallest_change(request, e, note)
  return search.better(request, found, note, last_only=args.last_stage)


def _compare(
  args: cli.Args, name: str, request: 'search.SearchRequest', all_slices: list[topologies.Slices]
) -> None:
  """Prints the plans of several slices as one table, or list of JSON."""
  outcomes = {}
  for number, slices in enumerate(all_slices, start=1):
    log.info('%d of %d: %s', number, len(all_slices), slices)
    with _progress() as note:
      outcomes[slices] = _outcome(args, request._replace(slices=slices), note)
    jax.clear_caches()
  if args.json:
    shown = [report.outcome_to_json(name, *x) for x in outcomes.items()]
    print(json.dumps(shown))
  else:
    report.show_compared(name, outcomes, tables.console())
  if not any(isinstance(found, search.FittingPlan) for found in outcomes.values()):
    raise ToldFailedError('nothing fits')


def _outcome(
  args: cli.Args, request: 'search.SearchRequest', note: 'search.Note'
) -> 'search.FittingPlan | search.Misfit | str':
  """The plan of one of several slices, with --search the best; or why none.

  An error must not lose the plans of the others.
  """
  try:
    if not args.search:
      return _plan(args, request, note)
    found = search.search(request, note, most=args.compiles)
  except (UsageError, jax.errors.JaxRuntimeError) as e:
    return str(e).partition('\n')[0]
  return found.plans[0] if found.plans else found.why


def _budget(args: cli.Args) -> tuple[float, dict[str, Any]]:
  """Training FLOPs, and the figures they were computed from."""
  if args.budget is not None:
    return args.budget, {}
  cli.required(args, 'days')
  return laws.training_flops(args.chips, args.days, args.mfu)


def _request(args: cli.Args, slices: topologies.Slices) -> 'search.SearchRequest':
  """The config, and which of its choices are open."""
  given = {name.removeprefix('config.') for name in vars(args) if name.startswith('config.')}
  config = config_lib.resolve(args.config)
  totals.check_vocabulary(config)
  return search.SearchRequest(
    config,
    slices,
    mesh=fitting.is_open(config),
    micro='batch.micro_rows' not in given,
    remat='model.remat' not in given,
    flags=None if args.flags is None else compile_lib.parse_flags(args.flags),
  )


@contextlib.contextmanager
def _progress() -> 'Iterator[search.Note]':
  """Yields a function that says what is worked on.

  On a terminal beside a spinner, else in the log; and again, with the time that
  it has taken, every `_EVERY_SECONDS`.
  """
  with contextlib.ExitStack() as stack:
    show = log.info
    if progress.console.is_terminal:
      status = progress.console.status('estimating')
      stack.enter_context(progress.drawn(status))
      show = status.update
    text, since = 'estimating', time.monotonic()

    def repeat() -> None:
      show(f'{text}: {time.monotonic() - since:.0f} s so far')

    def note(new: str) -> None:
      nonlocal text, since
      text, since = new, time.monotonic()
      show(new)
      anew()

    anew = stack.enter_context(progress.every(_EVERY_SECONDS, repeat))
    yield note


def _name(argv: list[str]) -> str:
  """The config as the command line names it."""
  for flag, value in zip(argv, [*argv[1:], ''], strict=True):
    if flag == '--config' or flag.startswith('--config='):
      return flag.partition('=')[2] or value
  return ''


def _config_words(argv: list[str]) -> list[str]:
  """The words of the command line that name the config and change it."""
  found, takes = [], False
  for word in argv:
    name = word.lstrip('-').partition('=')[0].removeprefix('no')
    is_flag = word.startswith('-') and (name == 'config' or name.startswith('config.'))
    if is_flag or (takes and not word.startswith('--')):
      found.append(word)
    takes = is_flag and '=' not in word
  return found
