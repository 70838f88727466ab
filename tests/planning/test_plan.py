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
import types
from unittest import mock

import pytest

from configs import electra
from gpt_jax import config as config_lib
from gpt_jax.__main__ import main
from gpt_jax.commands import plan as plan_command
from gpt_jax.config import loading
from gpt_jax.costs import topologies
from gpt_jax.costs.chips import GIB
from gpt_jax.nn.build import ModelChoices
from gpt_jax.optim.schedules import Shape
from gpt_jax.planning import compile as compile_lib
from gpt_jax.planning import report, search
from gpt_jax.planning.search import Request
from gpt_jax.spec import UsageError
from gpt_jax.training import compiled as compiled_lib
from gpt_jax.training import device_check, layouts, parts
from gpt_jax.training.compiled import TooLarge
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
    (
      {'batch.micro_rows': 2},
      {'remat': False},
      {'model.remat': 'none', 'batch.micro_rows': 2},
    ),
    ({'model.remat': 'full'}, {'remat': False}, None),
  ],
)
def test_the_smallest_change(monkeypatch, needs, given, expected):
  """Of a compiler that wants `needs`: less kept, then fewer rows at a time."""
  config = config_lib.resolve(
    tiny.config(**{**tiny.MESHABLE, 'batch.size': 32, 'batch.micro_rows': 0})
  )
  request = Request(
    config, topologies.parse('v5e:2x2'), **{'micro': True, **given}
  )

  def compile_plan(request, changes, note, *, last_only):
    fields = config_lib.flatten(layouts.apply(request.config, changes))
    if any(fields[field] != value for field, value in needs.items()):
      raise TooLarge(Shape(32, 128), 2.0, 1.0)
    return changes

  monkeypatch.setattr(search, 'compile_plan', compile_plan)
  notes = []
  found = search.smallest_change(
    request, TooLarge(Shape(32, 128), 2.0, 1.0), notes.append
  )
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
  request = Request(config, slices, mesh=True, micro=True)
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


def test_a_search_is_offered_where_it_gains():
  """By the cost model: everything is recomputed, and need not be."""
  config = report.load_config(
    ROOT, 'configs/gpt2.py:small', {'model.remat': 'full'}
  )
  slices = topologies.parse('v5e:2x4')
  request = Request(config, slices, mesh=True, micro=True)

  def offered(request, **more):
    changes = {**search.open_changes(request), **more}
    config = layouts.apply(request.config, changes)
    plan = search.Plan(config, slices, changes, [], mock.sentinel.whole)
    return search.faster(request, plan)

  line = offered(request)
  assert line and '--search' in line and '--config.model.remat=' in line
  (remat,) = re.findall(r'model\.remat=(\w+)', line)
  assert remat != 'full'
  best = layouts.apply(config, {'model.remat': remat})
  assert offered(request._replace(config=best)) is None
  # Where rematerialisation was given, it is not searched for.
  assert offered(request._replace(remat=False)) is None


def test_flags_of_libtpu():
  found = compile_lib.parse_flags('--xla_a=true xla_b=16 ')
  assert found == {'xla_a': 'true', 'xla_b': '16'}
  assert compile_lib.parse_flags('') == {}


