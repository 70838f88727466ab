# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`gpt-jax plan`, from its flags to its figures."""

import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

from configs import electra
from gpt_jax.__main__ import main
from gpt_jax.commands import plan as plan_command
from gpt_jax.core import config as config_lib
from gpt_jax.core.config import loading
from gpt_jax.core.costs import flops, topologies
from gpt_jax.core.costs.chips import GIB
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.transformer import parameter_shapes
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.runtime import tables
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import device_check, parts
from gpt_jax.core.training.compiled import TooLarge
from gpt_jax.planning import compile as compile_lib
from gpt_jax.planning import layouts, ledger, report, schedule, search
from gpt_jax.planning.search import SearchRequest
from tests.support import tiny, tpu

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def found():
  """What the two plans of the script give."""
  # Those of `conftest` are for the CPU's compiler.
  env = {name: x for name, x in os.environ.items() if name != 'XLA_FLAGS'}
  done = subprocess.run(
    [sys.executable, str(ROOT / 'tests/support/plan_for_tpu.py')],
    env=env,
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  # Of the last plan, which does not fit.
  assert done.returncode == 1, done.stderr[-3000:]
  return [json.loads(line) for line in done.stdout.splitlines()]


# Changes of `tiny`, and a part of what is said of them, on eight devices.
MESHES = [
  ({'mesh.data': 8, 'mesh.fsdp': 1}, ''),
  ({'mesh.fsdp': 8}, 'mesh.rules.embed'),
  ({'mesh.data': 3, 'mesh.fsdp': 1}, 'mesh'),
  ({'mesh.fsdp': 16}, 'mesh'),
  ({'mesh.fsdp': 1, 'mesh.tensor': 8}, 'mesh'),
  ({'mesh.data': 4, 'mesh.fsdp': 1, 'mesh.stage': 2}, 'mesh.stage=2'),
  ({'mesh.data': 2, 'mesh.fsdp': 1, 'mesh.context': 4}, 'mesh.context=4'),
  # Rows are padded.
  ({'mesh.data': 8, 'mesh.fsdp': 1, 'batch.size': 12}, ''),
  (
    {
      **{'mesh.data': 2, 'mesh.fsdp': 1, 'mesh.expert': 4},
      'model.ffn': "switch(num_experts=6, expert='relu')",
    },
    '6 experts',
  ),
]


@pytest.mark.tpu
def test_plan_and_train_refuse_the_same_meshes_with_the_same_words():
  changes = [x for x, _ in MESHES]
  planned = tpu.compiled('meshes', json.dumps(changes))
  for (overrides, part), of_plan in zip(MESHES, planned, strict=True):
    try:
      config = config_lib.resolve(tiny.config(**overrides))
      parts.build(config, device_check.check_devices(config))
      of_train = ''
    except UsageError as e:
      of_train = str(e)
    assert of_plan == of_train
    assert part in of_plan and bool(part) == bool(of_plan)


@pytest.mark.tpu
def test_a_plan_that_fits(found):
  plan = found[0]
  assert plan['fits']
  assert (plan['topology'], plan['slices'], plan['chips']) == ('v5e:2x2', 2, 8)
  assert plan['mesh']['data'] % 2 == 0  # over the slices
  small, large = plan['stages']
  assert (small['rows'], large['rows'], large['start']) == (16, 32, 6)
  assert (small['row_tokens'], large['row_tokens']) == (128, 256)
  for stage in plan['stages']:
    hbm = stage['hbm']
    parts = ('parameters', 'optimizer', 'activations', 'temporaries')
    assert sum(hbm[name] for name in parts) == pytest.approx(hbm['peak'])
    assert 0 < hbm['peak'] < hbm['limit'] == 15.75 * 2**30
    assert hbm['activations'] > 0 and hbm['temporaries'] > 0
    # The first moment and the second, in float32 as the parameters.
    assert hbm['optimizer'] == pytest.approx(2 * hbm['parameters'], rel=1e-3)
    # 4 layers: four matrices of 128 x 128 and two of 128 x 512, and the table.
    length, width = stage['row_tokens'], 128
    tokens = stage['rows'] * length
    matmul = 4 * (4 + 8) * width**2 + 512 * width
    model = tokens * (6 * matmul + 12 * 4 * width * length)
    assert stage['flops']['model'] == model
    assert 0.95 < stage['flops']['ratio'] < 1.4
    assert stage['flops']['kernels']  # splash attention
    assert stage['traffic']['data']['dcn'] > 0
    assert stage['mfu'] == pytest.approx(model / stage['time'] / (8 * 197e12))
    seen = model - tokens * 12 * 4 * width * (length - 1) / 2
    causal = seen / stage['time'] / (8 * 197e12)
    assert stage['mfu_causal'] == pytest.approx(causal)
  # 6 steps of 16 rows and 4 of 32, these of twice the length.
  assert plan['run']['tokens'] == 6 * 16 * 128 + 4 * 32 * 256
  seconds = 6 * small['time'] + 4 * large['time']
  assert plan['run']['days'] == pytest.approx(seconds / 86_400)
  assert plan['run']['chip_hours'] == pytest.approx(8 * seconds / 3600)
  # So small a model is like no published run.
  assert plan['estimate_error'] is None and plan['assumptions']


@pytest.mark.tpu
def test_a_plan_that_does_not_fit(found):
  """Mesh, rows and rematerialisation are all given: nothing is left to try."""
  plan = found[1]
  assert not plan['fits']
  assert plan['needed'] > plan['limit'] == 15.75 * 2**30
  assert (plan['rows'], plan['tried'], plan['remedy']) == (131_072, 0, None)
  assert plan['kept'] == ['batch.micro_rows', 'model.remat']
  # Two chips have room for half of the rows by no means. The stages of four
  # compute few of their rows at a time (12.1 GiB, compiled).
  assert plan['larger'] == 'v5e:2x2'


@pytest.mark.parametrize(
  'needs, given, expected',
  [
    ({'model.remat': 'full'}, {}, {'model.remat': 'full'}),
    (
      {'model.remat': 'full', 'batch.micro_rows': 4},
      {},
      {'model.remat': 'full', 'batch.micro_rows': 4},
    ),
    ({'batch.micro_rows': 2}, {'remat': False}, {'model.remat': 'none', 'batch.micro_rows': 2}),
    ({'model.remat': 'full'}, {'remat': False}, None),
  ],
)
def test_the_smallest_change(monkeypatch, needs, given, expected):
  """Of a compiler that wants `needs`: less kept, then fewer rows at a time."""
  config = config_lib.resolve(
    tiny.config(**{**tiny.MESHABLE, 'batch.size': 32, 'batch.micro_rows': 0})
  )
  request = SearchRequest(config, topologies.parse('v5e:2x2'), **{'micro': True, **given})

  def compile_plan(request, changes, note, *, last_only):
    fields = config_lib.flatten(layouts.apply(request.config, changes))
    if any(fields[field] != value for field, value in needs.items()):
      raise TooLarge(Shape(32, 128), 2.0, 1.0)
    return changes

  monkeypatch.setattr(search, 'compile_plan', compile_plan)
  notes = []
  found = search.smallest_change(request, TooLarge(Shape(32, 128), 2.0, 1.0), notes.append)
  assert found.row_tokens == 128
  assert (found.rows, found.needed, found.limit) == (32, 2.0, 1.0)
  suggestion = found.suggestion
  if expected is not None:
    expected = search.shown(config, expected)
  assert suggestion == expected
  assert len(notes) == found.tried


def test_another_mesh_takes_the_place_of_the_one_that_was_taken(monkeypatch):
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE))
  slices = topologies.parse('v5e:2x4')
  request = SearchRequest(config, slices, mesh=True, micro=True)
  taken = {'mesh.data': 8, 'mesh.fsdp': 1}
  found = layouts.candidates(config, slices, micro=True)
  fsdp = [layout for layout in found if layout.sizes['data'] == 1]
  monkeypatch.setattr(layouts, 'candidates', lambda *args, **given: fsdp)
  meshes = set()
  easier = search._easier(request, taken)
  for changes in [*easier]:
    changed = layouts.apply(config, {**taken, **changes})
    sizes = layouts.mesh_of(changed, slices)
    assert math.prod(sizes.values()) == 8
    meshes.add(str(sizes))
  assert len(meshes) > 1


