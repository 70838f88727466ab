# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reading compiled programs: small ones by hand, and real ones for a CPU."""

import functools
import itertools
import json
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gpt_jax.core.costs import topologies
from gpt_jax.planning import collectives, hlo, ledger, op_costs, schedule
from gpt_jax.planning.op_costs import Work
from gpt_jax.planning.schedule import Fetch, Loop, Send, Wait
from tests.support import tiny

# A loop of 7 trips in one of 3; a product in a fusion; what a TPU's text has:
# layouts with parentheses, lines broken inside, unsigned counters.
NESTED = """\
HloModule nested, is_scheduled=true, num_partitions=16

%product (a.1: bf16[5,11], b.1: bf16[11,13]) -> bf16[5,13] {
  %a.1 = bf16[5,11]{1,0:T(8,128)(2,1)} parameter(0)
  %b.1 = bf16[11,13]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %d = bf16[5,13]{1,0:T(8,128)} dot(%a.1, %b.1), \
lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%plus (n.1: u32[]) -> u32[] {
  %n.1 = u32[] parameter(0)
  %two = u32[] constant(2)
  ROOT %more = u32[]{:T(128)} add(%n.1, %two)
}, execution_thread="sparsecore"

%body (p.1: (u32[], bf16[5,11], bf16[11,13])) -> (u32[], bf16[5,11]) {
  %p.1 = (u32[]{:T(128)}, bf16[5,11]{1,0}, bf16[11,13]{1,0}) parameter(0)
  %i = u32[]{:T(128)} get-tuple-element(%p.1), index=0
  %x = bf16[5,11]{1,0} get-tuple-element(%p.1), index=1
  %w = bf16[11,13]{1,0} get-tuple-element(%p.1), index=2
  %f = bf16[5,13]{1,0} fusion(%x, %w), kind=kOutput, calls=%product, \
frontend_attributes={kernel_metadata={
"text": "{1}"
}}, metadata={op_name="jit(f)/dot_general"}
  %j = u32[] fusion(%i), kind=kLoop, calls=%plus
  ROOT %t = (u32[], bf16[5,11]{1,0}, bf16[11,13]{1,0}) tuple(%j, %x, %w)
}

%until (p.2: (u32[], bf16[5,11], bf16[11,13])) -> pred[] {
  %p.2 = (u32[], bf16[5,11]{1,0}, bf16[11,13]{1,0}) parameter(0)
  %k = u32[] get-tuple-element(%p.2), index=0
  %end = u32[] constant(16)
  ROOT %less = pred[] compare(%k, %end), direction=LE
}

%outer (p.3: (s32[], bf16[5,11], bf16[11,13])) -> (s32[], bf16[5,11]) {
  %p.3 = (s32[], bf16[5,11]{1,0}, bf16[11,13]{1,0}) parameter(0)
  %i.3 = s32[] get-tuple-element(%p.3), index=0
  %x.3 = bf16[5,11]{1,0} get-tuple-element(%p.3), index=1
  %w.3 = bf16[11,13]{1,0} get-tuple-element(%p.3), index=2
  %three = u32[] constant(3)
  %copy = u32[] copy(%three)
  %in = (u32[], bf16[5,11]{1,0}, bf16[11,13]{1,0}) tuple(%copy, %x.3, %w.3)
  %inner = (u32[], bf16[5,11]{1,0}, /*index=2*/bf16[11,13]{1,0}) \
while(%in), condition=%until, body=%body
  %one = s32[] constant(1)
  %next = s32[] add(%i.3, %one)
  ROOT %t.3 = (s32[], bf16[5,11]{1,0}, bf16[11,13]{1,0}) \
tuple(%next, %x.3, %w.3)
}

%outer_until (p.4: (s32[], bf16[5,11], bf16[11,13])) -> pred[] {
  %p.4 = (s32[], bf16[5,11]{1,0}, bf16[11,13]{1,0}) parameter(0)
  %k.4 = s32[] get-tuple-element(%p.4), index=0
  %end.4 = s32[] constant(3)
  ROOT %less.4 = pred[] compare(%k.4, %end.4), direction=LT
}

ENTRY %main (x: bf16[5,11], w: bf16[11,13], n: s32[]) -> bf16[5,11] {
  %x.5 = bf16[5,11]{1,0} parameter(0)
  %w.5 = bf16[11,13]{1,0} parameter(1)
  %n.5 = s32[] parameter(2)
  %zero = s32[] FIRST
  %start = (s32[], bf16[5,11]{1,0}, bf16[11,13]{1,0}) tuple(%zero, %x.5, %w.5)
  %loop = (s32[], bf16[5,11]{1,0}, bf16[11,13]{1,0}) while(%start), \
condition=%outer_until, body=%outer
  ROOT %out = bf16[5,11]{1,0} get-tuple-element(%loop), index=1
}
"""
ONCE = 2 * 5 * 11 * 13


