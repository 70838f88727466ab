# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reading compiled programs: small ones by hand, and real ones for a CPU."""

import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gpt_jax.planning import (
  collectives,
  estimate,
  gradients,
  hlo,
  hlo_matmuls,
  loops,
)
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
}

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
  assert loops.unknown(program) == []
  # 3, 5, ..., 15 are at most 16: seven.
  assert hlo_matmuls.count(program).total == 3 * 7 * ONCE


def test_a_loop_whose_trips_depend_on_data_is_told():
  program = hlo.parse(NESTED.replace('FIRST', 'copy(%n.5)'))
  found = hlo_matmuls.count(program)
  assert found.unknown_loops == ('loop',)
  assert found.total == 7 * ONCE


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
  assert hlo_matmuls.count(hlo.parse(text)).total == flops


def kernel(name, result, operands, extra=''):
  lines = [
    f'  %p{i} = {shape} parameter({i})' for i, shape in enumerate(operands)
  ]
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
    ('gmm', 'bf16[64,7]', ('s32[5]', 'bf16[64,11]', 'bf16[3,11,7]'), '', 9856),
    ('tgmm', 'bf16[3,11,7]', ('bf16[11,64]', 'bf16[64,7]'), '', 9856),
    ('any', 'f32[2]', ('f32[2]',), '"cost_estimate":{"flops":"77"}', 77),
  ],
)
def test_kernels_by_their_shapes(name, result, operands, extra, flops):
  found = hlo_matmuls.count(hlo.parse(kernel(name, result, operands, extra)))
  assert found.kernels == {name: flops}
  assert found.unknown == ()


def test_kernels_that_are_not_known_are_told():
  found = hlo_matmuls.count(hlo.parse(kernel('mine', 'f32[2]', ('f32[2]',))))
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
  %dot = bf16[8,640]{1,0} copy(%x), metadata={op_name="jit(s)/transpose(jvp(T)\
)/decoder/while/body/periods/block_0/attention/attention._project/key/dot"}
  %pass = bf16[8,640]{1,0} bitcast(%dot)
  %rs = bf16[4,640]{1,0} fusion(%pass), kind=kCustom, calls=%scatter, \
backend_config={"emitter":"SingleInputAllReduceScatterFusion"}
  %ar = bf16[8,640]{1,0} all-reduce(%dot), TENSOR, to_apply=%sum
  %ag = (f32[32,2]{1,0}, f32[128,2]{1,0}) all-gather-start(%w), ALL
  %agd = f32[128,2]{1,0} all-gather-done(%ag)
  %a2a = bf16[8,640]{1,0} all-to-all(%x), TENSOR, dimensions={0}
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
  text = functools.reduce(
    lambda text, pair: text.replace(*pair), form.items(), GROUPS
  )
  found = collectives.read(hlo.parse(text), mesh)
  size = 8 * 640 * 2
  assert collectives.totals(found) == {
    'fsdp': {'reduce-scatter': size / 2},
    'tensor': {
      'all-reduce': 2 * size / 2,
      'all-to-all': size / 2,
      'collective-permute': size,
    },
    'fsdp+tensor': {'all-gather': 3 / 4 * 128 * 2 * 4},
    '?': {'dcn': size},
  }
  assert [x.blocking for x in found] == [True, True, False, True, True, False]
  assert gradients.gradients(found, PARAMETERS) == [
    gradients.Reduction(
      PARAMETERS[0], 'reduce-scatter', ('fsdp',), 'bf16', size / 2
    )
  ]
  assert collectives.float32_gathers(found, least=1024) == []
  (gather,) = collectives.float32_gathers(found, least=512)
  assert gather.size == 4


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
  f = jax.jit(
    jax.grad(functools.partial(layers, unroll), argnums=1),
    out_shardings=shardings[1],
  )
  return f.lower(*args).compile()