def a_plan(request, changes, time):
  """A plan whose step takes `time` seconds, with the figures that are shown."""
  stage = compile_lib.StageTimes(
    0,
    16,
    64,
    1,
    1024,
    30.0,
    compile_lib.Hbm(1.0 * GIB, 2.0 * GIB, 1.0, 2.0, 3.0, 4.0, 0.0),
    compile_lib.StepFlops(1e9, 1e9, 1e9, {}, ()),
    {},
    (0.0, 0.0),
    (),
    (),
    0.0,
    time,
    {'products': time, 'vector': 0.0, 'memory': 0.0, 'ici': 0.0, 'dcn': 0.0},
    'products',
    0.4,
    0.3,
    'dense, small',
    ledger.Band(0.17, '±17%, the worst of 13 published runs of its kind (dense, small)'),
    (),
    (schedule.Work(1e12), schedule.Work(7.0)),
  )
  whole = compile_lib.Whole(1000, 10, 2.0, 100.0, 0.4, 0.3)
  config = layouts.apply(request.config, changes)
  return search.FittingPlan(config, request.slices, changes, [stage], whole)


@pytest.mark.parametrize(
  ('seconds', 'taken', 'said'),
  [(1.0, True, ''), (4.0, False, 'estimated to take 100% longer'), (None, False, 'needs 2')],
)
def test_what_the_cost_model_expects_to_be_faster_is_compiled(
  monkeypatch, caplog, seconds, taken, said
):
  """Everything is recomputed, and need not be: the better of two is taken."""
  config = report.load_config(ROOT, 'configs/gpt2.py:small', {'model.remat': 'full'})
  request = SearchRequest(config, topologies.parse('v5e:2x4'), mesh=True, micro=True)
  compiled = []

  def compile_plan(request, changes, note, *, last_only):
    compiled.append(layouts.apply(request.config, changes).model.remat)
    if compiled[-1] == 'full':
      return a_plan(request, changes, 2.0)
    if seconds is None:
      raise TooLarge(Shape(16, 7), 2.0 * GIB, 1.0 * GIB)
    return a_plan(request, changes, seconds)

  monkeypatch.setattr(search, 'compile_plan', compile_plan)
  first, notes = search.make(request, print), []
  with caplog.at_level('INFO', 'gpt_jax'):
    found = search.better(request, first, notes.append)
  assert compiled[0] == 'full' and 'full' not in compiled[1:] != []
  assert isinstance(found, search.FittingPlan)
  assert '--config.model.remat=' in notes[0] and 'more speed' in notes[0]
  assert said in caplog.text
  if not taken:
    assert found is first
    return
  # Its changes are to the config that was asked for.
  assert found.changes['model.remat'] == compiled[1]
  assert found.beaten is first
  assert report.to_json('x', found)['beaten']['seconds'] == 2.0
  # What does not fit as it is gets the faster change, too.
  misfit = search.Misfit(config, request.slices, {}, 16, 7, 2.0, 1.0, first, 1, (), None)
  changed = search.better(request, misfit, notes.append)
  assert isinstance(changed, search.Misfit)
  assert changed.suggestion is not None
  assert changed.suggestion.changes == found.changes
  # Nothing is compiled where the fields were given, or it gains nothing.
  del compiled[:]
  best = layouts.apply(config, {'model.remat': found.config.model.remat})
  for closed in (
    request._replace(remat=False),
    request._replace(mesh=False),
    request._replace(config=best),
  ):
    assert search.better(closed, first, notes.append) is first
  assert compiled == []