def test_loops_multiply():
  program = hlo.parse(NESTED.replace('FIRST', 'constant(0)'))
  found = op_costs.count(program)
  assert found.unknown == ()
  # 3, 5, ..., 15 are at most 16: seven.
  assert found.total == 3 * 7 * ONCE


def test_a_loop_whose_trips_depend_on_data_is_named():
  program = hlo.parse(NESTED.replace('FIRST', 'copy(%n.5)'))
  found = op_costs.count(program)
  assert found.unknown == ('loop',)
  assert found.total == 7 * ONCE


def test_a_loop_whose_scope_says_how_often():
  text = NESTED.replace('FIRST', 'copy(%n.5)').replace('body=%outer\n', 'body=%outer, SAID\n')
  said = 'metadata={op_name="jit(step)/runs_2_times/while/body/runs_5_times/while"}'
  found = op_costs.count(hlo.parse(text.replace('SAID', said)))
  assert found.unknown == ()
  assert found.total == 5 * 7 * ONCE


def test_what_is_no_program_is_refused():
  with pytest.raises(ValueError, match='it has no ENTRY'):
    hlo.parse('jit(f) lowered')


@pytest.mark.parametrize(
  'line, flops',
  [
    # Two spatial dimensions, with padding: of a window of 3 the first and the
    # last of 6 positions meet one element less.
    (
      'f32[2,6,6,7]{3,2,1,0} convolution(%x, %w), '
      'window={size=3x1 pad=1_1x0_0}, dim_labels=b01f_01io->b01f',
      2 * 2 * 5 * 7 * (3 * 6 - 2) * 6,
    ),
    # A product of 6 batches, as a TPU's compiler writes it: dilated and strided
    # so that each batch meets its own matrix only.
    (
      'f32[2,6,6,7]{3,2,1,0} convolution(%x, %v), '
      'window={size=1x6 pad=0_0x0_0 stride=1x5 lhs_dilate=1x6}, '
      'dim_labels=b01f_01io->b01f',
      2 * 2 * 5 * 7 * 6 * 6,
    ),
  ],
)
def test_convolutions(line, flops):
  text = f"""\
ENTRY %main (x: f32[2,6,6,5], w: f32[3,1,5,7], v: f32[1,6,5,7]) -> f32[] {{
  %x = f32[2,6,6,5]{{3,2,1,0}} parameter(0)
  %w = f32[3,1,5,7]{{3,2,1,0}} parameter(1)
  %v = f32[1,6,5,7]{{3,2,1,0}} parameter(2)
  ROOT %y = {line}
}}
"""
  assert op_costs.count(hlo.parse(text)).total == flops


def test_a_branch_counts_as_often_as_its_scope_says():
  text = """\
%rare (p.1: (f32[3,5], f32[5,7])) -> f32[3,7] {
  %p.1 = (f32[3,5]{1,0}, f32[5,7]{1,0}) parameter(0)
  %x.1 = f32[3,5]{1,0} get-tuple-element(%p.1), index=0
  %w.1 = f32[5,7]{1,0} get-tuple-element(%p.1), index=1
  ROOT %d = f32[3,7]{1,0} dot(%x.1, %w.1), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
}

%else (p.2: f32[3,7]) -> f32[3,7] {
  ROOT %p.2 = f32[3,7]{1,0} parameter(0)
}

ENTRY %main (n: s32[], both: (f32[3,5], f32[5,7]), y: f32[3,7]) -> f32[3,7] {
  %n = s32[] parameter(0)
  %both = (f32[3,5]{1,0}, f32[5,7]{1,0}) parameter(1)
  %y = f32[3,7]{1,0} parameter(2)
  ROOT %c = f32[3,7]{1,0} conditional(%n, %y, %both), \
branch_computations={%else, %rare}, metadata={op_name="jit(f)/SCOPE/cond"}
}
"""
  product = 2 * 3 * 5 * 7
  for scope, wanted in (('every_11_steps', product / 11), ('any', product)):
    program = hlo.parse(text.replace('SCOPE', scope))
    assert op_costs.count(program).total == pytest.approx(wanted)