def test_scanned_is_unrolled():
  scanned, unrolled = (compile_layers(n) for n in (1, 5))
  counts = [
    hlo_matmuls.count(hlo.parse(c.as_text())).total for c in (scanned, unrolled)
  ]
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
    1,
    (
      place(PartitionSpec('fsdp', None)),
      place(PartitionSpec(None, 'fsdp', None)),
    ),
  )
  found = collectives.read(hlo.parse(compiled.as_text()), mesh)
  totals = collectives.totals(found)
  assert set(totals) == {'fsdp'}
  # Each layer's weights, forward and backward; each layer's gradient.
  assert totals['fsdp']['all-gather'] == 2 * 5 * D * D * 4 / 2
  summed = totals['fsdp']['all-reduce']
  assert summed == pytest.approx(2 * 5 * D * D * 4 / 2, rel=0.05)


# What TPU.md measured: FLOPs at the peak against the published step's seconds.
# (PaLM 540B, 6,144 v4; MaxText's of 16B to 128B on v5e-256, 32B and 64B on
# v5p-128, 128B on v5p-256, 256B and 512B on v5p-1024.)
PUBLISHED = {
  'palm 540b': (17.6, -0.42),
  '16b v5e': (10.1, -0.24),
  '32b v5e': (12.0, -0.17),
  '64b v5e': (13.3, -0.25),
  '128b v5e': (14.2, -0.30),
  '32b v5p': (7.2, -0.29),
  '64b v5p': (7.3, -0.17),
  '128b v5p': (5.0, -0.31),
  '256b v5p': (10.1, -0.33),
  '512b v5p': (42.1, -0.20),
}
V4 = estimate.Rates(
  peak=275e12,
  link=45e9,
  dcn=6.25e9,
  shape=(2, 2, 2),
  wrap=(True, True, True),
)


class Chip:
  def __init__(self, coords):
    self.coords = coords


CUBE: Any = types.SimpleNamespace(
  devices=np.array([Chip(c) for c in np.ndindex(2, 2, 2)]).reshape(4, 2)
)


@pytest.mark.parametrize('name', PUBLISHED)
def test_estimates_of_published_runs(name):
  seconds, below = PUBLISHED[name]
  flops = seconds * (1 + below) * V4.peak
  found = estimate.step_time(flops, [], CUBE, V4)
  assert found.step == pytest.approx(seconds, rel=estimate.ERROR)
  assert found.bound == 'compute'


def sent(kind, gib, members: Any, blocking=True):
  return collectives.Collective(
    kind, (), len(members), 'bf16', 1, gib * 2**30, blocking, '', False, members
  )


def test_links():
  # The whole slice is rings along three dimensions; a pair along the last.
  assert estimate.links(sent('all-gather', 1, (0, 1, 2, 3, 4)), CUBE, V4) == 6
  assert estimate.links(sent('all-gather', 1, (0, 1)), CUBE, V4) == 2
  assert estimate.links(sent('collective-permute', 1, (0, 1)), CUBE, V4) == 1
  open_ends = V4._replace(wrap=(False, False, False))
  assert estimate.links(sent('all-gather', 1, (0, 2)), CUBE, open_ends) == 1


def test_estimates_rank_layouts_by_what_they_send():
  # GPT-3 175B on 2,048 v4: TFLOP and GiB of a chip and step, by rows.
  whole = [sent('all-gather', 649, range(8)), sent('all-reduce', 652, range(8))]
  planes = [
    sent('all-gather', 223, range(4)),
    sent('reduce-scatter', 75, range(4)),
    sent('all-reduce', 28, (0, 1)),
    sent('collective-permute', 91, (0, 1), blocking=False),
  ]
  fsdp = estimate.step_time(2699e12, whole, CUBE, V4)
  both = estimate.step_time(2024e12, planes, CUBE, V4)
  assert fsdp.bound == 'compute and blocking communication'
  assert both.step / 1536 < 0.9 * fsdp.step / 2048
  dcn = sent('dcn', 100, (), blocking=False)
  slow = estimate.step_time(2024e12, [*planes, dcn], CUBE, V4)
  assert slow.bound == 'communication between slices'
  assert slow.step == 100 * 2**30 / 6.25e9