@pytest.fixture
def planned(monkeypatch):
  """Runs `plan`, whose plan or search is given, without a compiler."""

  def run(found, *flags):
    def make(request, note, **_):
      return found(request)

    monkeypatch.setattr(search, 'make', make)
    monkeypatch.setattr(search, 'search', make)
    monkeypatch.setattr(search, 'better', lambda request, found, note, **_: found)
    monkeypatch.setattr(compile_lib, 'use_cpu', lambda: None)
    return main(['plan', '--config=configs/gpt2.py:small', *flags])

  return run


def test_the_answer_comes_first_in_five_lines(planned, capsys):
  flags = ['--topology=v5e-8', '--config.seed', '3', '--config.mesh.fsdp=8', '--last_stage']
  assert planned(lambda request: a_plan(request, {'model.remat': 'full'}, 0.25), *flags) == 0
  fits, step, mfu, cost, launch, *table = capsys.readouterr().out.splitlines()
  assert fits == (
    'fits: configs/gpt2.py:small on v5e:2x4 (v5litepod-8, 8 chips, 1 host): '
    '1.00 of 2.00 GiB a chip, 1.00 free'
  )
  assert step == (
    'step: 0.25 s for 16 rows of 64 tokens, 4,096 tokens/s (estimated); '
    '10 steps and 1,000 tokens: 2 days'
  )
  assert (
    mfu
    == 'MFU: 40.0% (30.0% causal), ±17%, the worst of 13 published runs of its kind (dense, small)'
  )
  assert cost.startswith('cost: about $120 for 100 chip-hours (v5e: $1.20 a chip-hour')
  # With what was given, and what was chosen; one host needs no other.
  assert launch == (
    'launch (launch/tpu.sh: ACCELERATOR=v5litepod-8): gpt-jax train '
    '--config=configs/gpt2.py:small --config.seed 3 --config.mesh.fsdp=8 '
    '--config.model.remat=full --workdir W'
  )
  assert table[0].startswith('mesh ') and 'remat full' in table[0]
  # Rows that say nothing are left out, and so is what --why shows.
  rows = [line.split('  ')[0] for line in table]
  assert '- matrix units' in rows and '- vector units' not in rows
  assert not any('Assumed' in line for line in table) and '--why' in table[-1]