def test_counts_and_schedule_are_of_the_same_branch():
  """The one that computes, and not the one that has more lines."""
  text = """\
%computes (p.1: (f32[3,5], f32[5,7])) -> f32[3,7] {
  %p.1 = (f32[3,5]{1,0}, f32[5,7]{1,0}) parameter(0)
  %x.1 = f32[3,5]{1,0} get-tuple-element(%p.1), index=0
  %w.1 = f32[5,7]{1,0} get-tuple-element(%p.1), index=1
  ROOT %d = f32[3,7]{1,0} dot(%x.1, %w.1), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
}

%renames (p.2: f32[3,7]) -> f32[3,7] {
  %p.2 = f32[3,7]{1,0} parameter(0)
  %a = f32[21]{0} bitcast(%p.2)
  %b = f32[7,3]{1,0} bitcast(%a)
  %c.2 = f32[21]{0} bitcast(%b)
  ROOT %e = f32[3,7]{1,0} bitcast(%c.2)
}

ENTRY %main (n: pred[], both: (f32[3,5], f32[5,7]), y: f32[3,7]) -> f32[3,7] {
  %n = pred[] parameter(0)
  %both = (f32[3,5]{1,0}, f32[5,7]{1,0}) parameter(1)
  %y = f32[3,7]{1,0} parameter(2)
  ROOT %c = f32[3,7]{1,0} conditional(%n, %y, %both), \
true_computation=%renames, false_computation=%computes, metadata={op_name="SCOPE"}
}
"""
  slices = topologies.parse('v5e:1x1')
  product = 2 * 3 * 5 * 7
  for scope, share in (('any/cond', 1), ('every_11_steps/cond', 1 / 11)):
    program = hlo.parse(text.replace('SCOPE', scope))
    assert op_costs.count(program).total == pytest.approx(share * product)
    events = schedule.read(program, (), tiny.make_mesh(1, 1, 1), slices, causal=True)
    (event,) = events
    if share < 1:
      assert isinstance(event, Loop) and event.trips == share
      (event,) = event.events
    assert isinstance(event, Work) and event.products >= product


def kernel(name, result, operands, extra=''):
  lines = [f'  %p{i} = {shape} parameter({i})' for i, shape in enumerate(operands)]
  names = ', '.join(f'%p{i}' for i in range(len(operands)))
  return '\n'.join(
    [
      'ENTRY %main (x: f32[]) -> f32[] {',
      *lines,
      f'  ROOT %call.1 = {result} custom-call({names}), '
      f'custom_call_target="tpu_custom_call", metadata={{op_name="jit(f)/{name}'
      f'/pallas_call"}}, backend_config={{{extra}}}',
      '}',
    ]
  )


Q, KV = 'bf16[3,4,64,8]{3,2,1,0}', 'bf16[3,1,96,8]{3,2,1,0}'
ONE = 2 * 3 * 4 * 64 * 96 * 8


@pytest.mark.parametrize(
  'name, result, operands, extra, flops',
  [
    ('splash_mha_fwd_residuals', f'({Q})', ('s8[1,2,2]', Q, KV), '', 2 * ONE),
    ('splash_mha_dkv_no', f'({KV}, {KV})', ('s8[1]', Q, KV, KV), '', 4 * ONE),
    (
      'splash_mha_dkv_no',  # fused: a part of the queries' for each block
      f'(bf16[2,3,4,64,8]{{4,3,2,1,0}}, {KV}, {KV})',
      (Q, KV, KV),
      '',
      5 * ONE,
    ),
    ('splash_mha_dq', f'({Q})', (Q, KV, KV), '', 3 * ONE),
    ('any', 'f32[2]', ('f32[2]',), '"cost_estimate":{"flops":"77"}', 77),
  ],
)
def test_kernels_by_their_shapes(name, result, operands, extra, flops):
  found = op_costs.count(hlo.parse(kernel(name, result, operands, extra)))
  assert found.kernels == {name: flops}
  assert found.unknown == ()