def test_search_ranks_what_fits(monkeypatch):
  """By time; what does not fit is counted; no more compiles than asked for."""
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE))
  request = Request(config, topologies.parse('v5e:2x4'), mesh=True, micro=True)
  compiled = []

  def compile_plan(request, changes, note, *, last_only):
    config = layouts.apply(request.config, changes)
    compiled.append(config_lib.flatten(config))
    if config.model.remat == 'none':
      raise TooLarge(Shape(16, 7), 2.0, 1.0)
    time = 1.0 + config.mesh.tensor - 0.1 * len(compiled)
    stage = types.SimpleNamespace(time=time, tokens=7)
    return types.SimpleNamespace(last=stage, changes=changes)

  monkeypatch.setattr(search, 'compile_plan', compile_plan)
  # Nothing is compiled for TPU: its compiler need not be here.
  monkeypatch.setattr(search.compile_lib, 'use_cpu', lambda: None)
  notes = []
  found, misfits = search.search(request, notes.append, most=9)
  assert len(compiled) == 9 == len(found) + misfits
  assert misfits and len(found) > 1
  times = [plan.last.time for plan in found]
  assert times == sorted(times)
  seen = {str(sorted(fields.items(), key=str)) for fields in compiled}
  assert len(seen) == 9
  assert 'trying 1 of 9: ' in notes[0] and 'min left' in notes[-1]


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
    tokens, asked = (
      config_lib.ramp(c).tokens(c.schedule.num_steps) for c in (config, plain)
    )
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
def test_what_was_given_is_said_where_nothing_fits(
  monkeypatch, capsys, micro, remat, said
):
  config = config_lib.resolve(
    tiny.config(**{**tiny.MESHABLE, 'batch.size': 32, 'batch.micro_rows': 0})
  )
  request = Request(
    config, topologies.parse('v5e:2x2'), mesh=True, micro=micro, remat=remat
  )
  error = TooLarge(Shape(32, 128), 2.0 * 2**30, 1.0 * 2**30)

  def compile_plan(*args, **kwargs):
    raise error

  monkeypatch.setattr(search, 'compile_plan', compile_plan)
  monkeypatch.setattr(plan_command, '_request', lambda args, slices: request)
  monkeypatch.setattr(compile_lib, 'use_cpu', lambda: None)
  flags = ['--config=configs/gpt2.py:small', '--topology=v5e:2x2']
  with pytest.raises(SystemExit) as e:
    main(['plan', *flags])
  assert e.value.code == 1
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
  with pytest.raises(SystemExit) as e:
    main(['plan', '--recompile', '--only=gpt2'])
  assert e.value.code == 1
  error = capsys.readouterr().err
  assert 'gpt2: peak_gib was 3 and is 4' in error and 'another' in error


@pytest.mark.slow
def test_plans_that_are_not_what_they_were(monkeypatch, tmp_path):
  """A new one is written down; drift is named, in file and table the new."""
  (tmp_path / 'docs').mkdir()
  (tmp_path / report.PAGE).write_text(f'a\n{report.BEGIN}old{report.END}\nb\n')
  entry = {
    'config': 'configs/gpt2.py:small',
    'topology': 'v5e:2x4',
    'slices': 1,
    'overrides': {},
    'before': {'step_seconds': 2.0, 'mfu': 0.1, 'mfu_causal': 0.1},
  }
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
  }
  config = report.load_config(ROOT, entry['config'], {})
  monkeypatch.setattr(
    report, 'load_config', lambda root, name, overrides: config
  )
  asked = []

  def make(request, note, *, last_only):
    asked.append(request)
    return search.Plan(config, request.slices, {'mesh.fsdp': 8}, [], None)

  monkeypatch.setattr(search, 'make', make)
  monkeypatch.setattr(report, '_found', lambda plan: dict(found))
  assert report.recompile(tmp_path, '', print) == []
  (written,) = report.read(tmp_path)
  assert written['found'] == found
  assert written['overrides']['mesh.fsdp'] == 8
  assert asked[0].mesh and asked[0].micro
  found['peak_gib'] = 3.3
  drift = report.recompile(tmp_path, 'gpt2', print)
  assert drift == [
    'configs/gpt2.py:small on 1 x v5e:2x4: peak_gib was 3 and is 3.3'
  ]
  # With the overrides that were written down: nothing is open.
  assert not asked[1].mesh
  text = (tmp_path / report.PAGE).read_text()
  assert text.startswith('a\n') and text.endswith('\nb\n')
  assert '| 3.30 of 15.75 |' in text and 'old' not in text
  assert '0.5 s, 40% (30% causal), 2 |' in text
  changed = '3.30 | 2 s, now 0.5 s | 10%, now 40% (30% causal) |'
  assert f'| encoder full: splash; decoder full: flash | {changed}' in text
  assert written['before'] == entry['before']
  with pytest.raises(UsageError, match='--only=palm'):
    report.recompile(tmp_path, 'palm', print)