def test_why_shows_the_rest(planned, capsys):
  assert planned(lambda request: a_plan(request, {}, 0.25), '--topology=v5e-8', '--why') == 0
  out = capsys.readouterr().out
  for said in ('Assumed:', 'compiled / model', 'GiB that a chip sends'):
    assert said in out
  assert '--why' not in out


@pytest.mark.parametrize(
  'topology, slices, said',
  [
    ('v4-32', 1, 'launch (on each of 4 hosts; launch/tpu.sh: ACCELERATOR=v4-32): '),
    ('v5p:4x4x16', 2, 'launch/gke.sh: ACCELERATOR=v5p-512 TOPOLOGY=4x4x16 SLICES=2): '),
    ('tpu7x-128', 1, 'launch (on each of 16 hosts; launch/tpu.sh: ACCELERATOR=tpu7x-128): '),
  ],
)
def test_how_to_launch(planned, capsys, topology, slices, said):
  flags = [f'--topology={topology}', f'--slices={slices}']
  assert planned(lambda request: a_plan(request, {}, 0.25), *flags) == 0
  lines = capsys.readouterr().out.splitlines()
  assert said in lines[4] and lines[4].endswith(' --workdir W --distributed')
  if topology.startswith('tpu7x'):
    assert lines[3].startswith('cost: 100 chip-hours (tpu7x: no price is known here')


def test_what_does_not_fit_says_by_how_much(planned, capsys):
  def misfit(request):
    small = a_plan(request, {'model.remat': 'full'}, 2.0)
    fields = ({}, 16, 7, 64.0 * GIB, 30.75 * GIB, small, 1, (), None)
    return search.Misfit(request.config, request.slices, *fields)

  assert planned(misfit, '--topology=v4-8') == 1
  first, second, *_ = capsys.readouterr().out.splitlines()
  assert first == (
    'does not fit: configs/gpt2.py:small on v4:2x2x1: the step of 16 rows of 7 tokens needs '
    '64.0 of 30.75 GiB a chip, 33.2 too many; smallest change that fits: '
    '--config.model.remat=full (1.0 GiB)'
  )
  assert second.startswith('fits: ')