def test_unknown_kernels_are_named():
  found = op_costs.count(hlo.parse(kernel('mine', 'f32[2]', ('f32[2]',))))
  assert found.unknown == ('mine',)
  assert found.calls == {'mine': 1}


GROUPS = """\
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%scatter (y: bf16[8,640]) -> bf16[4,640] {
  %y = bf16[8,640]{1,0} parameter(0)
  %all = bf16[8,640]{1,0} all-reduce(%y), FSDP, to_apply=%sum
  %zero = s32[] constant(0)
  ROOT %mine = bf16[4,640]{1,0} dynamic-slice(%all, %zero, %zero)
}

ENTRY %main (x: bf16[8,640]) -> bf16[8,640] {
  %x = bf16[8,640]{1,0} parameter(0)
  %w = f32[32,2]{1,0} parameter(1)
  %n = s32[8]{0} parameter(2)
  %zero = bf16[] constant(0)
  %dot = bf16[8,640]{1,0} copy(%x), metadata={op_name="jit(s)/transpose(jvp(T)\
)/decoder/while/body/periods/block_0/attention/attention._project/key/dot"}
  %pass = bf16[8,640]{1,0} bitcast(%dot)
  %rs = bf16[4,640]{1,0} fusion(%pass), kind=kCustom, calls=%scatter, \
backend_config={"emitter":"SingleInputAllReduceScatterFusion"}
  %ar = bf16[8,640]{1,0} all-reduce(%dot), TENSOR, to_apply=%sum
  %ag = (f32[32,2]{1,0}, f32[128,2]{1,0}) all-gather-start(%w), ALL
  %agd = f32[128,2]{1,0} all-gather-done(%ag)
  %a2a = bf16[8,640]{1,0} all-to-all(%x), TENSOR, dimensions={0}
  %room = bf16[24,640]{1,0} broadcast(%zero)
  %to = bf16[24,640]{1,0} ragged-all-to-all(%x, %room, %n, %n, %n, %n), TENSOR
  %back = bf16[8,640]{1,0} ragged-all-to-all(%to, %x, %n, %n, %n, %n), TENSOR
  %cp = bf16[8,640]{1,0} collective-permute(%x), \
source_target_pairs={{0,1},{1,0},{2,3},{3,2}}
  ROOT %send = (bf16[8,640]{1,0}, u32[], token[]) send(%x), \
frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}
}
"""
# The same groups as a list, as a shape, and by names of axes.
FORMS = [
  {
    'FSDP': 'replica_groups={{0,2},{1,3}}',
    'TENSOR': 'replica_groups={{0,1},{2,3}}',
    'ALL': 'replica_groups={}',
  },
  {
    'FSDP': 'replica_groups=[2,2]<=[2,2]T(1,0)',
    'TENSOR': 'replica_groups=[2,2]<=[4]',
    'ALL': 'replica_groups=[1,4]<=[4]',
  },
  {
    'FSDP': "replica_groups=mesh['a'=2,'b'=2] {'a'}",
    'TENSOR': "replica_groups=mesh['a'=4] {'a':(2)2}",
    'ALL': "replica_groups=mesh['a'=2,'b'=2] {'a','b'}",
  },
  {
    'FSDP': "replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}",
    'TENSOR': "replica_groups=mesh['a'=4], device_ids=([4]) {'a':(2)2}",
    'ALL': "replica_groups=mesh['a'=4] {'a'}",
  },
]
PARAMETERS = [
  'decoder/periods/block_0/attention/key/kernel',
  'decoder/periods/block_0/attention/query/kernel',
]