def test_a_search_answers_first_too(planned, capsys):
  def found(request):
    plans = [a_plan(request, {'mesh.fsdp': n}, n) for n in (4, 8)]
    return search.Found(plans, 3, '')

  assert planned(found, '--topology=v5e-8', '--search') == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].startswith('fits: ') and '--config.mesh.fsdp=4 --workdir W' in lines[4]
  assert 'Compiled; 3 others do not compile or do not fit' in lines[5]
  nothing = search.Found([], 0, 'no layout is estimated to fit; take v5e:4x4')
  assert planned(lambda request: nothing, '--topology=v5e-8', '--search') == 1
  out, _ = capsys.readouterr()
  assert 'does not fit: configs/gpt2.py:small on v5e:2x4: no layout is estimated' in out


@pytest.mark.parametrize('flags, said', [([], ''), (['--json'], '"plans": []')])
def test_a_search_that_finds_nothing_ends_with_1(monkeypatch, capsys, flags, said):
  """LLaMA 65B on one host: nothing is worth compiling."""
  monkeypatch.setattr(compile_lib, 'use_cpu', lambda: None)
  given = ['--config=configs/llama.py:65b', '--config.model.vocab_size=32000']
  assert main(['plan', *given, '--topology=v5e-4', '--search', *flags]) == 1
  out, error = capsys.readouterr()
  assert said in out and 'Traceback' not in error
  if not flags:
    assert re.search(r'no layout is estimated to fit; take v5e:\d+x\d+$', out.strip())


OUTCOMES = {
  'v5e:2x4': lambda request: a_plan(request, {}, 1.0),
  'v4:2x2x1': lambda request: search.Misfit(
    request.config,
    request.slices,
    {},
    16,
    7,
    64.0 * GIB,
    30.75 * GIB,
    a_plan(request, {'model.remat': 'full'}, 2.0),
    1,
    (),
    None,
  ),
  'v6e:2x2': 'mesh.fsdp: does not divide',
  'tpu7x:2x2x1': lambda request: a_plan(request, {}, 3.0),
}


@pytest.fixture
def compare(monkeypatch):
  """Runs `plan` on the slices of `OUTCOMES`, without a compiler."""

  def plan(args, request, note):
    found = OUTCOMES[request.slices.name]
    if isinstance(found, str):
      raise UsageError(found)
    return found(request)

  monkeypatch.setattr(plan_command, '_plan', plan)
  monkeypatch.setattr(compile_lib, 'use_cpu', lambda: None)
  return lambda *flags: main(['plan', '--config=configs/gpt2.py:small', *flags])


@pytest.mark.slow
def test_several_slices_are_compared(compare, capsys):
  # The second name is that of the first.
  flags = ['--topology=v5e:2x4,v5litepod-8, v4-8', '--topology=v6e-4,tpu7x-8']
  assert compare(*flags) == 0
  out = capsys.readouterr().out
  rows = {name: [line for line in out.splitlines() if line.startswith(name)] for name in OUTCOMES}
  # 100 chip-hours, at $1.20 and $3.22.
  assert rows['v5e:2x4'][0].split()[1:3] == ['8', 'yes']
  assert rows['v5e:2x4'][0].split()[-2:] == ['2', '120']
  assert 'as it is, needs 64.0 of 30.75 GiB' in rows['v4:2x2x1'][0]
  assert rows['v4:2x2x1'][0].split()[-1] == '322'
  assert rows['v4:2x2x1'][1].endswith(': --config.model.remat=full')
  assert rows['v6e:2x2'][0].split()[1:3] == ['4', 'no']
  assert rows['v6e:2x2'][1].endswith(': mesh.fsdp: does not divide')
  assert rows['tpu7x:2x2x1'][0].split()[-1] == '-'
  assert out.startswith('fits 2 of 4; fastest: v5e:2x4, 2 days; cheapest: v5e:2x4, $120\n')
  # What holds for all is said once.
  assert 'v5e: $1.20, v4: $3.22, v6e: $2.70 a chip-hour on demand in' in out
  assert out.count('yours to check') == 1
  assert out.count('±17%') == 1
  assert 'tpu7x: no price is known here' in out
  assert compare('--json', *flags) == 0
  plans = json.loads(capsys.readouterr().out)
  assert [plan['topology'] for plan in plans] == [*OUTCOMES]
  assert [plan['fits'] for plan in plans] == [True, False, False, True]
  assert [plan.get('why') for plan in plans][2] == 'mesh.fsdp: does not divide'
  assert plans[0]['run']['dollars'] == pytest.approx(120)
  assert plans[0]['price']['dollars_per_chip_hour'] == 1.2
  assert plans[3]['run']['dollars'] is None


def test_several_slices_none_of_which_fits(compare, capsys):
  assert compare('--topology=v4-8,v6e-4') == 1
  assert 'needs 64.0' in capsys.readouterr().out


def test_what_takes_long_is_said_again(monkeypatch, caplog):
  monkeypatch.setattr(plan_command, '_EVERY_SECONDS', 0.1)

  def wait_for(line, times=1):
    while sum(bool(re.fullmatch(line, x)) for x in caplog.messages) < times:
      time.sleep(0.01)

  with caplog.at_level('INFO', 'gpt_jax'), plan_command._progress() as note:
    wait_for(r'estimating: \d+ s so far')
    note('compiling')
    wait_for('compiling')
    wait_for(r'compiling: \d+ s so far', times=2)


def test_how_long_compilations_took(monkeypatch):
  monkeypatch.setattr(compile_lib, 'seconds', [])
  assert 'most take a minute or two' in compile_lib.so_far()
  compile_lib.seconds.append(41.3)
  assert compile_lib.so_far() == 'the one before took 41 s'
  compile_lib.seconds.append(102.0)
  assert compile_lib.so_far() == 'the 2 before took 41 to 102 s'


@pytest.mark.parametrize(
  ('ffn', 'changes'),
  [
    ('gelu', {}),
    ("switch(num_experts=4, expert='swiglu', top_k=2)", {'model.ffn': 'swiglu', 'model.d_ff': 62}),
    ('gelu, switch(num_experts=4)', {'model.ffn': 'gelu, relu', 'model.d_ff': 31}),
    # All layers have one width.
    ('gelu, switch(num_experts=4, top_k=2)', {}),
    ('switch(num_experts=4), switch(num_experts=4, top_k=2)', {}),
  ],
)
def test_a_dense_model_has_the_flops_of_the_chosen_experts(ffn, changes):
  fields = {'model.ffn': ffn, 'model.d_ff': 31, 'model.num_layers': 4}
  fields |= {'mesh.fsdp': 3, 'mesh.expert': 4}
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE | fields))
  found = search.without_experts(config)
  assert found == (changes and {**changes, 'mesh.fsdp': 12, 'mesh.expert': 1})
  if changes:
    dense = layouts.apply(config, found | {'mesh.fsdp': 1})
    # But for the router's own products.
    experts, alone = (
      flops.per_token(x, parameter_shapes(tiny.model(**x.model.to_dict()))) for x in (config, dense)
    )
    assert alone <= experts <= 1.1 * alone


def test_experts_are_shown_beside_a_dense_model(capsys):
  request = SearchRequest(
    report.load_config(ROOT, 'configs/gpt2.py:small', {}), topologies.parse('v5e-8')
  )
  table = report.beside_dense(a_plan(request, {}, 0.75), a_plan(request, {'model.d_ff': 7}, 0.5))
  tables.console().print(table)
  text = capsys.readouterr().out
  assert 'model.d_ff=7' in text and 'seconds (estimated)' in text and '+50%' in text


def test_flags_of_libtpu():
  found = compile_lib.parse_flags('--xla_a=true xla_b=16 ')
  assert found == {'xla_a': 'true', 'xla_b': '16'}
  assert compile_lib.parse_flags('') == {}