@pytest.mark.parametrize('form', FORMS)
def test_collectives_by_axis(form):
  mesh = tiny.make_mesh(1, 2, 2)
  text = functools.reduce(lambda text, pair: text.replace(*pair), form.items(), GROUPS)
  found = collectives.read(hlo.parse(text), mesh)
  size = 8 * 640 * 2
  assert collectives.totals(found) == {
    'fsdp': {'reduce-scatter': size / 2},
    'tensor': {
      'all-reduce': 2 * size / 2,
      'all-to-all': size / 2,
      'ragged-all-to-all': 2 * size / 2,
      'collective-permute': size,
    },
    'fsdp+tensor': {'all-gather': 3 / 4 * 128 * 2 * 4},
    '?': {'dcn': size},
  }
  assert [x.blocking for x in found] == [True, True, False, *[True] * 4, False]
  ((name, reduction),) = collectives.gradients(found, PARAMETERS)
  assert name == PARAMETERS[0] and reduction.kind == 'reduce-scatter'
  assert (reduction.axes, reduction.dtype) == (('fsdp',), 'bf16')
  assert reduction.bytes == size / 2
  assert collectives.float32_gathers(found, least=1024) == []
  (gather,) = collectives.float32_gathers(found, least=512)
  assert gather.size == 4


# As libtpu writes an asynchronous all-gather in a loop of 7 trips: in the
# fusion that starts it, in one whose product goes on meanwhile, in the one that
# waits. Another chain of the same number, of another channel; a blocking one.
CHAIN = """\
%until (p.1: (s32[])) -> pred[] {
  %p.1 = (s32[]) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %end = s32[] constant(7)
  ROOT %less = pred[] compare(%i.1, %end), direction=LT
}
FUSIONS
%body (p.2: (s32[])) -> (s32[]) {
  %p.2 = (s32[]) parameter(0)
  %i.2 = s32[] get-tuple-element(%p.2), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i.2, %one)
  %w = bf16[32,640]{1,0} custom-call(), custom_call_target="AllocateBuffer"
  %async-collective-start = bf16[64,640]{1,0} fusion(%w), kind=kCustom, \
calls=%fused_computation.1
  %fusion.7 = bf16[64,640]{1,0} fusion(%w), kind=kOutput, \
calls=%async_collective_fusion.1
  %async-collective-done = bf16[64,640]{1,0} fusion(%w), kind=kCustom, \
calls=%fused_computation.2
  %async-collective-start.1 = bf16[64,640]{1,0} fusion(%w), kind=kCustom, \
calls=%fused_computation.3
  %async-collective-done.1 = bf16[64,640]{1,0} fusion(%w), kind=kCustom, \
calls=%fused_computation.4
  %waits = bf16[64,640]{1,0} all-gather(%w), channel_id=5, \
replica_groups={{0,1},{2,3}}, dimensions={0}
  ROOT %t = (s32[]) tuple(%next)
}

ENTRY %main (n: s32[]) -> (s32[]) {
  %zero = s32[] constant(0)
  %start = (s32[]) tuple(%zero)
  ROOT %loop = (s32[]) while(%start), condition=%until, body=%body
}
"""


def chained(name, channel):
  return f"""
%{name} (param.{name}: bf16[32,640]) -> bf16[64,640] {{
  %param.{name} = bf16[32,640]{{1,0}} parameter(0)
  ROOT %ag.{name} = bf16[64,640]{{1,0}} all-gather(%param.{name}), \
channel_id={channel}, replica_groups={{{{0,1}},{{2,3}}}}, dimensions={{0}}, \
frontend_attributes={{chain_id="0"}}
}}
"""


def test_a_chain_is_one_transfer():
  """Not one for each fusion it is written in, and it blocks nothing."""
  channels = {
    'fused_computation.1': 3,
    'async_collective_fusion.1': 3,
    'fused_computation.2': 3,
    'fused_computation.3': 4,
    'fused_computation.4': 4,
  }
  fusions = ''.join(chained(*pair) for pair in channels.items())
  program = hlo.parse(CHAIN.replace('FUSIONS', fusions))
  found = collectives.read(program, tiny.make_mesh(1, 2, 2))
  assert [(x.kind, x.trips, x.blocking) for x in found] == [
    ('all-gather', 7, False),
    ('all-gather', 7, False),
    ('all-gather', 7, True),
  ]
  assert {x.bytes for x in found} == {7 * 32 * 640 * 2}


# On the CPU's compiler: the counts of a model are known, however it is written.


D = 264


def layers(unroll, x, weights):
  def layer(x, weight):
    return jnp.tanh(x @ weight), None

  return jnp.sum(jax.lax.scan(layer, x, weights, unroll=unroll)[0])