def test_search_ranks_what_fits(monkeypatch):
  """By time; what does not fit is counted; no more compiles than asked for."""
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE))
  request = SearchRequest(config, topologies.parse('v5e:2x4'), mesh=True, micro=True)
  compiled = []

  def compile_plan(request, changes, note, *, last_only):
    config = layouts.apply(request.config, changes)
    compiled.append(config_lib.flatten(config))
    if config.model.remat == 'none':
      raise TooLarge(Shape(16, 7), 2.0, 1.0)
    time = 1.0 + config.mesh.tensor - 0.1 * len(compiled)
    return a_plan(request, changes, time)

  monkeypatch.setattr(search, 'compile_plan', compile_plan)
  # Nothing is compiled for TPU: its compiler need not be here.
  monkeypatch.setattr(search.compile_lib, 'use_cpu', lambda: None)
  notes = []
  found, misfits, _ = search.search(request, notes.append, most=9)
  assert len(compiled) == 9 == len(found) + misfits
  assert misfits and len(found) > 1
  times = [plan.last.time for plan in found]
  assert times == sorted(times)
  seen = {str(sorted(fields.items(), key=str)) for fields in compiled}
  assert len(seen) == 9
  assert 'trying 1 of 9 (' in notes[0] and 'min left' in notes[-1]


def test_needed_of_the_compilers_errors():
  text = (
    'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required '
    'for HLO temporaries (19.91G) exceeds available HBM (15.75G).'
  )
  assert compiled_lib.out_of_memory(text) == 19.91 * 2**30
  text = (
    'RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory '
    'in memory space hbm. Used 47.07G of 15.75G hbm. Exceeded by 31.32G.'
  )
  assert compiled_lib.out_of_memory(text) == 47.07 * 2**30
  vmem = 'RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom'
  assert compiled_lib.out_of_memory(vmem) is None


def test_the_page_has_the_table(capsys, monkeypatch):
  monkeypatch.chdir(ROOT)
  assert main(['plan', '--table']) == 0
  printed = capsys.readouterr().out.rstrip('\n')
  page = (ROOT / report.PAGE).read_text(encoding='utf-8')
  _, _, rest = page.partition(report.BEGIN)
  assert rest.partition(report.END)[0] == printed


def papers():
  """All decoders of papers: `configs/gpt3.py:175b`."""
  for stem, module in loading.papers().items():
    for size in getattr(module, 'SIZES', ['']):
      model = module.get_config(size).model
      causal = ModelChoices.of(model).causal
      if causal and not model.num_encoder_layers:
        yield f'configs/{stem}.py' + (f':{size}' if size else '')


def test_every_paper_has_a_plan_that_fits():
  entries = report.read(ROOT)
  assert {*papers()} <= {entry['config'] for entry in entries}
  for entry in entries:
    config = report.load_config(ROOT, entry['config'], entry['overrides'])
    # The overrides change how it is trained, and not for how long.
    plain = report.load_config(ROOT, entry['config'], {})
    tokens, asked = (config_lib.ramp(c).tokens(c.schedule.num_steps) for c in (config, plain))
    assert tokens == pytest.approx(asked, rel=1e-3), entry['config']
    slices = topologies.parse(entry['topology'], entry['slices'])
    found = entry.get('found')
    if found:
      assert found['peak_gib'] < slices.chip.hbm / GIB


@pytest.mark.parametrize(
  ('micro', 'remat', 'said'),
  [
    (True, True, r'none of [1-9] changes helps here; take v5e'),
    (False, True, r'helps here; batch\.micro_rows: kept as given'),
    (False, False, r'helps here; batch\.micro_rows, model\.remat: kept as'),
  ],
)
def test_what_was_given_is_said_where_nothing_fits(monkeypatch, capsys, micro, remat, said):
  config = config_lib.resolve(
    tiny.config(**{**tiny.MESHABLE, 'batch.size': 32, 'batch.micro_rows': 0})
  )
  request = SearchRequest(config, topologies.parse('v5e:2x2'), mesh=True, micro=micro, remat=remat)
  error = TooLarge(Shape(32, 128), 2.0 * 2**30, 1.0 * 2**30)

  def compile_plan(*args, **kwargs):
    raise error

  monkeypatch.setattr(search, 'compile_plan', compile_plan)
  monkeypatch.setattr(plan_command, '_request', lambda args, slices: request)
  monkeypatch.setattr(compile_lib, 'use_cpu', lambda: None)
  flags = ['--config=configs/gpt2.py:small', '--topology=v5e:2x2']
  assert main(['plan', *flags]) == 1
  assert re.search(said, capsys.readouterr().out)