def compile_layers(unroll, shardings=(None, None)):
  args = (
    jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
    for shape, sharding in zip(((16, D), (5, D, D)), shardings, strict=True)
  )
  f = jax.jit(jax.grad(functools.partial(layers, unroll), argnums=1), out_shardings=shardings[1])
  return f.lower(*args).compile()


def test_scanned_is_unrolled():
  scanned, unrolled = (compile_layers(n) for n in (1, 5))
  counts = [op_costs.count(hlo.parse(c.as_text())).total for c in (scanned, unrolled)]
  # Forward, and both gradients but the first layer's input's.
  products = 3 * 5 - 1
  assert counts[1] == products * 2 * 16 * D * D
  # A loop computes the one more that unrolled layers do not need.
  assert counts[0] == counts[1] / products * (products + 1)
  analysis = unrolled.cost_analysis()
  assert counts[1] == pytest.approx(analysis['flops'], rel=0.01)
  assert scanned.cost_analysis()['flops'] < 0.3 * counts[0]


def test_collectives_of_a_loop():
  mesh = tiny.make_mesh(1, 2, 1)
  place = functools.partial(NamedSharding, mesh)
  compiled = compile_layers(
    1, (place(PartitionSpec('fsdp', None)), place(PartitionSpec(None, 'fsdp', None)))
  )
  found = collectives.read(hlo.parse(compiled.as_text()), mesh)
  totals = collectives.totals(found)
  assert set(totals) == {'fsdp'}
  # Each layer's weights, forward and backward; each layer's gradient.
  assert totals['fsdp']['all-gather'] == 2 * 5 * D * D * 4 / 2
  summed = totals['fsdp']['all-reduce']
  assert summed == pytest.approx(2 * 5 * D * D * 4 / 2, rel=0.05)


# Estimates, of schedules made by hand.


RATES = schedule.DeviceRates(peak=275e12, vector=4e12, memory=1e12, link=45e9, dcn=6.25e9)
CUBE_SLICES = topologies.parse('v4:4x4x4')
SMALL_SLICES = topologies.parse('v4:2x2x2')


class Chip:
  def __init__(self, coords):
    self.coords = coords


def cube(side) -> Any:
  chips = [Chip(c) for c in np.ndindex(side, side, side)]
  return types.SimpleNamespace(devices=np.array(chips).reshape(side, -1))


def sent(kind, gib, members: Any, blocking=True):
  return collectives.Collective(
    kind, (), len(members), 'bf16', 1, gib * 2**30, blocking, '', False, members
  )


def test_links():
  # The whole slice is rings along three dimensions; a row one along the last.
  mesh = cube(4)
  whole = sent('all-gather', 1, range(64))
  assert schedule.num_links(whole, mesh, CUBE_SLICES) == 6
  row = sent('all-gather', 1, range(4))
  assert schedule.num_links(row, mesh, CUBE_SLICES) == 2
  pair = sent('collective-permute', 1, (0, 1))
  assert schedule.num_links(pair, mesh, CUBE_SLICES) == 1
  ends = sent('all-gather', 1, (0, 2))
  assert schedule.num_links(ends, cube(2), SMALL_SLICES) == 1


def test_devices_of_a_chip_share_its_links():
  """Two of each of four chips: in one group, or in two that use the links at once."""
  slices = topologies.parse('tpu7x:2x2x1')
  pairs = [Chip(c) for c in np.ndindex(2, 2, 1) for _ in range(2)]
  mesh: Any = types.SimpleNamespace(devices=np.array(pairs))
  assert schedule.num_links(sent('all-gather', 1, range(8)), mesh, slices) == 2
  assert schedule.num_links(sent('all-gather', 1, range(0, 8, 2)), mesh, slices) == 1
  alone = sent('collective-permute', 1, (0, 2, 4, 6))
  assert schedule.num_links(alone, mesh, slices) == 0.5


SECOND = 45e9  # bytes over one link
LATENCY = schedule.LATENCY


@pytest.mark.parametrize(
  'events, spent',
  [
    # The longest of the three; attention kernels take turns.
    ([Work(0.9 * 275e12, 2e12, 0.25e12)], {'products': 1.0}),
    ([Work(0.45 * 275e12, 2e12, 4e12)], {'products': 0.5, 'memory': 3.5}),
    ([Work(0, 2e12, 0)], {'vector': 0.5}),
    ([Work(0.9 * 275e12, 2e12, 0, serial=True)], {'products': 1.0, 'vector': 0.5}),
    # A transfer of 3 s beside 1 s of work; one that nothing runs beside; one
    # to another slice behind no link.
    (
      [Send('a', 3 * SECOND, 1), Work(0.9 * 275e12), Wait('a')],
      {'products': 1.0, 'ici': 2.0 + LATENCY},
    ),
    (
      [Send('a', 6 * SECOND, 6), Wait('a'), Work(0.9 * 275e12)],
      {'products': 1.0, 'ici': 1.0 + LATENCY},
    ),
    ([Send('a', 6.25e9, 0), Wait('a')], {'dcn': 1.0 + LATENCY}),
    ([Send('a', 6.25e9, 0)], {'dcn': 1.0 + LATENCY}),
    # Copies of main memory take turns with what else it serves.
    ([Fetch('a', 1e12), Work(0, 0, 1e12), Wait('a')], {'memory': 2.0}),
    # A loop of three; what it started before and does not wait for, it sends
    # all the same.
    (
      [Loop(3, (Work(0.9 * 275e12), Send('a', 2 * SECOND, 1)))],
      {'products': 3.0, 'ici': 3 * (1.0 + LATENCY)},
    ),
    ([Loop(3, (Wait('b'), Work(0.9 * 275e12)))], {'products': 3.0}),
  ],
)
def test_replays(events, spent):
  found = schedule.step_time(events, RATES)
  assert {k: v for k, v in found._asdict().items() if v and k != 'step'} == (pytest.approx(spent))
  assert found.step == pytest.approx(sum(spent.values()))
  written = json.loads(json.dumps(ledger.to_json(events, digits=15)))
  assert schedule.step_time(ledger.from_json(written), RATES) == found


# A product with heads of 64, tiles of 8 x 128 in memory; a slice of a stack; an
# update in place; a matrix in fast memory.
WORK = """\
%product (a: bf16[1024,64], b: bf16[64,512]) -> f32[1024,512] {
  %a = bf16[1024,64]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[64,512]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %c = bf16[64,512]{1,0:T(8,128)(2,1)} negate(%b)
  ROOT %d = f32[1024,512]{1,0:T(8,128)S(1)} dot(%a, %c), \
lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%cut (s: bf16[7,16,128], i: s32[], t: bf16[7,16,128]) -> bf16[7,16,128] {
  %s = bf16[7,16,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %i = s32[]{:T(128)S(6)} parameter(1)
  %t = bf16[7,16,128]{2,1,0:T(8,128)(2,1)} parameter(2)
  %one = bf16[1,16,128]{2,1,0:T(8,128)(2,1)} dynamic-slice(%s, %i, %i, %i), \
dynamic_slice_sizes={1,16,128}
  ROOT %new = bf16[7,16,128]{2,1,0:T(8,128)(2,1)} \
dynamic-update-slice(%t, %one, %i, %i, %i)
}

ENTRY %main (a: bf16[1024,64], s: bf16[7,16,128]) -> f32[1024,512] {
  %a.1 = bf16[1024,64]{1,0:T(8,128)(2,1)} parameter(0)
  %b.1 = bf16[64,512]{1,0:T(8,128)(2,1)S(1)} custom-call(), \
custom_call_target="AllocateBuffer"
  %s.1 = bf16[7,16,128]{2,1,0:T(8,128)(2,1)} parameter(1)
  %i.1 = s32[]{:T(128)S(6)} constant(3)
  %f = f32[1024,512]{1,0:T(8,128)S(1)} fusion(%a.1, %b.1), kind=kOutput, \
calls=%product
  %g = bf16[7,16,128]{2,1,0:T(8,128)(2,1)} fusion(%s.1, %i.1, %s.1), \
kind=kLoop, calls=%cut
  %start = (f32[1024,512]{1,0:T(8,128)}, f32[1024,512]{1,0:T(8,128)S(1)}, \
u32[]{:S(2)}) copy-start(%f)
  ROOT %h = f32[1024,512]{1,0:T(8,128)} copy-done(%start)
}
"""