def test_a_model_beside_takes_an_override_with_it():
  """Of a config that is not resolved yet, and of one that is."""
  fresh = electra.get_config('small')
  for config in (fresh, config_lib.resolve(fresh)):
    changed = layouts.apply(config, {'model.num_layers': 4})
    assert changed.model.num_layers == 4
    assert changed.models.generator.num_layers == 4
    own = config_lib.resolve(fresh).models.generator
    assert changed.models.generator.d_ff == own.d_ff != changed.model.d_ff


def test_drift_ends_with_1(monkeypatch, capsys):
  def recompile(root, only, note):
    return [f'{only}: peak_gib was 3 and is 4', 'another']

  monkeypatch.setattr(compile_lib, 'use_cpu', lambda: None)
  monkeypatch.setattr(report, 'recompile', recompile)
  assert main(['plan', '--recompile', '--only=gpt2']) == 1
  error = capsys.readouterr().err
  assert 'gpt2: peak_gib was 3 and is 4' in error and 'another' in error


@pytest.mark.slow
def test_plans_that_are_not_what_they_were(monkeypatch, tmp_path):
  """A new one is written down; drift is named, in file and table the new."""
  (tmp_path / 'docs').mkdir()
  (tmp_path / report.PAGE).write_text(f'a\n{report.BEGIN}old{report.END}\nb\n')
  entry = {'config': 'configs/gpt2.py:small', 'topology': 'v5e:2x4', 'slices': 1, 'overrides': {}}
  (tmp_path / report.FILE).write_text(json.dumps([entry]))
  found = {
    'rows': 512,
    'peak_gib': 3.0,
    'limit_gib': 15.75,
    'flops_ratio': 1.2,
    'scattered': 7,
    'reduced': 0,
    'step_seconds': 0.5,
    'mfu': 0.4,
    'mfu_causal': 0.3,
    'days': 2.0,
    'attention': ['encoder full: splash', 'decoder full: flash'],
    'made_with': {'jax': '0.10.2', 'libtpu': '0.0.42.1'},
  }
  config = report.load_config(ROOT, entry['config'], {})
  monkeypatch.setattr(report, 'load_config', lambda root, name, overrides: config)
  asked = []

  def make(request, note, *, last_only):
    asked.append(request)
    return search.FittingPlan(config, request.slices, {'mesh.fsdp': 8}, [], None)

  monkeypatch.setattr(search, 'make', make)
  monkeypatch.setattr(report, '_found', lambda plan: dict(found))
  assert report.recompile(tmp_path, '', print) == []
  (written,) = report.read(tmp_path)
  assert written['found'] == found
  assert written['overrides']['mesh.fsdp'] == 8
  assert asked[0].mesh and asked[0].micro
  found['peak_gib'] = 3.3
  drift = report.recompile(tmp_path, 'gpt2', print)
  assert drift == ['configs/gpt2.py:small on 1 x v5e:2x4: peak_gib was 3 and is 3.3']
  # With the overrides that were written down: nothing is open.
  assert not asked[1].mesh
  text = (tmp_path / report.PAGE).read_text()
  assert text.startswith('a\n') and text.endswith('\nb\n')
  assert '| 3.30 of 15.75 |' in text and 'old' not in text
  assert '0.5 s, 40% (30% causal), 2 |' in text
  assert '| `configs/gpt2.py:small` | encoder full: splash; decoder full: flash |' in text
  with pytest.raises(UsageError, match='--only=palm'):
    report.recompile(tmp_path, 'palm', print)