def test_work_of_a_schedule():
  found = schedule.read(hlo.parse(WORK), [], cube(4), CUBE_SLICES, causal=True)
  assert found == (
    # 64 is padded to 128, in the product and in memory.
    Work(2 * 1024 * 128 * 512, 64 * 512, 1024 * 128 * 2),
    Work(0, 0, 2 * 16 * 128 * 2),
    Fetch('start', 1024 * 512 * 4),
    Wait('start'),
  )


def test_attention_kernels_skip_blocks():
  program = hlo.parse(kernel('splash_mha_fwd_x', f'({Q})', ('s8[1,2,2]', Q, KV, KV)))
  (skips,) = schedule.read(program, [], cube(4), CUBE_SLICES, causal=True)
  (whole,) = schedule.read(program, [], cube(4), CUBE_SLICES, causal=False)
  # Heads of 8 take the unit's 128; of four blocks one is above the diagonal.
  assert whole.products == 2 * ONE * 128 / 8 and whole.serial
  assert skips.products == whole.products * 3 / 4
  assert skips.vector == whole.vector * 3 / 4 == 8 * 3 * 4 * 64 * 96 * 3 / 4


def blocks_read(grid, *maps):
  """Times that a kernel reads each operand's blocks, or writes those.

  It does unless the block is that of the step before.
  """
  found = [[] for _ in maps]
  for step in itertools.product(*map(range, grid)):
    for blocks, of in zip(found, maps, strict=True):
      if blocks[-1:] != [of(*step)]:
        blocks.append(of(*step))
  return [len(blocks) for blocks in found]


@pytest.mark.parametrize('inner, high', [(2688, 3), (768, 1)])
@pytest.mark.parametrize('of_weights', [False, True])
def test_experts_kernels_read_blocks_again(inner, high, of_weights):
  """By megablox's grids and index maps, with two blocks of each expert."""
  size, experts, wide, outer = 512, 3, 2, 1536
  used, room = 2 * experts, 9
  scalars = 's32[]', 's32[5]', f's32[{room + experts}]', 's32[12]', 's32[1]'
  rows, weights = f'bf16[{room * size},%d]', f'bf16[{experts},{inner},{outer}]'
  if of_weights:
    name, result, operands = 'tgmm', weights, (rows % inner, rows % outer)
    left, right, out = blocks_read(
      (wide, high, used),
      lambda n, k, m: (m, k),
      lambda n, k, m: (m, n),
      lambda n, k, m: (m // 2, k, n),
    )
    tile = inner // high, outer // wide
    sizes = size * tile[0], size * tile[1], tile[0] * tile[1]
  else:
    name, result, operands = 'gmm', rows % outer, (rows % inner, weights)
    left, right, out = blocks_read(
      (wide, used, high),
      lambda n, m, k: (m, k),
      lambda n, m, k: (m // 2, k, n),
      lambda n, m, k: (m, n),
    )
    tile = inner // high, outer // wide
    sizes = size * tile[0], tile[0] * tile[1], size * tile[1]
  scope = f'in/rows_{used * size}/transpose(jvp(jit({name})))'
  program = hlo.parse(kernel(scope, result, (*scalars, *operands)))
  (work,) = schedule.read(program, [], cube(4), CUBE_SLICES, causal=True)
  flops = 2 * used * size * inner * outer
  moved = np.dot((left, right, out), sizes) * 2
  assert work == Work(flops, 0, moved)
  assert op_costs.count(program).kernels == {name: flops}


def test_flash_attention_says_what_it_does():
  """FLOPs, scores and bytes by its estimate, features by its name."""
  estimate = ''.join(
    f'"{name}":"{n}",'
    for name, n in (('flops', 1000), ('transcendentals', 70), ('bytes_accessed', 300))
  )
  extra = f'"cost_estimate":{{{estimate}}}'
  each = {
    'forward': 8,
    'backward': 10,
    'forward_strip_hashes': 8 + 3 + 14,
    'backward_queries_table_keys_table': 10 + 2 * 22,
    'forward_queries_table_kinds': 8 + 10 + 3,
  }
  for name, vector in each.items():
    text = kernel(f'flash_{name}', f'({Q})', (Q, KV, KV), extra)
    program = hlo.parse(text)
    (work,) = schedule.read(program, [], cube(4), CUBE_SLICES, causal=True)
    # Heads of 8 take the unit's 128.
    assert work == Work(1000 * 128 / 8, vector * 70, 300, serial=True)
